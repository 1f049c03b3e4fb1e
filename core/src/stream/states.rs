//! How the state of an offset changes: handed out, set aside, released, settled, gone.
//!
//! Owns: these steps, and the counters and sets that go with them.
//! Never: which offset, or to whom (`shard/deliver.rs`).
//! Next: `chunk.rs` (where states are kept), `owed.rs`, `keyed.rs`.

use super::Stream;
use super::bits::CHUNK_OFFSETS;
use super::chunk::place;
use super::slots::{Slot, SlotState};
use crate::id::Offset;

impl<B: Clone> Stream<B> {
    /// What a handed-out offset is doing that is not gone.
    pub(super) fn slot(&self, offset: u64) -> Option<Slot> {
        if offset >= self.cursor {
            return None;
        }
        let (number, at) = place(offset);
        let chunk = self.chunks.get(number)?;
        (!chunk.gone.has(at)).then(|| chunk.slot(at))
    }

    /// What a handed-out offset is doing.
    pub(super) fn state(&self, offset: u64) -> Option<SlotState> {
        if offset >= self.cursor {
            return None;
        }
        let (number, at) = place(offset);
        let chunk = self.chunks.get(number);
        Some(chunk.map_or(SlotState::Gone, |chunk| chunk.state(at)))
    }

    fn set(&mut self, offset: u64, slot: Slot) {
        let (number, at) = place(offset);
        let cursor = self.cursor;
        if let Some(chunk) = self.chunks.get_mut(number) {
            chunk.set(at, slot, cursor);
        }
    }

    /// The cursor moves; what lies between counts as handed out so many times.
    fn advance(&mut self, cursor: u64, attempts: u32) {
        let before = std::mem::replace(&mut self.cursor, cursor);
        for nth in self.chunks.between(before, cursor) {
            if let Some(chunk) = self.chunks.at_mut(nth) {
                let (before, to) = (chunk.below(before), chunk.below(cursor));
                let from = chunk.gone.first_without(0, to).unwrap_or(to);
                chunk.slots.extend((from, before, to), attempts);
            }
        }
    }

    /// Moves the cursor up to and past `offset`; what lies between becomes ready.
    pub(super) fn reach(&mut self, offset: u64) {
        if self.cursor <= offset {
            if self.cursor < offset {
                self.returned.insert_run(self.cursor, offset - 1);
            }
            self.advance(offset + 1, 0);
        }
        self.returned.remove(offset);
        self.aside.remove(offset);
        self.unpostpone(offset);
        self.owe_elsewhere(offset);
    }

    /// Everything below `until` was handed out at least once (told by the journal).
    pub fn reach_delivered(&mut self, until: u64) {
        let until = until.min(self.end);
        self.cursor_known = self.cursor_known.max(until);
        if self.cursor < until {
            self.returned.insert_run(self.cursor, until - 1);
            self.advance(until, 1);
        }
    }

    /// Hands an offset out to the consumer of this number; says which attempt it is.
    pub fn hold(&mut self, offset: u64, holder: u32) -> u32 {
        self.reach(offset);
        if let Some(keyed) = self.keyed.as_deref_mut() {
            keyed.hold(offset, holder);
        }
        self.held += 1;
        self.tally.delivered += 1;
        self.ready_bytes -= self.body_bytes(offset);
        let Some(slot) = self.slot(offset) else {
            return 1;
        };
        let attempts = slot.attempts.saturating_add(1);
        self.set(offset, Slot::ready(attempts).with(SlotState::Held(holder)));
        attempts
    }

    /// Sets an offset aside: nobody attached may receive it now.
    pub fn set_aside(&mut self, offset: u64) {
        self.reach(offset);
        if let Some(keyed) = self.keyed.as_deref_mut() {
            keyed.forget(offset);
        }
        self.aside.insert(offset);
    }

    /// What was set aside is tried again.
    pub fn recall_aside(&mut self) {
        self.returned.append(&mut self.aside);
    }

    /// Whether this consumer holds this offset.
    pub fn is_held_by(&self, offset: u64, holder: u32) -> bool {
        self.state(offset) == Some(SlotState::Held(holder))
    }

    /// Back to its place.
    pub fn release(&mut self, offset: u64) {
        if let Some(slot) = self.slot(offset)
            && let SlotState::Held(holder) = slot.state()
        {
            self.set(offset, slot.with(SlotState::Ready));
            self.held -= 1;
            let keyed = self.keyed.as_deref_mut();
            let waits = keyed.is_some_and(|keyed| keyed.release(offset, holder));
            self.ready_bytes += self.body_bytes(offset);
            if !waits && !self.owe_again(offset) {
                self.returned.insert(offset);
            }
        }
    }

    /// Everything this consumer holds goes back, in order. Returns how much.
    pub fn release_all(&mut self, holder: u32) -> u64 {
        let held = self.held_by(holder);
        held.iter().for_each(|offset| self.release(*offset));
        held.len() as u64
    }

    /// Settled: nobody gets it any more, but it is not gone before the journal knows.
    pub fn leave(&mut self, offset: u64) {
        self.finish(offset, SlotState::Leaving);
    }

    /// Gone for good.
    pub fn remove(&mut self, offset: u64) {
        self.finish(offset, SlotState::Gone);
    }

    /// Removes ranges; returns how many messages had not left before.
    pub fn remove_ranges(&mut self, ranges: &[(Offset, Offset)]) -> u64 {
        let before = self.kept;
        for (first, last) in ranges {
            let end = last.0.saturating_add(1).min(self.end);
            let mut next = first.0;
            while let Some(offset) = self.next_kept(next).filter(|at| *at < end) {
                self.finish(offset, SlotState::Gone);
                next = offset + 1;
            }
        }
        before - self.kept
    }

    fn next_kept(&self, from: u64) -> Option<u64> {
        self.kept_from(from).next()
    }

    /// Leaving or gone.
    pub(super) fn finish(&mut self, offset: u64, state: SlotState) {
        if offset < self.base || offset >= self.end {
            return;
        }
        self.reach(offset);
        let Some(slot) = self.slot(offset) else {
            return;
        };
        let (number, at) = place(offset);
        let Ok(nth) = self.chunks.find(number) else {
            return;
        };
        let (cursor, end) = (self.cursor, self.end);
        let Some(chunk) = self.chunks.at_mut(nth) else {
            return;
        };
        let (cost, body) = chunk.weight(at);
        match slot.state() {
            SlotState::Held(holder) => {
                self.held -= 1;
                if let Some(keyed) = self.keyed.as_deref_mut() {
                    keyed.leave(offset, holder);
                }
            }
            SlotState::Ready => {
                self.ready_bytes -= body;
                if let Some(keyed) = self.keyed.as_deref_mut() {
                    keyed.forget(offset);
                }
            }
            SlotState::Leaving | SlotState::Gone => {}
        }
        if slot.state() != SlotState::Leaving {
            self.bytes -= cost;
        }
        if state != SlotState::Gone {
            return chunk.set(at, slot.with(state), cursor);
        }
        chunk.remove(at);
        let (left, start) = (chunk.present, chunk.start());
        self.kept -= 1;
        self.kept_bytes -= cost;
        if left == 0 {
            self.chunks.emptied(nth, end);
        }
        if offset == self.base {
            let rest = self.chunks.at(0).filter(|front| front.start() == start);
            let next = rest.and_then(|front| front.gone.first_without(at, CHUNK_OFFSETS));
            self.base = match next.map(|at| start + at as u64) {
                Some(next) if next < end => next,
                _ => self.chunks.first_kept().unwrap_or(end),
            };
        }
        self.owe_no_more(offset);
    }
}
