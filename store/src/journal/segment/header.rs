//! What stands in front of a segment's frames.
//!
//! Owns: the layout, its checksums, the salt. Read next: [`super`].
//!
//! Header, 512 bytes (a sector of its own, so that writing frames never touches it):
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABS1` |
//! | 4 | 2 | version, 1; 2 when its frames are sealed |
//! | 8 | 4 | salt |
//! | 12 | 4 | envelope checksum of the last frame before this segment (0 for none) |
//! | 16 | 8 | position of the first byte |
//! | 24 | 8 | log index of the first frame |
//! | 32 | 8 | term of the frame before |
//! | 40 | 8 | length of the file in bytes |
//! | 48 | 4 | CRC-32C of bytes 0..48 |
//! | 52 | 96 | version 2: the wrapped key of its frames, bound to bytes 0..48 |
//! | 148 | 4 | version 2: CRC-32C of bytes 0..148 |

use crate::journal::frame::{crc32c, u32_at, u64_at};
use crate::seal::{DataKey, KeyError, Sealing, WRAPPED_BYTES, WrappedKey};
use anabranch_core::id::{LogIndex, Position, Term};
use std::io;
use std::sync::Arc;

/// Bytes in front of a segment's first frame.
pub const SEGMENT_HEADER_BYTES: u64 = 512;

const MAGIC: [u8; 4] = *b"ABS1";
const VERSION: u16 = 1;
const SEALED_VERSION: u16 = 2;
const FIXED_BYTES: usize = 48;
const WRAPPED_AT: usize = 52;
const WRAPPED_END: usize = WRAPPED_AT + WRAPPED_BYTES;
/// Bytes of a header that say something; the others are zeros.
pub(in crate::journal) const HEADER_USED_BYTES: usize = WRAPPED_END + 4;

/// What a segment's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) salt: u32,
    pub(crate) prev_crc: u32,
    pub(crate) base: Position,
    pub(crate) first_index: LogIndex,
    pub(crate) prev_term: Term,
    pub(crate) capacity_bytes: u64,
    /// The key of its frames, if they are sealed.
    pub(crate) key: Option<WrappedKey>,
}

impl SegmentHeader {
    /// What a key of it is bound to.
    fn fixed(&self, version: u16) -> [u8; FIXED_BYTES] {
        let mut bytes = [0; FIXED_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&version.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.salt.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.prev_crc.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.base.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_index.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.prev_term.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.capacity_bytes.to_le_bytes());
        bytes
    }

    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        let version = self.key.map_or(VERSION, |_| SEALED_VERSION);
        bytes[..FIXED_BYTES].copy_from_slice(&self.fixed(version));
        let crc = crc32c(&[&bytes[..48]]);
        bytes[48..52].copy_from_slice(&crc.to_le_bytes());
        if let Some(key) = &self.key {
            bytes[WRAPPED_AT..WRAPPED_END].copy_from_slice(&key.0);
            let crc = crc32c(&[&bytes[..WRAPPED_END]]);
            bytes[WRAPPED_END..WRAPPED_END + 4].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }

    /// Takes a new key when new segments are sealed; `None` when they are not.
    pub(crate) fn take_key(&mut self, sealing: &Sealing) -> io::Result<Option<Arc<DataKey>>> {
        let made = sealing.new_key(&self.fixed(SEALED_VERSION))?;
        self.key = made.as_ref().map(|(_, wrapped)| *wrapped);
        Ok(made.map(|(key, _)| key))
    }

    /// The key of its frames; `None` when they are not sealed.
    pub(crate) fn open_key(&self, sealing: &Sealing) -> Result<Option<Arc<DataKey>>, KeyError> {
        let context = self.fixed(SEALED_VERSION);
        let opened = self.key.map(|key| sealing.unwrap(&key, &context));
        opened.transpose()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let sealed = u32_at(bytes, 4) == u32::from(SEALED_VERSION);
        let sound = bytes.len() >= WRAPPED_END + 4
            && bytes[0..4] == MAGIC
            && (sealed || u32_at(bytes, 4) == u32::from(VERSION))
            && u32_at(bytes, 48) == crc32c(&[&bytes[..48]])
            && (!sealed || u32_at(bytes, WRAPPED_END) == crc32c(&[&bytes[..WRAPPED_END]]));
        let key = || bytes[WRAPPED_AT..WRAPPED_END].try_into().ok();
        sound.then(|| SegmentHeader {
            salt: u32_at(bytes, 8),
            prev_crc: u32_at(bytes, 12),
            base: Position(u64_at(bytes, 16)),
            first_index: LogIndex(u64_at(bytes, 24)),
            prev_term: Term(u64_at(bytes, 32)),
            capacity_bytes: u64_at(bytes, 40),
            key: sealed.then(key).flatten().map(WrappedKey),
        })
    }
}

/// The salt of a segment that begins at `base` after `epoch` cuts. A position is used by two lives
/// of the journal only when a cut lies between them, so no two lives of a file share a salt (but
/// for a collision, which the chain catches).
pub(crate) fn salt_of(base: Position, epoch: u32) -> u32 {
    let mut mixed = base.0 ^ (u64::from(epoch) << 32) ^ 0x9e37_79b9_7f4a_7c15;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::keys::tests::sealing;

    #[test]
    fn a_header_is_read_back_and_a_flipped_bit_is_noticed() {
        let mut header = SegmentHeader {
            salt: 1,
            prev_crc: 2,
            base: Position(3),
            first_index: LogIndex(4),
            prev_term: Term(5),
            capacity_bytes: 6,
            key: None,
        };
        let keys = sealing(&["a"], 1);
        for (sealed, used_bytes) in [(false, 52), (true, 152)] {
            if sealed {
                header.take_key(&keys).unwrap().unwrap();
            }
            let bytes = header.encode();
            assert_eq!(SegmentHeader::decode(&bytes), Some(header));
            assert_eq!(header.open_key(&keys).unwrap().is_some(), sealed);
            for bit in 0..used_bytes * 8 {
                let mut broken = bytes;
                broken[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(SegmentHeader::decode(&broken), None, "bit {bit}");
            }
        }
        // A key is of use in its own header only.
        let elsewhere = SegmentHeader {
            base: Position(4),
            ..header
        };
        assert!(elsewhere.open_key(&keys).is_err());
    }
}
