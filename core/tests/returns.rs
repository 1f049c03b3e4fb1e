//! What readers give back, or keep too long: when it is tried again, by whom, and in which order.
//!
//! Owns: waiting after a return, and deliveries that are not settled in time, in simulated time.
//! Next: `limits.rs` (what is dropped when it came back too often).

mod node;

use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::{Mode, Retry, StreamLimits};
use anabranch_core::message::Quality;
use anabranch_core::meta::MetaCommand;
use anabranch_core::meta::policy::{AppliesTo, Policy, Settings};
use anabranch_core::port::{Question, ShardReply};
use node::*;
use std::sync::Arc;

fn retrying(min_ms: u64, max_ms: Option<u64>, multiplier: Option<u32>) -> StreamLimits {
    StreamLimits {
        retry: Some(Retry {
            min_ms,
            max_ms,
            multiplier,
        }),
        ..StreamLimits::default()
    }
}

fn timed(ms: u64) -> StreamLimits {
    StreamLimits {
        ack_timeout_ms: Some(ms),
        ..StreamLimits::default()
    }
}

/// Bodies and attempts of what a consumer was given since the last time.
fn taken(node: &mut Node, client: Client) -> Vec<(String, u32)> {
    let mail = node.mail(client);
    let all = mail.deliveries.iter().map(|delivery| {
        let body = std::str::from_utf8(&delivery.message.body).unwrap();
        (body.to_owned(), delivery.attempt)
    });
    all.collect()
}

fn one(body: &str, attempt: u32) -> Vec<(String, u32)> {
    vec![(body.to_owned(), attempt)]
}

fn give_back(node: &mut Node, client: Client, offset: u64) {
    node.settle_one(client, TAG, Offset(offset), Outcome::Released);
}

fn pass(node: &mut Node, ms: u64) {
    node.pass(ms);
    node.pass(1);
}

/// A queue with a consumer, and somebody who publishes to it.
fn queue(durable: bool, limits: StreamLimits) -> (Node, Client, Client) {
    let mut node = Node::new(2, 1);
    let publisher = node.connect(0);
    let consumer = node.connect(1);
    node.declare_with(consumer, "q", durable, limits).unwrap();
    node.consume(consumer, "q", 10).unwrap();
    (node, publisher, consumer)
}

#[test]
fn what_is_given_back_waits_longer_each_time_and_holds_up_nobody() {
    for durable in [false, true] {
        let limits = retrying(100, Some(300), Some(2));
        let (mut node, publisher, consumer) = queue(durable, limits);
        node.publish(publisher, "", "q", "a", 1);
        assert_eq!(taken(&mut node, consumer), one("a", 1));
        for (attempt, wait_ms) in [(1, 100), (2, 200), (3, 300), (4, 300)] {
            give_back(&mut node, consumer, 0);
            let stat = node.stat("q");
            assert_eq!((stat.ready, stat.unsettled), (1, 0), "it counts as ready");
            pass(&mut node, wait_ms - 10);
            assert!(taken(&mut node, consumer).is_empty(), "{durable} {attempt}");
            pass(&mut node, 10);
            assert_eq!(taken(&mut node, consumer), one("a", attempt + 1));
        }
        give_back(&mut node, consumer, 0);
        node.publish(publisher, "", "q", "b", 1);
        assert_eq!(taken(&mut node, consumer), one("b", 1), "passed by");
    }
}

#[test]
fn by_steps_when_no_factor_is_set() {
    let (mut node, publisher, consumer) = queue(true, retrying(100, None, None));
    node.publish(publisher, "", "q", "a", 1);
    for (attempt, wait_ms) in [(1, 100), (2, 200), (3, 300)] {
        assert_eq!(taken(&mut node, consumer), one("a", attempt));
        give_back(&mut node, consumer, 0);
        pass(&mut node, wait_ms - 10);
        assert!(taken(&mut node, consumer).is_empty());
        pass(&mut node, 10);
    }
}

#[test]
fn what_a_reader_leaves_behind_is_ready_at_once_and_so_is_all_after_a_restart() {
    let (mut node, publisher, consumer) = queue(true, retrying(60_000, None, None));
    node.publish(publisher, "", "q", "a", 1);
    node.disconnect(consumer);
    let consumer = node.connect(1);
    node.consume(consumer, "q", 10).unwrap();
    assert_eq!(taken(&mut node, consumer), one("a", 2));
    give_back(&mut node, consumer, 0);
    pass(&mut node, 1000);
    assert!(taken(&mut node, consumer).is_empty());
    node.restart();
    let consumer = node.connect(1);
    node.consume(consumer, "q", 10).unwrap();
    assert_eq!(taken(&mut node, consumer).len(), 1);
}

#[test]
fn one_that_is_taken_singly_waits_too() {
    let (mut node, publisher, consumer) = queue(true, retrying(500, None, None));
    node.cancel(consumer, TAG);
    node.publish(publisher, "", "q", "a", 1);
    let tag = ConsumerTag(30);
    let got = node.get(consumer, "q", tag).unwrap();
    node.settle_one(consumer, tag, got.offset, Outcome::Released);
    assert!(node.get(consumer, "q", tag).is_none());
    pass(&mut node, 500);
    assert_eq!(node.get(consumer, "q", tag).unwrap().attempt, 2);
}

#[test]
fn what_waits_can_be_purged_expires_and_counts_for_the_delivery_limit() {
    let limits = StreamLimits {
        delivery_limit: Some(1),
        ..retrying(500, None, None)
    };
    let (mut node, publisher, consumer) = queue(true, limits);
    for body in ["a", "b"] {
        node.publish(publisher, "", "q", body, 1);
    }
    give_back(&mut node, consumer, 0);
    let purge = Command::Purge {
        token: Token(9),
        stream: "q".into(),
    };
    assert_eq!(node.reply(publisher, purge), Ok(Reply::Count(1)));
    node.mail(consumer);
    pass(&mut node, 1000);
    assert!(taken(&mut node, consumer).is_empty());
    give_back(&mut node, consumer, 1);
    pass(&mut node, 1000);
    assert_eq!(taken(&mut node, consumer), one("b", 2));
    give_back(&mut node, consumer, 1);
    pass(&mut node, 2000);
    assert!(taken(&mut node, consumer).is_empty(), "too often");
    assert_eq!(node.stat("q").ready, 0);
}

/// Order yields where one reader is served at a time, and does not where keys are kept in order.
#[test]
fn in_ordered_modes_others_pass_it_and_of_a_key_nothing_does() {
    for (mode, first) in [
        (Mode::Exclusive, vec!["b"]),
        (Mode::Failover, vec!["b"]),
        (Mode::KeyShared, vec![]),
    ] {
        let limits = StreamLimits {
            mode,
            ..retrying(500, None, None)
        };
        let (mut node, publisher, consumer) = queue(true, limits);
        let credit = Command::SetCredit {
            consumer: TAG,
            credit: 1,
        };
        node.ask(consumer, credit);
        for body in ["a", "b"] {
            node.publish(publisher, "", "q", body, 1);
        }
        assert_eq!(taken(&mut node, consumer), one("a", 1));
        give_back(&mut node, consumer, 0);
        let next: Vec<String> = taken(&mut node, consumer)
            .into_iter()
            .map(|(body, _)| body)
            .collect();
        assert_eq!(next, first, "{mode:?}");
    }
}

/// A key-shared reader was handed what it had given back at once, over and over.
#[test]
fn where_keys_are_kept_in_order_the_key_waits_and_others_pass() {
    for durable in [false, true] {
        let limits = StreamLimits {
            mode: Mode::KeyShared,
            ..retrying(500, None, None)
        };
        let (mut node, publisher, consumer) = queue(durable, limits);
        node.bind(consumer, "q", "#");
        for (key, body) in [("k", "k0"), ("k", "k1"), ("l", "l0")] {
            node.publish(publisher, "topics", key, body, 1);
        }
        assert_eq!(taken(&mut node, consumer).len(), 3);
        give_back(&mut node, consumer, 1);
        give_back(&mut node, consumer, 0);
        node.publish(publisher, "topics", "k", "k2", 1);
        node.publish(publisher, "topics", "l", "l1", 1);
        assert_eq!(taken(&mut node, consumer), one("l1", 1));
        let single = node.get(publisher, "q", ConsumerTag(5));
        assert!(single.is_none(), "{single:?}");
        assert_eq!(node.stat("q").ready, 3);
        pass(&mut node, 490);
        assert!(taken(&mut node, consumer).is_empty());
        pass(&mut node, 10);
        let all = taken(&mut node, consumer);
        let bodies: Vec<&str> = all.iter().map(|(body, _)| &**body).collect();
        assert_eq!(bodies, ["k0", "k1", "k2"], "in their order");
        // Longer the next time; what leaves meanwhile holds up nobody.
        give_back(&mut node, consumer, 0);
        pass(&mut node, 600);
        assert!(taken(&mut node, consumer).is_empty());
        node.question("q", |stream| Question::Purge { stream })
            .unwrap();
        node.publish(publisher, "topics", "k", "k3", 1);
        assert_eq!(taken(&mut node, consumer), one("k3", 1));
    }
}

/// The purge moved the cursor past what was handed out before the journal knew that it was: after a crash it came as if
/// for the first time.
#[test]
fn what_was_handed_out_before_a_purge_comes_again_as_such() {
    for seeks in [false, true] {
        let (mut node, publisher, consumer) = queue(true, StreamLimits::default());
        let credit = |credit| Command::SetCredit {
            consumer: TAG,
            credit,
        };
        node.ask(consumer, credit(0));
        for body in ["a", "b", "c", "d"] {
            node.publish(publisher, "", "q", body, 1);
        }
        // No frame is due yet that says so.
        node.ask(consumer, credit(2));
        assert_eq!(taken(&mut node, consumer).len(), 2);
        let moved = node.question("q", |stream| match seeks {
            false => Question::Purge { stream },
            true => Question::Seek {
                stream,
                to: SeekTo::Offset(Offset(4)),
            },
        });
        assert!(matches!(moved, Ok(ShardReply::Count(2))), "{moved:?}");
        node.restart();
        let consumer = node.connect(1);
        node.consume(consumer, "q", 10).unwrap();
        let expected = [("a".to_owned(), 2), ("b".to_owned(), 2)];
        assert_eq!(taken(&mut node, consumer), expected);
    }
}

fn overdue(node: &mut Node, client: Client) -> Vec<(ConsumerTag, u64)> {
    let mail = node.mail(client);
    let all = mail.answers.iter().filter_map(|answer| match answer {
        Answer::Overdue { consumer, after_ms } => Some((*consumer, *after_ms)),
        _ => None,
    });
    all.collect()
}

#[test]
fn a_consumer_that_does_not_settle_in_time_is_told_once() {
    for durable in [false, true] {
        let (mut node, publisher, consumer) = queue(durable, timed(3000));
        for number in 0..3 {
            node.publish(publisher, "", "q", "x", 1);
            node.settle_one(consumer, TAG, Offset(number), Outcome::Accepted);
        }
        node.publish(publisher, "", "q", "held", 1);
        for _ in 0..5 {
            node.pass(500);
        }
        assert_eq!(overdue(&mut node, consumer), []);
        for _ in 0..20 {
            node.pass(500);
        }
        assert_eq!(overdue(&mut node, consumer), [(TAG, 3000)], "{durable}");
    }
}

#[test]
fn one_that_settles_out_of_order_is_told_of_the_oldest() {
    let (mut node, publisher, consumer) = queue(true, timed(3000));
    node.publish(publisher, "", "q", "oldest", 1);
    for number in 1..20 {
        node.pass(500);
        node.publish(publisher, "", "q", "x", 1);
        node.settle_one(consumer, TAG, Offset(number), Outcome::Accepted);
    }
    assert_eq!(overdue(&mut node, consumer), [(TAG, 3000)]);
}

#[test]
fn what_was_taken_singly_counts_and_what_is_settled_by_being_handed_out_does_not() {
    let (mut node, publisher, consumer) = queue(true, timed(2000));
    node.cancel(consumer, TAG);
    let automatic = Consume {
        presettled: true,
        ..reader("q", TAG, 10)
    };
    node.consume_with(consumer, automatic).unwrap();
    node.publish(publisher, "", "q", "automatic", 1);
    for _ in 0..10 {
        node.pass(500);
    }
    assert_eq!(overdue(&mut node, consumer), []);
    node.cancel(consumer, TAG);
    node.publish(publisher, "", "q", "x", 1);
    let tag = ConsumerTag(30);
    node.get(consumer, "q", tag).unwrap();
    for _ in 0..10 {
        node.pass(500);
    }
    assert_eq!(overdue(&mut node, consumer), [(tag, 2000)]);
}

#[test]
fn a_queue_that_says_nothing_has_the_node_s_time_and_0_is_for_ever() {
    let (mut node, publisher, consumer) = queue(true, StreamLimits::default());
    node.declare_with(consumer, "patient", true, timed(0))
        .unwrap();
    let patient = ConsumerTag(8);
    node.consume_with(consumer, reader("patient", patient, 10))
        .unwrap();
    for queue in ["q", "patient"] {
        node.publish(publisher, "", queue, "x", 1);
    }
    let minutes = |node: &mut Node, count: u64| {
        for _ in 0..count {
            node.pass(60_000);
        }
    };
    minutes(&mut node, 29);
    assert_eq!(overdue(&mut node, consumer), []);
    minutes(&mut node, 3);
    assert_eq!(overdue(&mut node, consumer), [(TAG, 1_800_000)]);
}

/// Members of a group with an acknowledgement timeout, set by a policy.
fn group(modes: Mode) -> (Node, Client, [Client; 2]) {
    let mut node = Node::new(2, 2);
    let vhost = node.fabric.meta().vhost("/").unwrap().id;
    let policy = Policy {
        name: "quick".into(),
        pattern: "^g$".into(),
        applies_to: AppliesTo::Groups,
        priority: 0,
        settings: Settings {
            mode: Some(modes),
            ack_timeout_ms: Some(2000),
            ..Settings::default()
        },
    };
    let put = MetaCommand::PutPolicy { vhost, policy };
    node.fabric.apply(node.now.unix, &put).unwrap();
    let publisher = node.connect(0);
    let members = [0, 1].map(|worker| {
        let member = node.connect(worker);
        node.session(member, &format!("m{worker}"), false, 3600);
        let filter = SessionFilter {
            spec: filter("t/#"),
            group: Some(Arc::from("g")),
            retained: SendRetained::Never,
        };
        let granted = node.subscribe_with(member, vec![filter]);
        assert_eq!(granted, [Ok(Quality::AtLeastOnce)]);
        member
    });
    (node, publisher, members)
}

/// As when its session ends, though it is only mute: another member gets it.
#[test]
fn what_a_member_keeps_too_long_goes_to_another_until_it_acknowledges() {
    for mode in [Mode::Shared, Mode::Failover, Mode::KeyShared] {
        let (mut node, publisher, [a, b]) = group(mode);
        for number in 0..4u32 {
            node.publish(
                publisher,
                "topics",
                &format!("t/{number}"),
                &number.to_string(),
                1,
            );
        }
        let mute = node.mail(a);
        let mut got = node.take_all(b);
        let (mute, at, other) = match mute.deliveries.is_empty() {
            false => (mute, a, b),
            true => panic!("{mode:?}: the first member gets something"),
        };
        for _ in 0..8 {
            node.pass(500);
            got.extend(node.take_all(other));
        }
        got.sort_unstable();
        got.dedup();
        assert_eq!(got, ["0", "1", "2", "3"], "{mode:?}");
        node.publish(publisher, "topics", "t/9", "passed by", 1);
        assert!(node.mail(at).deliveries.is_empty());
        assert_eq!(node.take_all(other), ["passed by"]);
        // It comes to itself: what it says of the old ones is too late, and it is served again.
        for delivery in &mute.deliveries {
            node.settle_one(at, delivery.consumer, delivery.offset, Outcome::Accepted);
        }
        let mut again = 0;
        for number in 0..8u32 {
            node.publish(publisher, "topics", &format!("t/{number}"), "more", 1);
            again += node.take_all(at).len();
            node.take_all(other);
        }
        let expected = mode != Mode::Failover;
        assert_eq!(again > 0, expected, "{mode:?}");
    }
}

/// Nothing is handed out again to the same connection: not to the only member, nor to a session.
#[test]
fn the_only_member_and_a_session_may_take_as_long_as_they_like() {
    let (mut node, publisher, [a, b]) = group(Mode::Shared);
    node.disconnect(b);
    let reader = node.connect(1);
    node.session(reader, "alone", false, 3600);
    node.subscribe(reader, "t/#");
    node.publish(publisher, "topics", "t/1", "x", 1);
    assert_eq!(node.mail(a).deliveries.len(), 1);
    assert_eq!(node.mail(reader).deliveries.len(), 1);
    for _ in 0..100 {
        node.pass(60_000);
    }
    for client in [a, reader] {
        let mail = node.mail(client);
        assert!(mail.deliveries.is_empty() && mail.stop.is_none());
    }
}

/// What was on its way to the consumer came before what it gave back and then got again.
#[test]
fn what_is_given_back_comes_again_before_what_was_on_its_way_behind_it() {
    for (durable, priority_max) in [(false, None), (true, None), (true, Some(3))] {
        let limits = StreamLimits {
            priority_max,
            ..StreamLimits::default()
        };
        let (mut node, publisher, consumer) = queue(durable, limits);
        let other = ConsumerTag(8);
        node.declare(consumer, "other", durable).unwrap();
        node.consume_with(consumer, reader("other", other, 10))
            .unwrap();
        for body in ["a", "b", "c"] {
            node.publish(publisher, "", "q", body, 1);
        }
        let held = node.mail(consumer).deliveries;
        assert_eq!(held.len(), 3);
        node.hold_mail = true;
        for body in ["d", "e"] {
            node.publish(publisher, "", "q", body, 1);
        }
        node.publish(publisher, "", "other", "o", 1);
        let back = |except| Command::GiveBack {
            token: Token(5),
            consumer: TAG,
            except,
        };
        // The second was acknowledged by a transaction that is not committed.
        node.ask(consumer, back(vec![held[1].offset]));
        node.hold_mail = false;
        node.settle();
        let mail = node.mail(consumer);
        let [Answer::Done { token, result }] = &mail.answers[..] else {
            panic!("{:?}", mail.answers);
        };
        assert_eq!((*token, result), (Token(5), &Ok(Reply::Done)));
        let of = |tag| {
            let its = mail.deliveries.iter();
            let its = its.filter(move |delivery| delivery.consumer == tag);
            its.map(|delivery| (&*delivery.message.body, delivery.attempt))
                .collect::<Vec<_>>()
        };
        let again: [(&[u8], u32); 4] = [(b"a", 2), (b"c", 2), (b"d", 2), (b"e", 2)];
        assert_eq!(of(TAG), again);
        assert_eq!(of(other), [(&b"o"[..], 1)]);
        node.settle_one(consumer, TAG, held[1].offset, Outcome::Accepted);
        assert_eq!((node.stat("q").ready, node.stat("q").unsettled), (0, 4));
        node.cancel(consumer, TAG);
        for delivery in mail.deliveries.iter().filter(|one| one.consumer == TAG) {
            node.settle_one(consumer, TAG, delivery.offset, Outcome::Accepted);
        }
        assert_eq!((node.stat("q").ready, node.stat("q").unsettled), (0, 0));
    }
}

/// The answer came first, so what had been on its way came to a consumer that was gone, and stayed with it for as long as
/// its connection lived.
#[test]
fn what_was_on_its_way_to_a_cancelled_consumer_comes_before_the_answer() {
    for durable in [false, true] {
        let (mut node, publisher, consumer) = queue(durable, StreamLimits::default());
        node.hold_mail = true;
        node.publish(publisher, "", "q", "a", 1);
        let token = Token(5);
        let cancel = Command::Cancel {
            token,
            consumer: TAG,
        };
        node.ask(consumer, cancel);
        let mut mail = anabranch_core::worker::Mail::default();
        node.workers[1].take_mail(node.now, consumer.id, &mut mail);
        assert!(mail.answers.is_empty(), "{:?}", mail.answers);
        assert_eq!(bodies(&mail), ["a"]);
        assert_eq!(mail.late.len(), 1);
        node.hold_mail = false;
        node.settle_one(consumer, TAG, Offset(0), Outcome::Released);
        assert_eq!((node.stat("q").ready, node.stat("q").unsettled), (1, 0));
    }
}
