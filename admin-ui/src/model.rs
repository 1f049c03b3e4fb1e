//! What travels over the API: one struct per JSON object of `API.md`.
//!
//! Owns names and shapes only; never behaviour. Totals count since the node started and only grow;
//! `*_ms` are milliseconds since 1970, `*_bytes` are bytes. Read next: `backend.rs`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
        /// Publishes confirmed to their publishers
        confirmed,
        /// Deliveries that were not the first try
        redelivered,
        /// Messages dropped by a limit, an expiry or for want of a destination
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
        /// Syncs of the journal
        syncs,
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
    /// Short name of its protocol.
    pub protocol: String,
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
    /// `queue` (a queue, stream or session) or `exchange`.
    pub destination_kind: String,
    /// Where it sends them.
    pub destination: String,
    /// Routing key or pattern, as the exchange's kind reads it.
    pub pattern: String,
    /// Further arguments, for headers exchanges.
    pub arguments: BTreeMap<String, Value>,
}

/// A stream: a queue, a stream proper or a client's session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Its vhost.
    pub vhost: String,
    /// Its name.
    pub name: String,
    /// `queue`, `stream` or `session`.
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
    /// Offset of the oldest message.
    pub first_offset: u64,
    /// Offset that the next message gets.
    pub next_offset: u64,
    /// Messages that came in.
    pub published: u64,
    /// Deliveries made.
    pub delivered: u64,
    /// Deliveries acknowledged.
    pub acknowledged: u64,
    /// Deliveries that were not the first try.
    pub redelivered: u64,
    /// The arguments it was declared with.
    pub arguments: BTreeMap<String, Value>,
    /// Its readers.
    pub subscriptions: Vec<Subscription>,
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
}

/// A user, never with a password.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct User {
    /// The name.
    pub name: String,
    /// Roles: console roles and others that rules speak of.
    pub roles: Vec<String>,
    /// Groups that rules speak of.
    pub groups: Vec<String>,
    /// Whether it comes from the configuration and cannot be changed here.
    pub protected: bool,
}

/// A user to create.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// The name, 1 to 128 bytes.
    pub name: String,
    /// The first password.
    pub password: String,
    /// Roles.
    #[serde(default)]
    pub roles: Vec<String>,
    /// Groups.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// A change to a user; what is absent stays.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserChange {
    /// The new password.
    #[serde(default)]
    pub password: Option<String>,
    /// All roles from now on.
    #[serde(default)]
    pub roles: Option<Vec<String>>,
    /// All groups from now on.
    #[serde(default)]
    pub groups: Option<Vec<String>>,
}

/// A rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name in verdicts; ignored in a request, where the path has it.
    #[serde(default)]
    pub id: String,
    /// What it is for, in the words of whoever wrote it.
    #[serde(default)]
    pub comment: String,
    /// Allow or deny.
    pub effect: Effect,
    /// Higher is asked first.
    #[serde(default)]
    pub priority: i32,
    /// Whom it is about; any one is enough.
    pub subjects: Vec<Subject>,
    /// What it is about; any one is enough. `*` is all, `admin.*` all of the console's.
    pub actions: Vec<String>,
    /// On what.
    pub resource: Resource,
    /// When else.
    #[serde(default)]
    pub conditions: Conditions,
    /// Where it comes from; ignored in a request.
    #[serde(default)]
    pub origin: RuleOrigin,
}

/// What a rule does when it matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// Lets it happen.
    Allow,
    /// Refuses it.
    #[default]
    Deny,
}

/// Whom a rule is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// `user`, `role`, `group`, `client_id`, `cidr`, `certificate`, `protocol`, `anonymous`, `everyone`.
    pub kind: String,
    /// Which one; empty for the last two kinds.
    #[serde(default)]
    pub value: String,
}

/// On what a rule is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// A vhost's name, or `*`.
    pub vhost: String,
    /// `topic`, `exchange`, `queue`, `session`, `stream`, `admin`, or `*`.
    pub kind: String,
    /// `literal`, `prefix`, `filter`, `regex` or `regex-search`.
    #[serde(rename = "match")]
    pub match_kind: String,
    /// The name, beginning, filter or expression.
    pub pattern: String,
}

/// When else a rule matches; absent ones always do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Delivery guarantee at most this, 0 to 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_qos: Option<u8>,
    /// Only messages that are (or are not) to be kept as last value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<bool>,
    /// Body at most this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<u64>,
}

/// Where a rule comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleOrigin {
    /// Stored by an administrator; can be changed here.
    #[default]
    Stored,
    /// Comes with a console role.
    Role,
    /// Stands in the configuration file.
    Config,
}

/// May somebody do something on something?
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Question {
    /// Who; empty for anonymous.
    pub user: String,
    /// The client's name for itself.
    pub client_id: String,
    /// Short name of the protocol; empty for any.
    pub protocol: String,
    /// Address of the client, for rules about networks.
    pub peer: String,
    /// The action.
    pub action: String,
    /// The vhost.
    pub vhost: String,
    /// Kind of the resource.
    pub kind: String,
    /// Its name; for a topic with `/` between levels.
    pub name: String,
    /// Delivery guarantee of the message.
    pub qos: Option<u8>,
    /// Whether the message is to be kept as last value.
    pub retain: Option<bool>,
    /// Length of its body.
    pub body_bytes: Option<u64>,
}

/// The answer, and how it came about.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Yes or no.
    pub allowed: bool,
    /// The rule that decided; none when none matched, which means no.
    pub rule: Option<String>,
    /// One sentence.
    pub reason: String,
    /// The rules in the order they were asked.
    pub steps: Vec<ExplainStep>,
}

/// One rule that was asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExplainStep {
    /// Its name.
    pub rule: String,
    /// `other_subject`, `other_action`, `other_resource`, `other_condition` or `decides`.
    pub outcome: String,
    /// Why, in words.
    pub text: String,
}
