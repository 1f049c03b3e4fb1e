//! A stream and its one subscription: entries, what is handed out, and the order in which it goes out.
//!
//! An offset is in one of five states: *waiting* (never handed out, at or above the cursor), *ready*
//! (released, or set aside until someone may receive it), *held* by a consumer, *leaving* (settled, the
//! journal does not know yet) or *gone*. The front is trimmed as far as it is gone. A session's offset can also be
//! *received* (`stream/owed.rs`): its peer has the message and only the rest of its settlement is owed. Which
//! consumer holds what is the leader's memory; entries, what is gone or received and the cursor come back from
//! the journal.
//!
//! Owns: offsets and their states, counts and bytes.
//! Never: chooses a consumer (`dispatch.rs`), encodes a record.
//! Next: `stream/keyed.rs` (what a key-shared stream knows beside).
//!
//! `B` says where a message is: `Arc<Message>` in a volatile shard, `Position` in a journalled one.

mod bounds;
mod filters;
mod keyed;
mod modes;
mod owed;

pub use bounds::{Ranges, extend};
pub use filters::FilterList;
pub use keyed::{KeyHash, Keyed, LOOK_AHEAD_MAX, Target};

use crate::gateway::FilterSpec;
use crate::id::{ConnectionId, Epoch, Offset, StreamId, UnixMs, VhostId};
use crate::limits::{Mode, StreamLimits};
use crate::message::Quality;
use crate::once::Keys;
use crate::port::Member;
use crate::record::AsJson;
use crate::will::SavedWill;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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

/// What kind of reader a stream has.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Consumers share it.
    Queue,
    /// One session's own.
    Session(Session),
    /// Members of a group share it.
    Group(Group),
}

/// A group's part that all replicas have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// As its members call it.
    pub name: Arc<str>,
    /// Its binding to the vhost's topic exchange.
    pub spec: FilterSpec,
    /// Its members and their client ids.
    pub members: BTreeMap<Member, Arc<str>>,
    /// Another took its place. Only in memory.
    #[serde(skip)]
    pub retired: bool,
}

/// A session's durable part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Unique in its vhost.
    pub client_id: Arc<str>,
    /// Bumped when a connection opens it.
    pub epoch: Epoch,
    /// Seconds it outlives its connection; `u32::MAX` never ends.
    pub expiry_s: u32,
    /// When its connection ended; `None` while there is one.
    pub closed: Option<UnixMs>,
    /// Its bindings to the vhost's topic exchange.
    pub filters: FilterList,
    /// What it leaves behind when its connection ends out of order.
    pub will: Option<Box<SavedWill>>,
    /// Keys of its publisher's messages that are stored once, if it ever took one.
    pub keys: Option<Box<Keys>>,
    /// The groups it is a member of, with what it asks of each.
    pub groups: Vec<(Arc<str>, FilterSpec)>,
    /// Its live connection. Not persisted: the leader's memory.
    #[serde(skip)]
    pub live: Option<ConnectionId>,
}

impl Session {
    /// When it ends, if its connection is gone and it ever does.
    pub fn ends(&self) -> Option<UnixMs> {
        let closed = self.closed?;
        (self.expiry_s != u32::MAX).then(|| closed.after(u64::from(self.expiry_s) * 1000))
    }
}

/// How much a stream, or all of a kind, keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Entries.
    pub entries: u64,
    /// Their cost.
    pub bytes: u64,
}

impl Volume {
    /// Counts what was `before` as what is `after`.
    pub fn replace(&mut self, before: Volume, after: Volume) {
        self.entries = (self.entries + after.entries).saturating_sub(before.entries);
        self.bytes = (self.bytes + after.bytes).saturating_sub(before.bytes);
    }
}

/// Counts since the node started or the checkpoint was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Put in.
    pub published: u64,
    /// Handed out.
    pub delivered: u64,
    /// Taken.
    pub settled: u64,
    /// Dropped without being taken.
    pub dropped: u64,
    /// Dropped here and sent on.
    pub dead_lettered: u64,
    /// Publishes refused because it was full.
    pub rejected: u64,
}

/// What the leader remembers for the limits of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// Everything below had its chance to be handed out before it ended.
    pub seen: u64,
    /// Something came that ends at once, unless it is handed out at once.
    pub fleeting: bool,
    /// When its first message ends, as the shard's list of what becomes due has it; 0 is not at all.
    pub due: UnixMs,
    /// Messages that were let in and are not stored yet, with the bytes of their bodies; counted only where further
    /// ones may be refused.
    pub coming: Volume,
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
    /// Queue or session.
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

    /// The session, when it is one's.
    pub fn session(&self) -> Option<&Session> {
        match &self.kind {
            Kind::Session(session) => Some(session),
            Kind::Queue | Kind::Group(_) => None,
        }
    }

    /// What death records call it.
    pub fn title(&self) -> &Arc<str> {
        match &self.kind {
            Kind::Queue | Kind::Session(_) => &self.name,
            Kind::Group(group) => &group.name,
        }
    }

    /// The session to change, when it is one's.
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.kind {
            Kind::Session(session) => Some(session),
            Kind::Queue | Kind::Group(_) => None,
        }
    }

    /// The group, when it is one's.
    pub fn group(&self) -> Option<&Group> {
        match &self.kind {
            Kind::Group(group) => Some(group),
            Kind::Queue | Kind::Session(_) => None,
        }
    }

    /// The group to change, when it is one's.
    pub fn group_mut(&mut self) -> Option<&mut Group> {
        match &mut self.kind {
            Kind::Group(group) => Some(group),
            Kind::Queue | Kind::Session(_) => None,
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

    /// Messages waiting or ready.
    pub fn ready(&self) -> u64 {
        let back = self.returned.len() + self.aside.len() + self.parked();
        self.end() - self.cursor() + back as u64
    }

    /// Messages handed out, not settled.
    pub fn held(&self) -> u64 {
        self.held + self.owed_ready()
    }

    /// Messages that have not left.
    pub fn messages(&self) -> u64 {
        self.ready() + self.held()
    }

    /// Cost of what has not left.
    pub fn bytes(&self) -> u64 {
        self.bytes
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
    pub fn oldest(&self) -> Option<&B> {
        self.entries.front().map(|entry| &entry.body)
    }

    /// The entry at an offset that has not been trimmed.
    pub fn entry(&self, offset: u64) -> Option<&Entry<B>> {
        self.entries.get(offset.checked_sub(self.base)? as usize)
    }

    /// How often an offset was handed out.
    pub fn attempts(&self, offset: u64) -> u32 {
        offset
            .checked_sub(self.base)
            .and_then(|at| self.slots.get(at as usize))
            .map_or(0, |slot| slot.attempts)
    }

    fn body_bytes(&self, offset: u64) -> u64 {
        self.entry(offset)
            .map_or(0, |entry| u64::from(entry.body_bytes))
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

    /// Entries not gone, and what they cost: the same on every replica, unlike [`Stream::messages`] and
    /// [`Stream::bytes`], which the leader knows earlier.
    pub fn kept(&self) -> Volume {
        Volume {
            entries: self.entries.len() as u64 - self.gone,
            bytes: self.kept_bytes,
        }
    }

    /// Offsets, attempts and entries that have not left, in order.
    pub fn present(&self) -> impl Iterator<Item = (u64, u32, &Entry<B>)> {
        self.present_from(self.base)
    }

    /// The same from an offset on.
    pub fn present_from(&self, from: u64) -> impl Iterator<Item = (u64, u32, &Entry<B>)> {
        let from = from.clamp(self.base, self.end());
        let entries = self.entries.range((from - self.base) as usize..);
        (from..).zip(entries).filter_map(|(offset, entry)| {
            let slot = self.slots.get((offset - self.base) as usize);
            let left =
                slot.is_some_and(|slot| matches!(slot.state, SlotState::Gone | SlotState::Leaving));
            (!left).then(|| (offset, slot.map_or(0, |slot| slot.attempts), entry))
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

/// A stream as a checkpoint keeps it. Persisted (version of the checkpoint).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedStream<B> {
    pub(crate) id: StreamId,
    pub(crate) vhost: VhostId,
    pub(crate) name: Arc<str>,
    pub(crate) session: Option<Session>,
    pub(crate) group: Option<Group>,
    pub(crate) limits: AsJson<StreamLimits>,
    pub(crate) tally: Tally,
    pub(crate) base: u64,
    pub(crate) cursor: u64,
    pub(crate) entries: Vec<Entry<B>>,
    pub(crate) gone: Vec<(u64, u64)>,
    pub(crate) received: Vec<u64>,
}

impl<B: Clone> Stream<B> {
    /// What a checkpoint keeps: all but the leader's memory. `Leaving` counts as present, for its record
    /// may not be in the journal.
    pub fn save(&self) -> SavedStream<B> {
        let mut gone: Vec<(u64, u64)> = Vec::new();
        for (at, slot) in self.slots.iter().enumerate() {
            if slot.state == SlotState::Gone {
                let offset = self.base + at as u64;
                match gone.last_mut() {
                    Some((_, last)) if *last + 1 == offset => *last = offset,
                    _ => gone.push((offset, offset)),
                }
            }
        }
        SavedStream {
            id: self.id,
            vhost: self.vhost,
            name: self.name.clone(),
            session: self.session().cloned(),
            group: self.group().cloned(),
            limits: AsJson(self.limits.clone()),
            tally: self.tally,
            base: self.base,
            cursor: self.cursor_known.max(self.base),
            entries: self.entries.iter().cloned().collect(),
            gone,
            received: self.received(),
        }
    }

    /// The stream that was saved.
    pub fn restore(saved: SavedStream<B>) -> Stream<B> {
        let kind = match (saved.session, saved.group) {
            (Some(session), _) => Kind::Session(session),
            (None, Some(group)) => Kind::Group(group),
            (None, None) => Kind::Queue,
        };
        let mut stream = Stream::new(saved.id, saved.vhost, kind, saved.limits.0);
        stream.name = saved.name;
        stream.base = saved.base;
        stream.bytes = saved
            .entries
            .iter()
            .map(|entry| u64::from(entry.cost_bytes))
            .sum();
        stream.kept_bytes = stream.bytes;
        let bodies = saved.entries.iter();
        stream.ready_bytes = bodies.map(|entry| u64::from(entry.body_bytes)).sum();
        stream.entries = saved.entries.into();
        stream.tally = saved.tally;
        stream.reach_delivered(saved.cursor);
        for (first, last) in saved.gone {
            for offset in first..=last.min(stream.end().saturating_sub(1)) {
                stream.finish(offset, SlotState::Gone);
            }
        }
        stream.trim();
        for offset in saved.received {
            stream.receive(offset);
        }
        stream
    }

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

    #[test]
    fn a_restored_stream_has_what_had_not_left_and_knows_what_was_handed_out() {
        let mut before = stream(5);
        for offset in 0..3 {
            before.hold(offset, 1);
        }
        before.remove(0);
        before.remove(2);
        before.leave(1);
        before.cursor_known = 3;
        let after = Stream::restore(before.save());
        assert_eq!((after.messages(), after.bytes()), (3, 30));
        assert_eq!(
            (after.next(), after.attempts(1), after.attempts(3)),
            (Some(1), 1, 0)
        );
    }
}
