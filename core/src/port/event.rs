//! What a shard tells a worker, asked or not.
//!
//! Owns: [`ShardEvent`] and [`Forward`].
//! Never: the answers themselves (`port/reply.rs`).
//! Next: `outbox.rs` (where events gather), `worker/events.rs` (who takes them).

use super::{ConsumerKey, GroupKey, Once, Parting, ShardReply, Ticket};
use crate::error::Refusal;
use crate::gateway::{Delivery, PublishOutcome};
use crate::id::{ConnectionId, Sequence, StreamId, VhostId};
use crate::message::Message;
use std::sync::Arc;

/// What a shard tells a worker.
#[derive(Clone, Debug)]
pub enum ShardEvent {
    /// Publishes `first..=last` of this worker are finished, all alike.
    Published {
        /// First.
        first: Sequence,
        /// Last, included.
        last: Sequence,
        /// How.
        outcome: PublishOutcome,
    },
    /// A publish of this worker waits for room in its stream; [`ShardEvent::Published`] comes when it has found some.
    Waits {
        /// Which.
        sequence: Sequence,
        /// What it costs in memory.
        cost_bytes: usize,
    },
    /// The answer to a question.
    Reply {
        /// Of the question.
        ticket: Ticket,
        /// How.
        result: Result<ShardReply, Refusal>,
    },
    /// Deliveries for one connection, in order per consumer.
    Deliver {
        /// To whom.
        connection: ConnectionId,
        /// What.
        deliveries: Vec<Delivery>,
    },
    /// A consumer was detached by the broker.
    Ended {
        /// Which.
        consumer: ConsumerKey,
        /// Why.
        why: Refusal,
    },
    /// A consumer of a queue holds a delivery for longer than it may.
    Overdue {
        /// Which.
        consumer: ConsumerKey,
        /// How long it may, in milliseconds.
        after_ms: u64,
    },
    /// Another connection took this one's session over.
    Displaced {
        /// The old one.
        connection: ConnectionId,
    },
    /// An auto-delete stream lost its last consumer: the worker asks metadata to delete it.
    Unused {
        /// Which.
        stream: StreamId,
    },
    /// A lasting group was made: this connection, which was sent elsewhere, is to join it.
    GroupMade {
        /// Whose membership.
        connection: ConnectionId,
        /// Of which group.
        group: GroupKey,
    },
    /// A session that was a member has ended: the worker tells the group's shard and then this one.
    Parting {
        /// Names it here.
        number: u64,
        /// What.
        parting: Parting,
    },
    /// The shard stops (`true`) or resumes taking publishes.
    Blocked(bool),
    /// A message to publish by the broker itself: no right is asked, it was allowed when it came in. Answered by
    /// [`ShardRequest::Forwarded`](super::ShardRequest::Forwarded).
    Forward(Box<Forward>),
}

/// A message that a shard sends on its way to other streams.
#[derive(Clone, Debug)]
pub struct Forward {
    /// Names it in its shard.
    pub id: u64,
    /// Where it is published.
    pub vhost: VhostId,
    /// What.
    pub message: Arc<Message>,
    /// Stored once, if it is handed over again.
    pub once: Option<Once>,
    /// The stream that dropped it: it then passes by streams round which it would go for ever.
    pub from: Option<StreamId>,
    /// It is handed over again until all have it: none may have it twice because another refuses it.
    pub whole: bool,
}
