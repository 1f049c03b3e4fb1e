//! The small durable facts beside the frames: vote, purge pointer, the last cut.
//!
//! Owns: their layout and the two slots they live in. Both slots are written one after the other,
//! each synced, so a crash leaves one whole and a later flipped bit leaves the other. Never decides
//! what a vote means. Read next: [`super::writer`], which alone writes it.
//!
//! One slot, 512 bytes:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABM1` |
//! | 4 | 2 | version, 1 |
//! | 6 | 1 | flags: 1 a vote is present, 2 the vote is committed, 4 a purge pointer is present |
//! | 8 | 8 | sequence of this write |
//! | 16 | 8 | vote: term |
//! | 24 | 8 | vote: node |
//! | 32 | 8 | purged: term |
//! | 40 | 8 | purged: log index |
//! | 48 | 8 | last cut: the first log index dropped |
//! | 56 | 4 | epoch: number of cuts so far |
//! | 64 | 8 | first log index not yet synced when this was written |
//! | 72 | 8 | base of the newest segment that is durable under its name |
//! | 508 | 4 | CRC-32C of bytes 0..508 |

use super::frame::{crc32c, u32_at, u64_at};
use crate::disk::{Disk, DiskFile, write_all_at};
use anabranch_core::id::{LogIndex, Term};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of one slot.
const SLOT_BYTES: usize = 512;
const MAGIC: [u8; 4] = *b"ABM1";
const VERSION: u8 = 1;

/// Name of the file inside the journal's directory.
pub(crate) const META_NAME: &str = "meta";

/// A vote as the consensus layer gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VoteRecord {
    /// Term voted in.
    pub term: Term,
    /// Node voted for.
    pub node: u64,
    /// Whether a quorum granted it.
    pub committed: bool,
}

/// A frame's identity in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameId {
    /// Its term.
    pub term: Term,
    /// Its log index.
    pub index: LogIndex,
}

/// Everything a slot holds, but for its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Meta {
    pub(crate) vote: Option<VoteRecord>,
    pub(crate) purged: Option<FrameId>,
    pub(crate) cut_from: u64,
    pub(crate) epoch: u32,
    pub(crate) synced_end: u64,
    pub(crate) newest_base: u64,
}

impl Meta {
    fn encode(&self, sequence: u64) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        if let Some(vote) = self.vote {
            bytes[6] |= 1 | if vote.committed { 2 } else { 0 };
            bytes[16..24].copy_from_slice(&vote.term.0.to_le_bytes());
            bytes[24..32].copy_from_slice(&vote.node.to_le_bytes());
        }
        if let Some(purged) = self.purged {
            bytes[6] |= 4;
            bytes[32..40].copy_from_slice(&purged.term.0.to_le_bytes());
            bytes[40..48].copy_from_slice(&purged.index.0.to_le_bytes());
        }
        bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.cut_from.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.synced_end.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.newest_base.to_le_bytes());
        let crc = crc32c(&[&bytes[..508]]);
        bytes[508..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<(u64, Meta)> {
        let sound = bytes.len() == SLOT_BYTES
            && bytes[0..4] == MAGIC
            && bytes[4] == VERSION
            && u32_at(bytes, 508) == crc32c(&[&bytes[..508]]);
        if !sound {
            return None;
        }
        let vote = (bytes[6] & 1 != 0).then(|| VoteRecord {
            term: Term(u64_at(bytes, 16)),
            node: u64_at(bytes, 24),
            committed: bytes[6] & 2 != 0,
        });
        let purged = (bytes[6] & 4 != 0).then(|| FrameId {
            term: Term(u64_at(bytes, 32)),
            index: LogIndex(u64_at(bytes, 40)),
        });
        let meta = Meta {
            vote,
            purged,
            cut_from: u64_at(bytes, 48),
            epoch: u32_at(bytes, 56),
            synced_end: u64_at(bytes, 64),
            newest_base: u64_at(bytes, 72),
        };
        Some((u64_at(bytes, 8), meta))
    }
}

/// The open file.
#[derive(Debug)]
pub(crate) struct MetaFile {
    file: Arc<dyn DiskFile>,
    sequence: u64,
}

/// The two slots as they lie there; none where one is not sound.
#[derive(Debug)]
pub(crate) struct Slots([Option<(u64, Meta)>; 2]);

impl Slots {
    /// Reads both.
    fn read(file: &dyn DiskFile) -> io::Result<Slots> {
        let mut bytes = [0; 2 * SLOT_BYTES];
        match file.read_at(&mut bytes, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(Slots([None; 2]));
            }
            Err(error) => return Err(error),
        }
        let (first, second) = bytes.split_at(SLOT_BYTES);
        Ok(Slots([Meta::decode(first), Meta::decode(second)]))
    }

    /// Reads those of the file in `dir`, and changes nothing; `None` when there is no file.
    pub(super) fn look(disk: &dyn Disk, dir: &Path) -> io::Result<Option<Slots>> {
        match disk.open(&dir.join(META_NAME)) {
            Ok(file) => Slots::read(&*file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn newest(&self) -> Option<(u64, Meta)> {
        let sound = self.0.into_iter().flatten();
        sound.max_by_key(|(sequence, _)| *sequence)
    }

    /// What counts; nothing when neither is sound.
    pub(super) fn meta(&self) -> Option<Meta> {
        self.newest().map(|(_, meta)| meta)
    }

    /// Offset in the file of the first slot that is not sound.
    pub(super) fn rotten(&self) -> Option<u64> {
        let nth = self.0.iter().position(Option::is_none)?;
        Some((nth * SLOT_BYTES) as u64)
    }
}

impl MetaFile {
    /// Opens or creates the file in `dir`. `None` when it exists and neither slot is sound.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path) -> io::Result<Option<(MetaFile, Meta)>> {
        let path = dir.join(META_NAME);
        let file = match disk.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Self::create(disk, dir, &path).map(Some);
            }
            Err(error) => return Err(error),
        };
        let slots = Slots::read(&*file)?;
        let Some((sequence, meta)) = slots.newest() else {
            return Ok(None);
        };
        let mut opened = MetaFile { file, sequence };
        if slots.0[0] != slots.0[1] {
            // A crash came between the two writes, or one slot rotted: make them equal again.
            opened.write(&meta)?;
        }
        Ok(Some((opened, meta)))
    }

    fn create(disk: &dyn Disk, dir: &Path, path: &Path) -> io::Result<(MetaFile, Meta)> {
        let unfinished: PathBuf = dir.join("meta.tmp");
        match disk.remove(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = disk.create_zeroed(&unfinished, 2 * SLOT_BYTES as u64)?;
        let mut created = MetaFile { file, sequence: 0 };
        let meta = Meta::default();
        created.write(&meta)?;
        disk.rename(&unfinished, path)?;
        disk.sync_dir(dir)?;
        Ok((created, meta))
    }

    /// Writes and syncs both slots, one after the other.
    pub(crate) fn write(&mut self, meta: &Meta) -> io::Result<()> {
        self.sequence += 1;
        let bytes = meta.encode(self.sequence);
        for offset in [0, SLOT_BYTES as u64] {
            write_all_at(&*self.file, &bytes, offset)?;
            self.file.sync()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::{Faults, SimDisk};

    fn sample(term: u64) -> Meta {
        Meta {
            vote: Some(VoteRecord {
                term: Term(term),
                node: 9,
                committed: true,
            }),
            purged: Some(FrameId {
                term: Term(2),
                index: LogIndex(77),
            }),
            cut_from: 5,
            epoch: 6,
            synced_end: 80,
            newest_base: 90,
        }
    }

    #[test]
    fn the_newest_is_read_back_and_one_rotten_slot_is_survived() {
        let dir = Path::new("j");
        for rotten in 0..2 * SLOT_BYTES as u64 {
            let disk = SimDisk::new(1);
            let (mut file, empty) = MetaFile::open(&disk, dir).unwrap().unwrap();
            assert_eq!(empty, Meta::default());
            file.write(&sample(1)).unwrap();
            file.write(&sample(2)).unwrap();
            disk.flip_bit(&dir.join(META_NAME), rotten, 3);
            let (_, read) = MetaFile::open(&disk, dir).unwrap().unwrap();
            assert_eq!(read, sample(2), "flipped byte {rotten}");
        }
    }

    #[test]
    fn two_rotten_slots_are_told() {
        let disk = SimDisk::new(1);
        let dir = Path::new("j");
        MetaFile::open(&disk, dir).unwrap().unwrap();
        disk.flip_bit(&dir.join(META_NAME), 9, 0);
        disk.flip_bit(&dir.join(META_NAME), 512 + 9, 0);
        assert!(MetaFile::open(&disk, dir).unwrap().is_none());
    }

    #[test]
    fn a_crash_while_writing_leaves_the_old_or_the_new() {
        for seed in 0..64 {
            let disk = SimDisk::new(seed);
            let dir = Path::new("j");
            let (mut file, _) = MetaFile::open(&disk, dir).unwrap().unwrap();
            file.write(&sample(1)).unwrap();
            disk.set_faults(Faults {
                fail_sync_after: Some(seed % 2),
                ..Faults::default()
            });
            assert!(file.write(&sample(2)).is_err());
            disk.crash();
            let (_, read) = MetaFile::open(&disk, dir).unwrap().unwrap();
            assert!(
                read == sample(2) || (read == sample(1) && seed % 2 == 0),
                "seed {seed}"
            );
        }
    }
}
