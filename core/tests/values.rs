//! Last values through a whole node: kept, read by who is bound, never older than what was seen.
//!
//! Owns: conversations about messages that are kept, and one under a seeded schedule of all carriers.
//! Next: `worker/values.rs`, which says why it holds.

mod node;

use anabranch_core::authority::{Action, Authority, Question, Resource, Verdict};
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::message::{Message, Quality};
use anabranch_core::port::{self, ShardEvent, ShardReply, ShardRequest};
use anabranch_core::shard::{Shard, ShardLimits, ShardSetup};
use anabranch_core::worker::{Mail, Outgoing};
use bytes::Bytes;
use node::kept::{Kept, survives};
use node::{Client, Node, bodies, filter, outcomes, publishing, reader};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const AGAIN: Token = Token(9);

fn message(client: Client, address: &str, body: &str) -> Message {
    Message {
        exchange: Bytes::from_static(b"topics"),
        address: address.parse().unwrap(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        quality: Quality::AtLeastOnce,
        retain: true,
        publisher: client.id,
        ..Message::default()
    }
}

fn publish(message: Message, token: u64) -> Command {
    publishing(token, message)
}

fn keep(node: &mut Node, client: Client, address: &str, body: &str) -> PublishOutcome {
    node.ask(client, publish(message(client, address, body), 5));
    let told = node.mail(client);
    outcomes(&told)[0].2
}

fn wanting(name: &str, retained: SendRetained) -> SessionFilter {
    SessionFilter {
        spec: filter(name),
        group: None,
        retained,
    }
}

fn subscribe(node: &mut Node, client: Client, name: &str, retained: SendRetained) {
    let granted = node.subscribe_with(client, vec![wanting(name, retained)]);
    assert!(granted[0].is_ok());
}

/// What was handed over: body and retain flag.
fn seen(mail: &Mail) -> Vec<(&str, bool)> {
    let flags = mail.deliveries.iter().map(|delivery| delivery.retain);
    bodies(mail).into_iter().zip(flags).collect()
}

fn ask(node: &mut Node, shard: u16, question: port::Question) -> ShardReply {
    let at = ShardId(shard);
    let data = node.data.get_mut(&at).unwrap();
    let ticket = u64::MAX;
    let mut asks = vec![ShardRequest::Ask {
        ticket,
        question: Box::new(question),
    }];
    data.shard
        .handle(node.now, WorkerId(9), &mut asks, &mut &data.journal);
    for _ in 0..3 {
        let data = node.data.get_mut(&at).unwrap();
        data.shard.dispatch(node.now, &mut &data.journal);
        let events: Vec<_> = data.shard.events().collect();
        for (worker, events) in events {
            for event in events {
                match event {
                    ShardEvent::Reply {
                        ticket: u64::MAX,
                        result,
                    } => return result.unwrap(),
                    other => {
                        let to = &mut node.workers[usize::from(worker.0)];
                        to.shard_events(node.now, at, vec![other]);
                    }
                }
            }
        }
        if let Some(frame) = data.shard.take_frame(node.now) {
            let base = data.journal.bytes.len() as u64;
            data.journal.bytes.extend_from_slice(&frame);
            data.journal.frames.push((base, frame.clone()));
            data.shard
                .apply(node.now.unix, Position(base), &frame, true)
                .unwrap();
        }
    }
    panic!("not answered");
}

fn counts(node: &mut Node) -> u64 {
    let shards = node.data.len() as u16;
    let count = |node: &mut Node, shard| match ask(node, shard, port::Question::ValueCounts) {
        ShardReply::ValueCounts { values, .. } => values,
        other => panic!("unexpected {other:?}"),
    };
    (1..=shards).map(|shard| count(node, shard)).sum()
}

#[test]
fn a_new_subscription_is_sent_the_values_at_the_lower_quality_with_its_number() {
    for workers in [1, 3] {
        let mut node = Node::new(workers, 3);
        let (device, viewer) = (node.connect(0), node.connect(workers - 1));
        assert_eq!(
            keep(&mut node, device, "plant/1/temp", "20"),
            PublishOutcome::Unroutable
        );
        keep(&mut node, device, "plant/2/temp", "30");
        keep(&mut node, device, "plant/2/temp", "31");
        keep(&mut node, device, "plant/2/hum", "7");
        node.session(viewer, "v", true, 0);
        let spec = FilterSpec {
            quality: Quality::AtMostOnce,
            identifier: 42,
            ..filter("plant/+/temp")
        };
        let one = SessionFilter {
            spec,
            group: None,
            retained: SendRetained::Always,
        };
        node.ask(
            viewer,
            Command::Subscribe {
                token: AGAIN,
                filters: vec![one],
            },
        );
        let mail = node.mail(viewer);
        assert_eq!(mail.answers.len(), 1, "granted before the values come");
        let mut got = seen(&mail);
        got.sort_unstable();
        assert_eq!(got, [("20", true), ("31", true)]);
        for delivery in &mail.deliveries {
            assert_eq!(
                (delivery.quality, delivery.identifier),
                (Quality::AtMostOnce, 42)
            );
        }
        keep(&mut node, device, "plant/1/temp", "21");
        assert_eq!(seen(&node.mail(viewer)), [("21", false)], "live");
    }
}

#[test]
fn an_empty_body_removes_the_value_and_reaches_live_subscribers() {
    let mut node = Node::new(2, 2);
    let (device, live, late) = (node.connect(0), node.connect(1), node.connect(1));
    node.session(live, "live", true, 0);
    node.session(late, "late", true, 0);
    keep(&mut node, device, "a", "1");
    subscribe(&mut node, live, "#", SendRetained::Always);
    assert_eq!(seen(&node.mail(live)), [("1", true)]);
    keep(&mut node, device, "a", "");
    assert_eq!(seen(&node.mail(live)), [("", false)]);
    subscribe(&mut node, late, "#", SendRetained::Always);
    assert!(node.mail(late).deliveries.is_empty());
    assert_eq!(counts(&mut node), 0);
}

#[test]
fn values_survive_a_restart_by_journal_and_by_checkpoint() {
    let mut node = Node::new(1, 2);
    let device = node.connect(0);
    keep(&mut node, device, "a/b", "1");
    keep(&mut node, device, "c", "2");
    keep(&mut node, device, "c", "3");
    node.restart();
    assert_eq!(counts(&mut node), 2);
    for data in node.data.values_mut() {
        assert_eq!(
            data.shard.oldest_position(),
            None,
            "no part of the journal is kept"
        );
        data.shard = survives(&mut Kept::default(), data, &node.fabric, &node.authority);
    }
    let viewer = node.connect(0);
    node.session(viewer, "v", true, 0);
    subscribe(&mut node, viewer, "#", SendRetained::Always);
    let mail = node.mail(viewer);
    let mut got = seen(&mail);
    got.sort_unstable();
    assert_eq!(got, [("1", true), ("3", true)]);
}

#[test]
fn values_are_sent_again_only_as_asked_and_not_at_resumption() {
    let mut node = Node::new(2, 2);
    let device = node.connect(0);
    keep(&mut node, device, "a", "1");
    let viewer = node.connect(1);
    node.session(viewer, "v", true, 60);
    for (retained, times) in [
        (SendRetained::Never, 0),
        (SendRetained::IfNew, 0),
        (SendRetained::Always, 1),
        (SendRetained::Always, 1),
    ] {
        subscribe(&mut node, viewer, "a", retained);
        let mail = node.mail(viewer);
        assert_eq!(mail.deliveries.len(), times, "{retained:?}");
        for delivery in &mail.deliveries {
            node.settle_one(viewer, ConsumerTag(0), delivery.offset, Outcome::Accepted);
        }
    }
    subscribe(&mut node, viewer, "+", SendRetained::IfNew);
    let mail = node.mail(viewer);
    assert_eq!(seen(&mail), [("1", true)]);
    node.settle_one(
        viewer,
        ConsumerTag(0),
        mail.deliveries[0].offset,
        Outcome::Accepted,
    );
    node.disconnect(viewer);
    node.pass(10);
    let again = node.connect(0);
    assert!(node.session(again, "v", false, 60));
    assert!(node.mail(again).deliveries.is_empty());
}

#[test]
fn a_session_that_stays_has_the_values_after_a_restart_as_it_was_granted_them() {
    let mut node = Node::new(2, 3);
    let device = node.connect(0);
    for number in 0..20 {
        keep(&mut node, device, &format!("a/{number}"), "x");
    }
    let viewer = node.connect(1);
    node.session(viewer, "v", true, 600);
    let spec = FilterSpec {
        identifier: 77,
        no_local: true,
        ..filter("a/#")
    };
    let one = SessionFilter {
        spec,
        group: None,
        retained: SendRetained::Always,
    };
    node.subscribe_with(viewer, vec![one]);
    assert_eq!(node.mail(viewer).deliveries.len(), 10, "its credit");
    node.restart();
    let viewer = node.connect(0);
    let open = SessionOpen {
        client_id: Arc::from("v"),
        clean_start: false,
        expiry_s: 600,
        consumer: ConsumerTag(0),
        credit: 100,
        group_consumers: ConsumerTag(1),
        will: None,
    };
    assert!(node.session_with(viewer, open));
    let mail = node.mail(viewer);
    assert_eq!(mail.deliveries.len(), 20);
    for delivery in &mail.deliveries {
        assert!(delivery.retain);
        assert_eq!(
            (delivery.quality, delivery.identifier),
            (Quality::AtLeastOnce, 77)
        );
    }
}

#[test]
fn a_value_that_has_ended_is_not_sent_and_goes() {
    let mut node = Node::new(1, 1);
    let (device, viewer) = (node.connect(0), node.connect(0));
    let short = Message {
        expires: Some(node.now.unix.after(2_000)),
        ..message(device, "short", "x")
    };
    node.ask(device, publish(short, 5));
    keep(&mut node, device, "long", "y");
    node.session(viewer, "v", true, 0);
    node.pass(1_999);
    subscribe(&mut node, viewer, "#", SendRetained::Always);
    assert_eq!(node.mail(viewer).deliveries.len(), 2);
    node.now.unix = node.now.unix.after(1);
    subscribe(&mut node, viewer, "#", SendRetained::Always);
    assert_eq!(seen(&node.mail(viewer)), [("y", true)]);
    assert_eq!(counts(&mut node), 2);
    node.pass(500);
    assert_eq!(counts(&mut node), 1);
    node.restart();
    assert_eq!(counts(&mut node), 1);
}

#[test]
fn many_values_pass_through_a_small_session_in_pages() {
    const COUNT: usize = 1_500;
    for expiry_s in [0, 600] {
        let mut node = Node::new(2, 3);
        let device = node.connect(0);
        for number in 0..COUNT {
            keep(&mut node, device, &format!("a/{number}"), "x");
        }
        let viewer = node.connect(1);
        let open = SessionOpen {
            client_id: Arc::from("v"),
            clean_start: true,
            expiry_s,
            consumer: ConsumerTag(0),
            credit: 100,
            group_consumers: ConsumerTag(1),
            will: None,
        };
        node.session_with(viewer, open);
        subscribe(&mut node, viewer, "a/#", SendRetained::Always);
        let mut got = Vec::new();
        loop {
            let mail = node.mail(viewer);
            let (Some(first), Some(last)) = (mail.deliveries.first(), mail.deliveries.last())
            else {
                break;
            };
            // Not settled yet, it holds back the pages behind it.
            assert!(mail.deliveries.len() <= 100, "{}", mail.deliveries.len());
            got.extend(
                mail.deliveries
                    .iter()
                    .map(|delivery| delivery.message.address.clone()),
            );
            let settle = Command::Settle {
                consumer: ConsumerTag(0),
                first: first.offset,
                last: last.offset,
                outcome: Outcome::Accepted,
            };
            node.ask(viewer, settle);
        }
        assert_eq!(got.len(), COUNT);
        got.sort_unstable();
        got.dedup();
        assert_eq!(got.len(), COUNT, "each once");
    }
}

/// Pages were counted in messages alone: 200 values of a megabyte were handed in at once, and the session lost what was
/// above its limit.
#[test]
fn large_values_come_as_fast_as_they_are_settled_and_none_is_lost() {
    let mut node = Node::new(1, 1);
    let (device, viewer) = (node.connect(0), node.connect(0));
    let large = "x".repeat(1 << 20);
    for number in 0..100 {
        keep(&mut node, device, &format!("a/{number}"), &large);
    }
    node.session(viewer, "v", true, 0);
    subscribe(&mut node, viewer, "a/#", SendRetained::Always);
    let mut got = 0;
    loop {
        let mail = node.mail(viewer);
        if mail.deliveries.is_empty() {
            break;
        }
        assert!(mail.deliveries.len() <= 10, "{}", mail.deliveries.len());
        got += mail.deliveries.len();
        for delivery in &mail.deliveries {
            node.settle_one(viewer, ConsumerTag(0), delivery.offset, Outcome::Accepted);
        }
    }
    assert_eq!(got, 100);
}

#[test]
fn unsubscribing_ends_the_pages() {
    let mut node = Node::new(1, 1);
    let (device, viewer) = (node.connect(0), node.connect(0));
    for number in 0..2_000 {
        keep(&mut node, device, &format!("a/{number}"), "x");
    }
    node.session(viewer, "v", true, 0);
    subscribe(&mut node, viewer, "a/#", SendRetained::Always);
    let name = FilterName {
        group: None,
        filter: "a/#".parse().unwrap(),
    };
    let unsubscribe = Command::Unsubscribe {
        token: AGAIN,
        filters: vec![name],
    };
    assert_eq!(
        node.reply(viewer, unsubscribe),
        Ok(Reply::Unsubscribed(vec![true]))
    );
    let mut got = 0;
    loop {
        let mail = node.mail(viewer);
        if mail.deliveries.is_empty() {
            break;
        }
        got += mail.deliveries.len();
        for delivery in &mail.deliveries {
            node.settle_one(viewer, ConsumerTag(0), delivery.offset, Outcome::Accepted);
        }
    }
    assert_eq!(got, 512, "the page that was there already");
}

struct Rules;

impl Authority for Rules {
    fn decide(&self, question: &Question<'_>) -> Verdict {
        let allowed = match (question.action, question.resource) {
            (Action::Receive, Resource::Topic(address)) => !address.as_str().contains("secret"),
            (Action::Receive, _) => false,
            (Action::Retain, Resource::Topic(address)) => !address.as_str().contains("fixed"),
            // A filter is allowed when every address it can match is.
            (Action::Retain, _) => false,
            _ => true,
        };
        Verdict {
            allowed,
            rule: None,
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
fn rights_to_keep_and_to_receive_are_asked_for_each_address() {
    let mut node = Node::with(2, 2, Arc::new(Rules));
    let (device, viewer) = (node.connect(0), node.connect(1));
    keep(&mut node, device, "a/secret", "no");
    keep(&mut node, device, "a/open", "yes");
    assert_eq!(
        keep(&mut node, device, "a/fixed", "no"),
        PublishOutcome::Refused(ErrorKind::AccessRefused)
    );
    node.session(viewer, "v", true, 0);
    subscribe(&mut node, viewer, "a/#", SendRetained::Always);
    assert_eq!(seen(&node.mail(viewer)), [("yes", true)]);
}

/// Puts shards with other limits in the place of unused ones.
fn limit(node: &mut Node, limits: ShardLimits) {
    for (id, data) in &mut node.data {
        data.shard = Shard::new(ShardSetup {
            id: *id,
            incarnation: 1,
            workers: node.workers.len() as u16,
            codecs: Default::default(),
            limits,
            fabric: node.fabric.clone(),
            authority: node.authority.clone(),
        });
        data.shard.begin();
    }
}

#[test]
fn a_value_beyond_the_limit_is_refused_and_one_that_replaces_is_not() {
    let mut node = Node::new(1, 1);
    let limits = ShardLimits {
        values_max: 2,
        ..ShardLimits::default()
    };
    limit(&mut node, limits);
    let device = node.connect(0);
    keep(&mut node, device, "a", "1");
    keep(&mut node, device, "b", "1");
    assert_eq!(
        keep(&mut node, device, "c", "1"),
        PublishOutcome::Refused(ErrorKind::QuotaExceeded)
    );
    assert_eq!(
        keep(&mut node, device, "b", "2"),
        PublishOutcome::Unroutable
    );
    keep(&mut node, device, "a", "");
    assert_eq!(
        keep(&mut node, device, "c", "1"),
        PublishOutcome::Unroutable
    );
}

#[test]
fn a_queue_bound_with_values_has_them_and_then_what_is_live() {
    for (durable, workers) in [(true, 1), (true, 2), (false, 2)] {
        let mut node = Node::new(workers, 3);
        let (device, application) = (node.connect(0), node.connect(workers - 1));
        for number in 0..1_200 {
            keep(&mut node, device, &format!("plant/{number}"), "old");
        }
        keep(&mut node, device, "elsewhere", "no");
        node.declare(application, "jobs", durable).unwrap();
        let binding = BindingSpec {
            exchange: Arc::from("topics"),
            to: BindTo::Stream(Arc::from("jobs")),
            key: Default::default(),
            filter: "plant/#".parse().unwrap(),
            retained: true,
            arguments: Vec::new(),
        };
        let bind = Command::Bind {
            token: AGAIN,
            binding: Box::new(binding),
        };
        assert_eq!(node.reply(application, bind), Ok(Reply::Done));
        keep(&mut node, device, "plant/7", "new");
        let consume = reader("jobs", node::TAG, u32::MAX);
        node.consume_with(application, consume).unwrap();
        let mail = node.mail(application);
        assert_eq!(mail.deliveries.len(), 1_201);
        let (last, values) = mail.deliveries.split_last().unwrap();
        assert!(values.iter().all(|delivery| delivery.retain));
        assert_eq!((&last.message.body[..], last.retain), (&b"new"[..], false));
    }
}

#[test]
fn an_operator_drops_one_value() {
    let mut node = Node::new(1, 1);
    let device = node.connect(0);
    keep(&mut node, device, "a", "1");
    let drop = |address: &str| port::Question::DropValue {
        vhost: VhostId(1),
        address: address.parse().unwrap(),
    };
    let vhost = node.fabric.meta().vhost("/").unwrap().id;
    assert_eq!(vhost, VhostId(1));
    assert!(matches!(ask(&mut node, 1, drop("b")), ShardReply::Count(0)));
    assert!(matches!(ask(&mut node, 1, drop("a")), ShardReply::Count(1)));
    assert_eq!(counts(&mut node), 0);
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// Who has things to take, and of which kind: a worker takes requests and events in any order among each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Inbox {
    Requests(u16),
    Events(u16),
    Data(u16),
}

enum Packet {
    Requests(ShardId, WorkerId, Vec<ShardRequest>),
    Events(ShardId, Vec<ShardEvent>),
}

/// A node in which everybody takes their time: each inbox is emptied in order, nothing else is in any order.
struct Slow {
    node: Node,
    dice: Dice,
    outgoing: Vec<VecDeque<Outgoing>>,
    sleepy: u16,
    inboxes: BTreeMap<Inbox, VecDeque<Packet>>,
    frames: BTreeMap<ShardId, VecDeque<(Position, Bytes)>>,
}

impl Slow {
    fn send(&mut self, to: Inbox, packet: Packet) {
        self.inboxes.entry(to).or_default().push_back(packet);
    }

    /// A worker ends a round, or sends the next thing that came of it.
    fn turn(&mut self, at: u16) {
        let outgoing = &mut self.outgoing[usize::from(at)];
        // One worker may be stopped for long in the middle of what it sends.
        if !outgoing.is_empty() && at == self.sleepy && self.dice.below(60) != 0 {
            return;
        }
        if outgoing.is_empty() {
            let worker = &mut self.node.workers[usize::from(at)];
            worker.turn(self.node.now);
            outgoing.extend(worker.outgoing());
        }
        if let Some(out) = outgoing.pop_front() {
            match out {
                Outgoing::Requests { to, requests } => {
                    let inbox = match to.is_volatile() {
                        true => Inbox::Requests(to.host().0),
                        false => Inbox::Data(to.0),
                    };
                    self.send(inbox, Packet::Requests(to, WorkerId(at), requests));
                }
                Outgoing::Events {
                    to,
                    from: shard,
                    events,
                } => self.send(Inbox::Events(to.0), Packet::Events(shard, events)),
                other => self.node.carry(usize::from(at), other),
            }
        }
    }

    fn take_mail(&mut self, at: u16) {
        let worker = &mut self.node.workers[usize::from(at)];
        while let Some(id) = worker.next_ready() {
            let mut mail = Mail::default();
            worker.take_mail(self.node.now, id, &mut mail);
            let kept = self.node.mails.entry(id).or_default();
            kept.answers.append(&mut mail.answers);
            kept.deliveries.append(&mut mail.deliveries);
        }
    }

    fn tell(&mut self, id: ShardId) {
        let data = self.node.data.get_mut(&id).unwrap();
        data.shard.dispatch(self.node.now, &mut &data.journal);
        let events: Vec<_> = data.shard.events().collect();
        for (worker, events) in events {
            let packet = Packet::Events(id, events);
            self.send(Inbox::Events(worker.0), packet);
        }
    }

    /// A data shard takes a frame, or applies the oldest that it took.
    fn shard(&mut self, id: ShardId, apply: bool) {
        let data = self.node.data.get_mut(&id).unwrap();
        let frames = self.frames.entry(id).or_default();
        if apply {
            if let Some((base, frame)) = frames.pop_front() {
                let clock = self.node.now.unix;
                data.shard.apply(clock, base, &frame, true).unwrap();
            }
        } else if let Some(frame) = data.shard.take_frame(self.node.now) {
            let base = data.journal.bytes.len() as u64;
            data.journal.bytes.extend_from_slice(&frame);
            data.journal.frames.push((base, frame.clone()));
            frames.push_back((Position(base), frame));
        }
        self.tell(id);
    }

    fn take(&mut self, inbox: Inbox) {
        let Some(packet) = self.inboxes.get_mut(&inbox).and_then(VecDeque::pop_front) else {
            return;
        };
        match (packet, inbox) {
            (Packet::Requests(to, from, mut requests), Inbox::Data(_)) => {
                let data = self.node.data.get_mut(&to).unwrap();
                data.shard
                    .handle(self.node.now, from, &mut requests, &mut &data.journal);
            }
            (Packet::Requests(_, from, requests), Inbox::Requests(at) | Inbox::Events(at)) => {
                let worker = &mut self.node.workers[usize::from(at)];
                worker.shard_requests(self.node.now, from, requests);
            }
            (Packet::Events(from, events), Inbox::Requests(at) | Inbox::Events(at)) => {
                let worker = &mut self.node.workers[usize::from(at)];
                worker.shard_events(self.node.now, from, events);
            }
            (Packet::Events(..), Inbox::Data(_)) => panic!("shards are told nothing"),
        }
    }

    /// One thing that can happen next happens.
    fn step(&mut self) {
        let workers = self.node.workers.len();
        let shards = self.node.data.len();
        match self.dice.below(5) {
            0 | 4 => {
                let at = self.dice.below(workers) as u16;
                self.turn(at);
            }
            1 => {
                let id = ShardId(1 + self.dice.below(shards) as u16);
                let apply = self.dice.below(2) == 0;
                self.shard(id, apply);
            }
            2 => {
                let at = self.dice.below(workers) as u16;
                self.take_mail(at);
            }
            _ => {
                let inboxes: Vec<_> = self.inboxes.keys().copied().collect();
                if !inboxes.is_empty() {
                    let inbox = inboxes[self.dice.below(inboxes.len())];
                    self.take(inbox);
                }
            }
        }
    }

    fn submit(&mut self, client: Client, command: Command) {
        let worker = usize::from(client.id.worker().0);
        let now = self.node.now;
        self.node.workers[worker].submit(now, client.id, &mut vec![command]);
    }

    /// Everything that is on its way arrives.
    fn finish(&mut self) {
        loop {
            let inboxes: Vec<_> = self.inboxes.keys().copied().collect();
            for inbox in inboxes {
                while self
                    .inboxes
                    .get(&inbox)
                    .is_some_and(|queue| !queue.is_empty())
                {
                    self.take(inbox);
                }
            }
            let ids: Vec<_> = self.node.data.keys().copied().collect();
            for id in ids {
                self.shard(id, false);
                while self
                    .frames
                    .get(&id)
                    .is_some_and(|frames| !frames.is_empty())
                {
                    self.shard(id, true);
                }
            }
            for at in 0..self.node.workers.len() as u16 {
                self.turn(at);
                while !self.outgoing[usize::from(at)].is_empty() {
                    self.turn(at);
                }
                self.take_mail(at);
            }
            if self.inboxes.values().all(VecDeque::is_empty) {
                // What is gathered and lingers, too.
                self.node.pass(20);
                self.node.pass(20);
                return;
            }
        }
    }
}

#[test]
fn no_subscriber_sees_an_older_value_after_a_newer_message_and_each_has_the_last_in_the_end() {
    let (mut values, mut live) = (0, 0);
    for seed in 1..=300 {
        let got = one_schedule(seed);
        (values, live) = (values + got.0, live + got.1);
    }
    // The schedules do reach both cases.
    assert!(values > 1_000 && live > 5_000, "{values} {live}");
}

fn version(delivery: &Delivery) -> u64 {
    let text = std::str::from_utf8(&delivery.message.properties).unwrap();
    text.parse().unwrap()
}

fn one_schedule(seed: u64) -> (usize, usize) {
    const ADDRESSES: usize = 12;
    let mut node = Node::new(3, 3);
    let limits = ShardLimits {
        // Now and then full, so that publishes are parked.
        parked_bytes_max: 100,
        ..ShardLimits::default()
    };
    limit(&mut node, limits);
    node.settle();
    // One publisher for four addresses each.
    let publishers: Vec<Client> = (0..3).map(|worker| node.connect(worker)).collect();
    let mut viewers = Vec::new();
    for number in 0..6u16 {
        let viewer = node.connect(number % 3);
        let open = SessionOpen {
            client_id: Arc::from(format!("v{number}")),
            clean_start: true,
            expiry_s: u32::from(number >= 3) * 600,
            consumer: ConsumerTag(0),
            credit: 100_000,
            group_consumers: ConsumerTag(1),
            will: None,
        };
        node.session_with(viewer, open);
        viewers.push(viewer);
    }
    for client in viewers.iter().chain(&publishers) {
        node.mail(*client);
    }
    let mut slow = Slow {
        node,
        dice: Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
        sleepy: (seed % 4) as u16,
        outgoing: (0..3).map(|_| VecDeque::new()).collect(),
        inboxes: BTreeMap::new(),
        frames: BTreeMap::new(),
    };
    let mut last = [(0u64, true); ADDRESSES];
    let mut waiting: Vec<(Client, &str)> = viewers
        .iter()
        .zip(["a/#", "a/3", "+/+", "#", "a/+", "a/1"])
        .map(|(viewer, filter)| (*viewer, filter))
        .collect();
    let filters: BTreeMap<ConnectionId, &str> = waiting
        .iter()
        .map(|(viewer, name)| (viewer.id, *name))
        .collect();
    for _ in 0..600 {
        match slow.dice.below(30) {
            0 => {
                let at = slow.dice.below(ADDRESSES);
                let publisher = publishers[at / 4];
                let removes = slow.dice.below(6) == 0;
                last[at] = (last[at].0 + 1, removes);
                let message = Message {
                    properties: last[at].0.to_string().into(),
                    ..message(
                        publisher,
                        &format!("a/{at}"),
                        if removes { "" } else { "x" },
                    )
                };
                slow.submit(publisher, publish(message, 0));
            }
            1 if !waiting.is_empty() => {
                let at = slow.dice.below(waiting.len());
                let (viewer, name) = waiting.swap_remove(at);
                let subscribe = Command::Subscribe {
                    token: AGAIN,
                    filters: vec![wanting(name, SendRetained::Always)],
                };
                slow.submit(viewer, subscribe);
            }
            _ => slow.step(),
        }
    }
    for (viewer, name) in waiting {
        let subscribe = Command::Subscribe {
            token: AGAIN,
            filters: vec![wanting(name, SendRetained::Always)],
        };
        slow.submit(viewer, subscribe);
        slow.step();
    }
    slow.finish();
    let (mut values, mut live) = (0, 0);
    for viewer in viewers {
        let mail = slow.node.mail(viewer);
        let mut newest: BTreeMap<String, u64> = BTreeMap::new();
        let mut latest: BTreeMap<String, (u64, bool)> = BTreeMap::new();
        for delivery in &mail.deliveries {
            let address = delivery.message.address.to_string();
            let version = version(delivery);
            let before = newest.entry(address.clone()).or_default();
            match delivery.retain {
                true => {
                    values += 1;
                    assert!(
                        version >= *before,
                        "seed {seed}: value {version} of {address} after {before}"
                    );
                }
                false => live += 1,
            }
            *before = version.max(*before);
            latest.insert(address, (version, delivery.message.body.is_empty()));
        }
        let wanted: anabranch_core::address::TopicFilter = filters[&viewer.id].parse().unwrap();
        for (at, (version, removed)) in last.iter().enumerate() {
            let address = format!("a/{at}");
            if !wanted.matches(&address.parse().unwrap()) {
                continue;
            }
            match latest.get(&address) {
                None => assert!(*removed, "seed {seed}: no value of {address}"),
                Some(known) => assert_eq!(
                    *known,
                    (*version, *removed),
                    "seed {seed}: the last of {address} at {}",
                    filters[&viewer.id]
                ),
            }
        }
    }
    (values, live)
}
