//! The rows: what each one does, in which direction, with which window.
//!
//! Owns the table and nothing else. Next: `flow.rs` and `idle.rs`, which run a row.

use crate::mqtt::codec::Version;

/// How large a part of a peer's processor time per message is aimed at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aim {
    /// Name of the peer.
    pub peer: &'static str,
    /// At most this part of its processor time.
    pub at_most: f64,
}

const HALF_OF_MOSQUITTO: Option<Aim> = Some(Aim {
    peer: "mosquitto",
    at_most: 0.5,
});
const FIFTH_OF_RABBITMQ: Option<Aim> = Some(Aim {
    peer: "rabbitmq",
    at_most: 0.2,
});

/// One side of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// MQTT at this edition and QoS (0 or 1).
    Mqtt(Version, u8),
    /// AMQP: `durable` means persistent messages with confirms on the publishing side, and a
    /// durable queue with manual acknowledgement and a prefetch on the consuming side.
    Amqp { durable: bool },
}

impl Side {
    /// Whether the broker answers for each message (PUBACK or a confirm).
    pub fn is_confirmed(self) -> bool {
        matches!(self, Side::Mqtt(_, 1..) | Side::Amqp { durable: true })
    }
}

/// Who hears whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// So many publishers, each with a receiver of its own.
    Pairs(usize),
    /// One publisher, so many receivers.
    FanOut(usize),
    /// So many publishers, one receiver.
    FanIn(usize),
}

/// A row that sends messages.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Who hears whom.
    pub shape: Shape,
    /// How messages are published.
    pub publish: Side,
    /// How they are consumed.
    pub consume: Side,
    /// Messages in flight per publisher: sent, and not yet both confirmed and received.
    pub window: u64,
}

/// A protocol of idle connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Connected and nothing more.
    Mqtt,
    /// Opened, without a channel.
    Amqp,
}

/// What a row does.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Sends messages.
    Flow(Flow),
    /// Holds connections.
    Idle(Protocol),
}

/// One row of the report.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What it does, for people.
    pub meaning: &'static str,
    /// What it does.
    pub kind: Kind,
    /// What is aimed at.
    pub aim: Option<Aim>,
}

impl Row {
    /// Whether it holds connections and sends nothing.
    pub fn is_idle(&self) -> bool {
        matches!(self.kind, Kind::Idle(_))
    }

    /// Whether a broker needs MQTT for this row.
    pub fn needs_mqtt(&self) -> bool {
        match self.kind {
            Kind::Flow(flow) => {
                matches!(flow.publish, Side::Mqtt(..)) || matches!(flow.consume, Side::Mqtt(..))
            }
            Kind::Idle(protocol) => protocol == Protocol::Mqtt,
        }
    }

    /// Whether a broker needs MQTT 5 for this row.
    pub fn needs_mqtt5(&self) -> bool {
        matches!(
            self.kind,
            Kind::Flow(Flow {
                publish: Side::Mqtt(Version::V5, _),
                ..
            })
        )
    }

    /// Whether a broker needs AMQP for this row.
    pub fn needs_amqp(&self) -> bool {
        match self.kind {
            Kind::Flow(flow) => {
                matches!(flow.publish, Side::Amqp { .. })
                    || matches!(flow.consume, Side::Amqp { .. })
            }
            Kind::Idle(protocol) => protocol == Protocol::Amqp,
        }
    }
}

const Q0: Side = Side::Mqtt(Version::V311, 0);
const Q1: Side = Side::Mqtt(Version::V311, 1);
const Q1_V5: Side = Side::Mqtt(Version::V5, 1);
const TRANSIENT: Side = Side::Amqp { durable: false };
const DURABLE: Side = Side::Amqp { durable: true };

const fn flow(shape: Shape, publish: Side, consume: Side, window: u64) -> Kind {
    Kind::Flow(Flow {
        shape,
        publish,
        consume,
        window,
    })
}

/// Every row, in the order in which they run: memory first, while a broker is fresh.
pub const ROWS: &[Row] = &[
    Row {
        name: "m-idle",
        meaning: "2,000 idle MQTT connections",
        kind: Kind::Idle(Protocol::Mqtt),
        aim: None,
    },
    Row {
        name: "a-idle",
        meaning: "2,000 idle AMQP connections without a channel",
        kind: Kind::Idle(Protocol::Amqp),
        aim: None,
    },
    Row {
        name: "m-p2p-q0",
        meaning: "10 pairs, QoS 0, window 50",
        kind: flow(Shape::Pairs(10), Q0, Q0, 50),
        aim: HALF_OF_MOSQUITTO,
    },
    Row {
        name: "m-p2p-q1",
        meaning: "10 pairs, QoS 1, window 50",
        kind: flow(Shape::Pairs(10), Q1, Q1, 50),
        aim: HALF_OF_MOSQUITTO,
    },
    Row {
        name: "m-p2p-q1-v5",
        meaning: "10 pairs, MQTT 5, QoS 1, window 50 or the broker's receive maximum",
        kind: flow(Shape::Pairs(10), Q1_V5, Q1_V5, 50),
        aim: HALF_OF_MOSQUITTO,
    },
    Row {
        name: "m-fanout",
        meaning: "1 publisher to 50 subscribers, QoS 0, window 50, per delivery",
        kind: flow(Shape::FanOut(50), Q0, Q0, 50),
        aim: HALF_OF_MOSQUITTO,
    },
    Row {
        name: "m-fanin-q0",
        meaning: "10 publishers to 1 subscriber, QoS 0, window 50",
        kind: flow(Shape::FanIn(10), Q0, Q0, 50),
        aim: HALF_OF_MOSQUITTO,
    },
    Row {
        name: "m-ping-q0",
        meaning: "one QoS 0 message in flight",
        kind: flow(Shape::Pairs(1), Q0, Q0, 1),
        aim: None,
    },
    Row {
        name: "m-ping-q1",
        meaning: "one QoS 1 message in flight",
        kind: flow(Shape::Pairs(1), Q1, Q1, 1),
        aim: None,
    },
    Row {
        name: "a-tput",
        meaning: "4 publishers, 4 queues, transient, auto-ack, window 200",
        kind: flow(Shape::Pairs(4), TRANSIENT, TRANSIENT, 200),
        aim: FIFTH_OF_RABBITMQ,
    },
    Row {
        name: "a-durable",
        meaning: "4 publishers, 4 durable queues, persistent, confirms, manual ack, window 200",
        kind: flow(Shape::Pairs(4), DURABLE, DURABLE, 200),
        aim: FIFTH_OF_RABBITMQ,
    },
    Row {
        name: "a-ping",
        meaning: "one transient AMQP message in flight",
        kind: flow(Shape::Pairs(1), TRANSIENT, TRANSIENT, 1),
        aim: None,
    },
    Row {
        name: "x-m2a-q0",
        meaning: "MQTT QoS 0 to a transient queue bound to amq.topic, 4 pairs, window 200",
        kind: flow(Shape::Pairs(4), Q0, TRANSIENT, 200),
        aim: FIFTH_OF_RABBITMQ,
    },
    Row {
        name: "x-m2a-q1",
        meaning: "MQTT QoS 1 to a durable queue bound to amq.topic, 4 pairs, window 200",
        kind: flow(Shape::Pairs(4), Q1, DURABLE, 200),
        aim: FIFTH_OF_RABBITMQ,
    },
    Row {
        name: "x-a2m-q0",
        meaning: "AMQP transient to amq.topic to a QoS 0 subscriber, 4 pairs, window 200",
        kind: flow(Shape::Pairs(4), TRANSIENT, Q0, 200),
        aim: FIFTH_OF_RABBITMQ,
    },
    Row {
        name: "x-a2m-q1",
        meaning: "AMQP persistent with confirms to amq.topic to a QoS 1 subscriber, 4 pairs, window 200",
        kind: flow(Shape::Pairs(4), DURABLE, Q1, 200),
        aim: FIFTH_OF_RABBITMQ,
    },
];

/// Finds rows by name, in the table's order; an empty list means all.
///
/// # Errors
/// The first name that is no row.
pub fn select(names: &[String]) -> Result<Vec<&'static Row>, String> {
    if let Some(unknown) = names
        .iter()
        .find(|name| ROWS.iter().all(|row| row.name != **name))
    {
        return Err(unknown.clone());
    }
    let wanted = |row: &&Row| names.is_empty() || names.iter().any(|name| name == row.name);
    Ok(ROWS.iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_what_a_row_needs() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(
                ROWS[..index].iter().all(|other| other.name != row.name),
                "{}",
                row.name
            );
            let (mqtt, amqp) = match &row.name[..2] {
                "m-" => (true, false),
                "a-" => (false, true),
                "x-" => (true, true),
                other => panic!("{other} is no prefix"),
            };
            assert_eq!(
                (row.needs_mqtt(), row.needs_amqp()),
                (mqtt, amqp),
                "{}",
                row.name
            );
            assert_eq!(row.needs_mqtt5(), row.name.ends_with("-v5"));
        }
    }

    #[test]
    fn rows_are_selected_in_the_tables_order() {
        let names = |rows: Vec<&Row>| rows.iter().map(|row| row.name).collect::<Vec<_>>();
        let asked = ["a-tput".to_owned(), "m-p2p-q0".to_owned()];
        assert_eq!(names(select(&asked).unwrap()), ["m-p2p-q0", "a-tput"]);
        assert_eq!(select(&[]).unwrap().len(), ROWS.len());
        assert_eq!(select(&["m-nothing".to_owned()]).unwrap_err(), "m-nothing");
    }
}
