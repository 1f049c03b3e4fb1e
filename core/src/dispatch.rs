//! Readers of a stream: who may be handed the next message.
//!
//! Two windows bound what a reader is handed: *credit* (unsettled deliveries, the reader's own wish) and
//! *travel* (deliveries on their way to its connection, so that a reader that does not read is bounded
//! whatever its credit). Among readers with room, higher priority first, then round robin; in the ordered modes
//! (exclusive, failover) one at a time.
//!
//! Owns: what a stream keeps of its readers, which is next to nothing while it has none.
//! Never: messages or offsets (`stream.rs`), rules (it is told who may receive), keys (`stream/keyed.rs`).
//! Next: `dispatch/crowd.rs` (several), `dispatch/reader.rs`, `dispatch/ordered.rs` (one at a time), `dispatch/cursor.rs`
//! (each by itself); `shard/deliver.rs`, which asks and delivers.

mod crowd;
mod cursor;
mod ordered;
mod reader;
mod unsettled;

pub use crowd::Crowd;
pub use cursor::Cursor;
pub use reader::{Reader, TRAVEL_UNITS_MAX, travel_units};
pub use unsettled::Unsettled;

use crate::port::ConsumerKey;
use std::ops::Deref;

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

/// All readers of a stream, in the order of their numbers. To look at they are a [`Crowd`].
#[derive(Clone, Debug, Default)]
pub struct Readers {
    /// Absent while there are none: of millions of streams nearly all have none.
    crowd: Option<Box<Crowd>>,
    last_number: u32,
}

impl Deref for Readers {
    type Target = Crowd;

    fn deref(&self) -> &Crowd {
        self.crowd.as_deref().unwrap_or(&crowd::NOBODY)
    }
}

impl Readers {
    /// Adds one, numbering it; returns its number.
    pub fn add(&mut self, mut reader: Reader) -> u32 {
        self.last_number += 1;
        reader.number = self.last_number;
        let crowd = self.crowd.get_or_insert_with(|| Box::new(Crowd::new()));
        crowd.add(reader);
        self.last_number
    }

    /// The reader with this key.
    pub fn find(&mut self, key: ConsumerKey) -> Option<&mut Reader> {
        self.crowd.as_mut()?.find(key)
    }

    /// The reader at a place in the list.
    pub fn at(&mut self, place: usize) -> Option<&mut Reader> {
        self.crowd.as_mut()?.at(place)
    }

    /// Removes the reader with this key.
    pub fn remove(&mut self, key: ConsumerKey) -> Option<Reader> {
        let crowd = self.crowd.as_mut()?;
        let removed = crowd.remove(key);
        if crowd.list.is_empty() {
            self.crowd = None;
        }
        removed
    }

    /// One delivery was taken from the reader of this number. It goes when it was there for its deliveries only.
    pub fn lighten(&mut self, number: u32) {
        let place = self.numbered(number);
        let Some(reader) = place.and_then(|place| self.at(place)) else {
            return;
        };
        reader.held = reader.held.saturating_sub(1);
        let (spent, key) = (!reader.attached && reader.held == 0, reader.key);
        if spent {
            self.remove(key);
        }
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Reader> {
        self.crowd.iter_mut().flat_map(|crowd| crowd.iter_mut())
    }

    /// Whether any has room for a delivery that must be settled.
    pub fn any_room(&mut self) -> bool {
        self.next_with_room(0).is_some()
    }

    /// The first from a place on that has room for a delivery that must be settled.
    pub fn next_with_room(&mut self, from: usize) -> Option<usize> {
        self.crowd.as_mut()?.next_with_room(from)
    }

    /// Chooses among those that `may` receive the message.
    pub fn choose(&mut self, may: impl FnMut(&Reader) -> bool) -> Choice {
        match &mut self.crowd {
            Some(crowd) => crowd.choose(may),
            None => Choice::Nobody,
        }
    }

    /// See [`Crowd`]: the one reader of an ordered stream that is handed something now, and whether it is another than
    /// before.
    pub fn elect(&mut self) -> Option<(usize, bool)> {
        self.crowd.as_mut()?.elect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::FilterSpec;
    use crate::id::{ConnectionId, ConsumerTag};
    use crate::message::Message;
    use crate::message::Quality;
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
        let mut member = readers.remove(readers.get(0).unwrap().key).unwrap();
        assert!(!member.has_room());
        member.member = Some(Box::new(FilterSpec {
            filter: "a".parse().unwrap(),
            quality: Quality::AtMostOnce,
            no_local: true,
            retain_as_published: false,
            identifier: 3,
        }));
        readers.add(member);
        assert!(readers.any_room() && readers.get(0).unwrap().presettled);
        let own = Message {
            publisher: ConnectionId(1),
            ..Message::default()
        };
        assert!(readers.get(0).unwrap().is_own(&own));
        assert!(!readers.get(0).unwrap().is_own(&Message::default()));
    }
}
