//! Linking and unlinking entries: the one place where all indexes of [`Meta`] are kept in step.
//!
//! Owns: what has to change together when an entry comes or goes.
//! Never: whether it may (`apply.rs`).

use super::{Binding, BindingId, DEFAULT_EXCHANGE, Exchange, Meta, Stream, Target, Vhost};
use super::{ExchangeState, StreamEntry, VhostState};
use crate::address::TopicFilter;
use crate::error::Refusal;
use crate::exchange::{Bound, Table};
use crate::id::{ExchangeId, StreamId, VhostId};
use crate::meta::arguments::Arguments;
use std::collections::{BTreeMap, BTreeSet};

/// Stands for "by its key" in the table of a default exchange; real bindings are numbered from 1.
const BY_KEY: BindingId = BindingId(0);

impl Meta {
    pub(super) fn link_vhost(&mut self, vhost: Vhost) {
        self.vhost_names.insert(vhost.name.clone(), vhost.id);
        let state = VhostState {
            vhost,
            exchanges: BTreeMap::new(),
            streams: BTreeMap::new(),
        };
        self.vhosts.insert(state.vhost.id, state);
        self.generation += 1;
    }

    /// Takes a vhost and everything in it out; gives the streams back.
    pub(super) fn unlink_vhost(&mut self, id: VhostId) -> Vec<Stream> {
        let Some(state) = self.vhosts.get(&id) else {
            return Vec::new();
        };
        let exchanges: Vec<ExchangeId> = state.exchanges.values().copied().collect();
        let streams: Vec<StreamId> = state.streams.values().copied().collect();
        let streams = streams.into_iter().filter_map(|id| self.unlink_stream(id));
        let streams: Vec<Stream> = streams.collect();
        for exchange in exchanges {
            self.unlink_exchange(exchange);
        }
        self.policies.remove_vhost(id);
        if let Some(state) = self.vhosts.remove(&id) {
            self.vhost_names.remove(&state.vhost.name);
        }
        self.generation += 1;
        streams
    }

    pub(super) fn link_exchange(&mut self, exchange: Exchange) {
        if let Some(state) = self.vhosts.get_mut(&exchange.vhost) {
            state.exchanges.insert(exchange.name.clone(), exchange.id);
        }
        let state = ExchangeState {
            table: Table::new(exchange.kind),
            bindings: BTreeSet::new(),
            inbound: BTreeSet::new(),
            exchange,
        };
        self.exchanges.insert(state.exchange.id, state);
        self.generation += 1;
    }

    pub(super) fn unlink_exchange(&mut self, id: ExchangeId) {
        let Some(state) = self.exchanges.remove(&id) else {
            return;
        };
        if let Some(vhost) = self.vhosts.get_mut(&state.exchange.vhost) {
            vhost.exchanges.remove(&state.exchange.name);
        }
        for binding in state.bindings {
            self.unlink_binding(binding);
        }
        for binding in state.inbound {
            self.unlink_binding_and_unused(binding);
        }
        self.generation += 1;
    }

    /// Puts a stream in place, reachable by its key. Not routed to before it is active, so that routes
    /// stay as they are.
    pub(super) fn link_stream(&mut self, stream: Stream) {
        if let Some(owner) = stream.owner {
            self.owners.entry(owner).or_default().insert(stream.id);
        }
        if let Some(state) = self.vhosts.get_mut(&stream.vhost) {
            state.streams.insert(stream.name.clone(), stream.id);
        }
        if let Some(table) = self.default_table(stream.vhost) {
            let bound = Bound {
                binding: BY_KEY,
                target: Target::Stream(stream.id),
            };
            let key = TopicFilter(stream.key.0.clone());
            // The default exchange is a direct one, which takes any binding.
            let _ = table.add(&key, &Arguments::default(), bound);
        }
        let entry = StreamEntry {
            stream,
            bindings: BTreeSet::new(),
        };
        self.streams.insert(entry.stream.id, entry);
    }

    /// Takes a stream and its bindings out, and the auto-delete exchanges that lose their last one.
    pub(super) fn unlink_stream(&mut self, id: StreamId) -> Option<Stream> {
        let entry = self.streams.remove(&id)?;
        let stream = entry.stream;
        for binding in entry.bindings {
            self.unlink_binding_and_unused(binding);
        }
        if let Some(table) = self.default_table(stream.vhost) {
            let bound = Bound {
                binding: BY_KEY,
                target: Target::Stream(id),
            };
            table.remove(&TopicFilter(stream.key.0.clone()), bound);
        }
        if let Some(state) = self.vhosts.get_mut(&stream.vhost) {
            state.streams.remove(&stream.name);
        }
        if let Some(owner) = stream.owner
            && let Some(owned) = self.owners.get_mut(&owner)
        {
            owned.remove(&id);
            if owned.is_empty() {
                self.owners.remove(&owner);
            }
        }
        self.generation += 1;
        Some(stream)
    }

    /// Puts a binding in place; its exchange and stream are there.
    pub(super) fn link_binding(&mut self, binding: Binding) -> Result<(), Refusal> {
        if let Some(state) = self.exchanges.get_mut(&binding.exchange) {
            let bound = Bound {
                binding: binding.id,
                target: binding.target,
            };
            state
                .table
                .add(&binding.filter, &binding.arguments, bound)?;
            state.bindings.insert(binding.id);
        }
        if let Some(ways) = self.ways_to(binding.target) {
            ways.insert(binding.id);
        }
        let identity = (binding.exchange, binding.target, binding.filter.clone());
        self.identities
            .entry(identity)
            .or_default()
            .push(binding.id);
        self.bindings.insert(binding.id, binding);
        self.generation += 1;
        Ok(())
    }

    /// Takes a binding out, and its exchange when that is an auto-delete one without another binding.
    pub(super) fn unlink_binding_and_unused(&mut self, id: BindingId) {
        let Some(exchange) = self.unlink_binding(id) else {
            return;
        };
        if let Some(state) = self.exchanges.get(&exchange)
            && state.exchange.auto_delete
            && !state.exchange.predeclared
            && state.bindings.is_empty()
        {
            self.unlink_exchange(exchange);
        }
    }

    fn unlink_binding(&mut self, id: BindingId) -> Option<ExchangeId> {
        let binding = self.bindings.remove(&id)?;
        if let Some(state) = self.exchanges.get_mut(&binding.exchange) {
            state.bindings.remove(&id);
            let bound = Bound {
                binding: id,
                target: binding.target,
            };
            state.table.remove(&binding.filter, bound);
        }
        if let Some(ways) = self.ways_to(binding.target) {
            ways.remove(&id);
        }
        let identity = (binding.exchange, binding.target, binding.filter);
        if let Some(alike) = self.identities.get_mut(&identity) {
            alike.retain(|other| *other != id);
            if alike.is_empty() {
                self.identities.remove(&identity);
            }
        }
        self.generation += 1;
        Some(binding.exchange)
    }

    /// The bindings that lead to an end.
    fn ways_to(&mut self, target: Target) -> Option<&mut BTreeSet<BindingId>> {
        match target {
            Target::Stream(id) => self.streams.get_mut(&id).map(|entry| &mut entry.bindings),
            Target::Exchange(id) => self.exchanges.get_mut(&id).map(|state| &mut state.inbound),
        }
    }

    /// The binding with this identity.
    pub(super) fn binding_like(
        &self,
        exchange: ExchangeId,
        target: Target,
        filter: &TopicFilter,
        arguments: &Arguments,
    ) -> Option<BindingId> {
        let alike = self
            .identities
            .get(&(exchange, target, filter.clone()))?
            .iter();
        alike.copied().find(|id| {
            self.bindings
                .get(id)
                .is_some_and(|known| known.arguments == *arguments)
        })
    }

    fn default_table(&mut self, vhost: VhostId) -> Option<&mut Table> {
        let id = self.vhosts.get(&vhost)?.exchanges.get(DEFAULT_EXCHANGE)?;
        self.exchanges.get_mut(id).map(|state| &mut state.table)
    }
}
