//! Between a worker and a shard: the messages of both directions, and the traits that carry them.
//!
//! A worker (one thread with many connections) sends batches of [`ShardRequest`]s to shards; a shard
//! sends batches of [`ShardEvent`]s back. Data shards live on threads of their own (`store/`); each
//! worker also hosts one volatile shard. Nothing here waits: every question carries a [`Ticket`] or a
//! [`Sequence`] and is answered by an event. Batches of one sender to one receiver keep their order.
//!
//! Owns: requests, the names that both sides use, and the carrier traits.
//! Never: channels or threads.
//! Next: `port/question.rs`, `port/reply.rs`, `port/event.rs`; then `shard.rs` (who answers), `worker.rs` (who asks).

mod event;
mod question;
mod reply;

pub use crate::gateway::SeekTo;
pub use event::{Forward, ShardEvent};
pub use question::{Attach, HandIn, JoinGroup, OpenSession, Question};
pub use reply::{GroupStat, KeptRange, ShardReply, StreamStat, StreamTotals};

use crate::address::TopicFilter;
use crate::error::Refusal;
use crate::gateway::{OnceKey, Outcome, PublishOutcome};
use crate::id::{
    ConnectionId, ConsumerTag, ExchangeId, Offset, Sequence, ShardId, StreamId, UnixMs, VhostId,
    WorkerId,
};
use crate::message::{Message, Quality};
use crate::meta::{MetaCommand, MetaReply};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;

/// Names a worker's question to a shard; dense per worker and shard.
pub type Ticket = u64;

/// A consumer, unique in the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerKey {
    /// Its connection.
    pub connection: ConnectionId,
    /// What the connection calls it.
    pub tag: ConsumerTag,
}

/// What a worker asks of a shard. Each publish and each settlement is one: what is long and rare is behind a pointer.
#[derive(Clone, Debug)]
pub enum ShardRequest {
    /// Store a message in the named streams and, when `by_topic` says a vhost, in every session of this
    /// shard whose filters match. Answered by [`ShardEvent::Published`].
    Publish {
        /// Dense per worker and shard, from 1.
        sequence: Sequence,
        /// Destinations by id; may be empty.
        streams: SmallVec<[StreamId; 2]>,
        /// Match sessions of this vhost; also says that a topic exchange routed it, so that the right
        /// to receive its address is asked at delivery.
        by_topic: Option<VhostId>,
        /// Taken also by a shard that is full: its publisher cannot be refused, is held back from its next
        /// publishes, and what it has sent takes no less room where it waits.
        patient: bool,
        /// What most publishes have not.
        extra: Option<Box<Extra>>,
        /// The message.
        message: Arc<Message>,
    },
    /// Anything that wants a reply.
    Ask {
        /// Answered by [`ShardEvent::Reply`] with it.
        ticket: Ticket,
        /// What.
        question: Box<Question>,
    },
    /// See [`Command::Settle`](crate::gateway::Command::Settle).
    Settle {
        /// Whose.
        consumer: ConsumerKey,
        /// The stream of the offsets.
        stream: StreamId,
        /// First offset.
        first: Offset,
        /// Last offset, included.
        last: Offset,
        /// How.
        outcome: Outcome,
    },
    /// A new limit of unsettled deliveries.
    Credit {
        /// Whose.
        consumer: ConsumerKey,
        /// Its stream.
        stream: StreamId,
        /// The limit.
        credit: u32,
    },
    /// The connection has taken `count` deliveries of this consumer off the worker's hands, so that
    /// many more may travel.
    Drained {
        /// Whose.
        consumer: ConsumerKey,
        /// Its stream.
        stream: StreamId,
        /// How many.
        count: u32,
    },
    /// The connection is gone: detach its consumers, release what they hold, close its session.
    Gone {
        /// Which.
        connection: ConnectionId,
    },
    /// What a [`Forward`] came to, when all its destinations have answered.
    Forwarded {
        /// Of the forward.
        id: u64,
        /// How.
        outcome: PublishOutcome,
    },
}

/// What is asked of a shard with some publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// Keep the message as the last value of its address in this vhost; one with an empty body removes it.
    pub keep: Option<VhostId>,
    /// Store it once.
    pub once: Option<Once>,
    /// It is a last value, handed in for the one stream that is named.
    pub handed: Option<Handed>,
    /// Kept until it is due, and only then routed; no stream is named.
    pub later: Option<Later>,
    /// Later ones of its sender were written before it: that their numbers are higher makes it no repeat.
    pub overtaken: bool,
    /// Taken by a full stream that holds its publishers, too. Not stored.
    pub at_once: bool,
    /// Taken by all streams that are named, or by none. Not stored.
    pub whole: bool,
}

/// When a message is to be routed, and where from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Later {
    /// Not before this time.
    pub due: UnixMs,
    /// In.
    pub vhost: VhostId,
    /// The exchange that it was published to.
    pub exchange: ExchangeId,
}

/// How a last value is handed in to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// At most.
    pub quality: Quality,
    /// See [`FilterSpec`](crate::gateway::FilterSpec).
    pub identifier: u32,
    /// Not for the connection that published it.
    pub no_local: bool,
}

/// Names a reading of last values; unique in the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadingKey {
    /// For whom; a queue's is its worker's number without a connection.
    pub connection: ConnectionId,
    /// Dense per worker, from 1.
    pub number: u64,
}

/// Names a group. Persisted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupKey {
    /// In.
    pub vhost: VhostId,
    /// As its members call it.
    pub name: Arc<str>,
    /// What it is bound to.
    pub filter: TopicFilter,
}

/// A member of a group. Persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Member {
    /// A session that outlives its connection, by its stream.
    Session(StreamId),
    /// A session that ends with this connection.
    Connection(ConnectionId),
}

/// A session that has ended was a member. Persisted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parting {
    /// Of this group.
    pub group: GroupKey,
    /// As this member.
    pub member: Member,
}

/// Names a message that is stored once, whatever is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// To the publisher's session's own shard, which takes the key with it.
    Keyed {
        /// The publisher's session.
        session: StreamId,
        /// Its key.
        key: OnceKey,
    },
    /// To another shard.
    Numbered {
        /// The publisher's session.
        session: StreamId,
        /// The session's number for it, never used again.
        number: u64,
        /// Lower numbers of the session are not sent any more and can be forgotten.
        floor: u64,
    },
}

/// Carries requests to one shard. Implemented by `store/` for data shards and by `gateways/driver` for the
/// volatile shards that workers host.
pub trait ShardPort: Send + Sync {
    /// Hands a batch over; never blocks. Events come back through the sender's [`WorkerPort`]. When it returns, the
    /// batch stands before whatever anybody hands to this shard afterwards.
    fn send(&self, from: WorkerId, requests: Vec<ShardRequest>);
}

/// Carries events to one worker. Implemented by `gateways/driver`.
pub trait WorkerPort: Send + Sync {
    /// Hands a batch over; never blocks.
    fn send(&self, from: ShardId, events: Vec<ShardEvent>);
}

/// What happens with the answer of the metadata shard.
pub type MetaDone = Box<dyn FnOnce(Result<MetaReply, Refusal>) + Send>;

/// Carries commands to the metadata shard. Implemented by `store/`.
pub trait MetaPort: Send + Sync {
    /// Proposes; `done` is called (on any thread, soon after commit and apply) exactly once.
    fn propose(&self, command: MetaCommand, now: UnixMs, done: MetaDone);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_small_enough_to_be_moved_for_each_message() {
        let bytes = size_of::<ShardRequest>();
        assert!(bytes <= 80, "{bytes}");
    }
}
