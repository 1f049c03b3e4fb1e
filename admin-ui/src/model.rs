//! What travels over the API: one struct per JSON object of `API.md`.
//!
//! Owns names and shapes only; never behaviour. Totals count since the node started and only grow;
//! `*_ms` are milliseconds since 1970, `*_bytes` are bytes. Read next: `backend.rs`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

mod people;
mod policy;
mod retained;

pub use people::*;
pub use policy::*;
pub use retained::*;

/// What the node says about itself to whoever has signed in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The node's name.
    pub node: String,
    /// The program's version.
    pub version: String,
    /// The vhosts that exist.
    pub vhosts: Vec<String>,
}

/// The node and its numbers at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// The node itself.
    pub node: Node,
    /// What is there now.
    pub gauges: Gauges,
    /// What happened since the start.
    pub totals: Totals,
    /// Connections by protocol.
    pub protocols: Vec<ProtocolCount>,
    /// Where the node listens.
    pub listeners: Vec<Listener>,
    /// What is wrong now; empty when all is well.
    pub alarms: Vec<Alarm>,
}

/// One node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// When it started.
    pub started_at_ms: u64,
    /// Resident memory.
    pub memory_bytes: u64,
    /// What its data folder takes.
    pub disk_used_bytes: u64,
    /// What is free on that file system.
    pub disk_free_bytes: u64,
    /// The object store for old segments, when there is one.
    #[serde(default)]
    pub tier_url: Option<String>,
}

/// Declares a struct of plain numbers together with the list of its fields, which the metrics walk.
macro_rules! numbers {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])* $field:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name { $($(#[doc = $doc])* pub $field: u64),* }

        impl $name {
            /// Name, description and value of every field.
            #[must_use]
            pub fn fields(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($field), concat!($($doc),*).trim_ascii(), self.$field)),*]
            }
        }
    };
}

numbers! {
    /// How much of everything there is now.
    Gauges {
        /// Open connections
        connections,
        /// Open channels
        channels,
        /// Sessions, live or waiting for their client
        sessions,
        /// Queues
        queues,
        /// Streams that keep their messages by retention
        streams,
        /// Attached consumers
        consumers,
        /// Exchanges
        exchanges,
        /// Bindings
        bindings,
        /// Users
        users,
        /// Messages that wait for delivery
        ready,
        /// Messages delivered and not acknowledged
        unacknowledged,
        /// Bytes of all messages held
        stored_bytes,
        /// Retained messages: addresses that have a last value
        retained,
        /// Messages that wait until they are due
        delayed,
        /// Dead letters that have to arrive and that no destination has taken yet
        dead_letters_waiting,
        /// Milliseconds that the last checkpoint of a data shard took, the slowest of them
        store_checkpoint_ms,
        /// Bytes of the runs that the checkpoints of data shards are made of
        store_run_bytes,
        /// Blocks of 4 KiB that the index files of data shards have room for
        store_index_blocks,
        /// Bytes of memory for entries that lie in the index files too
        store_index_cached_bytes,
        /// Chunks of up to 255 entries that could not be read from the index files since the start
        store_index_damaged,
        /// Segments of data shards on the disk
        store_local_segments,
        /// Bytes of their files
        store_local_bytes,
        /// Segments of data shards in the object store
        store_tier_segments,
        /// Bytes of their objects
        store_tier_bytes,
        /// Segments that are to move to the object store and have not yet
        store_tier_waiting,
        /// Objects that are to be removed and are not yet
        store_tier_doomed,
        /// Bytes in the memory for what was read back from the object store
        store_tier_cache_bytes,
    }
}

numbers! {
    /// What happened since the node started.
    Totals {
        /// Messages received from publishers
        received,
        /// Messages handed to consumers
        delivered,
        /// Deliveries acknowledged by consumers
        acknowledged,
        /// Messages that no binding wanted
        unroutable,
        /// Messages dropped by a limit, an expiry, or a rule on what a reader may receive
        dropped,
        /// Actions refused by a rule
        refused,
        /// Bytes read from clients
        bytes_in,
        /// Bytes written to clients
        bytes_out,
        /// Connections that were opened
        connections_opened,
        /// Logins that failed
        logins_failed,
        /// Openings of TLS or WebSocket that failed
        handshakes_failed,
        /// Syncs of the journal
        syncs,
        /// Bytes of the frames that were compressed or encrypted, before that
        store_packed_from_bytes,
        /// Bytes that those frames took in the journal
        store_packed_to_bytes,
        /// Checkpoints of data shards written
        store_checkpoints,
        /// Checkpoints of data shards that could not be written; what they held is in the next one
        store_checkpoints_failed,
        /// Bytes written for checkpoints of data shards, folding of their runs included
        store_checkpoint_bytes,
        /// Blocks read back from the index files of data shards
        store_blocks_read,
        /// Blocks written to the index files of data shards
        store_blocks_written,
        /// Chunks of up to 255 entries that left memory for want of room and are read back when asked for
        store_index_evictions,
        /// Bytes of the journal read while they were still in memory
        store_read_memory_bytes,
        /// Bytes of the journal read from what was read ahead of those who walk through it
        store_read_ahead_bytes,
        /// Bytes of the journal read from files
        store_read_file_bytes,
        /// Messages that could not be read from the journal, each time that it was tried
        store_unreadable,
        /// Segments sent to the object store and verified
        store_tier_uploads,
        /// Bytes of these
        store_tier_uploaded_bytes,
        /// Objects removed from the object store
        store_tier_removals,
        /// Requests to the object store that failed
        store_tier_failures,
        /// Ranges read back from the object store, each by one request
        store_tier_range_reads,
        /// Bytes of these
        store_tier_range_bytes,
        /// Reads of what lies in the object store that were answered from memory
        store_tier_cache_hits,
        /// Ranges that had to be asked for because they were not in memory
        store_tier_cache_misses,
    }
}

/// Connections of one protocol.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProtocolCount {
    /// Short name that the gateway registered.
    pub protocol: String,
    /// Open connections.
    pub connections: u64,
}

/// A place where the node accepts connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Listener {
    /// Short name of the protocol.
    pub protocol: String,
    /// What carries it: `tcp`, `tls`, `ws` or `wss`.
    pub transport: String,
    /// Address and port.
    pub address: String,
}

/// Something wrong that lasts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Alarm {
    /// Short name, for example `disk`.
    pub name: String,
    /// Since when.
    pub since_ms: u64,
    /// What is wrong and what to do, in one sentence each.
    pub text: String,
}

/// A live connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// Names it in [`crate::backend::Backend::close_connection`].
    pub id: String,
    /// Short name of its gateway, as rules name it; the version stands in `details`.
    pub protocol: String,
    /// What carries it: `tcp`, `tls`, `ws` or `wss`.
    pub transport: String,
    /// Who it is; empty for an anonymous one.
    pub user: String,
    /// The client's own name for itself; may be empty.
    pub client_id: String,
    /// Address and port of the other side.
    pub peer: String,
    /// The vhost it is in.
    pub vhost: String,
    /// When it was accepted.
    pub connected_at_ms: u64,
    /// `opening`, `running`, `blocked` or `closing`.
    pub state: String,
    /// Open channels; none for a protocol without channels.
    pub channels: Option<u64>,
    /// Its session; none for a protocol without sessions.
    pub session: Option<SessionRow>,
    /// Attached consumers or subscriptions.
    pub consumers: u64,
    /// Deliveries not acknowledged yet.
    pub unacknowledged: u64,
    /// Messages received from it.
    pub received: u64,
    /// Messages delivered to it.
    pub delivered: u64,
    /// Bytes read from it.
    pub bytes_in: u64,
    /// Bytes written to it.
    pub bytes_out: u64,
    /// Rows that the gateway brings: name and text.
    pub details: BTreeMap<String, String>,
}

/// The session a connection is attached to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionRow {
    /// Its name.
    pub name: String,
    /// Whether it outlives the connection.
    pub durable: bool,
    /// How many filters it holds.
    pub subscriptions: u64,
}

/// An exchange.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Exchange {
    /// Its vhost.
    pub vhost: String,
    /// Its name; empty for the default exchange.
    pub name: String,
    /// `direct`, `fanout`, `topic` or `headers`.
    pub kind: String,
    /// Whether it survives a restart.
    pub durable: bool,
    /// Whether it goes with its last binding.
    pub auto_delete: bool,
    /// Whether clients may not publish to it.
    pub internal: bool,
    /// Where messages go that no binding wants.
    pub alternate: Option<String>,
    /// Whether it keeps messages for as long as they ask (`x-delay`) before it routes them.
    pub delays: bool,
    /// Messages published to it that wait until they are due; ignored in a request.
    pub delayed: u64,
    /// Messages published to it; ignored in a request.
    pub published: u64,
    /// Of those, the ones that found no destination; ignored in a request.
    pub unrouted: u64,
    /// Whether it always exists and cannot be deleted; ignored in a request.
    pub predeclared: bool,
}

/// A binding.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Binding {
    /// Its vhost.
    pub vhost: String,
    /// The exchange it takes messages from.
    pub exchange: String,
    /// `queue` (a queue or stream) or `exchange`; in answers also `session` or `group`, whose clients bind
    /// them.
    pub destination_kind: String,
    /// Where it sends them.
    pub destination: String,
    /// Routing key or pattern, as the exchange's kind reads it.
    pub pattern: String,
    /// Further arguments, for headers exchanges.
    pub arguments: BTreeMap<String, Value>,
}

/// A stream: a queue, a stream proper, a client's session or a group of shared subscriptions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Its vhost.
    pub vhost: String,
    /// Its name.
    pub name: String,
    /// `queue`, `stream`, `session` or `group`.
    pub kind: String,
    /// Whether it survives a restart.
    pub durable: bool,
    /// Whether only one connection may use it.
    pub exclusive: bool,
    /// Whether it goes with its last consumer.
    pub auto_delete: bool,
    /// `running`, `creating`, `deleting` or what keeps it from running.
    pub state: String,
    /// User or client it belongs to.
    pub owner: Option<String>,
    /// Messages that wait for delivery.
    pub ready: u64,
    /// Messages delivered and not acknowledged.
    pub unacknowledged: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Attached consumers.
    pub consumers: u64,
    /// Messages that came in.
    pub published: u64,
    /// Deliveries made.
    pub delivered: u64,
    /// Deliveries acknowledged.
    pub acknowledged: u64,
    /// Messages dropped: expired, over a limit, or not to be received by their only reader.
    pub dropped: u64,
    /// Of those, the ones sent on to a dead letter exchange.
    pub dead_lettered: u64,
    /// Publishes refused because it was full.
    pub rejected: u64,
    /// Dead letters that have to arrive and that no destination has taken yet.
    pub dead_letters_waiting: u64,
    /// For a session: whether its client is connected.
    pub live: Option<bool>,
    /// The arguments it was declared with.
    pub arguments: BTreeMap<String, Value>,
    /// How its readers share it: `exclusive`, `failover`, `shared`, `key_shared` or, for a stream, `replay`.
    pub mode: String,
    /// For a stream that keeps anything: what.
    pub kept: Option<Kept>,
    /// What bounds it, by declaration and policies together; without `mode`.
    pub limits: PolicySettings,
    /// Policies that count for it, the highest first.
    pub policies: Vec<String>,
    /// Where one consumer is served at a time: the connection of the one that is.
    pub active: Option<String>,
    /// For a group: its name.
    pub group: Option<String>,
    /// For a group: what it is bound to, `/` between levels.
    pub filter: Option<String>,
    /// For a group: its members.
    pub members: Vec<Member>,
    /// Its readers.
    pub subscriptions: Vec<Subscription>,
}

/// What a stream keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Offset of the oldest message.
    pub first_offset: u64,
    /// When that came in.
    pub first_at_ms: u64,
    /// Offset of the newest.
    pub last_offset: u64,
    /// When that came in.
    pub last_at_ms: u64,
}

/// A member of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The client.
    pub client_id: String,
    /// Whether it stays a member when its connection ends.
    pub durable: bool,
}

/// A place in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// The oldest message there is.
    Start,
    /// Behind the newest.
    End,
    /// A place in the stream.
    Offset(u64),
    /// The first message that came in at this time or later.
    TimeMs(u64),
}

/// A named reader of a stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Subscription {
    /// Its name; empty for a queue's own.
    pub name: String,
    /// `exclusive`, `failover`, `shared` or `key_shared`.
    pub mode: String,
    /// Messages that wait for it.
    pub ready: u64,
    /// Messages delivered and not acknowledged.
    pub unacknowledged: u64,
    /// Attached consumers.
    pub consumers: u64,
}

/// How a stream is to be declared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclareStream {
    /// `queue` or `stream`.
    pub kind: String,
    /// Whether it survives a restart.
    pub durable: bool,
    /// Whether it goes with its last consumer.
    #[serde(default)]
    pub auto_delete: bool,
    /// Further arguments.
    #[serde(default)]
    pub arguments: BTreeMap<String, Value>,
    /// For a stream: topics whose messages it keeps, as filters with `/` between levels.
    #[serde(default)]
    pub capture: Vec<String>,
}

/// A message as it lies in a stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PeekedMessage {
    /// Its place in the stream.
    pub offset: u64,
    /// Its address, `/` between levels.
    pub address: String,
    /// The exchange it came through.
    pub exchange: String,
    /// When it was accepted.
    pub published_at_ms: u64,
    /// Whether its publisher asked for storage.
    pub durable: bool,
    /// Whether it is the last value of its address.
    pub retain: bool,
    /// How often it was delivered already.
    pub attempts: u32,
    /// Media type of the body.
    pub content_type: Option<String>,
    /// Properties and headers as text or JSON.
    pub headers: BTreeMap<String, Value>,
    /// The body, or its beginning.
    pub body: String,
    /// How `body` is written.
    pub body_encoding: BodyEncoding,
    /// Length of the whole body.
    pub body_bytes: u64,
    /// Whether `body` is only the beginning.
    pub cut: bool,
}

/// How a body stands in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BodyEncoding {
    /// As text.
    #[default]
    Utf8,
    /// As base64 with padding.
    Base64,
}

/// A message to publish.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    /// The vhost.
    pub vhost: String,
    /// The exchange; empty for the default one.
    pub exchange: String,
    /// Routing key as its exchange reads it.
    pub address: String,
    /// The body.
    pub body: String,
    /// How `body` is written.
    #[serde(default)]
    pub body_encoding: BodyEncoding,
    /// Whether it is to be stored.
    #[serde(default)]
    pub durable: bool,
    /// Whether it becomes the last value of its address.
    #[serde(default)]
    pub retain: bool,
    /// Media type of the body.
    #[serde(default)]
    pub content_type: Option<String>,
    /// Headers.
    #[serde(default)]
    pub headers: BTreeMap<String, Value>,
    /// Milliseconds to keep it before it is routed.
    #[serde(default)]
    pub delay_ms: u64,
}

/// Which messages that wait to show.
#[derive(Debug, Clone, Copy)]
pub struct DelayedQuery {
    /// How many at most.
    pub count: usize,
    /// How much of each body, in bytes.
    pub body_limit_bytes: usize,
}

/// A message that waits until it is due.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DelayedMessage {
    /// When it is due.
    pub due_at_ms: u64,
    /// The message; its offset is that among those of its exchange.
    #[serde(flatten)]
    pub message: PeekedMessage,
}
