//! What bounds a stream, seen from its clients: what is dropped, refused and sent on, in durable and volatile
//! streams alike.
//!
//! Owns: limits, dead letters and seek across `shard/limit.rs`, `shard/forward.rs`, `shard/seek.rs` and
//! `worker/forward.rs`.

mod node;

use anabranch_core::death::DeathReason;
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::{DeadLetterKey, DeadLetterTo, Mode, Overflow, StreamLimits};
use anabranch_core::message::Message;
use anabranch_core::meta::MetaCommand;
use anabranch_core::port::{Question, SeekTo, ShardReply};
use bytes::Bytes;
use node::*;
use std::sync::Arc;

const BOTH: [bool; 2] = [true, false];

/// Dropped messages go to the queue of this name.
fn to_queue(name: &str) -> Option<DeadLetterTo> {
    Some(DeadLetterTo {
        exchange: Arc::from(""),
        key: Some(Box::new(DeadLetterKey {
            address: name.parse().unwrap(),
            origin_key: Default::default(),
        })),
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

/// A queue of these limits beside a queue `dead`, both durable or neither.
fn limited(durable: bool, limits: StreamLimits) -> (Node, Client) {
    let mut node = Node::new(1, 2);
    let client = node.connect(0);
    node.declare_with(client, "q", durable, limits).unwrap();
    node.declare(client, "dead", durable).unwrap();
    (node, client)
}

fn ends_in(node: &mut Node, client: Client, body: &str, ms: u64) {
    let message = Message {
        address: "q".parse().unwrap(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        published: node.now.unix,
        expires: Some(node.now.unix.after(ms)),
        ..Message::default()
    };
    let publish = Command::Publish {
        token: Token(0),
        mandatory: false,
        patient: false,
        once: None,
        later: None,
        message: Arc::new(message),
    };
    node.ask(client, publish);
}

/// Takes everything that is ready, settled by that.
fn drain(node: &mut Node, client: Client, queue: &str) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let get = Command::Get {
            token: Token(9),
            stream: Arc::from(queue),
            consumer: ConsumerTag(queue.len() as u32 + 100),
            presettled: true,
        };
        match node.reply(client, get) {
            Ok(Reply::Got {
                delivery: Some(delivery),
                ..
            }) => all.push(String::from_utf8(delivery.message.body.to_vec()).unwrap()),
            Ok(Reply::Got { delivery: None, .. }) => return all,
            other => panic!("unexpected {other:?}"),
        }
    }
}

fn many(node: &mut Node, client: Client, bodies: std::ops::Range<u32>) {
    for number in bodies {
        node.publish(client, "", "q", &number.to_string(), u64::from(number) + 1);
    }
}

#[test]
fn messages_end_without_a_reader_and_go_on() {
    for durable in BOTH {
        let limits = StreamLimits {
            message_ttl_ms: Some(1000),
            dead_letter: to_queue("dead"),
            ..StreamLimits::default()
        };
        let (mut node, client) = limited(durable, limits);
        ends_in(&mut node, client, "short", 200);
        node.publish(client, "", "q", "long", 0);
        ends_in(&mut node, client, "longer", 5000);
        node.pass(199);
        assert_eq!(node.stat("q").ready, 3);
        node.pass(40);
        let dead = node.get(client, "dead", TAG).unwrap();
        assert_eq!(deaths(&dead), [("q".to_owned(), DeathReason::Expired, 1)]);
        let death = &dead.message.deaths.as_ref().unwrap().list[0];
        assert_eq!(
            (death.time_to_live_ms, dead.message.expires),
            (Some(200), None)
        );
        assert_eq!(node.stat("q").ready, 2);
        node.pass(800);
        let stat = node.stat("q");
        assert_eq!((stat.ready, stat.dead_lettered, stat.dropped), (0, 3, 0));
        assert_eq!(drain(&mut node, client, "dead"), ["long", "longer"]);
    }
}

#[test]
fn a_message_of_no_time_goes_to_a_reader_at_once_or_nowhere() {
    for durable in BOTH {
        for mode in [Mode::Shared, Mode::Failover, Mode::KeyShared] {
            let limits = StreamLimits {
                message_ttl_ms: Some(0),
                mode,
                ..StreamLimits::default()
            };
            let (mut node, client) = limited(durable, limits);
            node.publish(client, "", "q", "nobody", 1);
            let told = outcomes(&node.mail(client));
            assert_eq!(told, [(1, 1, PublishOutcome::Routed)]);
            assert_eq!((node.stat("q").ready, node.stat("q").dropped), (0, 1));
            node.consume(client, "q", 1).unwrap();
            node.publish(client, "", "q", "taken", 0);
            node.publish(client, "", "q", "no room", 0);
            assert_eq!(bodies(&node.mail(client)), ["taken"]);
            let stat = node.stat("q");
            assert_eq!((stat.ready, stat.unsettled, stat.dropped), (0, 1, 2));
        }
    }
}

#[test]
fn a_message_of_no_time_behind_others_is_gone_too() {
    for durable in BOTH {
        let (mut node, client) = limited(durable, StreamLimits::default());
        node.publish(client, "", "q", "stays", 0);
        ends_in(&mut node, client, "gone", 0);
        assert_eq!(node.stat("q").ready, 1);
        assert_eq!(drain(&mut node, client, "q"), ["stays"]);
    }
}

#[test]
fn the_oldest_make_room() {
    for durable in BOTH {
        let limits = StreamLimits {
            messages_max: Some(3),
            dead_letter: to_queue("dead"),
            ..StreamLimits::default()
        };
        let (mut node, client) = limited(durable, limits);
        many(&mut node, client, 0..5);
        assert_eq!(drain(&mut node, client, "dead"), ["0", "1"]);
        // What is handed out does not count.
        node.consume(client, "q", 2).unwrap();
        many(&mut node, client, 5..8);
        assert_eq!(bodies(&node.mail(client)), ["2", "3"]);
        node.cancel(client, TAG);
        let stat = node.stat("q");
        assert_eq!((stat.ready, stat.unsettled), (3, 2));
        assert_eq!(drain(&mut node, client, "q"), ["5", "6", "7"]);
        assert_eq!(drain(&mut node, client, "dead"), ["4"]);
    }
}

#[test]
fn bytes_are_bounded_too_and_no_messages_at_all_may_be_asked() {
    for durable in BOTH {
        let limits = StreamLimits {
            bytes_max: Some(10),
            ..StreamLimits::default()
        };
        let (mut node, client) = limited(durable, limits);
        for body in ["aaaa", "bbbb", "cccc", "ddddddddddd"] {
            node.publish(client, "", "q", body, 0);
        }
        assert_eq!(drain(&mut node, client, "q"), Vec::<String>::new());
        for body in ["aaaa", "bbbb", "cccc"] {
            node.publish(client, "", "q", body, 0);
        }
        assert_eq!(drain(&mut node, client, "q"), ["bbbb", "cccc"]);
        let limits = StreamLimits {
            messages_max: Some(0),
            ..StreamLimits::default()
        };
        let (mut node, client) = limited(durable, limits);
        many(&mut node, client, 0..2);
        assert_eq!(node.stat("q").ready, 0);
        node.consume(client, "q", 1).unwrap();
        many(&mut node, client, 2..4);
        assert_eq!(bodies(&node.mail(client)), ["2"]);
        assert_eq!((node.stat("q").ready, node.stat("q").dropped), (0, 3));
    }
}

#[test]
fn a_full_queue_refuses_though_others_take_it() {
    for durable in BOTH {
        for overflow in [Overflow::Reject, Overflow::RejectAndDeadLetter] {
            let limits = StreamLimits {
                messages_max: Some(2),
                overflow,
                dead_letter: to_queue("dead"),
                ..StreamLimits::default()
            };
            let (mut node, client) = limited(durable, limits);
            node.declare(client, "other", durable).unwrap();
            for queue in ["q", "other"] {
                node.bind(client, queue, "t");
            }
            // All at once, so that none is stored before the next is let in.
            let publish = |token| Command::Publish {
                token: Token(token),
                mandatory: false,
                patient: false,
                once: None,
                later: None,
                message: Arc::new(Message {
                    exchange: Bytes::from_static(b"topics"),
                    address: "t".parse().unwrap(),
                    body: Bytes::from(token.to_string()),
                    ..Message::default()
                }),
            };
            let mut commands: Vec<Command> = (1..=4).map(publish).collect();
            node.workers[0].submit(node.now, client.id, &mut commands);
            node.settle();
            let mut told = outcomes(&node.mail(client));
            told.sort_by_key(|(first, ..)| *first);
            let refused = PublishOutcome::Refused(ErrorKind::QuotaExceeded);
            assert_eq!(told, [(1, 2, PublishOutcome::Routed), (3, 4, refused)]);
            assert_eq!((node.stat("q").ready, node.stat("q").rejected), (2, 2));
            assert_eq!(drain(&mut node, client, "other").len(), 4);
            let sent_on = match overflow {
                Overflow::RejectAndDeadLetter => vec!["3", "4"],
                Overflow::Reject | Overflow::DropOldest | Overflow::Hold => vec![],
            };
            assert_eq!(drain(&mut node, client, "dead"), sent_on);
            // Only to the full one: nothing is stored at all.
            node.publish(client, "", "q", "5", 5);
            assert_eq!(outcomes(&node.mail(client)), [(5, 5, refused)]);
            assert_eq!(drain(&mut node, client, "q"), ["1", "2"]);
            node.publish(client, "", "q", "6", 6);
            let told = outcomes(&node.mail(client));
            assert_eq!(told, [(6, 6, PublishOutcome::Routed)]);
        }
    }
}

#[test]
fn the_refusal_of_a_queue_at_another_worker_is_waited_for() {
    let mut node = Node::new(2, 1);
    let owner = node.connect(0);
    let limits = StreamLimits {
        messages_max: Some(1),
        overflow: Overflow::Reject,
        ..StreamLimits::default()
    };
    node.declare_with(owner, "q", false, limits).unwrap();
    let publisher = node.connect(1);
    many(&mut node, publisher, 0..2);
    let refused = PublishOutcome::Refused(ErrorKind::QuotaExceeded);
    let told = outcomes(&node.mail(publisher));
    assert_eq!(told, [(1, 1, PublishOutcome::Routed), (2, 2, refused)]);
}

#[test]
fn a_reader_with_room_keeps_a_queue_from_being_full() {
    for durable in BOTH {
        let limits = StreamLimits {
            messages_max: Some(1),
            overflow: Overflow::Reject,
            ..StreamLimits::default()
        };
        let (mut node, client) = limited(durable, limits);
        node.consume(client, "q", 2).unwrap();
        many(&mut node, client, 0..4);
        let mail = node.mail(client);
        assert_eq!(bodies(&mail), ["0", "1"]);
        let refused = PublishOutcome::Refused(ErrorKind::QuotaExceeded);
        assert_eq!(outcomes(&mail).last(), Some(&(4, 4, refused)));
    }
}

#[test]
fn a_limit_of_two_is_three_deliveries() {
    for durable in BOTH {
        let limits = StreamLimits {
            delivery_limit: Some(2),
            dead_letter: to_queue("dead"),
            ..StreamLimits::default()
        };
        let (mut node, client) = limited(durable, limits);
        node.publish(client, "", "q", "poison", 0);
        let got = node.get(client, "q", TAG).unwrap();
        node.settle_one(client, TAG, got.offset, Outcome::Released);
        let other = node.connect(0);
        let got = node.get(other, "q", TAG).unwrap();
        assert_eq!(got.attempt, 2);
        node.disconnect(other);
        let got = node.get(client, "q", TAG).unwrap();
        assert_eq!(got.attempt, 3);
        node.settle_one(client, TAG, got.offset, Outcome::Released);
        assert!(node.get(client, "q", TAG).is_none());
        let dead = node.get(client, "dead", ConsumerTag(8)).unwrap();
        let death = ("q".to_owned(), DeathReason::DeliveryLimit, 1);
        assert_eq!(deaths(&dead), [death]);
    }
}

#[test]
fn a_queue_that_nobody_uses_goes() {
    for durable in BOTH {
        let limits = StreamLimits {
            expires_ms: Some(1000),
            ..StreamLimits::default()
        };
        let (mut node, client) = limited(durable, limits.clone());
        let there = |node: &Node| {
            let meta = node.fabric.meta();
            let vhost = meta.vhost("/").unwrap().id;
            meta.stream(vhost, "q").is_some()
        };
        node.pass(600);
        assert!(node.get(client, "q", ConsumerTag(8)).is_none());
        node.pass(600);
        node.declare_with(client, "q", durable, limits).unwrap();
        node.pass(600);
        // A look from without is no use.
        node.stat("q");
        node.consume(client, "q", 1).unwrap();
        node.pass(3000);
        assert!(there(&node));
        node.cancel(client, TAG);
        node.pass(999);
        assert!(there(&node));
        node.pass(60);
        assert!(!there(&node));
        assert_eq!(node.consume(client, "q", 1), Err(ErrorKind::NotFound));
    }
}

#[test]
fn after_a_restart_the_time_without_use_begins_again() {
    let limits = StreamLimits {
        expires_ms: Some(1000),
        ..StreamLimits::default()
    };
    let (mut node, _) = limited(true, limits);
    node.pass(900);
    node.restart();
    node.pass(1);
    node.pass(900);
    assert_eq!(node.stat("q").limits.expires_ms, Some(1000));
    node.pass(200);
    let client = node.connect(0);
    assert_eq!(node.consume(client, "q", 1), Err(ErrorKind::NotFound));
}

#[test]
fn other_limits_count_at_once() {
    for durable in BOTH {
        let (mut node, client) = limited(durable, StreamLimits::default());
        // The first look at policies is over: it would undo what none of them says.
        node.pass(1000);
        many(&mut node, client, 0..4);
        let limits = StreamLimits {
            messages_max: Some(2),
            dead_letter: to_queue("dead"),
            mode: Mode::Exclusive,
            ..StreamLimits::default()
        };
        let set = |stream| Question::SetLimits { stream, limits };
        assert!(matches!(node.question("q", set), Ok(ShardReply::Done)));
        assert_eq!(drain(&mut node, client, "dead"), ["0", "1"]);
        node.consume(client, "q", 1).unwrap();
        let other = node.connect(0);
        assert_eq!(node.consume(other, "q", 1), Err(ErrorKind::SecondConsumer));
        let lost = |_| Question::SetLimits {
            stream: StreamId(404),
            limits: StreamLimits::default(),
        };
        assert_eq!(node.question("q", lost).unwrap_err(), ErrorKind::NotFound);
        if durable {
            node.pass(10);
            node.restart();
            assert_eq!(node.stat("q").limits.messages_max, Some(2));
        }
    }
}

fn seek(node: &mut Node, to: SeekTo) -> u64 {
    match node.question("q", |stream| Question::Seek { stream, to }) {
        Ok(ShardReply::Count(count)) => count,
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn a_subscription_moves_by_offset_by_time_and_to_both_ends() {
    for durable in BOTH {
        for mode in [Mode::Shared, Mode::Failover, Mode::KeyShared] {
            let limits = StreamLimits {
                mode,
                ..StreamLimits::default()
            };
            let (mut node, client) = limited(durable, limits);
            for number in 0..6u64 {
                ends_in(&mut node, client, &number.to_string(), 1 << 40);
                node.pass(100);
            }
            let reader = node.connect(0);
            node.consume(reader, "q", 4).unwrap();
            assert_eq!(bodies(&node.mail(reader)), ["0", "1", "2", "3"]);
            node.settle_one(reader, TAG, Offset(1), Outcome::Accepted);
            assert_eq!(bodies(&node.mail(reader)), ["4"]);
            // Held: 0, 2, 3, 4; ready: 5.
            assert_eq!(seek(&mut node, SeekTo::Offset(Offset(3))), 0);
            let again = node.mail(reader);
            assert_eq!(bodies(&again), ["3", "4"]);
            assert!(again.deliveries.iter().all(|again| again.attempt == 2));
            assert_eq!(seek(&mut node, SeekTo::Start), 0);
            assert_eq!(bodies(&node.mail(reader)), ["0", "2", "3", "4"]);
            let time = node.now.unix.0 - 150;
            node.disconnect(reader);
            assert_eq!(seek(&mut node, SeekTo::Time(UnixMs(time))), 4);
            assert_eq!(node.stat("q").ready, 1);
            assert_eq!(seek(&mut node, SeekTo::End), 1);
            assert_eq!(node.stat("q").ready, 0);
            assert_eq!(node.stat("q").bytes, 0);
        }
    }
}

#[test]
fn a_late_settlement_of_what_was_taken_back_is_ignored() {
    for durable in BOTH {
        let (mut node, client) = limited(durable, StreamLimits::default());
        node.publish(client, "", "q", "m", 0);
        let one = node.connect(0);
        let got = node.get(one, "q", TAG).unwrap();
        seek(&mut node, SeekTo::Start);
        node.settle_one(one, TAG, got.offset, Outcome::Accepted);
        let again = node.get(client, "q", TAG).unwrap();
        assert_eq!((again.attempt, again.offset), (2, got.offset));
        node.settle_one(one, TAG, got.offset, Outcome::Accepted);
        assert_eq!(node.stat("q").unsettled, 1);
    }
}

#[test]
fn a_session_has_no_other_place() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare(client, "q", true).unwrap();
    node.session(client, "s", true, 60);
    let stream = StreamId::of_session(ShardId(1), 1);
    let to = SeekTo::End;
    let refused = node.question("q", |_| Question::Seek { stream, to });
    assert_eq!(refused.unwrap_err(), ErrorKind::NotSupported);
}

#[test]
fn purge_and_conditional_delete_do_not_see_what_is_on_its_way() {
    for durable in BOTH {
        let limits = StreamLimits {
            dead_letter: to_queue("dead"),
            ..StreamLimits::default()
        };
        let (mut node, client) = limited(durable, limits);
        many(&mut node, client, 0..2);
        let got = node.get(client, "q", TAG).unwrap();
        node.hold_events = true;
        node.settle_one(client, TAG, got.offset, Outcome::Rejected);
        node.hold_events = false;
        let purge = Command::Purge {
            token: Token(9),
            stream: Arc::from("q"),
        };
        assert_eq!(node.reply(client, purge), Ok(Reply::Count(1)));
        let delete = Command::DeleteStream {
            token: Token(9),
            name: Arc::from("q"),
            if_unused: false,
            if_empty: true,
        };
        assert!(node.reply(client, delete).is_ok());
        if durable {
            node.pass(10);
            node.restart();
            let client = node.connect(0);
            assert_eq!(node.consume(client, "q", 1), Err(ErrorKind::NotFound));
        }
    }
}

#[test]
fn a_node_with_nothing_due_sleeps_as_before() {
    let (mut node, client) = limited(true, StreamLimits::default());
    node.publish(client, "", "q", "m", 0);
    node.pass(10);
    node.pass(500);
    let now = node.now.monotonic;
    for data in node.data.values() {
        assert_eq!(data.shard.poll_timeout(), now.after(500));
    }
    ends_in(&mut node, client, "far", 1 << 40);
    node.pass(10);
    for data in node.data.values() {
        assert!(data.shard.poll_timeout() >= now.after(500));
    }
}

#[test]
fn a_group_has_limits_too_and_its_dead_letters_do_not_come_round_to_it() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare(client, "q", true).unwrap();
    node.session(client, "s", true, 600);
    let filters = vec![SessionFilter {
        spec: filter("t"),
        group: Some(Arc::from("g")),
        retained: SendRetained::Never,
    }];
    node.subscribe_with(client, filters);
    let all = |node: &mut Node| match node.question("q", |_| Question::StatAll) {
        Ok(ShardReply::Stats(all)) => all.into_iter().find(|stat| stat.group.is_some()).unwrap(),
        other => panic!("unexpected {other:?}"),
    };
    let stream = all(&mut node).stream;
    let limits = StreamLimits {
        message_ttl_ms: Some(100),
        dead_letter: Some(DeadLetterTo {
            exchange: Arc::from("topics"),
            key: None,
        }),
        ..StreamLimits::default()
    };
    let set = |_| Question::SetLimits { stream, limits };
    assert!(matches!(node.question("q", set), Ok(ShardReply::Done)));
    node.disconnect(client);
    let publisher = node.connect(0);
    node.bind(publisher, "q", "t");
    node.publish(publisher, "topics", "t", "m", 0);
    assert_eq!((all(&mut node).ready, node.stat("q").ready), (1, 1));
    node.pass(150);
    let group = all(&mut node);
    assert_eq!((group.ready, group.dead_lettered), (0, 1));
    let copies = [ConsumerTag(1), ConsumerTag(2)];
    let copies = copies.map(|tag| node.get(publisher, "q", tag).unwrap());
    assert_eq!(deaths(&copies[0]), []);
    assert_eq!(
        deaths(&copies[1]),
        [("g".to_owned(), DeathReason::Expired, 1)]
    );
    node.pass(150);
    assert_eq!((all(&mut node).dead_lettered, node.stat("q").ready), (1, 0));
}

#[test]
fn a_dead_letter_waits_for_a_full_shard() {
    let mut node = Node::new(1, 1);
    node.volatile_bytes_max = 2000;
    node.start_workers(1);
    let client = node.connect(0);
    let limits = StreamLimits {
        dead_letter: to_queue("dead"),
        ..StreamLimits::default()
    };
    node.declare_with(client, "q", true, limits).unwrap();
    node.declare(client, "dead", false).unwrap();
    node.publish(client, "", "q", "letter", 0);
    for number in 0..8 {
        node.publish(client, "", "dead", &number.to_string(), 0);
    }
    let got = node.get(client, "q", TAG).unwrap();
    node.settle_one(client, TAG, got.offset, Outcome::Rejected);
    node.pass(600);
    let stat = node.stat("q");
    assert_eq!((stat.ready, stat.unsettled), (0, 0));
    let mut there = Vec::new();
    for _ in 0..4 {
        there.extend(drain(&mut node, client, "dead"));
        node.pass(600);
    }
    let expected: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    assert_eq!(there[..8], expected);
    assert_eq!(there[8..], ["letter"]);
}

#[test]
fn a_policy_reaches_queues_already_made_and_its_end_too() {
    for durable in [true, false] {
        let mut node = Node::new(1, 1);
        let client = node.connect(0);
        node.declare(client, "jobs", durable).unwrap();
        for number in 0..5u64 {
            node.publish(client, "", "jobs", "x", number + 1);
        }
        node.pass(1000);
        assert_eq!(node.stat("jobs").ready, 5);
        let vhost = node.fabric.meta().vhost("/").unwrap().id;
        let policy = serde_json::json!({
            "name": "short",
            "pattern": "^jobs$",
            "settings": {"messages_max": 2},
        });
        let policy = serde_json::from_value(policy).unwrap();
        let put = MetaCommand::PutPolicy { vhost, policy };
        node.fabric.apply(node.now.unix, &put).unwrap();
        node.pass(1000);
        let stat = node.stat("jobs");
        assert_eq!((stat.ready, stat.limits.messages_max), (2, Some(2)));
        let name = "short".into();
        let delete = MetaCommand::DeletePolicy { vhost, name };
        node.fabric.apply(node.now.unix, &delete).unwrap();
        node.pass(1000);
        node.publish(client, "", "jobs", "x", 9);
        let stat = node.stat("jobs");
        assert_eq!((stat.ready, stat.limits.messages_max), (3, None));
    }
}
