//! Messages that are not at hand, for a whole node: who waits for them, and who does not.

mod node;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::{DeadLetterTo, Mode, StreamLimits};
use anabranch_core::port::{Question, ShardReply};
use node::{Client, Node, TAG, bodies, reader};
use std::sync::Arc;

fn limits(mode: Mode) -> StreamLimits {
    StreamLimits {
        mode,
        ..StreamLimits::default()
    }
}

fn publish(node: &mut Node, client: Client, queue: &str, all: &[&str]) {
    for body in all {
        node.publish(client, "", queue, body, 0);
    }
}

fn taken(node: &mut Node, client: Client) -> Vec<String> {
    let mail = node.mail(client);
    bodies(&mail).into_iter().map(str::to_owned).collect()
}

#[test]
fn a_stream_waits_for_its_messages_in_every_mode_and_others_go_on() {
    for mode in [
        Mode::Shared,
        Mode::Exclusive,
        Mode::Failover,
        Mode::KeyShared,
        Mode::Replay,
    ] {
        let mut node = Node::new(1, 1);
        let (far, near) = (node.connect(0), node.connect(0));
        node.declare_with(far, "far", true, limits(mode)).unwrap();
        node.declare_with(near, "near", true, limits(mode)).unwrap();
        publish(&mut node, far, "far", &["a", "b"]);
        node.move_away();
        publish(&mut node, far, "far", &["c"]);
        publish(&mut node, far, "near", &["x", "y"]);
        for (client, queue) in [(far, "far"), (near, "near")] {
            let replay = (mode == Mode::Replay).then(|| {
                Box::new(Replay {
                    from: SeekTo::Start,
                    only: None,
                    subscribes: None,
                })
            });
            let consume = Consume {
                replay,
                ..reader(queue, TAG, 10)
            };
            node.consume_with(client, consume).unwrap();
        }
        assert_eq!(taken(&mut node, near), ["x", "y"], "{mode:?}");
        assert!(
            taken(&mut node, far).is_empty(),
            "{mode:?}: nothing overtakes"
        );
        publish(&mut node, far, "far", &["d"]);
        publish(&mut node, far, "near", &["z"]);
        node.pass(1000);
        assert_eq!(taken(&mut node, near), ["z"], "{mode:?}");
        assert!(taken(&mut node, far).is_empty(), "{mode:?}");
        node.bring_back();
        assert_eq!(taken(&mut node, far), ["a", "b", "c", "d"], "{mode:?}");
        assert_eq!(node.stat("far").unsettled, 4, "{mode:?}");
    }
}

/// The one with the lowest number had all that came.
#[test]
fn streams_take_turns_when_little_comes_at_a_time() {
    let mut node = Node::new(1, 1);
    let queues = ["p", "q", "r"];
    let clients = queues.map(|queue| {
        let client = node.connect(0);
        node.declare(client, queue, true).unwrap();
        publish(&mut node, client, queue, &["1", "2", "3"]);
        client
    });
    node.move_away();
    for (client, queue) in clients.iter().zip(queues) {
        node.consume(*client, queue, 10).unwrap();
    }
    for turn in ["1", "2", "3"] {
        for _ in queues {
            node.bring_one();
        }
        for client in clients {
            assert_eq!(taken(&mut node, client), [turn]);
        }
    }
}

fn ask_for_one(node: &mut Node, client: Client) {
    let get = Command::Get {
        token: Token(9),
        stream: Arc::from("q"),
        consumer: TAG,
        presettled: false,
    };
    node.ask(client, get);
}

fn got(node: &mut Node, client: Client) -> Vec<Option<String>> {
    let mail = node.mail(client);
    let answers = mail.answers.iter().map(|answer| match answer {
        Answer::Done {
            result: Ok(Reply::Got { delivery, .. }),
            ..
        } => delivery
            .as_ref()
            .map(|one| String::from_utf8(one.message.body.to_vec()).unwrap()),
        other => panic!("unexpected {other:?}"),
    });
    answers.collect()
}

#[test]
fn who_takes_single_messages_waits_a_while_and_then_is_told_that_there_is_none() {
    for mode in [Mode::Shared, Mode::KeyShared] {
        let mut node = Node::new(1, 1);
        let c = node.connect(0);
        node.declare_with(c, "q", true, limits(mode)).unwrap();
        publish(&mut node, c, "q", &["a", "b"]);
        node.move_away();
        ask_for_one(&mut node, c);
        assert_eq!(got(&mut node, c), []);
        node.pass(3000);
        assert_eq!(got(&mut node, c), []);
        node.bring_back();
        assert_eq!(got(&mut node, c), [Some("a".to_owned())], "{mode:?}");
        node.move_away();
        ask_for_one(&mut node, c);
        node.pass(3000);
        node.pass(1500);
        assert_eq!(got(&mut node, c), [None], "{mode:?}");
        node.bring_back();
        assert_eq!(got(&mut node, c), [], "{mode:?}: it was answered");
        assert_eq!((node.stat("q").ready, node.stat("q").unsettled), (1, 1));
    }
}

#[test]
fn who_is_gone_is_handed_nothing() {
    let mut node = Node::new(1, 1);
    let c = node.connect(0);
    node.declare_with(c, "q", true, limits(Mode::Shared))
        .unwrap();
    publish(&mut node, c, "q", &["a"]);
    node.move_away();
    ask_for_one(&mut node, c);
    node.disconnect(c);
    node.bring_back();
    assert_eq!((node.stat("q").ready, node.stat("q").unsettled), (1, 0));
}

#[test]
fn a_look_at_messages_is_refused_when_they_do_not_come() {
    let mut node = Node::new(1, 1);
    let c = node.connect(0);
    node.declare_with(c, "q", true, limits(Mode::Shared))
        .unwrap();
    publish(&mut node, c, "q", &["a", "b"]);
    let peek = |stream| Question::Peek {
        stream,
        from: SeekTo::Start,
        count: 9,
    };
    node.move_away();
    node.ask_outside("q", peek);
    assert!(node.answer_outside().is_none());
    node.pass(5000);
    assert_eq!(
        node.answer_outside().unwrap().unwrap_err(),
        ErrorKind::Unavailable
    );
    node.ask_outside("q", peek);
    node.ask_outside("q", |stream| Question::Seek {
        stream,
        to: SeekTo::Time(UnixMs(0)),
    });
    assert!(node.answer_outside().is_none());
    node.bring_back();
    let Some(Ok(ShardReply::Messages(found))) = node.answer_outside() else {
        panic!("the messages are at hand");
    };
    assert_eq!(found.len(), 2);
}

#[test]
fn a_dead_letter_keeps_its_place_among_those_of_its_stream() {
    let mut node = Node::new(1, 1);
    let (c, dead) = (node.connect(0), node.connect(0));
    let dying = StreamLimits {
        dead_letter: Some(DeadLetterTo {
            exchange: Arc::from(""),
            key: Some(Box::new(anabranch_core::limits::DeadLetterKey {
                address: "dead".parse().unwrap(),
                origin_key: Default::default(),
            })),
        }),
        ..StreamLimits::default()
    };
    node.declare_with(c, "q", true, dying.clone()).unwrap();
    node.declare_with(c, "p", true, dying).unwrap();
    node.declare(c, "dead", true).unwrap();
    node.consume(dead, "dead", 10).unwrap();
    publish(&mut node, c, "q", &["a", "b"]);
    node.consume(c, "q", 10).unwrap();
    node.move_away();
    publish(&mut node, c, "q", &["c"]);
    let reject = |node: &mut Node, tag, offset| {
        node.settle_one(c, tag, Offset(offset), Outcome::Rejected);
    };
    for offset in 0..3 {
        reject(&mut node, TAG, offset);
    }
    publish(&mut node, c, "p", &["x"]);
    let other = ConsumerTag(TAG.0 + 1);
    node.consume_with(c, reader("p", other, 10)).unwrap();
    reject(&mut node, other, 0);
    assert_eq!(taken(&mut node, dead), ["x"], "another stream's goes on");
    node.bring_back();
    assert_eq!(taken(&mut node, dead), ["a", "b", "c"]);
    assert_eq!(node.stat("q").ready + node.stat("q").unsettled, 0);
}
