//! The four modes while readers join, leave, settle, give back and die at random, for a minute of simulated time a
//! seed: nothing is lost, nothing comes again that was settled, order and keys are kept at every step, and nobody
//! waits who need not.
//!
//! `ANABRANCH_SEEDS` runs more seeds than by default, `ANABRANCH_SEED_FROM` begins at another; a failure prints its
//! seed. Next: `churn/model.rs` (what is expected).

mod churn {
    pub mod model;
}
mod node;

use anabranch_core::address::Address;
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::{Mode, StreamLimits};
use anabranch_core::message::{Message, OriginTag};
use anabranch_core::properties::{Properties, Value};
use bytes::Bytes;
use churn::model::{Member, Model};
use node::{Client, Node, publishing, reader};

const SEEDS: u64 = 100;
const SIMULATED_MS: u64 = 60_000;
const KEYS: u64 = 6;
const MEMBERS_MAX: usize = 6;

/// Numbers that look random and are the same for the same seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % below
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        match list.len() {
            0 => None,
            count => list.get(self.roll(count as u64) as usize),
        }
    }
}

/// Says which seed failed.
struct Told(Mode, u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "mode {:?} fails with ANABRANCH_SEED_FROM={}",
                self.0, self.1
            );
        }
    }
}

struct Churn {
    node: Node,
    dice: Dice,
    publisher: Client,
    clients: Vec<Client>,
    streams: Vec<Model>,
    tags: u32,
    /// Keys are addresses; else headers.
    by_address: bool,
    /// Modes change.
    changing: bool,
    /// With one worker what is asked is done in the order it was asked, so that several things may be asked before
    /// the node runs; with two each thing is waited for.
    workers: u16,
}

impl Churn {
    fn new(mode: Mode, seed: u64) -> Churn {
        let workers = 1 + u16::from(seed.is_multiple_of(3));
        let mut node = Node::new(workers, 1);
        let publisher = node.connect(0);
        let mut churn = Churn {
            node,
            dice: Dice(seed),
            publisher,
            clients: Vec::new(),
            streams: vec![
                Model::new(mode, "kept", true),
                Model::new(mode, "held", false),
            ],
            tags: 0,
            by_address: seed.is_multiple_of(2),
            changing: false,
            workers,
        };
        (0..2).for_each(|at| churn.declare(at));
        churn
    }

    fn declare(&mut self, at: usize) {
        let stream = &self.streams[at];
        let limits = StreamLimits {
            mode: stream.mode,
            ..StreamLimits::default()
        };
        let declared = self
            .node
            .declare_with(self.publisher, stream.name, stream.durable, limits);
        declared.unwrap();
        let filter = format!("{}/#", stream.name);
        self.node.bind(self.publisher, stream.name, &filter);
    }

    fn publish(&mut self, at: usize, settle: bool) {
        let key = self.dice.roll(KEYS);
        let stream = &mut self.streams[at];
        let body = stream.publish(key);
        let header = || Properties {
            headers: vec![(Bytes::from_static(b"x-key"), Value::UInt(key, 64))],
            ..Properties::default()
        };
        let (exchange, address, properties) = match self.by_address {
            true => ("topics", format!("{}/{key}", stream.name), Bytes::new()),
            false => ("", stream.name.to_owned(), header().encode()),
        };
        let message = Message {
            exchange: Bytes::from_static(exchange.as_bytes()),
            address: address.parse::<Address>().unwrap(),
            origin: OriginTag::BROKER,
            properties,
            body: Bytes::from(body),
            publisher: self.publisher.id,
            ..Message::default()
        };
        let command = publishing(0, message);
        self.post(self.publisher, command, settle);
    }

    /// Submits, and with `settle` runs the node until it is quiet: else what follows takes effect with it.
    fn post(&mut self, client: Client, command: Command, settle: bool) {
        let worker = usize::from(client.id.worker().0);
        self.node.workers[worker].submit(self.node.now, client.id, &mut vec![command]);
        if settle || self.workers > 1 {
            self.node.settle();
        }
    }

    fn client(&mut self) -> Client {
        if self.clients.len() < 3 || self.dice.roll(3) == 0 {
            let client = self
                .node
                .connect(self.dice.roll(self.workers.into()) as u16);
            self.clients.push(client);
        }
        *self.dice.pick(&self.clients).unwrap()
    }

    fn join(&mut self, at: usize) {
        if self.streams[at].members.len() >= MEMBERS_MAX {
            return;
        }
        let client = self.client();
        self.node.settle();
        self.collect();
        self.tags += 1;
        let credit = match self.dice.roll(5) {
            0 => u32::MAX,
            some => some as u32 * 2 - 1,
        };
        let consume = Consume {
            priority: self.dice.roll(3) as i32,
            presettled: self.dice.roll(12) == 0,
            ..reader(self.streams[at].name, ConsumerTag(self.tags), credit)
        };
        let member = Member {
            connection: client.id,
            tag: consume.consumer,
            priority: consume.priority,
            credit,
            presettled: consume.presettled,
            attached: true,
        };
        let refused = self.streams[at].refuses();
        let result = self.node.consume_with(client, consume);
        assert_eq!(
            refused,
            result == Err(ErrorKind::SecondConsumer),
            "{result:?}"
        );
        if result.is_ok() {
            self.streams[at].members.push(member);
        }
    }

    fn cancel(&mut self, at: usize) {
        self.node.settle();
        self.collect();
        let attached = self.streams[at].members.iter().filter(|one| one.attached);
        let attached: Vec<Member> = attached.cloned().collect();
        let Some(member) = self.dice.pick(&attached).cloned() else {
            return;
        };
        let client = Client {
            id: member.connection,
        };
        self.node.cancel(client, member.tag);
        self.streams[at].cancelled(&member);
    }

    fn set_credit(&mut self, at: usize) {
        let credit = self.dice.roll(9) as u32;
        let count = self.streams[at].members.len() as u64;
        if count == 0 {
            return;
        }
        let place = self.dice.roll(count) as usize;
        let member = &mut self.streams[at].members[place];
        if member.attached {
            member.credit = credit;
            let (id, consumer) = (member.connection, member.tag);
            self.post(Client { id }, Command::SetCredit { consumer, credit }, true);
        }
    }

    /// Settles a run of what one member holds.
    fn settle(&mut self, at: usize) {
        let settle = self.dice.roll(3) > 0;
        let runs = self.streams[at].runs();
        let Some((member, first, last)) = self.dice.pick(&runs).cloned() else {
            return;
        };
        let last = first + self.dice.roll(last - first + 1);
        let outcome = match self.dice.roll(8) {
            0 => Outcome::Rejected,
            1 | 2 => Outcome::Released,
            _ => Outcome::Accepted,
        };
        self.streams[at].settled(first, last, outcome);
        let settled = Command::Settle {
            consumer: member.tag,
            first: Offset(first),
            last: Offset(last),
            outcome,
        };
        let id = member.connection;
        self.post(Client { id }, settled, settle);
    }

    fn get(&mut self, at: usize) {
        let client = self.client();
        let tag = ConsumerTag(1_000_000 + at as u32);
        let Some(got) = self.node.get(client, self.streams[at].name, tag) else {
            return;
        };
        // What others were handed in the same breath came first or after: it makes no difference to the checks.
        self.collect();
        self.streams[at].got(client.id, &got);
    }

    fn die(&mut self) {
        self.node.settle();
        self.collect();
        if self.clients.is_empty() {
            return;
        }
        let place = self.dice.roll(self.clients.len() as u64) as usize;
        let client = self.clients.swap_remove(place);
        for stream in &mut self.streams {
            stream.died(client.id);
        }
        self.node.disconnect(client);
    }

    /// The node dies and starts again from its journal.
    fn crash(&mut self) {
        self.node.settle();
        self.collect();
        self.node.restart();
        self.clients.clear();
        self.publisher = self.node.connect(0);
        for at in 0..self.streams.len() {
            if self.streams[at].durable {
                self.streams[at].crashed();
            } else {
                self.streams[at] = Model::new(self.streams[at].mode, self.streams[at].name, false);
                self.declare(at);
            }
        }
    }

    /// Another mode, for the journalled stream.
    fn change_mode(&mut self) {
        let modes = [
            Mode::Shared,
            Mode::Exclusive,
            Mode::Failover,
            Mode::KeyShared,
        ];
        let mode = modes[self.dice.roll(4) as usize];
        self.node.settle();
        self.collect();
        self.streams[0].set_mode(mode);
        let limits = StreamLimits {
            mode,
            ..StreamLimits::default()
        };
        self.node.set_limits(self.streams[0].name, limits);
        for client in self.clients.clone() {
            let mail = self.node.mails.get(&client.id);
            let answers = mail.map(|mail| mail.answers.clone()).unwrap_or_default();
            for answer in answers {
                if let Answer::Ended { consumer, why } = answer {
                    assert_eq!(
                        (mode, why.kind),
                        (Mode::Exclusive, ErrorKind::SecondConsumer)
                    );
                    self.streams[0].ended(client.id, consumer);
                }
            }
        }
        assert!(mode != Mode::Exclusive || self.streams[0].attached() <= 1);
    }

    /// Takes what was delivered to the books, which check it.
    fn collect(&mut self) {
        for client in self.clients.clone() {
            for delivery in self.node.mail(client).deliveries {
                let stream = self.streams.iter_mut().find(|stream| {
                    let mut members = stream.members.iter();
                    members.any(|one| (one.connection, one.tag) == (client.id, delivery.consumer))
                });
                let stream = stream.expect("deliveries are for members");
                stream.delivered(client.id, &delivery);
            }
        }
    }

    fn step(&mut self) {
        let at = self.dice.roll(2) as usize;
        match self.dice.roll(100) {
            0..=29 => self.publish(at, true),
            30..=36 => self.publish(at, false),
            37..=44 => self.join(at),
            45..=78 => self.settle(at),
            79..=82 => self.set_credit(at),
            83..=86 => self.cancel(at),
            87..=89 => self.die(),
            90..=92 => self.get(at),
            93 | 94 if self.changing => self.change_mode(),
            _ => self.node.settle(),
        }
        self.collect();
    }

    fn pass(&mut self, ms: u64) {
        self.node.settle();
        self.collect();
        self.node.pass(ms);
        self.collect();
        for stream in &mut self.streams {
            stream.passed(ms);
            stream.nobody_waits_in_vain();
        }
    }

    /// Everything that is left comes, once more members are there.
    fn drain(&mut self) {
        while !self.clients.is_empty() {
            self.die();
        }
        let client = self.node.connect(self.workers - 1);
        self.clients.push(client);
        for at in 0..self.streams.len() {
            let tag = ConsumerTag(2_000_000 + at as u32);
            let consume = reader(self.streams[at].name, tag, u32::MAX);
            self.streams[at].members.push(Member {
                connection: client.id,
                tag,
                priority: 0,
                credit: u32::MAX,
                presettled: false,
                attached: true,
            });
            self.node.consume_with(client, consume).unwrap();
            self.collect();
            let stat = self.node.stat(self.streams[at].name);
            assert_eq!(stat.ready, 0, "everything is handed out");
            self.streams[at].nothing_is_lost();
        }
    }
}

fn churn(mode: Mode, changing: bool) {
    let number = |name, default| {
        let given = std::env::var(name).ok();
        given.map_or(default, |given| given.parse().expect("a number"))
    };
    let from = number("ANABRANCH_SEED_FROM", 1);
    let seeds = number("ANABRANCH_SEEDS", SEEDS);
    let mut delivered = 0;
    for seed in from..from + seeds {
        let _told = Told(mode, seed);
        let mut churn = Churn::new(mode, seed);
        churn.changing = changing;
        let crash_at = [
            churn.dice.roll(SIMULATED_MS),
            churn.dice.roll(2 * SIMULATED_MS),
        ];
        let mut at = 0;
        while at < SIMULATED_MS {
            for _ in 0..=churn.dice.roll(3) {
                churn.step();
            }
            let ms = churn.dice.roll(300);
            if crash_at.iter().any(|crash| (at..at + ms).contains(crash)) {
                churn.crash();
            }
            churn.pass(ms);
            at += ms;
        }
        churn.drain();
        let streams = churn.streams.iter();
        delivered += streams.map(|stream| stream.deliveries).sum::<u64>();
    }
    assert!(delivered > 200 * seeds, "only {delivered} deliveries");
}

#[test]
fn shared() {
    churn(Mode::Shared, false);
}

#[test]
fn exclusive() {
    churn(Mode::Exclusive, false);
}

#[test]
fn failover() {
    churn(Mode::Failover, false);
}

#[test]
fn key_shared() {
    churn(Mode::KeyShared, false);
}

#[test]
fn from_mode_to_mode() {
    churn(Mode::Shared, true);
}
