//! The state of the metadata shard: vhosts, users, rules, exchanges, streams by name, bindings,
//! placement. Deterministic: the same commands in the same order give the same state everywhere.
//!
//! Owns: [`Meta`], how it is looked up and listed, and the limits on its size.
//! Never: messages, sessions and their filters (those live in their shards), meaning of rules.
//! Next: `meta/policy.rs`, `meta/command.rs` (what it is told), `meta/apply.rs` (what that does), `router.rs` (who reads
//! it for every publish).

mod apply;
pub mod arguments;
mod capture;
pub mod checkpoint;
pub mod command;
pub mod entry;
mod index;
pub mod placement;
pub mod policy;
#[cfg(test)]
mod tests;

pub use capture::BY_POLICY;
pub use command::{BindingChange, BindingEnd, ExchangeSpec, MetaCommand, MetaReply, StreamSpec};
pub use entry::{
    Binding, BindingId, Exchange, PasswordHash, Rule, Stream, StreamState, Target, User, Vhost,
};

use crate::address::TopicFilter;
use crate::exchange::Table;
use crate::id::{ConnectionId, ExchangeId, ShardId, StreamId, VhostId};
use placement::Placement;
use policy::Policies;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Longest name of a vhost, user, rule, exchange or stream in bytes; longer is refused.
pub const NAME_BYTES_MAX: usize = 255;
/// More vhosts than this are refused.
pub const VHOSTS_MAX: usize = 10_000;
/// More users than this are refused.
pub const USERS_MAX: usize = 1_000_000;
/// More rules than this are refused.
pub const RULES_MAX: usize = 100_000;
/// More exchanges than this are refused.
pub const EXCHANGES_MAX: usize = 100_000;
/// More registered streams than this are refused.
pub const STREAMS_MAX: usize = 1_000_000;
/// More bindings than this are refused.
pub const BINDINGS_MAX: usize = 2_000_000;

/// The name of the default exchange, which every vhost has: it reaches every stream by its key.
pub const DEFAULT_EXCHANGE: &str = "";

/// The whole of the metadata shard.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    vhosts: BTreeMap<VhostId, VhostState>,
    vhost_names: BTreeMap<Arc<str>, VhostId>,
    users: BTreeMap<Arc<str>, User>,
    rules: BTreeMap<Arc<str>, Rule>,
    exchanges: BTreeMap<ExchangeId, ExchangeState>,
    streams: BTreeMap<StreamId, StreamEntry>,
    owners: BTreeMap<ConnectionId, BTreeSet<StreamId>>,
    bindings: BTreeMap<BindingId, Binding>,
    /// Bindings of one exchange, end and filter: they differ in their arguments only.
    identities: FxHashMap<(ExchangeId, Target, TopicFilter), SmallVec<[BindingId; 1]>>,
    placement: Placement,
    policies: Policies,
    incarnation: u64,
    last: LastIds,
    generation: u64,
    rules_generation: u64,
}

#[derive(Clone, Debug)]
struct VhostState {
    vhost: Vhost,
    exchanges: BTreeMap<Arc<str>, ExchangeId>,
    streams: BTreeMap<Arc<str>, StreamId>,
}

#[derive(Clone, Debug)]
struct ExchangeState {
    exchange: Exchange,
    table: Table,
    bindings: BTreeSet<BindingId>,
    /// From other exchanges to this one.
    inbound: BTreeSet<BindingId>,
}

#[derive(Clone, Debug)]
struct StreamEntry {
    stream: Stream,
    bindings: BTreeSet<BindingId>,
}

/// The highest number given so far, per kind; none is ever given twice. Persisted.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
struct LastIds {
    vhost: u32,
    exchange: u32,
    stream: u64,
    binding: u64,
}

impl Meta {
    /// Changes whenever routing may have changed: what was routed by an older one is void.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Changes whenever users or rules changed.
    pub fn rules_generation(&self) -> u64 {
        self.rules_generation
    }

    /// A vhost by name.
    pub fn vhost(&self, name: &str) -> Option<&Vhost> {
        self.vhost_by_id(*self.vhost_names.get(name)?)
    }

    /// A vhost by id.
    pub fn vhost_by_id(&self, id: VhostId) -> Option<&Vhost> {
        self.vhosts.get(&id).map(|state| &state.vhost)
    }

    /// All vhosts.
    pub fn vhosts(&self) -> impl Iterator<Item = &Vhost> {
        self.vhosts.values().map(|state| &state.vhost)
    }

    /// A user by name.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name)
    }

    /// All users, by name.
    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values()
    }

    /// A rule by id.
    pub fn rule(&self, id: &str) -> Option<&Rule> {
        self.rules.get(id)
    }

    /// All rules in their order.
    pub fn rules(&self) -> Vec<&Rule> {
        let mut rules: Vec<&Rule> = self.rules.values().collect();
        rules.sort_by_key(|rule| rule.order);
        rules
    }

    /// An exchange by name.
    pub fn exchange(&self, vhost: VhostId, name: &str) -> Option<&Exchange> {
        let id = self.vhosts.get(&vhost)?.exchanges.get(name)?;
        self.exchange_by_id(*id)
    }

    /// An exchange by id.
    pub fn exchange_by_id(&self, id: ExchangeId) -> Option<&Exchange> {
        self.exchanges.get(&id).map(|state| &state.exchange)
    }

    /// The exchanges of a vhost, by name.
    pub fn exchanges(&self, vhost: VhostId) -> impl Iterator<Item = &Exchange> {
        let ids = self.vhosts.get(&vhost).into_iter();
        ids.flat_map(|state| state.exchanges.values())
            .filter_map(|id| self.exchange_by_id(*id))
    }

    /// The bindings of an exchange, indexed for routing.
    pub fn table(&self, exchange: ExchangeId) -> Option<&Table> {
        self.exchanges.get(&exchange).map(|state| &state.table)
    }

    /// A registered stream by name, whether active or not.
    pub fn stream(&self, vhost: VhostId, name: &str) -> Option<&Stream> {
        let id = self.vhosts.get(&vhost)?.streams.get(name)?;
        self.stream_by_id(*id)
    }

    /// A registered stream by id.
    pub fn stream_by_id(&self, id: StreamId) -> Option<&Stream> {
        self.streams.get(&id).map(|entry| &entry.stream)
    }

    /// The registered streams of a vhost, by name.
    pub fn streams(&self, vhost: VhostId) -> impl Iterator<Item = &Stream> {
        let ids = self.vhosts.get(&vhost).into_iter();
        ids.flat_map(|state| state.streams.values())
            .filter_map(|id| self.stream_by_id(*id))
    }

    /// The exclusive streams of a connection: they go when it ends.
    pub fn streams_owned_by(&self, connection: ConnectionId) -> impl Iterator<Item = &Stream> {
        let ids = self.owners.get(&connection).into_iter().flatten();
        ids.filter_map(|id| self.stream_by_id(*id))
    }

    /// The bindings of an exchange, oldest first. Those of the default exchange are understood, not
    /// listed.
    pub fn bindings_of_exchange(&self, exchange: ExchangeId) -> impl Iterator<Item = &Binding> {
        let state = self.exchanges.get(&exchange).into_iter();
        state
            .flat_map(|state| &state.bindings)
            .filter_map(|id| self.bindings.get(id))
    }

    /// The bindings that lead to a stream, oldest first, without that of the default exchange.
    pub fn bindings_of_stream(&self, stream: StreamId) -> impl Iterator<Item = &Binding> {
        let entry = self.streams.get(&stream).into_iter();
        entry
            .flat_map(|entry| &entry.bindings)
            .filter_map(|id| self.bindings.get(id))
    }

    /// The bindings that lead to an exchange from others, oldest first.
    pub fn bindings_to_exchange(&self, exchange: ExchangeId) -> impl Iterator<Item = &Binding> {
        let state = self.exchanges.get(&exchange).into_iter();
        state
            .flat_map(|state| &state.inbound)
            .filter_map(|id| self.bindings.get(id))
    }

    /// The bindings of a vhost, by exchange.
    pub fn bindings(&self, vhost: VhostId) -> impl Iterator<Item = &Binding> {
        self.exchanges(vhost)
            .flat_map(|exchange| self.bindings_of_exchange(exchange.id))
    }

    /// The shards that durable streams and sessions are placed on; none before placement was set.
    pub fn placed(&self) -> BTreeSet<ShardId> {
        self.placement.shards().iter().copied().collect()
    }

    /// The same in a list.
    pub fn placed_list(&self) -> &[ShardId] {
        self.placement.shards()
    }

    /// The shard where a durable stream of this name, or a session of this client, belongs; `None`
    /// before placement was set.
    pub fn place(&self, vhost: &str, name: &str) -> Option<ShardId> {
        self.placement.shard(placement::slot(vhost, name))
    }
}
