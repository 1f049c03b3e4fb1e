//! Between a worker and a shard: the messages of both directions, and the traits that carry them.
//!
//! A worker (one thread with many connections) sends batches of [`ShardRequest`]s to shards; a shard
//! sends batches of [`ShardEvent`]s back. Data shards live on threads of their own (`store/`); each
//! worker also hosts one volatile shard. Nothing here waits: every question carries a [`Ticket`] or a
//! [`Sequence`] and is answered by an event. Batches of one sender to one receiver keep their order.
//!
//! Owns: the message types and the carrier traits.
//! Never: channels or threads.
//! Next: `shard.rs` (who answers), `worker.rs` (who asks).

use crate::address::{Address, TopicFilter};
use crate::authority::Principal;
use crate::error::Refusal;
use crate::gateway::{Delivery, FilterSpec, OnceKey, Outcome, PublishOutcome};
use crate::id::{
    ConnectionId, ConsumerTag, Offset, Sequence, ShardId, StreamId, UnixMs, VhostId, WorkerId,
};
use crate::limits::{Mode, StreamLimits};
use crate::message::{Message, Quality};
use crate::meta::{MetaCommand, MetaReply};
use crate::will::SavedWill;
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

/// What a worker asks of a shard.
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
        question: Question,
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
}

/// How a last value is handed in to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// At most.
    pub quality: Quality,
    /// See [`FilterSpec`].
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

/// A member to attach to a group.
#[derive(Clone, Debug)]
pub struct JoinGroup {
    /// Which; it is made when it is not there.
    pub group: GroupKey,
    /// Who.
    pub member: Member,
    /// For people.
    pub client_id: Arc<str>,
    /// What it is granted and asks.
    pub spec: FilterSpec,
    /// What bounds it and how members share it, when it is made.
    pub limits: StreamLimits,
    /// Its deliveries.
    pub consumer: ConsumerKey,
    /// For the right to receive.
    pub principal: Arc<Principal>,
    /// The vhost by name, for the rules.
    pub vhost_name: Arc<str>,
    /// Limit of unsettled deliveries.
    pub credit: u32,
}

/// A group, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStat {
    /// Client id of each member, and whether it outlives its connection.
    pub members: Vec<(Arc<str>, bool)>,
    /// Its counts.
    pub stat: StreamStat,
}

/// Last values for a session or a queue.
#[derive(Clone, Debug)]
pub struct HandIn {
    /// Of which reading.
    pub reading: ReadingKey,
    /// The queue; absent for the connection's session.
    pub queue: Option<StreamId>,
    /// The session's filter that they match.
    pub filter: Option<FilterSpec>,
    /// What.
    pub values: Vec<Arc<Message>>,
    /// Nothing follows.
    pub last: bool,
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

/// What a shard is asked.
#[derive(Clone, Debug)]
pub enum Question {
    /// Make a stream; a stream that is there already is left as it is. Reply `Done`.
    CreateStream {
        /// Its id.
        stream: StreamId,
        /// Its vhost.
        vhost: VhostId,
        /// Its name, which death records tell.
        name: Arc<str>,
        /// Its limits.
        limits: StreamLimits,
    },
    /// Delete a stream. Reply `Count` of messages; 0 when there was none.
    DeleteStream {
        /// Which.
        stream: StreamId,
        /// Only without consumers.
        if_unused: bool,
        /// Only without messages.
        if_empty: bool,
    },
    /// Remove all ready messages. Reply `Count`.
    Purge {
        /// Which.
        stream: StreamId,
    },
    /// Counts of one stream. Reply `Stat`.
    Stat {
        /// Which.
        stream: StreamId,
    },
    /// The same for a client that declared it: the stream is in use.
    Declared {
        /// Which.
        stream: StreamId,
    },
    /// Other limits for a stream, which count at once, but for the time that messages stored before were given.
    /// Reply `Done`.
    SetLimits {
        /// Which.
        stream: StreamId,
        /// All of them.
        limits: StreamLimits,
    },
    /// Move a queue's subscription: ready messages below the place leave; what is there or above and not settled
    /// comes back to its place, taken from its holders. Reply `Count` of messages that left; `NotSupported` for
    /// sessions. Messages that were settled are gone and do not come back.
    Seek {
        /// Which.
        stream: StreamId,
        /// Where to.
        to: SeekTo,
    },
    /// Counts of all streams here. Reply `Stats`.
    StatAll,
    /// The first `count` messages, ready or not, without taking them. Reply `Messages`.
    Peek {
        /// Which.
        stream: StreamId,
        /// Not those below this offset.
        from: Offset,
        /// How many at most.
        count: u32,
    },
    /// Attach a consumer. Reply `Done`.
    Attach(Attach),
    /// Detach it, leaving what it holds. Reply `Done`.
    Detach {
        /// Which.
        consumer: ConsumerKey,
        /// Its stream.
        stream: StreamId,
    },
    /// Take one message. Reply `Got`.
    Get {
        /// From.
        stream: StreamId,
        /// For.
        consumer: ConsumerKey,
        /// Who takes it.
        principal: Arc<Principal>,
        /// Its vhost by name, for the rules.
        vhost: Arc<str>,
        /// Settled by being handed out.
        presettled: bool,
    },
    /// Claim a client id for a connection. A live owner is displaced ([`ShardEvent::Displaced`]).
    /// Reply `Session`: with a stream when the session lives in this shard, without one when nothing is to
    /// be kept here (the worker then opens it in its own volatile shard).
    OpenSession(OpenSession),
    /// Change the expiry of the connection's session. Reply `Done`.
    SessionExpiry {
        /// Whose session.
        connection: ConnectionId,
        /// See [`SessionOpen`](crate::gateway::SessionOpen).
        expiry_s: u32,
    },
    /// Bind the connection's session. Reply `Subscribed`.
    Subscribe {
        /// Whose session.
        connection: ConnectionId,
        /// What.
        filters: Vec<FilterSpec>,
        /// The filters for which last values will be handed in, each with the number of its reading.
        readings: Vec<(u64, TopicFilter)>,
    },
    /// Unbind it. Reply `Unsubscribed`.
    Unsubscribe {
        /// Whose session.
        connection: ConnectionId,
        /// What.
        filters: Vec<TopicFilter>,
    },
    /// The will of the connection's session is void. Reply `Done`.
    DropWill {
        /// Whose session.
        connection: ConnectionId,
    },
    /// Take a key of the connection's session, unless it is held. Reply `Taken`.
    Take {
        /// Whose session.
        connection: ConnectionId,
        /// Which.
        key: OnceKey,
    },
    /// Let go of a key. Reply `Done`; also when it is not held.
    Forget {
        /// Whose session.
        connection: ConnectionId,
        /// Which.
        key: OnceKey,
    },
    /// The peer of the connection's session has a delivery. Reply `Done`; also when the consumer does not hold it.
    Receive {
        /// The session's consumer.
        consumer: ConsumerKey,
        /// The session's stream.
        stream: StreamId,
        /// Which.
        offset: Offset,
    },
    /// Forget a session that has no connection (an operator's wish). Reply `Count` (0 or 1).
    DeleteSession {
        /// In.
        vhost: VhostId,
        /// Whose.
        client_id: Arc<str>,
    },
    /// A page of the last values that match a filter. Reply `Values`, when everything handed to the shard before is
    /// applied.
    Values {
        /// In.
        vhost: VhostId,
        /// Which addresses.
        filter: TopicFilter,
        /// A leading wildcard does not match addresses that start with `$`.
        hides_system: bool,
        /// Only addresses behind this one.
        after: Option<Address>,
        /// Not more than so many; a page may be shorter, also empty, and yet not be the last.
        count: u32,
    },
    /// How many last values the shard has, in all vhosts. Reply `ValueCounts`.
    ValueCounts,
    /// Remove a last value (an operator's wish). Reply `Count` (0 or 1).
    DropValue {
        /// In.
        vhost: VhostId,
        /// Whose.
        address: Address,
    },
    /// Last values will be handed in for a queue: what comes in from now on is newer. Reply `Done`.
    Watch {
        /// Under this name.
        reading: ReadingKey,
        /// In.
        vhost: VhostId,
        /// Which addresses.
        filter: TopicFilter,
        /// The queue.
        queue: StreamId,
    },
    /// Put last values into a stream. Reply `HandedIn`, when the stream can take more.
    HandIn(Box<HandIn>),
    /// Attach a member to a group. Reply `Joined`; `Elsewhere` when there is no lasting group and the member ends
    /// with its connection.
    JoinGroup(Box<JoinGroup>),
    /// Take a member off. Reply `Done`.
    LeaveGroup {
        /// From.
        group: GroupKey,
        /// Who.
        member: Member,
        /// The connection that gets its deliveries.
        connection: Option<ConnectionId>,
    },
    /// A lasting group took the place of this one. Reply `Done`.
    RetireGroup {
        /// Which.
        group: GroupKey,
    },
    /// Note that the connection's session is a member, or no more. Reply `Count`: 1 when it was one before.
    Membership {
        /// Whose session.
        connection: ConnectionId,
        /// The group.
        name: Arc<str>,
        /// Its filter.
        filter: TopicFilter,
        /// What it asks; absent when it is no more.
        spec: Option<FilterSpec>,
    },
    /// The group's shard has let a member go. Reply `Done`.
    Parted {
        /// Of the parting.
        number: u64,
    },
    /// All groups here. Reply `Groups`.
    Groups,
    /// Asked of the volatile shard that a worker hosts. Reply `Done`, when the worker has sent on to data shards
    /// whatever it had routed.
    Flush,
}

/// A place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The first message that is there.
    Start,
    /// After the last message that is there.
    End,
    /// This offset.
    Offset(Offset),
    /// The first message taken in at this time or later.
    Time(UnixMs),
}

/// A consumer to attach.
#[derive(Clone, Debug)]
pub struct Attach {
    /// Who.
    pub consumer: ConsumerKey,
    /// For the right to receive.
    pub principal: Arc<Principal>,
    /// The stream's vhost by name, for the rules.
    pub vhost: Arc<str>,
    /// Where.
    pub stream: StreamId,
    /// No one beside it.
    pub exclusive: bool,
    /// Settled by being handed out.
    pub presettled: bool,
    /// Limit of unsettled deliveries.
    pub credit: u32,
    /// Higher is served first.
    pub priority: i32,
    /// Not what the same connection published.
    pub no_local: bool,
}

/// A session to open.
#[derive(Clone, Debug)]
pub struct OpenSession {
    /// For whom, and what it calls its deliveries.
    pub consumer: ConsumerKey,
    /// For the right to receive.
    pub principal: Arc<Principal>,
    /// Where.
    pub vhost: VhostId,
    /// The vhost by name, for the rules.
    pub vhost_name: Arc<str>,
    /// Whose.
    pub client_id: Arc<str>,
    /// Forget an earlier one.
    pub clean_start: bool,
    /// Seconds it outlives its connection; `u32::MAX` never ends.
    pub expiry_s: u32,
    /// Limit of unsettled deliveries above `AtMostOnce`.
    pub credit: u32,
    /// What it leaves behind when its connection ends out of order.
    pub will: Option<SavedWill>,
    /// The first tag for its memberships in groups.
    pub group_consumers: ConsumerTag,
    /// Kept in this shard even when it ends with its connection: the worker's own volatile shard is
    /// asked with this.
    pub here: bool,
}

/// What a shard answers.
#[derive(Clone, Debug)]
pub enum ShardReply {
    /// Nothing more to say.
    Done,
    /// How many.
    Count(u64),
    /// Counts of a stream.
    Stat(Box<StreamStat>),
    /// Counts of all.
    Stats(Vec<StreamStat>),
    /// Messages looked at, with their offsets and how often each was tried.
    Messages(Vec<(Offset, u32, Arc<Message>)>),
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
    /// What bounds it.
    pub limits: StreamLimits,
}

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
    /// [`ShardRequest::Forwarded`].
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
