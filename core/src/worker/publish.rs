//! The hot path: from a connection's publish to its destinations, and the answer back.
//!
//! What its own volatile shard holds is stored at once; other workers' volatile shards are handed the
//! message without waiting for them; data shards answer when the message is committed there, and the
//! publisher is told when the last of them has.
//!
//! Owns: lanes (numbering towards a shard), publishes waiting for several shards, the publish right.
//! Never: what a shard does with a message.

use super::{Connected, Outgoing, Worker};
use crate::authority::{Action, Circumstances, Question, Resource};
use crate::error::ErrorKind;
use crate::gateway::{Answer, OnceKey, PublishOutcome};
use crate::id::{ConnectionId, Now, Sequence, ShardId, Token, UnixMs};
use crate::message::Message;
use crate::port::{ShardRequest, Ticket};
use crate::router::Route;
use crate::shard::InMemory;
use std::collections::VecDeque;
use std::sync::Arc;

/// Remembered verdicts; cleared when full.
const VERDICTS_MAX: usize = 65_536;
/// Requests that are sent on before the round ends.
const BATCH_MAX: usize = 4096;

/// What goes to one shard, and what is waited for from there.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) batch: Vec<ShardRequest>,
    /// Publishes held back while the shard is full; everything else goes on, for it frees room.
    parked: Vec<ShardRequest>,
    /// How many of those are to be kept as last values.
    parked_values: usize,
    pub(super) ticket: Ticket,
    /// The sequence of the first of `waiting`, less one: what was finished in order.
    finished: u64,
    waiting: VecDeque<Waiting>,
    /// Connections that go on when everything up to this sequence is finished.
    fences: Vec<(u64, ConnectionId)>,
}

/// Who waits for the result of a publish.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) connection: ConnectionId,
    token: Token,
    group: Option<u32>,
    done: bool,
}

impl Waiting {
    /// What waits under a token, alone or in a group.
    pub(super) fn new(connection: ConnectionId, token: Token, group: Option<u32>) -> Waiting {
        Waiting {
            connection,
            token,
            group,
            done: false,
        }
    }
}

impl Lane {
    /// Holds a publish back until the shard has room.
    pub(super) fn park(&mut self, request: ShardRequest) {
        let keep = match &request {
            ShardRequest::Publish { extra, .. } => extra.as_ref().and_then(|extra| extra.keep),
            _ => None,
        };
        self.parked_values += usize::from(keep.is_some());
        self.parked.push(request);
    }

    /// Whether messages to be kept are among what is held back.
    pub(super) fn parks_values(&self) -> bool {
        self.parked_values > 0
    }

    pub(super) fn push(&mut self, waiting: Waiting) -> Sequence {
        self.waiting.push_back(waiting);
        Sequence(self.finished + self.waiting.len() as u64)
    }

    /// Puts a fence behind the connection's last unfinished publish, if it has one.
    pub(super) fn fence(&mut self, connection: ConnectionId) -> bool {
        let last = self
            .waiting
            .iter()
            .rposition(|waiting| waiting.connection == connection && !waiting.done);
        if let Some(at) = last {
            self.fences
                .push((self.finished + 1 + at as u64, connection));
        }
        last.is_some()
    }

    /// Takes the connections whose fence has been passed.
    pub(super) fn passed_fences(&mut self) -> Vec<ConnectionId> {
        if self.fences.is_empty() {
            return Vec::new();
        }
        let finished = self.finished;
        let passed = self
            .fences
            .extract_if(.., |(sequence, _)| *sequence <= finished);
        passed.map(|(_, connection)| connection).collect()
    }

    pub(super) fn finish(&mut self, sequence: Sequence) -> Option<Waiting> {
        let at = sequence.0.checked_sub(self.finished + 1)? as usize;
        let found = self.waiting.get_mut(at)?;
        let before = *found;
        found.done = true;
        while self.waiting.front().is_some_and(|first| first.done) {
            self.waiting.pop_front();
            self.finished += 1;
        }
        (!before.done).then_some(before)
    }
}

/// What a worker saw of the rules when it began a batch.
#[derive(Clone, Copy, Default)]
pub(super) struct RulesSeen {
    pub(super) generation: u64,
    /// Whether the right to publish depends on the message itself.
    pub(super) circumstantial: bool,
    /// Whether the right to set a value does.
    pub(super) circumstantial_retain: bool,
}

/// Publishes that wait for more than one shard.
#[derive(Default)]
pub(super) struct Groups {
    slots: Vec<Group>,
    vacant: Vec<u32>,
}

struct Group {
    remaining: u32,
    outcome: PublishOutcome,
    /// To be returned when no stream takes it.
    mandatory: Option<Arc<Message>>,
}

impl Groups {
    pub(super) fn open(
        &mut self,
        remaining: u32,
        outcome: PublishOutcome,
        mandatory: Option<Arc<Message>>,
    ) -> u32 {
        let group = Group {
            remaining,
            outcome,
            mandatory,
        };
        match self.vacant.pop() {
            Some(place) => {
                self.slots[place as usize] = group;
                place
            }
            None => {
                self.slots.push(group);
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// Counts one result in; when it was the last, the whole result and what is to be returned.
    fn add(
        &mut self,
        place: u32,
        outcome: PublishOutcome,
    ) -> Option<(PublishOutcome, Option<Arc<Message>>)> {
        let group = self.slots.get_mut(place as usize)?;
        group.outcome = worse(group.outcome, outcome);
        group.remaining -= 1;
        if group.remaining > 0 {
            return None;
        }
        self.vacant.push(place);
        let mandatory = group
            .mandatory
            .take()
            .filter(|_| group.outcome == PublishOutcome::Unroutable);
        Some((group.outcome, mandatory))
    }
}

/// Counts what a publisher has parked; the first time it is told.
pub(super) fn park(state: &mut Connected, cost_bytes: usize) {
    if state.parked_bytes == 0 {
        let why = Some("a shard of the broker is full");
        state.mail.answers.push(Answer::Blocked(why));
    }
    state.parked_bytes += cost_bytes;
}

/// A refusal anywhere is a refusal; else one destination is enough.
pub(super) fn worse(a: PublishOutcome, b: PublishOutcome) -> PublishOutcome {
    match (a, b) {
        (PublishOutcome::Refused(kind), _) | (_, PublishOutcome::Refused(kind)) => {
            PublishOutcome::Refused(kind)
        }
        (PublishOutcome::Routed, _) | (_, PublishOutcome::Routed) => PublishOutcome::Routed,
        (PublishOutcome::Unroutable, PublishOutcome::Unroutable) => PublishOutcome::Unroutable,
    }
}

impl Worker {
    pub(super) fn publish(
        &mut self,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        (mandatory, patient): (bool, bool),
        (once, later): (Option<OnceKey>, Option<UnixMs>),
        message: Arc<Message>,
    ) {
        state.published += 1;
        self.counts.published += 1;
        self.counts.published_bytes += message.body.len() as u64;
        let Some((vhost, _)) = state.vhost else {
            return self.refuse(state, token, ErrorKind::BadRequest);
        };
        let mut route = self.router.route(vhost, &message);
        if route.exchange_missing {
            return self.refuse(state, token, ErrorKind::NotFound);
        }
        if !self.may_publish(state, &route, &message) || route.internal {
            self.counts.denied += 1;
            return self.refuse(state, token, ErrorKind::AccessRefused);
        }
        if message.retain && route.by_topic.is_some() {
            if !self.may_keep(state, &route, &message) {
                self.counts.denied += 1;
                return self.refuse(state, token, ErrorKind::AccessRefused);
            }
            route = Self::keeping(&route);
        }
        if later.is_some() || route.delays {
            match self.delaying(vhost, &route, (later, message.published), &message) {
                Ok(Some(waits)) => route = waits,
                Ok(None) => {}
                Err(kind) => return self.refuse(state, token, kind),
            }
        }
        if !patient && self.has_no_room(&route) {
            return self.refuse(state, token, ErrorKind::Busy);
        }
        if (once.is_some() || !state.once.is_empty()) && Self::goes_in_turn(state, once, &route) {
            let how = (token, mandatory);
            return self.publish_in_turn(connection, state, how, once, &route, message);
        }
        let own = self.shard.id();
        let mut outcome = PublishOutcome::Unroutable;
        let mut awaited = 0;
        // What is stored at once comes first, so that its result can open the group.
        for (shard, streams) in &route.targets {
            if !self.takes_at_once(&route, *shard) {
                awaited += 1;
            } else if *shard == own {
                outcome = worse(
                    outcome,
                    self.shard
                        .take(streams, route.by_topic, patient, None, &message),
                );
            } else {
                let request = ShardRequest::Publish {
                    sequence: Sequence(0),
                    streams: streams.clone(),
                    by_topic: route.by_topic,
                    patient,
                    extra: None,
                    message: message.clone(),
                };
                self.send(*shard, request);
                outcome = worse(outcome, PublishOutcome::Routed);
            }
        }
        if awaited == 0 {
            if outcome == PublishOutcome::Unroutable {
                self.counts.unroutable += 1;
                if mandatory {
                    state.mail.answers.push(Answer::Returned { token, message });
                }
            }
            if token != Token::NONE {
                state.published_answer(token, outcome);
            }
            return;
        }
        let alone = awaited == 1 && outcome == PublishOutcome::Unroutable && !mandatory;
        let group = (!alone).then(|| {
            let mandatory = mandatory.then(|| message.clone());
            self.groups.open(awaited, outcome, mandatory)
        });
        for (shard, streams) in &route.targets {
            if self.takes_at_once(&route, *shard) {
                continue;
            }
            let blocked = self.blocked.contains(shard);
            let lane = self.lanes.entry(*shard).or_default();
            let sequence = lane.push(Waiting::new(connection, token, group));
            let mut extra = super::values::extra(&route, *shard);
            if self.undivided && route.holding {
                extra.get_or_insert_default().at_once = true;
            }
            let request = ShardRequest::Publish {
                sequence,
                streams: streams.clone(),
                by_topic: route.by_topic,
                patient,
                extra,
                message: message.clone(),
            };
            match blocked {
                true => {
                    lane.park(request);
                    park(state, message.cost_bytes());
                }
                false => self.send(*shard, request),
            }
        }
    }

    /// Why a publish would not be taken, as far as exchanges and rules say.
    pub(super) fn would_refuse(
        &mut self,
        state: &Connected,
        message: &Message,
    ) -> Option<ErrorKind> {
        let Some((vhost, _)) = state.vhost else {
            return Some(ErrorKind::BadRequest);
        };
        let route = self.router.route(vhost, message);
        if route.exchange_missing {
            return Some(ErrorKind::NotFound);
        }
        let keeps = message.retain && route.by_topic.is_some();
        let may = !route.internal
            && self.may_publish(state, &route, message)
            && (!keeps || self.may_keep(state, &route, message));
        (!may).then_some(ErrorKind::AccessRefused)
    }

    /// Whether a shard's result is known without waiting for it.
    fn takes_at_once(&self, route: &Route, shard: ShardId) -> bool {
        let own = shard == self.shard.id();
        let at_once = shard.is_volatile() && !self.blocked.contains(&shard);
        at_once && (!route.refusing || (own && !route.holding))
    }

    fn has_no_room(&self, route: &Route) -> bool {
        !self.blocked.is_empty() && {
            let mut targets = route.targets.iter();
            targets.any(|(shard, _)| self.blocked.contains(shard))
        }
    }

    /// A full shard takes publishes again: what was parked goes there, in order.
    pub(super) fn unpark(&mut self, now: Now, shard: ShardId) {
        let Some(lane) = self.lanes.get_mut(&shard) else {
            return;
        };
        let mut parked = std::mem::take(&mut lane.parked);
        lane.parked_values = 0;
        if shard == self.shard.id() {
            self.shard.handle(now, self.id, &mut parked, &mut InMemory);
        } else {
            lane.batch.append(&mut parked);
        }
    }

    pub(super) fn send(&mut self, shard: ShardId, request: ShardRequest) {
        let lane = self.lanes.entry(shard).or_default();
        lane.batch.push(request);
        if lane.batch.len() >= BATCH_MAX && !self.undivided {
            let requests = std::mem::take(&mut lane.batch);
            self.outgoing.push(Outgoing::Requests {
                to: shard,
                requests,
            });
        }
    }

    pub(super) fn refuse(&mut self, state: &mut Connected, token: Token, kind: ErrorKind) {
        self.counts.refused += 1;
        state.published_answer(token, PublishOutcome::Refused(kind));
    }

    pub(super) fn may_publish(
        &mut self,
        state: &Connected,
        route: &Route,
        message: &Message,
    ) -> bool {
        let (Some(principal), Some((_, vhost))) = (&state.principal, &state.vhost) else {
            return false;
        };
        if route.topic_kind && !message.address.is_system() && self.may_everywhere(state, false) {
            return true;
        }
        let cached = !self.rules.circumstantial;
        let key = (principal.id, route.number);
        let of = (self.router.generation(), self.rules.generation);
        if of != self.verdicts_of || self.verdicts.len() >= VERDICTS_MAX {
            self.verdicts.clear();
            self.verdicts_of = of;
        }
        if cached && let Some(known) = self.verdicts.get(&key) {
            return *known;
        }
        let exchange = std::str::from_utf8(&message.exchange).unwrap_or("\u{fffd}");
        let queue = match exchange {
            "" => {
                let stream = route
                    .targets
                    .iter()
                    .find_map(|(_, streams)| streams.first().copied());
                let meta = self.fabric.meta();
                stream.and_then(|id| meta.stream_by_id(id).map(|stream| stream.name.clone()))
            }
            _ => None,
        };
        let resource = match &queue {
            Some(queue) => Resource::Queue(queue),
            None if route.topic_kind => Resource::Topic(&message.address),
            None => Resource::Exchange(exchange),
        };
        let circumstances = Circumstances {
            quality: message.quality as u8,
            retain: message.retain,
            body_bytes: message.body.len(),
        };
        let question = Question {
            principal,
            action: Action::Publish,
            vhost,
            resource,
            circumstances,
        };
        let allowed = self.authority.decide(&question).allowed;
        if cached {
            self.verdicts.insert(key, allowed);
        }
        allowed
    }

    /// Looks at the rules once for a batch of commands.
    pub(super) fn look_at_rules(&mut self) {
        self.rules = RulesSeen {
            generation: self.authority.generation(),
            circumstantial: self.authority.circumstantial(Action::Publish),
            circumstantial_retain: self.authority.circumstantial(Action::Retain),
        };
    }

    pub(super) fn finish_publishes(
        &mut self,
        now: Now,
        shard: ShardId,
        first: Sequence,
        last: Sequence,
        outcome: PublishOutcome,
    ) {
        for sequence in first.0..=last.0 {
            let sequence = Sequence(sequence);
            let lane = self.lanes.entry(shard).or_default();
            let finished = lane.finish(sequence);
            if let Some(waiting) = finished.or_else(|| self.no_more_waits(shard, sequence)) {
                self.finish_publish(now, waiting, outcome);
            }
        }
    }

    /// Counts the result of one destination in; the publisher is told when it was the last.
    pub(super) fn finish_publish(&mut self, now: Now, waiting: Waiting, outcome: PublishOutcome) {
        let (outcome, returned) = match waiting.group {
            None => (outcome, None),
            Some(group) => match self.groups.add(group, outcome) {
                Some(whole) => whole,
                None => return,
            },
        };
        let token = waiting.token;
        if waiting.connection == ConnectionId::NONE {
            return self.forward_finished(now, token, outcome);
        }
        if let Some(message) = returned {
            self.with(waiting.connection, |state| {
                state.mail.answers.push(Answer::Returned { token, message })
            });
        }
        match outcome {
            PublishOutcome::Unroutable => self.counts.unroutable += 1,
            PublishOutcome::Refused(_) => self.counts.refused += 1,
            PublishOutcome::Routed => {}
        }
        if token != Token::NONE {
            self.with(waiting.connection, |state| {
                state.published_answer(token, outcome)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_in_any_order_finish_each_publish_once() {
        let mut lane = Lane::default();
        let waiting = |token| Waiting::new(ConnectionId(1), Token(token), None);
        let numbers: Vec<_> = (1..=3).map(|token| lane.push(waiting(token))).collect();
        assert_eq!(numbers, [Sequence(1), Sequence(2), Sequence(3)]);
        assert_eq!(
            lane.finish(Sequence(2)).map(|done| done.token),
            Some(Token(2))
        );
        assert!(lane.finish(Sequence(2)).is_none());
        assert_eq!(
            lane.finish(Sequence(1)).map(|done| done.token),
            Some(Token(1))
        );
        assert_eq!((lane.finished, lane.waiting.len()), (2, 1));
        assert_eq!(lane.push(waiting(4)), Sequence(4));
    }

    #[test]
    fn one_refusal_refuses_the_whole() {
        let mut groups = Groups::default();
        let place = groups.open(2, PublishOutcome::Routed, None);
        assert_eq!(
            groups.add(place, PublishOutcome::Refused(ErrorKind::Busy)),
            None
        );
        assert_eq!(
            groups.add(place, PublishOutcome::Routed),
            Some((PublishOutcome::Refused(ErrorKind::Busy), None))
        );
    }
}
