//! Checkpoints of earlier servers: the whole state in one file. They are read, never written.
//!
//! Owns: their names and layout. Read next: [`super::open`], which takes one as a single pair.
//!
//! Little-endian, persisted:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABC1` |
//! | 4 | 4 | version, 1 |
//! | 8 | 8 | term of the last frame applied |
//! | 16 | 8 | log index of the last frame applied |
//! | 24 | 8 | clock of the state: the highest stamp applied, milliseconds |
//! | 32 | 8 | length of the members (JSON) |
//! | 40 | 8 | length of the state |
//! | 48 | 4 | CRC-32C of bytes 0..48, the members and the state |
//! | 52 | n | members, then state |

use super::manifest::Standing;
use crate::disk::Disk;
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

/// The path of the whole checkpoint of a log index.
pub(super) fn whole_path(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{index:020}"))
}

/// The log index that a file name states, when it is a whole checkpoint's.
pub(super) fn parse_whole_name(name: &str) -> Option<u64> {
    super::parse_numbered(name, PREFIX)
}

/// Reads a file's bytes: where the state stands, and the state. `None` when they are not a whole
/// checkpoint of a known version.
pub fn decode(bytes: &Bytes) -> Option<(Standing, Bytes)> {
    if bytes.len() < HEADER_BYTES || bytes[..4] != MAGIC || u32_at(bytes, 4) != VERSION {
        return None;
    }
    let body = &bytes[HEADER_BYTES..];
    let members_len = usize::try_from(u64_at(bytes, 32)).ok()?;
    let state_len = usize::try_from(u64_at(bytes, 40)).ok()?;
    if members_len.checked_add(state_len)? != body.len()
        || u32_at(bytes, 48) != crc32c(&[&bytes[..48], body])
    {
        return None;
    }
    let standing = Standing {
        id: FrameId {
            term: Term(u64_at(bytes, 8)),
            index: LogIndex(u64_at(bytes, 16)),
        },
        clock: UnixMs(u64_at(bytes, 24)),
        members: bytes.slice(HEADER_BYTES..HEADER_BYTES + members_len),
    };
    Some((standing, bytes.slice(HEADER_BYTES + members_len..)))
}

/// Reads the file of that log index; `None` when it is not whole.
pub(super) fn read(
    disk: &dyn Disk,
    dir: &Path,
    index: u64,
) -> io::Result<Option<(Standing, Bytes)>> {
    let file = disk.open(&whole_path(dir, index))?;
    let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    file.read_at(&mut bytes, 0)?;
    let read = decode(&bytes.into());
    Ok(read.filter(|(standing, _)| standing.id.index.0 == index))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The bytes that an earlier server would have written.
    pub(crate) fn encode(standing: &Standing, state: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::from(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for number in [
            standing.id.term.0,
            standing.id.index.0,
            standing.clock.0,
            standing.members.len() as u64,
            state.len() as u64,
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c(&[&bytes, &standing.members, state]);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&standing.members);
        bytes.extend_from_slice(state);
        bytes
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let standing = Standing {
            id: FrameId {
                term: Term(1),
                index: LogIndex(7),
            },
            clock: UnixMs(99),
            members: Bytes::from_static(b"null"),
        };
        let bytes = encode(&standing, b"state at 7");
        assert_eq!(
            decode(&bytes.clone().into()),
            Some((standing, Bytes::from_static(b"state at 7")))
        );
        for bit in 0..bytes.len() * 8 {
            let mut broken = bytes.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&broken.into()), None, "bit {bit}");
        }
    }
}
