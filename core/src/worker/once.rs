//! Publishes that are stored once, and what waits behind them.
//!
//! A session that outlives its connection names a publish by a key. What goes to the session's own shard carries the
//! key and is sent at once, like any publish: that shard tells a repeat by it. Every other destination is told by a
//! number, which the session's shard gives with [`Question::Take`]; until it has, that part of the publish waits
//! here, and behind it the parts of later publishes of the connection that go the same ways. All keys of a batch are
//! asked in it, so that they share a frame.
//!
//! A key of a session that does not outlive its connection is ignored: only its own connection can repeat a publish,
//! and its gateway knows.
//!
//! Owns: that queue, per connection.
//! Never: tells repeats (`shard/once.rs`).

use super::commands::Checked;
use super::publish::{Waiting, park};
use super::sessions::no_session;
use super::steps::Step;
use super::values::{self, Round};
use super::{Connected, SessionAt, Worker};
use crate::error::ErrorKind;
use crate::gateway::{OnceKey, PublishOutcome, Reply};
use crate::id::{ConnectionId, Now, Sequence, ShardId, StreamId, Token, VhostId};
use crate::message::Message;
use crate::port::{Extra, Once, Question, ShardReply, ShardRequest};
use crate::router::Route;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// Parts of publishes that are not sent yet, in order. The first waits for its number.
#[derive(Default)]
pub(super) struct Queue {
    parts: VecDeque<Part>,
    /// The name of the first.
    first: u64,
    bytes: usize,
}

/// A shard, its streams, and what is asked of it beside storing the message.
type Target = (ShardId, SmallVec<[StreamId; 2]>, Option<Box<Extra>>);

struct Part {
    state: State,
    targets: SmallVec<[Target; 2]>,
    by_topic: Option<VhostId>,
    waiting: Waiting,
    message: Arc<Message>,
    /// It is to be kept by one of the targets: flushes of this round wait for it.
    round: Option<Round>,
    /// See [`Route::refusing`].
    refusing: bool,
}

#[derive(Clone, Copy)]
enum State {
    /// Its key's number was asked.
    Asked,
    /// It may go, with its number if it has a key.
    Free(Option<Once>),
    /// Its key was not taken.
    Refused(ErrorKind),
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Bytes of the messages that wait; the connection is not read beyond a limit.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The name that the next part will have.
    fn next(&self) -> u64 {
        self.first + self.parts.len() as u64
    }

    fn push(&mut self, part: Part) {
        self.bytes += part.message.cost_bytes();
        self.parts.push_back(part);
    }

    fn pop(&mut self) -> Option<Part> {
        let part = self.parts.pop_front()?;
        self.first += 1;
        self.bytes -= part.message.cost_bytes();
        Some(part)
    }

    /// The first, unless it waits.
    fn pop_ready(&mut self) -> Option<Part> {
        let waits = matches!(self.parts.front()?.state, State::Asked);
        if waits { None } else { self.pop() }
    }

    fn answer(&mut self, name: u64, state: State) {
        let at = name.checked_sub(self.first);
        if let Some(part) = at.and_then(|at| self.parts.get_mut(at as usize)) {
            part.state = state;
        }
    }
}

impl Worker {
    /// Whether a publish, under a key or behind such, is for [`Worker::publish_in_turn`].
    #[cold]
    pub(super) fn goes_in_turn(state: &Connected, once: Option<OnceKey>, route: &Route) -> bool {
        let lasts = state.session.as_ref().is_some_and(SessionAt::lasts);
        lasts && (once.is_some() || !state.once.is_empty()) && !route.targets.is_empty()
    }

    /// Sends a publish under a key, or one behind such: to the session's shard at once, elsewhere in turn.
    #[cold]
    pub(super) fn publish_in_turn(
        &mut self,
        connection: ConnectionId,
        state: &mut Connected,
        (token, mandatory): (Token, bool),
        once: Option<OnceKey>,
        route: &Route,
        message: Arc<Message>,
    ) {
        let lasting = state.session.as_ref().filter(|session| session.lasts());
        let Some((home, session)) = lasting.map(|session| (session.shard, session.stream)) else {
            return self.refuse(state, token, ErrorKind::NotFound);
        };
        let awaited = route.targets.len() as u32;
        let group = (awaited > 1 || mandatory).then(|| {
            let mandatory = mandatory.then(|| message.clone());
            self.groups
                .open(awaited, PublishOutcome::Unroutable, mandatory)
        });
        let waiting = Waiting::new(connection, token, group);
        let mut part = Part {
            state: State::Free(None),
            targets: SmallVec::new(),
            by_topic: route.by_topic,
            waiting,
            message,
            round: None,
            refusing: route.refusing,
        };
        for (shard, streams) in &route.targets {
            let mut extra = values::extra(route, *shard);
            if *shard != home {
                if extra.is_some() {
                    part.round = Some(self.readings.hold());
                }
                part.targets.push((*shard, streams.clone(), extra));
                continue;
            }
            if let Some(key) = once {
                extra.get_or_insert_default().once = Some(Once::Keyed { session, key });
            }
            let parked =
                self.await_shard(home, waiting, streams, part.by_topic, extra, &part.message);
            if parked {
                park(state, part.message.cost_bytes());
            }
        }
        if part.targets.is_empty() {
            return;
        }
        if let Some(key) = once {
            part.state = State::Asked;
            let step = Step::Taken {
                part: state.once.next(),
                session,
            };
            let lane = self.lanes.entry(home).or_default();
            lane.ticket += 1;
            let ticket = lane.ticket;
            self.steps.insert((home, ticket), (connection, step));
            let question = Box::new(Question::Take { connection, key });
            self.send(home, ShardRequest::Ask { ticket, question });
        }
        state.once.push(part);
    }

    /// The answer to [`Question::Take`]: what waited for it is sent, in order.
    pub(super) fn taken(
        &mut self,
        now: Now,
        connection: ConnectionId,
        part: u64,
        session: StreamId,
        result: Checked<ShardReply>,
    ) {
        let answer = match result {
            Ok(ShardReply::Taken { number, floor }) => State::Free(Some(Once::Numbered {
                session,
                number,
                floor,
            })),
            Ok(_) => State::Refused(ErrorKind::NotFound),
            Err(why) => State::Refused(why.kind),
        };
        if let Some(state) = self.connections.get_mut(&connection) {
            state.once.answer(part, answer);
        }
        while let Some(part) = self
            .connections
            .get_mut(&connection)
            .and_then(|state| state.once.pop_ready())
        {
            self.send_part(now, part);
        }
        let idle = self.connections.get(&connection);
        if idle.is_some_and(|state| state.once.is_empty() && state.held.is_held_up()) {
            self.answered.push(connection);
        }
    }

    fn send_part(&mut self, now: Now, part: Part) {
        let Part {
            state,
            targets,
            by_topic,
            waiting,
            message,
            round,
            refusing,
        } = part;
        for (shard, streams, mut extra) in targets {
            match state {
                State::Asked => continue,
                State::Refused(kind) => {
                    self.finish_publish(now, waiting, PublishOutcome::Refused(kind));
                    continue;
                }
                State::Free(None) => {}
                State::Free(once) => extra.get_or_insert_default().once = once,
            }
            let own = shard == self.shard.id();
            let at_once = shard.is_volatile() && !self.blocked.contains(&shard);
            if !at_once || (refusing && !own) {
                if self.await_shard(shard, waiting, &streams, by_topic, extra, &message) {
                    self.with(waiting.connection, |state| {
                        park(state, message.cost_bytes())
                    });
                }
            } else if own {
                let outcome = self
                    .shard
                    .take(&streams, by_topic, true, extra.as_deref(), &message);
                self.finish_publish(now, waiting, outcome);
            } else {
                let request = ShardRequest::Publish {
                    sequence: Sequence(0),
                    streams,
                    by_topic,
                    patient: true,
                    extra,
                    message: message.clone(),
                };
                self.send(shard, request);
                self.finish_publish(now, waiting, PublishOutcome::Routed);
            }
        }
        if let Some(round) = round {
            self.readings.let_go(round);
        }
    }

    /// Sends a publish whose result is waited for; says whether it was parked.
    fn await_shard(
        &mut self,
        shard: ShardId,
        waiting: Waiting,
        streams: &SmallVec<[StreamId; 2]>,
        by_topic: Option<VhostId>,
        extra: Option<Box<Extra>>,
        message: &Arc<Message>,
    ) -> bool {
        let lane = self.lanes.entry(shard).or_default();
        let request = ShardRequest::Publish {
            sequence: lane.push(waiting),
            streams: streams.clone(),
            by_topic,
            patient: true,
            extra,
            message: message.clone(),
        };
        let blocked = self.blocked.contains(&shard);
        match blocked {
            true => lane.park(request),
            false => self.send(shard, request),
        }
        blocked
    }

    /// The connection is gone: what waits without a key is sent all the same. What has a key was answered to nobody,
    /// and is published again by whoever resumes the session.
    pub(super) fn finish_queue(&mut self, now: Now, state: &mut Connected) {
        while let Some(mut part) = state.once.pop() {
            if !matches!(part.state, State::Free(None)) {
                part.state = State::Refused(ErrorKind::NotFound);
            }
            self.send_part(now, part);
        }
    }

    pub(super) fn forget(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        key: OnceKey,
    ) -> Checked<()> {
        let session = state.session.as_ref().ok_or_else(no_session)?;
        if !session.lasts() {
            Self::tell(state, token, Ok(Reply::Done));
            return Ok(());
        }
        let question = Question::Forget { connection, key };
        let shard = session.shard;
        self.ask_shard(now, shard, connection, Step::Simple { token }, question);
        Ok(())
    }
}
