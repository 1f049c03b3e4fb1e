//! What the metadata shard is told and what it answers.
//!
//! Owns: [`MetaCommand`], [`MetaReply`] and the pieces they are made of. Persisted as JSON in records:
//! variants and fields keep their names and meaning, a new field gets a default.
//! Never: what applying one does (`apply.rs`).
//! Next: `apply.rs`, `entry.rs`.

use crate::address::{Address, TopicFilter};
use crate::gateway::ExchangeKind;
use crate::id::{ConnectionId, ExchangeId, ShardId, StreamId, VhostId};
use crate::limits::StreamLimits;
use crate::meta::arguments::Arguments;
use crate::meta::entry::{Rule, User};
use crate::meta::policy::Policy;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A change of metadata. Applied in journal order, the same on every node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetaCommand {
    /// A node's life begins: what lived in memory only in an earlier life (volatile streams, exchanges
    /// that are not durable, their bindings) is gone. Reply `Done`.
    NodeStarted {
        /// Differs from that of every earlier life.
        incarnation: u64,
    },
    /// Make a vhost, or complete an existing one with exchanges it lacks. The default exchange is made
    /// by itself. Reply `Vhost`. `BadRequest`, `QuotaExceeded`.
    CreateVhost {
        /// Its name.
        name: Arc<str>,
        /// Exchanges that are there from the start and cannot be deleted.
        exchanges: Vec<ExchangeSpec>,
        /// Which of them sessions publish to and are bound to; a topic exchange.
        topic_exchange: Arc<str>,
    },
    /// Delete a vhost with all that is in it. Reply `Removed`. `NotFound`.
    DeleteVhost {
        /// Its name.
        name: Arc<str>,
    },
    /// Make or replace a user. Reply `Done`. `BadRequest`, `QuotaExceeded`.
    PutUser(User),
    /// Delete a user. Reply `Done`. `NotFound`.
    DeleteUser {
        /// Its name.
        name: Arc<str>,
    },
    /// Make or replace a rule. Reply `Done`. `BadRequest`, `QuotaExceeded`.
    PutRule(Rule),
    /// Delete a rule. Reply `Done`. `NotFound`.
    DeleteRule {
        /// Its id.
        id: Arc<str>,
    },
    /// Make an exchange; an equivalent one that is there is left as it is. Reply `Exchange`.
    /// `AccessRefused` (default exchange), `Inequivalent`, `BadRequest`, `NotFound` (vhost),
    /// `QuotaExceeded`.
    DeclareExchange {
        /// In.
        vhost: VhostId,
        /// What.
        exchange: ExchangeSpec,
    },
    /// Delete an exchange with its bindings; a missing one is `Done` too. `AccessRefused` (default or
    /// predeclared), `InUse`.
    DeleteExchange {
        /// In.
        vhost: VhostId,
        /// Its name.
        name: Arc<str>,
        /// Only when nothing is bound to it.
        if_unused: bool,
    },
    /// Register a stream as creating; an equivalent one that is there is left as it is. Reply `Stream`.
    /// `Locked`, `Inequivalent`, `BadRequest`, `NotFound` (vhost), `QuotaExceeded`, `Unavailable`
    /// (placement not set).
    DeclareStream {
        /// In.
        vhost: VhostId,
        /// What.
        stream: StreamSpec,
        /// The connection that asks: the owner when the stream is exclusive.
        by: ConnectionId,
        /// Where it goes when it lives in memory: the declaring worker's shard.
        volatile: ShardId,
    },
    /// Its shard has made it: from now on it is routed to. Reply `Done`. `NotFound` when it was deleted
    /// meanwhile.
    ActivateStream {
        /// Which.
        stream: StreamId,
    },
    /// Delete a stream with its bindings; a missing one is `Done` too. The shard is told by the worker.
    DeleteStream {
        /// Which.
        stream: StreamId,
    },
    /// Bind a stream or an exchange to an exchange; the same binding twice is one. Reply `Done`. `AccessRefused`
    /// (default exchange), `NotFound`, `Locked`, `BadRequest`, `QuotaExceeded`.
    Bind(BindingChange),
    /// Undo a binding; a missing one is `Done` too. `AccessRefused` (default exchange), `Locked`.
    Unbind(BindingChange),
    /// Make or replace a policy. Reply `Done`. `BadRequest`, `NotFound` (vhost), `QuotaExceeded`.
    PutPolicy {
        /// In.
        vhost: VhostId,
        /// What.
        policy: Policy,
    },
    /// Delete a policy. Reply `Done`. `NotFound`.
    DeletePolicy {
        /// In.
        vhost: VhostId,
        /// Its name.
        name: Arc<str>,
    },
    /// Say which shard each slot's streams go to, from now on. Reply `Done`. `BadRequest`.
    SetPlacement {
        /// One shard per slot, [`SLOTS`](crate::meta::placement::SLOTS) of them.
        slots: Vec<ShardId>,
    },
}

/// An exchange to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeSpec {
    /// Its name, 1 to 255 bytes.
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
    /// Takes what no binding takes; need not exist.
    #[serde(default)]
    pub alternate: Option<Arc<str>>,
    /// As the client gave them.
    #[serde(default)]
    pub arguments: Arguments,
}

/// A stream to register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSpec {
    /// Its name, 1 to 255 bytes.
    pub name: Arc<str>,
    /// The address by which the default exchange reaches it: its name, spelled as an address the way
    /// publishers spell it.
    pub key: Address,
    /// Outlives the node.
    pub durable: bool,
    /// Only the declaring connection may use it. Such a stream always lives in memory, since its owner
    /// cannot outlive the node either.
    pub exclusive: bool,
    /// Goes when its last consumer goes.
    pub auto_delete: bool,
    /// What the arguments ask.
    #[serde(default)]
    pub limits: StreamLimits,
    /// As the client gave them.
    #[serde(default)]
    pub arguments: Arguments,
}

/// A binding to make or to undo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingChange {
    /// In.
    pub vhost: VhostId,
    /// From, by name.
    pub exchange: Arc<str>,
    /// To, by name; stored as a field `stream` or `to_exchange`.
    #[serde(flatten)]
    pub to: BindingEnd,
    /// The key as a filter: what a topic exchange looks at.
    pub filter: TopicFilter,
    /// The key as an address: what the others compare. Absent in the first form of this command: as the filter is
    /// written.
    #[serde(default)]
    pub key: Option<Address>,
    /// Wanted headers of a headers exchange; part of the binding's identity everywhere.
    #[serde(default)]
    pub arguments: Arguments,
    /// The connection that asks: another one's exclusive stream is locked.
    pub by: ConnectionId,
}

/// Where a binding shall lead, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BindingEnd {
    /// To a stream.
    #[serde(rename = "stream")]
    Stream(Arc<str>),
    /// On to another exchange.
    #[serde(rename = "to_exchange")]
    Exchange(Arc<str>),
}

/// What an applied command answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetaReply {
    /// Nothing more to say.
    Done,
    /// A vhost is there.
    Vhost(VhostId),
    /// An exchange is there.
    Exchange {
        /// Its id.
        id: ExchangeId,
        /// Made by this command.
        created: bool,
    },
    /// A stream is registered.
    Stream {
        /// Its id.
        id: StreamId,
        /// Where it lives.
        shard: ShardId,
        /// Made by this command.
        created: bool,
        /// Its shard has made it; while not, whoever asks has the shard make it (again) and then sends
        /// [`MetaCommand::ActivateStream`].
        active: bool,
    },
    /// Streams that went with what was deleted; their shards are still to be told.
    Removed(Vec<(StreamId, ShardId)>),
}
