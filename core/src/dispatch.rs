//! Readers of a stream: who may be handed the next message.
//!
//! Two windows bound what a reader is handed: *credit* (unsettled deliveries, the reader's own wish) and
//! *travel* (deliveries on their way to its connection, so that a reader that does not read is bounded
//! whatever its credit). Among readers with room, higher priority first, then round robin.
//!
//! Owns: the list of readers of one stream and the choice among them.
//! Never: messages or offsets (`stream.rs`), rules (it is told who may receive).
//! Next: `shard.rs`, which asks and delivers.

use crate::authority::Principal;
use crate::gateway::FilterSpec;
use crate::message::{Message, Quality};
use crate::port::ConsumerKey;
use std::sync::Arc;

/// Travel units a reader may have on the way; see [`travel_units`].
pub const TRAVEL_UNITS_MAX: u32 = 2048;
/// Bytes that one travel unit stands for, beside one for each message.
const TRAVEL_UNIT_BYTES: usize = 4096;

/// What a message of this cost takes of the travel window.
pub fn travel_units(cost_bytes: usize) -> u32 {
    1 + (cost_bytes / TRAVEL_UNIT_BYTES) as u32
}

/// A reader of a stream.
#[derive(Clone, Debug)]
pub struct Reader {
    /// Names it in the stream's slots; never reused in one stream.
    pub number: u32,
    /// Who it is.
    pub key: ConsumerKey,
    /// For the right to receive.
    pub principal: Arc<Principal>,
    /// The vhost by name, for the rules.
    pub vhost: Arc<str>,
    /// Settled by being handed out.
    pub presettled: bool,
    /// No one beside it.
    pub exclusive: bool,
    /// Not what its own connection published.
    pub no_local: bool,
    /// Higher is served first.
    pub priority: i32,
    /// Limit of unsettled deliveries.
    pub credit: u32,
    /// Unsettled deliveries.
    pub held: u32,
    /// Travel units on the way.
    pub travelling: u32,
    /// Gets deliveries; else it only holds some.
    pub attached: bool,
    /// May receive every address, so that no message need be asked about.
    pub receives_all: bool,
    /// A session's membership in a group: what its filter grants and asks. Absent for a queue's consumers.
    pub member: Option<Box<FilterSpec>>,
}

impl Reader {
    /// Whether it can be handed a delivery that must be settled.
    pub fn has_room(&self) -> bool {
        self.can_travel() && (self.presettled || self.held < self.credit)
    }

    /// Whether it published this message itself and does not want it back.
    pub fn is_own(&self, message: &Message) -> bool {
        let asked = self.no_local || self.member.as_ref().is_some_and(|member| member.no_local);
        asked && message.publisher == self.key.connection
    }

    /// Whether it can be handed a delivery that is settled by being handed out.
    pub fn can_travel(&self) -> bool {
        self.attached && self.travelling < TRAVEL_UNITS_MAX
    }
}

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

/// All readers of a stream.
#[derive(Clone, Debug, Default)]
pub struct Readers {
    list: Vec<Reader>,
    turn: usize,
    last_number: u32,
}

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
        self.list.push(reader);
        self.last_number
    }

    /// The reader with this key.
    pub fn find(&mut self, key: ConsumerKey) -> Option<&mut Reader> {
        self.list.iter_mut().find(|reader| reader.key == key)
    }

    /// The reader at a place in the list.
    pub fn at(&mut self, place: usize) -> Option<&mut Reader> {
        self.list.get_mut(place)
    }

    /// Removes the reader with this key.
    pub fn remove(&mut self, key: ConsumerKey) -> Option<Reader> {
        let place = self.list.iter().position(|reader| reader.key == key)?;
        Some(self.list.remove(place))
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Reader> {
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

    /// Whether any has room for a delivery that must be settled.
    pub fn any_room(&self) -> bool {
        self.list.iter().any(Reader::has_room)
    }

    /// How many deliveries all of them together can be handed now, at most.
    pub fn room(&self) -> u64 {
        let open = self.list.iter().filter(|reader| reader.attached);
        open.map(|reader| {
            let travel = TRAVEL_UNITS_MAX.saturating_sub(reader.travelling);
            let credit = match reader.presettled {
                true => u32::MAX,
                false => reader.credit.saturating_sub(reader.held),
            };
            u64::from(travel.min(credit))
        })
        .sum()
    }

    /// Chooses among those that `may` receive the message.
    pub fn choose(&mut self, mut may: impl FnMut(&Reader) -> bool) -> Choice {
        let count = self.list.len();
        let mut best: Option<usize> = None;
        let mut someone = false;
        for step in 0..count {
            let place = (self.turn + step) % count;
            let reader = &self.list[place];
            if !reader.attached {
                continue;
            }
            let room = reader.has_room();
            if room && best.is_some_and(|best| self.list[best].priority >= reader.priority) {
                continue;
            }
            // Whether somebody without room may receive it matters only while nobody was found.
            if (room || !someone) && may(reader) {
                someone = true;
                if room {
                    best = Some(place);
                }
            }
        }
        match best {
            Some(place) => {
                self.turn = (place + 1) % count;
                Choice::Reader(place)
            }
            None if someone => Choice::NoRoom,
            None => Choice::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ConnectionId, ConsumerTag};

    fn readers(list: &[(i32, u32)]) -> Readers {
        let mut readers = Readers::default();
        for (place, (priority, credit)) in list.iter().enumerate() {
            readers.add(Reader {
                number: 0,
                key: ConsumerKey {
                    connection: ConnectionId(1),
                    tag: ConsumerTag(place as u32),
                },
                principal: Arc::default(),
                vhost: Arc::from("/"),
                presettled: false,
                exclusive: false,
                no_local: false,
                priority: *priority,
                credit: *credit,
                held: 0,
                travelling: 0,
                attached: true,
                receives_all: true,
                member: None,
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
