//! A worker: the broker as its connections see it, as one single-threaded value.
//!
//! Each worker thread owns one [`Worker`]. It takes its connections' commands, asks the rules, routes,
//! stores at once what its own volatile shard holds, and sends the rest to other shards; what comes back
//! becomes mail for connections. Questions to metadata and to the login service leave as
//! [`Outgoing`] and come back as [`HostAnswer`]. It never waits: a command that needs several steps is a
//! [`steps::Step`] remembered under the ticket of its question.
//!
//! One round of its host: any number of inputs (`submit`, `shard_events`, `shard_requests`,
//! `host_answer`, `timeout`), then [`Worker::turn`], then drain `outgoing` and `next_ready`.
//!
//! Owns: connections' principals, vhosts, consumers and sessions as far as core knows them; lanes to
//! shards. Never: sockets, clocks, a protocol.
//! Next: `worker/publish.rs` (the hot path), `worker/commands.rs`, `worker/steps.rs`, `worker/rights.rs`.

mod commands;
mod forward;
mod groups;
mod held;
mod host;
mod once;
mod publish;
mod queues;
mod rights;
mod sessions;
mod steps;
mod values;

pub use host::{ConnectionRow, HostAnswer, LoginRequest, Mail, Outgoing, Verified, WorkerCounts};

use crate::authority::{Authority, Principal};
use crate::dispatch::travel_units;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::{Answer, Command, Delivery, PublishOutcome, Reply, StopReason};
use crate::id::{
    ConnectionId, ConsumerTag, MonotonicMs, Now, ShardId, StreamId, Token, VhostId, WorkerId,
};
use crate::message::Message;
use crate::meta::MetaCommand;
use crate::port::{ConsumerKey, Question, ShardEvent, ShardRequest, Ticket};
use crate::properties::Codecs;
use crate::router::{Fabric, Router};
use crate::shard::{InMemory, Shard, ShardLimits, ShardSetup, Withheld};
use publish::Lane;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::sync::Arc;
use steps::{Asked, Step};

/// What a worker is made with.
pub struct WorkerSetup {
    /// Which.
    pub id: WorkerId,
    /// This life of the node.
    pub incarnation: u64,
    /// How many there are: their numbers are dense from 0.
    pub workers: u16,
    /// Limits.
    pub limits: WorkerLimits,
    /// Shared by all threads of the node.
    pub fabric: Arc<Fabric>,
    /// For routing by headers.
    pub codecs: Codecs,
    /// Who may do what.
    pub authority: Arc<dyn Authority>,
}

/// Named limits of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    /// Of its volatile shard.
    pub shard: ShardLimits,
    /// Bytes a connection may still publish to a blocked shard before its socket is not read any more.
    pub parked_bytes_max: usize,
    /// Consumers of one connection.
    pub consumers_max: usize,
    /// Filters of one session.
    pub filters_max: usize,
}

impl Default for WorkerLimits {
    fn default() -> Self {
        WorkerLimits {
            shard: ShardLimits {
                session_bytes_max: 8 << 20,
                ..ShardLimits::default()
            },
            parked_bytes_max: 4 << 20,
            consumers_max: 65_536,
            filters_max: 8_192,
        }
    }
}

/// Where a consumer reads.
#[derive(Clone, Debug)]
struct ReaderAt {
    shard: ShardId,
    stream: StreamId,
    /// Queue name; empty for a session and for a private queue.
    name: Arc<str>,
    attached: bool,
    /// Settles nothing.
    presettled: bool,
    /// Deliveries it has to settle.
    held: u32,
    /// A membership: nobody is told when it ends by itself.
    member: bool,
}

/// A connection's session.
#[derive(Clone, Debug)]
struct SessionAt {
    shard: ShardId,
    stream: StreamId,
    filters: FxHashSet<crate::address::TopicFilter>,
    client_id: Arc<str>,
    /// Of each of its readers.
    credit: u32,
    next_group_tag: ConsumerTag,
    groups: groups::Memberships,
}

impl SessionAt {
    /// Whether it outlives its connection.
    fn lasts(&self) -> bool {
        !self.shard.is_volatile()
    }
}

struct Connected {
    protocol: &'static str,
    peer: SocketAddr,
    principal: Option<Arc<Principal>>,
    vhost: Option<(VhostId, Arc<str>)>,
    mail: Mail,
    listed: bool,
    readers: FxHashMap<ConsumerTag, ReaderAt>,
    session: Option<SessionAt>,
    /// Shards that know this connection.
    touched: SmallVec<[ShardId; 2]>,
    /// Bytes published to blocked shards.
    parked_bytes: usize,
    /// What waits for what was asked before it.
    held: held::Held,
    /// Publishes that wait for what was published before them.
    once: once::Queue,
    published: u64,
    delivered: u64,
}

impl Connected {
    fn published_answer(&mut self, token: Token, result: PublishOutcome) {
        if let Some(Answer::Published { last, outcome, .. }) = self.mail.answers.last_mut()
            && *last != Token::NONE
            && last.0 + 1 == token.0
            && *outcome == result
        {
            *last = token;
            return;
        }
        self.mail.answers.push(Answer::Published {
            first: token,
            last: token,
            outcome: result,
        });
    }

    fn touch(&mut self, shard: ShardId) {
        if !self.touched.contains(&shard) {
            self.touched.push(shard);
        }
    }
}

/// How often rights are asked again after rules changed, in milliseconds.
const RIGHTS_MS: u64 = 250;

/// See the module's text.
pub struct Worker {
    id: WorkerId,
    workers: u16,
    limits: WorkerLimits,
    fabric: Arc<Fabric>,
    router: Router,
    authority: Arc<dyn Authority>,
    shard: Shard<Arc<Message>>,
    connections: FxHashMap<ConnectionId, Box<Connected>>,
    lanes: FxHashMap<ShardId, Lane>,
    groups: publish::Groups,
    forwarding: forward::Forwarding,
    readings: values::Readings,
    gatherings: groups::Gatherings,
    steps: FxHashMap<(ShardId, Ticket), (ConnectionId, Step)>,
    asked: FxHashMap<u64, (ConnectionId, Asked)>,
    next_ask: u64,
    next_principal: u64,
    ready: Vec<ConnectionId>,
    /// Connections that go on with what they held.
    answered: Vec<ConnectionId>,
    outgoing: Vec<Outgoing>,
    blocked: FxHashSet<ShardId>,
    /// What is sent now goes to each shard in one batch, which a shard takes into one frame
    /// ([`Command::Atomic`]). A shard without room gets the settlements first: they make the room.
    undivided: bool,
    verdicts: FxHashMap<(u64, u32), bool>,
    verdicts_of: (u64, u64),
    rules: publish::RulesSeen,
    rights_generation: u64,
    next_rights: MonotonicMs,
    counts: WorkerCounts,
}

impl Worker {
    /// A worker without connections.
    pub fn new(setup: WorkerSetup) -> Worker {
        let shard = Shard::new(ShardSetup {
            id: ShardId::volatile(setup.id),
            incarnation: setup.incarnation,
            workers: 1,
            limits: setup.limits.shard,
            fabric: setup.fabric.clone(),
            authority: setup.authority.clone(),
            codecs: setup.codecs.clone(),
        });
        Worker {
            id: setup.id,
            workers: setup.workers,
            limits: setup.limits,
            router: Router::new(setup.fabric.clone(), setup.codecs),
            fabric: setup.fabric,
            rights_generation: setup.authority.generation(),
            authority: setup.authority,
            shard,
            connections: FxHashMap::default(),
            lanes: FxHashMap::default(),
            groups: publish::Groups::default(),
            forwarding: forward::Forwarding::default(),
            readings: values::Readings::default(),
            gatherings: groups::Gatherings::default(),
            steps: FxHashMap::default(),
            asked: FxHashMap::default(),
            next_ask: 0,
            next_principal: 0,
            ready: Vec::new(),
            answered: Vec::new(),
            outgoing: Vec::new(),
            blocked: FxHashSet::default(),
            undivided: false,
            verdicts: FxHashMap::default(),
            verdicts_of: (0, 0),
            rules: publish::RulesSeen::default(),
            next_rights: MonotonicMs(0),
            counts: WorkerCounts::default(),
        }
    }

    /// A socket was accepted.
    pub fn connected(
        &mut self,
        connection: ConnectionId,
        protocol: &'static str,
        peer: SocketAddr,
    ) {
        let state = Connected {
            protocol,
            peer,
            principal: None,
            vhost: None,
            mail: Mail::default(),
            listed: false,
            readers: FxHashMap::default(),
            session: None,
            touched: SmallVec::new(),
            parked_bytes: 0,
            held: held::Held::default(),
            once: once::Queue::default(),
            published: 0,
            delivered: 0,
        };
        self.connections.insert(connection, Box::new(state));
    }

    /// Takes a wake-up's commands, in order.
    pub fn submit(&mut self, now: Now, connection: ConnectionId, commands: &mut Vec<Command>) {
        let Some(mut state) = self.connections.remove(&connection) else {
            commands.clear();
            return;
        };
        self.take(now, connection, &mut state, commands.drain(..));
        self.put_back(connection, state);
    }

    fn put_back(&mut self, connection: ConnectionId, mut state: Box<Connected>) {
        if !state.listed && !state.mail.is_empty() {
            state.listed = true;
            self.ready.push(connection);
        }
        self.connections.insert(connection, state);
    }

    fn with(&mut self, connection: ConnectionId, change: impl FnOnce(&mut Connected)) {
        if let Some(state) = self.connections.get_mut(&connection) {
            change(state);
            if !state.listed {
                state.listed = true;
                self.ready.push(connection);
            }
        }
    }

    fn done(&mut self, connection: ConnectionId, token: Token, result: Result<Reply, Refusal>) {
        if token != Token::NONE {
            let mut waited = false;
            self.with(connection, |state| {
                state.mail.answers.push(Answer::Done { token, result });
                waited = state.held.answered(token);
            });
            if waited {
                self.answered.push(connection);
            }
        }
    }

    /// The socket is gone, or the connection asked to close.
    pub fn disconnected(&mut self, now: Now, connection: ConnectionId) {
        let Some(mut state) = self.connections.remove(&connection) else {
            return;
        };
        self.finish_queue(now, &mut state);
        self.finish_held(now, connection, &mut state);
        self.readings.forget(connection);
        for shard in state.touched {
            self.request(now, shard, ShardRequest::Gone { connection });
        }
        let owned: Vec<_> = {
            let meta = self.fabric.meta();
            meta.streams_owned_by(connection)
                .map(|stream| (stream.id, stream.shard))
                .collect()
        };
        for (stream, shard) in owned {
            self.drop_stream(now, stream, shard);
        }
    }

    /// Deletes a stream that nobody asked about by name.
    fn drop_stream(&mut self, now: Now, stream: StreamId, shard: ShardId) {
        let question = Question::DeleteStream {
            stream,
            if_unused: false,
            if_empty: false,
        };
        self.ask_shard(now, shard, ConnectionId(0), Step::Nothing, question);
        self.propose(
            ConnectionId(0),
            Asked::Nothing,
            MetaCommand::DeleteStream { stream },
        );
    }

    /// Events of another thread's shard.
    pub fn shard_events(&mut self, now: Now, from: ShardId, events: Vec<ShardEvent>) {
        for event in events {
            match event {
                ShardEvent::Published {
                    first,
                    last,
                    outcome,
                } => self.finish_publishes(now, from, first, last, outcome),
                ShardEvent::Deliver {
                    connection,
                    deliveries,
                } => self.hand_over(connection, deliveries),
                ShardEvent::Reply { ticket, result } => {
                    if let Some((connection, step)) = self.steps.remove(&(from, ticket)) {
                        self.step(now, from, connection, step, result);
                    }
                }
                ShardEvent::Ended { consumer, why } => {
                    let ConsumerKey { connection, tag } = consumer;
                    self.with(connection, |state| {
                        if state
                            .readers
                            .remove(&tag)
                            .is_some_and(|reader| reader.attached && !reader.member)
                        {
                            state
                                .mail
                                .answers
                                .push(Answer::Ended { consumer: tag, why });
                        }
                    });
                }
                ShardEvent::Displaced { connection } => {
                    self.with(connection, |state| {
                        state.mail.stop = Some(StopReason::TakenOver)
                    });
                }
                ShardEvent::Unused { stream } => {
                    let found = self
                        .fabric
                        .meta()
                        .stream_by_id(stream)
                        .map(|stream| stream.shard);
                    if let Some(shard) = found {
                        self.drop_stream(now, stream, shard);
                    }
                }
                ShardEvent::Forward(forward) => self.forward(now, from, *forward),
                ShardEvent::GroupMade { connection, group } => {
                    self.group_made(now, from, connection, group);
                }
                ShardEvent::Parting { number, parting } => {
                    self.parting(now, from, number, parting);
                }
                ShardEvent::Blocked(blocked) => self.shard_blocked(now, from, blocked),
            }
        }
        self.release_fenced(now, from);
        self.release_answered(now);
    }

    fn shard_blocked(&mut self, now: Now, shard: ShardId, blocked: bool) {
        if blocked {
            self.blocked.insert(shard);
            return;
        }
        if !self.blocked.remove(&shard) {
            return;
        }
        self.unpark(now, shard);
        if !self.blocked.is_empty() {
            return;
        }
        let parked = self
            .connections
            .iter()
            .filter(|(_, state)| state.parked_bytes > 0);
        let parked: Vec<ConnectionId> = parked.map(|(id, _)| *id).collect();
        for connection in parked {
            self.with(connection, |state| {
                state.parked_bytes = 0;
                state.mail.answers.push(Answer::Blocked(None));
            });
        }
    }

    fn hand_over(&mut self, connection: ConnectionId, deliveries: Vec<Delivery>) {
        self.with(connection, |state| {
            if deliveries.len() == 1 || !state.mail.deliveries.is_empty() {
                state.mail.deliveries.extend(deliveries);
            } else {
                state.mail.deliveries = deliveries;
            }
        });
    }

    /// Requests of another worker to the volatile shard hosted here.
    pub fn shard_requests(&mut self, now: Now, from: WorkerId, mut requests: Vec<ShardRequest>) {
        self.shard.handle(now, from, &mut requests, &mut InMemory);
    }

    /// Ends a round: the volatile shard hands out, its events go where they belong.
    pub fn turn(&mut self, now: Now) {
        // Handling an event may make the shard say more; this is enough for any step there is, and
        // what is left waits for the next round.
        for _ in 0..6 {
            self.answer_flushes();
            self.shard.dispatch(now, &mut InMemory);
            let batches: SmallVec<[(WorkerId, Vec<ShardEvent>); 2]> = self.shard.events().collect();
            if batches.is_empty() {
                break;
            }
            let from = self.shard.id();
            for (to, events) in batches {
                match to == self.id {
                    true => self.shard_events(now, from, events),
                    false => self.outgoing.push(Outgoing::Events { to, from, events }),
                }
            }
        }
        self.send_batches(false);
        self.send_batches(true);
    }

    /// When [`Worker::timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<MonotonicMs> {
        Some(self.shard.poll_timeout().min(self.next_rights))
    }

    /// Looks for what has become due; call [`Worker::turn`] after it.
    pub fn timeout(&mut self, now: Now) {
        self.shard.timeout(now);
        if now.monotonic >= self.next_rights {
            self.next_rights = now.monotonic.after(RIGHTS_MS);
            self.renew_rights(now);
        }
    }

    /// What the host is to do.
    pub fn outgoing(&mut self) -> std::vec::Drain<'_, Outgoing> {
        self.outgoing.drain(..)
    }

    /// A connection with mail, each once until it gets more.
    pub fn next_ready(&mut self) -> Option<ConnectionId> {
        self.ready.pop()
    }

    /// Swaps a connection's mail for the empty `mail`, and tells the shards that it was taken.
    pub fn take_mail(&mut self, now: Now, connection: ConnectionId, mail: &mut Mail) {
        let Some(state) = self.connections.get_mut(&connection) else {
            return;
        };
        state.listed = false;
        std::mem::swap(&mut state.mail, mail);
        let mut runs: SmallVec<[(ShardId, ShardRequest); 2]> = SmallVec::new();
        let mut rest = &mail.deliveries[..];
        while let Some(first) = rest.first() {
            let tag = first.consumer;
            let length = rest
                .iter()
                .position(|delivery| delivery.consumer != tag)
                .unwrap_or(rest.len());
            let (run, after) = rest.split_at(length);
            rest = after;
            self.counts.delivered += run.len() as u64;
            state.delivered += run.len() as u64;
            let mut count = 0;
            for delivery in run {
                self.counts.delivered_bytes += delivery.message.body.len() as u64;
                count += travel_units(delivery.message.cost_bytes());
            }
            let Some(reader) = state.readers.get_mut(&tag) else {
                continue;
            };
            if !reader.presettled {
                reader.held += run.len() as u32;
            }
            let consumer = ConsumerKey { connection, tag };
            runs.push((
                reader.shard,
                ShardRequest::Drained {
                    consumer,
                    stream: reader.stream,
                    count,
                },
            ));
        }
        for (shard, request) in runs {
            self.request(now, shard, request);
        }
    }

    /// Whether its socket may be read: not while it has parked too much for a blocked shard.
    pub fn may_read(&self, connection: ConnectionId) -> bool {
        let Some(state) = self.connections.get(&connection) else {
            return true;
        };
        let most = self.limits.parked_bytes_max;
        state.held.bytes() + state.once.bytes() < most
            && (self.blocked.is_empty() || state.parked_bytes < most)
    }

    /// An operator closes a connection.
    pub fn kick(&mut self, connection: ConnectionId) -> bool {
        let known = self.connections.contains_key(&connection);
        self.with(connection, |state| {
            state.mail.stop = Some(StopReason::Kicked)
        });
        known
    }

    /// Counts.
    pub fn counts(&self) -> WorkerCounts {
        WorkerCounts {
            connections: self.connections.len() as u64,
            ..self.counts
        }
    }

    /// What rules kept from consumers at delivery; see [`Shard::withheld`].
    pub fn withheld(&mut self, now: Now) -> Option<Withheld> {
        self.shard.withheld(now)
    }

    /// A row per connection.
    pub fn rows(&self) -> Vec<ConnectionRow> {
        let row = |id: &ConnectionId, state: &Connected| ConnectionRow {
            id: *id,
            protocol: state.protocol,
            peer: state.peer,
            user: state
                .principal
                .as_ref()
                .map(|principal| principal.user.clone())
                .unwrap_or_default(),
            vhost: state
                .vhost
                .as_ref()
                .map(|(_, name)| name.clone())
                .unwrap_or_default(),
            published: state.published,
            delivered: state.delivered,
            readers: state
                .readers
                .values()
                .filter(|reader| reader.attached)
                .count() as u32,
            blocked: !self.blocked.is_empty() && state.parked_bytes > 0,
        };
        self.connections
            .iter()
            .map(|(id, state)| row(id, state))
            .collect()
    }

    /// A request to any shard: handled now when it is hosted here.
    fn request(&mut self, now: Now, shard: ShardId, request: ShardRequest) {
        if shard == self.shard.id() {
            self.shard
                .handle(now, self.id, &mut vec![request], &mut InMemory);
        } else {
            self.lanes.entry(shard).or_default().batch.push(request);
        }
    }

    fn ask_shard(
        &mut self,
        now: Now,
        shard: ShardId,
        connection: ConnectionId,
        step: Step,
        question: Question,
    ) {
        let lane = self.lanes.entry(shard).or_default();
        lane.ticket += 1;
        let ticket = lane.ticket;
        self.steps.insert((shard, ticket), (connection, step));
        self.request(now, shard, ShardRequest::Ask { ticket, question });
    }

    fn propose(&mut self, connection: ConnectionId, asked: Asked, command: MetaCommand) {
        self.next_ask += 1;
        self.asked.insert(self.next_ask, (connection, asked));
        self.outgoing.push(Outgoing::Propose {
            ask: self.next_ask,
            command,
        });
    }
}

fn not_entered() -> Refusal {
    Refusal::new(
        ErrorKind::BadRequest,
        "the connection has not entered a vhost",
    )
}
