//! How the state of an offset changes: handed out, set aside, released, settled, gone.
//!
//! Owns: these steps, and the counters and sets that go with them.
//! Never: which offset, or to whom (`shard/deliver.rs`).
//! Next: `chunk.rs` (where states are kept), `owed.rs`, `keyed.rs`.

use super::bits::CHUNK_OFFSETS;
use super::chunk::place;
use super::slots::{Slot, SlotState};
use super::{Place, Stream, Weight};
use crate::id::Offset;

impl<B: Place> Stream<B> {
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

    /// The cursor moves; what lies between counts as handed out so many times.
    pub(super) fn advance(&mut self, cursor: u64, attempts: u32) {
        let before = std::mem::replace(&mut self.cursor, cursor);
        if before + 1 == cursor {
            let (number, at) = place(before);
            if let Some(chunk) = self.chunks.get_mut(number) {
                chunk.advance((at, at + 1), attempts);
            }
            return;
        }
        for nth in self.chunks.between(before, cursor) {
            if let Some(chunk) = self.chunks.at_mut(nth) {
                chunk.advance((chunk.below(before), chunk.below(cursor)), attempts);
            }
        }
    }

    /// Moves the cursor up to and past `offset`; what lies between becomes ready.
    pub(super) fn reach(&mut self, offset: u64) {
        if self.cursor <= offset {
            if self.cursor < offset {
                self.returned.insert_run(self.cursor, offset - 1);
            }
            // It was in none of the sets.
            return self.advance(offset + 1, 0);
        }
        self.returned.remove(offset);
        self.aside.remove(offset);
        self.unpostpone(offset);
        self.owe_elsewhere(offset);
    }

    /// Everything below `until` was handed out at least once (told by the journal).
    pub fn reach_delivered(&mut self, until: u64) {
        let until = until.min(self.end);
        // Whoever built the frame has noted it already, but no checkpoint has.
        self.touch();
        self.cursor_known = self.cursor_known.max(until);
        if self.cursor < until {
            self.returned.insert_run(self.cursor, until - 1);
            self.advance(until, 1);
        }
    }

    /// The same as [`Stream::hold`], of an entry whose body has so many bytes: the short way when it was never handed
    /// out before.
    pub fn hold_entry(&mut self, offset: u64, holder: u32, body_bytes: u32) -> u32 {
        if self.cursor != offset || self.keyed.is_some() {
            return self.hold(offset, holder);
        }
        self.cursor += 1;
        self.held += 1;
        self.tally.delivered += 1;
        self.ready_bytes = self.ready_bytes.saturating_sub(u64::from(body_bytes));
        let (number, at) = place(offset);
        if let Some(chunk) = self.chunks.get_mut(number) {
            chunk.hold_next(at, holder);
        }
        1
    }

    /// Hands an offset out to the consumer of this number; says which attempt it is.
    pub fn hold(&mut self, offset: u64, holder: u32) -> u32 {
        let fresh = self.cursor == offset;
        match fresh {
            // In none of the sets; its slot is made below.
            true => self.cursor += 1,
            false => self.reach(offset),
        }
        if let Some(keyed) = self.keyed.as_deref_mut() {
            keyed.hold(offset, holder);
        }
        self.held += 1;
        self.tally.delivered += 1;
        let ((number, at), who) = (place(offset), self.who());
        let of = (self.index.as_deref(), who);
        let Some(chunk) = self.chunks.get_mut(number) else {
            return 1;
        };
        if fresh {
            chunk.advance((at, at + 1), 0);
        }
        if chunk.gone.has(at) {
            return 1;
        }
        let attempts = chunk.slot(at).attempts.saturating_add(1);
        let body = chunk.body(at, of);
        let held = Slot::ready(attempts).with(SlotState::Held(holder));
        chunk.set(at, held, self.cursor);
        self.ready_bytes = self.ready_bytes.saturating_sub(body);
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
            let ((number, at), who) = (place(offset), self.who());
            let of = (self.index.as_deref(), who);
            if let Some(chunk) = self.chunks.get_mut(number) {
                chunk.set(at, slot.with(SlotState::Ready), self.cursor);
                self.ready_bytes += chunk.body(at, of);
            }
            self.held -= 1;
            let keyed = self.keyed.as_deref_mut();
            let waits = keyed.is_some_and(|keyed| keyed.release(offset, holder));
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

    /// Removes ranges, naming the weight of each message; returns how many there were.
    pub(crate) fn remove_ranges(
        &mut self,
        ranges: &[(Offset, Offset)],
        mut each: impl FnMut(Weight),
    ) -> u64 {
        let before = self.kept;
        for (first, last) in ranges {
            let end = last.0.saturating_add(1).min(self.end);
            if self.takes_runs() {
                // What remains was never handed out here, or came back.
                self.remove_leaving((first.0, last.0), &mut each);
            }
            let mut next = first.0.max(self.base);
            while next < end {
                match self.finish(next, SlotState::Gone) {
                    Some(weight) => {
                        each(weight);
                        next += 1;
                    }
                    None => next = self.next_kept(next + 1).unwrap_or(end),
                }
            }
        }
        before - self.kept
    }

    /// The lowest offset from this one on that is not gone.
    pub(crate) fn next_kept(&self, from: u64) -> Option<u64> {
        self.kept_from(from).next()
    }

    /// Leaving or gone; what it weighs if it is gone now.
    pub(super) fn finish(&mut self, offset: u64, state: SlotState) -> Option<Weight> {
        if offset < self.base || offset >= self.end {
            return None;
        }
        let (number, at) = place(offset);
        if state == SlotState::Gone && self.only_passes(offset) {
            return self.pass_by(number, at);
        }
        let nth = self.chunks.find(number).ok()?;
        if self.chunks.at(nth)?.gone.has(at) {
            return None;
        }
        self.reach(offset);
        let (cursor, end) = (self.cursor, self.end);
        if state == SlotState::Gone {
            self.touch();
        }
        let who = self.who();
        let of = (self.index.as_deref(), who);
        let chunk = self.chunks.at_mut(nth)?;
        let (slot, weight) = (chunk.slot(at), chunk.weight(at, of));
        match slot.state() {
            SlotState::Held(holder) => {
                self.held -= 1;
                if let Some(keyed) = self.keyed.as_deref_mut() {
                    keyed.leave(offset, holder);
                }
            }
            SlotState::Ready => {
                // Not exact where a block could not be read.
                self.ready_bytes = self.ready_bytes.saturating_sub(weight.body);
                if let Some(keyed) = self.keyed.as_deref_mut() {
                    keyed.forget(offset);
                }
            }
            SlotState::Leaving | SlotState::Gone => {}
        }
        if slot.state() != SlotState::Leaving {
            self.bytes = self.bytes.saturating_sub(weight.cost);
        }
        if state != SlotState::Gone {
            chunk.set(at, slot.with(state), cursor);
            return None;
        }
        chunk.remove(at, weight, of);
        let (left, start) = (chunk.present, chunk.start());
        self.kept -= 1;
        self.kept_bytes = self.kept_bytes.saturating_sub(weight.cost);
        if left == 0 {
            self.chunks.emptied(nth, end, of);
        }
        if offset == self.base {
            let rest = self.chunks.at(0).filter(|front| front.start() == start);
            let next = rest.and_then(|front| front.gone.first_without(at, CHUNK_OFFSETS));
            self.base = match next.map(|at| start + at as u64) {
                Some(next) if next < end => next,
                _ => self.chunks.first_kept().unwrap_or(end),
            };
        }
        self.gone(offset);
        self.owe_no_more(offset);
        Some(weight)
    }

    /// Nothing lies before it, and neither it nor anything behind it was ever handed out.
    fn only_passes(&self, offset: u64) -> bool {
        (self.base, self.cursor) == (offset, offset) && self.keyed.is_none()
    }

    /// The short way of what only passes: gone as it is handed out.
    fn pass_by(&mut self, number: u64, at: usize) -> Option<Weight> {
        self.touch();
        let (who, end) = (self.who(), self.end);
        let of = (self.index.as_deref(), who);
        let nth = self.chunks.find(number).ok()?;
        let chunk = self.chunks.at_mut(nth)?;
        let weight = chunk.weight(at, of);
        chunk.advance((at, at + 1), 0);
        chunk.remove(at, weight, of);
        if chunk.present == 0 {
            self.chunks.emptied(nth, end, of);
        }
        let offset = self.cursor;
        self.cursor += 1;
        // What comes behind is there, since it was never handed out.
        self.base = self.cursor;
        self.bytes = self.bytes.saturating_sub(weight.cost);
        self.kept_bytes = self.kept_bytes.saturating_sub(weight.cost);
        self.ready_bytes = self.ready_bytes.saturating_sub(weight.body);
        self.kept -= 1;
        self.gone(offset);
        Some(weight)
    }

    /// What is known of an offset beside its chunk is not needed any more.
    fn gone(&mut self, offset: u64) {
        if self.kept == 0 {
            (self.bytes, self.kept_bytes, self.ready_bytes) = (0, 0, 0);
        }
        if let Some(more) = &mut self.more_identifiers {
            more.remove(&offset);
            if more.is_empty() {
                self.more_identifiers = None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
