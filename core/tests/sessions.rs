//! Sessions: exactly once in both directions, over crashes at every point, and one copy for many filters.
//!
//! Owns: what a session promises that outlives its connection.
//! Next: `one_node.rs` for sessions as readers among others.

mod node;

use anabranch_core::authority::{Action, Authority, Question, Resource, Verdict};
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::message::{Message, Quality};
use anabranch_core::worker::Mail;
use bytes::Bytes;
use node::*;
use std::sync::Arc;

/// The tag of a session's deliveries.
const SESSION: ConsumerTag = ConsumerTag(0);

fn wanting(name: &str, quality: Quality, identifier: u32) -> SessionFilter {
    SessionFilter {
        spec: FilterSpec {
            quality,
            identifier,
            ..filter(name)
        },
        group: None,
        retained: SendRetained::Never,
    }
}

fn message(client: Client, exchange: &str, address: &str, body: &str) -> Message {
    Message {
        exchange: Bytes::copy_from_slice(exchange.as_bytes()),
        address: address.parse().unwrap(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        quality: Quality::ExactlyOnce,
        publisher: client.id,
        ..Message::default()
    }
}

fn publish(client: Client, token: u64, once: Option<u16>, address: &str, body: &str) -> Command {
    Command::Publish {
        token: Token(token),
        mandatory: false,
        patient: true,
        once: once.map(OnceKey),
        later: None,
        message: Arc::new(message(client, "topics", address, body)),
    }
}

fn receive(offset: Offset) -> Command {
    Command::Receive {
        token: Token(50),
        consumer: SESSION,
        offset,
    }
}

fn accept(offset: Offset) -> Command {
    Command::Settle {
        consumer: SESSION,
        first: offset,
        last: offset,
        outcome: Outcome::Accepted,
    }
}

/// Body (`-` when only the rest of its settlement is owed) and attempt of each.
fn told(mail: &Mail) -> Vec<(String, u32)> {
    let deliveries = mail.deliveries.iter();
    let told = deliveries.map(|delivery| match delivery.received {
        true => ("-".to_owned(), delivery.attempt),
        false => {
            let body = std::str::from_utf8(&delivery.message.body).unwrap();
            (body.to_owned(), delivery.attempt)
        }
    });
    told.collect()
}

fn done(mail: &Mail, token: u64) -> bool {
    let mut answers = mail.answers.iter();
    answers.any(|answer| matches!(answer, Answer::Done { token: of, result: Ok(Reply::Done) } if of.0 == token))
}

/// A session with everything under `a` at the highest quality, and one that publishes.
fn reader_and_publisher(node: &mut Node) -> (Client, Client) {
    let device = node.connect(0);
    node.session(device, "d", false, 3600);
    node.subscribe_with(device, vec![wanting("a/#", Quality::ExactlyOnce, 0)]);
    let publisher = node.connect(0);
    node.session(publisher, "p", false, 3600);
    (device, publisher)
}

fn resume(node: &mut Node, name: &str) -> Client {
    let client = node.connect(0);
    assert!(node.session(client, name, false, 3600));
    client
}

#[test]
fn one_copy_at_the_highest_quality_with_all_identifiers() {
    for expiry_s in [0, 3600] {
        let mut node = Node::new(1, 1);
        let device = node.connect(0);
        node.session(device, "d", false, expiry_s);
        let filters = vec![
            wanting("a/#", Quality::AtMostOnce, 9),
            wanting("a/+", Quality::ExactlyOnce, 4),
            wanting("a/b", Quality::AtLeastOnce, 0),
            wanting("+/b", Quality::AtLeastOnce, 9),
            wanting("c", Quality::AtLeastOnce, 2),
        ];
        node.subscribe_with(device, filters);
        let publisher = node.connect(0);
        node.ask(publisher, publish(publisher, 1, None, "a/b", "x"));
        let got = node.mail(device).deliveries;
        assert_eq!(got.len(), 1, "one copy");
        let more = got[0].more_identifiers.as_deref().map(Vec::as_slice);
        assert_eq!(
            (got[0].quality, got[0].identifier, more),
            (Quality::ExactlyOnce, 4, Some(&[9][..]))
        );
        node.ask(publisher, publish(publisher, 2, None, "c", "y"));
        let got = node.mail(device).deliveries;
        assert_eq!((got[0].identifier, &got[0].more_identifiers), (2, &None));
    }
}

#[test]
fn a_filter_that_wants_its_own_messages_overrules_one_that_does_not() {
    let mut node = Node::new(1, 1);
    let device = node.connect(0);
    node.session(device, "d", false, 3600);
    let mut deaf = wanting("a/#", Quality::ExactlyOnce, 0);
    deaf.spec.no_local = true;
    node.subscribe_with(device, vec![deaf]);
    node.ask(device, publish(device, 1, None, "a/b", "own"));
    assert!(node.mail(device).deliveries.is_empty());
    node.subscribe_with(device, vec![wanting("a/b", Quality::AtLeastOnce, 0)]);
    node.ask(device, publish(device, 2, None, "a/b", "own"));
    assert_eq!(bodies(&node.mail(device)), ["own"]);
}

#[test]
fn many_filters_of_one_session_are_replaced_and_removed_by_name() {
    let mut node = Node::new(1, 1);
    let device = node.connect(0);
    node.session(device, "d", false, 3600);
    let all = |identifier| {
        let names = (0..3000).map(|number| format!("a/{number}"));
        let filters = names.map(|name| wanting(&name, Quality::AtLeastOnce, identifier));
        filters.collect::<Vec<_>>()
    };
    node.subscribe_with(device, all(1));
    node.subscribe_with(device, all(2));
    let names = (0..2999).map(|number| FilterName {
        group: None,
        filter: format!("a/{number}").parse().unwrap(),
    });
    let unsubscribe = Command::Unsubscribe {
        token: Token(9),
        filters: names.collect(),
    };
    let Ok(Reply::Unsubscribed(existed)) = node.reply(device, unsubscribe) else {
        panic!("unsubscribed")
    };
    assert!(existed.len() == 2999 && existed.iter().all(|existed| *existed));
    node.ask(device, publish(device, 1, None, "a/7", "gone"));
    node.ask(device, publish(device, 2, None, "a/2999", "kept"));
    let got = node.mail(device);
    assert_eq!(
        (bodies(&got), got.deliveries[0].identifier),
        (vec!["kept"], 2)
    );
}

#[test]
fn what_was_received_is_owed_first_and_never_sent_again() {
    let mut node = Node::new(1, 1);
    let (device, publisher) = reader_and_publisher(&mut node);
    for (token, body) in (1..).zip(["m0", "m1", "m2", "m3"]) {
        node.ask(publisher, publish(publisher, token, None, "a", body));
    }
    let offsets: Vec<Offset> = {
        let got = node.mail(device);
        got.deliveries
            .iter()
            .map(|delivery| delivery.offset)
            .collect()
    };
    // Out of order, one twice, and one that it does not hold.
    for offset in [offsets[3], offsets[1], offsets[1], Offset(99)] {
        node.ask(device, receive(offset));
        assert!(done(&node.mail(device), 50));
    }
    for restarts in [false, true, true] {
        match restarts {
            true => node.restart(),
            false => node.disconnect(device),
        }
        let back = resume(&mut node, "d");
        let got = node.mail(back);
        let owed: Vec<_> = got
            .deliveries
            .iter()
            .map(|one| (one.offset, one.received))
            .collect();
        assert_eq!(
            owed,
            [
                (offsets[1], true),
                (offsets[3], true),
                (offsets[0], false),
                (offsets[2], false)
            ]
        );
        assert!(got.deliveries.iter().all(|one| one.attempt > 1));
        node.disconnect(back);
    }
    let back = resume(&mut node, "d");
    for offset in [offsets[1], offsets[3]] {
        node.ask(back, accept(offset));
    }
    node.pass(100);
    node.restart();
    let back = resume(&mut node, "d");
    let left: Vec<String> = told(&node.mail(back))
        .into_iter()
        .map(|(body, _)| body)
        .collect();
    assert_eq!(left, ["m0", "m2"]);
}

#[test]
fn what_was_received_does_not_expire_and_needs_no_credit() {
    let mut node = Node::new(1, 1);
    let (device, publisher) = reader_and_publisher(&mut node);
    let mut short = message(publisher, "topics", "a", "short");
    short.expires = Some(node.now.unix.after(1000));
    let command = publishing(1, short);
    node.ask(publisher, command);
    node.ask(publisher, publish(publisher, 2, None, "a", "second"));
    let first = node.mail(device).deliveries[0].offset;
    node.ask(device, receive(first));
    node.disconnect(device);
    node.pass(5000);
    let open = SessionOpen {
        client_id: Arc::from("d"),
        clean_start: false,
        expiry_s: 3600,
        consumer: SESSION,
        credit: 1,
        group_consumers: ConsumerTag(1),
        will: None,
    };
    let back = node.connect(0);
    assert!(node.session_with(back, open));
    assert_eq!(told(&node.mail(back)), [("-".to_owned(), 2)]);
    node.ask(back, accept(first));
    assert_eq!(told(&node.mail(back)), [("second".to_owned(), 2)]);
}

#[test]
fn who_lost_its_session_is_not_told_that_a_receipt_is_kept() {
    let mut node = Node::new(1, 1);
    let (device, publisher) = reader_and_publisher(&mut node);
    node.ask(publisher, publish(publisher, 1, None, "a", "m"));
    let offset = node.mail(device).deliveries[0].offset;
    let back = resume(&mut node, "d");
    let late = node.reply(device, receive(offset));
    assert_eq!(late, Err(ErrorKind::Locked));
    assert_eq!(told(&node.mail(back)), [("m".to_owned(), 2)]);
}

#[test]
fn receipts_of_a_batch_share_a_record() {
    let mut node = Node::new(1, 1);
    let (device, publisher) = reader_and_publisher(&mut node);
    for token in 1..=10 {
        node.ask(publisher, publish(publisher, token, None, "a", "m"));
    }
    let got = node.mail(device).deliveries;
    let mut batch: Vec<Command> = got.iter().map(|one| receive(one.offset)).collect();
    let before = node.data[&ShardId(1)].journal.frames.len();
    node.workers[0].submit(node.now, device.id, &mut batch);
    node.settle();
    let frames = &node.data[&ShardId(1)].journal.frames;
    assert_eq!(frames.len(), before + 1);
    assert!(
        frames[before].1.len() < 120,
        "{} bytes",
        frames[before].1.len()
    );
    let answers = node.mail(device).answers;
    assert_eq!(answers.len(), 10);
}

/// A million sessions may have one filter: each comes and goes without the others being looked through.
#[test]
fn many_sessions_of_one_filter_come_and_go_by_themselves() {
    let mut node = Node::new(1, 1);
    let clients: Vec<Client> = (0..60).map(|_| node.connect(0)).collect();
    for (number, client) in clients.iter().enumerate() {
        let expiry_s = if number % 3 == 0 { 0 } else { 3600 };
        node.session(*client, &format!("s{number}"), false, expiry_s);
        node.subscribe_with(*client, vec![wanting("all", Quality::AtMostOnce, 1)]);
        node.subscribe_with(*client, vec![wanting("all", Quality::AtMostOnce, 2)]);
    }
    for client in clients.iter().step_by(2) {
        let unsubscribe = Command::Unsubscribe {
            token: Token(9),
            filters: vec![FilterName {
                group: None,
                filter: "all".parse().unwrap(),
            }],
        };
        let gone = node.reply(*client, unsubscribe);
        assert_eq!(gone, Ok(Reply::Unsubscribed(vec![true])));
    }
    node.ask(clients[0], publish(clients[0], 1, None, "all", "x"));
    for (number, client) in clients.iter().enumerate() {
        let got = node.mail(*client).deliveries;
        let identifiers: Vec<u32> = got.iter().map(|one| one.identifier).collect();
        let expected: &[u32] = if number % 2 == 0 { &[] } else { &[2] };
        assert_eq!(identifiers, expected, "session {number}");
    }
    for client in clients {
        node.disconnect(client);
    }
    let last = node.connect(0);
    node.ask(last, publish(last, 7, None, "all", "x"));
    assert_eq!(outcomes(&node.mail(last)), [(7, 7, PublishOutcome::Routed)]);
}

/// One rule: nobody but its owner opens the session `theirs`.
struct Theirs;

impl Authority for Theirs {
    fn decide(&self, question: &Question<'_>) -> Verdict {
        let denied = question.action == Action::Connect
            && matches!(question.resource, Resource::Session("theirs"));
        Verdict {
            allowed: !denied,
            rule: denied.then(|| Arc::from("7")),
        }
    }
    fn generation(&self) -> u64 {
        0
    }
    fn circumstantial(&self, _: Action) -> bool {
        false
    }
}

#[test]
fn a_rule_keeps_a_session_from_others_whatever_they_call_themselves() {
    let mut node = Node::with(1, 1, Arc::new(Theirs));
    let client = node.connect(0);
    let open = |name: &str| Command::OpenSession {
        token: Token(9),
        session: Box::new(SessionOpen {
            client_id: Arc::from(name),
            clean_start: false,
            expiry_s: 60,
            consumer: ConsumerTag(0),
            credit: 1,
            group_consumers: ConsumerTag(1),
            will: None,
        }),
    };
    assert_eq!(
        node.reply(client, open("theirs")),
        Err(ErrorKind::AccessRefused)
    );
    assert!(node.reply(client, open("mine")).is_ok());
}
