//! Giving room back: segments in which nothing lives, and what is dead in the others.
//!
//! Owns: what goes, of what the caller says is dead, and the order: below the purge pointer, never the
//! segment being written, out of the journal's memory first (no new reader), then on disk. Never decides
//! what is dead. Read next: [`super::keeper`] (how it goes), [`super::released`], [`super::holes`].

use super::Journal;
use super::error::WriteError;
use super::holes::{total, union};
use super::placement::Shared;
use super::released::Released;
use super::segment::{Segment, SegmentFile};
use super::writer::{Completion, Op};
use anabranch_core::id::{LogIndex, Position};
use std::sync::Arc;

/// Holes are punched when they give back this part of a segment at least: each time costs a side file.
const WORTH_A_PART: u64 = 16;
/// And when the disk is nearly full, this many bytes.
const WORTH_BYTES: u64 = 64 * 1024;

/// What goes, for the writer to pass on and the keeper to do.
pub(crate) struct GiveBack {
    /// All that was ever released, when segments go.
    pub(super) released: Option<Released>,
    pub(super) segments: Vec<Gone>,
    pub(super) punches: Vec<Punch>,
}

impl GiveBack {
    /// Holes that an earlier life may have left unfinished.
    pub(super) fn finish(punches: Vec<Punch>) -> Self {
        Self {
            released: None,
            segments: Vec::new(),
            punches,
        }
    }
}

/// A segment in which nothing lives.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) base: Position,
    pub(super) file: Option<Arc<SegmentFile>>,
    /// It lies in the object store.
    pub(super) is_tiered: bool,
}

/// A segment of which only a part lives.
#[derive(Debug)]
pub(super) struct Punch {
    pub(super) base: Position,
    /// All that is given back of it, in logical bytes from its base.
    pub(super) given_back: Vec<(u32, u32)>,
    /// The handles of those that may still read what is dead.
    pub(super) readers: Vec<Arc<SegmentFile>>,
}

impl Punch {
    /// The holes of a segment as it was found, unless they are all there already.
    pub(super) fn unfinished(segment: &mut Segment) -> Option<Punch> {
        let given_back = segment.given_back().to_vec();
        let file = segment.file.get().filter(|_| !given_back.is_empty())?;
        let lives = segment.capacity_bytes.saturating_sub(total(&given_back));
        let allocated = file.allocated_bytes().unwrap_or(u64::MAX);
        if allocated <= lives + segment.capacity_bytes / WORTH_A_PART {
            return None;
        }
        let readers = segment.give_back(given_back.clone())?;
        Some(Punch {
            base: segment.base,
            given_back,
            readers: vec![readers],
        })
    }
}

/// What [`Journal::give_back`] took.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct GivenBack {
    /// Whole segments.
    pub segments: usize,
    /// Logical bytes of other segments.
    pub bytes: u64,
}

impl GivenBack {
    /// Whether there was anything to take.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Journal {
    /// The last log index of the newest segment that is full and ends at or below `through`: how far can be
    /// purged. Never the segment being written.
    pub fn sealed_through(&self, through: LogIndex) -> Option<LogIndex> {
        let shared = self.lock();
        let sealed = shared.sealed().rev();
        let end = sealed.map(Segment::end_index);
        let end = end.filter(|end| end.0 <= through.0 + 1).max()?;
        end.0.checked_sub(1).map(LogIndex)
    }

    /// Where the last full segment ends of which everything is applied: below it something may be dead.
    pub fn sealed_end(&self) -> Option<Position> {
        let shared = self.lock();
        let mut sealed = shared.sealed();
        let applied = sealed.rfind(|one| one.end_index().0 <= shared.applied_end);
        applied.map(Segment::end)
    }

    /// Gives up what is `dead` (ascending ranges) of the full segments that end at or below `through`, which
    /// must be purged: nothing that a kept checkpoint, the state, or a reader who comes later refers to may
    /// lie there. Segments in which nothing lives go as a whole, wherever they lie; of the others the blocks
    /// that hold nothing else. Readers who are there already are waited for. `done` is called when that was
    /// done or, as far as readers or the disk were in the way, put off.
    pub fn give_back(
        &self,
        dead: &[(Position, Position)],
        through: LogIndex,
        done: Completion,
    ) -> Result<GivenBack, WriteError> {
        let mut shared = self.lock();
        let purged = shared.meta.purged;
        if purged.is_none_or(|purged| purged.index < through) {
            return Err(WriteError::OutOfRange(through));
        }
        let tight = self.inner.health.tight();
        let (given, work) = shared.take_dead(dead, through, tight);
        self.inner.queue.push([Op::GiveBack(work, done)]);
        Ok(given)
    }
}

impl Shared {
    /// Segments that are full.
    pub(super) fn sealed(&self) -> impl DoubleEndedIterator<Item = &Segment> {
        let full = self.segments.len().saturating_sub(1);
        self.segments.range(..full)
    }

    fn take_dead(
        &mut self,
        dead: &[(Position, Position)],
        through: LogIndex,
        tight: bool,
    ) -> (GivenBack, GiveBack) {
        let mut given = GivenBack::default();
        let mut work = GiveBack {
            released: None,
            segments: Vec::new(),
            punches: Vec::new(),
        };
        let full = self.segments.len().saturating_sub(1);
        let mut kept = std::collections::VecDeque::with_capacity(self.segments.len());
        for (nth, mut segment) in std::mem::take(&mut self.segments).into_iter().enumerate() {
            if nth < full && segment.end_index().0 <= through.0 + 1 {
                let all = union(&dead_in(&segment, dead), segment.given_back());
                let dead_bytes = total(&all);
                if dead_bytes == segment.end().0 - segment.base.0 {
                    self.released.add(segment.base, segment.end());
                    work.segments.push(Gone {
                        base: segment.base,
                        file: segment.file.get().cloned(),
                        is_tiered: segment.object().is_some(),
                    });
                    continue;
                }
                // Objects have no holes.
                if segment.object().is_some() {
                    kept.push_back(segment);
                    continue;
                }
                let gain = dead_bytes - total(segment.given_back());
                let worth = match tight {
                    true => WORTH_BYTES.min(segment.capacity_bytes / WORTH_A_PART),
                    false => segment.capacity_bytes / WORTH_A_PART,
                };
                if gain >= worth
                    && gain > 0
                    && let Some(file) = segment.give_back(all.clone())
                {
                    given.bytes += gain;
                    work.punches.push(Punch {
                        base: segment.base,
                        given_back: all,
                        readers: vec![file],
                    });
                }
            }
            kept.push_back(segment);
        }
        self.segments = kept;
        given.segments = work.segments.len();
        work.released = (given.segments > 0).then(|| self.released.clone());
        (given, work)
    }
}

/// The part of `dead` that lies in a segment, in logical bytes from its base.
fn dead_in(segment: &Segment, dead: &[(Position, Position)]) -> Vec<(u32, u32)> {
    let (base, end) = (segment.base, segment.end());
    let first = dead.partition_point(|range| range.1 <= base);
    let here = dead[first..].iter().take_while(|range| range.0 < end);
    // A segment's logical bytes are counted in 32 bits.
    let inside = |position: Position| (position.clamp(base, end).0 - base.0) as u32;
    let ranges = here.map(|range| (inside(range.0), inside(range.1)));
    ranges.filter(|(from, to)| from < to).collect()
}
