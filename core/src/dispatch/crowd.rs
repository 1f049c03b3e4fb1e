//! The readers of one stream while it has some, and the choice among several.
//!
//! Owns: the list, who may have room, turns.
//! Never: messages or offsets (`stream.rs`), rules (it is told who may receive), keys (`stream/keyed.rs`).
//! Next: `reader.rs`, `ordered.rs` (one at a time).

use super::{Choice, Reader};
use crate::message::Quality;
use crate::port::ConsumerKey;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::cmp::Ordering;

/// All readers of a stream, in the order of their numbers.
#[derive(Clone, Debug)]
pub struct Crowd {
    pub(super) list: Vec<Reader>,
    /// Places that may have room, as bits: whoever can change a reader sets its bit, the choice clears it when
    /// there is none. So with many readers the choice looks at those that may be chosen only.
    open: Vec<u64>,
    /// Numbers by key, once the list is too long to be looked through.
    index: FxHashMap<ConsumerKey, u32>,
    /// Whether priorities differ.
    ranked: bool,
    turn: usize,
    /// The number of the reader that [`Crowd::elect`] named last.
    pub(super) lead: u32,
}

/// That of a stream that has none.
pub(super) static NOBODY: Crowd = Crowd::new();

/// Readers beyond which they are found by an index.
const INDEXED: usize = 8;

impl Crowd {
    pub(super) const fn new() -> Crowd {
        Crowd {
            list: Vec::new(),
            open: Vec::new(),
            index: FxHashMap::with_hasher(FxBuildHasher),
            ranked: false,
            turn: 0,
            lead: 0,
        }
    }

    /// Adds one, whose number is higher than all others'.
    pub(super) fn add(&mut self, mut reader: Reader) {
        // A member that is granted no settlement never holds anything.
        reader.presettled |= reader
            .member
            .as_ref()
            .is_some_and(|member| member.quality == Quality::AtMostOnce);
        let (place, key, number) = (self.list.len(), reader.key, reader.number);
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
            Ordering::Greater => drop(self.index.insert(key, number)),
        }
    }

    pub(crate) fn place_of(&self, key: ConsumerKey) -> Option<usize> {
        match self.list.len() > INDEXED {
            true => self.numbered(*self.index.get(&key)?),
            false => self.list.iter().position(|reader| reader.key == key),
        }
    }

    /// The reader with this key.
    pub(super) fn find(&mut self, key: ConsumerKey) -> Option<&mut Reader> {
        self.at(self.place_of(key)?)
    }

    /// The reader at a place in the list.
    pub(super) fn at(&mut self, place: usize) -> Option<&mut Reader> {
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
    pub(super) fn remove(&mut self, key: ConsumerKey) -> Option<Reader> {
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

    /// How many deliveries can be handed out now: to all of them, or to the one that an ordered stream serves.
    pub fn room(&self, only_lead: bool) -> u64 {
        let open = self
            .list
            .iter()
            .filter(|reader| !only_lead || reader.number == self.lead);
        open.map(Reader::room).sum()
    }

    /// All of them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Reader> {
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

    /// The first from a place on that has room for a delivery that must be settled.
    pub(super) fn next_with_room(&mut self, mut from: usize) -> Option<usize> {
        if let [reader] = &self.list[..] {
            return (from == 0 && reader.has_room()).then_some(0);
        }
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
        if let [reader] = &self.list[..] {
            return reader.room() > count;
        }
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
    pub(super) fn choose(&mut self, mut may: impl FnMut(&Reader) -> bool) -> Choice {
        if let [reader] = &self.list[..] {
            return match reader.serves() && may(reader) {
                true if reader.has_room() => Choice::Reader(0),
                true => Choice::NoRoom,
                false => Choice::Nobody,
            };
        }
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
                self.turn = place + 1;
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
