//! One file of the journal: its name, and where each frame in it lies.
//!
//! Owns: the mapping log index <-> logical position <-> offset in the file, and the handle that counts
//! a file's readers. Never reads a frame. Read next: [`header`], [`super::frame`], [`super::table`] (the mapping on
//! disk), [`super::recovery`].

mod header;

pub(super) use header::HEADER_USED_BYTES;
pub use header::SEGMENT_HEADER_BYTES;
pub(crate) use header::{SegmentHeader, salt_of};

use super::frame::{ENVELOPE_BYTES, SEALED_MORE_BYTES};
use crate::disk::DiskFile;
use crate::seal::DataKey;
use crate::tier::Object;
use anabranch_core::id::{LogIndex, Position};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

const SUFFIX: &str = ".seg";

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
/// The segment's own slot holds one reference. Whoever reads the file takes another under the
/// journal's lock and keeps it while it reads; so once a segment has left the journal's memory, or its slot was
/// given a new handle, a count of one means that nobody reads bytes of it that may go: only then is the file used
/// again or holes punched.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    file: Arc<dyn DiskFile>,
    key: Option<Arc<DataKey>>,
}

impl SegmentFile {
    /// `key`: that of its frames, if they are sealed.
    pub(crate) fn new(file: Arc<dyn DiskFile>, key: Option<Arc<DataKey>>) -> Arc<Self> {
        if let Err(error) = file.read_as_told() {
            tracing::debug!(%error, "the system reads ahead of readers by itself");
        }
        Arc::new(Self { file, key })
    }

    /// The file itself, for the writer.
    pub(crate) fn disk_file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    /// The key of its frames, if they are sealed.
    pub(crate) fn key(&self) -> Option<&Arc<DataKey>> {
        self.key.as_ref()
    }
}

impl Deref for SegmentFile {
    type Target = dyn DiskFile;

    fn deref(&self) -> &Self::Target {
        &*self.file
    }
}

/// The file of a segment, filled in by the writer once it exists.
pub(crate) type FileSlot = Arc<OnceLock<Arc<SegmentFile>>>;

/// A slot that holds `file` already, and the key of its frames.
pub(crate) fn filled(file: Arc<dyn DiskFile>, key: Option<Arc<DataKey>>) -> FileSlot {
    let slot = FileSlot::default();
    let _ = slot.set(SegmentFile::new(file, key));
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
    /// Whether its frames are sealed.
    pub(crate) sealed: bool,
    /// It takes no more frames: what is new is to lie under another key.
    pub(crate) outdated: bool,
    /// What it is in the object store, when it lies there.
    object: Option<Object>,
}

impl Segment {
    pub(crate) fn new(
        base: Position,
        first_index: LogIndex,
        capacity_bytes: u64,
        file: FileSlot,
        sealed: bool,
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
            sealed,
            outdated: false,
            object: None,
        }
    }

    /// What it is in the object store, when it lies there.
    pub(crate) fn object(&self) -> Option<Object> {
        self.object
    }

    /// Says that it lies in the object store, or on the disk.
    pub(super) fn set_object(&mut self, object: Option<Object>) {
        self.object = object;
    }

    /// Notes that it lies in the object store from now on, and hands out the file as readers had it so far.
    pub(super) fn move_out(
        &mut self,
        file: Arc<dyn DiskFile>,
        object: Object,
    ) -> Option<Arc<SegmentFile>> {
        let before = self.file.get()?.clone();
        self.file = filled(file, before.key().cloned());
        self.object = Some(object);
        Some(before)
    }

    /// True when no frame lies in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.places.is_empty()
    }

    /// The place of every frame.
    pub(crate) fn table(&self) -> &FrameTable {
        &self.table
    }

    /// The place of every frame up to log index `through`; `None` when there is none.
    pub(super) fn table_through(&self, through: LogIndex) -> Option<FrameTable> {
        let count = (through.0 + 1).checked_sub(self.first_index.0)? as usize;
        let FrameTable {
            places,
            len,
            end_offset,
        } = &self.table;
        let (len, end_offset) = places.get(count).map_or((*len, *end_offset), |next| {
            (u64::from(next.start), u64::from(next.offset))
        });
        let places = places.get(..count.min(places.len()))?;
        (!places.is_empty()).then(|| FrameTable {
            places: Arc::new(places.to_vec()),
            len,
            end_offset,
        })
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
        self.file = filled(before.disk_file().clone(), before.key().cloned());
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

    /// Bytes that a frame of `logical` bytes takes in its file at most.
    pub(crate) fn stored_at_most(&self, logical: u64) -> u64 {
        stored_at_most(logical, self.sealed)
    }

    /// Whether one more frame of `logical` bytes fits, of which `stored` bytes go to the file.
    pub(crate) fn fits(&self, logical: u64, stored: u64) -> bool {
        !self.outdated
            && self.table.len + logical <= u64::from(u32::MAX)
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

    /// Notes how many bytes the frame `index` took in its file: those behind it move up.
    pub(crate) fn settle(&mut self, index: LogIndex, stored: u64) {
        let nth = index.0.saturating_sub(self.first_index.0) as usize;
        let table = &mut self.table;
        let Some(place) = table.places.get(nth) else {
            return;
        };
        let next = table.places.get(nth + 1);
        let end = next.map_or(table.end_offset, |next| u64::from(next.offset));
        let saved = (end - u64::from(place.offset)).saturating_sub(stored);
        if saved > 0 {
            table.end_offset -= saved;
            for place in &mut Arc::make_mut(&mut table.places)[nth + 1..] {
                place.offset -= saved as u32;
            }
        }
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

    /// Offset in the file of the last frame's envelope.
    pub(super) fn last_offset(&self) -> u64 {
        let last = self.table.places.last();
        last.map_or(SEGMENT_HEADER_BYTES, |last| u64::from(last.offset))
    }

    /// Place of the frame `index`: its position and the offset of its envelope.
    pub(crate) fn frame_at(&self, index: LogIndex) -> Option<(Position, u64)> {
        let nth = usize::try_from(index.0.checked_sub(self.first_index.0)?).ok()?;
        let place = self.table.places.get(nth)?;
        let position = Position(self.base.0 + u64::from(place.start));
        Some((position, u64::from(place.offset)))
    }

    /// The frame that covers a position.
    pub(crate) fn frame_covering(&self, position: Position) -> Option<FrameSpan> {
        let inside = position.0.checked_sub(self.base.0)?;
        if inside >= self.table.len {
            return None;
        }
        let places = &self.table.places;
        let nth = places
            .partition_point(|place| u64::from(place.start) <= inside)
            .checked_sub(1)?;
        self.span(nth)
    }

    /// The frame with a log index.
    pub(super) fn frame_span(&self, index: LogIndex) -> Option<FrameSpan> {
        self.span(usize::try_from(index.0.checked_sub(self.first_index.0)?).ok()?)
    }

    fn span(&self, nth: usize) -> Option<FrameSpan> {
        let places = &self.table.places;
        let place = places.get(nth)?;
        let end = (self.table.len, self.table.end_offset);
        let (end, end_offset) = places
            .get(nth + 1)
            .map_or(end, |next| (u64::from(next.start), u64::from(next.offset)));
        Some(FrameSpan {
            index: LogIndex(self.first_index.0 + nth as u64),
            from: Position(self.base.0 + u64::from(place.start)),
            to: Position(self.base.0 + end),
            offset: u64::from(place.offset),
            end_offset,
        })
    }
}

/// Where a frame lies: its positions, and its offsets in the file from its envelope on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameSpan {
    pub(crate) index: LogIndex,
    pub(crate) from: Position,
    pub(crate) to: Position,
    pub(crate) offset: u64,
    pub(crate) end_offset: u64,
}

impl FrameSpan {
    /// Whether it is stored as it is.
    pub(crate) fn is_plain(&self) -> bool {
        is_stored_plain(self.end_offset - self.offset, self.to.0 - self.from.0)
    }
}

/// Whether a frame that takes `stored` bytes in its file and means `logical` ones is stored as it is. A packed frame never
/// takes as many bytes: sealing adds more than nothing and less than compression saves where it is kept.
pub(super) fn is_stored_plain(stored: u64, logical: u64) -> bool {
    stored == logical + ENVELOPE_BYTES as u64
}

/// Bytes that a frame of `logical` bytes takes in its file at most.
pub(crate) fn stored_at_most(logical: u64, sealed: bool) -> u64 {
    let more = if sealed { SEALED_MORE_BYTES } else { 0 };
    logical + ENVELOPE_BYTES as u64 + more
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
        let mut segment = Segment::new(
            Position(1000),
            LogIndex(10),
            4096,
            FileSlot::default(),
            false,
        );
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
            FrameSpan {
                index: LogIndex(11),
                from: Position(1048),
                to: Position(1112),
                offset: 592,
                end_offset: 688,
            }
        );
        assert!(covering.is_plain());
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
