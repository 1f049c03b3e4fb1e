//! Dropped messages that stay in their stream until their letters have arrived, as every replica knows them.
//!
//! Where a stream insists that its dead letters arrive, dropping a message is a record: so it is with nobody in the next
//! life of the node either, and its letter is sent on then. Its end is the record that it leaves.
//!
//! Owns: which they are, as runs with the reason, and their pairs in checkpoints.
//! Never: sends a letter (`forward.rs`), or says when one is tried again (`unsent.rs`).

use super::checkpoint::{Changes, encoded};
use super::{Place, Shard};
use crate::death::DeathReason;
use crate::id::{Offset, StreamId};
use crate::record::{Change, Mark};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// First offset of each run, its last, and why it was dropped. Persisted as the value of a pair.
pub(super) type Runs = BTreeMap<u64, (u64, DeathReason)>;

/// Adds an offset to runs, widening the one that it continues.
pub(super) fn extend(runs: &mut Runs, (first, last): (u64, u64), reason: DeathReason) {
    let before = runs.range_mut(..first).next_back();
    match before {
        Some((_, (end, why))) if *end + 1 == first && *why == reason => *end = last,
        _ => drop(runs.insert(first, (last, reason))),
    }
}

/// Takes a range out of runs.
fn cut(runs: &mut Runs, first: u64, last: u64) {
    let before = runs.range(..first).next_back();
    let before = before.filter(|(_, (end, _))| *end >= first);
    let met: Vec<u64> = before
        .into_iter()
        .chain(runs.range(first..=last))
        .map(|(start, _)| *start)
        .collect();
    for start in met {
        let Some((end, reason)) = runs.remove(&start) else {
            continue;
        };
        if start < first {
            runs.insert(start, (first - 1, reason));
        }
        if end > last {
            runs.insert(last + 1, (end, reason));
        }
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    streams: FxHashMap<StreamId, Runs>,
    /// For checkpoints.
    pub(super) changes: Changes<StreamId>,
    /// The leader's memory: for the next frame.
    noted: FxHashMap<StreamId, Runs>,
}

impl Pinned {
    fn touch(&mut self, id: StreamId) {
        let streams = &self.streams;
        self.changes.touch(&id, || streams.get(&id).map(encoded));
    }

    /// What a checkpoint has of a stream.
    pub(super) fn restore(&mut self, id: StreamId, runs: Runs) {
        self.streams.insert(id, runs);
    }

    /// The next stream that is to be copied into a checkpoint, absent when it has none.
    pub(super) fn next_change(&mut self) -> Option<(StreamId, Option<Bytes>)> {
        let streams = &self.streams;
        self.changes.next(|id| streams.get(id).map(encoded))
    }

    /// A stream is gone.
    pub(super) fn forget(&mut self, id: StreamId) {
        self.noted.remove(&id);
        if self.streams.contains_key(&id) {
            self.touch(id);
            self.streams.remove(&id);
        }
    }

    /// Messages of a stream are gone.
    pub(super) fn gone(&mut self, id: StreamId, ranges: &[(Offset, Offset)]) {
        if !self.streams.contains_key(&id) {
            return;
        }
        self.touch(id);
        if let Some(runs) = self.streams.get_mut(&id) {
            for (first, last) in ranges {
                cut(runs, first.0, last.0);
            }
            if runs.is_empty() {
                self.streams.remove(&id);
            }
        }
    }

    /// All offsets of a stream, in order.
    fn offsets(&self, id: StreamId) -> Vec<(u64, DeathReason)> {
        let runs = self.streams.get(&id).into_iter().flatten();
        let offsets = runs.flat_map(|(first, (last, why))| (*first..=*last).map(|at| (at, *why)));
        offsets.collect()
    }
}

impl<B: Place> Shard<B> {
    /// A message that its stream dropped stays until its letter has arrived: the journal is to know.
    pub(super) fn pin(&mut self, id: StreamId, offset: u64, reason: DeathReason) {
        if self.journalled() {
            let noted = self.pinned.noted.entry(id).or_default();
            extend(noted, (offset, offset), reason);
            self.settles.entry(id).or_default();
        }
    }

    /// Whether something is to arrive elsewhere that a stream or one of its levels dropped, as far as the journal knows.
    pub(super) fn pins(&self, id: StreamId) -> bool {
        let mut pinned = self.pinned.streams.keys();
        pinned.any(|pinned| pinned.whole() == id.whole())
    }

    /// Puts what a stream dropped into the next frame.
    pub(super) fn write_pins(&mut self, stream: StreamId) {
        let Some(noted) = self.pinned.noted.remove(&stream) else {
            return;
        };
        let runs = noted.into_iter();
        let runs = runs.map(|(first, (last, reason))| (Offset(first), Offset(last), reason));
        let runs = runs.collect();
        let change = Change::Pinned { stream, runs };
        self.builder.change(Mark::default(), &change);
    }

    pub(super) fn apply_pinned(&mut self, id: StreamId, pinned: &[(Offset, Offset, DeathReason)]) {
        let Some(&place) = self.by_id.get(&id) else {
            return;
        };
        let Some(stream) = self.streams[place as usize].as_deref_mut() else {
            return;
        };
        self.pinned.touch(id);
        let runs = self.pinned.streams.entry(id).or_default();
        for (first, last, reason) in pinned {
            for offset in first.0..=last.0.min(stream.end().saturating_sub(1)) {
                stream.leave(offset);
                // It may be gone already.
                if stream.is_leaving(offset) {
                    extend(runs, (offset, offset), *reason);
                }
            }
        }
        if runs.is_empty() {
            self.pinned.streams.remove(&id);
        }
    }

    /// A checkpoint is taken: what it has of such messages is with nobody.
    pub(super) fn restored_pinned(&mut self) {
        let ids: Vec<StreamId> = self.pinned.streams.keys().copied().collect();
        for id in ids {
            let offsets = self.pinned.offsets(id);
            match self.stream_mut(id) {
                Some(stream) => offsets.iter().for_each(|(offset, _)| stream.leave(*offset)),
                // What a repair left without its stream.
                None => self.pinned.forget(id),
            }
        }
    }

    /// A new life of the node: letters that had not arrived are sent on.
    pub(super) fn resume_pinned(&mut self) {
        let ids: Vec<StreamId> = self.pinned.streams.keys().copied().collect();
        for id in ids {
            for (offset, reason) in self.pinned.offsets(id) {
                let entry = self.stream_mut(id).and_then(|stream| stream.entry(offset));
                let bytes = entry.map_or(0, |entry| u64::from(entry.body_bytes));
                let now = self.now.monotonic;
                self.unsent.resume(now, id, (offset, bytes), reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_grow_and_are_cut() {
        let mut runs = Runs::new();
        for offset in 3..=9 {
            extend(&mut runs, (offset, offset), DeathReason::Rejected);
        }
        extend(&mut runs, (10, 12), DeathReason::Expired);
        cut(&mut runs, 5, 6);
        cut(&mut runs, 9, 10);
        let expected = [
            (3, (4, DeathReason::Rejected)),
            (7, (8, DeathReason::Rejected)),
            (11, (12, DeathReason::Expired)),
        ];
        assert!(runs.iter().map(|(at, run)| (*at, *run)).eq(expected));
        cut(&mut runs, 0, 99);
        assert!(runs.is_empty());
    }
}
