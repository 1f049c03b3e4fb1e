//! A stream and its one subscription: entries, what is handed out, and the order in which it goes out.
//!
//! An offset is in one of five states: *waiting* (never handed out, at or above the cursor), *ready*
//! (released, or set aside until someone may receive it), *held* by a consumer, *leaving* (settled, the
//! journal does not know yet) or *gone*. The front is trimmed as far as it is gone. A session's offset can also be
//! *received* (`stream/owed.rs`): its peer has the message and only the rest of its settlement is owed. Which
//! consumer holds what is the leader's memory; entries, what is gone or received and the cursor come back from
//! the journal.
//!
//! Owns: offsets and their states, and the counters that go with them.
//! Never: chooses a consumer (`dispatch.rs`), encodes a record.
//! Next: `stream/kind.rs` (whose it is), `stream/counts.rs`, `stream/keyed.rs` (what a key-shared stream knows beside),
//! `stream/saved.rs`.
//!
//! `B` says where a message is: `Arc<Message>` in a volatile shard, `Position` in a journalled one.

mod bounds;
mod counts;
mod filters;
mod keyed;
mod kind;
mod modes;
mod owed;
mod saved;

pub use bounds::{Bounds, Ranges, extend};
pub use counts::{Tally, Volume};
pub use filters::FilterList;
pub use keyed::{KeyHash, Keyed, LOOK_AHEAD_MAX, Target};
pub use kind::{Group, Kind, Session};
pub use saved::SavedStream;

use crate::id::{Offset, StreamId, UnixMs, VhostId};
use crate::limits::{Mode, StreamLimits};
use crate::message::Quality;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// A reference to a message, with what dispatch needs without reading it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry<B> {
    /// Where the message is.
    pub body: B,
    /// When it ends; 0 never.
    pub expires: UnixMs,
    /// What it costs.
    pub cost_bytes: u32,
    /// The subscriber's number of the filter that matched; 0 none.
    pub identifier: u32,
    /// As granted.
    pub quality: Quality,
    /// The retain flag the subscriber shall see.
    pub retain: bool,
    /// A topic exchange routed it: the right to receive its address is asked.
    pub by_topic: bool,
    /// Not for the connection that published it.
    pub no_local: bool,
    /// Bytes of its body.
    pub body_bytes: u32,
    /// When it came in, by the leader's clock. Not in checkpoints up to version 2.
    #[serde(skip)]
    pub stored: UnixMs,
    /// Further numbers of filters that matched.
    pub more_identifiers: Option<Arc<Vec<u32>>>,
}

/// What a handed-out offset is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// In `returned` or `aside`.
    Ready,
    /// With the consumer of this number.
    Held(u32),
    /// Settled; its record is on the way.
    Leaving,
    /// Nothing is there any more.
    Gone,
}

/// Soft state of an offset below the cursor.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// What it is doing.
    pub state: SlotState,
    /// How often it was handed out.
    pub attempts: u32,
}

/// A stream. See the module's text for the states of an offset.
#[derive(Debug)]
pub struct Stream<B> {
    /// Which.
    pub id: StreamId,
    /// In.
    pub vhost: VhostId,
    /// Its name; empty for sessions, and for what was made when shards did not know names.
    pub name: Arc<str>,
    /// Whose it is.
    pub kind: Kind,
    /// Its limits.
    pub limits: StreamLimits,
    /// Attached and holding consumers.
    pub readers: crate::dispatch::Readers,
    /// Its keys; present exactly when the mode is [`Mode::KeyShared`].
    pub keyed: Option<Box<Keyed>>,
    /// Counts.
    pub tally: Tally,
    base: u64,
    entries: VecDeque<Entry<B>>,
    slots: VecDeque<Slot>,
    returned: BTreeSet<u64>,
    aside: BTreeSet<u64>,
    owed: Option<Box<owed::Owed>>,
    held: u64,
    gone: u64,
    bytes: u64,
    kept_bytes: u64,
    /// Bytes of bodies of what is ready.
    ready_bytes: u64,
    /// What the journal knows of the cursor.
    pub cursor_known: u64,
    /// The leader's memory of what the stream's limits need.
    pub bounds: Bounds,
    /// Whether it stands in the shard's list of streams to dispatch.
    pub listed: bool,
}

impl<B: Clone> Stream<B> {
    /// An empty stream.
    pub fn new(id: StreamId, vhost: VhostId, kind: Kind, limits: StreamLimits) -> Stream<B> {
        let keyed = (limits.mode == Mode::KeyShared).then(Box::default);
        Stream {
            id,
            vhost,
            name: Arc::default(),
            kind,
            limits,
            readers: crate::dispatch::Readers::default(),
            keyed,
            tally: Tally::default(),
            base: 0,
            entries: VecDeque::new(),
            slots: VecDeque::new(),
            returned: BTreeSet::new(),
            aside: BTreeSet::new(),
            owed: None,
            held: 0,
            gone: 0,
            bytes: 0,
            kept_bytes: 0,
            ready_bytes: 0,
            cursor_known: 0,
            bounds: Bounds::default(),
            listed: false,
        }
    }

    /// First offset never handed out.
    pub fn cursor(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    /// First offset not yet put in.
    pub fn end(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// Puts an entry in at the end.
    pub fn push(&mut self, entry: Entry<B>) {
        self.bytes += u64::from(entry.cost_bytes);
        self.kept_bytes += u64::from(entry.cost_bytes);
        self.ready_bytes += u64::from(entry.body_bytes);
        self.tally.published += 1;
        self.entries.push_back(entry);
    }

    /// The lowest offset that can go out now.
    pub fn next(&self) -> Option<u64> {
        let next = self.next_returned();
        match self.keyed.as_deref() {
            None => next,
            Some(keyed) => keyed.first().into_iter().chain(next).min(),
        }
    }

    fn next_returned(&self) -> Option<u64> {
        let cursor = self.cursor();
        match self.returned.first() {
            Some(first) => Some(*first),
            None => (cursor < self.end()).then_some(cursor),
        }
    }

    /// Whether something can go out.
    pub fn has_next(&self) -> bool {
        !self.returned.is_empty()
            || self.cursor() < self.end()
            || self.parked() > 0
            || self.owed_ready() > 0
    }

    /// Where the oldest entry's message is that a checkpoint made now would keep.
    pub fn oldest(&self) -> Option<B> {
        self.entries.front().map(|entry| entry.body.clone())
    }

    /// The entry at an offset that has not been trimmed.
    pub fn entry(&self, offset: u64) -> Option<Entry<B>> {
        self.entries
            .get(offset.checked_sub(self.base)? as usize)
            .cloned()
    }

    /// How often an offset was handed out.
    pub fn attempts(&self, offset: u64) -> u32 {
        offset
            .checked_sub(self.base)
            .and_then(|at| self.slots.get(at as usize))
            .map_or(0, |slot| slot.attempts)
    }

    fn slot(&mut self, offset: u64) -> Option<&mut Slot> {
        self.slots.get_mut(offset.checked_sub(self.base)? as usize)
    }

    /// Moves the cursor up to and past `offset`; what lies between becomes ready.
    fn reach(&mut self, offset: u64) {
        while self.cursor() <= offset {
            let at = self.cursor();
            self.slots.push_back(Slot {
                state: SlotState::Ready,
                attempts: 0,
            });
            if at < offset {
                self.returned.insert(at);
            }
        }
        self.returned.remove(&offset);
        self.aside.remove(&offset);
        self.owe_elsewhere(offset);
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
        self.slot(offset).map_or(1, |slot| {
            slot.state = SlotState::Held(holder);
            slot.attempts = slot.attempts.saturating_add(1);
            slot.attempts
        })
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
        let at = offset.checked_sub(self.base);
        at.and_then(|at| self.slots.get(at as usize))
            .is_some_and(|slot| slot.state == SlotState::Held(holder))
    }

    /// Back to its place.
    pub fn release(&mut self, offset: u64) {
        if let Some(slot) = self.slot(offset)
            && let SlotState::Held(holder) = slot.state
        {
            slot.state = SlotState::Ready;
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
        let mut released = 0;
        for at in 0..self.slots.len() {
            if self.slots[at].state == SlotState::Held(holder) {
                self.release(self.base + at as u64);
                released += 1;
            }
        }
        released
    }

    /// Settled: nobody gets it any more, but it is not gone before the journal knows.
    pub fn leave(&mut self, offset: u64) {
        self.finish(offset, SlotState::Leaving);
    }

    /// Gone for good; the front is trimmed.
    pub fn remove(&mut self, offset: u64) {
        self.finish(offset, SlotState::Gone);
        self.trim();
    }

    fn finish(&mut self, offset: u64, state: SlotState) {
        if offset < self.base || offset >= self.end() {
            return;
        }
        self.reach(offset);
        let Some(slot) = self.slot(offset) else {
            return;
        };
        let before = std::mem::replace(&mut slot.state, state);
        if matches!(before, SlotState::Gone) {
            slot.state = SlotState::Gone;
            return;
        }
        match before {
            SlotState::Held(_) => self.held -= 1,
            SlotState::Ready => self.ready_bytes -= self.body_bytes(offset),
            SlotState::Leaving | SlotState::Gone => {}
        }
        if let Some(keyed) = self.keyed.as_deref_mut() {
            match before {
                SlotState::Held(holder) => keyed.leave(offset, holder),
                SlotState::Ready => keyed.forget(offset),
                SlotState::Leaving | SlotState::Gone => {}
            }
        }
        let cost = self.entry(offset).map_or(0, |entry| entry.cost_bytes);
        if state == SlotState::Gone {
            self.gone += 1;
            self.kept_bytes -= u64::from(cost);
            self.owe_no_more(offset);
        }
        if !matches!(before, SlotState::Leaving) {
            self.bytes -= u64::from(cost);
        }
    }

    fn trim(&mut self) {
        while self
            .slots
            .front()
            .is_some_and(|slot| slot.state == SlotState::Gone)
        {
            self.slots.pop_front();
            self.entries.pop_front();
            self.base += 1;
            self.gone -= 1;
        }
        // A burst leaves room behind; an idle stream should not keep it.
        if self.entries.is_empty() && self.entries.capacity() > 1024 {
            self.entries = VecDeque::new();
            self.slots = VecDeque::new();
        }
    }

    /// Settles everything that can go out, so that nobody gets it any more; returns the ranges.
    pub fn leave_ready(&mut self) -> Ranges {
        let before = self.ready();
        let ranges = self.leave_below(u64::MAX);
        self.tally.dropped += before - self.ready();
        ranges
    }

    /// Removes ranges; returns how many messages had not left before.
    pub fn remove_ranges(&mut self, ranges: &[(Offset, Offset)]) -> u64 {
        let before = self.entries.len() as u64 - self.gone;
        for (first, last) in ranges {
            for offset in first.0.max(self.base)..=last.0.min(self.end().saturating_sub(1)) {
                self.finish(offset, SlotState::Gone);
            }
        }
        self.trim();
        before - (self.entries.len() as u64 - self.gone)
    }

    /// Offsets, attempts and entries that have not left, in order.
    pub fn present(&self) -> impl Iterator<Item = (u64, u32, Entry<B>)> {
        self.present_from(self.base)
    }

    /// The same from an offset on.
    pub fn present_from(&self, from: u64) -> impl Iterator<Item = (u64, u32, Entry<B>)> {
        let from = from.clamp(self.base, self.end());
        let entries = self.entries.range((from - self.base) as usize..);
        (from..).zip(entries).filter_map(|(offset, entry)| {
            let slot = self.slots.get((offset - self.base) as usize);
            let left =
                slot.is_some_and(|slot| matches!(slot.state, SlotState::Gone | SlotState::Leaving));
            (!left).then(|| (offset, slot.map_or(0, |slot| slot.attempts), entry.clone()))
        })
    }

    /// First offset that is waiting and asks for no settlement, from `from` on: such a one may pass those
    /// that wait for credit.
    pub fn next_unsettled_free(&self, from: u64) -> Option<u64> {
        let start = from.max(self.cursor());
        (start..self.end()).find(|offset| {
            self.entry(*offset)
                .is_some_and(|entry| entry.quality == Quality::AtMostOnce)
        })
    }
}

impl<B: Clone> Stream<B> {
    /// Everything below `until` was handed out at least once (told by the journal).
    pub fn reach_delivered(&mut self, until: u64) {
        let until = until.min(self.end());
        self.cursor_known = self.cursor_known.max(until);
        while self.cursor() < until {
            let offset = self.cursor();
            self.slots.push_back(Slot {
                state: SlotState::Ready,
                attempts: 1,
            });
            self.returned.insert(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn stream(messages: u64) -> Stream<u64> {
        let mut stream = Stream::new(
            StreamId(1),
            VhostId(1),
            Kind::Queue,
            StreamLimits::default(),
        );
        for body in 0..messages {
            stream.push(Entry {
                body,
                expires: UnixMs(0),
                cost_bytes: 10,
                identifier: 0,
                quality: Quality::AtLeastOnce,
                retain: false,
                by_topic: false,
                no_local: false,
                body_bytes: 5,
                stored: UnixMs(0),
                more_identifiers: None,
            });
        }
        stream
    }

    #[test]
    fn released_messages_go_back_to_their_original_places() {
        let mut stream = stream(4);
        for offset in 0..3 {
            assert_eq!(stream.next(), Some(offset));
            stream.hold(offset, 1);
        }
        stream.release(2);
        stream.release(0);
        assert_eq!(stream.next(), Some(0));
        assert_eq!(stream.hold(0, 2), 2);
        assert_eq!(stream.next(), Some(2));
        assert_eq!((stream.ready(), stream.held()), (2, 2));
    }

    #[test]
    fn the_front_is_trimmed_as_far_as_it_is_gone() {
        let mut stream = stream(3);
        for offset in 0..3 {
            stream.hold(offset, 1);
        }
        stream.remove(1);
        assert_eq!((stream.messages(), stream.bytes()), (2, 20));
        stream.remove(0);
        assert!(stream.entry(1).is_none() && stream.entry(2).is_some());
        stream.leave(2);
        assert_eq!((stream.messages(), stream.bytes()), (0, 0));
        stream.remove(2);
        assert_eq!((stream.cursor(), stream.end()), (3, 3));
    }

    #[test]
    fn a_purge_leaves_what_is_handed_out() {
        let mut stream = stream(5);
        stream.hold(0, 1);
        stream.hold(1, 1);
        stream.release(0);
        let ranges = stream.leave_ready();
        assert_eq!(ranges, [(Offset(0), Offset(0)), (Offset(2), Offset(4))]);
        assert_eq!(stream.remove_ranges(&ranges), 4);
        assert_eq!(
            (
                stream.ready(),
                stream.held(),
                stream.next(),
                stream.kept().entries
            ),
            (0, 1, None, 1)
        );
    }
}
