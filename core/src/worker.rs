//! A worker: the broker as its connections see it, as one single-threaded value.
//!
//! Each worker thread owns one [`Worker`]. It takes its connections' commands, asks the rules, routes,
//! stores at once what its own volatile shard holds, and sends the rest to other shards; what comes back
//! becomes mail for connections. Questions to metadata and to the login service leave as
//! [`Outgoing`] and come back as [`HostAnswer`]. It never waits: a command that needs several steps is a
//! `steps::Step` remembered under the ticket of its question.
//!
//! One round of its host: any number of inputs (`submit`, `shard_events`, `shard_requests`,
//! `host_answer`, `timeout`), then [`Worker::turn`], then drain `outgoing` and `next_ready`.
//!
//! Owns: its connections, lanes to shards, what was asked and is not answered yet.
//! Never: sockets, clocks, a protocol.
//! Next: `worker/connected.rs` (what is known of a connection), `worker/publish.rs` (the hot path),
//! `worker/commands.rs`, `worker/events.rs`, `worker/steps.rs`, `worker/rights.rs`.

mod commands;
mod connected;
mod delaying;
mod events;
mod forward;
mod groups;
mod held;
mod held_up;
mod host;
mod mail;
mod once;
mod publish;
mod queues;
mod rights;
mod rows;
mod sessions;
mod setup;
mod steps;
mod values;

pub use host::{ConnectionRow, HostAnswer, LoginRequest, Mail, Outgoing, Verified, WorkerCounts};
pub use setup::{WorkerLimits, WorkerSetup};

use crate::authority::Authority;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::Command;
use crate::id::{ConnectionId, MonotonicMs, Now, ShardId, StreamId, WorkerId};
use crate::message::Message;
use crate::meta::MetaCommand;
use crate::port::{Question, ShardEvent, ShardRequest, Ticket};
use crate::properties::Codecs;
use crate::router::{Fabric, Router};
use crate::shard::{InMemory, Shard, ShardSetup};
use connected::{Connected, ReaderAt, SessionAt};
use publish::Lane;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::sync::Arc;
use steps::{Asked, Step};

/// How often rights are asked again after rules changed, in milliseconds.
const RIGHTS_MS: u64 = 250;

/// See the module's text.
pub struct Worker {
    id: WorkerId,
    workers: u16,
    limits: WorkerLimits,
    fabric: Arc<Fabric>,
    router: Router,
    codecs: Codecs,
    authority: Arc<dyn Authority>,
    shard: Shard<Arc<Message>>,
    connections: FxHashMap<ConnectionId, Box<Connected>>,
    lanes: FxHashMap<ShardId, Lane>,
    groups: publish::Groups,
    forwarding: forward::Forwarding,
    held_up: held_up::HeldUp,
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
            router: Router::new(setup.fabric.clone(), setup.codecs.clone()),
            codecs: setup.codecs,
            fabric: setup.fabric,
            rights_generation: setup.authority.generation(),
            authority: setup.authority,
            shard,
            connections: FxHashMap::default(),
            lanes: FxHashMap::default(),
            groups: publish::Groups::default(),
            forwarding: forward::Forwarding::default(),
            held_up: held_up::HeldUp::default(),
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
        let state = Connected::new(protocol, peer);
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
        let question = Box::new(question);
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
