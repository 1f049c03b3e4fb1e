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

    /// Hands an offset out to the consumer of this number; says which attempt it is.
    pub fn hold(&mut self, offset: u64, holder: u32) -> u32 {
        self.reach(offset);
        if let Some(keyed) = self.keyed.as_deref_mut() {
            keyed.hold(offset, holder);
        }
        self.held += 1;
        self.tally.delivered += 1;
        let ((number, at), who) = (place(offset), self.who());
        let of = (self.index.as_deref(), who);
        let chunk = self.chunks.get_mut(number);
        let Some(chunk) = chunk.filter(|chunk| !chunk.gone.has(at)) else {
            return 1;
        };
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

    fn next_kept(&self, from: u64) -> Option<u64> {
        self.kept_from(from).next()
    }

    /// Leaving or gone; what it weighs if it is gone now.
    pub(super) fn finish(&mut self, offset: u64, state: SlotState) -> Option<Weight> {
        if offset < self.base || offset >= self.end {
            return None;
        }
        let (number, at) = place(offset);
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
        if self.kept == 0 {
            (self.bytes, self.kept_bytes, self.ready_bytes) = (0, 0, 0);
        }
        if let Some(more) = &mut self.more_identifiers {
            more.remove(&offset);
            if more.is_empty() {
                self.more_identifiers = None;
            }
        }
        self.owe_no_more(offset);
        Some(weight)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::stream;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u64),
        Hold(u64),
        Release(u64),
        Leave(u64),
        Aside(u64),
        Recall,
        Remove(u64, u64),
        Delivered(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1u64..400).prop_map(Step::Push),
            3 => (0u64..900).prop_map(Step::Hold),
            2 => (0u64..900).prop_map(Step::Release),
            2 => (0u64..900).prop_map(Step::Leave),
            1 => (0u64..900).prop_map(Step::Aside),
            1 => Just(Step::Recall),
            4 => (0u64..900, 0u64..500).prop_map(|(first, more)| Step::Remove(first, more)),
            1 => (0u64..900).prop_map(Step::Delivered),
        ]
    }

    /// State and attempts of offsets that are not gone; what is waiting is in none.
    #[derive(Default)]
    struct Plain {
        cursor: u64,
        end: u64,
        kept: BTreeMap<u64, Option<(SlotState, u32)>>,
        aside: Vec<u64>,
    }

    impl Plain {
        fn reach(&mut self, cursor: u64, attempts: u32) {
            for at in self.cursor..cursor {
                if let Some(kept) = self.kept.get_mut(&at) {
                    *kept = Some((SlotState::Ready, attempts));
                }
            }
            self.cursor = self.cursor.max(cursor);
        }

        fn count(&self, of: impl Fn(SlotState) -> bool) -> u64 {
            let kept = self.kept.values();
            kept.filter(|kept| of(kept.map_or(SlotState::Ready, |kept| kept.0)))
                .count() as u64
        }
    }

    proptest! {
        #[test]
        fn states_are_those_of_plain_lists(steps in proptest::collection::vec(step(), 1..80)) {
            let mut stream = stream(0);
            let mut plain = Plain::default();
            for step in steps {
                match step {
                    Step::Push(count) => {
                        for mut entry in super::super::tests::entries(count) {
                            entry.body.0 = plain.end;
                            stream.push(entry);
                            plain.kept.insert(plain.end, None);
                            plain.end += 1;
                        }
                    }
                    Step::Hold(at) => {
                        let ready = matches!(plain.kept.get(&at), Some(None | Some((SlotState::Ready, _))));
                        if ready {
                            plain.reach(at + 1, 0);
                            let attempts = plain.kept[&at].map_or(0, |kept| kept.1) + 1;
                            plain.aside.retain(|aside| *aside != at);
                            prop_assert_eq!(stream.hold(at, 7), attempts);
                            plain.kept.insert(at, Some((SlotState::Held(7), attempts)));
                        }
                    }
                    Step::Release(at) => {
                        stream.release(at);
                        if let Some(Some((state @ SlotState::Held(_), _))) = plain.kept.get_mut(&at) {
                            *state = SlotState::Ready;
                        }
                    }
                    Step::Leave(at) => {
                        stream.leave(at);
                        if plain.kept.contains_key(&at) {
                            plain.reach(at + 1, 0);
                            plain.aside.retain(|aside| *aside != at);
                            let attempts = plain.kept[&at].map_or(0, |kept| kept.1);
                            plain.kept.insert(at, Some((SlotState::Leaving, attempts)));
                        }
                    }
                    Step::Aside(at) => {
                        let ready = matches!(plain.kept.get(&at), Some(None | Some((SlotState::Ready, _))));
                        if ready && !plain.aside.contains(&at) {
                            stream.set_aside(at);
                            plain.reach(at + 1, 0);
                            plain.aside.push(at);
                        }
                    }
                    Step::Recall => {
                        stream.recall_aside();
                        plain.aside.clear();
                    }
                    Step::Remove(first, more) => {
                        let gone: Vec<u64> = plain.kept.range(first..=first + more).map(|(at, _)| *at).collect();
                        let removed = stream.remove_ranges(&[(Offset(first), Offset(first + more))], |_| {});
                        prop_assert_eq!(removed, gone.len() as u64);
                        if let Some(last) = gone.last() {
                            plain.reach(last + 1, 0);
                        }
                        plain.kept.retain(|at, _| !gone.contains(at));
                        plain.aside.retain(|at| !gone.contains(at));
                    }
                    Step::Delivered(until) => {
                        stream.reach_delivered(until);
                        plain.reach(until.min(plain.end), 1);
                    }
                }
                let ready = plain.count(|state| state == SlotState::Ready);
                let held = plain.count(|state| matches!(state, SlotState::Held(_)));
                prop_assert_eq!((stream.ready(), stream.held()), (ready, held));
                prop_assert_eq!((stream.cursor(), stream.end()), (plain.cursor, plain.end));
                prop_assert_eq!(stream.kept().entries, plain.kept.len() as u64);
                prop_assert_eq!(stream.bytes(), (ready + held) * 10);
                prop_assert_eq!(stream.ready_bytes(), ready * 5);
                let kept: Vec<u64> = stream.kept_offsets().collect();
                prop_assert_eq!(&kept, &plain.kept.keys().copied().collect::<Vec<_>>());
                prop_assert_eq!(stream.base, kept.first().copied().unwrap_or(plain.end));
                let mut next = plain.kept.iter().filter(|(at, kept)| {
                    kept.is_none_or(|kept| kept.0 == SlotState::Ready) && !plain.aside.contains(at)
                });
                prop_assert_eq!(stream.next(), next.next().map(|(at, _)| *at));
                for (at, kept) in &plain.kept {
                    prop_assert_eq!(stream.state(*at), kept.map(|kept| kept.0));
                    prop_assert_eq!(stream.attempts(*at), kept.map_or(0, |kept| kept.1));
                    prop_assert_eq!(stream.entry(*at).map(|entry| entry.body.0), Some(*at));
                }
                prop_assert!(stream.chunks.len() <= kept.iter().map(|at| at / 255).collect::<std::collections::BTreeSet<_>>().len() + 1);
            }
        }
    }

    /// One message that stays costs one chunk, however much goes past it.
    #[test]
    fn what_flows_past_one_held_message_costs_nothing() {
        let mut stream = stream(1);
        stream.hold(0, 1);
        for at in 1..200_000 {
            for entry in super::super::tests::entries(1) {
                stream.push(entry);
            }
            stream.hold(at, 2);
            stream.remove(at);
        }
        assert!(stream.chunks.len() <= 2 && stream.returned.is_empty());
        assert_eq!((stream.base, stream.kept().entries), (0, 1));
        stream.remove(0);
        assert_eq!((stream.base, stream.chunks.len()), (200_000, 1));
    }
}
