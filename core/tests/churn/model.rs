//! What a stream under churn owes its readers, as plain lists: every delivery is checked against them.
//!
//! Owns: what is expected. Never: asks the node anything.

use anabranch_core::gateway::{Delivery, Outcome};
use anabranch_core::id::{ConnectionId, ConsumerTag};
use anabranch_core::limits::Mode;

/// How long the journal may be without what was handed out and settled.
const LINGER_MS: u64 = 5;

/// A consumer. Also who takes single messages, which is never attached.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub connection: ConnectionId,
    pub tag: ConsumerTag,
    pub priority: i32,
    pub credit: u32,
    pub presettled: bool,
    pub attached: bool,
}

impl Member {
    fn is(&self, holder: Holder) -> bool {
        holder == (self.connection, self.tag)
    }
}

type Holder = (ConnectionId, ConsumerTag);

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waiting,
    Held(Holder),
    Done,
    /// Settled just before a crash: may come again.
    Ghost,
}

#[derive(Debug)]
struct Told {
    key: u64,
    state: State,
    /// Deliveries since the last crash.
    attempts: u32,
    delivered: bool,
    /// Its last change is in the journal.
    known: bool,
    /// It was handed out before a crash, and the journal knew.
    flagged: bool,
    /// A crash may have lost count.
    vague: bool,
}

pub struct Model {
    pub mode: Mode,
    pub name: &'static str,
    pub durable: bool,
    pub members: Vec<Member>,
    messages: Vec<Told>,
    /// First deliveries so far reach up to here.
    reached: usize,
    /// All below are done with.
    floor: usize,
    changed: bool,
    /// How many there were.
    pub deliveries: u64,
}

impl Model {
    pub fn new(mode: Mode, name: &'static str, durable: bool) -> Model {
        Model {
            mode,
            name,
            durable,
            members: Vec::new(),
            messages: Vec::new(),
            reached: 0,
            floor: 0,
            changed: false,
            deliveries: 0,
        }
    }

    /// A message is published; returns its body: its number, which is its offset.
    pub fn publish(&mut self, key: u64) -> String {
        self.messages.push(Told {
            key,
            state: State::Waiting,
            attempts: 0,
            delivered: false,
            known: false,
            flagged: false,
            vague: false,
        });
        (self.messages.len() - 1).to_string()
    }

    /// Another mode, for what is handed out next.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        self.reached = 0;
        self.changed = true;
    }

    /// The broker ended a member: what it held is back.
    pub fn ended(&mut self, connection: ConnectionId, tag: ConsumerTag) {
        for told in &mut self.messages[self.floor..] {
            if told.state == State::Held((connection, tag)) {
                told.state = State::Waiting;
            }
        }
        self.members.retain(|one| !one.is((connection, tag)));
    }

    pub fn attached(&self) -> usize {
        self.members.iter().filter(|one| one.attached).count()
    }

    /// Whether another member is refused.
    pub fn refuses(&self) -> bool {
        self.mode == Mode::Exclusive && self.members.iter().any(|one| one.attached)
    }

    /// Those that may not be done with.
    fn open(&self) -> impl Iterator<Item = &Told> + Clone {
        self.messages[self.floor..].iter()
    }

    fn held_by(&self, holder: Holder) -> usize {
        let held = self.open();
        held.filter(|told| told.state == State::Held(holder))
            .count()
    }

    /// Runs of consecutive offsets that one member holds.
    pub fn runs(&self) -> Vec<(Member, u64, u64)> {
        let mut runs: Vec<(Member, u64, u64)> = Vec::new();
        for (number, told) in (self.floor..).zip(self.open()) {
            let State::Held(holder) = told.state else {
                continue;
            };
            match runs.last_mut() {
                Some((member, _, last)) if member.is(holder) && *last + 1 == number as u64 => {
                    *last += 1
                }
                _ => {
                    let member = self.members.iter().find(|one| one.is(holder));
                    let member = member.expect("who holds is known").clone();
                    runs.push((member, number as u64, number as u64));
                }
            }
        }
        runs
    }

    pub fn settled(&mut self, first: u64, last: u64, outcome: Outcome) {
        for told in &mut self.messages[first as usize..=last as usize] {
            told.known = false;
            told.state = match outcome {
                Outcome::Released => State::Waiting,
                Outcome::Accepted | Outcome::Rejected => State::Done,
            };
        }
        self.forget_spent();
        let is_done = |told: &Told| told.known && told.state == State::Done;
        while self.messages.get(self.floor).is_some_and(is_done) {
            self.floor += 1;
        }
    }

    fn forget_spent(&mut self) {
        let messages = &self.messages[self.floor..];
        self.members.retain(|one| {
            let mut held = messages.iter();
            one.attached || held.any(|told| told.state == State::Held((one.connection, one.tag)))
        });
    }

    pub fn cancelled(&mut self, member: &Member) {
        let found = self.members.iter_mut().find(|one| *one == member);
        found.expect("it was attached").attached = false;
        self.forget_spent();
    }

    pub fn died(&mut self, connection: ConnectionId) {
        for told in &mut self.messages[self.floor..] {
            if matches!(told.state, State::Held((by, _)) if by == connection) {
                told.state = State::Waiting;
            }
        }
        self.members.retain(|one| one.connection != connection);
    }

    pub fn passed(&mut self, ms: u64) {
        if ms > LINGER_MS {
            let open = self.messages[self.floor..].iter_mut();
            open.for_each(|told| told.known = true);
        }
    }

    /// Everything is back but what the journal knows to be settled.
    pub fn crashed(&mut self) {
        self.members.clear();
        for told in &mut self.messages {
            told.state = match told.state {
                State::Waiting | State::Held(_) => State::Waiting,
                State::Done if told.known => State::Done,
                State::Done | State::Ghost => State::Ghost,
            };
            told.flagged |= told.attempts > 0 && told.known;
            told.vague = true;
            told.attempts = 0;
        }
    }

    pub fn delivered(&mut self, connection: ConnectionId, delivery: &Delivery) {
        let holder = (connection, delivery.consumer);
        let member = self.members.iter().find(|one| one.is(holder)).cloned();
        let member = member.expect("a member is served");
        assert!(member.attached, "nothing comes after the end: {delivery:?}");
        if self.mode == Mode::Failover {
            let mut others = self.members.iter().filter(|one| one.attached);
            assert!(others.all(|one| one.priority <= member.priority));
        }
        self.handed_out(holder, delivery);
        if member.presettled {
            self.settled(delivery.offset.0, delivery.offset.0, Outcome::Accepted);
        } else {
            // Credit may have been taken back since.
            let held = self.held_by(holder);
            assert!(
                held as u64 <= u64::from(member.credit).max(1),
                "{held} held"
            );
        }
    }

    /// A single message was taken.
    pub fn got(&mut self, connection: ConnectionId, delivery: &Delivery) {
        let holder = (connection, delivery.consumer);
        if !self.members.iter().any(|one| one.is(holder)) {
            self.members.push(Member {
                connection,
                tag: delivery.consumer,
                priority: 0,
                credit: 0,
                presettled: false,
                attached: false,
            });
        }
        self.handed_out(holder, delivery);
    }

    fn handed_out(&mut self, holder: Holder, delivery: &Delivery) {
        let number = delivery.offset.0 as usize;
        assert_eq!(
            delivery.message.body,
            number.to_string(),
            "offsets are dense"
        );
        let told = &self.messages[number];
        assert!(
            matches!(told.state, State::Waiting | State::Ghost),
            "{number} is {told:?} and comes again"
        );
        match told.vague {
            true => assert!(
                delivery.attempt > told.attempts + u32::from(told.flagged),
                "{number}: {told:?} comes as {delivery:?}"
            ),
            false => assert_eq!(delivery.attempt, told.attempts + 1, "{number}: {told:?}"),
        }
        assert!(number >= self.floor);
        let before = self.messages[self.floor..number].iter();
        let mut waiting = before.filter(|told| told.state == State::Waiting);
        match self.mode {
            Mode::Shared => {}
            Mode::Replay => unreachable!("replay.rs has a model of its own"),
            Mode::Exclusive | Mode::Failover => {
                assert_eq!(waiting.next().map(|told| told.key), None, "before {number}");
                let mut all = self.open();
                let other = all.find(|told| matches!(told.state, State::Held(by) if by != holder));
                assert!(
                    other.is_none(),
                    "{number} comes while another holds {other:?}"
                );
                let first = !told.delivered && told.state == State::Waiting;
                assert!(!first || number >= self.reached, "{number} comes late");
            }
            Mode::KeyShared => {
                let key = told.key;
                assert!(waiting.all(|told| told.key != key), "{number} overtakes");
                let mut same = self.open().filter(|told| told.key == key);
                let other = same.find(|told| matches!(told.state, State::Held(by) if by != holder));
                assert!(other.is_none(), "{number}: its key is elsewhere: {other:?}");
            }
        }
        let told = &mut self.messages[number];
        told.state = State::Held(holder);
        told.attempts = delivery.attempt;
        told.delivered = true;
        told.known = false;
        told.vague = false;
        self.deliveries += 1;
        self.reached = self.reached.max(number + 1);
    }

    /// Whoever has room has no message waiting for it.
    pub fn nobody_waits_in_vain(&self) {
        let has_room = |one: &&Member| {
            let room = (self.held_by((one.connection, one.tag)) as u64) < u64::from(one.credit);
            one.attached && (one.presettled || room)
        };
        let waiting = || {
            let all = self.open();
            all.filter(|told| told.state == State::Waiting)
        };
        let stuck = match self.mode {
            Mode::Replay => unreachable!("replay.rs has a model of its own"),
            Mode::Shared => waiting()
                .next()
                .filter(|_| self.members.iter().any(|one| has_room(&one))),
            Mode::Exclusive | Mode::Failover => {
                let attached = || self.members.iter().filter(|one| one.attached);
                let rank = attached().map(|one| one.priority).max();
                let holds = |one: &&Member| self.held_by((one.connection, one.tag)) > 0;
                // While one holds something only that one may be served, if it ranks highest.
                let holders: Vec<&Member> = self.members.iter().filter(holds).collect();
                let served: Vec<&Member> = match holders[..] {
                    [] => attached()
                        .filter(|one| Some(one.priority) == rank)
                        .collect(),
                    // After a change of mode another of the same rank may lead.
                    [one] if one.attached && Some(one.priority) == rank => match self.changed {
                        true => attached()
                            .filter(|any| Some(any.priority) == rank)
                            .collect(),
                        false => vec![one],
                    },
                    _ => Vec::new(),
                };
                let room = !served.is_empty()
                    && served.iter().all(has_room)
                    && (holders.is_empty() || served.len() == 1);
                waiting().next().filter(|_| room)
            }
            Mode::KeyShared => {
                let everyone = self.members.iter().filter(|one| one.attached);
                let all_have = self.members.iter().any(|one| one.attached)
                    && everyone.clone().all(|one| has_room(&one));
                waiting().find(|told| {
                    let same = self.open().filter(|other| other.key == told.key);
                    let holders = same.filter_map(|other| match other.state {
                        State::Held(by) => Some(by),
                        State::Waiting | State::Done | State::Ghost => None,
                    });
                    let mut holders: Vec<Holder> = holders.collect();
                    holders.dedup();
                    match holders[..] {
                        [] => all_have,
                        [by] => everyone.clone().any(|one| one.is(by) && has_room(&one)),
                        // From another mode.
                        _ => false,
                    }
                })
            }
        };
        let (mode, members) = (self.mode, &self.members);
        assert!(
            stuck.is_none(),
            "{mode:?}: {stuck:?} waits in vain for {members:?}"
        );
    }

    /// All that was published was settled or is held by somebody.
    pub fn nothing_is_lost(&self) {
        let lost = self
            .messages
            .iter()
            .position(|told| told.state == State::Waiting);
        assert_eq!(lost, None, "published and never handed out");
    }
}
