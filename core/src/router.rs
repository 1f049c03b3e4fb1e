//! Where a message goes: from vhost, exchange and address to streams by shard.
//!
//! [`Fabric`] is what all threads of a node share: the metadata, the [`Interest`] of shards, and one
//! number that changes with either. A [`Router`] is one worker's own: it remembers routes by their flat
//! bytes and looks at that number first, so that a hit takes no lock and allocates nothing.
//!
//! Owns: routes, their cache, and the order in which changes become visible.
//! Never: the rule of an exchange (`exchange.rs`), whether a publisher may (`worker.rs`).
//! Next: `router/walk.rs`, how a route is found; `worker/publish.rs`, which sends messages along routes.

mod interest;
#[cfg(test)]
mod tests;
mod walk;

pub use interest::Interest;

use crate::address::TopicFilter;
use crate::error::Refusal;
use crate::gateway::ExchangeKind;
use crate::id::{ShardId, StreamId, UnixMs, VhostId};
use crate::message::Message;
use crate::meta::{Meta, MetaCommand, MetaReply, StreamState};
use crate::port::Later;
use crate::properties::Codecs;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use walk::Walk;

/// A router forgets all its routes when it knows so many.
pub const ROUTES_MAX: usize = 65_536;
/// ... or when they lead to so many streams in all.
pub const ROUTED_STREAMS_MAX: usize = 1 << 20;
/// A route whose vhost, exchange and address take more bytes than this is not remembered.
pub const ROUTE_KEY_BYTES_MAX: usize = 1024;

/// What routing knows, shared by all threads of a node.
#[derive(Debug, Default)]
pub struct Fabric {
    meta: RwLock<Meta>,
    interest: RwLock<Interest>,
    generation: AtomicU64,
    rules_generation: AtomicU64,
}

impl Fabric {
    /// With the metadata of a checkpoint; no shard is interested in anything yet.
    pub fn new(meta: Meta) -> Fabric {
        Fabric {
            meta: RwLock::new(meta),
            ..Fabric::default()
        }
    }

    /// The metadata, to look something up: hold it shortly, commands wait for it.
    pub fn meta(&self) -> RwLockReadGuard<'_, Meta> {
        self.meta.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever any route may have changed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Changes whenever users or rules changed.
    pub fn rules_generation(&self) -> u64 {
        self.rules_generation.load(Ordering::Acquire)
    }

    /// Applies a command of the metadata shard. When it returns, no router uses an older route any
    /// more.
    ///
    /// # Errors
    /// As [`Meta::apply`].
    pub fn apply(&self, now: UnixMs, command: &MetaCommand) -> Result<MetaReply, Refusal> {
        let mut meta = self.meta.write().unwrap_or_else(PoisonError::into_inner);
        let before = (meta.generation(), meta.rules_generation());
        let result = meta.apply(now, command);
        // While the lock is held, so that nobody sees the new state under the old number.
        if meta.generation() != before.0 {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        if meta.rules_generation() != before.1 {
            self.rules_generation.fetch_add(1, Ordering::AcqRel);
        }
        result
    }

    /// Replaces the metadata by those of a checkpoint.
    pub fn install(&self, meta: Meta) {
        let mut current = self.meta.write().unwrap_or_else(PoisonError::into_inner);
        *current = meta;
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.rules_generation.fetch_add(1, Ordering::AcqRel);
    }

    /// A session in `shard` was bound to a filter: messages that match it are to reach that shard.
    pub fn begin_interest(&self, vhost: VhostId, filter: &TopicFilter, shard: ShardId) {
        let interest = self.interest.write();
        let mut interest = interest.unwrap_or_else(PoisonError::into_inner);
        if interest.add(vhost, filter, shard) {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Such a binding is gone.
    pub fn end_interest(&self, vhost: VhostId, filter: &TopicFilter, shard: ShardId) {
        let interest = self.interest.write();
        let mut interest = interest.unwrap_or_else(PoisonError::into_inner);
        if interest.remove(vhost, filter, shard) {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn interest(&self) -> RwLockReadGuard<'_, Interest> {
        self.interest.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where messages of one vhost, exchange and address go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// There is no such exchange; then there are no targets.
    pub exchange_missing: bool,
    /// Clients may not publish to this exchange.
    pub internal: bool,
    /// It keeps messages for as long as they ask.
    pub delays: bool,
    /// The message is kept until it is due, by the only target. Never so in what is remembered.
    pub later: Option<Later>,
    /// The vhost, when the topic exchange that its sessions are bound to is this one or reached from it.
    pub by_topic: Option<VhostId>,
    /// Then, the shard where the last value of the address is kept.
    pub values: Option<ShardId>,
    /// The message is to be kept there. Never so in what is remembered.
    pub keep: bool,
    /// A topic exchange: the right to publish is asked for the address.
    pub topic_kind: bool,
    /// Each shard once, by number, with its streams by number. A shard without streams has sessions
    /// that may match.
    pub targets: SmallVec<[(ShardId, SmallVec<[StreamId; 2]>); 2]>,
    /// Names this vhost, exchange and address among all that the router knows in this generation: key
    /// of verdict caches.
    pub number: u32,
    /// A stream in memory is to refuse when it is full, or to hold its publishers: its answer must be waited for.
    pub refusing: bool,
    /// A stream holds its publishers when it is full.
    pub holding: bool,
    /// The targets are those of one message: another one with other headers may go elsewhere.
    pub depends_on_headers: bool,
}

impl Route {
    fn streams_of(&mut self, shard: ShardId) -> &mut SmallVec<[StreamId; 2]> {
        let at = self.targets.iter().position(|(known, _)| *known == shard);
        let at = at.unwrap_or_else(|| {
            self.targets.push((shard, SmallVec::new()));
            self.targets.len() - 1
        });
        &mut self.targets[at].1
    }

    /// Adds streams, each once; `streams` is sorted here.
    fn add_streams(&mut self, mut streams: Candidates) {
        streams.sort_unstable();
        streams.dedup();
        for (stream, shard) in streams {
            self.streams_of(shard).push(stream);
        }
    }
}

type Candidates = SmallVec<[(StreamId, ShardId); 8]>;

/// A remembered route.
#[derive(Debug)]
enum Known {
    /// The same for every message.
    Fixed(Rc<Route>),
    /// Asked for each message; under this number.
    ByHeaders(u32),
}

impl Known {
    fn streams(&self) -> usize {
        match self {
            Known::Fixed(route) => {
                let targets = route.targets.iter();
                targets.map(|(_, streams)| 1 + streams.len()).sum()
            }
            Known::ByHeaders(_) => 0,
        }
    }
}

/// One worker's routes.
#[derive(Debug)]
pub struct Router {
    fabric: Arc<Fabric>,
    codecs: Codecs,
    /// That of all routes in `known`.
    generation: u64,
    known: FxHashMap<Box<[u8]>, Known>,
    /// How many streams all of `known` lead to.
    known_streams: usize,
    key: Vec<u8>,
    last_number: u32,
}

impl Router {
    /// A router that knows no route yet. `codecs` read the headers of messages.
    pub fn new(fabric: Arc<Fabric>, codecs: Codecs) -> Router {
        Router {
            generation: fabric.generation(),
            fabric,
            codecs,
            known: FxHashMap::default(),
            known_streams: 0,
            key: Vec::new(),
            last_number: 0,
        }
    }

    /// The generation of the route given last: numbers of routes mean something within it.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Where `message` goes when it is published in `vhost`, as of the fabric's present state.
    pub fn route(&mut self, vhost: VhostId, message: &Message) -> Rc<Route> {
        // Read before the state is, so that a route may be newer than its generation, never older.
        let generation = self.fabric.generation();
        if generation != self.generation {
            self.generation = generation;
            self.forget();
        }
        write_key(&mut self.key, vhost, message);
        match self.known.get(&self.key[..]) {
            Some(Known::Fixed(route)) => return route.clone(),
            Some(Known::ByHeaders(number)) => {
                let number = *number;
                return Rc::new(self.find(vhost, message, number));
            }
            None => {}
        }
        self.last_number = self.last_number.wrapping_add(1);
        let route = Rc::new(self.find(vhost, message, self.last_number));
        if self.key.len() <= ROUTE_KEY_BYTES_MAX {
            let known = match route.depends_on_headers {
                true => Known::ByHeaders(route.number),
                false => Known::Fixed(route.clone()),
            };
            let streams = known.streams();
            if self.known.len() >= ROUTES_MAX || self.known_streams + streams > ROUTED_STREAMS_MAX {
                self.forget();
            }
            self.known_streams += streams;
            self.known.insert(self.key.as_slice().into(), known);
        }
        route
    }

    fn forget(&mut self) {
        self.known.clear();
        self.known_streams = 0;
    }

    fn find(&self, vhost: VhostId, message: &Message, number: u32) -> Route {
        let mut route = Route {
            number,
            ..Route::default()
        };
        let meta = self.fabric.meta();
        let name = std::str::from_utf8(&message.exchange).ok();
        let Some(exchange) = name.and_then(|name| meta.exchange(vhost, name)) else {
            route.exchange_missing = true;
            return route;
        };
        route.internal = exchange.internal;
        route.delays = exchange.delays;
        route.topic_kind = exchange.kind == ExchangeKind::Topic;
        let interest = self.fabric.interest();
        let mut walk = Walk::new(&meta, &interest, &self.codecs, vhost, message);
        walk.run(exchange.id);
        route.depends_on_headers = walk.depends_on_headers;
        let active = walk.streams.iter().filter_map(|id| active(&meta, *id));
        let active: Candidates = active.collect();
        for (id, shard) in &active {
            let limits = meta.effective_limits(*id);
            route.refusing |= shard.is_volatile() && limits.refuses();
            route.holding |= limits.holds();
        }
        route.add_streams(active);
        if walk.reached_sessions {
            route.by_topic = Some(vhost);
            let name = meta.vhost_by_id(vhost).map(|known| &known.name);
            route.values = name.and_then(|name| meta.place(name, message.address.as_str()));
            interest.visit(vhost, &message.address, |shard| {
                route.streams_of(shard);
            });
        }
        route.targets.sort_unstable_by_key(|(shard, _)| *shard);
        route
    }
}

/// What a route is remembered by: vhost, length and name of the exchange, address.
fn write_key(key: &mut Vec<u8>, vhost: VhostId, message: &Message) {
    key.clear();
    key.extend_from_slice(&vhost.0.to_le_bytes());
    key.extend_from_slice(&(message.exchange.len() as u32).to_le_bytes());
    key.extend_from_slice(&message.exchange);
    key.extend_from_slice(&message.address.0);
}

/// A stream with its shard; `None` while its shard has not made it.
fn active(meta: &Meta, stream: StreamId) -> Option<(StreamId, ShardId)> {
    let known = meta.stream_by_id(stream)?;
    (known.state == StreamState::Active).then_some((stream, known.shard))
}
