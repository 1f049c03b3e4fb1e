//! A whole node without threads, sockets or disks: workers, data shards and metadata as values, and a clock that
//! moves when it is told to.
//!
//! Owns: the node ([`Node`]) and how its parts hear of each other. Never: a test.
//! Next: `asks.rs` (what a test asks of it in one line), `one_node.rs` and its neighbours, which say `mod node;`.

#![allow(dead_code, reason = "each test file uses a part of it")]

mod asks;
pub mod kept;
pub mod world;

#[allow(unused_imports, reason = "each test file uses a part of it")]
pub use asks::*;

use anabranch_core::authority::{AllowAll, Authority};
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::message::{Message, OriginTag};
use anabranch_core::meta::{ExchangeSpec, MetaCommand};
use anabranch_core::port::ShardEvent;
use anabranch_core::properties::{Codecs, Properties, PropertyCodec, Wait};
use anabranch_core::record::{RECORD_HEADER_BYTES, read_message, record_bytes};
use anabranch_core::router::Fabric;
use anabranch_core::shard::{Bodies, Fetched, Shard, ShardLimits, ShardSetup};
use anabranch_core::worker::{
    HostAnswer, Mail, Outgoing, Verified, Worker, WorkerLimits, WorkerSetup,
};
use bytes::{Bytes, BytesMut};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::sync::Arc;

/// Messages of this origin say in their properties how long they ask to wait: a number of milliseconds.
pub const WAITS: OriginTag = OriginTag(9);

struct Waits;

impl PropertyCodec for Waits {
    fn to_neutral(&self, _message: &Message) -> Properties {
        Properties::default()
    }

    fn later(&self, message: &Message) -> Option<Wait> {
        let text = std::str::from_utf8(&message.properties).unwrap();
        text.parse().ok().map(Wait::For)
    }

    fn waited(&self, _message: &Message) -> Option<Bytes> {
        Some(Bytes::from_static(b"waited"))
    }
}

pub fn codecs() -> Codecs {
    let mut codecs = Codecs::default();
    codecs.register(WAITS, Arc::new(Waits));
    codecs
}

/// A journal in memory: positions are places in one byte string.
#[derive(Default)]
pub struct Journal {
    pub bytes: BytesMut,
    pub frames: Vec<(u64, Bytes)>,
    /// The leader's clock of each frame.
    pub stamps: Vec<UnixMs>,
    /// How many messages were read.
    pub fetched: Cell<u64>,
    /// What lies before this is far away.
    pub far: Cell<usize>,
    /// But for so many messages, whoever asks first.
    pub come: Cell<usize>,
}

impl Bodies<Position> for &Journal {
    fn fetch(&mut self, place: &Position) -> Fetched {
        if (place.0 as usize) < self.far.get() {
            let Some(rest) = self.come.get().checked_sub(1) else {
                return Fetched::Later;
            };
            self.come.set(rest);
        }
        self.fetched.set(self.fetched.get() + 1);
        let rest = &self.bytes[place.0 as usize..];
        let length = record_bytes(&rest[..RECORD_HEADER_BYTES]).ok();
        let read = |length: usize| read_message(Bytes::copy_from_slice(&rest[..length])).ok();
        length.and_then(read).into()
    }
}

impl Journal {
    /// Applies all of it.
    pub fn replay(&self, shard: &mut Shard<Position>) {
        self.replay_part(shard, ..);
    }

    /// Applies some of its frames.
    pub fn replay_part(&self, shard: &mut Shard<Position>, range: impl RangeBounds<usize>) {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        for ((base, frame), stamp) in self.frames[range].iter().zip(&self.stamps[range]) {
            shard.apply(*stamp, Position(*base), frame, false).unwrap();
        }
    }
}

pub struct DataShard {
    pub shard: Shard<Position>,
    pub journal: Journal,
}

pub struct Node {
    pub now: Now,
    pub fabric: Arc<Fabric>,
    pub authority: Arc<dyn Authority>,
    pub incarnation: u64,
    pub workers: Vec<Worker>,
    pub data: BTreeMap<ShardId, DataShard>,
    pub counter: u64,
    pub volatile_bytes_max: u64,
    pub delayed_max: u64,
    pub mails: BTreeMap<ConnectionId, Mail>,
    /// How many frames are still committed before the disks stand still; absent: all.
    pub frames_left: Option<u32>,
    /// Nobody is told of the last of them.
    pub last_is_untold: bool,
    /// What data shards say is lost: as if the node died before it was heard.
    pub hold_events: bool,
    /// Nobody takes mail: it gathers at the workers.
    pub hold_mail: bool,
    /// What shards told [`OUTSIDE`].
    pub told: Vec<ShardEvent>,
}

pub fn shard(
    id: u16,
    incarnation: u64,
    fabric: &Arc<Fabric>,
    authority: &Arc<dyn Authority>,
) -> Shard<Position> {
    Shard::new(ShardSetup {
        id: ShardId(id),
        incarnation,
        workers: 1,
        limits: ShardLimits::default(),
        fabric: fabric.clone(),
        authority: authority.clone(),
        codecs: codecs(),
    })
}

impl Node {
    pub fn new(workers: u16, shards: u16) -> Node {
        Node::with(workers, shards, Arc::new(AllowAll))
    }

    pub fn with(workers: u16, shards: u16, authority: Arc<dyn Authority>) -> Node {
        let fabric = Arc::new(Fabric::default());
        let ids: Vec<ShardId> = (1..=shards).map(ShardId).collect();
        let at = UnixMs(1_000_000);
        fabric
            .apply(at, &MetaCommand::NodeStarted { incarnation: 1 })
            .unwrap();
        let slots = anabranch_core::meta::placement::Placement::even(&ids);
        fabric
            .apply(at, &MetaCommand::SetPlacement { slots })
            .unwrap();
        let exchange = ExchangeSpec {
            name: Arc::from("topics"),
            kind: ExchangeKind::Topic,
            durable: true,
            auto_delete: false,
            internal: false,
            delays: false,
            alternate: None,
            arguments: Default::default(),
        };
        let vhost = MetaCommand::CreateVhost {
            name: Arc::from("/"),
            exchanges: vec![exchange],
            topic_exchange: Arc::from("topics"),
        };
        fabric.apply(at, &vhost).unwrap();
        let mut node = Node {
            now: Now {
                monotonic: MonotonicMs(0),
                unix: at,
            },
            incarnation: 1,
            workers: Vec::new(),
            data: BTreeMap::new(),
            counter: 0,
            volatile_bytes_max: ShardLimits::default().volatile_bytes_max,
            delayed_max: ShardLimits::default().delayed_max,
            mails: BTreeMap::new(),
            frames_left: None,
            last_is_untold: false,
            hold_events: false,
            hold_mail: false,
            told: Vec::new(),
            fabric,
            authority,
        };
        for id in ids {
            let mut shard = shard(id.0, 1, &node.fabric, &node.authority);
            shard.begin();
            node.data.insert(
                id,
                DataShard {
                    shard,
                    journal: Journal::default(),
                },
            );
        }
        node.start_workers(workers);
        node
    }

    pub fn start_workers(&mut self, workers: u16) {
        self.workers = (0..workers)
            .map(|id| {
                Worker::new(WorkerSetup {
                    id: WorkerId(id),
                    incarnation: self.incarnation,
                    workers,
                    limits: WorkerLimits {
                        shard: ShardLimits {
                            volatile_bytes_max: self.volatile_bytes_max,
                            ..ShardLimits::default()
                        },
                        ..WorkerLimits::default()
                    },
                    fabric: self.fabric.clone(),
                    codecs: codecs(),
                    authority: self.authority.clone(),
                })
            })
            .collect();
    }

    /// The node dies and starts again: what is in the journals is all that is left.
    pub fn restart(&mut self) {
        self.incarnation += 1;
        self.frames_left = None;
        self.mails.clear();
        let command = MetaCommand::NodeStarted {
            incarnation: self.incarnation,
        };
        let meta = anabranch_core::meta::Meta::decode(&self.fabric.meta().encode()).unwrap();
        self.fabric = Arc::new(Fabric::new(meta));
        self.fabric.apply(self.now.unix, &command).unwrap();
        let data = std::mem::take(&mut self.data);
        for (id, old) in data {
            let mut shard = shard(id.0, self.incarnation, &self.fabric, &self.authority);
            old.journal.replay(&mut shard);
            shard.begin();
            self.data.insert(
                id,
                DataShard {
                    shard,
                    journal: old.journal,
                },
            );
        }
        let workers = self.workers.len() as u16;
        self.start_workers(workers);
        self.settle();
    }

    pub fn connect(&mut self, worker: u16) -> Client {
        self.counter += 1;
        let id = ConnectionId::new(WorkerId(worker), self.counter);
        self.workers[usize::from(worker)].connected(id, "test", ([127, 0, 0, 1], 9).into());
        let client = Client { id };
        let login = Command::Login {
            token: Token(1),
            user: Some(Arc::from("u")),
            secret: None,
            client_id: Arc::from(""),
        };
        self.ask(client, login);
        self.ask(
            client,
            Command::Enter {
                token: Token(2),
                vhost: Arc::from("/"),
            },
        );
        assert_eq!(self.mail(client).answers.len(), 2);
        client
    }

    pub fn ask(&mut self, client: Client, command: Command) {
        let worker = usize::from(client.id.worker().0);
        self.workers[worker].submit(self.now, client.id, &mut vec![command]);
        self.settle();
    }

    pub fn disconnect(&mut self, client: Client) {
        let worker = usize::from(client.id.worker().0);
        self.workers[worker].disconnected(self.now, client.id);
        self.settle();
    }

    pub fn pass(&mut self, ms: u64) {
        self.now.monotonic = self.now.monotonic.after(ms);
        self.now.unix = self.now.unix.after(ms);
        for worker in &mut self.workers {
            worker.timeout(self.now);
        }
        for data in self.data.values_mut() {
            data.shard.timeout(self.now);
        }
        self.settle();
    }

    /// Lets settlements reach the journal while no message's time passes.
    pub fn flush(&mut self) {
        for _ in 0..2 {
            self.now.monotonic = self.now.monotonic.after(10);
            self.settle();
        }
    }

    /// What was stored so far goes far away.
    pub fn move_away(&mut self) {
        for data in self.data.values() {
            data.journal.far.set(data.journal.bytes.len());
        }
    }

    /// ... and one message of it arrives, for who asks first ...
    pub fn bring_one(&mut self) {
        for data in self.data.values_mut() {
            data.journal.come.set(1);
            data.shard.arrived(self.now, &mut &data.journal);
        }
        self.settle();
    }

    /// ... and is back again.
    pub fn bring_back(&mut self) {
        for data in self.data.values_mut() {
            data.journal.far.set(0);
            data.shard.arrived(self.now, &mut &data.journal);
        }
        self.settle();
    }

    /// Runs until nobody has anything left to say.
    pub fn settle(&mut self) {
        loop {
            let mut moved = false;
            for at in 0..self.workers.len() {
                self.workers[at].turn(self.now);
                let outgoing: Vec<Outgoing> = self.workers[at].outgoing().collect();
                for out in outgoing {
                    moved = true;
                    self.carry(at, out);
                }
            }
            for (id, data) in &mut self.data {
                data.shard.dispatch(self.now, &mut &data.journal);
                let writes = self.frames_left != Some(0);
                let frame = writes.then(|| data.shard.take_frame(self.now)).flatten();
                if let Some(frame) = frame {
                    moved = true;
                    let base = data.journal.bytes.len() as u64;
                    data.journal.bytes.extend_from_slice(&frame);
                    data.journal.frames.push((base, frame.clone()));
                    data.journal.stamps.push(self.now.unix);
                    if let Some(left) = &mut self.frames_left {
                        *left -= 1;
                        if *left == 0 && self.last_is_untold {
                            continue;
                        }
                    }
                    data.shard
                        .apply(self.now.unix, Position(base), &frame, true)
                        .unwrap();
                    data.shard.dispatch(self.now, &mut &data.journal);
                }
                for (worker, events) in data.shard.events() {
                    moved = true;
                    if worker == OUTSIDE {
                        self.told.extend(events);
                        continue;
                    }
                    if self.hold_events {
                        continue;
                    }
                    self.workers[usize::from(worker.0)].shard_events(self.now, *id, events);
                }
            }
            for at in (0..self.workers.len()).filter(|_| !self.hold_mail) {
                while let Some(id) = self.workers[at].next_ready() {
                    moved = true;
                    let mut mail = Mail::default();
                    self.workers[at].take_mail(self.now, id, &mut mail);
                    let kept = self.mails.entry(id).or_default();
                    kept.answers.append(&mut mail.answers);
                    kept.deliveries.append(&mut mail.deliveries);
                    kept.answers.append(&mut mail.late);
                    kept.stop = mail.stop.or(kept.stop);
                }
            }
            if !moved {
                break;
            }
        }
        // No test loses a block: whoever cannot read one asked for what nobody wrote.
        for data in self.data.values_mut() {
            assert_eq!(data.shard.damaged(), None);
        }
    }

    pub fn carry(&mut self, from: usize, out: Outgoing) {
        let worker = WorkerId(from as u16);
        match out {
            Outgoing::Requests { to, mut requests } => match self.data.get_mut(&to) {
                Some(data) => {
                    data.shard
                        .handle(self.now, worker, &mut requests, &mut &data.journal)
                }
                None => {
                    let host = usize::from(to.host().0);
                    self.workers[host].shard_requests(self.now, worker, requests);
                }
            },
            Outgoing::Events { to, from, events } => {
                if to == OUTSIDE {
                    self.told.extend(events);
                } else {
                    self.workers[usize::from(to.0)].shard_events(self.now, from, events);
                }
            }
            Outgoing::Verify { ask, login } => {
                let user = login.user.unwrap_or_default();
                let result = Ok(Verified {
                    user,
                    anonymous: true,
                    roles: Vec::new(),
                });
                self.workers[from].host_answer(self.now, HostAnswer::Verified { ask, result });
            }
            Outgoing::Propose { ask, command } => {
                let result = self.fabric.apply(self.now.unix, &command);
                self.workers[from].host_answer(self.now, HostAnswer::Proposed { ask, result });
            }
        }
    }

    pub fn mail(&mut self, client: Client) -> Mail {
        self.mails.remove(&client.id).unwrap_or_default()
    }

    pub fn reply(&mut self, client: Client, command: Command) -> Result<Reply, ErrorKind> {
        self.ask(client, command);
        let mail = self.mails.entry(client.id).or_default();
        let at = mail
            .answers
            .iter()
            .position(|answer| matches!(answer, Answer::Done { .. }));
        match mail.answers.remove(at.expect("a command is answered")) {
            Answer::Done { result, .. } => result.map_err(|why| why.kind),
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// Who asks volatile shards for counts; no worker.
const OUTSIDE: WorkerId = WorkerId(0x7FFF);

#[derive(Clone, Copy)]
pub struct Client {
    pub id: ConnectionId,
}

pub fn bodies(mail: &Mail) -> Vec<&str> {
    mail.deliveries
        .iter()
        .map(|delivery| std::str::from_utf8(&delivery.message.body).unwrap())
        .collect()
}

pub fn outcomes(mail: &Mail) -> Vec<(u64, u64, PublishOutcome)> {
    let published = mail.answers.iter().filter_map(|answer| match answer {
        Answer::Published {
            first,
            last,
            outcome,
        } => Some((first.0, last.0, *outcome)),
        _ => None,
    });
    published.collect()
}
