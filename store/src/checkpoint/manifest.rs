//! A manifest: which runs, one on top of the other, are a checkpoint, and of which frame.
//!
//! Owns: the layout of the file, and that one is whole and durable under its name before it counts.
//! Never looks into a run. Read next: [`super::run`], [`super::write`].
//!
//! A file of its own rather than names that say it all: folding replaces many runs by one at a stroke,
//! and that stroke is the renaming of a manifest. Until then the one before counts, afterwards the new
//! one; a crash leaves one or the other.
//!
//! Little-endian, persisted:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABN1` |
//! | 4 | 4 | version, 1 |
//! | 8 | 8 | identity of the checkpoint folder |
//! | 16 | 8 | sequence of the manifest, as in its name |
//! | 24 | 8 | term of the last frame applied |
//! | 32 | 8 | log index of the last frame applied |
//! | 40 | 8 | clock of the state: the highest stamp applied, milliseconds |
//! | 48 | 4 | length of the members |
//! | 52 | 4 | number of runs |
//! | 56 | n | members of the group, as JSON |
//! | | 32 each | runs, lowest first: sequence (8), length of the file (8), pairs (8), checksum of its footer (4), 0 (4) |
//! | end - 4 | 4 | CRC-32C of all bytes before |

use super::index::Identity;
use super::run::RunRef;
use crate::disk::{Disk, write_all_at};
use crate::journal::FrameId;
use crate::journal::frame::{crc32c, u32_at, u64_at};
use anabranch_core::id::{LogIndex, Term, UnixMs};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 4] = *b"ABN1";
const VERSION: u32 = 1;
const FIXED_BYTES: usize = 56;
const RUN_BYTES: usize = 32;
const CRC_BYTES: usize = 4;
const PREFIX: &str = "manifest-";
/// Name of one that is being written.
pub(super) const UNFINISHED: &str = "manifest.tmp";

/// What a checkpoint is a checkpoint of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Last frame applied.
    pub id: FrameId,
    /// Highest clock applied.
    pub clock: UnixMs,
    /// Members of the group as of that frame, in the consensus layer's own form.
    pub members: Bytes,
}

/// One checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Which folder's it is.
    pub identity: Identity,
    /// Number in its name; 0 for a checkpoint that an older server wrote as a single file.
    pub sequence: u64,
    /// What it is a checkpoint of.
    pub standing: Standing,
    /// Its runs, lowest first: the last writer of a key wins.
    pub runs: Vec<RunRef>,
}

/// The path of a manifest.
pub(super) fn manifest_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{sequence:020}"))
}

/// The sequence that a file name states, when it is a manifest's.
pub(super) fn parse_manifest_name(name: &str) -> Option<u64> {
    super::parse_numbered(name, PREFIX)
}

impl Manifest {
    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let members = &self.standing.members;
        let mut bytes =
            Vec::with_capacity(FIXED_BYTES + members.len() + self.runs.len() * RUN_BYTES + 4);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for number in [
            self.identity.0,
            self.sequence,
            self.standing.id.term.0,
            self.standing.id.index.0,
            self.standing.clock.0,
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&(members.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        bytes.extend_from_slice(members);
        for run in &self.runs {
            for number in [run.sequence, run.bytes, run.pairs] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            bytes.extend_from_slice(&run.crc.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
        }
        let crc = crc32c(&[&bytes]);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a file's bytes; `None` when they are not a whole manifest of a known version.
    pub fn decode(bytes: &[u8]) -> Option<Manifest> {
        let (body, crc) = bytes.split_at_checked(bytes.len().checked_sub(CRC_BYTES)?)?;
        if body.len() < FIXED_BYTES
            || body[..4] != MAGIC
            || u32_at(body, 4) != VERSION
            || u32_at(crc, 0) != crc32c(&[body])
        {
            return None;
        }
        let members_len = u32_at(body, 48) as usize;
        let count = u32_at(body, 52) as usize;
        let (members, runs) = body[FIXED_BYTES..].split_at_checked(members_len)?;
        if runs.len() != count.checked_mul(RUN_BYTES)? {
            return None;
        }
        let runs = runs.chunks_exact(RUN_BYTES).map(|run| RunRef {
            sequence: u64_at(run, 0),
            bytes: u64_at(run, 8),
            pairs: u64_at(run, 16),
            crc: u32_at(run, 24),
        });
        Some(Manifest {
            identity: Identity(u64_at(body, 8)),
            sequence: u64_at(body, 16),
            standing: Standing {
                id: FrameId {
                    term: Term(u64_at(body, 24)),
                    index: LogIndex(u64_at(body, 32)),
                },
                clock: UnixMs(u64_at(body, 40)),
                members: Bytes::copy_from_slice(members),
            },
            runs: runs.collect(),
        })
    }

    /// Reads the file of that sequence; `None` when it is not whole.
    pub(super) fn read(disk: &dyn Disk, dir: &Path, sequence: u64) -> io::Result<Option<Manifest>> {
        let file = disk.open(&manifest_path(dir, sequence))?;
        let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        file.read_at(&mut bytes, 0)?;
        Ok(Manifest::decode(&bytes).filter(|manifest| manifest.sequence == sequence))
    }

    /// Writes the file; it counts, and is durable, on return. On an error it may count or not.
    pub(super) fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let unfinished = dir.join(UNFINISHED);
        match disk.remove(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = disk.create_zeroed(&unfinished, 0)?;
        write_all_at(&*file, &self.encode(), 0)?;
        file.sync()?;
        disk.rename(&unfinished, &manifest_path(dir, self.sequence))?;
        disk.sync_dir(dir)
    }

    /// Bytes of its runs.
    pub fn run_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;

    fn sample() -> Manifest {
        let run = |sequence| RunRef {
            sequence,
            bytes: sequence * 100,
            pairs: sequence * 3,
            crc: 7,
        };
        Manifest {
            identity: Identity(77),
            sequence: 5,
            standing: Standing {
                id: FrameId {
                    term: Term(2),
                    index: LogIndex(900),
                },
                clock: UnixMs(123),
                members: Bytes::from_static(b"{}"),
            },
            runs: vec![run(1), run(4), run(5)],
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let bytes = sample().encode();
        assert_eq!(Manifest::decode(&bytes), Some(sample()));
        for bit in 0..bytes.len() * 8 {
            let mut broken = bytes.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Manifest::decode(&broken), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Manifest::decode(&bytes[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn a_manifest_under_another_name_is_not_believed() {
        let (disk, dir) = (SimDisk::new(1), Path::new("c"));
        sample().write(&disk, dir).unwrap();
        assert_eq!(Manifest::read(&disk, dir, 5).unwrap(), Some(sample()));
        disk.rename(&manifest_path(dir, 5), &manifest_path(dir, 6))
            .unwrap();
        assert_eq!(Manifest::read(&disk, dir, 6).unwrap(), None);
    }
}
