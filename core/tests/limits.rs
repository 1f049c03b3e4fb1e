//! What bounds a stream, seen from its clients: what is dropped, refused and sent on, in durable and volatile
//! streams alike.
//!
//! Owns: limits, dead letters and seek across `shard/limit.rs`, `shard/forward.rs`, `shard/seek.rs` and
//! `worker/forward.rs`.

mod node;

use anabranch_core::death::DeathReason;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::{DeadLetterKey, DeadLetterTo, StreamLimits};
use node::*;
use std::sync::Arc;

const BOTH: [bool; 2] = [true, false];

/// Dropped messages go to the queue of this name.
fn to_queue(name: &str) -> Option<DeadLetterTo> {
    Some(DeadLetterTo {
        exchange: Arc::from(""),
        key: Some(DeadLetterKey {
            address: name.parse().unwrap(),
            origin_key: Default::default(),
        }),
    })
}

fn deaths(delivery: &Delivery) -> Vec<(String, DeathReason, u64)> {
    let deaths = delivery.message.deaths.as_ref();
    let list = deaths.map(|deaths| deaths.list.clone()).unwrap_or_default();
    list.into_iter()
        .map(|death| (death.stream.to_string(), death.reason, death.count))
        .collect()
}

#[test]
fn what_a_consumer_rejects_goes_to_the_dead_letter_exchange() {
    for durable in BOTH {
        for dead_durable in BOTH {
            let mut node = Node::new(2, 2);
            let client = node.connect(1);
            let limits = StreamLimits {
                dead_letter: to_queue("dead"),
                ..StreamLimits::default()
            };
            node.declare_with(client, "q", durable, limits).unwrap();
            node.declare(client, "dead", dead_durable).unwrap();
            node.publish(client, "", "q", "no", 0);
            let got = node.get(client, "q", TAG).unwrap();
            node.settle_one(client, TAG, got.offset, Outcome::Rejected);
            let dead = node.get(client, "dead", ConsumerTag(8)).unwrap();
            assert_eq!(&dead.message.body[..], b"no");
            let death = ("q".to_owned(), DeathReason::Rejected, 1);
            assert_eq!(deaths(&dead), [death]);
            assert_eq!(dead.message.published, got.message.published);
            node.pass(10);
            let stat = node.stat("q");
            assert_eq!((stat.ready, stat.unsettled, stat.bytes), (0, 0, 0));
        }
    }
}

#[test]
fn a_dead_letter_that_was_not_confirmed_is_there_again_after_a_crash() {
    let mut node = Node::new(1, 2);
    let client = node.connect(0);
    let limits = StreamLimits {
        dead_letter: to_queue("dead"),
        ..StreamLimits::default()
    };
    node.declare_with(client, "q", true, limits).unwrap();
    node.declare(client, "dead", true).unwrap();
    node.publish(client, "", "q", "m", 0);
    let got = node.get(client, "q", TAG).unwrap();
    // The node dies before its workers hear of the rejected message.
    node.hold_events = true;
    node.settle_one(client, TAG, got.offset, Outcome::Rejected);
    node.pass(10);
    node.hold_events = false;
    node.restart();
    let client = node.connect(0);
    assert!(node.get(client, "dead", ConsumerTag(8)).is_none());
    let again = node.get(client, "q", TAG).unwrap();
    assert_eq!(again.attempt, 2);
    node.settle_one(client, TAG, again.offset, Outcome::Rejected);
    node.pass(10);
    node.restart();
    let client = node.connect(0);
    assert!(node.get(client, "q", TAG).is_none());
    assert!(node.get(client, "dead", ConsumerTag(8)).is_some());
}

#[test]
fn a_circle_ends_unless_a_consumer_wished_it() {
    for durable in BOTH {
        let mut node = Node::new(1, 2);
        let client = node.connect(0);
        let limits = |to| StreamLimits {
            dead_letter: to_queue(to),
            ..StreamLimits::default()
        };
        node.declare_with(client, "q", durable, limits("q"))
            .unwrap();
        node.publish(client, "", "q", "m", 0);
        for round in 1..4 {
            let got = node.get(client, "q", TAG).unwrap();
            node.settle_one(client, TAG, got.offset, Outcome::Rejected);
            let stat = node.stat("q");
            assert_eq!((stat.ready, stat.dead_lettered), (1, round));
        }
        let got = node.get(client, "q", TAG).unwrap();
        assert_eq!(deaths(&got), [("q".to_owned(), DeathReason::Rejected, 3)]);
    }
}

#[test]
fn a_dead_letter_exchange_that_is_missing_drops() {
    for durable in BOTH {
        let mut node = Node::new(1, 1);
        let client = node.connect(0);
        let limits = StreamLimits {
            dead_letter: Some(DeadLetterTo {
                exchange: Arc::from("nowhere"),
                key: None,
            }),
            ..StreamLimits::default()
        };
        node.declare_with(client, "q", durable, limits).unwrap();
        node.publish(client, "", "q", "m", 0);
        let got = node.get(client, "q", TAG).unwrap();
        node.settle_one(client, TAG, got.offset, Outcome::Rejected);
        node.pass(10);
        node.restart();
        if durable {
            let stat = node.stat("q");
            assert_eq!((stat.ready, stat.unsettled), (0, 0));
        }
    }
}
