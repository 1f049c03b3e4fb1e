//! What must hold across `worker.rs`, `shard.rs` and `router.rs` together, for a node as one value.
//!
//! Next: `tests/tests` for the same with real clients.

mod node;

use anabranch_core::address::Address;
use anabranch_core::authority::{Action, Authority, Question, Resource, Verdict};
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::StreamLimits;
use anabranch_core::message::{Message, Quality};
use anabranch_core::port::ShardRequest;
use bytes::Bytes;
use node::{Client, Node, TAG, bodies, outcomes, publishing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn a_live_session_and_a_durable_queue_get_the_same_message() {
    for workers in [1, 2] {
        let mut node = Node::new(workers, 2);
        let (publisher, application, device) = (
            node.connect(0),
            node.connect(workers - 1),
            node.connect(workers - 1),
        );
        node.declare(application, "jobs", true).unwrap();
        node.bind(application, "jobs", "plant/+/temp");
        node.consume(application, "jobs", 10).unwrap();
        assert!(!node.session(device, "d", true, 0));
        assert_eq!(
            node.subscribe(device, "plant/#"),
            [Ok(Quality::AtLeastOnce)]
        );
        node.mail(device);
        node.publish(publisher, "topics", "plant/7/temp", "21", 5);
        node.publish(publisher, "topics", "elsewhere", "no", 6);
        let told = node.mail(publisher);
        assert_eq!(
            outcomes(&told),
            [
                (5, 5, PublishOutcome::Routed),
                (6, 6, PublishOutcome::Unroutable)
            ]
        );
        assert_eq!(bodies(&node.mail(application)), ["21"]);
        assert_eq!(bodies(&node.mail(device)), ["21"]);
    }
}

#[test]
fn what_was_confirmed_is_there_after_a_restart_in_order_and_what_was_settled_is_not() {
    let mut node = Node::new(1, 2);
    let client = node.connect(0);
    node.declare(client, "jobs", true).unwrap();
    for number in 0..5 {
        node.publish(client, "", "jobs", &format!("m{number}"), 10 + number);
    }
    let told = node.mail(client);
    let each = (10..15).map(|token| (token, token, PublishOutcome::Routed));
    assert_eq!(outcomes(&told), each.collect::<Vec<_>>());
    node.consume(client, "jobs", 3).unwrap();
    let got = node.mail(client);
    assert_eq!(bodies(&got), ["m0", "m1", "m2"]);
    node.settle_one(client, TAG, got.deliveries[1].offset, Outcome::Accepted);
    node.pass(10);
    node.pass(10);
    node.restart();
    let client = node.connect(0);
    node.consume(client, "jobs", 100).unwrap();
    let got = node.mail(client);
    assert_eq!(bodies(&got), ["m0", "m2", "m3", "m4"]);
    let tries: Vec<u32> = got
        .deliveries
        .iter()
        .map(|delivery| delivery.attempt)
        .collect();
    // m3 was handed out when m1 was settled, before the restart.
    assert_eq!(tries, [2, 2, 2, 1]);
}

#[test]
fn a_session_that_is_away_gets_what_it_missed_and_a_takeover_stops_the_old_connection() {
    let mut node = Node::new(2, 2);
    let device = node.connect(0);
    node.session(device, "d", false, 3600);
    node.subscribe(device, "a/#");
    node.disconnect(device);
    let publisher = node.connect(1);
    node.publish(publisher, "topics", "a/1", "missed", 1);
    assert_eq!(
        outcomes(&node.mail(publisher)),
        [(1, 1, PublishOutcome::Routed)]
    );
    node.restart();
    let back = node.connect(1);
    assert!(node.session(back, "d", false, 3600));
    assert_eq!(bodies(&node.mail(back)), ["missed"]);
    let again = node.connect(0);
    assert!(node.session(again, "d", false, 3600));
    assert_eq!(node.mail(back).stop, Some(StopReason::TakenOver));
    let got = node.mail(again);
    assert_eq!(
        (bodies(&got), got.deliveries[0].attempt),
        (vec!["missed"], 2)
    );
    node.disconnect(back);
    node.publish(again, "topics", "a/2", "self", 1);
    assert_eq!(bodies(&node.mail(again)), ["self"]);
}

#[test]
fn a_session_ends_when_its_time_is_over() {
    let mut node = Node::new(1, 1);
    let device = node.connect(0);
    node.session(device, "d", false, 2);
    node.subscribe(device, "a");
    node.disconnect(device);
    node.pass(1_000);
    let back = node.connect(0);
    assert!(node.session(back, "d", false, 2));
    node.disconnect(back);
    node.pass(2_500);
    let late = node.connect(0);
    assert!(!node.session(late, "d", false, 2));
}

#[test]
fn a_lost_connection_releases_what_it_held_in_its_place() {
    let mut node = Node::new(1, 1);
    let (first, second) = (node.connect(0), node.connect(0));
    node.declare(first, "q", false).unwrap();
    for number in 0..4 {
        node.publish(first, "", "q", &format!("m{number}"), 0);
    }
    node.consume(first, "q", 2).unwrap();
    assert_eq!(bodies(&node.mail(first)), ["m0", "m1"]);
    let stat = node.stat("q");
    assert_eq!((stat.ready, stat.unsettled, stat.consumers), (2, 2, 1));
    node.disconnect(first);
    node.consume(second, "q", 9).unwrap();
    assert_eq!(bodies(&node.mail(second)), ["m0", "m1", "m2", "m3"]);
}

#[test]
fn what_a_full_reader_is_not_handed_stays_and_credit_brings_it() {
    let mut node = Node::new(1, 1);
    let device = node.connect(0);
    node.session(device, "d", true, 0);
    node.subscribe(device, "#");
    for number in 0..15 {
        node.publish(device, "topics", "a", &format!("m{number}"), 0);
    }
    let got = node.mail(device);
    assert_eq!(got.deliveries.len(), 10);
    let settle = Command::Settle {
        consumer: ConsumerTag(0),
        first: got.deliveries[0].offset,
        last: got.deliveries[9].offset,
        outcome: Outcome::Accepted,
    };
    node.ask(device, settle);
    assert_eq!(
        bodies(&node.mail(device)),
        ["m10", "m11", "m12", "m13", "m14"]
    );
}

#[test]
fn deleting_a_queue_tells_its_consumers_and_exclusive_ones_go_with_their_connection() {
    let mut node = Node::new(2, 1);
    let (owner, other) = (node.connect(0), node.connect(1));
    node.declare(owner, "q", true).unwrap();
    node.consume(other, "q", 1).unwrap();
    node.publish(owner, "", "q", "m", 0);
    node.publish(owner, "", "q", "m", 0);
    let delete = Command::DeleteStream {
        token: Token(1),
        name: Arc::from("q"),
        if_unused: false,
        if_empty: false,
    };
    assert_eq!(node.reply(owner, delete), Ok(Reply::Count(1)));
    assert!(
        node.mail(other)
            .answers
            .iter()
            .any(|answer| matches!(answer, Answer::Ended { .. }))
    );
    let declare = StreamDeclare {
        name: Arc::from("mine"),
        key: "mine".parse().unwrap(),
        passive: false,
        durable: false,
        exclusive: true,
        auto_delete: false,
        private: false,
        limits: StreamLimits::default(),
        arguments: Vec::new(),
    };
    node.reply(
        owner,
        Command::DeclareStream {
            token: Token(1),
            declare: Box::new(declare),
        },
    )
    .unwrap();
    assert_eq!(node.consume(other, "mine", 1), Err(ErrorKind::Locked));
    node.disconnect(owner);
    assert_eq!(node.consume(other, "mine", 1), Err(ErrorKind::NotFound));
}

#[test]
fn a_repeated_publish_is_stored_once() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare(client, "q", true).unwrap();
    let stream = {
        let meta = node.fabric.meta();
        let vhost = meta.vhost("/").unwrap().id;
        meta.streams(vhost).next().map(|stream| stream.id)
    };
    let message = Arc::new(Message {
        body: Bytes::from_static(b"once"),
        ..Message::default()
    });
    let publish = || ShardRequest::Publish {
        sequence: Sequence(1),
        streams: stream.into_iter().collect(),
        by_topic: None,
        patient: true,
        extra: None,
        message: message.clone(),
    };
    for _ in 0..2 {
        let data = node.data.get_mut(&ShardId(1)).unwrap();
        data.shard.handle(
            node.now,
            WorkerId(0),
            &mut vec![publish()],
            &mut &data.journal,
        );
        node.settle();
    }
    node.consume(client, "q", 10).unwrap();
    assert_eq!(bodies(&node.mail(client)), ["once"]);
}

/// Denies whatever address starts with `secret`, and everything once `shut`.
#[derive(Default)]
struct Changing {
    generation: AtomicU64,
}

impl Authority for Changing {
    fn decide(&self, question: &Question<'_>) -> Verdict {
        let shut = self.generation() > 0;
        let allowed = match (question.action, question.resource) {
            (Action::Receive, Resource::Filter(_)) => false,
            (Action::Receive, Resource::Topic(address)) => !address.0.starts_with(b"secret"),
            (Action::Consume | Action::Subscribe, _) => !shut,
            _ => true,
        };
        Verdict {
            allowed,
            rule: None,
        }
    }
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
    fn circumstantial(&self, _: Action) -> bool {
        false
    }
}

#[test]
fn what_a_reader_may_not_receive_is_skipped_and_not_stuck() {
    let mut node = Node::with(1, 1, Arc::new(Changing::default()));
    let (client, device) = (node.connect(0), node.connect(0));
    node.declare(client, "q", true).unwrap();
    node.bind(client, "q", "#");
    node.session(device, "d", true, 0);
    node.subscribe(device, "#");
    node.consume(client, "q", 10).unwrap();
    for address in ["open/1", "secret/2", "open/3"] {
        node.publish(client, "topics", address, address, 0);
    }
    assert_eq!(bodies(&node.mail(client)), ["open/1", "open/3"]);
    assert_eq!(bodies(&node.mail(device)), ["open/1", "open/3"]);
    let passive = StreamDeclare {
        name: Arc::from("q"),
        key: Address::default(),
        passive: true,
        durable: true,
        exclusive: false,
        auto_delete: false,
        private: false,
        limits: StreamLimits::default(),
        arguments: Vec::new(),
    };
    let told = node.data.get_mut(&ShardId(1)).unwrap().shard.withheld(Now {
        monotonic: MonotonicMs(5_000),
        ..node.now
    });
    assert_eq!(told.map(|told| told.count), Some(1), "and is told, once");
    let counts = node.reply(
        client,
        Command::DeclareStream {
            token: Token(1),
            declare: Box::new(passive),
        },
    );
    assert_eq!(
        counts,
        Ok(Reply::Stream {
            ready: 1,
            consumers: 1
        })
    );
}

#[test]
fn a_lost_right_ends_consumers_and_subscribers_within_a_second() {
    let authority = Arc::new(Changing::default());
    let mut node = Node::with(1, 1, authority.clone());
    let (client, device) = (node.connect(0), node.connect(0));
    node.declare(client, "q", true).unwrap();
    node.consume(client, "q", 10).unwrap();
    node.session(device, "d", true, 0);
    node.subscribe(device, "open/#");
    authority.generation.store(1, Ordering::Relaxed);
    node.pass(300);
    let told = node.mail(client);
    assert!(told.answers.iter().any(
        |answer| matches!(answer, Answer::Ended { why, .. } if why.kind == ErrorKind::AccessRefused)
    ));
    assert_eq!(node.mail(device).stop, Some(StopReason::Unauthorised));
    assert_eq!(node.consume(client, "q", 1), Err(ErrorKind::AccessRefused));
}

#[test]
fn publishers_to_a_full_shard_are_parked_while_settlements_free_it() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare(client, "q", true).unwrap();
    node.consume(client, "q", 1).unwrap();
    node.publish(client, "", "q", "m0", 1);
    let got = node.mail(client);
    node.data
        .get_mut(&ShardId(1))
        .unwrap()
        .shard
        .set_room(false);
    node.settle();
    node.publish(client, "", "q", "m1", 2);
    node.publish(client, "", "q", "m2", 3);
    let told = node.mail(client);
    let impatient = Command::Publish {
        token: Token(9),
        mandatory: false,
        patient: false,
        once: None,
        later: None,
        message: Arc::new(Message {
            address: "q".parse().unwrap(),
            ..Message::default()
        }),
    };
    node.ask(client, impatient);
    let refused = PublishOutcome::Refused(ErrorKind::Busy);
    assert_eq!(outcomes(&node.mail(client)), [(9, 9, refused)]);
    assert!(outcomes(&told).is_empty());
    assert!(matches!(told.answers[..], [Answer::Blocked(Some(_))]));
    let settle = Command::Settle {
        consumer: ConsumerTag(7),
        first: got.deliveries[0].offset,
        last: got.deliveries[0].offset,
        outcome: Outcome::Accepted,
    };
    node.ask(client, settle);
    let stat = StreamDeclare {
        name: Arc::from("q"),
        key: Address::default(),
        passive: true,
        durable: true,
        exclusive: false,
        auto_delete: false,
        private: false,
        limits: StreamLimits::default(),
        arguments: Vec::new(),
    };
    let command = Command::DeclareStream {
        token: Token(1),
        declare: Box::new(stat),
    };
    assert_eq!(
        node.reply(client, command),
        Ok(Reply::Stream {
            ready: 0,
            consumers: 1
        })
    );
    node.data.get_mut(&ShardId(1)).unwrap().shard.set_room(true);
    node.settle();
    let told = node.mail(client);
    assert_eq!(outcomes(&told), [(2, 3, PublishOutcome::Routed)]);
    assert!(
        told.answers
            .iter()
            .any(|answer| *answer == Answer::Blocked(None))
    );
    assert_eq!(bodies(&told), ["m1"]);
}

/// `gateway.rs`: commands of one connection take effect in order for everything that concerns one stream.
#[test]
fn a_question_sees_what_its_connection_published_before() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare(client, "q", true).unwrap();
    let publish = |body: &'static str| {
        publishing(
            1,
            Message {
                address: "q".parse().unwrap(),
                body: Bytes::from_static(body.as_bytes()),
                publisher: client.id,
                ..Message::default()
            },
        )
    };
    let get = |token| Command::Get {
        token: Token(token),
        stream: Arc::from("q"),
        consumer: ConsumerTag(3),
        presettled: true,
    };
    let purge = Command::Purge {
        token: Token(11),
        stream: Arc::from("q"),
    };
    let mut all = vec![publish("a"), publish("b"), get(10), purge, publish("c")];
    all.extend([get(12), publish("d")]);
    node.workers[0].submit(node.now, client.id, &mut all);
    node.settle();
    let told = node.mail(client).answers.into_iter();
    let done: Vec<(u64, String)> = told
        .filter_map(|answer| match answer {
            Answer::Done {
                token,
                result: Ok(Reply::Got { delivery, ready }),
            } => {
                let body = delivery.map(|delivery| delivery.message.body.clone());
                Some((token.0, format!("{body:?} {ready}")))
            }
            Answer::Done { token, result } => Some((token.0, format!("{result:?}"))),
            _ => None,
        })
        .collect();
    let expected = [
        (10, "Some(b\"a\") 1"),
        (11, "Ok(Count(1))"),
        (12, "Some(b\"c\") 0"),
    ];
    assert_eq!(done, expected.map(|(token, text)| (token, text.to_owned())));
    // A connection that ends meanwhile has published all the same.
    node.workers[0].submit(
        node.now,
        client.id,
        &mut vec![publish("e"), get(13), publish("f")],
    );
    node.disconnect(client);
    let other = node.connect(0);
    node.consume(other, "q", 10).unwrap();
    assert_eq!(bodies(&node.mail(other)), ["d", "e", "f"]);
}

/// `gateway.rs`: commands of one connection take effect in the order they were put into `Outputs`.
#[test]
fn a_publish_finds_what_its_connection_asked_for_before() {
    let mut node = Node::new(2, 2);
    let client = node.connect(1);
    for (durable, name) in [(true, "kept"), (false, "held")] {
        let publish = |token, exchange: &'static [u8], address: &str| {
            publishing(
                token,
                Message {
                    exchange: Bytes::from_static(exchange),
                    address: address.parse().unwrap(),
                    publisher: client.id,
                    ..Message::default()
                },
            )
        };
        let declare = StreamDeclare {
            name: Arc::from(name),
            key: name.parse().unwrap(),
            passive: false,
            durable,
            exclusive: false,
            auto_delete: false,
            private: false,
            limits: StreamLimits::default(),
            arguments: Vec::new(),
        };
        let binding = BindingSpec {
            exchange: Arc::from("topics"),
            to: BindTo::Stream(Arc::from(name)),
            key: Address::default(),
            retained: false,
            filter: "a".parse().unwrap(),
            arguments: Vec::new(),
        };
        let mut all = vec![
            Command::DeclareStream {
                token: Token(20),
                declare: Box::new(declare),
            },
            publish(1, b"", name),
            Command::Bind {
                token: Token(21),
                binding: Box::new(binding.clone()),
            },
            publish(2, b"topics", "a"),
            Command::Unbind {
                token: Token(22),
                binding: Box::new(binding),
            },
            publish(3, b"topics", "a"),
            Command::DeleteStream {
                token: Token(23),
                name: Arc::from(name),
                if_unused: false,
                if_empty: false,
            },
            publish(4, b"", name),
        ];
        node.workers[1].submit(node.now, client.id, &mut all);
        node.settle();
        let told = node.mail(client);
        let mut taken = outcomes(&told);
        taken.sort_by_key(|(first, ..)| *first);
        let (routed, unroutable) = (PublishOutcome::Routed, PublishOutcome::Unroutable);
        let split: Vec<_> = taken
            .iter()
            .flat_map(|(first, last, outcome)| (*first..=*last).map(|token| (token, *outcome)))
            .collect();
        let expected = [(1, routed), (2, routed), (3, unroutable), (4, unroutable)];
        assert_eq!(split, expected, "{name}");
        let deleted = told.answers.iter().any(|answer| {
            matches!(
                answer,
                Answer::Done {
                    token: Token(23),
                    result: Ok(Reply::Count(2))
                }
            )
        });
        assert!(deleted, "{name}: {:?}", told.answers);
    }
}

#[test]
fn a_session_hears_what_its_connection_publishes_behind_a_subscription() {
    let mut node = Node::new(2, 2);
    for expiry_s in [0, 3600] {
        let client = node.connect(1);
        node.session(client, "d", true, expiry_s);
        let spec = FilterSpec {
            filter: "own".parse().unwrap(),
            quality: Quality::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            identifier: 0,
        };
        let publish = |body: &'static [u8]| {
            publishing(
                0,
                Message {
                    exchange: Bytes::from_static(b"topics"),
                    address: "own".parse().unwrap(),
                    body: Bytes::from_static(body),
                    ..Message::default()
                },
            )
        };
        let mut all = vec![
            publish(b"before"),
            Command::Subscribe {
                token: Token(20),
                filters: vec![SessionFilter {
                    spec: spec.clone(),
                    group: None,
                    retained: SendRetained::Never,
                }],
            },
            publish(b"between"),
            Command::Unsubscribe {
                token: Token(21),
                filters: vec![FilterName {
                    group: None,
                    filter: spec.filter,
                }],
            },
            publish(b"after"),
        ];
        node.workers[1].submit(node.now, client.id, &mut all);
        node.settle();
        assert_eq!(bodies(&node.mail(client)), ["between"]);
        node.disconnect(client);
    }
}

#[test]
fn sessions_that_do_not_read_lose_their_own_messages_and_stop_nobody() {
    let mut node = Node::new(1, 1);
    node.volatile_bytes_max = 20_000;
    node.start_workers(1);
    let (publisher, reader) = (node.connect(0), node.connect(0));
    let slow: Vec<Client> = (0..3).map(|_| node.connect(0)).collect();
    for (number, client) in slow.iter().enumerate() {
        node.session(*client, &format!("slow{number}"), true, 0);
        node.subscribe(*client, "a");
    }
    node.session(reader, "reader", true, 0);
    node.subscribe(reader, "a");
    node.declare(publisher, "q", false).unwrap();
    node.consume(publisher, "q", 10).unwrap();
    let body = "x".repeat(500);
    for number in 1..=200 {
        node.publish(publisher, "topics", "a", &body, number);
        let got = node.mail(reader);
        assert_eq!(
            got.deliveries.len(),
            1,
            "message {number} reaches who reads"
        );
        let settle = Command::Settle {
            consumer: ConsumerTag(0),
            first: got.deliveries[0].offset,
            last: got.deliveries[0].offset,
            outcome: Outcome::Accepted,
        };
        node.ask(reader, settle);
        let told = node.mail(publisher);
        assert_eq!(outcomes(&told), [(number, number, PublishOutcome::Routed)]);
        assert!(
            !told
                .answers
                .iter()
                .any(|answer| matches!(answer, Answer::Blocked(_)))
        );
    }
    node.publish(publisher, "", "q", "queues go on", 999);
    assert_eq!(bodies(&node.mail(publisher)), ["queues go on"]);
}

/// A closed segment lost a bit: the queue answered "empty" for ever though thousands waited behind it.
#[test]
fn a_damaged_message_does_not_hold_up_those_behind_it() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare(client, "q", true).unwrap();
    for body in ["first", "damaged", "last"] {
        node.publish(client, "", "q", body, 0);
    }
    let journal = &mut node.data.get_mut(&ShardId(1)).unwrap().journal;
    let at = journal
        .bytes
        .windows(7)
        .position(|bytes| bytes == b"damaged")
        .unwrap();
    journal.bytes[at] ^= 1;
    let get = Command::Get {
        token: Token(1),
        stream: Arc::from("q"),
        consumer: ConsumerTag(3),
        presettled: true,
    };
    for expected in ["first", "last"] {
        match node.reply(client, get.clone()) {
            Ok(Reply::Got {
                delivery: Some(got),
                ..
            }) => assert_eq!(got.message.body, expected),
            other => panic!("unexpected {other:?}"),
        }
    }
    node.consume(client, "q", 10).unwrap();
    node.publish(client, "", "q", "behind", 0);
    assert_eq!(bodies(&node.mail(client)), ["behind"]);
}
