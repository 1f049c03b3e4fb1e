//! Where each frame of a journal lies: the memory side of its segments.
//!
//! Owns: placing a frame, starting a segment, cutting the end off, finding by log index and by
//! position. Never touches a file. Read next: [`super::segment`], [`super::writer`] (which does on
//! disk what is decided here).

use super::error::{ReadError, WriteError};
use super::frame::{Frame, MAX_PAYLOAD_BYTES};
use super::meta::{FrameId, Meta};
use super::released::Released;
use super::segment::{
    FileSlot, FrameTable, Segment, capacity_for, grown_capacity, segment_path, stored_at_most,
};
use super::spot::Reading;
use super::tail::Tail;
use super::writer::{Cut, Op, Roll};
use anabranch_core::id::{LogIndex, Position, Term};
use bytes::Bytes;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// What a journal knows of its frames.
pub(super) struct Shared {
    /// Ascending; some that lay between were released.
    pub(super) segments: VecDeque<Segment>,
    pub(super) released: Released,
    pub(super) tail: Tail,
    pub(super) meta: Meta,
    pub(super) last: Option<FrameId>,
    pub(super) next_index: LogIndex,
    pub(super) end: Position,
    /// First log index not applied yet.
    pub(super) applied_end: u64,
    pub(super) committed: LogIndex,
    /// Whether the frames of new segments are sealed.
    pub(super) seals: bool,
    pub(super) reading: Reading,
}

/// How many bytes a frame took in its file.
pub(super) struct StoredLen {
    pub(super) index: LogIndex,
    pub(super) payload: Bytes,
    pub(super) bytes: u64,
}

/// A segment that is full: what its side file will say beside what the writer knows.
pub(crate) struct Sealed {
    pub(super) base: Position,
    pub(super) first_index: LogIndex,
    pub(super) capacity_bytes: u64,
    pub(super) frames: FrameTable,
    pub(super) committed: LogIndex,
}

impl Sealed {
    fn of(segment: &Segment, committed: LogIndex) -> Self {
        Self {
            base: segment.base,
            first_index: segment.first_index,
            capacity_bytes: segment.capacity_bytes,
            frames: segment.table().clone(),
            committed,
        }
    }
}

impl Shared {
    pub(super) fn check_order(&self, frames: &[Frame]) -> Result<(), WriteError> {
        let mut expected = self.next_index;
        let mut least_term = self.last.map_or(Term(0), |last| last.term);
        for frame in frames {
            if frame.payload.len() > MAX_PAYLOAD_BYTES {
                return Err(WriteError::TooLarge(frame.payload.len()));
            }
            if frame.index != expected || frame.term < least_term {
                return Err(WriteError::OutOfOrder {
                    expected,
                    got: frame.index,
                    least_term,
                    got_term: frame.term,
                });
            }
            expected.0 += 1;
            least_term = frame.term;
        }
        Ok(())
    }

    /// Gives the frame its place; returns the step to a new segment when one is needed first. In its file it has
    /// the room that it may need at most, until [`Shared::settle`].
    pub(super) fn place(&mut self, frame: &Frame, segment_bytes: u64) -> Option<Op> {
        let logical = frame.logical_len();
        let mut roll = None;
        if !self
            .segments
            .back()
            .is_some_and(|segment| segment.fits(logical, segment.stored_at_most(logical)))
        {
            let stored = stored_at_most(logical, self.seals);
            let before = self.segments.back().map_or(0, |last| last.capacity_bytes);
            let capacity_bytes = capacity_for(grown_capacity(before, segment_bytes), stored);
            // A segment without a frame gives its name to the larger one.
            let sealed = if self.segments.back().is_some_and(Segment::is_empty) {
                self.segments.pop_back();
                None
            } else {
                let full = self.segments.back();
                full.map(|full| Sealed::of(full, self.committed))
            };
            let slot = FileSlot::default();
            self.segments.push_back(Segment::new(
                self.end,
                frame.index,
                capacity_bytes,
                slot.clone(),
                self.seals,
            ));
            self.meta.newest_base = self.end.0;
            roll = Some(Op::Roll(Roll {
                base: self.end,
                first_index: frame.index,
                prev_term: self.last.map_or(Term(0), |last| last.term),
                capacity_bytes,
                slot,
                sealed,
            }));
        }
        if let Some(segment) = self.segments.back_mut() {
            segment.push(logical, segment.stored_at_most(logical));
        }
        self.tail.push(self.end, frame.clone());
        self.last = Some(FrameId {
            term: frame.term,
            index: frame.index,
        });
        self.next_index = LogIndex(frame.index.0 + 1);
        self.end = Position(self.end.0 + logical);
        roll
    }

    /// Takes up what the writer found: how long the frames that it wrote into the segment at `base` are there. Frames
    /// that were cut meanwhile are known by their payloads: another one may stand under the same index.
    pub(super) fn settle(&mut self, base: Position, stored: &[StoredLen]) {
        let newest_first = self.segments.iter_mut().rev();
        let mut here = newest_first.skip_while(|segment| segment.base > base);
        let Some(segment) = here.next().filter(|segment| segment.base == base) else {
            return;
        };
        for one in stored {
            // What is not synced yet is in the tail.
            let held = self.tail.frame(one.index).map(|(_, frame)| &frame.payload);
            let same = |held: &Bytes| (held.as_ptr(), held.len());
            if held.map(same) == Some(same(&one.payload)) {
                segment.settle(one.index, one.bytes);
            }
        }
    }

    /// Where the frames of a segment lie, if they are those that `sealed` counts.
    pub(super) fn settled(&self, sealed: &Sealed) -> Option<FrameTable> {
        let newest_first = self.segments.iter().rev();
        let table = newest_first
            .take_while(|segment| segment.base >= sealed.base)
            .last()
            .filter(|segment| segment.base == sealed.base)?
            .table();
        let same =
            table.len == sealed.frames.len && table.places.len() == sealed.frames.places.len();
        same.then(|| table.clone())
    }

    /// Which segment may have a frame.
    pub(super) fn nth_of(&self, index: LogIndex) -> Option<usize> {
        self.segments
            .partition_point(|segment| segment.first_index <= index)
            .checked_sub(1)
    }

    /// Which segment may have a position.
    pub(super) fn nth_covering(&self, position: Position) -> Option<usize> {
        self.segments
            .partition_point(|segment| segment.base <= position)
            .checked_sub(1)
    }

    pub(super) fn segment_of(&self, index: LogIndex) -> Option<&Segment> {
        self.segments.get(self.nth_of(index)?)
    }

    pub(super) fn segment_covering(&self, position: Position) -> Option<&Segment> {
        self.segments.get(self.nth_covering(position)?)
    }

    /// Tells bytes that were given back from those that are (or never were) there.
    pub(super) fn check_there(&self, from: Position, to: Position) -> Result<(), ReadError> {
        let punched = |segment: &Segment| segment.is_given_back(from, to);
        if self.released.contains(from) || self.segment_covering(from).is_some_and(punched) {
            return Err(ReadError::GivenBack(from));
        }
        Ok(())
    }

    pub(super) fn term_of(&self, index: LogIndex) -> Option<Term> {
        self.tail.frame(index).map(|(_, frame)| frame.term)
    }

    /// Forgets the frames from `from` on and says what the writer must do; `term` is that of the
    /// last frame kept.
    pub(super) fn cut(
        &mut self,
        dir: &Path,
        from: u64,
        term: Option<Term>,
    ) -> Result<Cut, WriteError> {
        let first = self
            .segments
            .front()
            .map_or(LogIndex(0), |segment| segment.first_index);
        if from < first.0 || from < self.applied_end {
            return Err(WriteError::OutOfRange(LogIndex(from)));
        }
        let mut dropped: Vec<PathBuf> = Vec::new();
        let mut forgotten = Vec::new();
        while self.segments.len() > 1
            && self
                .segments
                .back()
                .is_some_and(|last| last.first_index.0 >= from)
        {
            if let Some(gone) = self.segments.pop_back() {
                dropped.insert(0, segment_path(dir, gone.base));
                forgotten.push(gone.base);
            }
        }
        let Some(segment) = self.segments.back_mut() else {
            return Err(WriteError::OutOfRange(LogIndex(from)));
        };
        segment.truncate_from(from);
        forgotten.push(segment.base);
        self.tail.truncate_from(from);
        self.end = segment.end();
        self.next_index = LogIndex(from);
        let keep = from.checked_sub(1).map(LogIndex);
        let purged = self.meta.purged.filter(|purged| Some(purged.index) == keep);
        self.last = term
            .zip(keep)
            .map(|(term, index)| FrameId { term, index })
            .or(purged);
        self.meta.epoch += 1;
        self.meta.cut_from = from;
        self.meta.newest_base = segment.base.0;
        Ok(Cut {
            meta: self.meta,
            slot: segment.file.clone(),
            capacity_bytes: segment.capacity_bytes,
            end_offset: segment.end_offset(),
            last_offset: keep
                .and_then(|keep| segment.frame_at(keep))
                .map(|(_, offset)| offset),
            dropped,
            forgotten,
        })
    }
}
