//! What metadata holds: vhosts, users, rules, exchanges, streams, bindings.
//!
//! Owns: the entries as they are listed and stored. Persisted as JSON in checkpoints: fields keep their
//! names and meaning, a new field gets a default.
//! Never: the indexes over them (`meta.rs`, `exchange.rs`).
//! Next: `apply.rs`, which changes them.

use crate::address::{Address, TopicFilter};
use crate::gateway::ExchangeKind;
use crate::id::{ConnectionId, ExchangeId, ShardId, StreamId, UnixMs, VhostId};
use crate::limits::StreamLimits;
use crate::meta::arguments::Arguments;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vhost {
    /// Its id.
    pub id: VhostId,
    /// Its name.
    pub name: Arc<str>,
    /// The topic exchange that sessions publish to and are bound to.
    pub topic_exchange: ExchangeId,
}

/// Someone who may log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Its name, 1 to 255 bytes.
    pub name: Arc<str>,
    /// Absent: cannot log in by password.
    #[serde(default)]
    pub password: Option<PasswordHash>,
    /// Roles that rules may name.
    #[serde(default)]
    pub roles: Vec<Arc<str>>,
    /// Labels for the console; no meaning here.
    #[serde(default)]
    pub tags: Vec<Arc<str>>,
}

/// A hashed password as a PHC string. Never shown when debugging or logging.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PasswordHash(pub Arc<str>);

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

/// A rule of access; what it says is `auth/`'s business.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Unique, 1 to 255 bytes.
    pub id: Arc<str>,
    /// Place in the list; equal ones are ordered by id.
    #[serde(default)]
    pub order: i64,
    /// The rule itself.
    pub body: serde_json::Value,
}

/// A point that messages are published to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Its id.
    pub id: ExchangeId,
    /// In.
    pub vhost: VhostId,
    /// Its name; empty for the default exchange.
    pub name: Arc<str>,
    /// How it routes.
    pub kind: ExchangeKind,
    /// Outlives the node.
    pub durable: bool,
    /// Goes when its last binding goes.
    pub auto_delete: bool,
    /// Clients may not publish to it.
    pub internal: bool,
    /// What is published to it waits as the message asks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delays: bool,
    /// Came with its vhost: cannot be deleted.
    pub predeclared: bool,
    /// Takes what no binding takes; need not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternate: Option<Arc<str>>,
    /// As the client gave them.
    #[serde(default)]
    pub arguments: Arguments,
    /// The life of the node that it ends with; absent when it outlives the node.
    #[serde(default)]
    pub incarnation: Option<u64>,
    /// When it was made.
    pub created: UnixMs,
}

/// A registered stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Its id.
    pub id: StreamId,
    /// In.
    pub vhost: VhostId,
    /// Its name.
    pub name: Arc<str>,
    /// The address by which the default exchange reaches it.
    pub key: Address,
    /// Outlives the node, as declared.
    pub durable: bool,
    /// The only connection that may use it; absent when any may.
    #[serde(default)]
    pub owner: Option<ConnectionId>,
    /// Goes when its last consumer goes.
    pub auto_delete: bool,
    /// What its declaration asks; policies add to it ([`Meta::effective_limits`](super::Meta::effective_limits)).
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: StreamLimits,
    /// As the client gave them.
    #[serde(default)]
    pub arguments: Arguments,
    /// Which slot of the placement it falls into.
    pub slot: u16,
    /// Where it lives.
    pub shard: ShardId,
    /// Whether its shard has made it.
    pub state: StreamState,
    /// The life of the node that it ends with; absent when it outlives the node.
    #[serde(default)]
    pub incarnation: Option<u64>,
    /// When it was declared.
    pub created: UnixMs,
}

impl Stream {
    /// Whether it is another connection's alone.
    pub fn locked_for(&self, connection: ConnectionId) -> bool {
        self.owner.is_some_and(|owner| owner != connection)
    }
}

/// How far a stream's making has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamState {
    /// Registered; not routed to yet.
    Creating,
    /// Its shard has it.
    Active,
}

/// Names a binding; unique, never reused. Persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BindingId(pub u64);

fn is_default(limits: &StreamLimits) -> bool {
    *limits == StreamLimits::default()
}

/// Where a binding leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// To a stream: by the field `stream`, as long as there are bindings.
    #[serde(rename = "stream")]
    Stream(StreamId),
    /// On to another exchange.
    #[serde(rename = "to_exchange")]
    Exchange(ExchangeId),
}

/// A way from an exchange to a stream or to another exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Its id.
    pub id: BindingId,
    /// From.
    pub exchange: ExchangeId,
    /// To; stored as a field `stream` or `to_exchange`.
    #[serde(flatten)]
    pub target: Target,
    /// The key: a filter when the exchange is a topic exchange, else an address, byte for byte.
    pub filter: TopicFilter,
    /// Wanted headers of a headers exchange; part of its identity everywhere.
    #[serde(default)]
    pub arguments: Arguments,
}
