//! Messages that wait until they are due: when they go out, where to, in which order, and that no restart loses one.
//!
//! Owns: delays in simulated time, and a model of them.
//! Next: `wills.rs`, which go out the same way.

mod node;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::StreamLimits;
use anabranch_core::message::{Message, Quality};
use anabranch_core::meta::{ExchangeSpec, MetaCommand};
use anabranch_core::port::{Question, ShardReply, ShardRequest};
use anabranch_core::shard::{ShardLimits, ShardSetup};
use bytes::Bytes;
use node::kept::Kept;
use node::*;
use proptest::prelude::*;
use std::sync::Arc;

const DAY_MS: u64 = 86_400_000;

fn message(node: &Node, exchange: &str, address: &str, body: &str) -> Message {
    Message {
        exchange: Bytes::copy_from_slice(exchange.as_bytes()),
        address: address.parse().unwrap(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        quality: Quality::AtLeastOnce,
        published: node.now.unix,
        ..Message::default()
    }
}

fn publish(node: &mut Node, client: Client, token: u64, later: Option<UnixMs>, message: Message) {
    let command = Command::Publish {
        token: Token(token),
        mandatory: false,
        patient: true,
        once: None,
        later,
        message: Arc::new(message),
    };
    node.ask(client, command);
}

/// Publishes to the topic exchange after so many milliseconds.
fn delay(node: &mut Node, client: Client, address: &str, body: &str, ms: u64) {
    let later = Some(node.now.unix.after(ms));
    let message = message(node, "topics", address, body);
    publish(node, client, 5, later, message);
}

/// An exchange that delays.
fn declare(node: &mut Node, name: &str, kind: ExchangeKind) {
    let vhost = node.fabric.meta().vhost("/").unwrap().id;
    let exchange = ExchangeSpec {
        name: name.into(),
        kind,
        durable: true,
        auto_delete: false,
        internal: false,
        delays: true,
        alternate: None,
        arguments: Default::default(),
    };
    let command = MetaCommand::DeclareExchange { vhost, exchange };
    node.fabric.apply(node.now.unix, &command).unwrap();
}

fn bind(node: &mut Node, client: Client, exchange: &str, queue: &str, key: &str) {
    let binding = BindingSpec {
        exchange: exchange.into(),
        to: BindTo::Stream(queue.into()),
        key: key.parse().unwrap(),
        filter: key.parse().unwrap(),
        retained: false,
        arguments: Vec::new(),
    };
    let token = Token(9);
    node.reply(
        client,
        Command::Bind {
            token,
            binding: Box::new(binding),
        },
    )
    .unwrap();
}

fn pass(node: &mut Node, ms: u64) {
    node.pass(ms);
    // Settlements linger.
    node.pass(10);
}

/// Messages that wait in all data shards.
fn waiting(node: &mut Node) -> u64 {
    let mut count = 0;
    let ids: Vec<ShardId> = node.data.keys().copied().collect();
    for id in ids {
        let data = node.data.get_mut(&id).unwrap();
        let question = Question::StatAll;
        let mut ask = vec![ShardRequest::Ask {
            ticket: 1,
            question: Box::new(question),
        }];
        let outside = WorkerId(0x7FFF);
        data.shard
            .handle(node.now, outside, &mut ask, &mut &data.journal);
        node.told.clear();
        node.settle();
        for event in node.told.drain(..) {
            if let anabranch_core::port::ShardEvent::Reply {
                result: Ok(ShardReply::Stats(all)),
                ..
            } = event
            {
                let delayed = all.iter().filter(|stat| stat.stream.is_delayed());
                count += delayed.map(|stat| stat.ready).sum::<u64>();
            }
        }
    }
    count
}

/// A node with a queue for everything below `d`, and its consumer.
fn world() -> (Node, Client, Client) {
    let mut node = Node::new(2, 2);
    let publisher = node.connect(0);
    let consumer = node.connect(1);
    node.declare(consumer, "q", true).unwrap();
    node.bind(consumer, "q", "d/#");
    node.consume(consumer, "q", 1000).unwrap();
    (node, publisher, consumer)
}

#[test]
fn a_delayed_message_is_confirmed_when_it_is_stored_and_delivered_when_it_is_due() {
    let (mut node, publisher, consumer) = world();
    node.frames_left = Some(0);
    delay(&mut node, publisher, "d/a", "late", 5000);
    assert!(outcomes(&node.mail(publisher)).is_empty(), "not stored yet");
    node.frames_left = None;
    node.settle();
    let routed = [(5, 5, PublishOutcome::Routed)];
    assert_eq!(outcomes(&node.mail(publisher)), routed);
    assert_eq!(waiting(&mut node), 1);
    pass(&mut node, 4980);
    assert!(node.take_all(consumer).is_empty());
    pass(&mut node, 30);
    assert_eq!(node.take_all(consumer), ["late"]);
    pass(&mut node, 100_000);
    assert!(node.take_all(consumer).is_empty(), "once");
    assert_eq!(waiting(&mut node), 0);
}

#[test]
fn a_time_that_has_come_already_is_now() {
    let (mut node, publisher, consumer) = world();
    let past = Some(UnixMs(node.now.unix.0 - 1));
    let old = message(&node, "topics", "d/a", "past");
    publish(&mut node, publisher, 1, past, old);
    delay(&mut node, publisher, "d/a", "now", 0);
    assert_eq!(node.take_all(consumer), ["past", "now"]);
}

#[test]
fn a_delay_has_no_limit_of_49_days() {
    let (mut node, publisher, _) = world();
    delay(
        &mut node,
        publisher,
        "d/a",
        "a thousand days",
        1000 * DAY_MS,
    );
    pass(&mut node, 999 * DAY_MS);
    node.restart();
    pass(&mut node, DAY_MS - 100);
    assert_eq!(waiting(&mut node), 1);
    let consumer = node.connect(1);
    node.consume(consumer, "q", 10).unwrap();
    pass(&mut node, 200);
    assert_eq!(node.take_all(consumer), ["a thousand days"]);
}

#[test]
fn equal_times_keep_the_order_of_an_exchange_and_a_sooner_one_overtakes() {
    let (mut node, publisher, consumer) = world();
    delay(&mut node, publisher, "d/a", "last", 9000);
    for body in ["1", "2", "3"] {
        delay(&mut node, publisher, "d/a", body, 5000);
    }
    delay(&mut node, publisher, "d/a", "first", 100);
    pass(&mut node, 10_000);
    let all = ["first", "1", "2", "3", "last"];
    assert_eq!(node.take_all(consumer), all);
}

#[test]
fn an_exchange_that_delays_asks_the_message() {
    let (mut node, publisher, consumer) = world();
    declare(&mut node, "late", ExchangeKind::Direct);
    bind(&mut node, consumer, "late", "q", "k");
    for (body, properties) in [("waits", "300"), ("asks nothing", "")] {
        let asking = Message {
            origin: WAITS,
            properties: Bytes::from(properties),
            ..message(&node, "late", "k", body)
        };
        publish(&mut node, publisher, 1, None, asking.clone());
        let elsewhere = Message {
            exchange: Bytes::from_static(b"topics"),
            address: "d/x".parse().unwrap(),
            body: Bytes::from_static(b"another exchange"),
            ..asking
        };
        publish(&mut node, publisher, 2, None, elsewhere);
    }
    let at_once = ["another exchange", "asks nothing", "another exchange"];
    assert_eq!(node.take_all(consumer), at_once);
    pass(&mut node, 300);
    let mail = node.mail(consumer);
    assert_eq!(bodies(&mail), ["waits"]);
    let late = &mail.deliveries[0].message;
    assert_eq!(
        (&late.exchange[..], &late.properties[..]),
        (&b"late"[..], &b"waited"[..])
    );
}

#[test]
fn the_bindings_that_count_are_those_of_the_time_it_is_due() {
    let (mut node, publisher, consumer) = world();
    declare(&mut node, "late", ExchangeKind::Direct);
    let asks = |node: &Node, key: &str| Message {
        origin: WAITS,
        properties: Bytes::from_static(b"500"),
        ..message(node, "late", key, key)
    };
    for key in ["bound-later", "never-bound"] {
        let asking = asks(&node, key);
        publish(&mut node, publisher, 1, None, asking);
    }
    bind(&mut node, consumer, "late", "q", "bound-later");
    pass(&mut node, 600);
    assert_eq!(node.take_all(consumer), ["bound-later"]);
    assert_eq!(waiting(&mut node), 0, "what nobody wants is gone");
    // Nor is anything left of an exchange that is gone itself.
    let asking = asks(&node, "bound-later");
    publish(&mut node, publisher, 1, None, asking);
    let delete = Command::DeleteExchange {
        token: Token(9),
        name: "late".into(),
        if_unused: false,
    };
    node.reply(publisher, delete).unwrap();
    pass(&mut node, 600);
    assert_eq!(waiting(&mut node), 0);
    assert!(node.take_all(consumer).is_empty());
}

#[test]
fn what_waits_is_refused_at_once_when_it_would_be_refused() {
    let (mut node, publisher, _) = world();
    let lost = message(&node, "nowhere", "d/a", "lost");
    let later = Some(node.now.unix.after(1000));
    publish(&mut node, publisher, 3, later, lost);
    let missing = PublishOutcome::Refused(ErrorKind::NotFound);
    assert_eq!(outcomes(&node.mail(publisher)), [(3, 3, missing)]);
}

#[test]
fn its_time_to_live_begins_when_it_is_due_and_the_last_value_is_kept_then() {
    let (mut node, publisher, consumer) = world();
    let lives = Message {
        retain: true,
        expires: Some(node.now.unix.after(3000)),
        ..message(&node, "topics", "d/a", "kept")
    };
    let later = Some(node.now.unix.after(10_000));
    publish(&mut node, publisher, 1, later, lives);
    pass(&mut node, 9000);
    let early = node.connect(0);
    node.session(early, "early", true, 0);
    let wants = || SessionFilter {
        spec: filter("d/#"),
        group: None,
        retained: SendRetained::Always,
    };
    node.subscribe_with(early, vec![wants()]);
    assert!(node.mail(early).deliveries.is_empty(), "no value yet");
    pass(&mut node, 1000);
    assert_eq!(node.take_all(consumer), ["kept"]);
    let mail = node.mail(early);
    assert_eq!(bodies(&mail), ["kept"]);
    let due = mail.deliveries[0].message.published;
    assert_eq!(mail.deliveries[0].message.expires, Some(due.after(3000)));
    let late = node.connect(0);
    node.session(late, "late", true, 0);
    node.subscribe_with(late, vec![wants()]);
    assert_eq!(bodies(&node.mail(late)), ["kept"], "the last value");
}

#[test]
fn one_that_nobody_wants_does_not_hold_up_others() {
    let (mut node, publisher, consumer) = world();
    delay(&mut node, publisher, "e/nobody", "unwanted", 100);
    delay(&mut node, publisher, "d/a", "wanted", 100);
    pass(&mut node, 100);
    assert_eq!(node.take_all(consumer), ["wanted"]);
    assert_eq!(waiting(&mut node), 0);
}

#[test]
fn many_that_are_due_at_once_go_out_a_part_at_a_time() {
    let (mut node, publisher, consumer) = world();
    node.consume_with(consumer, reader("q", ConsumerTag(8), u32::MAX))
        .unwrap();
    for number in 0..3000u64 {
        delay(&mut node, publisher, "d/a", &number.to_string(), 1000);
    }
    pass(&mut node, 1000);
    let mut all: Vec<u64> = Vec::new();
    for _ in 0..20 {
        let bodies = node.take_all(consumer);
        all.extend(bodies.iter().map(|body| body.parse::<u64>().unwrap()));
        pass(&mut node, 20);
    }
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..3000), "{} came", all.len());
    assert_eq!(waiting(&mut node), 0);
}

#[test]
fn beyond_the_limit_a_publish_is_refused_and_nothing_is_lost() {
    let (mut node, publisher, consumer) = world();
    node.delayed_max = 3;
    let authority = node.authority.clone();
    for (id, data) in &mut node.data {
        data.shard = anabranch_core::shard::Shard::new(ShardSetup {
            id: *id,
            incarnation: node.incarnation,
            workers: 1,
            limits: ShardLimits {
                delayed_max: 3,
                ..ShardLimits::default()
            },
            fabric: node.fabric.clone(),
            authority: authority.clone(),
            codecs: codecs(),
        });
        data.journal.replay(&mut data.shard);
    }
    node.consume_with(consumer, reader("q", ConsumerTag(8), 100))
        .unwrap();
    for _ in 0..5 {
        // One address is one shard's.
        delay(&mut node, publisher, "d/a", "x", 1000);
    }
    let told = outcomes(&node.mail(publisher));
    let refused = told
        .iter()
        .filter(|(_, _, how)| *how == PublishOutcome::Refused(ErrorKind::Busy));
    assert_eq!((told.len(), refused.count()), (5, 2));
    pass(&mut node, 1000);
    assert_eq!(node.take_all(consumer).len(), 3);
    delay(&mut node, publisher, "d/a", "y", 1000);
    let routed = [(5, 5, PublishOutcome::Routed)];
    assert_eq!(outcomes(&node.mail(publisher)), routed, "room again");
}

#[test]
fn an_operator_drops_what_waits() {
    let (mut node, publisher, consumer) = world();
    for _ in 0..3 {
        delay(&mut node, publisher, "d/a", "x", 1000);
    }
    let topics = {
        let meta = node.fabric.meta();
        let vhost = meta.vhost("/").unwrap().id;
        meta.exchange(vhost, "topics").unwrap().id
    };
    for (id, data) in &mut node.data {
        let stream = StreamId::of_delayed(*id, topics);
        let question = Question::Purge { stream };
        let mut ask = vec![ShardRequest::Ask {
            ticket: 2,
            question: Box::new(question),
        }];
        data.shard
            .handle(node.now, WorkerId(0), &mut ask, &mut &data.journal);
    }
    node.settle();
    assert_eq!(waiting(&mut node), 0);
    delay(&mut node, publisher, "d/a", "new", 1000);
    pass(&mut node, 2000);
    assert_eq!(node.take_all(consumer), ["new"]);
}

#[test]
fn what_was_dropped_may_wait_before_it_comes_back() {
    let (mut node, publisher, consumer) = world();
    declare(&mut node, "late", ExchangeKind::Direct);
    let limits = StreamLimits {
        dead_letter: Some(anabranch_core::limits::DeadLetterTo {
            exchange: "late".into(),
            key: None,
        }),
        ..StreamLimits::default()
    };
    node.declare_with(consumer, "work", true, limits).unwrap();
    bind(&mut node, consumer, "late", "q", "work");
    let asks = Message {
        origin: WAITS,
        properties: Bytes::from_static(b"5000"),
        ..message(&node, "", "work", "again")
    };
    publish(&mut node, publisher, 1, None, asks);
    let got = node.get(consumer, "work", ConsumerTag(20)).unwrap();
    pass(&mut node, 60_000);
    node.settle_one(consumer, ConsumerTag(20), got.offset, Outcome::Rejected);
    pass(&mut node, 4900);
    assert!(node.take_all(consumer).is_empty());
    pass(&mut node, 200);
    assert_eq!(node.take_all(consumer), ["again"]);
}

#[test]
fn a_crash_on_the_way_brings_it_again() {
    let (mut node, publisher, _) = world();
    delay(&mut node, publisher, "d/a", "x", 1000);
    node.pass(995);
    node.hold_events = true;
    node.pass(100);
    node.hold_events = false;
    node.restart();
    let consumer = node.connect(1);
    node.consume(consumer, "q", 10).unwrap();
    pass(&mut node, 100);
    assert_eq!(node.take_all(consumer), ["x"]);
    node.restart();
    pass(&mut node, 2000);
    assert_eq!(waiting(&mut node), 0);
}

#[derive(Clone, Debug)]
enum Move {
    Publish {
        address: u8,
        ms: u64,
    },
    Pass(u64),
    Crash,
    /// From checkpoints made now instead of the journals.
    Checkpoint,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let publish = (
        0u8..4,
        prop_oneof![0u64..50, 0u64..5000, 0u64..100 * DAY_MS],
    )
        .prop_map(|(address, ms)| Move::Publish { address, ms });
    let one = prop_oneof![
        6 => publish,
        3 => prop_oneof![1u64..100, 1u64..5000, 1u64..DAY_MS].prop_map(Move::Pass),
        1 => Just(Move::Crash),
        1 => Just(Move::Checkpoint),
    ];
    proptest::collection::vec(one, 1..60)
}

/// The shards as their checkpoints have them: what was written since goes on in the same journals.
fn by_checkpoint(node: &mut Node) {
    node.restart();
    for (id, data) in &mut node.data {
        let mut kept = Kept::default();
        kept.save(&mut data.shard);
        let mut again = shard(id.0, node.incarnation, &node.fabric, &node.authority);
        kept.restore(&mut again);
        again.begin();
        data.shard = again;
    }
    let workers = node.workers.len() as u16;
    node.start_workers(workers);
    node.settle();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every message comes, and none before it is due; without a crash, once.
    #[test]
    fn every_delayed_message_comes_in_its_time(moves in moves()) {
        let (mut node, mut publisher, mut consumer) = world();
        let mut crashes = 0;
        let mut due: Vec<u64> = Vec::new();
        let mut came: Vec<Vec<u64>> = Vec::new();
        let mut look = |node: &mut Node, consumer: Client, due: &[u64]| {
            for body in node.take_all(consumer) {
                let number: usize = body.parse().unwrap();
                came.resize(came.len().max(number + 1), Vec::new());
                let now = node.now.unix.0;
                assert!(due[number] <= now, "{number} came before {}", due[number]);
                came[number].push(now);
            }
        };
        for one in moves {
            match one {
                Move::Publish { address, ms } => {
                    let body = due.len().to_string();
                    due.push(node.now.unix.0 + ms);
                    delay(&mut node, publisher, &format!("d/{address}"), &body, ms);
                    let told = outcomes(&node.mail(publisher));
                    prop_assert_eq!(told, [(5, 5, PublishOutcome::Routed)]);
                }
                Move::Pass(ms) => pass(&mut node, ms),
                Move::Crash | Move::Checkpoint => {
                    crashes += 1;
                    match one {
                        Move::Crash => node.restart(),
                        _ => by_checkpoint(&mut node),
                    }
                    publisher = node.connect(0);
                    consumer = node.connect(1);
                    node.consume(consumer, "q", 1000).unwrap();
                }
            }
            look(&mut node, consumer, &due);
        }
        pass(&mut node, 101 * DAY_MS);
        pass(&mut node, 1000);
        look(&mut node, consumer, &due);
        for (number, time) in due.iter().enumerate() {
            let times = came.get(number).map_or(0, Vec::len);
            // Each crash may bring another copy, and all those again that their reader had not settled.
            let expected = 1..=(crashes + 1) * (crashes + 2) / 2;
            prop_assert!(expected.contains(&times), "{} due {} came {} times", number, time, times);
        }
        prop_assert_eq!(waiting(&mut node), 0);
    }
}

/// Rounds that follow each other closely put off nothing: each of them looks.
#[test]
fn rounds_that_follow_closely_do_not_put_off_what_is_due() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare(client, "q", true).unwrap();
    node.bind(client, "q", "a");
    node.consume(client, "q", 10).unwrap();
    delay(&mut node, client, "a", "late", 1_000);
    for _ in 0..199 {
        node.pass(5);
    }
    assert!(node.mail(client).deliveries.is_empty());
    for _ in 0..2 {
        node.pass(5);
    }
    assert_eq!(node.take_all(client), ["late"]);
}
