//! QoS 1 deliveries that wait for the client's PUBACK, and their packet identifiers.
//!
//! A packet identifier is derived from the delivery's offset, which names the message in the
//! session's stream for as long as it is unsettled. So after a reconnect, or a restart of the
//! node, a delivery that comes again has its old identifier [MQTT-4.4.0-1] and nothing about it
//! need be stored.

use anabranch_core::gateway::{Command, Outcome};
use anabranch_core::id::{ConsumerTag, Offset};
use rustc_hash::FxHashMap;

/// How many packet identifiers there are; 0 is none [MQTT-2.2.1-3].
const IDS: u64 = 65_535;

/// Unsettled deliveries by packet identifier, and settlements not yet handed on.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    unsettled: FxHashMap<u16, Offset>,
    run: Option<Run>,
}

/// Settlements in one dense run of offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: Offset,
    last: Offset,
    outcome: Outcome,
}

impl Outbound {
    /// How many wait for a PUBACK.
    pub(crate) fn len(&self) -> usize {
        self.unsettled.len()
    }

    /// The packet identifier of a delivery; `None` when all are in use, which the session's
    /// credit rules out.
    #[inline]
    pub(crate) fn assign(&mut self, offset: Offset) -> Option<u16> {
        // Another delivery can hold the identifier only if it lies 65,535 offsets back, since the
        // stream also counts what needs no identifier. The next free one is taken then.
        let mut id = (offset.0 % IDS) as u16 + 1;
        for _ in 0..IDS {
            match self.unsettled.entry(id) {
                std::collections::hash_map::Entry::Vacant(place) => {
                    place.insert(offset);
                    return Some(id);
                }
                std::collections::hash_map::Entry::Occupied(place) if *place.get() == offset => {
                    return Some(id);
                }
                std::collections::hash_map::Entry::Occupied(_) => {
                    id = if u64::from(id) == IDS { 1 } else { id + 1 };
                }
            }
        }
        None
    }

    /// Takes the delivery that a PUBACK names; `None` for an identifier that is not in use.
    #[inline]
    pub(crate) fn take(&mut self, packet_id: u16) -> Option<Offset> {
        self.unsettled.remove(&packet_id)
    }

    /// Notes a settlement. Runs of neighbours become one command, which is put into `commands`
    /// when the run ends.
    #[inline]
    pub(crate) fn settle(
        &mut self,
        offset: Offset,
        outcome: Outcome,
        consumer: ConsumerTag,
        commands: &mut Vec<Command>,
    ) {
        if let Some(run) = &mut self.run
            && run.outcome == outcome
            && run.last.next() == offset
        {
            run.last = offset;
            return;
        }
        self.flush(consumer, commands);
        self.run = Some(Run {
            first: offset,
            last: offset,
            outcome,
        });
    }

    /// Hands on what [`Outbound::settle`] has gathered.
    #[inline]
    pub(crate) fn flush(&mut self, consumer: ConsumerTag, commands: &mut Vec<Command>) {
        if let Some(Run {
            first,
            last,
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

    const TAG: ConsumerTag = ConsumerTag(0);

    #[test]
    fn an_identifier_is_that_of_its_offset_on_every_connection_mqtt_4_4_0_1() {
        let mut before = Outbound::default();
        let first = before.assign(Offset(70_000)).expect("free");
        let second = before.assign(Offset(70_001)).expect("free");
        let mut after = Outbound::default();
        assert_eq!(after.assign(Offset(70_000)), Some(first));
        assert_eq!(after.assign(Offset(70_001)), Some(second));
        assert_eq!(after.take(first), Some(Offset(70_000)));
        assert_eq!(after.take(first), None);
    }

    #[test]
    fn an_identifier_in_use_is_stepped_over() {
        let mut outbound = Outbound::default();
        assert_eq!(outbound.assign(Offset(65_534)), Some(65_535));
        assert_eq!(outbound.assign(Offset(65_534 + IDS)), Some(1));
        assert_eq!(outbound.assign(Offset(IDS)), Some(2));
        assert_eq!(outbound.len(), 3);
    }

    #[test]
    fn neighbours_are_settled_by_one_command() {
        let mut outbound = Outbound::default();
        let mut commands = Vec::new();
        for offset in [3, 4, 5, 9, 10] {
            outbound.settle(Offset(offset), Outcome::Accepted, TAG, &mut commands);
        }
        outbound.settle(Offset(11), Outcome::Rejected, TAG, &mut commands);
        outbound.flush(TAG, &mut commands);
        outbound.flush(TAG, &mut commands);
        let runs: Vec<(u64, u64, Outcome)> = commands
            .iter()
            .filter_map(|command| match command {
                Command::Settle {
                    first,
                    last,
                    outcome,
                    ..
                } => Some((first.0, last.0, *outcome)),
                _ => None,
            })
            .collect();
        assert_eq!(
            runs,
            [
                (3, 5, Outcome::Accepted),
                (9, 10, Outcome::Accepted),
                (11, 11, Outcome::Rejected)
            ]
        );
    }
}
