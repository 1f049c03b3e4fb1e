//! Checkpoint files: the state machine's bytes at one log index.
//!
//! Owns: their names, layout and verification, and that one is whole and durable before an older one
//! goes. Never looks into the state; never writes one above the locally synced log. Read next:
//! [`super::machine`].
//!
//! Layout, little-endian, persisted:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABC1` |
//! | 4 | 4 | version, 1 |
//! | 8 | 8 | term of the last frame applied |
//! | 16 | 8 | log index of the last frame applied |
//! | 24 | 8 | clock of the state: the highest stamp applied, milliseconds |
//! | 32 | 8 | length of the membership (JSON) |
//! | 40 | 8 | length of the state |
//! | 48 | 4 | CRC-32C of bytes 0..48, the membership and the state |
//! | 52 | n | membership, then state |

use super::types::StoredMembership;
use crate::disk::{Disk, write_all_at};
use crate::journal::FrameId;
use crate::journal::frame::{crc32c, u32_at, u64_at};
use anabranch_core::id::{LogIndex, Term, UnixMs};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 4] = *b"ABC1";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 52;
const PREFIX: &str = "checkpoint-";
/// Checkpoints kept: the newest, and one more should the newest rot.
const KEEP: usize = 2;

/// The state at one log index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Last frame applied.
    pub id: FrameId,
    /// Highest clock applied.
    pub clock: UnixMs,
    /// Members of the group as of that frame.
    pub membership: StoredMembership,
    /// The state machine's own bytes.
    pub state: Bytes,
}

impl Checkpoint {
    /// The bytes of the file.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let members = serde_json::to_vec(&self.membership).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + members.len() + self.state.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.id.term.0.to_le_bytes());
        bytes.extend_from_slice(&self.id.index.0.to_le_bytes());
        bytes.extend_from_slice(&self.clock.0.to_le_bytes());
        bytes.extend_from_slice(&(members.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&(self.state.len() as u64).to_le_bytes());
        let crc = crc32c(&[&bytes, &members, &self.state]);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&members);
        bytes.extend_from_slice(&self.state);
        Ok(bytes)
    }

    /// Reads a file's bytes; `None` when they are not a whole checkpoint of a known version.
    pub fn decode(bytes: &Bytes) -> Option<Checkpoint> {
        if bytes.len() < HEADER_BYTES || bytes[..4] != MAGIC || u32_at(bytes, 4) != VERSION {
            return None;
        }
        let body = &bytes[HEADER_BYTES..];
        let members_len = usize::try_from(u64_at(bytes, 32)).ok()?;
        let state_len = usize::try_from(u64_at(bytes, 40)).ok()?;
        if members_len.checked_add(state_len)? != body.len() {
            return None;
        }
        if u32_at(bytes, 48) != crc32c(&[&bytes[..48], body]) {
            return None;
        }
        Some(Checkpoint {
            id: FrameId {
                term: Term(u64_at(bytes, 8)),
                index: LogIndex(u64_at(bytes, 16)),
            },
            clock: UnixMs(u64_at(bytes, 24)),
            membership: serde_json::from_slice(&body[..members_len]).ok()?,
            state: bytes.slice(HEADER_BYTES + members_len..),
        })
    }

    /// Writes the file into `dir`, durable on return, and removes those no longer kept.
    pub fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let bytes = self.encode()?;
        let unfinished = dir.join("checkpoint.tmp");
        match disk.remove(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = disk.create_zeroed(&unfinished, bytes.len() as u64)?;
        write_all_at(&*file, &bytes, 0)?;
        file.sync()?;
        disk.rename(&unfinished, &path_of(dir, self.id.index))?;
        disk.sync_dir(dir)?;
        let mut kept = list(disk, dir)?;
        while kept.len() > KEEP {
            disk.remove(&path_of(dir, kept.remove(0)))?;
        }
        disk.sync_dir(dir)
    }
}

fn path_of(dir: &Path, index: LogIndex) -> PathBuf {
    dir.join(format!("{PREFIX}{:020}", index.0))
}

/// Log indexes of the checkpoint files in `dir`, ascending.
fn list(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<LogIndex>> {
    let names = disk.list(dir)?;
    let digits = names.iter().filter_map(|name| name.strip_prefix(PREFIX));
    let mut found: Vec<LogIndex> = digits
        .filter(|digits| digits.len() == 20)
        .filter_map(|digits| digits.parse().ok().map(LogIndex))
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Loads the newest whole checkpoint. A rotten one is reported and passed over: the frames after
/// the one before it are still in the journal, or opening the journal says that they are not.
pub fn load_newest(disk: &dyn Disk, dir: &Path) -> io::Result<Option<Checkpoint>> {
    for index in list(disk, dir)?.into_iter().rev() {
        let path = path_of(dir, index);
        let file = disk.open(&path)?;
        let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        file.read_at(&mut bytes, 0)?;
        match Checkpoint::decode(&bytes.into()) {
            Some(checkpoint) if checkpoint.id.index == index => return Ok(Some(checkpoint)),
            _ => {
                tracing::error!(path = %path.display(), "a checkpoint is corrupt; an older one is tried")
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;

    fn sample(index: u64) -> Checkpoint {
        Checkpoint {
            id: FrameId {
                term: Term(1),
                index: LogIndex(index),
            },
            clock: UnixMs(99),
            membership: StoredMembership::default(),
            state: Bytes::from(format!("state at {index}")),
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = sample(7).encode().unwrap();
        assert_eq!(Checkpoint::decode(&bytes.clone().into()), Some(sample(7)));
        for bit in 0..bytes.len() * 8 {
            let mut broken = bytes.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Checkpoint::decode(&broken.into()), None, "bit {bit}");
        }
    }

    #[test]
    fn the_newest_whole_one_is_loaded_and_old_ones_go() {
        let disk = SimDisk::new(1);
        let dir = Path::new("g");
        for index in [3, 5, 9] {
            sample(index).write(&disk, dir).unwrap();
        }
        assert_eq!(list(&disk, dir).unwrap(), [LogIndex(5), LogIndex(9)]);
        assert_eq!(load_newest(&disk, dir).unwrap(), Some(sample(9)));
        disk.flip_bit(&path_of(dir, LogIndex(9)), 60, 1);
        assert_eq!(load_newest(&disk, dir).unwrap(), Some(sample(5)));
    }
}
