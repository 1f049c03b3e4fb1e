//! Exchanges and bindings for the API.
//!
//! Owns: their listing and translation.
//! Never: changes them but by commands under the rules.

use std::sync::Arc;

use anabranch_admin::backend::{BackendError, Identity, WhichBindings};
use anabranch_admin::model::{Binding, Exchange};
use anabranch_core::address::{AddressError, TopicFilter};
use anabranch_core::gateway::{BindTo, BindingSpec, Command, ExchangeDeclare, ExchangeKind};
use anabranch_core::meta::Target;
use anabranch_core::properties::Value as Neutral;
use anabranch_driver::Call;
use bytes::Bytes;

use super::value::{table_from_json, table_to_json};
use super::{Done, NodeBackend};
use crate::gateways;

const KINDS: [(&str, ExchangeKind); 4] = [
    ("direct", ExchangeKind::Direct),
    ("fanout", ExchangeKind::Fanout),
    ("topic", ExchangeKind::Topic),
    ("headers", ExchangeKind::Headers),
];

/// Bindings of sessions and groups in one list: there can be millions, and nobody reads that many.
const CLIENT_BINDINGS_MAX: usize = 1000;

fn kind_name(kind: ExchangeKind) -> &'static str {
    KINDS
        .iter()
        .find(|(_, known)| *known == kind)
        .map_or("", |(name, _)| name)
}

impl NodeBackend {
    pub(super) async fn list_exchanges(&self, vhost: Option<&str>) -> Vec<Exchange> {
        let delayed = self.delayed_counts().await;
        let vhosts = self.vhosts(vhost);
        let meta = self.parts.fabric.meta();
        let mut list = Vec::new();
        for (id, name) in vhosts {
            list.extend(meta.exchanges(id).map(|exchange| Exchange {
                vhost: name.to_string(),
                name: exchange.name.to_string(),
                kind: kind_name(exchange.kind).to_owned(),
                durable: exchange.durable,
                auto_delete: exchange.auto_delete,
                internal: exchange.internal,
                alternate: exchange.alternate.as_deref().map(str::to_owned),
                delays: exchange.delays,
                delayed: delayed.get(&exchange.id).copied().unwrap_or(0),
                predeclared: exchange.predeclared || exchange.name.is_empty(),
                ..Exchange::default()
            }));
        }
        list.sort_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
        list
    }

    pub(super) async fn add_exchange(&self, who: &Identity, exchange: Exchange) -> Done<()> {
        let kind = KINDS.iter().find(|(name, _)| *name == exchange.kind);
        let Some((_, kind)) = kind else {
            let why = format!(
                "kind must be direct, fanout, topic or headers, not {}",
                exchange.kind
            );
            return Err(BackendError::Invalid(why));
        };
        let alternate = exchange.alternate.filter(|name| !name.is_empty());
        if exchange.name.starts_with("amq.") {
            return Err(BackendError::Invalid(
                "names that begin with amq. are reserved".to_owned(),
            ));
        }
        // Where applications name it, so that it is the same exchange to them.
        let named = |name: &'static str, value: &str| {
            let value = Neutral::Text(Bytes::copy_from_slice(value.as_bytes()));
            (Bytes::from_static(name.as_bytes()), value)
        };
        let alternate_argument = alternate
            .as_ref()
            .map(|name| named(gateways::ALTERNATE_ARGUMENT, name));
        let delayed_argument = exchange
            .delays
            .then(|| named(gateways::DELAYED_ARGUMENT, kind_name(*kind)));
        let declare = ExchangeDeclare {
            name: Arc::from(exchange.name),
            kind: *kind,
            passive: false,
            durable: exchange.durable,
            auto_delete: exchange.auto_delete,
            internal: exchange.internal,
            delays: exchange.delays,
            alternate: alternate.map(Arc::from),
            arguments: alternate_argument
                .into_iter()
                .chain(delayed_argument)
                .collect(),
        };
        let token = Call::TOKEN;
        self.ask(
            who,
            &exchange.vhost,
            Command::DeclareExchange {
                token,
                declare: Box::new(declare),
            },
        )
        .await?;
        Ok(())
    }

    pub(super) async fn drop_exchange(
        &self,
        who: &Identity,
        vhost: &str,
        name: &str,
        if_unused: bool,
    ) -> Done<()> {
        self.kind_of(vhost, name)?;
        let command = Command::DeleteExchange {
            token: Call::TOKEN,
            name: Arc::from(name),
            if_unused,
        };
        self.ask(who, vhost, command).await?;
        Ok(())
    }

    fn kind_of(&self, vhost: &str, exchange: &str) -> Done<ExchangeKind> {
        let id = self.vhost(vhost)?;
        let meta = self.parts.fabric.meta();
        let found = meta.exchange(id, exchange).map(|found| found.kind);
        found.ok_or_else(|| {
            BackendError::NotFound(format!(
                "there is no exchange {exchange:?} in vhost {vhost:?}"
            ))
        })
    }

    pub(super) async fn list_bindings(&self, which: WhichBindings<'_>) -> Vec<Binding> {
        let mut list = self.registered_bindings(which);
        list.extend(self.client_bindings(which).await);
        list.sort_by(|a, b| {
            let key = |binding: &Binding| {
                let Binding {
                    vhost,
                    exchange,
                    destination,
                    pattern,
                    ..
                } = binding;
                (
                    vhost.clone(),
                    exchange.clone(),
                    destination.clone(),
                    pattern.clone(),
                )
            };
            key(a).cmp(&key(b))
        });
        list
    }

    /// Those of queues and exchanges.
    fn registered_bindings(&self, which: WhichBindings<'_>) -> Vec<Binding> {
        let vhosts = self.vhosts(which.vhost);
        let meta = self.parts.fabric.meta();
        let mut list = Vec::new();
        for (id, name) in vhosts {
            for binding in meta.bindings(id) {
                let Some(exchange) = meta.exchange_by_id(binding.exchange) else {
                    continue;
                };
                let end = match binding.target {
                    Target::Stream(id) => meta
                        .stream_by_id(id)
                        .map(|stream| ("queue", stream.name.to_string())),
                    Target::Exchange(id) => meta
                        .exchange_by_id(id)
                        .map(|to| ("exchange", to.name.to_string())),
                };
                let Some((destination_kind, destination)) = end else {
                    continue;
                };
                if !which.fits(&name, &exchange.name, &destination) {
                    continue;
                }
                list.push(Binding {
                    vhost: name.to_string(),
                    exchange: exchange.name.to_string(),
                    destination_kind: destination_kind.to_owned(),
                    destination,
                    pattern: gateways::filter_pattern(exchange.kind, &binding.filter),
                    arguments: table_to_json(binding.arguments.as_slice()),
                });
            }
        }
        list
    }

    /// Those of sessions and groups, which their clients make: all of the exchange that devices use.
    async fn client_bindings(&self, which: WhichBindings<'_>) -> Vec<Binding> {
        let exchange = gateways::TOPIC_EXCHANGE;
        let mut list = Vec::new();
        if which.exchange.is_some_and(|wanted| wanted != exchange) {
            return list;
        }
        let vhosts = self.vhosts(which.vhost);
        let row = |vhost: &str, kind: &str, destination: String, filter: &TopicFilter| Binding {
            vhost: vhost.to_owned(),
            exchange: exchange.to_owned(),
            destination_kind: kind.to_owned(),
            destination,
            pattern: gateways::filter_pattern(ExchangeKind::Topic, filter),
            ..Binding::default()
        };
        let named = |id| vhosts.iter().find(|(known, _)| *known == id);
        for (_, stat) in self.stats().await {
            let (Some(client), Some((_, vhost))) = (&stat.session, named(stat.vhost)) else {
                continue;
            };
            if !which.fits(vhost, exchange, client) {
                continue;
            }
            let filters = stat.filters.iter();
            list.extend(filters.map(|of| row(vhost, "session", client.to_string(), &of.filter)));
            if list.len() >= CLIENT_BINDINGS_MAX {
                list.truncate(CLIENT_BINDINGS_MAX);
                return list;
            }
        }
        for (_, of) in self.groups().await {
            let (Some((group, filter)), Some((_, vhost))) = (&of.stat.group, named(of.stat.vhost))
            else {
                continue;
            };
            let name = gateways::group_name(group, filter);
            if list.len() < CLIENT_BINDINGS_MAX && which.fits(vhost, exchange, &name) {
                list.push(row(vhost, "group", name, filter));
            }
        }
        list
    }

    /// Makes a binding, or undoes it.
    pub(super) async fn change_binding(
        &self,
        who: &Identity,
        binding: Binding,
        make: bool,
    ) -> Done<()> {
        let to = Arc::from(binding.destination);
        let to = match &*binding.destination_kind {
            "queue" => BindTo::Stream(to),
            "exchange" => BindTo::Exchange(to),
            other => {
                let why = format!("destination_kind must be queue or exchange, not {other}");
                return Err(BackendError::Invalid(why));
            }
        };
        let kind = self.kind_of(&binding.vhost, &binding.exchange)?;
        let invalid = |error: AddressError| BackendError::Invalid(format!("pattern: {error}"));
        let filter = gateways::pattern_filter(kind, &binding.pattern).map_err(invalid)?;
        let (key, _) = gateways::key_address(&binding.pattern).map_err(invalid)?;
        let mut arguments = binding.arguments;
        let retained = match arguments.remove(gateways::RETAINED_ARGUMENT) {
            None => false,
            Some(serde_json::Value::Bool(wanted)) => wanted,
            Some(_) => {
                let why = format!("{} must be true or false", gateways::RETAINED_ARGUMENT);
                return Err(BackendError::Invalid(why));
            }
        };
        let spec = BindingSpec {
            exchange: Arc::from(binding.exchange),
            to,
            key,
            filter,
            retained,
            arguments: table_from_json(&arguments),
        };
        let token = Call::TOKEN;
        let command = if make {
            Command::Bind {
                token,
                binding: Box::new(spec),
            }
        } else {
            Command::Unbind {
                token,
                binding: Box::new(spec),
            }
        };
        self.ask(who, &binding.vhost, command).await?;
        Ok(())
    }
}
