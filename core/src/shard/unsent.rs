//! Dead letters that are to arrive, however long it takes.
//!
//! Where a stream's limits insist ([`StreamLimits::insists`](crate::limits::StreamLimits::insists)), a message that it
//! dropped stays in it, handed to nobody, until all its destinations have taken it. One that is refused, or that has no
//! destination, is tried again, longer each time; those of its stream that are dropped meanwhile wait behind it. They take
//! room in their stream. One that cannot be read stays as long as this life of the node, and is not tried again. When they
//! are tried is the leader's memory; which they are is in the journal (`pinned.rs`), so that they go on after a restart.
//!
//! Owns: which of them wait, as runs, and until when.
//! Never: sends anything (`forward.rs`), decides that a message goes (`limit.rs`).
//! Next: `pinned.rs`.

use super::forward::Errand;
use super::pinned::{self, Runs};
use super::{Place, Shard};
use crate::death::DeathReason;
use crate::id::{MonotonicMs, StreamId};
use crate::stream::{Stream, Volume};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// How long letters wait that were refused once, in milliseconds; after that twice as long each time.
const WAIT_MS: u64 = 500;
/// ... and never longer than this.
const WAIT_MAX_MS: u64 = 30_000;
/// Letters of one stream that are tried again at a time.
const LOT: usize = 64;

/// The letters of all streams that insist.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    streams: FxHashMap<StreamId, Letters>,
    times: BTreeSet<(MonotonicMs, StreamId)>,
}

#[derive(Debug, Default)]
struct Letters {
    /// All that have not arrived.
    kept: Volume,
    /// Those that wait: first offset of each run, its last, and why they were dropped.
    waiting: Runs,
    /// When they are tried again, if some wait.
    due: Option<MonotonicMs>,
    /// How often they were refused since one was taken.
    refused: u32,
}

impl Letters {
    fn insert(&mut self, offset: u64, reason: DeathReason) {
        pinned::extend(&mut self.waiting, (offset, offset), reason);
    }

    fn pop(&mut self) -> Option<(u64, DeathReason)> {
        let (first, (last, reason)) = self.waiting.pop_first()?;
        if first < last {
            self.waiting.insert(first + 1, (last, reason));
        }
        Some((first, reason))
    }

    fn wait_ms(&self) -> u64 {
        let times = 1u64 << self.refused.saturating_sub(1).min(16);
        (WAIT_MS * times).min(WAIT_MAX_MS)
    }
}

impl Unsent {
    /// When something is to be tried again.
    pub(super) fn wake_at(&self) -> Option<MonotonicMs> {
        self.times.first().map(|(time, _)| *time)
    }

    /// What of a stream has not arrived.
    pub(super) fn kept(&self, id: StreamId) -> Volume {
        let letters = self.streams.get(&id);
        letters.map_or(Volume::default(), |letters| letters.kept)
    }

    /// What has not arrived, of all streams.
    pub(super) fn letters(&self) -> u64 {
        let letters = self.streams.values();
        letters.map(|letters| letters.kept.entries).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// A stream is gone.
    pub(super) fn forget(&mut self, id: StreamId) {
        if let Some(letters) = self.streams.remove(&id)
            && let Some(due) = letters.due
        {
            self.times.remove(&(due, id));
        }
    }

    fn arm(&mut self, id: StreamId, due: Option<MonotonicMs>) {
        if let Some(letters) = self.streams.get_mut(&id) {
            if let Some(before) = letters.due {
                self.times.remove(&(before, id));
            }
            letters.due = due;
            self.times.extend(due.map(|due| (due, id)));
        }
    }

    /// A letter that has to arrive; says whether it waits behind others of its stream.
    pub(super) fn enter(
        &mut self,
        id: StreamId,
        (offset, bytes): (u64, u64),
        reason: DeathReason,
    ) -> bool {
        let letters = self.streams.entry(id).or_default();
        letters.kept.entries += 1;
        letters.kept.bytes += bytes;
        let behind = !letters.waiting.is_empty();
        if behind {
            letters.insert(offset, reason);
        }
        behind
    }

    /// A letter of an earlier life that had not arrived: it is sent on now.
    pub(super) fn resume(
        &mut self,
        now: MonotonicMs,
        id: StreamId,
        (offset, bytes): (u64, u64),
        reason: DeathReason,
    ) {
        let letters = self.streams.entry(id).or_default();
        letters.kept.entries += 1;
        letters.kept.bytes += bytes;
        letters.insert(offset, reason);
        self.arm(id, Some(now));
    }

    /// It was refused.
    pub(super) fn refuse(
        &mut self,
        now: MonotonicMs,
        id: StreamId,
        offset: u64,
        reason: DeathReason,
    ) {
        let letters = self.streams.entry(id).or_default();
        // The stream may not have insisted when it was dropped.
        letters.kept.entries = letters.kept.entries.max(1);
        letters.insert(offset, reason);
        // All that were on their way together count once.
        if letters.due.is_none() {
            letters.refused = letters.refused.saturating_add(1);
            let due = now.after(letters.wait_ms());
            self.arm(id, Some(due));
        }
    }

    /// One of those that were sent stays for good: those behind it are next.
    pub(super) fn pass(&mut self, now: MonotonicMs, id: StreamId) {
        let letters = self.streams.get(&id);
        if letters.is_some_and(|letters| letters.due.is_none() && !letters.waiting.is_empty()) {
            self.arm(id, Some(now));
        }
    }

    /// A letter is over: it has arrived, or is nobody's business any more. Those behind it are next.
    pub(super) fn leave(&mut self, now: MonotonicMs, id: StreamId, bytes: u64) {
        let Some(letters) = self.streams.get_mut(&id) else {
            return;
        };
        letters.kept.entries = letters.kept.entries.saturating_sub(1);
        letters.kept.bytes = letters.kept.bytes.saturating_sub(bytes);
        letters.refused = 0;
        if letters.kept.entries == 0 {
            self.forget(id);
        } else if !letters.waiting.is_empty() {
            self.arm(id, Some(now));
        }
    }
}

impl<B: Place> Shard<B> {
    /// What was refused long enough ago is sent again, some of each stream.
    pub(super) fn send_unsent(&mut self, now: MonotonicMs) {
        while self.forwards.has_room()
            && let Some(&(due, stream)) = self.unsent.times.first()
            && due <= now
        {
            self.unsent.arm(stream, None);
            let Some(letters) = self.unsent.streams.get_mut(&stream) else {
                continue;
            };
            for _ in 0..LOT {
                let Some((offset, reason)) = letters.pop() else {
                    break;
                };
                self.forwards.push(Errand::Letter {
                    stream,
                    offset,
                    reason,
                });
            }
        }
    }

    /// What takes room in a queue beside the ready messages of its own stream.
    pub(super) fn beside(&self, id: StreamId) -> Volume {
        let mut beside = self.ready_below(id);
        if !self.unsent.is_empty() {
            beside.replace(Volume::default(), self.unsent_of(id));
        }
        beside
    }

    /// Dead letters of a queue that have not arrived.
    pub(super) fn unsent_of(&self, id: StreamId) -> Volume {
        let mut all = self.unsent.kept(id);
        for level in self.levels_below(id) {
            all.replace(Volume::default(), self.unsent.kept(level.id));
        }
        all
    }

    /// A letter of a stream is over.
    pub(super) fn letter_over(&mut self, stream: &Stream<B>, offset: u64) {
        if !self.unsent.is_empty() {
            let entry = stream.entry(offset);
            let bytes = entry.map_or(0, |entry| u64::from(entry.body_bytes));
            self.unsent.leave(self.now.monotonic, stream.id, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_wait_as_runs_and_longer_each_time() {
        let mut letters = Letters::default();
        for offset in [3, 4, 5] {
            letters.insert(offset, DeathReason::Rejected);
        }
        letters.insert(6, DeathReason::Expired);
        letters.insert(1, DeathReason::Rejected);
        assert_eq!(letters.waiting.len(), 3);
        let order = std::iter::from_fn(|| letters.pop()).map(|(offset, _)| offset);
        assert_eq!(order.collect::<Vec<_>>(), [1, 3, 4, 5, 6]);
        let waits = [1, 2, 3, 7, 60].map(|refused| {
            letters.refused = refused;
            letters.wait_ms()
        });
        assert_eq!(waits, [500, 1000, 2000, 30_000, 30_000]);
    }
}
