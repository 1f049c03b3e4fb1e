//! Dead letters that have to arrive: they stay until all their destinations have them.

mod node;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::{
    DeadLetterKey, DeadLetterStrategy, DeadLetterTo, Overflow, StreamLimits,
};
use anabranch_core::port::{Question, ShardReply};
use node::kept::{Kept, peek, survives};
use node::*;
use std::sync::Arc;

fn insisting(exchange: &str) -> StreamLimits {
    StreamLimits {
        overflow: Overflow::Reject,
        dead_letter: Some(DeadLetterTo {
            exchange: Arc::from(exchange),
            key: Some(Box::new(DeadLetterKey {
                address: "dead".parse().unwrap(),
                origin_key: Default::default(),
            })),
        }),
        dead_letter_strategy: DeadLetterStrategy::AtLeastOnce,
        ..StreamLimits::default()
    }
}

fn full_at(messages_max: u64) -> StreamLimits {
    StreamLimits {
        messages_max: Some(messages_max),
        overflow: Overflow::Reject,
        ..StreamLimits::default()
    }
}

/// Takes the next message and rejects it.
fn reject_next(node: &mut Node, client: Client) {
    let got = node.get(client, "q", TAG).unwrap();
    node.settle_one(client, TAG, got.offset, Outcome::Rejected);
}

fn take(node: &mut Node, client: Client, queue: &str) -> Option<String> {
    let got = node.get(client, queue, ConsumerTag(5))?;
    node.settle_one(client, ConsumerTag(5), got.offset, Outcome::Accepted);
    Some(String::from_utf8(got.message.body.to_vec()).unwrap())
}

fn waiting(node: &mut Node) -> u64 {
    let waiting = node.stat("q").dead_letters_waiting;
    // The only one that has any: its shard counts the same.
    match node.question("q", |_| Question::Totals) {
        Ok(ShardReply::Totals(all)) => assert_eq!(all.dead_letters_waiting, waiting),
        other => panic!("unexpected {other:?}"),
    }
    waiting
}

#[test]
fn what_a_full_stream_refuses_stays_and_goes_on_in_order_when_there_is_room() {
    for durable in [false, true] {
        let mut node = Node::new(1, 2);
        let client = node.connect(0);
        node.declare_with(client, "q", durable, insisting(""))
            .unwrap();
        node.declare_with(client, "dead", durable, full_at(1))
            .unwrap();
        for number in 0..4 {
            node.publish(client, "", "q", &number.to_string(), 0);
            reject_next(&mut node, client);
        }
        let stat = node.stat("q");
        assert_eq!(
            (stat.ready, stat.unsettled, stat.dead_letters_waiting),
            (0, 0, 3)
        );
        assert_eq!(stat.dead_lettered, 4);
        for number in 0..4 {
            assert_eq!(take(&mut node, client, "dead"), Some(number.to_string()));
            // Longer than the longest wait.
            node.pass(31_000);
            node.pass(1);
        }
        assert_eq!(waiting(&mut node), 0);
        assert_eq!(take(&mut node, client, "dead"), None);
    }
}

#[test]
fn one_that_is_full_gives_no_repeats_to_the_others() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare_with(client, "q", true, insisting("topics"))
        .unwrap();
    node.declare(client, "dead", true).unwrap();
    node.declare_with(client, "small", true, full_at(1))
        .unwrap();
    node.bind(client, "dead", "dead");
    node.bind(client, "small", "dead");
    node.publish(client, "", "small", "first", 0);
    node.publish(client, "", "q", "one", 0);
    reject_next(&mut node, client);
    for _ in 0..5 {
        node.pass(31_000);
    }
    assert_eq!(waiting(&mut node), 1);
    assert_eq!(node.stat("dead").ready, 0);
    assert!(node.stat("small").rejected > 2);
    assert_eq!(take(&mut node, client, "small").as_deref(), Some("first"));
    node.pass(31_000);
    node.pass(1);
    assert_eq!((node.stat("dead").ready, node.stat("small").ready), (1, 1));
    assert_eq!(waiting(&mut node), 0);
}

#[test]
fn what_has_no_destination_waits_for_one() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare_with(client, "q", true, insisting("")).unwrap();
    node.publish(client, "", "q", "one", 0);
    reject_next(&mut node, client);
    assert_eq!(waiting(&mut node), 1);
    let if_empty = |stream| anabranch_core::port::Question::DeleteStream {
        stream,
        if_unused: false,
        if_empty: true,
    };
    assert!(matches!(
        node.question("q", if_empty),
        Err(ErrorKind::NotEmpty)
    ));
    node.declare(client, "dead", true).unwrap();
    node.pass(31_000);
    assert_eq!(take(&mut node, client, "dead").as_deref(), Some("one"));
    assert_eq!(waiting(&mut node), 0);
}

#[test]
fn what_waits_takes_room_in_its_stream() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    let limits = StreamLimits {
        messages_max: Some(2),
        ..insisting("")
    };
    node.declare_with(client, "q", true, limits).unwrap();
    for number in 1..=3 {
        node.publish(client, "", "q", "x", number);
        if number < 3 {
            reject_next(&mut node, client);
        }
    }
    let told = outcomes(&node.mail(client));
    let refused = PublishOutcome::Refused(ErrorKind::QuotaExceeded);
    assert_eq!(told.last(), Some(&(3, 3, refused)));
}

#[test]
fn a_stream_that_drops_its_oldest_or_does_not_insist_lets_go() {
    let lenient = StreamLimits {
        dead_letter_strategy: DeadLetterStrategy::AtMostOnce,
        ..insisting("")
    };
    let dropping = StreamLimits {
        overflow: Overflow::DropOldest,
        ..insisting("")
    };
    for limits in [lenient, dropping] {
        let mut node = Node::new(1, 1);
        let client = node.connect(0);
        node.declare_with(client, "q", true, limits).unwrap();
        node.publish(client, "", "q", "one", 0);
        reject_next(&mut node, client);
        node.declare(client, "dead", true).unwrap();
        node.pass(31_000);
        assert_eq!((waiting(&mut node), node.stat("dead").ready), (0, 0));
    }
}

#[test]
fn what_cannot_be_read_stays_and_holds_up_nobody() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare_with(client, "q", true, insisting("")).unwrap();
    node.declare(client, "dead", true).unwrap();
    node.publish(client, "", "q", "broken", 0);
    node.publish(client, "", "q", "sound", 0);
    let one = node.get(client, "q", TAG).unwrap();
    let two = node.get(client, "q", TAG).unwrap();
    let journal = &mut node.data.values_mut().next().unwrap().journal;
    let at = journal.bytes.windows(6).position(|part| part == b"broken");
    journal.bytes[at.unwrap()] ^= 1;
    for got in [one, two] {
        node.settle_one(client, TAG, got.offset, Outcome::Rejected);
    }
    assert_eq!(take(&mut node, client, "dead").as_deref(), Some("sound"));
    node.pass(31_000);
    assert_eq!(waiting(&mut node), 1);
    let journal = &mut node.data.values_mut().next().unwrap().journal;
    journal.bytes[at.unwrap()] ^= 1;
    node.pass(20);
    node.restart();
    let client = node.connect(0);
    node.pass(1);
    assert_eq!(take(&mut node, client, "dead").as_deref(), Some("broken"));
}

/// They were ready once more, so consumers of the queue were handed what had been dropped.
#[test]
fn after_a_restart_what_waited_is_with_nobody_and_goes_on() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare_with(client, "q", true, insisting("")).unwrap();
    for number in 0..3 {
        node.publish(client, "", "q", &number.to_string(), 0);
        reject_next(&mut node, client);
    }
    node.pass(20);
    for _ in 0..2 {
        node.restart();
        let client = node.connect(0);
        let stat = node.stat("q");
        assert_eq!((stat.ready, stat.dead_letters_waiting), (0, 3));
        assert!(node.get(client, "q", TAG).is_none());
    }
    let client = node.connect(0);
    node.declare(client, "dead", true).unwrap();
    node.pass(31_000);
    for number in 0..3 {
        assert_eq!(take(&mut node, client, "dead"), Some(number.to_string()));
    }
    node.pass(20);
    assert_eq!(waiting(&mut node), 0);
    node.restart();
    assert_eq!((waiting(&mut node), node.stat("q").ready), (0, 0));
}

/// A checkpoint says which they are, and that one has arrived.
#[test]
fn a_checkpoint_keeps_what_waits() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare_with(client, "q", true, insisting("")).unwrap();
    node.declare_with(client, "dead", true, full_at(1)).unwrap();
    for number in 0..3 {
        node.publish(client, "", "q", &number.to_string(), 0);
        reject_next(&mut node, client);
    }
    node.publish(client, "", "q", "ready", 0);
    node.pass(20);
    let (fabric, authority) = (node.fabric.clone(), node.authority.clone());
    let mut kept = Kept::default();
    let data = node.data.get_mut(&ShardId(1)).unwrap();
    let mut restored = survives(&mut kept, data, &fabric, &authority);
    let stream = node.stat("q").stream;
    let data = node.data.get_mut(&ShardId(1)).unwrap();
    let left: Vec<String> = peek(&mut restored, &data.journal, stream, 9)
        .into_iter()
        .map(|(_, _, message)| String::from_utf8(message.body.to_vec()).unwrap())
        .collect();
    assert_eq!(left, ["ready"]);
    let client = node.connect(0);
    for _ in 0..3 {
        take(&mut node, client, "dead").unwrap();
        node.pass(31_000);
        node.pass(1);
    }
    node.pass(20);
    let data = node.data.get_mut(&ShardId(1)).unwrap();
    survives(&mut kept, data, &fabric, &authority);
    assert!(
        kept.pairs().keys().all(|key| key[0] != 6),
        "all have arrived"
    );
}
