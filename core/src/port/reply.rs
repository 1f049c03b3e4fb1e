//! What a shard answers, and the counts it gives of streams and groups.
//!
//! Owns: [`ShardReply`], [`StreamStat`], [`GroupStat`].
//! Never: what was asked (`port/question.rs`).
//! Next: `worker/steps.rs`, which takes the answers.

use super::ConsumerKey;
use crate::address::{Address, TopicFilter};
use crate::error::Refusal;
use crate::gateway::{Delivery, FilterSpec};
use crate::id::{Offset, StreamId, UnixMs, VhostId};
use crate::limits::{Mode, StreamLimits};
use crate::message::{Message, Quality};
use std::sync::Arc;

/// What a shard answers.
#[derive(Clone, Debug)]
pub enum ShardReply {
    /// Nothing more to say.
    Done,
    /// A consumer is attached where messages stay.
    Replaying,
    /// How many.
    Count(u64),
    /// Counts of a stream.
    Stat(Box<StreamStat>),
    /// Counts of all.
    Stats(Vec<StreamStat>),
    /// Sums over all.
    Totals(Box<StreamTotals>),
    /// Messages looked at, with their offsets and how often each was tried.
    Messages(Vec<(Offset, u32, Arc<Message>)>),
    /// Messages that wait, with their offsets and when they are due.
    Delayed(Vec<(UnixMs, Offset, Arc<Message>)>),
    /// One message taken, or none, and how many are ready after it.
    Got(Option<Delivery>, u64),
    /// A session is open.
    Session {
        /// It was there before.
        present: bool,
        /// Its stream when it lives in this shard.
        stream: Option<StreamId>,
        /// What it is bound to already.
        filters: Vec<TopicFilter>,
        /// What it is a member of.
        groups: Vec<(Arc<str>, FilterSpec)>,
    },
    /// A key is held.
    Taken {
        /// Its number.
        number: u64,
        /// The lowest number of a key that the session holds.
        floor: u64,
    },
    /// Per filter.
    Subscribed(Vec<Result<Quality, Refusal>>),
    /// Per filter.
    Unsubscribed(Vec<bool>),
    /// Last values in the order of their addresses.
    Values {
        /// What matched.
        values: Vec<Arc<Message>>,
        /// Where to go on, when there may be more.
        next: Option<Address>,
    },
    /// How many last values there are.
    ValueCounts {
        /// Addresses.
        values: u64,
        /// What they cost in memory.
        bytes: u64,
    },
    /// A member is attached to the group of this stream.
    Joined(StreamId),
    /// The group is to be joined in the volatile shard that its name says.
    Elsewhere,
    /// All groups of a shard.
    Groups(Vec<GroupStat>),
    /// A page was handed in.
    HandedIn {
        /// It was not: it has to be read again after a flush.
        again: bool,
    },
}

/// Counts of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamStat {
    /// Which.
    pub stream: StreamId,
    /// In.
    pub vhost: VhostId,
    /// Client id when it is a session's.
    pub session: Option<Arc<str>>,
    /// Name and filter when it is a group's.
    pub group: Option<(Arc<str>, TopicFilter)>,
    /// Whether the session has a live connection.
    pub live: bool,
    /// Filters of the session.
    pub filters: Vec<FilterSpec>,
    /// Whether the session leaves a will.
    pub will: bool,
    /// Keys of the session that are held, for messages that are stored once.
    pub keys: u64,
    /// Waiting.
    pub ready: u64,
    /// Handed out, not settled.
    pub unsettled: u64,
    /// Consumers attached.
    pub consumers: u32,
    /// How they share it.
    pub mode: Mode,
    /// Who is served, in the modes that serve one at a time.
    pub active: Option<ConsumerKey>,
    /// Cost of all its messages.
    pub bytes: u64,
    /// Messages ever put in, since the node started or the checkpoint was made.
    pub published: u64,
    /// Deliveries ever made, likewise.
    pub delivered: u64,
    /// Settled as taken, likewise.
    pub settled: u64,
    /// Dropped: expired, over a limit, or not to be received by their only reader.
    pub dropped: u64,
    /// Dropped here and sent on elsewhere, likewise.
    pub dead_lettered: u64,
    /// Publishes refused because it was full, likewise.
    pub rejected: u64,
    /// Dead letters that no destination has taken yet, and that are tried again.
    pub dead_letters_waiting: u64,
    /// What bounds it.
    pub limits: StreamLimits,
    /// What it keeps, when it is read by replaying and keeps anything.
    pub kept: Option<KeptRange>,
}

/// What a stream keeps for whoever reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptRange {
    /// Of the oldest message.
    pub first: Offset,
    /// When that came in.
    pub first_at: UnixMs,
    /// Of the newest message.
    pub last: Offset,
    /// When that came in.
    pub last_at: UnixMs,
}

/// A group, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStat {
    /// Client id of each member, and whether it outlives its connection.
    pub members: Vec<(Arc<str>, bool)>,
    /// Its counts.
    pub stat: StreamStat,
}

/// Sums over all streams of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// Streams of all kinds.
    pub streams: u64,
    /// Sessions.
    pub sessions: u64,
    /// Attached consumers, but for those of sessions, which are their connections.
    pub consumers: u64,
    /// Messages waiting or ready.
    pub ready: u64,
    /// Messages handed out, not settled.
    pub unsettled: u64,
    /// What both cost, in bytes, and what waits until it is due.
    pub bytes: u64,
    /// Messages that wait until they are due.
    pub delayed: u64,
    /// Dead letters that have to arrive and that no destination has taken yet.
    pub dead_letters_waiting: u64,
    /// Taken.
    pub settled: u64,
    /// Dropped without being taken.
    pub dropped: u64,
}
