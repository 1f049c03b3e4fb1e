//! One file of the journal: its name, its header, and where each frame in it lies.
//!
//! Owns: the mapping log index <-> logical position <-> offset in the file, and the handle that counts
//! a file's readers. Never reads a frame. Read next: [`super::frame`], [`super::table`] (the mapping on
//! disk), [`super::recovery`].
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

use super::frame::{crc32c, u32_at, u64_at};
use crate::disk::DiskFile;
use anabranch_core::id::{LogIndex, Position, Term};
use std::ops::Deref;
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
    parse_name(name, SUFFIX)
}

/// The position that the name of a segment's file, or of one that belongs to it, states.
pub(super) fn parse_name(name: &str, suffix: &str) -> Option<Position> {
    let digits = name.strip_suffix(suffix)?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(())?;
    digits.parse().ok().map(Position)
}

/// The open file of a segment, as its readers hold it.
///
/// The segment's own slot holds one reference. Whoever reads (or has mapped) the file takes another under the
/// journal's lock and keeps it while it reads; so once a segment has left the journal's memory, or its slot was
/// given a new handle, a count of one means that nobody reads bytes of it that may go: only then is the file used
/// again or holes punched.
#[derive(Debug)]
pub(crate) struct SegmentFile(Arc<dyn DiskFile>);

impl SegmentFile {
    pub(crate) fn new(file: Arc<dyn DiskFile>) -> Arc<Self> {
        Arc::new(Self(file))
    }

    /// The file itself, for the writer.
    pub(crate) fn disk_file(&self) -> &Arc<dyn DiskFile> {
        &self.0
    }
}

impl Deref for SegmentFile {
    type Target = dyn DiskFile;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// The file of a segment, filled in by the writer once it exists.
pub(crate) type FileSlot = Arc<OnceLock<Arc<SegmentFile>>>;

/// A slot that holds `file` already.
pub(crate) fn filled(file: Arc<dyn DiskFile>) -> FileSlot {
    let slot = FileSlot::default();
    let _ = slot.set(SegmentFile::new(file));
    slot
}

/// Where a frame begins: in logical bytes from the segment's base, and in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FramePlace {
    pub(crate) start: u32,
    pub(crate) offset: u32,
}

/// Where all frames of a segment lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FrameTable {
    /// 8 bytes a frame; shared with whoever writes it into a side file.
    pub(crate) places: Arc<Vec<FramePlace>>,
    /// Logical bytes in use.
    pub(crate) len: u64,
    /// Offset in the file of the first byte after the last frame.
    pub(crate) end_offset: u64,
}

/// One segment and the place of each of its frames.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) base: Position,
    pub(crate) first_index: LogIndex,
    pub(crate) capacity_bytes: u64,
    pub(crate) file: FileSlot,
    table: FrameTable,
    /// What of it was given back: logical bytes from the base, ascending, no two touch.
    given_back: Vec<(u32, u32)>,
}

impl Segment {
    pub(crate) fn new(
        base: Position,
        first_index: LogIndex,
        capacity_bytes: u64,
        file: FileSlot,
    ) -> Self {
        let table = FrameTable {
            places: Arc::default(),
            len: 0,
            end_offset: SEGMENT_HEADER_BYTES,
        };
        Self {
            base,
            first_index,
            capacity_bytes,
            file,
            table,
            given_back: Vec::new(),
        }
    }

    /// True when no frame lies in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.places.is_empty()
    }

    /// The place of every frame.
    pub(crate) fn table(&self) -> &FrameTable {
        &self.table
    }

    /// Takes over what a side file states.
    pub(crate) fn set_table(&mut self, table: FrameTable, given_back: Vec<(u32, u32)>) {
        self.table = table;
        self.given_back = given_back;
    }

    /// What of it was given back, in logical bytes from the base.
    pub(crate) fn given_back(&self) -> &[(u32, u32)] {
        &self.given_back
    }

    /// Notes what of it is given back from now on, and hands out the file as readers had it so far.
    pub(crate) fn give_back(&mut self, ranges: Vec<(u32, u32)>) -> Option<Arc<SegmentFile>> {
        self.given_back = ranges;
        let before = self.file.get()?.clone();
        self.file = filled(before.disk_file().clone());
        Some(before)
    }

    /// Whether any byte between two positions was given back.
    pub(crate) fn is_given_back(&self, from: Position, to: Position) -> bool {
        let inside = |position: Position| position.0.saturating_sub(self.base.0);
        let (from, to) = (inside(from), inside(to));
        let next = self
            .given_back
            .partition_point(|range| u64::from(range.1) <= from);
        let next = self.given_back.get(next);
        next.is_some_and(|range| u64::from(range.0) < to)
    }

    /// The first log index after this segment.
    pub(crate) fn end_index(&self) -> LogIndex {
        LogIndex(self.first_index.0 + self.table.places.len() as u64)
    }

    /// The first position after this segment.
    pub(crate) fn end(&self) -> Position {
        Position(self.base.0 + self.table.len)
    }

    /// The offset in the file where the next frame's envelope goes.
    pub(crate) fn end_offset(&self) -> u64 {
        self.table.end_offset
    }

    /// Whether one more frame of `logical` bytes fits, of which `stored` bytes go to the file.
    pub(crate) fn fits(&self, logical: u64, stored: u64) -> bool {
        self.table.len + logical <= u64::from(u32::MAX)
            && self.table.end_offset + stored <= self.capacity_bytes.min(u64::from(u32::MAX))
    }

    /// Notes one more frame; the caller checked that it fits.
    pub(crate) fn push(&mut self, logical: u64, stored: u64) {
        let table = &mut self.table;
        let place = FramePlace {
            start: table.len as u32,
            offset: table.end_offset as u32,
        };
        Arc::make_mut(&mut table.places).push(place);
        table.len += logical;
        table.end_offset += stored;
    }

    /// Forgets every frame from log index `from` on.
    pub(crate) fn truncate_from(&mut self, from: u64) {
        let keep = from.saturating_sub(self.first_index.0) as usize;
        let table = &mut self.table;
        if let Some(place) = table.places.get(keep).copied() {
            table.len = u64::from(place.start);
            table.end_offset = u64::from(place.offset);
            Arc::make_mut(&mut table.places).truncate(keep);
        }
    }

    /// Place of the frame `index`: its position and the offset of its envelope.
    pub(crate) fn frame_at(&self, index: LogIndex) -> Option<(Position, u64)> {
        let nth = usize::try_from(index.0.checked_sub(self.first_index.0)?).ok()?;
        let place = self.table.places.get(nth)?;
        let position = Position(self.base.0 + u64::from(place.start));
        Some((position, u64::from(place.offset)))
    }

    /// The frame that covers a position: its index, its first and its end position, and the offset
    /// of its envelope.
    pub(crate) fn frame_covering(
        &self,
        position: Position,
    ) -> Option<(LogIndex, Position, Position, u64)> {
        let inside = position.0.checked_sub(self.base.0)?;
        if inside >= self.table.len {
            return None;
        }
        let places = &self.table.places;
        let nth = places
            .partition_point(|place| u64::from(place.start) <= inside)
            .checked_sub(1)?;
        let place = places[nth];
        let end = places
            .get(nth + 1)
            .map_or(self.table.len, |next| u64::from(next.start));
        Some((
            LogIndex(self.first_index.0 + nth as u64),
            Position(self.base.0 + u64::from(place.start)),
            Position(self.base.0 + end),
            u64::from(place.offset),
        ))
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

/// A segment's file length for a frame of `stored` bytes: `usual` unless the frame is larger.
pub(crate) fn capacity_for(usual: u64, stored: u64) -> u64 {
    let needed = SEGMENT_HEADER_BYTES + stored;
    if needed <= usual {
        usual
    } else {
        needed.next_multiple_of(4096)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::frame::ENVELOPE_BYTES;

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
            let stored = logical + ENVELOPE_BYTES as u64;
            assert!(segment.fits(logical, stored));
            segment.push(logical, stored);
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
