//! Deliveries above QoS 0 that wait for the client, and their packet identifiers.
//!
//! The identifier of a delivery of the session is derived from its offset, which names the message in
//! the session's stream for as long as it is unsettled. So after a reconnect, or a restart of the
//! node, a delivery that comes again has its old identifier [MQTT-4.4.0-1] and nothing about it need
//! be stored. Deliveries of groups come from other streams and may go to another member; they have
//! the upper half of the identifiers.

use std::collections::hash_map::Entry;

use anabranch_core::gateway::{Command, Outcome};
use anabranch_core::id::{ConsumerTag, Offset};
use rustc_hash::FxHashMap;

use crate::connection::SESSION;

/// Identifiers of the session's own deliveries, from 1; 0 is none [MQTT-2.2.1-3].
pub(crate) const SESSION_IDS: u16 = 32_767;
/// The first identifier of deliveries of groups; the last one is 65,535.
const GROUP_IDS_FROM: u16 = SESSION_IDS + 1;

/// What the client owes for a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// PUBACK.
    Ack,
    /// PUBREC.
    Rec,
    /// Nothing: PUBREC came, and the broker writes that down before PUBREL leaves.
    Noted,
    /// PUBCOMP.
    Comp,
}

/// An unsettled delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsettled {
    pub(crate) offset: Offset,
    pub(crate) consumer: ConsumerTag,
    pub(crate) step: Step,
}

/// Unsettled deliveries by packet identifier, and settlements not yet handed on.
#[derive(Debug)]
pub(crate) struct Outbound {
    unsettled: FxHashMap<u16, Unsettled>,
    run: Option<Run>,
    next_group_id: u16,
}

/// Settlements in one dense run of offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: Offset,
    last: Offset,
    consumer: ConsumerTag,
    outcome: Outcome,
}

impl Outbound {
    pub(crate) fn new() -> Outbound {
        Outbound {
            unsettled: FxHashMap::default(),
            run: None,
            next_group_id: GROUP_IDS_FROM,
        }
    }

    /// How many the client has not finished.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.unsettled.len()
    }

    /// The packet identifier of a delivery; `None` when all are in use, which the session's credit
    /// rules out.
    #[inline]
    pub(crate) fn assign(&mut self, delivery: Unsettled) -> Option<u16> {
        let own = delivery.consumer == SESSION;
        let (mut id, from, to) = if own {
            let id = (delivery.offset.0 % u64::from(SESSION_IDS)) as u16 + 1;
            (id, 1, SESSION_IDS)
        } else {
            (self.next_group_id, GROUP_IDS_FROM, u16::MAX)
        };
        // Another delivery of the session can hold the identifier only if it lies 32,767 offsets
        // back, since the stream also counts what needs no identifier. The next free one is taken
        // then.
        for _ in from..=to {
            let free = match self.unsettled.entry(id) {
                Entry::Vacant(place) => {
                    place.insert(delivery);
                    true
                }
                Entry::Occupied(place) => own && place.get().offset == delivery.offset,
            };
            let next = if id == to { from } else { id + 1 };
            if free {
                if !own {
                    self.next_group_id = next;
                }
                return Some(id);
            }
            id = next;
        }
        None
    }

    /// What is owed for an identifier; `None` when it is not in use.
    #[inline]
    pub(crate) fn step(&self, packet_id: u16) -> Option<Step> {
        self.unsettled.get(&packet_id).map(|one| one.step)
    }

    /// Notes what is owed next, and gives the delivery.
    #[inline]
    pub(crate) fn advance(&mut self, packet_id: u16, step: Step) -> Option<Unsettled> {
        let one = self.unsettled.get_mut(&packet_id)?;
        one.step = step;
        Some(*one)
    }

    /// Ends the use of an identifier.
    #[inline]
    pub(crate) fn take(&mut self, packet_id: u16) -> Option<Unsettled> {
        self.unsettled.remove(&packet_id)
    }

    /// Notes a settlement. Runs of neighbours become one command, which is put into `commands`
    /// when the run ends.
    #[inline]
    pub(crate) fn settle(
        &mut self,
        consumer: ConsumerTag,
        offset: Offset,
        outcome: Outcome,
        commands: &mut Vec<Command>,
    ) {
        if let Some(run) = &mut self.run
            && run.outcome == outcome
            && run.last.next() == offset
            && run.consumer == consumer
        {
            run.last = offset;
            return;
        }
        self.flush(commands);
        self.run = Some(Run {
            first: offset,
            last: offset,
            consumer,
            outcome,
        });
    }

    /// Hands on what [`Outbound::settle`] has gathered.
    #[inline]
    pub(crate) fn flush(&mut self, commands: &mut Vec<Command>) {
        if let Some(Run {
            first,
            last,
            consumer,
            outcome,
        }) = self.run.take()
        {
            commands.push(Command::Settle {
                consumer,
                first,
                last,
                outcome,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: ConsumerTag = ConsumerTag(7);

    fn delivery(consumer: ConsumerTag, offset: u64) -> Unsettled {
        Unsettled {
            offset: Offset(offset),
            consumer,
            step: Step::Ack,
        }
    }

    fn own(outbound: &mut Outbound, offset: u64) -> Option<u16> {
        outbound.assign(delivery(SESSION, offset))
    }

    #[test]
    fn an_identifier_is_that_of_its_offset_on_every_connection_mqtt_4_4_0_1() {
        let mut before = Outbound::new();
        let first = own(&mut before, 70_000).expect("free");
        let second = own(&mut before, 70_001).expect("free");
        let mut after = Outbound::new();
        assert_eq!(own(&mut after, 70_000), Some(first));
        assert_eq!(own(&mut after, 70_001), Some(second));
        let taken = after.take(first).map(|one| one.offset);
        assert_eq!(taken, Some(Offset(70_000)));
        assert_eq!(after.take(first), None);
    }

    #[test]
    fn an_identifier_in_use_is_stepped_over() {
        let ids = u64::from(SESSION_IDS);
        let mut outbound = Outbound::new();
        assert_eq!(own(&mut outbound, ids - 1), Some(SESSION_IDS));
        assert_eq!(own(&mut outbound, ids - 1 + ids), Some(1));
        assert_eq!(own(&mut outbound, ids), Some(2));
        assert_eq!(outbound.len(), 3);
    }

    #[test]
    fn groups_have_the_upper_half_of_the_identifiers_and_go_round_in_it() {
        let mut outbound = Outbound::new();
        let kept = outbound.assign(delivery(GROUP, 5)).expect("free");
        assert_eq!(kept, 32_768);
        for offset in 6..=u64::from(SESSION_IDS) + 5 {
            let id = outbound.assign(delivery(GROUP, offset)).expect("free");
            assert!(id > kept, "{id}");
            outbound.take(id);
        }
        assert_eq!(outbound.assign(delivery(GROUP, 5)), Some(32_769));
        assert_eq!(own(&mut outbound, 5), Some(6));
    }

    #[test]
    fn neighbours_are_settled_by_one_command() {
        let mut outbound = Outbound::new();
        let mut commands = Vec::new();
        for offset in [3, 4, 5, 9, 10] {
            outbound.settle(SESSION, Offset(offset), Outcome::Accepted, &mut commands);
        }
        outbound.settle(SESSION, Offset(11), Outcome::Rejected, &mut commands);
        outbound.settle(GROUP, Offset(12), Outcome::Rejected, &mut commands);
        outbound.flush(&mut commands);
        outbound.flush(&mut commands);
        let runs: Vec<(u64, u64, ConsumerTag, Outcome)> = commands
            .iter()
            .filter_map(|command| match command {
                Command::Settle {
                    consumer,
                    first,
                    last,
                    outcome,
                } => Some((first.0, last.0, *consumer, *outcome)),
                _ => None,
            })
            .collect();
        assert_eq!(
            runs,
            [
                (3, 5, SESSION, Outcome::Accepted),
                (9, 10, SESSION, Outcome::Accepted),
                (11, 11, SESSION, Outcome::Rejected),
                (12, 12, GROUP, Outcome::Rejected)
            ]
        );
    }
}
