//! Last values: where they are kept, and reading them for whoever was bound.
//!
//! A message to be kept goes to the shard where its address is placed, beside its other destinations and at the same
//! time. So a subscriber's shard and the value's shard hear of it in any order, and yet a subscriber must neither see
//! an older value after a newer message nor miss the last one. For a reading, in this order:
//!
//! 1. The binding is made: from then on every worker that looks at routes sends the stream's shard what matches. With
//!    the binding that shard begins to watch (`shard/watch.rs`).
//! 2. *Flush*: every worker is asked, and answers after it has sent on to data shards all that it had routed before,
//!    also what was parked for a full shard or waited for its turn. What was routed by older routes, and so never comes to the stream as a
//!    message, has then been handed to the value's shard.
//! 3. A page is asked, and answered when everything handed in before is applied: it has the values of 2. What
//!    is missing in it was routed after the binding, and comes to the stream as a message.
//! 4. The page is handed in. A value whose address got a message since 1 is left out: the message is that value or a
//!    newer one. A message that comes later may be the value again, or one that was replaced already, as the
//!    publisher's next one is on its way; never the other way round.
//!
//! The next page follows when the stream has been drained of most of the last one, so that any number of values
//! passes through a session's bounds.
//!
//! Owns: readings, the right to keep a value, flushes.
//! Never: the values (`shard/values.rs`).

use super::steps::Step;
use super::{Connected, Outgoing, Worker};
use crate::address::{Address, TopicFilter};
use crate::authority::{Action, Circumstances, Question as AuthorityQuestion, Resource};
use crate::error::Refusal;
use crate::gateway::FilterSpec;
use crate::id::{ConnectionId, Now, ShardId, StreamId, VhostId, WorkerId};
use crate::message::Message;
use crate::port::{Extra, HandIn, Question, ReadingKey, ShardReply};
use crate::router::Route;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::rc::Rc;

/// Values asked for at a time.
const PAGE_VALUES: u32 = 512;
/// Remembered rights to keep values; cleared when full.
const VERDICTS_MAX: usize = 65_536;

/// Values on their way to one stream.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) key: ReadingKey,
    /// That of the stream.
    pub(super) shard: ShardId,
    /// Absent: the connection's session.
    pub(super) queue: Option<StreamId>,
    /// The session's filter.
    pub(super) spec: Option<FilterSpec>,
    pub(super) vhost: VhostId,
    pub(super) filter: TopicFilter,
    /// Shards not yet read to the end.
    homes: VecDeque<ShardId>,
    after: Option<Address>,
    next: Option<Address>,
    /// A flush began after the binding was made.
    covered: bool,
    /// Workers that have not answered it.
    flushes: u32,
}

/// Flushes wait for what was queued before them only: so rounds take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Round(bool);

/// All readings of a worker: one after the other for each connection.
#[derive(Debug, Default)]
pub(super) struct Readings {
    of: FxHashMap<ConnectionId, VecDeque<Reading>>,
    last: u64,
    /// Messages to be kept that wait in a connection's queue (`once.rs`): of this round and of the other.
    queued: [usize; 2],
    round: Round,
    /// So many flushes wait for what is queued of the other round.
    flushing: Option<usize>,
    verdicts: FxHashMap<(u64, u32), bool>,
    verdicts_of: (u64, u64),
}

impl Readings {
    /// The reading of this name, if its turn has come.
    fn front(&mut self, key: ReadingKey) -> Option<&mut Reading> {
        let front = self.of.get_mut(&key.connection)?.front_mut()?;
        (front.key == key).then_some(front)
    }

    /// A message to be kept is queued.
    pub(super) fn hold(&mut self) -> Round {
        self.queued[usize::from(self.round.0)] += 1;
        self.round
    }

    /// It is sent.
    pub(super) fn let_go(&mut self, round: Round) {
        self.queued[usize::from(round.0)] -= 1;
    }

    /// How many of so many flushes can be answered.
    fn passed(&mut self, flushes: usize) -> usize {
        let other = Round(!self.round.0);
        match self.flushing {
            Some(waiting) if self.queued[usize::from(other.0)] == 0 => {
                self.flushing = None;
                waiting
            }
            Some(_) => 0,
            None if self.queued[usize::from(self.round.0)] == 0 => flushes,
            None => {
                self.flushing = Some(flushes);
                self.round = other;
                0
            }
        }
    }

    /// The connection is gone.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.of.remove(&connection);
    }
}

/// What is asked of one of a route's shards beside storing the message.
pub(super) fn extra(route: &Route, shard: ShardId) -> Option<Box<Extra>> {
    let keep = route.keep && route.values == Some(shard);
    (keep || route.later.is_some()).then(|| {
        Box::new(Extra {
            keep: route.by_topic.filter(|_| keep),
            later: route.later,
            ..Extra::default()
        })
    })
}

impl Worker {
    /// The route of a message to be kept: by the shard of its address too.
    pub(super) fn keeping(route: &Rc<Route>) -> Rc<Route> {
        let Some(home) = route.values else {
            return route.clone();
        };
        let mut route = Route::clone(route);
        route.keep = true;
        if !route.targets.iter().any(|(shard, _)| *shard == home) {
            route.targets.push((home, Default::default()));
        }
        Rc::new(route)
    }

    /// Whether a connection may set or clear the value of a message's address.
    pub(super) fn may_keep(&mut self, state: &Connected, route: &Route, message: &Message) -> bool {
        let (Some(principal), Some((_, vhost))) = (&state.principal, &state.vhost) else {
            return false;
        };
        if !message.address.is_system() && self.may_everywhere(state, true) {
            return true;
        }
        let cached = !self.rules.circumstantial_retain;
        let key = (principal.id, route.number);
        let of = (self.router.generation(), self.authority.generation());
        let known = &mut self.readings;
        if of != known.verdicts_of || known.verdicts.len() >= VERDICTS_MAX {
            known.verdicts.clear();
            known.verdicts_of = of;
        }
        if cached && let Some(known) = known.verdicts.get(&key) {
            return *known;
        }
        let question = AuthorityQuestion {
            principal,
            action: Action::Retain,
            vhost,
            resource: Resource::Topic(&message.address),
            circumstances: Circumstances {
                quality: message.quality as u8,
                retain: true,
                body_bytes: message.body.len(),
            },
        };
        let allowed = self.authority.decide(&question).allowed;
        if cached {
            known.verdicts.insert(key, allowed);
        }
        allowed
    }

    /// A reading of the values that match a filter, for a stream of a shard: the connection's session unless a
    /// queue is named.
    pub(super) fn reading(
        &mut self,
        connection: ConnectionId,
        (vhost, vhost_name): (VhostId, &str),
        (shard, queue): (ShardId, Option<StreamId>),
        (filter, spec): (&TopicFilter, Option<&FilterSpec>),
    ) -> Reading {
        self.readings.last += 1;
        // A queue keeps what it gets when the connection that bound it is gone.
        let connection = match queue {
            Some(_) => ConnectionId::new(self.id, 0),
            None => connection,
        };
        let meta = self.fabric.meta();
        let homes = match filter.is_wild() {
            true => meta.placed_list().iter().copied().collect(),
            false => meta
                .place(vhost_name, filter.as_str())
                .into_iter()
                .collect(),
        };
        Reading {
            key: ReadingKey {
                connection,
                number: self.readings.last,
            },
            shard,
            queue,
            spec: spec.cloned(),
            vhost,
            filter: filter.clone(),
            homes,
            after: None,
            next: None,
            covered: false,
            flushes: 0,
        }
    }

    /// The bindings are made: their values are read, in order.
    pub(super) fn begin_readings(&mut self, now: Now, readings: Vec<Reading>) {
        for reading in readings {
            let connection = reading.key.connection;
            let waiting = self.readings.of.entry(connection).or_default();
            waiting.push_back(reading);
            if waiting.len() == 1 {
                self.begin_reading(now, connection);
            }
        }
    }

    fn begin_reading(&mut self, now: Now, connection: ConnectionId) {
        let Some(waiting) = self.readings.of.get_mut(&connection) else {
            return;
        };
        let Some(front) = waiting.front_mut() else {
            self.readings.of.remove(&connection);
            return;
        };
        let key = front.key;
        if front.covered {
            return self.read_page(now, key);
        }
        front.flushes = u32::from(self.workers);
        for reading in waiting {
            reading.covered = true;
        }
        for worker in 0..self.workers {
            let shard = ShardId::volatile(WorkerId(worker));
            let step = Step::Flushed { key };
            self.ask_shard(now, shard, connection, step, Question::Flush);
        }
    }

    /// A worker has sent on what it had routed.
    pub(super) fn flushed(&mut self, now: Now, key: ReadingKey) {
        let Some(reading) = self.readings.front(key) else {
            return;
        };
        reading.flushes = reading.flushes.saturating_sub(1);
        if reading.flushes == 0 {
            self.read_page(now, key);
        }
    }

    fn read_page(&mut self, now: Now, key: ReadingKey) {
        let Some(reading) = self.readings.front(key) else {
            return;
        };
        let Some(home) = reading.homes.front().copied() else {
            return self.finish_reading(now, key);
        };
        let question = Question::Values {
            vhost: reading.vhost,
            filter: reading.filter.clone(),
            hides_system: reading.queue.is_none(),
            after: reading.after.clone(),
            count: PAGE_VALUES,
        };
        let step = Step::ValuesRead { key };
        self.ask_shard(now, home, key.connection, step, question);
    }

    pub(super) fn values_read(
        &mut self,
        now: Now,
        key: ReadingKey,
        result: Result<ShardReply, Refusal>,
    ) {
        let Some(reading) = self.readings.front(key) else {
            return;
        };
        let Ok(ShardReply::Values { values, next }) = result else {
            return self.give_up_reading(now, key);
        };
        let last = next.is_none() && reading.homes.len() == 1;
        reading.next = next;
        if values.is_empty() && !last {
            return self.next_page(now, key);
        }
        let hand_in = HandIn {
            reading: key,
            queue: reading.queue,
            filter: reading.spec.clone(),
            values,
            last,
        };
        let (shard, step) = (reading.shard, Step::HandedIn { key });
        let question = Question::HandIn(Box::new(hand_in));
        self.ask_shard(now, shard, key.connection, step, question);
    }

    pub(super) fn handed_in(
        &mut self,
        now: Now,
        key: ReadingKey,
        result: Result<ShardReply, Refusal>,
    ) {
        let Some(reading) = self.readings.front(key) else {
            return;
        };
        match result {
            Ok(ShardReply::HandedIn { again: true }) => {
                reading.covered = false;
                self.begin_reading(now, key.connection);
            }
            Ok(_) => self.next_page(now, key),
            Err(_) => self.finish_reading(now, key),
        }
    }

    fn next_page(&mut self, now: Now, key: ReadingKey) {
        let Some(reading) = self.readings.front(key) else {
            return;
        };
        reading.after = reading.next.take();
        if reading.after.is_none() {
            reading.homes.pop_front();
        }
        self.read_page(now, key);
    }

    fn finish_reading(&mut self, now: Now, key: ReadingKey) {
        if self.readings.front(key).is_some()
            && let Some(waiting) = self.readings.of.get_mut(&key.connection)
        {
            waiting.pop_front();
            self.begin_reading(now, key.connection);
        }
    }

    /// The values cannot be read: nobody watches for them any more.
    fn give_up_reading(&mut self, now: Now, key: ReadingKey) {
        if let Some(reading) = self.readings.front(key) {
            let (shard, queue) = (reading.shard, reading.queue);
            self.end_watch(now, key, shard, queue);
        }
        self.finish_reading(now, key);
    }

    /// Nothing will be handed in under this name.
    pub(super) fn end_watch(
        &mut self,
        now: Now,
        key: ReadingKey,
        shard: ShardId,
        queue: Option<StreamId>,
    ) {
        let hand_in = HandIn {
            reading: key,
            queue,
            filter: None,
            values: Vec::new(),
            last: true,
        };
        let question = Question::HandIn(Box::new(hand_in));
        self.ask_shard(now, shard, key.connection, Step::Nothing, question);
    }

    /// Filters of a session are unbound: their values are not wanted any more.
    pub(super) fn cancel_readings(
        &mut self,
        now: Now,
        connection: ConnectionId,
        filters: &[TopicFilter],
    ) {
        let Some(waiting) = self.readings.of.get_mut(&connection) else {
            return;
        };
        let before = waiting.front().map(|front| front.key);
        waiting.retain(|reading| !filters.contains(&reading.filter));
        if waiting.front().map(|front| front.key) != before {
            self.begin_reading(now, connection);
        }
    }

    /// Sends on what is gathered for data shards, or for workers.
    pub(super) fn send_batches(&mut self, volatile: bool) {
        for (shard, lane) in &mut self.lanes {
            if shard.is_volatile() == volatile && !lane.batch.is_empty() {
                let requests = std::mem::take(&mut lane.batch);
                let to = *shard;
                self.outgoing.push(Outgoing::Requests { to, requests });
            }
        }
    }

    /// Answers flushes, after everything routed so far was sent on. While messages to be kept wait for a full
    /// shard, flushes wait too.
    pub(super) fn answer_flushes(&mut self) {
        let flushes = self.shard.flushes();
        if flushes == 0 {
            return;
        }
        self.send_batches(false);
        if !self.lanes.values().any(|lane| lane.parks_values()) {
            let passed = self.readings.passed(flushes);
            self.shard.flushed(passed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_what_was_queued_before_it_and_for_nothing_later() {
        let mut readings = Readings::default();
        assert_eq!(readings.passed(2), 2);
        let before = readings.hold();
        assert_eq!(readings.passed(1), 0);
        let after = readings.hold();
        assert_ne!(before, after);
        assert_eq!(readings.passed(2), 0);
        readings.let_go(before);
        assert_eq!(readings.passed(2), 1, "the second came after");
        assert_eq!(readings.passed(1), 0);
        readings.let_go(after);
        assert_eq!(readings.passed(1), 1);
    }
}
