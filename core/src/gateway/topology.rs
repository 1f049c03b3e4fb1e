//! What a connection says of exchanges, queues, bindings and consumers.
//!
//! Owns: the pieces of [`Command`](super::Command) that are about these.
//! Next: `session.rs`, the pieces about sessions.

use crate::address::{Address, TopicFilter};
use crate::id::{ConsumerTag, Offset, UnixMs};
use crate::limits::StreamLimits;
use crate::properties::Value;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// An exchange to declare.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeDeclare {
    /// Its name.
    pub name: Arc<str>,
    /// How it routes; ignored when passive. An unknown kind is the gateway's to refuse.
    pub kind: ExchangeKind,
    /// Only check that it is there.
    pub passive: bool,
    /// Outlives the node.
    pub durable: bool,
    /// Goes when its last binding goes.
    pub auto_delete: bool,
    /// Clients may not publish to it.
    pub internal: bool,
    /// What is published to it is kept for as long as the message itself asks, and routed then.
    pub delays: bool,
    /// Takes what no binding of this exchange takes; need not exist.
    pub alternate: Option<Arc<str>>,
    /// As the client gave them; compared at redeclaration.
    pub arguments: Vec<(Bytes, Value)>,
}

/// How an exchange routes. Persisted numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum ExchangeKind {
    /// By equal key.
    Direct = 0,
    /// To every binding.
    Fanout = 1,
    /// By filter.
    Topic = 2,
    /// By headers.
    Headers = 3,
}

/// A queue to declare.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamDeclare {
    /// Its name; the gateway makes one up where a client may leave it out.
    pub name: Arc<str>,
    /// The canonical address by which the default exchange reaches it: its name, converted as this
    /// gateway converts routing keys.
    pub key: Address,
    /// Only check that it is there.
    pub passive: bool,
    /// Outlives the node; else it lives in memory.
    pub durable: bool,
    /// Only this connection may use it; it goes when the connection ends.
    pub exclusive: bool,
    /// Goes when its last consumer goes.
    pub auto_delete: bool,
    /// Made up by the gateway for this connection alone, which need not have a right to it. Only with `exclusive`.
    pub private: bool,
    /// What the arguments ask of core, as the gateway read them; `auto_delete` above counts.
    pub limits: StreamLimits,
    /// As the client gave them; compared at redeclaration. The gateway refuses by name what core does
    /// not do (`BadRequest` / `NotSupported`).
    pub arguments: Vec<(Bytes, Value)>,
}

/// The end of a binding, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindTo {
    /// A queue.
    Stream(Arc<str>),
    /// Another exchange of the vhost.
    Exchange(Arc<str>),
}

/// A binding of an exchange to a queue or to another exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct BindingSpec {
    /// From.
    pub exchange: Arc<str>,
    /// To.
    pub to: BindTo,
    /// The key as an address: what exchanges compare that are no topic exchanges.
    pub key: Address,
    /// The key as a filter, for topic exchanges.
    pub filter: TopicFilter,
    /// To a queue, from the sessions' topic exchange: the last values that match are put into the queue now.
    pub retained: bool,
    /// For headers exchanges; part of the binding's identity everywhere.
    pub arguments: Vec<(Bytes, Value)>,
}

/// A consumer to attach.
#[derive(Clone, Debug, PartialEq)]
pub struct Consume {
    /// What the connection calls it; not in use.
    pub consumer: ConsumerTag,
    /// Queue name.
    pub stream: Arc<str>,
    /// The queue was declared `private` by this connection: no right is asked.
    pub private: bool,
    /// No one beside it.
    pub exclusive: bool,
    /// Settled by being handed out.
    pub presettled: bool,
    /// How many unsettled deliveries it may hold; `u32::MAX` is no limit.
    pub credit: u32,
    /// Higher is served first.
    pub priority: i32,
    /// Not what this same connection published.
    pub no_local: bool,
    /// From where, and which messages, when the queue keeps what was read ([`Mode::Replay`]); absent is from its end
    /// on, all. Asked of another queue it is refused (`BadRequest`).
    ///
    /// [`Mode::Replay`]: crate::limits::Mode::Replay
    pub replay: Option<Box<Replay>>,
}

/// How a queue is read that keeps what was read. Such a reader settles, with a limit of what it may hold unsettled,
/// and that only makes room: nothing leaves, and nothing comes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The first message it gets, if that is kept; else the next one that is.
    pub from: SeekTo,
    /// Only some messages.
    pub only: Option<ValueFilter>,
    /// The right to subscribe to this is asked beside the right to consume.
    pub subscribes: Option<TopicFilter>,
}

/// A place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The first message that is there.
    Start,
    /// The last message that is there.
    Last,
    /// After the last message that is there.
    End,
    /// This offset.
    Offset(Offset),
    /// The first message taken in at this time or later.
    Time(UnixMs),
}

/// Chooses messages by the value of their header [`FILTER_HEADER`](crate::shard::FILTER_HEADER).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueFilter {
    /// One of these values.
    pub values: Vec<Bytes>,
    /// Those without a value too.
    pub unfiltered: bool,
}
