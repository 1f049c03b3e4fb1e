//! A node as values: workers with real gateway connections, data shards and metadata, and between them
//! either nothing (the process) or [`Direction`]s of a simulated network.
//!
//! Owns: the order in which parts are run, virtual time, the journal in memory, restarts.
//! Never: threads, sockets, clocks. Next: `mod.rs` (clients), then `../simulated_link.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use anabranch_amqp::AmqpGateway;
use anabranch_core::authority::{AllowAll, Authority};
use anabranch_core::error::Refusal;
use anabranch_core::gateway::{ClosedBy, Connection, ExchangeKind, Gateway, Input, Outputs, Seat};
use anabranch_core::id::*;
use anabranch_core::meta::placement::Placement;
use anabranch_core::meta::{ExchangeSpec, Meta, MetaCommand, MetaReply};
use anabranch_core::port::{ShardEvent, ShardRequest};
use anabranch_core::properties::Codecs;
use anabranch_core::record::{RECORD_HEADER_BYTES, read_message, record_bytes};
use anabranch_core::router::Fabric;
use anabranch_core::shard::{Bodies, Fetched, Shard, ShardLimits, ShardSetup};
use anabranch_core::worker::{
    HostAnswer, Mail, Outgoing, Verified, Worker, WorkerLimits, WorkerSetup,
};
use anabranch_mqtt::MqttGateway;
use bytes::{Bytes, BytesMut};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::link::Direction;

const WORKERS: u16 = 2;
const SHARDS: u16 = 4;
/// The node's clock when its monotonic one says 0, in milliseconds.
const EPOCH_MS: u64 = 1_000_000;
/// Stands for the metadata shard in the table of links.
const METADATA: ShardId = ShardId(0);
/// How long a frame takes to be committed, in virtual milliseconds.
const COMMIT_MS_MAX: u64 = 4;
/// How long a connection of the network lasts and how long it is gone, in virtual milliseconds.
const UP_MS_MAX: u64 = 60;
const DOWN_MS_MAX: u64 = 15;
/// Longer than any wait of a shard for company (settlements), in virtual milliseconds.
const LULL_MS: u64 = 10;
/// A step of a conversation that needs more rounds than this never ends.
const ROUNDS_MAX: u32 = 100_000;

/// A journal in memory: positions are places in one byte string.
#[derive(Default)]
struct Journal {
    bytes: BytesMut,
    frames: Vec<(Position, Bytes)>,
}

impl Bodies<Position> for &Journal {
    fn fetch(&mut self, place: &Position) -> Fetched {
        let rest = &self.bytes[place.0 as usize..];
        let length = record_bytes(&rest[..RECORD_HEADER_BYTES]).ok();
        let read = |length: usize| read_message(Bytes::copy_from_slice(&rest[..length])).ok();
        length.and_then(read).into()
    }
}

struct DataShard {
    shard: Shard<Position>,
    journal: Journal,
    /// Frames that are being committed, with when they will be.
    committing: VecDeque<(u64, Position, Bytes)>,
}

#[derive(Clone)]
enum Ask {
    Shard(ShardRequest),
    Metadata { ask: u64, command: MetaCommand },
}

#[derive(Clone)]
enum Tell {
    Shard(ShardEvent),
    Metadata {
        ask: u64,
        result: Result<MetaReply, Refusal>,
    },
}

struct Link {
    there: Direction<Ask>,
    back: Direction<Tell>,
    /// When it breaks, or when it is there again.
    turns: u64,
    up: bool,
}

/// What a client does with the bytes it gets.
pub trait Peer {
    /// Takes bytes; returns what it answers at once.
    fn hear(&mut self, bytes: Vec<u8>) -> Vec<u8>;
    /// The broker closed the connection.
    fn closed(&mut self, by: ClosedBy);
}

/// One connection and its two ends.
struct Line<P> {
    id: ConnectionId,
    connection: Option<Box<dyn Connection>>,
    out: Outputs,
    peer: P,
}

/// How workers reach shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// At once, whole batches.
    Process,
    /// Over a simulated network with this seed.
    Network(u64),
}

/// See the module's text.
pub struct Node<P> {
    now_ms: u64,
    dice: StdRng,
    network: bool,
    fabric: Arc<Fabric>,
    authority: Arc<dyn Authority>,
    codecs: Codecs,
    gateways: [Box<dyn Gateway>; 2],
    incarnation: u64,
    workers: Vec<Worker>,
    data: BTreeMap<ShardId, DataShard>,
    links: BTreeMap<(WorkerId, ShardId), Link>,
    lines: Vec<Line<P>>,
    connections: u64,
    /// Breaks of links that lost something.
    pub breaks: u64,
    repeats: u64,
}

/// Which gateway a client speaks to.
#[derive(Clone, Copy, Debug)]
pub enum Protocol {
    /// Devices.
    Mqtt = 0,
    /// Applications.
    Amqp = 1,
}

fn first_metadata() -> Vec<MetaCommand> {
    let shards: Vec<ShardId> = (1..=SHARDS).map(ShardId).collect();
    let exchange = |(name, kind): (&str, ExchangeKind)| ExchangeSpec {
        name: Arc::from(name),
        kind,
        durable: true,
        auto_delete: false,
        internal: false,
        delays: false,
        alternate: None,
        arguments: Default::default(),
    };
    let exchanges = [
        ("amq.direct", ExchangeKind::Direct),
        ("amq.fanout", ExchangeKind::Fanout),
        ("amq.topic", ExchangeKind::Topic),
        ("amq.headers", ExchangeKind::Headers),
    ];
    vec![
        MetaCommand::SetPlacement {
            slots: Placement::even(&shards),
        },
        MetaCommand::CreateVhost {
            name: Arc::from("/"),
            exchanges: exchanges.map(exchange).into(),
            topic_exchange: Arc::from("amq.topic"),
        },
    ]
}

impl<P: Peer> Node<P> {
    /// A node that has just started for the first time.
    pub fn new(carriage: Carriage) -> Self {
        let mut codecs = Codecs::default();
        codecs.register(
            anabranch_mqtt::map::ORIGIN,
            Arc::new(anabranch_mqtt::map::MqttProperties),
        );
        codecs.register(anabranch_amqp::map::ORIGIN, AmqpGateway::properties());
        let mqtt = MqttGateway::new(Default::default(), codecs.clone()).expect("defaults");
        let amqp = AmqpGateway::new(Default::default(), codecs.clone()).expect("defaults");
        let seed = match carriage {
            Carriage::Process => 0,
            Carriage::Network(seed) => seed,
        };
        let fabric = Arc::new(Fabric::default());
        for command in first_metadata() {
            fabric
                .apply(UnixMs(EPOCH_MS), &command)
                .expect("first metadata");
        }
        let mut node = Node {
            now_ms: 0,
            dice: StdRng::seed_from_u64(seed),
            network: carriage != Carriage::Process,
            fabric,
            authority: Arc::new(AllowAll),
            codecs,
            gateways: [Box::new(mqtt), Box::new(amqp)],
            incarnation: 0,
            workers: Vec::new(),
            data: BTreeMap::new(),
            links: BTreeMap::new(),
            lines: Vec::new(),
            connections: 0,
            breaks: 0,
            repeats: 0,
        };
        node.begin(BTreeMap::new());
        node
    }

    /// Starts a life over what the journals hold.
    fn begin(&mut self, journals: BTreeMap<ShardId, Journal>) {
        self.incarnation += 1;
        let incarnation = self.incarnation;
        self.fabric
            .apply(self.now().unix, &MetaCommand::NodeStarted { incarnation })
            .expect("a node may start");
        let mut journals = journals;
        self.data.clear();
        for id in (1..=SHARDS).map(ShardId) {
            let mut shard = Shard::new(ShardSetup {
                id,
                incarnation,
                workers: WORKERS,
                limits: ShardLimits::default(),
                fabric: self.fabric.clone(),
                authority: self.authority.clone(),
                codecs: self.codecs.clone(),
            });
            let journal = journals.remove(&id).unwrap_or_default();
            for (base, frame) in &journal.frames {
                shard
                    .apply(self.now().unix, *base, frame, false)
                    .expect("replay");
            }
            shard.begin();
            let committing = VecDeque::new();
            self.data.insert(
                id,
                DataShard {
                    shard,
                    journal,
                    committing,
                },
            );
        }
        self.workers = (0..WORKERS)
            .map(|id| {
                Worker::new(WorkerSetup {
                    id: WorkerId(id),
                    incarnation,
                    workers: WORKERS,
                    limits: WorkerLimits::default(),
                    fabric: self.fabric.clone(),
                    codecs: self.codecs.clone(),
                    authority: self.authority.clone(),
                })
            })
            .collect();
        self.repeats = self.repeats_dropped();
        self.links.clear();
    }

    /// The node stops without a word, and starts again over its journals.
    pub fn restart(&mut self) {
        for line in &mut self.lines {
            line.connection = None;
        }
        let meta = Meta::decode(&self.fabric.meta().encode()).expect("its own encoding");
        self.fabric = Arc::new(Fabric::new(meta));
        let data = std::mem::take(&mut self.data);
        self.begin(
            data.into_iter()
                .map(|(id, data)| (id, data.journal))
                .collect(),
        );
        self.run();
    }

    /// Repeats that the links have dropped so far.
    pub fn repeats_dropped(&self) -> u64 {
        let links = self.links.values();
        self.repeats
            + links
                .map(|link| link.there.repeats + link.back.repeats)
                .sum::<u64>()
    }

    fn now(&self) -> Now {
        Now {
            monotonic: MonotonicMs(self.now_ms),
            unix: UnixMs(EPOCH_MS + self.now_ms),
        }
    }

    /// Accepts a connection; its number in later calls.
    pub fn connect(&mut self, protocol: Protocol, worker: u16, peer: P) -> usize {
        self.connections += 1;
        let id = ConnectionId::new(WorkerId(worker), self.connections);
        let gateway = &self.gateways[protocol as usize];
        let address = ([127, 0, 0, 1], 9).into();
        self.workers[usize::from(worker)].connected(id, gateway.name(), address);
        let seat = Seat {
            id,
            peer: address,
            now: self.now(),
            // The same in every run: what a gateway makes of it shall be the same.
            seed: self.connections,
        };
        let connection = Some(gateway.accept(seat));
        let out = Outputs::default();
        self.lines.push(Line {
            id,
            connection,
            out,
            peer,
        });
        self.lines.len() - 1
    }

    /// A client.
    pub fn peer(&mut self, line: usize) -> &mut P {
        &mut self.lines[line].peer
    }

    /// All clients, in the order of their connections.
    pub fn peers(self) -> impl Iterator<Item = P> {
        self.lines.into_iter().map(|line| line.peer)
    }

    /// Whether the broker still has the connection.
    pub fn is_open(&self, line: usize) -> bool {
        self.lines[line].connection.is_some()
    }

    /// The client sends; nothing else moves yet.
    pub fn send(&mut self, line: usize, bytes: Vec<u8>) {
        self.feed(line, Input::Bytes(Bytes::from(bytes)));
    }

    /// The client's socket is gone.
    pub fn vanish(&mut self, line: usize) {
        self.feed(line, Input::Closed);
        let id = self.lines[line].id;
        self.lines[line].connection = None;
        let now = self.now();
        self.workers[usize::from(id.worker().0)].disconnected(now, id);
    }

    fn feed(&mut self, at: usize, input: Input<'_>) {
        let now = self.now();
        let line = &mut self.lines[at];
        let Some(connection) = line.connection.as_mut() else {
            return;
        };
        connection.handle(now, input, &mut line.out);
        let worker = &mut self.workers[usize::from(line.id.worker().0)];
        worker.submit(now, line.id, &mut line.out.commands);
        let bytes = line.out.send.take_all();
        let answer = match bytes.is_empty() {
            true => Vec::new(),
            false => line.peer.hear(bytes),
        };
        if let Some(close) = line.out.close.take() {
            line.connection = None;
            worker.disconnected(now, line.id);
            line.peer.closed(close.by);
        } else if !answer.is_empty() {
            self.feed(at, Input::Bytes(Bytes::from(answer)));
        }
    }

    /// Waits until the clock says this, in milliseconds since the first start.
    ///
    /// # Panics
    /// When it is later already.
    pub fn wait_until(&mut self, ms: u64) {
        self.run();
        assert!(self.now_ms <= ms, "it is {} already, not {ms}", self.now_ms);
        self.pass(ms - self.now_ms);
        self.run();
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        let now = self.now();
        for worker in &mut self.workers {
            worker.timeout(now);
        }
        for data in self.data.values_mut() {
            data.shard.timeout(now);
        }
        for at in 0..self.lines.len() {
            let due = self.lines[at]
                .connection
                .as_ref()
                .and_then(|line| line.poll_timeout());
            if due.is_some_and(|due| due <= now.monotonic) {
                self.feed(at, Input::Timeout);
            }
        }
    }

    /// Runs until nobody has anything left to say and nothing is under way.
    pub fn run(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut moved = self.arrivals();
            moved |= self.turn();
            if moved {
                continue;
            }
            match self.next_ms() {
                Some(at) => {
                    let by = at.saturating_sub(self.now_ms);
                    self.pass(by);
                }
                // What waited for company goes alone now; then it is really quiet.
                None => {
                    self.pass(LULL_MS);
                    if !self.turn() && self.next_ms().is_none() {
                        return;
                    }
                }
            }
        }
        panic!("the node does not come to rest");
    }

    /// When something under way arrives.
    fn next_ms(&self) -> Option<u64> {
        let links = self.links.values().filter_map(|link| {
            let waits = link.there.stranded() || link.back.stranded();
            let reconnect = waits.then_some(link.turns);
            let arrival = link.there.next().into_iter().chain(link.back.next()).min();
            // A break comes in time to lose what is under way.
            reconnect.or(arrival.map(|at| at.min(link.turns.max(self.now_ms))))
        });
        let commits = self
            .data
            .values()
            .filter_map(|data| data.committing.front());
        links.chain(commits.map(|(at, ..)| *at)).min()
    }

    fn arrivals(&mut self) -> bool {
        let (now, now_ms) = (self.now(), self.now_ms);
        let mut moved = false;
        let keys: Vec<_> = self.links.keys().copied().collect();
        for (worker, shard) in keys {
            let link = self.links.get_mut(&(worker, shard)).expect("listed");
            while link.turns <= now_ms {
                link.up = !link.up;
                if link.up {
                    link.there.reconnect(now_ms, &mut self.dice);
                    link.back.reconnect(now_ms, &mut self.dice);
                    link.turns += self.dice.random_range(1..=UP_MS_MAX);
                } else {
                    let busy = link.there.next().is_some() || link.back.next().is_some();
                    self.breaks += u64::from(busy);
                    link.there.lose();
                    link.back.lose();
                    link.turns += self.dice.random_range(1..=DOWN_MS_MAX);
                }
            }
            let asks = link.there.arrived(now_ms, &mut self.dice);
            let tells = link.back.arrived(now_ms, &mut self.dice);
            moved |= !asks.is_empty() || !tells.is_empty();
            self.take_asks(worker, shard, asks);
            self.take_tells(worker, shard, tells);
        }
        for data in self.data.values_mut() {
            while data
                .committing
                .front()
                .is_some_and(|(at, ..)| *at <= now_ms)
            {
                let (_, base, frame) = data.committing.pop_front().expect("looked at");
                let applied = data.shard.apply(now.unix, base, &frame, true);
                applied.expect("its own frame");
                data.journal.frames.push((base, frame));
                moved = true;
            }
        }
        moved
    }

    fn take_asks(&mut self, from: WorkerId, to: ShardId, asks: Vec<Ask>) {
        let now = self.now();
        let mut requests = Vec::new();
        let mut answers = Vec::new();
        for ask in asks {
            match ask {
                Ask::Shard(request) => requests.push(request),
                Ask::Metadata { ask, command } => {
                    let result = self.fabric.apply(now.unix, &command);
                    answers.push(Tell::Metadata { ask, result });
                }
            }
        }
        self.tell(from, to, answers);
        if requests.is_empty() {
            return;
        }
        match self.data.get_mut(&to) {
            Some(data) => {
                data.shard
                    .handle(now, from, &mut requests, &mut &data.journal);
            }
            None => {
                let host = usize::from(to.0 & 0x7FFF);
                self.workers[host].shard_requests(now, from, requests);
            }
        }
    }

    fn take_tells(&mut self, to: WorkerId, from: ShardId, tells: Vec<Tell>) {
        let now = self.now();
        let worker = &mut self.workers[usize::from(to.0)];
        let mut events = Vec::new();
        for tell in tells {
            match tell {
                Tell::Shard(event) => events.push(event),
                Tell::Metadata { ask, result } => {
                    worker.host_answer(now, HostAnswer::Proposed { ask, result });
                }
            }
        }
        if !events.is_empty() {
            worker.shard_events(now, from, events);
        }
    }

    /// The link between a worker and a shard, made at its first use, with what chance needs.
    fn link(&mut self, worker: WorkerId, shard: ShardId) -> (u64, &mut Link, &mut StdRng) {
        let (now_ms, dice) = (self.now_ms, &mut self.dice);
        let link = self.links.entry((worker, shard)).or_insert_with(|| Link {
            there: Direction::default(),
            back: Direction::default(),
            turns: now_ms + dice.random_range(1..=UP_MS_MAX),
            up: true,
        });
        (now_ms, link, dice)
    }

    fn ask(&mut self, from: WorkerId, to: ShardId, asks: Vec<Ask>) {
        if !self.network {
            return self.take_asks(from, to, asks);
        }
        let (now_ms, link, dice) = self.link(from, to);
        link.there.send(now_ms, asks, dice);
    }

    fn tell(&mut self, to: WorkerId, from: ShardId, tells: Vec<Tell>) {
        if !self.network {
            return self.take_tells(to, from, tells);
        }
        let (now_ms, link, dice) = self.link(to, from);
        link.back.send(now_ms, tells, dice);
    }

    /// Everyone does what there is to do now.
    fn turn(&mut self) -> bool {
        let now = self.now();
        let mut moved = false;
        for at in 0..self.workers.len() {
            self.workers[at].turn(now);
            let outgoing: Vec<Outgoing> = self.workers[at].outgoing().collect();
            for out in outgoing {
                moved = true;
                self.carry(WorkerId(at as u16), out);
            }
        }
        let ids: Vec<ShardId> = self.data.keys().copied().collect();
        for id in ids {
            moved |= self.turn_shard(id);
        }
        for at in 0..self.workers.len() {
            while let Some(id) = self.workers[at].next_ready() {
                moved = true;
                self.serve(at, id);
            }
        }
        moved
    }

    fn turn_shard(&mut self, id: ShardId) -> bool {
        let now = self.now();
        let data = self.data.get_mut(&id).expect("listed");
        let mut moved = false;
        data.shard.dispatch(now, &mut &data.journal);
        if let Some(frame) = data.shard.take_frame(now) {
            moved = true;
            let base = Position(data.journal.bytes.len() as u64);
            data.journal.bytes.extend_from_slice(&frame);
            if self.network {
                let before = data.committing.back().map_or(0, |(at, ..)| *at);
                let at = before.max(self.now_ms + self.dice.random_range(0..=COMMIT_MS_MAX));
                data.committing.push_back((at, base, frame));
            } else {
                let applied = data.shard.apply(now.unix, base, &frame, true);
                applied.expect("its own frame");
                data.journal.frames.push((base, frame));
                data.shard.dispatch(now, &mut &data.journal);
            }
        }
        let batches: Vec<(WorkerId, Vec<ShardEvent>)> = data.shard.events().collect();
        for (worker, events) in batches {
            moved = true;
            self.tell(worker, id, events.into_iter().map(Tell::Shard).collect());
        }
        moved
    }

    fn serve(&mut self, worker: usize, id: ConnectionId) {
        let mut mail = Mail::default();
        let now = self.now();
        self.workers[worker].take_mail(now, id, &mut mail);
        let Some(at) = self.lines.iter().position(|line| line.id == id) else {
            return;
        };
        if !mail.answers.is_empty() {
            self.feed(at, Input::Answers(&mut mail.answers));
        }
        if !mail.deliveries.is_empty() {
            self.feed(at, Input::Deliveries(&mut mail.deliveries));
        }
        if !mail.late.is_empty() {
            self.feed(at, Input::Answers(&mut mail.late));
        }
        if let Some(reason) = mail.stop.take() {
            self.feed(at, Input::Stop(reason));
        }
    }

    fn carry(&mut self, from: WorkerId, out: Outgoing) {
        match out {
            Outgoing::Requests { to, requests } => {
                self.ask(from, to, requests.into_iter().map(Ask::Shard).collect());
            }
            Outgoing::Events { to, from, events } => {
                self.tell(to, from, events.into_iter().map(Tell::Shard).collect());
            }
            Outgoing::Propose { ask, command } => {
                self.ask(from, METADATA, vec![Ask::Metadata { ask, command }]);
            }
            Outgoing::Verify { ask, login } => {
                let result = Ok(Verified {
                    user: login.user.unwrap_or_default(),
                    anonymous: false,
                    roles: Vec::new(),
                });
                let now = self.now();
                let answer = HostAnswer::Verified { ask, result };
                self.workers[usize::from(from.0)].host_answer(now, answer);
            }
        }
    }
}
