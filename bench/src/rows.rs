//! The table of rows: load, names and aims.
//!
//! Owns the table and nothing else. Next: `row.rs` for what its words mean.

use crate::mqtt::codec::Version;
use crate::row::{Aim, Flow, Idle, Kind, Queue, Row, Shape, Side, Stage, Staged, Stock};
use crate::sample::Figure;

const Q0: Side = Side::Mqtt(Version::V311, 0);
const Q1: Side = Side::Mqtt(Version::V311, 1);
const Q2: Side = Side::Mqtt(Version::V311, 2);
const Q1_V5: Side = Side::Mqtt(Version::V5, 1);
const TRANSIENT: Side = Side::Amqp(Queue::Transient);
const DURABLE: Side = Side::Amqp(Queue::Durable);
const QUORUM: Side = Side::Amqp(Queue::Quorum);

const OFFLINE: Staged = Staged {
    stock: Stock::Session,
    messages: 20_000,
    window: 50,
};
const RETAINED: Staged = Staged {
    stock: Stock::Retained,
    messages: 10_000,
    window: 50,
};
const BACKLOG: Staged = Staged {
    stock: Stock::Queue,
    messages: 100_000,
    window: 200,
};

const fn aim(figure: Figure, peer: &'static str, at_most: f64) -> Aim {
    Aim {
        figure,
        peer: Some(peer),
        at_most,
    }
}

const NO_AIM: &[Aim] = &[];
const IDLE_MQTT: &[Aim] = &[Aim {
    figure: Figure::KibPerConnection,
    peer: None,
    at_most: 4.0,
}];
const MQTT_PAIRS: &[Aim] = &[aim(Figure::CpuUsPerMessage, "mosquitto", 0.2)];
const MQTT_FAN_OUT: &[Aim] = &[aim(Figure::CpuUsPerMessage, "mosquitto", 0.25)];
const MQTT_FAN_IN: &[Aim] = &[aim(Figure::CpuUsPerMessage, "mosquitto", 0.5)];
const MQTT_STORED: &[Aim] = &[aim(Figure::CpuUsPerMessage, "mosquitto", 0.6)];
const MQTT_PING: &[Aim] = &[
    aim(Figure::DeliveryP50Us, "mosquitto", 1.0),
    aim(Figure::DeliveryP99Us, "mosquitto", 1.0),
];
const AMQP_TRANSIENT: &[Aim] = &[aim(Figure::CpuUsPerMessage, "rabbitmq", 0.15)];
const AMQP_FAN_OUT: &[Aim] = &[aim(Figure::CpuUsPerMessage, "rabbitmq", 0.12)];
const TENTH_OF_RABBITMQ: &[Aim] = &[aim(Figure::CpuUsPerMessage, "rabbitmq", 0.1)];
const AMQP_PING: &[Aim] = &[
    aim(Figure::DeliveryP50Us, "rabbitmq", 1.0),
    aim(Figure::DeliveryP99Us, "rabbitmq", 1.0),
];

/// Every row, in the order in which they run: memory first, while a broker is fresh.
pub const ROWS: &[Row] = &[
    Row {
        name: "m-idle",
        meaning: "2,000 idle MQTT connections",
        kind: Kind::Idle(Idle::Mqtt),
        aims: IDLE_MQTT,
    },
    Row {
        name: "a-idle",
        meaning: "2,000 idle AMQP connections without a channel",
        kind: Kind::Idle(Idle::Amqp),
        aims: NO_AIM,
    },
    Row {
        name: "a-channels",
        meaning: "10 AMQP connections with 200 idle channels each",
        kind: Kind::Idle(Idle::AmqpChannels),
        aims: NO_AIM,
    },
    Row {
        name: "m-p2p-q0",
        meaning: "10 pairs, QoS 0, window 50",
        kind: Kind::Flow(Flow::new(Shape::Pairs(10), Q0, Q0, 50)),
        aims: MQTT_PAIRS,
    },
    Row {
        name: "m-p2p-q1",
        meaning: "10 pairs, QoS 1, window 50",
        kind: Kind::Flow(Flow::new(Shape::Pairs(10), Q1, Q1, 50)),
        aims: MQTT_PAIRS,
    },
    Row {
        name: "m-p2p-q2",
        meaning: "10 pairs, QoS 2, window 50",
        kind: Kind::Flow(Flow::new(Shape::Pairs(10), Q2, Q2, 50)),
        aims: MQTT_PAIRS,
    },
    Row {
        name: "m-p2p-q0-16k",
        meaning: "10 pairs, QoS 0, 16 KiB, window 50",
        kind: Kind::Flow(Flow::new(Shape::Pairs(10), Q0, Q0, 50).of_16_kib()),
        aims: NO_AIM,
    },
    Row {
        name: "m-p2p-q1-v5",
        meaning: "10 pairs, MQTT 5, QoS 1, window 50 or the broker's receive maximum",
        kind: Kind::Flow(Flow::new(Shape::Pairs(10), Q1_V5, Q1_V5, 50)),
        aims: MQTT_PAIRS,
    },
    Row {
        name: "m-fanout",
        meaning: "1 publisher to 50 subscribers, QoS 0, window 50, per delivery",
        kind: Kind::Flow(Flow::new(Shape::FanOut(50), Q0, Q0, 50)),
        aims: MQTT_FAN_OUT,
    },
    Row {
        name: "m-fanin-q0",
        meaning: "10 publishers to 1 subscriber, QoS 0, window 50",
        kind: Kind::Flow(Flow::new(Shape::FanIn(10), Q0, Q0, 50)),
        aims: MQTT_FAN_IN,
    },
    Row {
        name: "m-shared-q1",
        meaning: "4 publishers to 4 members of one $share group, QoS 1, window 50",
        kind: Kind::Flow(Flow::new(Shape::Shared(4, 4), Q1, Q1, 50)),
        aims: NO_AIM,
    },
    Row {
        name: "m-offline.store",
        meaning: "20,000 QoS 1 messages to a session that is away, window 50",
        kind: Kind::Staged(OFFLINE, Stage::Store),
        aims: MQTT_STORED,
    },
    Row {
        name: "m-offline.drain",
        meaning: "that session comes back and takes them in order",
        kind: Kind::Staged(OFFLINE, Stage::Drain),
        aims: MQTT_STORED,
    },
    Row {
        name: "m-retained.store",
        meaning: "10,000 new topics with a retained QoS 1 message each, window 50",
        kind: Kind::Staged(RETAINED, Stage::Store),
        aims: MQTT_STORED,
    },
    Row {
        name: "m-retained.read",
        meaning: "their last values by one wildcard subscription",
        kind: Kind::Staged(RETAINED, Stage::Drain),
        aims: MQTT_STORED,
    },
    Row {
        name: "m-ping-q0",
        meaning: "one QoS 0 message in flight",
        kind: Kind::Flow(Flow::new(Shape::Pairs(1), Q0, Q0, 1)),
        aims: MQTT_PING,
    },
    Row {
        name: "m-ping-q1",
        meaning: "one QoS 1 message in flight",
        kind: Kind::Flow(Flow::new(Shape::Pairs(1), Q1, Q1, 1)),
        aims: MQTT_PING,
    },
    Row {
        name: "m-rate-5k",
        meaning: "1 pair, QoS 0, 5,000 a second whatever happens; latency from the intended time",
        kind: Kind::Flow(Flow::new(Shape::Pairs(1), Q0, Q0, 1).open_loop(5_000)),
        aims: NO_AIM,
    },
    Row {
        name: "a-tput",
        meaning: "4 publishers, 4 queues, transient, auto-ack, window 200",
        kind: Kind::Flow(Flow::new(Shape::Pairs(4), TRANSIENT, TRANSIENT, 200)),
        aims: AMQP_TRANSIENT,
    },
    Row {
        name: "a-tput-16k",
        meaning: "4 publishers, 4 queues, transient, 16 KiB, auto-ack, window 200",
        kind: Kind::Flow(Flow::new(Shape::Pairs(4), TRANSIENT, TRANSIENT, 200).of_16_kib()),
        aims: NO_AIM,
    },
    Row {
        name: "a-durable",
        meaning: "4 publishers, 4 durable queues, persistent, confirms, manual ack, window 200",
        kind: Kind::Flow(Flow::new(Shape::Pairs(4), DURABLE, DURABLE, 200)),
        aims: TENTH_OF_RABBITMQ,
    },
    Row {
        name: "a-durable-w1",
        meaning: "1 publisher, 1 durable queue, persistent, confirms, manual ack, one in flight",
        kind: Kind::Flow(Flow::new(Shape::Pairs(1), DURABLE, DURABLE, 1)),
        aims: NO_AIM,
    },
    Row {
        name: "a-quorum",
        meaning: "as a-durable with x-queue-type quorum",
        kind: Kind::Flow(Flow::new(Shape::Pairs(4), QUORUM, QUORUM, 200)),
        aims: NO_AIM,
    },
    Row {
        name: "a-quorum-w1",
        meaning: "as a-durable-w1 with x-queue-type quorum",
        kind: Kind::Flow(Flow::new(Shape::Pairs(1), QUORUM, QUORUM, 1)),
        aims: NO_AIM,
    },
    Row {
        name: "a-fanout",
        meaning: "1 publisher to 10 queues of amq.fanout, transient, auto-ack, window 200, per delivery",
        kind: Kind::Flow(Flow::new(Shape::FanOut(10), TRANSIENT, TRANSIENT, 200)),
        aims: AMQP_FAN_OUT,
    },
    Row {
        name: "a-topic-1k",
        meaning: "4 publishers, 4 queues, 1,000 wildcard bindings of amq.topic, transient, auto-ack, window 200",
        kind: Kind::Flow(Flow::new(Shape::Pairs(4), TRANSIENT, TRANSIENT, 200).through(1_000)),
        aims: TENTH_OF_RABBITMQ,
    },
    Row {
        name: "a-backlog.store",
        meaning: "100,000 persistent messages with confirms to one durable queue, window 200",
        kind: Kind::Staged(BACKLOG, Stage::Store),
        aims: TENTH_OF_RABBITMQ,
    },
    Row {
        name: "a-backlog.drain",
        meaning: "one consumer takes them in order, prefetch 200, manual ack",
        kind: Kind::Staged(BACKLOG, Stage::Drain),
        aims: TENTH_OF_RABBITMQ,
    },
    Row {
        name: "a-ping",
        meaning: "one transient AMQP message in flight",
        kind: Kind::Flow(Flow::new(Shape::Pairs(1), TRANSIENT, TRANSIENT, 1)),
        aims: AMQP_PING,
    },
    Row {
        name: "a-rate-5k",
        meaning: "1 pair, transient, 5,000 a second whatever happens; latency from the intended time",
        kind: Kind::Flow(Flow::new(Shape::Pairs(1), TRANSIENT, TRANSIENT, 1).open_loop(5_000)),
        aims: NO_AIM,
    },
    Row {
        name: "x-m2a-q0",
        meaning: "MQTT QoS 0 to a transient queue bound to amq.topic, 4 pairs, window 200",
        kind: Kind::Flow(Flow::new(Shape::Pairs(4), Q0, TRANSIENT, 200)),
        aims: TENTH_OF_RABBITMQ,
    },
    Row {
        name: "x-m2a-q1",
        meaning: "MQTT QoS 1 to a durable queue bound to amq.topic, 4 pairs, window 200",
        kind: Kind::Flow(Flow::new(Shape::Pairs(4), Q1, DURABLE, 200)),
        aims: TENTH_OF_RABBITMQ,
    },
    Row {
        name: "x-a2m-q0",
        meaning: "AMQP transient to amq.topic to a QoS 0 subscriber, 4 pairs, window 200",
        kind: Kind::Flow(Flow::new(Shape::Pairs(4), TRANSIENT, Q0, 200)),
        aims: TENTH_OF_RABBITMQ,
    },
    Row {
        name: "x-a2m-q1",
        meaning: "AMQP persistent with confirms to amq.topic to a QoS 1 subscriber, 4 pairs, window 200",
        kind: Kind::Flow(Flow::new(Shape::Pairs(4), DURABLE, Q1, 200)),
        aims: TENTH_OF_RABBITMQ,
    },
];

/// Finds rows by name, or all stages of one by the name before the dot, in the table's order; an
/// empty list means all.
///
/// # Errors
/// The first name that is no row.
pub fn select(names: &[String]) -> Result<Vec<&'static Row>, String> {
    let named = |row: &Row, name: &str| row.name == name || row.group() == name;
    if let Some(unknown) = names
        .iter()
        .find(|name| ROWS.iter().all(|row| !named(row, name)))
    {
        return Err(unknown.clone());
    }
    let wanted = |row: &&Row| names.is_empty() || names.iter().any(|name| named(row, name));
    Ok(ROWS.iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Feature;

    #[test]
    fn names_are_unique_and_say_what_a_row_needs() {
        for (index, row) in ROWS.iter().enumerate() {
            let name = row.name;
            assert!(
                ROWS[..index].iter().all(|other| other.name != name),
                "{name}"
            );
            let (mqtt, amqp) = match &name[..2] {
                "m-" => (true, false),
                "a-" => (false, true),
                "x-" => (true, true),
                other => panic!("{other} is no prefix"),
            };
            let needs = |feature| row.needs().contains(&feature);
            assert_eq!(
                (needs(Feature::Mqtt), needs(Feature::Amqp)),
                (mqtt, amqp),
                "{name}"
            );
            assert_eq!(needs(Feature::Mqtt5), name.ends_with("-v5"), "{name}");
            assert_eq!(needs(Feature::Qos2), name.ends_with("-q2"), "{name}");
            assert_eq!(
                needs(Feature::SharedSubscription),
                name.starts_with("m-shared"),
                "{name}"
            );
            assert_eq!(
                needs(Feature::RetainedByWildcard),
                name == "m-retained.read"
            );
        }
    }

    #[test]
    fn a_publishers_places_hold_every_window_that_is_confirmed() {
        for row in ROWS {
            let (window, confirmed) = match row.kind {
                Kind::Flow(flow) => (flow.window, flow.publish.is_confirmed()),
                Kind::Staged(staged, _) => (staged.window, true),
                Kind::Idle(_) => continue,
            };
            assert!(
                !confirmed || window <= crate::mqtt::client::PLACES,
                "{}",
                row.name
            );
        }
    }

    #[test]
    fn rows_are_selected_in_the_tables_order() {
        let names = |names: &[&str]| -> Vec<&str> {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            select(&names).unwrap().iter().map(|row| row.name).collect()
        };
        assert_eq!(names(&["a-tput", "m-p2p-q0"]), ["m-p2p-q0", "a-tput"]);
        assert_eq!(
            names(&["m-offline"]),
            ["m-offline.store", "m-offline.drain"]
        );
        assert_eq!(names(&["m-offline.drain"]), ["m-offline.drain"]);
        assert_eq!(select(&[]).unwrap().len(), ROWS.len());
        assert_eq!(select(&["m-nothing".to_owned()]).unwrap_err(), "m-nothing");
    }
}
