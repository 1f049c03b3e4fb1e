//! What a worker asks of a shard.
//!
//! Owns: [`Question`] and what is said with one.
//! Never: an answer (`port/reply.rs`).
//! Next: `shard/questions.rs`, which takes them.

use super::{ConsumerKey, GroupKey, Member, ReadingKey};
use crate::address::{Address, TopicFilter};
use crate::authority::Principal;
use crate::gateway::{FilterSpec, OnceKey, Replay, SeekTo};
use crate::id::{ConnectionId, ConsumerTag, ExchangeId, Offset, StreamId, VhostId};
use crate::limits::StreamLimits;
use crate::message::Message;
use crate::will::SavedWill;
use std::sync::Arc;

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
    /// sessions and for streams that each reader reads from a place of its own. Messages that were settled are gone and
    /// do not come back.
    Seek {
        /// Which.
        stream: StreamId,
        /// Where to.
        to: SeekTo,
    },
    /// Counts of all streams here. Reply `Stats`.
    StatAll,
    /// Their sums: it takes no memory for each. Reply `Totals`.
    Totals,
    /// The first `count` messages, ready or not, without taking them. Reply `Messages`.
    Peek {
        /// Which.
        stream: StreamId,
        /// From this place on.
        from: SeekTo,
        /// How many at most.
        count: u32,
    },
    /// The first `count` messages that an exchange delays here, by when they are due. Reply `Delayed`.
    Delayed {
        /// Which exchange.
        exchange: ExchangeId,
        /// How many at most.
        count: u32,
    },
    /// Attach a consumer. Reply `Done`, or `Replaying` where messages stay.
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
    /// Claim a client id for a connection. A live owner is displaced ([`ShardEvent::Displaced`](super::ShardEvent::Displaced)).
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
    /// All that a consumer holds goes back to its places. Reply `Done`, behind whatever was delivered before.
    GiveBack {
        /// Whose.
        consumer: ConsumerKey,
        /// Its stream.
        stream: StreamId,
        /// What stays with it.
        except: Vec<Offset>,
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
    /// From where and what, where messages stay.
    pub replay: Option<Box<Replay>>,
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
