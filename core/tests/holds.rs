//! Streams that hold their publishers when they are full, and messages that have ended deep in a stream.
//!
//! Owns: both, in simulated time.
//! Next: `limits.rs` (what is dropped or refused instead).

mod node;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::{Overflow, StreamLimits};
use anabranch_core::message::{Message, Quality};
use bytes::Bytes;
use node::*;
use proptest::prelude::*;
use std::sync::Arc;

fn holding(messages_max: u64) -> StreamLimits {
    StreamLimits {
        messages_max: Some(messages_max),
        overflow: Overflow::Hold,
        ..StreamLimits::default()
    }
}

/// A node with a queue `q` of two, a publisher and a consumer that has not begun.
fn world(durable: bool) -> (Node, Client, Client) {
    let mut node = Node::new(2, 2);
    let publisher = node.connect(0);
    let consumer = node.connect(1);
    node.declare_with(publisher, "q", durable, holding(2))
        .unwrap();
    (node, publisher, consumer)
}

fn done(node: &mut Node, client: Client) -> Vec<u64> {
    let mail = node.mail(client);
    let told = outcomes(&mail);
    assert!(
        told.iter()
            .all(|(_, _, how)| *how == PublishOutcome::Routed),
        "{told:?}"
    );
    told.iter()
        .flat_map(|(first, last, _)| *first..=*last)
        .collect()
}

fn blocked(mail: &anabranch_core::worker::Mail) -> Vec<bool> {
    let all = mail.answers.iter().filter_map(|answer| match answer {
        Answer::Blocked(why) => Some(why.is_some()),
        _ => None,
    });
    all.collect()
}

fn take_one(node: &mut Node, client: Client) -> Option<String> {
    let tag = ConsumerTag(30);
    let got = node.get(client, "q", tag)?;
    node.settle_one(client, tag, got.offset, Outcome::Accepted);
    node.pass(10);
    Some(String::from_utf8(got.message.body.to_vec()).unwrap())
}

#[test]
fn publishers_wait_and_are_taken_in_order_as_readers_make_room() {
    for durable in [false, true] {
        let (mut node, publisher, consumer) = world(durable);
        for number in 1..=5 {
            node.publish(publisher, "", "q", &number.to_string(), number);
        }
        let mail = node.mails.get(&publisher.id).unwrap();
        assert_eq!(blocked(mail), [true], "told once");
        assert_eq!(done(&mut node, publisher), [1, 2], "{durable}");
        assert_eq!(node.stat("q").ready, 2);
        assert_eq!(take_one(&mut node, consumer).as_deref(), Some("1"));
        assert_eq!(done(&mut node, publisher), [3]);
        assert_eq!(node.stat("q").ready, 2);
        node.consume(consumer, "q", 100).unwrap();
        let mail = node.mails.get(&publisher.id).unwrap();
        assert_eq!(blocked(mail), [false]);
        assert_eq!(done(&mut node, publisher), [4, 5]);
        assert_eq!(bodies(&node.mail(consumer)), ["2", "3", "4", "5"]);
    }
}

#[test]
fn other_queues_and_questions_do_not_wait() {
    for durable in [false, true] {
        let (mut node, publisher, _) = world(durable);
        node.declare(publisher, "other", durable).unwrap();
        for number in 1..=4 {
            node.publish(publisher, "", "q", "x", number);
        }
        node.publish(publisher, "", "other", "x", 9);
        assert_eq!(done(&mut node, publisher), [1, 2, 9]);
        let other = node.get(publisher, "other", ConsumerTag(31));
        let own = node.get(publisher, "q", ConsumerTag(32));
        assert!(other.is_some() && own.is_some());
    }
}

#[test]
fn a_publisher_that_goes_leaves_what_it_sent_and_nothing_is_lost() {
    let (mut node, publisher, consumer) = world(true);
    for number in 1..=4 {
        node.publish(publisher, "", "q", &number.to_string(), 0);
    }
    node.disconnect(publisher);
    let taken: Vec<String> = (0..4)
        .filter_map(|_| take_one(&mut node, consumer))
        .collect();
    assert_eq!(taken, ["1", "2", "3", "4"]);
}

/// It is written behind later ones of its worker, and is no repeat for that: not when the journal is read again either.
#[test]
fn what_was_overtaken_is_there_after_a_restart() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare_with(client, "q", true, holding(2)).unwrap();
    node.declare(client, "other", true).unwrap();
    for number in 1..=4 {
        node.publish(client, "", "q", &number.to_string(), number);
        node.publish(client, "", "other", "x", 10 + number);
    }
    let taker = node.connect(0);
    assert_eq!(take_one(&mut node, taker).as_deref(), Some("1"));
    node.restart();
    assert_eq!(node.stat("other").ready, 4);
    let taker = node.connect(0);
    let taken: Vec<String> = (0..4).filter_map(|_| take_one(&mut node, taker)).collect();
    // The fourth was never stored, and never confirmed.
    assert_eq!(taken, ["2", "3"]);
}

#[test]
fn a_queue_that_is_deleted_or_holds_no_more_lets_them_go() {
    let (mut node, publisher, _) = world(true);
    for number in 1..=3 {
        node.publish(publisher, "", "q", "x", number);
    }
    assert_eq!(done(&mut node, publisher), [1, 2]);
    node.set_limits("q", StreamLimits::default());
    assert_eq!(done(&mut node, publisher), [3]);
    node.set_limits("q", holding(2));
    node.publish(publisher, "", "q", "x", 4);
    assert!(done(&mut node, publisher).is_empty());
    let delete = Command::DeleteStream {
        token: Token(9),
        name: "q".into(),
        if_unused: false,
        if_empty: false,
    };
    node.reply(publisher, delete).unwrap();
    node.pass(10);
    let unroutable = [(4, 4, PublishOutcome::Unroutable)];
    assert_eq!(outcomes(&node.mail(publisher)), unroutable);
}

/// What may be lost and asks no patience is refused: its publisher could only be held up by not being read at all.
#[test]
fn what_may_be_lost_is_refused_and_a_transaction_is_taken_whole() {
    let (mut node, publisher, _) = world(true);
    for number in 1..=2 {
        node.publish(publisher, "", "q", "x", number);
    }
    done(&mut node, publisher);
    let publish = |token: u64, quality: Quality, patient: bool| Command::Publish {
        token: Token(token),
        mandatory: false,
        patient,
        once: None,
        later: None,
        message: Arc::new(Message {
            address: "q".parse().unwrap(),
            body: Bytes::from_static(b"x"),
            quality,
            ..Message::default()
        }),
    };
    node.ask(publisher, publish(7, Quality::AtMostOnce, false));
    let busy = [(7, 7, PublishOutcome::Refused(ErrorKind::Busy))];
    assert_eq!(outcomes(&node.mail(publisher)), busy);
    node.ask(publisher, publish(8, Quality::AtLeastOnce, false));
    assert!(outcomes(&node.mail(publisher)).is_empty(), "it waits");
    let atomic = Command::Atomic {
        commands: vec![publish(9, Quality::AtLeastOnce, true)],
    };
    node.ask(publisher, atomic);
    assert_eq!(done(&mut node, publisher), [9]);
    assert_eq!(node.stat("q").ready, 3);
}

/// Deep in a stream: behind one that never ends.
#[test]
fn what_has_ended_behind_others_goes_too_and_its_room_comes_back() {
    for durable in [false, true] {
        let mut node = Node::new(1, 1);
        let client = node.connect(0);
        node.declare(client, "q", durable).unwrap();
        let expires = |node: &Node, ms: u64| Some(node.now.unix.after(ms));
        let publish = |node: &mut Node, expires: Option<UnixMs>| {
            let message = Message {
                address: "q".parse().unwrap(),
                body: Bytes::from_static(b"x"),
                quality: Quality::AtLeastOnce,
                published: node.now.unix,
                expires,
                ..Message::default()
            };
            let command = publishing(1, message);
            node.ask(client, command);
        };
        publish(&mut node, None);
        for number in 0..100 {
            let ends = expires(&node, 1000 + number % 7 * 1000);
            publish(&mut node, ends);
        }
        publish(&mut node, None);
        assert_eq!(node.stat("q").ready, 102);
        for _ in 0..8 {
            node.pass(500);
        }
        // Of seven times four have passed.
        assert_eq!(node.stat("q").ready, 102 - 58, "{durable}");
        if durable {
            node.restart();
        }
        for _ in 0..20 {
            node.pass(500);
        }
        assert_eq!(node.stat("q").ready, 2, "{durable}");
    }
}

#[derive(Clone, Debug)]
enum Move {
    Publish(u8),
    Take,
    Pass(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        5 => (0u8..3).prop_map(Move::Publish),
        3 => Just(Move::Take),
        1 => (1u64..1000).prop_map(Move::Pass),
    ];
    proptest::collection::vec(one, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Never more than may wait, never one lost, each publisher's in its order.
    #[test]
    fn a_full_stream_holds_and_loses_nothing(durable in any::<bool>(), moves in moves()) {
        let (mut node, publisher, consumer) = world(durable);
        let publishers = [publisher, node.connect(1), node.connect(0)];
        let mut sent = [0u64; 3];
        let mut seen = [0u64; 3];
        let mut take = |node: &mut Node| {
            let Some(body) = take_one(node, consumer) else { return false };
            let (who, number) = body.split_once('.').unwrap();
            let who: usize = who.parse().unwrap();
            seen[who] += 1;
            assert_eq!(seen[who].to_string(), number);
            true
        };
        for one in moves {
            match one {
                Move::Publish(who) => {
                    let who = usize::from(who);
                    sent[who] += 1;
                    let body = format!("{who}.{}", sent[who]);
                    node.publish(publishers[who], "", "q", &body, sent[who]);
                }
                Move::Take => { take(&mut node); }
                Move::Pass(ms) => node.pass(ms),
            }
            prop_assert!(node.stat("q").ready <= 2);
        }
        while take(&mut node) {}
        prop_assert_eq!(seen, sent);
        for (client, count) in publishers.into_iter().zip(sent) {
            let told = done(&mut node, client);
            prop_assert!(told.into_iter().eq(1..=count));
        }
    }
}
