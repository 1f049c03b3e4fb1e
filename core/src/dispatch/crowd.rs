//! Readers of a stream: who may be handed the next message.
//!
//! Two windows bound what a reader is handed: *credit* (unsettled deliveries, the reader's own wish) and
//! *travel* (deliveries on their way to its connection, so that a reader that does not read is bounded
//! whatever its credit). Among readers with room, higher priority first, then round robin; in the ordered modes
//! (exclusive, failover) one at a time.
//!
//! Owns: the list of readers of one stream and the choice among several.
//! Never: messages or offsets (`stream.rs`), rules (it is told who may receive), keys (`stream/keyed.rs`).
//! Next: `dispatch/reader.rs`, `dispatch/ordered.rs` (one at a time), `dispatch/cursor.rs` (each by itself); `shard/deliver.rs`, which asks and delivers.

mod cursor;
mod ordered;
mod reader;
mod unsettled;

pub use cursor::Cursor;
pub use reader::{Reader, TRAVEL_UNITS_MAX, travel_units};
pub use unsettled::Unsettled;

use crate::message::Quality;
use crate::port::ConsumerKey;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cmp::Ordering;

/// What the choice came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This one, by its place in the list.
    Reader(usize),
    /// Some may receive it but none of those has room.
    NoRoom,
    /// None attached may receive it.
    Nobody,
}

/// All readers of a stream, in the order of their numbers.
#[derive(Clone, Debug, Default)]
pub struct Readers {
    list: Vec<Reader>,
    /// Places that may have room, as bits: whoever can change a reader sets its bit, the choice clears it when
    /// there is none. So with many readers the choice looks at those that may be chosen only.
    open: SmallVec<[u64; 1]>,
    /// Numbers by key, once the list is too long to be looked through.
    index: FxHashMap<ConsumerKey, u32>,
    /// Whether priorities differ.
    ranked: bool,
    turn: usize,
    last_number: u32,
    /// The number of the reader that [`Readers::elect`] named last.
    lead: u32,
}

/// Readers beyond which they are found by an index.
const INDEXED: usize = 8;

impl Readers {
    /// Adds one, numbering it; returns its number.
    pub fn add(&mut self, mut reader: Reader) -> u32 {
        // A member that is granted no settlement never holds anything.
        reader.presettled |= reader
            .member
            .as_ref()
            .is_some_and(|member| member.quality == Quality::AtMostOnce);
        self.last_number += 1;
        reader.number = self.last_number;
        let (place, key) = (self.list.len(), reader.key);
        self.ranked |= self
            .list
            .first()
            .is_some_and(|first| first.priority != reader.priority);
        self.list.push(reader);
        if place / 64 == self.open.len() {
            self.open.push(0);
        }
        self.open[place / 64] |= 1 << (place % 64);
        match place.cmp(&INDEXED) {
            Ordering::Less => {}
            Ordering::Equal => {
                let all = self.list.iter();
                self.index = all.map(|reader| (reader.key, reader.number)).collect();
            }
            Ordering::Greater => drop(self.index.insert(key, self.last_number)),
        }
        self.last_number
    }

    pub(crate) fn place_of(&self, key: ConsumerKey) -> Option<usize> {
        match self.list.len() > INDEXED {
            true => self.numbered(*self.index.get(&key)?),
            false => self.list.iter().position(|reader| reader.key == key),
        }
    }

    /// The reader with this key.
    pub fn find(&mut self, key: ConsumerKey) -> Option<&mut Reader> {
        self.at(self.place_of(key)?)
    }

    /// The reader at a place in the list.
    pub fn at(&mut self, place: usize) -> Option<&mut Reader> {
        let reader = self.list.get_mut(place)?;
        self.open[place / 64] |= 1 << (place % 64);
        Some(reader)
    }

    /// The reader at a place in the list, to look at.
    pub fn get(&self, place: usize) -> Option<&Reader> {
        self.list.get(place)
    }

    /// The place of the reader with this number.
    pub fn numbered(&self, number: u32) -> Option<usize> {
        self.list
            .binary_search_by_key(&number, |reader| reader.number)
            .ok()
    }

    /// Removes the reader with this key.
    pub fn remove(&mut self, key: ConsumerKey) -> Option<Reader> {
        let reader = self.list.remove(self.place_of(key)?);
        if self.list.len() > INDEXED {
            self.index.remove(&key);
        } else {
            self.index = FxHashMap::default();
        }
        self.open.truncate(self.list.len().div_ceil(64));
        self.open.fill(u64::MAX);
        self.ranked = self.ranked
            && self
                .list
                .windows(2)
                .any(|pair| pair[0].priority != pair[1].priority);
        Some(reader)
    }

    /// One delivery was taken from the reader of this number. It goes when it was there for its deliveries only.
    pub fn lighten(&mut self, number: u32) {
        let Some(reader) = self.numbered(number).and_then(|place| self.at(place)) else {
            return;
        };
        reader.held = reader.held.saturating_sub(1);
        let (spent, key) = (!reader.attached && reader.held == 0, reader.key);
        if spent {
            self.remove(key);
        }
    }

    /// How many deliveries can be handed out now: to all of them, or to the one that an ordered stream serves.
    pub fn room(&self, only_lead: bool) -> u64 {
        let open = self
            .list
            .iter()
            .filter(|reader| !only_lead || reader.number == self.lead);
        open.map(Reader::room).sum()
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Reader> {
        self.open.fill(u64::MAX);
        self.list.iter_mut()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Reader> {
        self.list.iter()
    }

    /// Those that get deliveries.
    pub fn attached(&self) -> usize {
        self.list.iter().filter(|reader| reader.attached).count()
    }

    /// Whether one that is attached excludes others.
    pub fn exclusive(&self) -> bool {
        self.list
            .iter()
            .any(|reader| reader.attached && reader.exclusive)
    }

    /// The first place from `from` on, below `to`, that may have room.
    fn next_open(&self, from: usize, to: usize) -> Option<usize> {
        let mut from = from;
        while from < to {
            let rest = self.open[from / 64] >> (from % 64);
            if rest != 0 {
                let place = from + rest.trailing_zeros() as usize;
                return (place < to).then_some(place);
            }
            from = (from / 64 + 1) * 64;
        }
        None
    }

    /// Whether any has room for a delivery that must be settled.
    pub fn any_room(&mut self) -> bool {
        self.next_with_room(0).is_some()
    }

    /// The first from a place on that has room for a delivery that must be settled.
    pub fn next_with_room(&mut self, mut from: usize) -> Option<usize> {
        while let Some(place) = self.next_open(from, self.list.len()) {
            if self.list[place].has_room() {
                return Some(place);
            }
            self.open[place / 64] &= !(1 << (place % 64));
            from = place + 1;
        }
        None
    }

    /// Whether all of them together can be handed more than this many deliveries now.
    pub fn room_beyond(&self, count: u64) -> bool {
        let (mut from, mut room) = (0, 0);
        while let Some(place) = self.next_open(from, self.list.len()) {
            room += self.list[place].room();
            if room > count {
                return true;
            }
            from = place + 1;
        }
        false
    }

    /// Chooses among those that `may` receive the message.
    pub fn choose(&mut self, mut may: impl FnMut(&Reader) -> bool) -> Choice {
        let count = self.list.len();
        let mut best: Option<usize> = None;
        let turn = if self.turn < count { self.turn } else { 0 };
        let (mut from, mut to) = (turn, count);
        loop {
            let Some(place) = self.next_open(from, to) else {
                if to == turn {
                    break;
                }
                (from, to) = (0, turn);
                continue;
            };
            from = place + 1;
            let reader = &self.list[place];
            if !reader.has_room() {
                self.open[place / 64] &= !(1 << (place % 64));
                continue;
            }
            if best.is_some_and(|best| self.list[best].priority >= reader.priority) {
                continue;
            }
            if may(reader) {
                best = Some(place);
                if !self.ranked {
                    break;
                }
            }
        }
        match best {
            Some(place) => {
                self.turn = (place + 1) % count;
                Choice::Reader(place)
            }
            None if self.list.iter().any(|full| full.serves() && may(full)) => Choice::NoRoom,
            None => Choice::Nobody,
        }
    }

    /// The same when only one comes into question.
    pub fn choose_only(&self, place: usize, mut may: impl FnMut(&Reader) -> bool) -> Choice {
        match self.list.get(place) {
            Some(reader) if !may(reader) => Choice::Nobody,
            Some(reader) if reader.has_room() => Choice::Reader(place),
            Some(_) => Choice::NoRoom,
            None => Choice::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::FilterSpec;
    use crate::id::{ConnectionId, ConsumerTag};
    use crate::message::Message;
    use std::sync::Arc;

    pub(super) fn readers(list: &[(i32, u32)]) -> Readers {
        let mut readers = Readers::default();
        for (place, (priority, credit)) in list.iter().enumerate() {
            let key = ConsumerKey {
                connection: ConnectionId(1),
                tag: ConsumerTag(place as u32),
            };
            readers.add(Reader {
                priority: *priority,
                credit: *credit,
                attached: true,
                receives_all: true,
                ..Reader::new(key, Arc::default(), Arc::from("/"))
            });
        }
        readers
    }

    #[test]
    fn equals_take_turns_and_higher_priority_goes_first() {
        let mut equal = readers(&[(0, 9), (0, 9), (0, 9)]);
        let turns: Vec<_> = (0..4).map(|_| equal.choose(|_| true)).collect();
        assert_eq!(turns, [0, 1, 2, 0].map(Choice::Reader));
        let mut ranked = readers(&[(0, 9), (5, 1), (5, 1)]);
        assert_eq!(ranked.choose(|_| true), Choice::Reader(1));
        ranked.at(1).unwrap().held = 1;
        ranked.at(2).unwrap().held = 1;
        assert_eq!(ranked.choose(|_| true), Choice::Reader(0));
    }

    #[test]
    fn of_many_those_with_room_are_found_in_turns() {
        let mut many = readers(&[(0, 1); 200]);
        let mut served: Vec<usize> = Vec::new();
        while let Choice::Reader(place) = many.choose(|_| true) {
            many.at(place).unwrap().held += 1;
            served.push(place);
        }
        assert_eq!(served, (0..200).collect::<Vec<_>>());
        assert!(!many.any_room() && !many.room_beyond(0));
        let key = many.get(130).unwrap().key;
        assert_eq!(many.find(key).map(|found| found.key), Some(key));
        many.find(key).unwrap().held = 0;
        assert!(many.any_room() && many.room_beyond(0) && !many.room_beyond(1));
        assert_eq!(many.choose(|_| true), Choice::Reader(130));
        many.remove(many.get(3).unwrap().key);
        assert_eq!(many.choose(|_| true), Choice::Reader(129), "places move up");
        assert_eq!(many.find(key).map(|found| found.number), Some(131));
        for place in (5..199).rev() {
            many.remove(many.get(place).unwrap().key);
        }
        let key = many.get(4).unwrap().key;
        many.find(key).unwrap().held = 0;
        assert_eq!(many.choose(|_| true), Choice::Reader(4));
    }

    #[test]
    fn no_right_and_no_room_are_told_apart() {
        let mut both = readers(&[(0, 0), (0, 9)]);
        assert_eq!(both.choose(|reader| reader.key.tag.0 == 0), Choice::NoRoom);
        assert_eq!(both.choose(|_| false), Choice::Nobody);
    }

    #[test]
    fn a_member_that_is_granted_no_settlement_needs_no_credit() {
        let mut readers = readers(&[(0, 0)]);
        let mut member = readers.remove(readers.list[0].key).unwrap();
        assert!(!member.has_room());
        member.member = Some(Box::new(FilterSpec {
            filter: "a".parse().unwrap(),
            quality: Quality::AtMostOnce,
            no_local: true,
            retain_as_published: false,
            identifier: 3,
        }));
        readers.add(member);
        assert!(readers.any_room() && readers.list[0].presettled);
        let own = Message {
            publisher: ConnectionId(1),
            ..Message::default()
        };
        assert!(readers.list[0].is_own(&own));
        assert!(!readers.list[0].is_own(&Message::default()));
    }
}
