//! Many offsets settled at once, chunk by chunk: settlements come in runs.
//!
//! Owns: that step. It does what `finish` in `states.rs` does for each offset, for those of which only their slot and
//! their entry need to change: what is held or leaving is in none of a stream's sets.
//! Never: streams that know more of an offset (keys, what is owed): those go one by one.
//! Next: `states.rs`.

use super::bounds::Ranges;
use super::chunk::place;
use super::slots::SlotState;
use super::{Place, Stream, Weight, extend};

impl<B: Place> Stream<B> {
    /// Whether runs can be settled: else each offset is to be settled by itself.
    pub(crate) fn takes_runs(&self) -> bool {
        self.keyed.is_none() && self.owed.is_none()
    }

    /// What this consumer holds from `first` to `last` is settled and gone; says how much that was.
    pub(crate) fn remove_held(&mut self, run: (u64, u64), holder: u32) -> u64 {
        self.finish_run(run, (SlotState::Held(holder), SlotState::Gone), |_, _| {})
    }

    /// The same, where it is not gone before the journal knows: adds the offsets to `left`.
    pub(crate) fn leave_held(&mut self, run: (u64, u64), holder: u32, left: &mut Ranges) -> u64 {
        let step = (SlotState::Held(holder), SlotState::Leaving);
        self.finish_run(run, step, |offset, _| extend(left, offset))
    }

    /// What is leaving from `first` to `last` is gone; names the weight of each.
    pub(super) fn remove_leaving(&mut self, run: (u64, u64), mut each: impl FnMut(Weight)) -> u64 {
        let step = (SlotState::Leaving, SlotState::Gone);
        self.finish_run(run, step, |_, weight| each(weight))
    }

    /// The first from `first` to `last` that this consumer holds.
    pub(crate) fn first_held(&self, (first, last): (u64, u64), holder: u32) -> Option<u64> {
        let until = last.saturating_add(1).min(self.cursor);
        let chunks = self.chunks.from(first);
        chunks
            .take_while(|chunk| chunk.start() < until)
            .find_map(|chunk| {
                let held = |at: &usize| chunk.state(*at) == SlotState::Held(holder);
                let at = (chunk.below(first)..chunk.below(until)).find(held)?;
                Some(chunk.start() + at as u64)
            })
    }

    fn finish_run(
        &mut self,
        (first, last): (u64, u64),
        (from, to): (SlotState, SlotState),
        mut each: impl FnMut(u64, Weight),
    ) -> u64 {
        let (first, until) = (
            first.max(self.base),
            last.saturating_add(1).min(self.cursor),
        );
        if first >= until {
            return 0;
        }
        let goes = to == SlotState::Gone;
        if goes {
            self.touch();
        }
        let (cursor, end, who) = (self.cursor, self.end, self.who());
        let of = (self.index.as_deref(), who);
        let (mut count, mut cost) = (0, 0);
        let (Ok(mut nth) | Err(mut nth)) = self.chunks.find(place(first).0);
        while let Some(chunk) = self.chunks.at_mut(nth)
            && chunk.start() < until
        {
            let (start, before) = (chunk.start(), chunk.present);
            for at in chunk.below(first)..chunk.below(until) {
                let slot = chunk.slot(at);
                if slot.state() != from || chunk.gone.has(at) {
                    continue;
                }
                let weight = chunk.weight(at, of);
                let offset = start + at as u64;
                each(offset, weight);
                (count, cost) = (count + 1, cost + weight.cost);
                if !goes {
                    chunk.set(at, slot.with(to), cursor);
                    continue;
                }
                chunk.remove(at, weight, of);
                if let Some(more) = &mut self.more_identifiers {
                    more.remove(&offset);
                }
            }
            match chunk.present == 0 && before > 0 {
                // Another one is in its place now, or it begins where the stream ends.
                true => self.chunks.emptied(nth, end, of),
                false => nth += 1,
            }
        }
        if let SlotState::Held(_) = from {
            self.held -= count;
        }
        if from != SlotState::Leaving {
            self.bytes = self.bytes.saturating_sub(cost);
        }
        if goes && count > 0 {
            self.kept -= count;
            self.kept_bytes = self.kept_bytes.saturating_sub(cost);
            self.base = self.chunks.first_kept().unwrap_or(end);
            if self.kept == 0 {
                (self.bytes, self.kept_bytes, self.ready_bytes) = (0, 0, 0);
            }
            if self
                .more_identifiers
                .as_ref()
                .is_some_and(|more| more.is_empty())
            {
                self.more_identifiers = None;
            }
        }
        count
    }
}
