//! Queues with priorities: a higher level goes out first, each level keeps its own order, and limits, settlements,
//! restarts and checkpoints see one queue. Beside plain lists at the end.

mod node;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::{DeadLetterKey, DeadLetterTo, Mode, Overflow, StreamLimits};
use anabranch_core::message::{Message, Quality};
use anabranch_core::port::{Question, ShardReply};
use bytes::Bytes;
use node::kept::one_state;
use node::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn levels(priority_max: u8) -> StreamLimits {
    StreamLimits {
        priority_max: Some(priority_max),
        ..StreamLimits::default()
    }
}

fn publish(node: &mut Node, client: Client, (body, priority): (&str, u8), token: u64) {
    let message = Message {
        address: "q".parse().unwrap(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        quality: Quality::AtLeastOnce,
        priority,
        publisher: client.id,
        ..Message::default()
    };
    let command = publishing(token, message);
    node.ask(client, command);
}

fn queue(durable: bool, limits: StreamLimits) -> (Node, Client) {
    let mut node = Node::new(1, 2);
    let client = node.connect(0);
    node.declare_with(client, "q", durable, limits).unwrap();
    (node, client)
}

fn fill(node: &mut Node, client: Client, messages: &[(&str, u8)]) {
    for message in messages {
        publish(node, client, *message, 0);
    }
    node.mail(client);
}

fn text(delivery: &Delivery) -> &str {
    std::str::from_utf8(&delivery.message.body).unwrap()
}

/// Takes and acknowledges all.
fn drain(node: &mut Node, client: Client) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(got) = node.get(client, "q", TAG) {
        node.settle_one(client, TAG, got.offset, Outcome::Accepted);
        all.push(text(&got).to_owned());
    }
    all
}

const MIXED: [(&str, u8); 6] = [("a", 0), ("b", 3), ("c", 1), ("d", 9), ("e", 3), ("f", 0)];

#[test]
fn higher_levels_go_out_first_and_each_keeps_its_order() {
    for durable in [false, true] {
        let (mut node, client) = queue(durable, levels(3));
        fill(&mut node, client, &MIXED);
        assert_eq!(node.stat("q").ready, 6);
        let taker = node.connect(0);
        node.consume(taker, "q", 10).unwrap();
        let mail = node.mail(taker);
        // More than the most is the most.
        assert_eq!(bodies(&mail), ["b", "d", "e", "c", "a", "f"]);
        let stat = node.stat("q");
        assert_eq!((stat.ready, stat.unsettled, stat.consumers), (0, 6, 1));
        // What is named grows in the order of handing out, and is unique.
        assert!(mail.deliveries.is_sorted_by_key(|sent| sent.offset));
    }
}

#[test]
fn what_comes_back_takes_its_place_in_its_level_and_prefetch_counts_for_all() {
    for durable in [false, true] {
        let (mut node, client) = queue(durable, levels(9));
        fill(&mut node, client, &[("a", 0), ("b", 0), ("c", 5), ("d", 5)]);
        let taker = node.connect(0);
        node.consume(taker, "q", 3).unwrap();
        let first = node.mail(taker).deliveries;
        assert_eq!(first.iter().map(text).collect::<Vec<_>>(), ["c", "d", "a"]);
        fill(&mut node, client, &[("e", 9)]);
        assert!(node.mail(taker).deliveries.is_empty(), "no room");
        node.settle_one(taker, TAG, first[1].offset, Outcome::Accepted);
        assert_eq!(bodies(&node.mail(taker)), ["e"]);
        node.settle_one(taker, TAG, first[0].offset, Outcome::Released);
        let again = node.mail(taker).deliveries;
        assert_eq!((text(&again[0]), again[0].attempt), ("c", 2));
        node.disconnect(taker);
        assert_eq!(node.stat("q").unsettled, 0);
        assert_eq!(drain(&mut node, client), ["e", "c", "a", "b"]);
    }
}

#[test]
fn an_ordered_queue_keeps_one_reader_over_all_levels() {
    let limits = StreamLimits {
        mode: Mode::Failover,
        ..levels(5)
    };
    let (mut node, client) = queue(true, limits);
    let (one, two) = (node.connect(0), node.connect(0));
    node.consume(one, "q", 2).unwrap();
    node.consume(two, "q", 2).unwrap();
    fill(&mut node, client, &[("a", 0), ("b", 5), ("c", 0), ("d", 5)]);
    assert_eq!(bodies(&node.mail(one)), ["a", "b"]);
    assert!(node.mail(two).deliveries.is_empty());
    node.disconnect(one);
    assert_eq!(bodies(&node.mail(two)), ["b", "d"]);
}

#[test]
fn levels_survive_a_restart_with_what_was_handed_out() {
    let (mut node, client) = queue(true, levels(3));
    fill(&mut node, client, &MIXED);
    let got = node.get(client, "q", TAG).unwrap();
    node.settle_one(client, TAG, got.offset, Outcome::Accepted);
    let held = node.get(client, "q", TAG).unwrap();
    assert_eq!(text(&held), "d");
    node.pass(20);
    node.restart();
    let client = node.connect(0);
    let again = node.get(client, "q", TAG).unwrap();
    assert_eq!((text(&again), again.attempt), ("d", 2));
    node.settle_one(client, TAG, again.offset, Outcome::Released);
    assert_eq!(drain(&mut node, client), ["d", "e", "c", "a", "f"]);
}

#[test]
fn a_purge_a_look_a_seek_and_a_deletion_see_one_queue() {
    for durable in [false, true] {
        let (mut node, client) = queue(durable, levels(3));
        fill(&mut node, client, &MIXED);
        let held = node.get(client, "q", TAG).unwrap();
        let peek = |stream, from| Question::Peek {
            stream,
            from,
            count: 4,
        };
        let Ok(ShardReply::Messages(seen)) = node.question("q", |id| peek(id, SeekTo::Start))
        else {
            panic!("messages");
        };
        let all: Vec<_> = seen.iter().map(|(_, _, seen)| seen.body.clone()).collect();
        assert_eq!(all, ["b", "d", "e", "c"]);
        // On from the last one that was seen.
        let from = SeekTo::Offset(seen[2].0.next());
        let Ok(ShardReply::Messages(rest)) = node.question("q", |id| peek(id, from)) else {
            panic!("messages");
        };
        let rest: Vec<_> = rest.iter().map(|(_, _, seen)| seen.body.clone()).collect();
        assert_eq!(rest, ["c", "a", "f"]);
        // What goes out before that place leaves.
        let seek = |stream| Question::Seek { stream, to: from };
        let Ok(ShardReply::Count(left)) = node.question("q", seek) else {
            panic!("a count");
        };
        assert_eq!((left, node.stat("q").ready), (2, 3));
        let if_empty = |stream| Question::DeleteStream {
            stream,
            if_unused: false,
            if_empty: true,
        };
        assert!(matches!(
            node.question("q", if_empty),
            Err(ErrorKind::NotEmpty)
        ));
        let purge = |stream| Question::Purge { stream };
        let Ok(ShardReply::Count(purged)) = node.question("q", purge) else {
            panic!("a count");
        };
        assert_eq!(purged, 3);
        let stat = node.stat("q");
        assert_eq!((stat.ready, stat.unsettled), (0, 1));
        node.settle_one(client, TAG, held.offset, Outcome::Accepted);
        fill(&mut node, client, &MIXED);
        let delete = |stream| Question::DeleteStream {
            stream,
            if_unused: false,
            if_empty: false,
        };
        let Ok(ShardReply::Count(deleted)) = node.question("q", delete) else {
            panic!("a count");
        };
        assert_eq!(deleted, 6);
    }
}

#[test]
fn a_full_queue_drops_from_its_highest_level_or_refuses_whatever_comes() {
    for durable in [false, true] {
        let limits = StreamLimits {
            messages_max: Some(2),
            ..levels(3)
        };
        let (mut node, client) = queue(durable, limits.clone());
        fill(&mut node, client, &[("a", 0), ("b", 3), ("c", 1)]);
        assert_eq!(node.stat("q").dropped, 1);
        assert_eq!(drain(&mut node, client), ["c", "a"]);
        let (mut node, client) = queue(
            durable,
            StreamLimits {
                overflow: Overflow::Reject,
                ..limits
            },
        );
        for (at, message) in [("a", 0), ("b", 3), ("c", 3)].into_iter().enumerate() {
            publish(&mut node, client, message, at as u64 + 1);
        }
        let told = outcomes(&node.mail(client));
        let refused = PublishOutcome::Refused(ErrorKind::QuotaExceeded);
        assert_eq!(told[told.len() - 1], (3, 3, refused));
        assert_eq!(drain(&mut node, client), ["b", "a"]);
    }
}

#[test]
fn a_delivery_that_nobody_settles_is_told_whatever_its_level() {
    let limits = StreamLimits {
        ack_timeout_ms: Some(1000),
        ..levels(3)
    };
    let (mut node, client) = queue(true, limits);
    let taker = node.connect(0);
    node.consume(taker, "q", 1).unwrap();
    fill(&mut node, client, &[("a", 0)]);
    let sent = node.mail(taker).deliveries;
    for _ in 0..2 {
        node.pass(500);
    }
    node.settle_one(taker, TAG, sent[0].offset, Outcome::Accepted);
    fill(&mut node, client, &[("b", 0)]);
    let mut told = false;
    for _ in 0..4 {
        node.pass(500);
        let mail = node.mail(taker);
        told |= format!("{mail:?}").contains("Overdue");
    }
    assert!(told);
}

#[derive(Clone, Debug)]
enum Step {
    Publish(u8),
    Get,
    /// A reader with so much credit comes, or the one there is goes on with that.
    Read(u32),
    /// The held one at this place, counted round.
    Settle(usize, u8),
    Purge,
    Pass(u64),
    Gone,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        7 => (0u8..6).prop_map(Step::Publish),
        4 => Just(Step::Get),
        1 => (0u32..4).prop_map(Step::Read),
        5 => (any::<usize>(), 0u8..3).prop_map(|(at, how)| Step::Settle(at, how)),
        1 => Just(Step::Purge),
        2 => (1u64..8).prop_map(|steps| Step::Pass(steps * 50)),
        1 => Just(Step::Gone),
        1 => Just(Step::Restart),
    ]
}

fn limits() -> impl Strategy<Value = StreamLimits> {
    let overflow = prop_oneof![Just(Overflow::DropOldest), Just(Overflow::Reject)];
    (
        1u8..5,
        proptest::option::of(0u64..5),
        overflow,
        proptest::option::of(100u64..600),
        proptest::option::of(0u32..3),
    )
        .prop_map(
            |(max, messages_max, overflow, message_ttl_ms, delivery_limit)| StreamLimits {
                messages_max,
                overflow,
                message_ttl_ms,
                delivery_limit,
                dead_letter: Some(DeadLetterTo {
                    exchange: Arc::from(""),
                    key: Some(Box::new(DeadLetterKey {
                        address: "dead".parse().unwrap(),
                        origin_key: Default::default(),
                    })),
                }),
                ..levels(max)
            },
        )
}

/// Level, highest first, and number.
type Name = (u8, u64);

#[derive(Clone, Copy, Debug)]
struct Held {
    name: Name,
    tries: u32,
    end: Option<u64>,
    by_reader: bool,
}

/// What one queue does, step by step.
#[derive(Default)]
struct Model {
    /// How often it was handed out, and when it ends.
    ready: BTreeMap<Name, (u32, Option<u64>)>,
    held: Vec<Held>,
    dead: BTreeSet<Name>,
    /// Accepted, refused or purged.
    over: BTreeSet<u64>,
    next: u64,
    /// Everything of a level below was handed out or dropped once, as far as a restart can tell.
    cursor: BTreeMap<u8, u64>,
    credit: Option<u32>,
}

impl Model {
    fn touched(&mut self, (rank, number): Name) {
        let cursor = self.cursor.entry(rank).or_default();
        *cursor = (*cursor).max(number + 1);
    }

    fn die(&mut self, name: Name) {
        self.touched(name);
        self.dead.insert(name);
    }

    fn take(&mut self, by_reader: bool) -> Option<Held> {
        let (name, (tries, end)) = self.ready.pop_first()?;
        self.touched(name);
        let held = Held {
            name,
            tries: tries + 1,
            end,
            by_reader,
        };
        self.held.push(held);
        Some(held)
    }

    /// What the reader is handed.
    fn hand_out(&mut self) -> Vec<(u64, u32)> {
        let mut sent = Vec::new();
        let of_reader = self.held.iter().filter(|held| held.by_reader).count();
        let room = self.credit.unwrap_or(0).saturating_sub(of_reader as u32);
        for _ in 0..room {
            sent.extend(self.take(true).map(|held| (held.name.1, held.tries)));
        }
        sent
    }

    fn expire(&mut self, now: u64) {
        let ended = |end: &Option<u64>| end.is_some_and(|end| end <= now);
        let over = self.ready.iter().filter(|(_, (_, end))| ended(end));
        let over: Vec<Name> = over.map(|(name, _)| *name).collect();
        for name in over {
            self.ready.remove(&name);
            self.die(name);
        }
    }

    fn enforce(&mut self, limits: &StreamLimits) {
        let most = limits.messages_max.unwrap_or(u64::MAX);
        while limits.overflow == Overflow::DropOldest && self.ready.len() as u64 > most {
            let (first, _) = self.ready.pop_first().unwrap();
            self.die(first);
        }
    }

    fn give_back(&mut self, limits: &StreamLimits, held: Held) {
        match limits.delivery_limit {
            Some(limit) if held.tries > limit => self.die(held.name),
            _ => {
                self.ready.insert(held.name, (held.tries, held.end));
            }
        }
    }
}

const READER: ConsumerTag = ConsumerTag(77);

struct Day {
    node: Node,
    client: Client,
    taker: Client,
    limits: StreamLimits,
    durable: bool,
    model: Model,
    offsets: BTreeMap<u64, Offset>,
}

impl Day {
    fn new(durable: bool, limits: StreamLimits) -> Day {
        let (mut node, client) = queue(durable, limits.clone());
        node.declare(client, "dead", durable).unwrap();
        let taker = node.connect(0);
        Day {
            node,
            client,
            taker,
            limits,
            durable,
            model: Model::default(),
            offsets: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Publish(priority) => self.publish(*priority),
            Step::Get => self.get(),
            Step::Read(credit) => self.read(*credit),
            Step::Settle(at, how) => self.settle(*at, *how),
            Step::Purge => self.purge(),
            Step::Pass(ms) => self.node.pass(*ms),
            Step::Gone => self.gone(),
            Step::Restart if self.durable => self.restart(),
            Step::Restart => {}
        }
        let now = self.node.now.unix.0;
        self.model.expire(now);
        let expected = self.model.hand_out();
        let mail = self.node.mail(self.taker);
        let sent = mail.deliveries.iter();
        let sent: Vec<(u64, u32)> = sent
            .map(|sent| (text(sent).parse().unwrap(), sent.attempt))
            .collect();
        for delivery in &mail.deliveries {
            let number = text(delivery).parse().unwrap();
            self.offsets.insert(number, delivery.offset);
        }
        assert_eq!(sent, expected, "{step:?}");
        self.model.enforce(&self.limits);
        let stat = self.node.stat("q");
        assert_eq!(stat.ready, self.model.ready.len() as u64, "{step:?}");
        assert_eq!(stat.unsettled, self.model.held.len() as u64, "{step:?}");
    }

    fn publish(&mut self, priority: u8) {
        let number = self.model.next;
        self.model.next += 1;
        let body = number.to_string();
        publish(&mut self.node, self.client, (&body, priority), number + 1);
        let most = self.limits.messages_max.unwrap_or(u64::MAX);
        let of_reader = self.model.held.iter().filter(|held| held.by_reader);
        let room = self.model.credit.unwrap_or(0);
        let room = u64::from(room).saturating_sub(of_reader.count() as u64);
        let all = self.model.ready.len() as u64 + 1;
        let refused = self.limits.overflow == Overflow::Reject && all.saturating_sub(room) > most;
        let told = outcomes(&self.node.mail(self.client));
        let expected = match refused {
            true => PublishOutcome::Refused(ErrorKind::QuotaExceeded),
            false => PublishOutcome::Routed,
        };
        assert_eq!(told, [(number + 1, number + 1, expected)]);
        if refused {
            self.model.over.insert(number);
            return;
        }
        let max = self.limits.priority_max.unwrap();
        let end = self.limits.message_ttl_ms;
        let end = end.map(|ms| self.node.now.unix.0 + ms);
        let name = (max - priority.min(max), number);
        self.model.ready.insert(name, (0, end));
    }

    fn get(&mut self) {
        let got = self.node.get(self.taker, "q", TAG);
        let expected = self.model.take(false);
        let told = got
            .as_ref()
            .map(|got| (text(got).parse().unwrap(), got.attempt));
        assert_eq!(told, expected.map(|held| (held.name.1, held.tries)));
        if let (Some(got), Some(held)) = (got, expected) {
            self.offsets.insert(held.name.1, got.offset);
        }
    }

    fn read(&mut self, credit: u32) {
        match self.model.credit.replace(credit) {
            None => {
                let consume = reader("q", READER, credit);
                self.node.consume_with(self.taker, consume).unwrap();
            }
            Some(_) => self.node.ask(
                self.taker,
                Command::SetCredit {
                    consumer: READER,
                    credit,
                },
            ),
        }
    }

    fn settle(&mut self, at: usize, how: u8) {
        if self.model.held.is_empty() {
            return;
        }
        let at = at % self.model.held.len();
        let held = self.model.held.remove(at);
        let outcome = match how {
            0 => Outcome::Accepted,
            1 => Outcome::Released,
            _ => Outcome::Rejected,
        };
        let consumer = match held.by_reader {
            true => READER,
            false => TAG,
        };
        let offset = self.offsets[&held.name.1];
        self.node.settle_one(self.taker, consumer, offset, outcome);
        match outcome {
            Outcome::Accepted => {
                self.model.over.insert(held.name.1);
            }
            Outcome::Released => self.model.give_back(&self.limits, held),
            Outcome::Rejected => self.model.die(held.name),
        }
    }

    fn purge(&mut self) {
        // What was handed out is known first; else a restart could not tell.
        self.node.flush();
        let purge = |stream| Question::Purge { stream };
        let Ok(ShardReply::Count(count)) = self.node.question("q", purge) else {
            panic!("a count");
        };
        let ready = std::mem::take(&mut self.model.ready);
        assert_eq!(count, ready.len() as u64);
        for name in ready.into_keys() {
            self.model.touched(name);
            self.model.over.insert(name.1);
        }
    }

    fn gone(&mut self) {
        self.node.disconnect(self.taker);
        self.taker = self.node.connect(0);
        self.model.credit = None;
        let mut held = std::mem::take(&mut self.model.held);
        held.sort_unstable_by_key(|held| held.name);
        for held in held {
            self.model.give_back(&self.limits, held);
        }
    }

    fn restart(&mut self) {
        self.node.flush();
        self.node.restart();
        self.client = self.node.connect(0);
        self.taker = self.node.connect(0);
        self.model.credit = None;
        for held in std::mem::take(&mut self.model.held) {
            self.model.ready.insert(held.name, (1, held.end));
        }
        for ((rank, number), (tries, _)) in &mut self.model.ready {
            let cursor = self.model.cursor.get(rank).copied().unwrap_or(0);
            *tries = u32::from(*number < cursor);
        }
    }

    fn end(mut self) {
        let mut dead: BTreeSet<Name> = BTreeSet::new();
        let max = self.limits.priority_max.unwrap();
        while let Some(got) = self.node.get(self.client, "dead", ConsumerTag(8)) {
            let rank = max - got.message.priority.min(max);
            let number = text(&got).parse().unwrap();
            dead.insert((rank, number));
        }
        assert_eq!(dead, self.model.dead, "who died");
        let model = &self.model;
        let all = model.ready.len() + model.held.len() + model.over.len() + model.dead.len();
        assert_eq!(all as u64, model.next, "nothing is lost");
        self.node.flush();
        for data in self.node.data.values() {
            one_state(data);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn a_queue_with_priorities_does_what_plain_lists_do(
        durable in any::<bool>(),
        limits in limits(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut day = Day::new(durable, limits);
        for step in &steps {
            day.step(step);
        }
        day.end();
    }
}
