//! What each command does to the metadata.
//!
//! Owns: every check of existence, equality and limits, and the order of these checks. A refused
//! command changes nothing.
//! Never: rights (asked before a command is proposed), reserved names (the gateway's business).
//! Next: `index.rs`, which keeps the indexes in step.

use super::{
    BINDINGS_MAX, Binding, BindingChange, BindingEnd, BindingId, DEFAULT_EXCHANGE, EXCHANGES_MAX,
    Exchange, ExchangeSpec, Meta, MetaCommand, MetaReply, NAME_BYTES_MAX, RULES_MAX, Rule,
    STREAMS_MAX, Stream, StreamSpec, StreamState, Target, USERS_MAX, User, VHOSTS_MAX, Vhost,
};
use crate::address::{Address, TopicFilter};
use crate::error::{ErrorKind, Refusal};
use crate::exchange::Wanted;
use crate::gateway::ExchangeKind;
use crate::id::{ConnectionId, ExchangeId, ShardId, StreamId, UnixMs, VhostId};
use crate::limits::StreamLimits;
use crate::meta::arguments::Arguments;
use crate::meta::placement::{Placement, slot};
use crate::properties::Value;
use bytes::Bytes;
use std::sync::Arc;

type Applied = Result<MetaReply, Refusal>;

impl Meta {
    /// Applies a command. `now` is the leader's stamp of the command, never a node's own clock.
    ///
    /// # Errors
    /// As each [`MetaCommand`] says; then nothing has changed.
    pub fn apply(&mut self, now: UnixMs, command: &MetaCommand) -> Applied {
        match command {
            MetaCommand::NodeStarted { incarnation } => self.start_node(*incarnation),
            MetaCommand::CreateVhost {
                name,
                exchanges,
                topic_exchange,
            } => self.create_vhost(now, name, exchanges, topic_exchange),
            MetaCommand::DeleteVhost { name } => self.delete_vhost(name),
            MetaCommand::PutUser(user) => self.put_user(user),
            MetaCommand::DeleteUser { name } => self.delete_user(name),
            MetaCommand::PutRule(rule) => self.put_rule(rule),
            MetaCommand::DeleteRule { id } => self.delete_rule(id),
            MetaCommand::DeclareExchange { vhost, exchange } => {
                self.declare_exchange(now, *vhost, exchange)
            }
            MetaCommand::DeleteExchange {
                vhost,
                name,
                if_unused,
            } => self.delete_exchange(*vhost, name, *if_unused),
            MetaCommand::DeclareStream {
                vhost,
                stream,
                by,
                volatile,
            } => self.declare_stream(now, *vhost, stream, *by, *volatile),
            MetaCommand::ActivateStream { stream } => self.activate_stream(*stream),
            MetaCommand::DeleteStream { stream } => {
                self.unlink_stream(*stream);
                Ok(MetaReply::Done)
            }
            MetaCommand::Bind(change) => self.bind(change),
            MetaCommand::Unbind(change) => self.unbind(change),
            MetaCommand::PutPolicy { vhost, policy } => {
                self.vhost_name(*vhost)?;
                check_name("policy", &policy.name)?;
                self.policies.put(*vhost, policy.clone())?;
                self.capture_all(*vhost);
                self.generation += 1;
                Ok(MetaReply::Done)
            }
            MetaCommand::DeletePolicy { vhost, name } => {
                self.policies.remove(*vhost, name)?;
                self.capture_all(*vhost);
                self.generation += 1;
                Ok(MetaReply::Done)
            }
            MetaCommand::SetPlacement { slots } => {
                self.placement = Placement::new(slots.clone())?;
                Ok(MetaReply::Done)
            }
        }
    }

    fn start_node(&mut self, incarnation: u64) -> Applied {
        let old = |of: Option<u64>| of.is_some_and(|of| of != incarnation);
        let streams = self.streams.values().map(|entry| &entry.stream);
        let streams = streams.filter(|stream| old(stream.incarnation));
        let streams: Vec<StreamId> = streams.map(|stream| stream.id).collect();
        let exchanges = self.exchanges.values().map(|state| &state.exchange);
        let exchanges = exchanges.filter(|exchange| old(exchange.incarnation));
        let exchanges: Vec<ExchangeId> = exchanges.map(|exchange| exchange.id).collect();
        for stream in streams {
            self.unlink_stream(stream);
        }
        for exchange in exchanges {
            self.unlink_exchange(exchange);
        }
        self.incarnation = incarnation;
        Ok(MetaReply::Done)
    }

    fn create_vhost(
        &mut self,
        now: UnixMs,
        name: &Arc<str>,
        exchanges: &[ExchangeSpec],
        topic_exchange: &Arc<str>,
    ) -> Applied {
        check_name("vhost", name)?;
        let known = self.vhost(name).map(|vhost| vhost.id);
        if known.is_none() {
            check_room("vhosts", self.vhosts.len(), VHOSTS_MAX)?;
        }
        for exchange in exchanges {
            check_name("exchange", &exchange.name)?;
        }
        check_room(
            "exchanges",
            self.exchanges.len() + exchanges.len(),
            EXCHANGES_MAX,
        )?;
        let is_topic = exchanges
            .iter()
            .any(|spec| spec.name == *topic_exchange && spec.kind == ExchangeKind::Topic);
        let clashes = exchanges.iter().any(|spec| {
            let existing = known.and_then(|id| self.exchange(id, &spec.name));
            existing.is_some_and(|existing| existing.kind != spec.kind)
        });
        if !is_topic || clashes {
            let text = format!(
                "vhost '{name}' needs a topic exchange '{topic_exchange}' among exchanges that \
                 fit those it has"
            );
            return Err(Refusal::new(ErrorKind::BadRequest, text));
        }
        let id = known.unwrap_or_else(|| {
            self.last.vhost += 1;
            let id = VhostId(self.last.vhost);
            self.link_vhost(Vhost {
                id,
                name: name.clone(),
                topic_exchange: ExchangeId(0),
            });
            let default = ExchangeSpec {
                name: DEFAULT_EXCHANGE.into(),
                kind: ExchangeKind::Direct,
                durable: true,
                auto_delete: false,
                internal: false,
                delays: false,
                alternate: None,
                arguments: Arguments::default(),
            };
            self.add_exchange(now, id, &default, true);
            id
        });
        for spec in exchanges {
            match self.exchange(id, &spec.name).map(|known| known.id) {
                None => {
                    self.add_exchange(now, id, spec, true);
                }
                Some(known) => {
                    if let Some(state) = self.exchanges.get_mut(&known) {
                        state.exchange.predeclared = true;
                        state.exchange.incarnation = None;
                    }
                }
            }
        }
        let topic_exchange = self.exchange(id, topic_exchange).map(|found| found.id);
        if let (Some(state), Some(topic_exchange)) = (self.vhosts.get_mut(&id), topic_exchange)
            && state.vhost.topic_exchange != topic_exchange
        {
            state.vhost.topic_exchange = topic_exchange;
            self.generation += 1;
        }
        Ok(MetaReply::Vhost(id))
    }

    fn delete_vhost(&mut self, name: &str) -> Applied {
        let Some(id) = self.vhost_names.get(name).copied() else {
            return Err(Refusal::new(
                ErrorKind::NotFound,
                format!("no vhost '{name}'"),
            ));
        };
        let streams = self.unlink_vhost(id).into_iter();
        Ok(MetaReply::Removed(
            streams.map(|stream| (stream.id, stream.shard)).collect(),
        ))
    }

    fn put_user(&mut self, user: &User) -> Applied {
        check_name("user", &user.name)?;
        if !self.users.contains_key(&user.name) {
            check_room("users", self.users.len(), USERS_MAX)?;
        }
        self.users.insert(user.name.clone(), user.clone());
        self.rules_generation += 1;
        Ok(MetaReply::Done)
    }

    fn delete_user(&mut self, name: &str) -> Applied {
        if self.users.remove(name).is_none() {
            return Err(Refusal::new(
                ErrorKind::NotFound,
                format!("no user '{name}'"),
            ));
        }
        self.rules_generation += 1;
        Ok(MetaReply::Done)
    }

    fn put_rule(&mut self, rule: &Rule) -> Applied {
        check_name("rule", &rule.id)?;
        if !self.rules.contains_key(&rule.id) {
            check_room("rules", self.rules.len(), RULES_MAX)?;
        }
        self.rules.insert(rule.id.clone(), rule.clone());
        self.rules_generation += 1;
        Ok(MetaReply::Done)
    }

    fn delete_rule(&mut self, id: &str) -> Applied {
        if self.rules.remove(id).is_none() {
            return Err(Refusal::new(ErrorKind::NotFound, format!("no rule '{id}'")));
        }
        self.rules_generation += 1;
        Ok(MetaReply::Done)
    }

    fn declare_exchange(&mut self, now: UnixMs, vhost: VhostId, spec: &ExchangeSpec) -> Applied {
        refuse_default(&spec.name, "declared")?;
        check_name("exchange", &spec.name)?;
        let vhost_name = self.vhost_name(vhost)?;
        if let Some(known) = self.exchange(vhost, &spec.name) {
            let what = Thing("exchange", &spec.name, &vhost_name);
            let type_of = |kind, delays| match delays {
                true => format!("delayed {}", kind_name(kind)),
                false => kind_name(kind).to_owned(),
            };
            let (asked, has) = (
                type_of(spec.kind, spec.delays),
                type_of(known.kind, known.delays),
            );
            what.compare("type", asked, has)?;
            what.compare("durable", spec.durable, known.durable)?;
            what.compare("auto_delete", spec.auto_delete, known.auto_delete)?;
            what.compare("internal", spec.internal, known.internal)?;
            what.compare_arguments(&spec.arguments, &known.arguments)?;
            return Ok(MetaReply::Exchange {
                id: known.id,
                created: false,
            });
        }
        check_room("exchanges", self.exchanges.len(), EXCHANGES_MAX)?;
        let id = self.add_exchange(now, vhost, spec, false);
        Ok(MetaReply::Exchange { id, created: true })
    }

    fn add_exchange(
        &mut self,
        now: UnixMs,
        vhost: VhostId,
        spec: &ExchangeSpec,
        predeclared: bool,
    ) -> ExchangeId {
        self.last.exchange += 1;
        let id = ExchangeId(self.last.exchange);
        let outlives = spec.durable || predeclared;
        self.link_exchange(Exchange {
            id,
            vhost,
            name: spec.name.clone(),
            kind: spec.kind,
            durable: spec.durable,
            auto_delete: spec.auto_delete,
            internal: spec.internal,
            delays: spec.delays,
            predeclared,
            alternate: spec.alternate.clone(),
            arguments: spec.arguments.clone(),
            incarnation: (!outlives).then_some(self.incarnation),
            created: now,
        });
        id
    }

    fn delete_exchange(&mut self, vhost: VhostId, name: &str, if_unused: bool) -> Applied {
        refuse_default(name, "deleted")?;
        let Some(id) = self.exchange(vhost, name).map(|known| known.id) else {
            return Ok(MetaReply::Done);
        };
        let vhost_name = self.vhost_name(vhost)?;
        let Some(state) = self.exchanges.get(&id) else {
            return Ok(MetaReply::Done);
        };
        if state.exchange.predeclared {
            let text = format!("exchange '{name}' in vhost '{vhost_name}' is part of it and stays");
            return Err(Refusal::new(ErrorKind::AccessRefused, text));
        }
        if if_unused && !state.bindings.is_empty() {
            let text = format!("exchange '{name}' in vhost '{vhost_name}' in use");
            return Err(Refusal::new(ErrorKind::InUse, text));
        }
        self.unlink_exchange(id);
        Ok(MetaReply::Done)
    }

    fn declare_stream(
        &mut self,
        now: UnixMs,
        vhost: VhostId,
        spec: &StreamSpec,
        by: ConnectionId,
        volatile: ShardId,
    ) -> Applied {
        check_name("queue", &spec.name)?;
        let vhost_name = self.vhost_name(vhost)?;
        let what = Thing("queue", &spec.name, &vhost_name);
        let owner = spec.exclusive.then_some(by);
        if let Some(known) = self.stream(vhost, &spec.name) {
            if known.owner != owner {
                return Err(what.locked());
            }
            what.compare("durable", spec.durable, known.durable)?;
            what.compare("auto_delete", spec.auto_delete, known.auto_delete)?;
            what.compare_arguments(&spec.arguments, &known.arguments)?;
            return Ok(MetaReply::Stream {
                id: known.id,
                shard: known.shard,
                created: false,
                active: known.state == StreamState::Active,
            });
        }
        check_room("queues", self.streams.len(), STREAMS_MAX)?;
        let slot = slot(&vhost_name, &spec.name);
        let in_memory = spec.exclusive || !spec.durable;
        let shard = if in_memory {
            if !volatile.is_volatile() {
                let text = format!("shard {volatile} does not keep its streams in memory");
                return Err(Refusal::new(ErrorKind::BadRequest, text));
            }
            volatile
        } else {
            self.placement.shard(slot).ok_or_else(|| {
                let text = "no shards are set to place durable queues on yet";
                Refusal::new(ErrorKind::Unavailable, text)
            })?
        };
        self.last.stream += 1;
        let id = StreamId::of_registry(self.last.stream);
        self.link_stream(Stream {
            id,
            vhost,
            name: spec.name.clone(),
            key: Address(Bytes::copy_from_slice(&spec.key.0)),
            durable: spec.durable,
            owner,
            auto_delete: spec.auto_delete,
            limits: StreamLimits {
                auto_delete: spec.auto_delete,
                ..spec.limits.clone()
            },
            arguments: spec.arguments.clone(),
            slot,
            shard,
            state: StreamState::Creating,
            incarnation: in_memory.then_some(self.incarnation),
            created: now,
        });
        self.capture(id);
        Ok(MetaReply::Stream {
            id,
            shard,
            created: true,
            active: false,
        })
    }

    fn activate_stream(&mut self, id: StreamId) -> Applied {
        let Some(entry) = self.streams.get_mut(&id) else {
            return Err(Refusal::new(
                ErrorKind::NotFound,
                "the queue was deleted meanwhile",
            ));
        };
        if entry.stream.state != StreamState::Active {
            entry.stream.state = StreamState::Active;
            self.generation += 1;
        }
        Ok(MetaReply::Done)
    }

    fn bind(&mut self, change: &BindingChange) -> Applied {
        refuse_default(&change.exchange, "bound to")?;
        let vhost_name = self.vhost_name(change.vhost)?;
        let no = |what, name| {
            let text = format!("no {what} '{name}' in vhost '{vhost_name}'");
            Refusal::new(ErrorKind::NotFound, text)
        };
        let exchange = self
            .exchange(change.vhost, &change.exchange)
            .ok_or_else(|| no("exchange", &change.exchange))?;
        let target = match &change.to {
            BindingEnd::Stream(name) => {
                let stream = self.stream(change.vhost, name);
                let stream = stream.ok_or_else(|| no("queue", name))?;
                if stream.locked_for(change.by) {
                    return Err(Thing("queue", &stream.name, &vhost_name).locked());
                }
                Target::Stream(stream.id)
            }
            BindingEnd::Exchange(name) => {
                refuse_default(name, "bound")?;
                let to = self.exchange(change.vhost, name);
                Target::Exchange(to.ok_or_else(|| no("exchange", name))?.id)
            }
        };
        let filter = key_for(exchange.kind, change);
        if exchange.kind == ExchangeKind::Headers {
            Wanted::new(&change.arguments)?;
        }
        let exchange = exchange.id;
        let known = self.binding_like(exchange, target, &filter, &change.arguments);
        if known.is_none() {
            check_room("bindings", self.bindings.len(), BINDINGS_MAX)?;
            self.last.binding += 1;
            self.link_binding(Binding {
                id: BindingId(self.last.binding),
                exchange,
                target,
                filter: TopicFilter(Bytes::copy_from_slice(&filter.0)),
                arguments: change.arguments.clone(),
            })?;
        }
        Ok(MetaReply::Done)
    }

    fn unbind(&mut self, change: &BindingChange) -> Applied {
        refuse_default(&change.exchange, "unbound from")?;
        let vhost_name = self.vhost_name(change.vhost)?;
        let target = match &change.to {
            BindingEnd::Stream(name) => {
                let Some(stream) = self.stream(change.vhost, name) else {
                    return Ok(MetaReply::Done);
                };
                if stream.locked_for(change.by) {
                    return Err(Thing("queue", &stream.name, &vhost_name).locked());
                }
                Target::Stream(stream.id)
            }
            BindingEnd::Exchange(name) => {
                let Some(to) = self.exchange(change.vhost, name) else {
                    return Ok(MetaReply::Done);
                };
                Target::Exchange(to.id)
            }
        };
        let Some(exchange) = self.exchange(change.vhost, &change.exchange) else {
            return Ok(MetaReply::Done);
        };
        let filter = key_for(exchange.kind, change);
        let known = self.binding_like(exchange.id, target, &filter, &change.arguments);
        if let Some(known) = known {
            self.unlink_binding_and_unused(known);
        }
        Ok(MetaReply::Done)
    }

    fn vhost_name(&self, vhost: VhostId) -> Result<Arc<str>, Refusal> {
        let known = self.vhost_by_id(vhost).map(|vhost| vhost.name.clone());
        known.ok_or_else(|| Refusal::new(ErrorKind::NotFound, "the vhost was deleted meanwhile"))
    }
}

/// The key of a binding as its exchange looks at it.
fn key_for(kind: ExchangeKind, change: &BindingChange) -> TopicFilter {
    match (kind, &change.key) {
        (ExchangeKind::Topic, _) | (_, None) => change.filter.clone(),
        (_, Some(key)) => TopicFilter(key.0.clone()),
    }
}

fn check_name(what: &str, name: &str) -> Result<(), Refusal> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        let text = format!("the name of a {what} has 1 to {NAME_BYTES_MAX} bytes");
        return Err(Refusal::new(ErrorKind::BadRequest, text));
    }
    Ok(())
}

/// Whether one more fits beside `count`.
fn check_room(what: &str, count: usize, max: usize) -> Result<(), Refusal> {
    if count >= max {
        let text = format!("the limit of {max} {what} is reached");
        return Err(Refusal::new(ErrorKind::QuotaExceeded, text));
    }
    Ok(())
}

fn refuse_default(name: &str, done: &str) -> Result<(), Refusal> {
    if name == DEFAULT_EXCHANGE {
        let text = format!("the default exchange cannot be {done}");
        return Err(Refusal::new(ErrorKind::AccessRefused, text));
    }
    Ok(())
}

fn kind_name(kind: ExchangeKind) -> &'static str {
    match kind {
        ExchangeKind::Direct => "direct",
        ExchangeKind::Fanout => "fanout",
        ExchangeKind::Topic => "topic",
        ExchangeKind::Headers => "headers",
    }
}

/// What a sentence is about: its kind, its name and its vhost.
struct Thing<'a>(&'static str, &'a str, &'a str);

impl Thing<'_> {
    fn compare<T: PartialEq + std::fmt::Display>(
        &self,
        argument: &str,
        received: T,
        current: T,
    ) -> Result<(), Refusal> {
        if received == current {
            return Ok(());
        }
        Err(self.differs(argument, &format!("'{received}'"), &format!("'{current}'")))
    }

    fn compare_arguments(&self, received: &Arguments, current: &Arguments) -> Result<(), Refusal> {
        let Some(difference) = received.difference(current) else {
            return Ok(());
        };
        let name = String::from_utf8_lossy(difference.name);
        let (received, current) = (shown(difference.ours), shown(difference.theirs));
        Err(self.differs(&name, &received, &current))
    }

    fn differs(&self, argument: &str, received: &str, current: &str) -> Refusal {
        let Thing(what, name, vhost) = self;
        let text = format!(
            "inequivalent arg '{argument}' for {what} '{name}' in vhost '{vhost}': received \
             {received} but current is {current}"
        );
        Refusal::new(ErrorKind::Inequivalent, text)
    }

    fn locked(&self) -> Refusal {
        let Thing(what, name, vhost) = self;
        let text = format!(
            "cannot obtain exclusive access to locked {what} '{name}' in vhost '{vhost}': it is \
             exclusive to another connection, or was declared with another 'exclusive'"
        );
        Refusal::new(ErrorKind::Locked, text)
    }
}

/// An argument's value for a sentence.
fn shown(value: Option<&Value>) -> String {
    match value {
        None => "none".to_owned(),
        Some(Value::Bool(value)) => format!("'{value}'"),
        Some(Value::Int(value, _)) => format!("'{value}'"),
        Some(Value::UInt(value, _)) => format!("'{value}'"),
        Some(Value::Text(text) | Value::ShortText(text)) => {
            format!("'{}'", String::from_utf8_lossy(text))
        }
        Some(_) => "another value".to_owned(),
    }
}
