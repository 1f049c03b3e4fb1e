//! Random days of a bounded queue beside a simple model of it: nothing is lost that its limits do not say, what is
//! ready stays in order, and whoever applies the same frames has the same state.

mod node;

use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::{DeadLetterKey, DeadLetterTo, Overflow, StreamLimits};
use node::kept::one_state;
use node::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Publish,
    Get,
    /// The held one at this place, counted round.
    Settle(usize, u8),
    Pass(u64),
    Gone,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Publish),
        4 => Just(Step::Get),
        5 => (any::<usize>(), 0u8..3).prop_map(|(at, how)| Step::Settle(at, how)),
        2 => (1u64..8).prop_map(|steps| Step::Pass(steps * 50)),
        1 => Just(Step::Gone),
        1 => Just(Step::Restart),
    ]
}

fn limits() -> impl Strategy<Value = StreamLimits> {
    let overflow = prop_oneof![
        Just(Overflow::DropOldest),
        Just(Overflow::Reject),
        Just(Overflow::RejectAndDeadLetter)
    ];
    (
        proptest::option::of(0u64..5),
        overflow,
        proptest::option::of(100u64..600),
        proptest::option::of(0u32..3),
    )
        .prop_map(
            |(messages_max, overflow, message_ttl_ms, delivery_limit)| StreamLimits {
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
                ..StreamLimits::default()
            },
        )
}

/// What one queue does, step by step.
#[derive(Default)]
struct Model {
    /// By number: how often it was handed out, and when it ends.
    ready: BTreeMap<u64, (u32, Option<u64>)>,
    held: Vec<(u64, u32, Option<u64>)>,
    dead: Vec<u64>,
    accepted: BTreeSet<u64>,
    refused: BTreeSet<u64>,
    next: u64,
    /// Everything below was handed out or dropped once, as far as a restart can tell.
    cursor: u64,
}

impl Model {
    fn die(&mut self, number: u64) {
        self.cursor = self.cursor.max(number + 1);
        self.dead.push(number);
    }

    fn enforce(&mut self, limits: &StreamLimits, now: u64) {
        while let Some((&first, &(_, end))) = self.ready.first_key_value()
            && end.is_some_and(|end| end <= now)
        {
            self.ready.remove(&first);
            self.die(first);
        }
        while limits.overflow == Overflow::DropOldest
            && limits
                .messages_max
                .is_some_and(|most| self.ready.len() as u64 > most)
        {
            let (first, _) = self.ready.pop_first().unwrap();
            self.die(first);
        }
    }

    fn give_back(&mut self, limits: &StreamLimits, (number, tries, end): (u64, u32, Option<u64>)) {
        match limits.delivery_limit {
            Some(limit) if tries > limit => self.die(number),
            _ => {
                self.ready.insert(number, (tries, end));
            }
        }
    }
}

/// Message numbers by offset: what was refused has none.
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
        let mut node = Node::new(1, 2);
        let client = node.connect(0);
        node.declare_with(client, "q", durable, limits.clone())
            .unwrap();
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

    fn now(&self) -> u64 {
        self.node.now.unix.0
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Publish => self.publish(),
            Step::Get => self.get(),
            Step::Settle(at, how) => self.settle(*at, *how),
            Step::Pass(ms) => self.node.pass(*ms),
            Step::Gone => self.gone(),
            Step::Restart if self.durable => self.restart(),
            Step::Restart => {}
        }
        let now = self.now();
        self.model.enforce(&self.limits, now);
        let stat = self.node.stat("q");
        assert_eq!(stat.ready, self.model.ready.len() as u64, "{step:?}");
        assert_eq!(stat.unsettled, self.model.held.len() as u64, "{step:?}");
    }

    fn publish(&mut self) {
        let number = self.model.next;
        self.model.next += 1;
        let body = number.to_string();
        self.node.publish(self.client, "", "q", &body, number + 1);
        let most = self.limits.messages_max;
        let full = most.is_some_and(|most| self.model.ready.len() as u64 >= most);
        let refused = full && self.limits.overflow != Overflow::DropOldest;
        let told = outcomes(&self.node.mail(self.client));
        let expected = match refused {
            true => PublishOutcome::Refused(anabranch_core::error::ErrorKind::QuotaExceeded),
            false => PublishOutcome::Routed,
        };
        assert_eq!(told, [(number + 1, number + 1, expected)]);
        if !refused {
            let end = self.limits.message_ttl_ms.map(|ms| self.now() + ms);
            self.model.ready.insert(number, (0, end));
            return;
        }
        match self.limits.overflow {
            Overflow::RejectAndDeadLetter => self.model.dead.push(number),
            Overflow::Reject | Overflow::DropOldest | Overflow::Hold => {
                self.model.refused.insert(number);
            }
        }
    }

    fn get(&mut self) {
        let got = self.node.get(self.taker, "q", TAG);
        let expected = self.model.ready.pop_first();
        let told = got.as_ref().map(|got| {
            let body = std::str::from_utf8(&got.message.body).unwrap();
            (body.parse().unwrap(), got.attempt)
        });
        assert_eq!(
            told,
            expected.map(|(number, (tries, _))| (number, tries + 1))
        );
        if let (Some(got), Some((number, (tries, end)))) = (got, expected) {
            self.offsets.insert(number, got.offset);
            self.model.cursor = self.model.cursor.max(number + 1);
            self.model.held.push((number, tries + 1, end));
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
        let offset = self.offsets[&held.0];
        self.node.settle_one(self.taker, TAG, offset, outcome);
        match outcome {
            Outcome::Accepted => {
                self.model.accepted.insert(held.0);
            }
            Outcome::Released => self.model.give_back(&self.limits, held),
            Outcome::Rejected => self.model.die(held.0),
        }
    }

    fn gone(&mut self) {
        self.node.disconnect(self.taker);
        self.taker = self.node.connect(0);
        let mut held = std::mem::take(&mut self.model.held);
        held.sort_unstable();
        for held in held {
            self.model.give_back(&self.limits, held);
        }
    }

    fn restart(&mut self) {
        self.node.flush();
        self.node.restart();
        self.client = self.node.connect(0);
        self.taker = self.node.connect(0);
        for (number, _, end) in std::mem::take(&mut self.model.held) {
            self.model.ready.insert(number, (1, end));
        }
        for (number, (tries, _)) in &mut self.model.ready {
            *tries = u32::from(*number < self.model.cursor);
        }
    }

    fn end(mut self) {
        let mut dead = Vec::new();
        while let Some(got) = self.node.get(self.client, "dead", ConsumerTag(8)) {
            let body = std::str::from_utf8(&got.message.body).unwrap();
            dead.push(body.parse::<u64>().unwrap());
        }
        assert_eq!(dead, self.model.dead, "who died, in order");
        let model = &self.model;
        let all = model.ready.len() + model.held.len() + model.dead.len();
        let all = all + model.accepted.len() + model.refused.len();
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
    fn a_bounded_queue_does_what_its_limits_say_and_nothing_else(
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
