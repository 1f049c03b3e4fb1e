//! The modes of a stream, for a whole node: who is handed what, and what becomes of it when readers come and go.
//!
//! Next: `churn.rs` for the same at random.

mod node;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::{Mode, StreamLimits};
use anabranch_core::message::{Message, OriginTag};
use anabranch_core::properties::{Properties, Value};
use anabranch_core::stream::LOOK_AHEAD_MAX;
use bytes::Bytes;
use node::{Client, Node, TAG, bodies, publishing, reader};

fn limits(mode: Mode) -> StreamLimits {
    StreamLimits {
        mode,
        ..StreamLimits::default()
    }
}

/// A node with a stream `q` of this mode, and so many connections.
fn node(mode: Mode, durable: bool, clients: usize) -> (Node, Vec<Client>) {
    let mut node = Node::new(1, 1);
    let clients: Vec<Client> = (0..clients).map(|_| node.connect(0)).collect();
    node.declare_with(clients[0], "q", durable, limits(mode))
        .unwrap();
    (node, clients)
}

fn keyed(client: Client, key: &str, body: &str) -> Command {
    let properties = Properties {
        headers: vec![(
            Bytes::from_static(b"x-key"),
            Value::Text(Bytes::copy_from_slice(key.as_bytes())),
        )],
        ..Properties::default()
    };
    let message = Message {
        address: "q".parse().unwrap(),
        origin: OriginTag::BROKER,
        properties: properties.encode(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        publisher: client.id,
        ..Message::default()
    };
    publishing(0, message)
}

fn publish(node: &mut Node, client: Client, key: &str, body: &str) {
    node.ask(client, keyed(client, key, body));
}

fn publish_all(node: &mut Node, client: Client, bodies: &[&str]) {
    for body in bodies {
        // The key is what stands before the number.
        publish(node, client, &body[..1], body);
    }
}

fn ranked(credit: u32, priority: i32) -> Consume {
    Consume {
        priority,
        ..reader("q", TAG, credit)
    }
}

fn take(node: &mut Node, client: Client) -> Vec<(String, Offset, u32)> {
    let mail = node.mail(client);
    let told = mail.deliveries.iter().map(|delivery| {
        let body = String::from_utf8(delivery.message.body.to_vec()).unwrap();
        (body, delivery.offset, delivery.attempt)
    });
    told.collect()
}

#[test]
fn an_exclusive_stream_refuses_a_second_reader() {
    let (mut node, c) = node(Mode::Exclusive, true, 2);
    node.consume(c[0], "q", 1).unwrap();
    assert_eq!(node.consume(c[1], "q", 1), Err(ErrorKind::SecondConsumer));
    assert_eq!(
        node.stat("q").active.map(|key| key.connection),
        Some(c[0].id)
    );
    node.disconnect(c[0]);
    node.consume(c[1], "q", 1).unwrap();
    publish_all(&mut node, c[1], &["a1"]);
    assert_eq!(bodies(&node.mail(c[1])), ["a1"]);
}

#[test]
fn failover_serves_one_and_the_next_gets_what_it_held_in_order() {
    for durable in [true, false] {
        let (mut node, c) = node(Mode::Failover, durable, 3);
        node.consume(c[1], "q", 3).unwrap();
        node.consume(c[2], "q", 9).unwrap();
        publish_all(&mut node, c[0], &["a1", "a2", "a3", "a4", "a5"]);
        let got = take(&mut node, c[1]);
        assert_eq!(got.len(), 3);
        assert!(take(&mut node, c[2]).is_empty(), "one at a time");
        node.settle_one(c[1], TAG, got[1].1, Outcome::Accepted);
        assert_eq!(bodies(&node.mail(c[1])), ["a4"]);
        node.disconnect(c[1]);
        let got = take(&mut node, c[2]);
        let told: Vec<_> = got
            .iter()
            .map(|(body, _, tries)| (&**body, *tries))
            .collect();
        assert_eq!(told, [("a1", 2), ("a3", 2), ("a4", 2), ("a5", 1)]);
        assert_eq!(
            node.stat("q").active.map(|key| key.connection),
            Some(c[2].id)
        );
    }
}

#[test]
fn a_cancelled_reader_is_followed_when_what_it_holds_is_settled() {
    let (mut node, c) = node(Mode::Failover, true, 3);
    node.consume(c[1], "q", 2).unwrap();
    node.consume(c[2], "q", 9).unwrap();
    publish_all(&mut node, c[0], &["a1", "a2", "a3"]);
    let got = take(&mut node, c[1]);
    node.cancel(c[1], TAG);
    assert!(take(&mut node, c[2]).is_empty());
    assert_eq!(node.stat("q").active, None, "nobody is served meanwhile");
    node.settle_one(c[1], TAG, got[0].1, Outcome::Accepted);
    assert!(take(&mut node, c[2]).is_empty());
    node.settle_one(c[1], TAG, got[1].1, Outcome::Released);
    assert_eq!(bodies(&node.mail(c[2])), ["a2", "a3"]);
}

#[test]
fn a_higher_priority_takes_over_and_an_equal_one_does_not() {
    let (mut node, c) = node(Mode::Failover, false, 4);
    node.consume_with(c[1], ranked(1, 0)).unwrap();
    node.consume_with(c[2], ranked(9, 0)).unwrap();
    publish_all(&mut node, c[0], &["a1", "a2", "a3"]);
    let got = take(&mut node, c[1]);
    node.settle_one(c[1], TAG, got[0].1, Outcome::Accepted);
    let got = take(&mut node, c[1]);
    assert_eq!(got[0].0, "a2", "the equal one waits");
    node.consume_with(c[3], ranked(9, 1)).unwrap();
    assert!(take(&mut node, c[3]).is_empty());
    node.settle_one(c[1], TAG, got[0].1, Outcome::Accepted);
    assert!(take(&mut node, c[1]).is_empty() && take(&mut node, c[2]).is_empty());
    assert_eq!(bodies(&node.mail(c[3])), ["a3"]);
    // A single message is for nobody else while somebody holds one.
    publish_all(&mut node, c[0], &["a4"]);
    assert_eq!(node.get(c[0], "q", ConsumerTag(1)), None);
}

#[test]
fn a_key_is_unsettled_at_one_reader_only_and_others_go_on() {
    for durable in [true, false] {
        let (mut node, c) = node(Mode::KeyShared, durable, 3);
        node.consume(c[1], "q", 2).unwrap();
        publish_all(&mut node, c[0], &["a1", "b1", "a2", "b2", "a3"]);
        let held = take(&mut node, c[1]);
        assert_eq!(held.len(), 2);
        // Both keys are in flight: whoever joins is handed other keys only.
        node.consume(c[2], "q", 100).unwrap();
        let names = "cdefghijklmnopqrstuvwxyz";
        for name in names.chars() {
            publish_all(&mut node, c[0], &[&format!("{name}1")]);
        }
        let others = take(&mut node, c[2]);
        assert!(!others.is_empty());
        assert!(
            others
                .iter()
                .all(|(body, ..)| !body.starts_with(['a', 'b']))
        );
        // What is given back comes again before what waits of its key.
        node.settle_one(c[1], TAG, held[0].1, Outcome::Released);
        let again = [take(&mut node, c[1]), take(&mut node, c[2])].concat();
        let first_a = again.iter().find(|(body, ..)| body.starts_with('a'));
        assert!(first_a.is_none_or(|(body, ..)| body == "a1"));
        // A reader that dies lets go of all its keys at once, in order.
        node.disconnect(c[1]);
        let rest = take(&mut node, c[2]);
        let all: Vec<String> = rest.into_iter().map(|got| got.0).collect();
        for key in ['a', 'b'] {
            let of_key: Vec<_> = all.iter().filter(|body| body.starts_with(key)).collect();
            let mut sorted = of_key.clone();
            sorted.sort();
            assert_eq!(of_key, sorted);
        }
        let stat = node.stat("q");
        assert_eq!((stat.ready, stat.unsettled), (0, 5 + names.len() as u64));
    }
}

#[test]
fn without_the_header_the_address_is_the_key_and_a_number_is_its_digits() {
    let (mut node, c) = node(Mode::KeyShared, false, 3);
    node.bind(c[0], "q", "#");
    node.consume(c[1], "q", 50).unwrap();
    node.consume(c[2], "q", 50).unwrap();
    for round in 0..3 {
        for address in ["t/1", "t/2", "t/3", "t/4", "t/5", "t/6", "t/7", "t/8"] {
            node.publish(c[0], "topics", address, &format!("{round}"), 0);
        }
    }
    let (left, right) = (node.mail(c[1]), node.mail(c[2]));
    assert_eq!(left.deliveries.len() + right.deliveries.len(), 24);
    assert!(!left.deliveries.is_empty() && !right.deliveries.is_empty());
    let at_left = |address: &_| {
        let mut all = left.deliveries.iter();
        all.any(|delivery| delivery.message.address == *address)
    };
    assert!(
        !right
            .deliveries
            .iter()
            .any(|delivery| at_left(&delivery.message.address))
    );
    let numbers = [
        Value::Int(7, 8),
        Value::UInt(7, 64),
        Value::Text("7".into()),
    ];
    for value in numbers {
        let properties = Properties {
            headers: vec![(Bytes::from_static(b"x-key"), value)],
            ..Properties::default()
        };
        let message = Message {
            address: "q".parse().unwrap(),
            properties: properties.encode(),
            ..Message::default()
        };
        let command = publishing(0, message);
        node.ask(c[0], command);
    }
    let (left, right) = (node.mail(c[1]), node.mail(c[2]));
    let mut counts = [left.deliveries.len(), right.deliveries.len()];
    counts.sort();
    assert_eq!(counts, [0, 3]);
}

#[test]
fn single_messages_are_taken_of_keys_that_nobody_holds() {
    let (mut node, c) = node(Mode::KeyShared, true, 3);
    node.consume(c[1], "q", 1).unwrap();
    publish_all(&mut node, c[0], &["a1", "a2", "b1", "b2", "c1"]);
    assert_eq!(bodies(&node.mail(c[1])), ["a1"]);
    let tag = ConsumerTag(3);
    let got = |node: &mut Node, client| {
        let got = node.get(client, "q", tag);
        got.map(|delivery| String::from_utf8(delivery.message.body.to_vec()).unwrap())
    };
    assert_eq!(got(&mut node, c[0]).as_deref(), Some("b1"));
    assert_eq!(got(&mut node, c[2]).as_deref(), Some("c1"));
    assert_eq!(got(&mut node, c[2]), None);
    assert_eq!(got(&mut node, c[0]).as_deref(), Some("b2"));
    node.disconnect(c[0]);
    assert_eq!(got(&mut node, c[2]).as_deref(), Some("b1"));
}

#[test]
fn a_reader_that_settles_nothing_holds_no_key() {
    let (mut node, c) = node(Mode::KeyShared, true, 2);
    let consume = Consume {
        presettled: true,
        ..reader("q", TAG, 0)
    };
    node.consume_with(c[1], consume).unwrap();
    publish_all(&mut node, c[0], &["a1", "b1", "a2"]);
    assert_eq!(bodies(&node.mail(c[1])), ["a1", "b1", "a2"]);
    let stat = node.stat("q");
    assert_eq!((stat.ready, stat.unsettled), (0, 0));
}

#[test]
fn a_change_of_mode_counts_for_what_is_handed_out_next() {
    let (mut node, c) = node(Mode::Shared, true, 4);
    node.consume(c[1], "q", 1).unwrap();
    node.consume(c[2], "q", 1).unwrap();
    publish_all(&mut node, c[0], &["a1", "a2", "a3", "b1"]);
    let (one, two) = (take(&mut node, c[1]), take(&mut node, c[2]));
    assert_eq!((&*one[0].0, &*two[0].0), ("a1", "a2"));
    let set = |node: &mut Node, mode| {
        node.set_limits("q", limits(mode));
    };
    set(&mut node, Mode::KeyShared);
    // Two hold messages of one key: nobody is handed another before one has settled.
    node.consume(c[3], "q", 9).unwrap();
    assert_eq!(bodies(&node.mail(c[3])), ["b1"]);
    node.settle_one(c[1], TAG, one[0].1, Outcome::Accepted);
    assert!(take(&mut node, c[1]).is_empty() && take(&mut node, c[3]).is_empty());
    node.settle_one(c[2], TAG, two[0].1, Outcome::Accepted);
    let got = [1, 2, 3].map(|at| bodies(&node.mail(c[at])).len());
    assert_eq!(got.iter().sum::<usize>(), 1);
    set(&mut node, Mode::Failover);
    publish_all(&mut node, c[0], &["c1"]);
    assert_eq!(node.stat("q").ready, 1, "not while others hold something");
    set(&mut node, Mode::Exclusive);
    let ended = |node: &mut Node, at: usize| {
        let answers = node.mail(c[at]).answers;
        answers.iter().any(|answer| {
            matches!(answer, Answer::Ended { why, .. } if why.kind == ErrorKind::SecondConsumer)
        })
    };
    assert!(ended(&mut node, 2) && ended(&mut node, 3) && !ended(&mut node, 1));
    let stat = node.stat("q");
    assert_eq!((stat.consumers, stat.mode), (1, Mode::Exclusive));
}

#[test]
fn what_waits_for_room_is_not_read_again_and_again() {
    let (mut node, c) = node(Mode::KeyShared, true, 2);
    let other = ConsumerTag(8);
    node.consume(c[1], "q", 1).unwrap();
    node.consume_with(c[1], reader("q", other, 1)).unwrap();
    for number in 0..200 {
        let key = ["a", "b", "c", "d", "e", "f", "g", "h"][number % 8];
        publish(&mut node, c[0], key, &format!("{key}{number:03}"));
    }
    let mut orders = [Vec::new(), Vec::new()];
    loop {
        let got = node.mail(c[1]).deliveries;
        if got.is_empty() {
            break;
        }
        for one in got {
            let body = String::from_utf8(one.message.body.to_vec()).unwrap();
            orders[usize::from(one.consumer == other)].push(body);
            node.settle_one(c[1], one.consumer, one.offset, Outcome::Accepted);
        }
    }
    assert_eq!(orders[0].len() + orders[1].len(), 200);
    assert!(
        orders
            .iter()
            .all(|order| order.is_sorted_by_key(|body| body[1..].to_owned()))
    );
    let fetched = node.data[&ShardId(1)].journal.fetched.get();
    // Once to learn its key, once when its turn comes.
    assert!((200..=400).contains(&fetched), "{fetched} reads");
}

/// Something goes back while the stream is shared and nobody has room; what lies behind it is given back when the
/// stream is key-shared.
#[test]
fn what_came_back_before_a_change_of_mode_is_not_overtaken() {
    let (mut node, c) = node(Mode::Shared, true, 3);
    node.consume(c[1], "q", 2).unwrap();
    publish_all(&mut node, c[0], &["a1", "a2", "a3"]);
    let held = take(&mut node, c[1]);
    let less = Command::SetCredit {
        consumer: TAG,
        credit: 1,
    };
    node.ask(c[1], less);
    node.settle_one(c[1], TAG, held[0].1, Outcome::Released);
    node.set_limits("q", limits(Mode::KeyShared));
    node.disconnect(c[1]);
    node.consume(c[2], "q", 9).unwrap();
    assert_eq!(bodies(&node.mail(c[2])), ["a1", "a2", "a3"]);
}

#[test]
fn what_ends_while_it_waits_for_its_key_goes() {
    let (mut node, c) = node(Mode::KeyShared, true, 2);
    node.consume(c[1], "q", 1).unwrap();
    let ending = |key: &str, body: &str| match keyed(c[0], key, body) {
        Command::Publish { message, .. } => publishing(
            0,
            Message {
                expires: Some(UnixMs(1_000_500)),
                ..(*message).clone()
            },
        ),
        other => other,
    };
    node.ask(c[0], ending("a", "a1"));
    node.ask(c[0], ending("a", "a2"));
    publish_all(&mut node, c[0], &["a3"]);
    let held = take(&mut node, c[1]);
    assert_eq!((&*held[0].0, node.stat("q").ready), ("a1", 2));
    node.pass(1_000);
    node.settle_one(c[1], TAG, held[0].1, Outcome::Accepted);
    assert_eq!(bodies(&node.mail(c[1])), ["a3"]);
    let stat = node.stat("q");
    assert_eq!((stat.ready, stat.unsettled), (0, 1));
}

/// `LOOK_AHEAD_MAX`: what lies far behind a key that nobody settles waits until some of what is before it has gone.
#[test]
fn so_much_may_wait_for_its_key_and_no_more() {
    let (mut node, c) = node(Mode::KeyShared, false, 3);
    node.consume(c[1], "q", 1).unwrap();
    publish_all(&mut node, c[0], &["a0"]);
    let held = take(&mut node, c[1]);
    node.consume(c[2], "q", u32::MAX).unwrap();
    let one = keyed(c[0], "a", "a");
    let mut many = vec![one; LOOK_AHEAD_MAX];
    node.workers[0].submit(node.now, c[0].id, &mut many);
    node.settle();
    let others = ["b", "c", "d", "e", "f", "g", "h", "i"];
    publish_all(&mut node, c[0], &others);
    assert_eq!(node.stat("q").ready, (LOOK_AHEAD_MAX + others.len()) as u64);
    assert!(
        take(&mut node, c[2]).is_empty(),
        "somebody has room, and yet"
    );
    node.settle_one(c[1], TAG, held[0].1, Outcome::Accepted);
    let got = [take(&mut node, c[1]), take(&mut node, c[2])].concat();
    assert!(got.iter().any(|(body, ..)| body == "a"));
    node.disconnect(c[1]);
    assert_eq!(node.stat("q").ready, 0, "all of it goes to who is left");
}
