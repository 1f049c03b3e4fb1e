//! One file of the journal: its name, its header, and where each frame in it lies.
//!
//! Owns: the mapping log index <-> logical position <-> offset in the file. Never reads a frame.
//! Read next: [`super::frame`], [`super::recovery`].
//!
//! Header, 512 bytes (a sector of its own, so that writing frames never touches it):
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABS1` |
//! | 4 | 2 | version, 1 |
//! | 8 | 4 | salt |
//! | 12 | 4 | envelope checksum of the last frame before this segment (0 for none) |
//! | 16 | 8 | position of the first byte |
//! | 24 | 8 | log index of the first frame |
//! | 32 | 8 | term of the frame before |
//! | 40 | 8 | length of the file in bytes |
//! | 48 | 4 | CRC-32C of bytes 0..48 |

use super::frame::{ENVELOPE_BYTES, crc32c, u32_at, u64_at};
use crate::disk::DiskFile;
use anabranch_core::id::{LogIndex, Position, Term};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Bytes in front of a segment's first frame.
pub const SEGMENT_HEADER_BYTES: u64 = 512;

const MAGIC: [u8; 4] = *b"ABS1";
const VERSION: u16 = 1;
const SUFFIX: &str = ".seg";

/// What a segment's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) salt: u32,
    pub(crate) prev_crc: u32,
    pub(crate) base: Position,
    pub(crate) first_index: LogIndex,
    pub(crate) prev_term: Term,
    pub(crate) capacity_bytes: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.salt.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.prev_crc.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.base.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_index.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.prev_term.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.capacity_bytes.to_le_bytes());
        let crc = crc32c(&[&bytes[..48]]);
        bytes[48..52].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let sound = bytes.len() >= 52
            && bytes[0..4] == MAGIC
            && u32_at(bytes, 4) == u32::from(VERSION)
            && u32_at(bytes, 48) == crc32c(&[&bytes[..48]]);
        sound.then(|| SegmentHeader {
            salt: u32_at(bytes, 8),
            prev_crc: u32_at(bytes, 12),
            base: Position(u64_at(bytes, 16)),
            first_index: LogIndex(u64_at(bytes, 24)),
            prev_term: Term(u64_at(bytes, 32)),
            capacity_bytes: u64_at(bytes, 40),
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

/// The path of the segment that begins at `base`: 20 digits and a suffix.
pub(crate) fn segment_path(dir: &Path, base: Position) -> PathBuf {
    dir.join(format!("{:020}{SUFFIX}", base.0))
}

/// The position that a segment's file name states.
pub(crate) fn parse_segment_name(name: &str) -> Option<Position> {
    let digits = name.strip_suffix(SUFFIX)?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(())?;
    digits.parse().ok().map(Position)
}

/// The file of a segment, filled in by the writer once it exists.
pub(crate) type FileSlot = Arc<OnceLock<Arc<dyn DiskFile>>>;

/// One segment and the place of each of its frames.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) base: Position,
    pub(crate) first_index: LogIndex,
    pub(crate) capacity_bytes: u64,
    pub(crate) file: FileSlot,
    /// Start of each frame, in logical bytes from `base`: 4 bytes per frame.
    starts: Vec<u32>,
    /// Logical bytes in use.
    len: u64,
}

impl Segment {
    pub(crate) fn new(
        base: Position,
        first_index: LogIndex,
        capacity_bytes: u64,
        file: FileSlot,
    ) -> Self {
        Self {
            base,
            first_index,
            capacity_bytes,
            file,
            starts: Vec::new(),
            len: 0,
        }
    }

    /// True when no frame lies in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The first log index after this segment.
    pub(crate) fn end_index(&self) -> LogIndex {
        LogIndex(self.first_index.0 + self.starts.len() as u64)
    }

    /// The first position after this segment.
    pub(crate) fn end(&self) -> Position {
        Position(self.base.0 + self.len)
    }

    /// The offset in the file where the next frame's envelope goes.
    pub(crate) fn end_offset(&self) -> u64 {
        self.offset(self.starts.len(), self.len)
    }

    /// Whether one more frame of `logical` bytes fits.
    pub(crate) fn fits(&self, logical: u64) -> bool {
        self.len + logical <= u64::from(u32::MAX)
            && self.end_offset() + ENVELOPE_BYTES as u64 + logical <= self.capacity_bytes
    }

    /// Notes one more frame; the caller checked that it fits.
    pub(crate) fn push(&mut self, logical: u64) {
        self.starts.push(self.len as u32);
        self.len += logical;
    }

    /// Forgets every frame from log index `from` on.
    pub(crate) fn truncate_from(&mut self, from: u64) {
        let keep = from.saturating_sub(self.first_index.0) as usize;
        if let Some(start) = self.starts.get(keep).copied() {
            self.len = u64::from(start);
            self.starts.truncate(keep);
        }
    }

    /// Place of the frame `index`: its position and the offset of its envelope.
    pub(crate) fn frame_at(&self, index: LogIndex) -> Option<(Position, u64)> {
        let nth = usize::try_from(index.0.checked_sub(self.first_index.0)?).ok()?;
        let start = u64::from(*self.starts.get(nth)?);
        Some((Position(self.base.0 + start), self.offset(nth, start)))
    }

    /// The frame that covers a position: its index, its first and its end position, and the offset
    /// of its envelope.
    pub(crate) fn frame_covering(
        &self,
        position: Position,
    ) -> Option<(LogIndex, Position, Position, u64)> {
        let inside = position.0.checked_sub(self.base.0)?;
        if inside >= self.len {
            return None;
        }
        let nth = self
            .starts
            .partition_point(|start| u64::from(*start) <= inside)
            .checked_sub(1)?;
        let start = u64::from(self.starts[nth]);
        let end = self
            .starts
            .get(nth + 1)
            .map_or(self.len, |next| u64::from(*next));
        Some((
            LogIndex(self.first_index.0 + nth as u64),
            Position(self.base.0 + start),
            Position(self.base.0 + end),
            self.offset(nth, start),
        ))
    }

    // Every frame before this one adds its envelope, so no table of offsets is needed while frames
    // are stored uncompressed.
    fn offset(&self, nth: usize, start: u64) -> u64 {
        SEGMENT_HEADER_BYTES + start + (nth * ENVELOPE_BYTES) as u64
    }
}

/// Length of a journal's first segment file in bytes, unless all are to be shorter: a new shard
/// starts without writing many zeros.
const FIRST_SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

/// The first segment's file length, given the usual one.
pub(crate) fn first_capacity(usual: u64) -> u64 {
    usual.min(FIRST_SEGMENT_BYTES)
}

/// The file length of the segment after one of `current` bytes: four times as much, up to the usual.
pub(crate) fn grown_capacity(current: u64, usual: u64) -> u64 {
    current.saturating_mul(4).min(usual)
}

/// A segment's file length for a frame of `logical` bytes: `usual` unless the frame is larger.
pub(crate) fn capacity_for(usual: u64, logical: u64) -> u64 {
    let needed = SEGMENT_HEADER_BYTES + ENVELOPE_BYTES as u64 + logical;
    if needed <= usual {
        usual
    } else {
        needed.next_multiple_of(4096)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_and_a_flipped_bit_is_noticed() {
        let header = SegmentHeader {
            salt: 1,
            prev_crc: 2,
            base: Position(3),
            first_index: LogIndex(4),
            prev_term: Term(5),
            capacity_bytes: 6,
        };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Some(header));
        for bit in 0..52 * 8 {
            let mut broken = bytes;
            broken[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&broken), None, "bit {bit}");
        }
    }

    #[test]
    fn names_have_twenty_digits() {
        let path = segment_path(Path::new("d"), Position(42));
        assert_eq!(path, Path::new("d/00000000000000000042.seg"));
        assert_eq!(
            parse_segment_name("00000000000000000042.seg"),
            Some(Position(42))
        );
        assert_eq!(parse_segment_name("42.seg"), None);
        assert_eq!(parse_segment_name("000000000000000000x2.seg"), None);
    }

    #[test]
    fn frames_are_found_by_index_and_by_position() {
        let mut segment = Segment::new(Position(1000), LogIndex(10), 4096, FileSlot::default());
        for logical in [48, 64, 56] {
            assert!(segment.fits(logical));
            segment.push(logical);
        }
        assert_eq!(
            segment.frame_at(LogIndex(11)),
            Some((Position(1048), 512 + 48 + 32))
        );
        assert_eq!(segment.frame_at(LogIndex(13)), None);
        assert_eq!(segment.frame_at(LogIndex(9)), None);
        let covering = segment.frame_covering(Position(1111)).unwrap();
        assert_eq!(
            covering,
            (LogIndex(11), Position(1048), Position(1112), 592)
        );
        assert_eq!(segment.frame_covering(Position(1168)), None);
        assert_eq!(segment.frame_covering(Position(999)), None);
        segment.truncate_from(11);
        assert_eq!(
            (segment.end(), segment.end_index()),
            (Position(1048), LogIndex(11))
        );
        segment.truncate_from(10);
        assert!(segment.is_empty());
    }
}
