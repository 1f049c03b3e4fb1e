//! The contract between a gateway (a protocol as pure code) and the rest of the broker.
//!
//! A [`Gateway`] makes a [`Connection`] for every accepted socket. A connection is a value fed with
//! [`Input`]s; it answers by filling [`Outputs`]: bytes to send, [`Command`]s to ask, a close. The
//! driver owns sockets and clocks; it feeds a whole read's worth at a time, submits all commands of a
//! wake-up as one batch and writes with one system call.
//!
//! What a connection may rely on:
//! - Commands of one connection take effect in the order they were put into `Outputs`, for everything
//!   that concerns one stream, exchange or session. Publishes to one stream keep their order.
//! - Every command with a token other than [`Token::NONE`] is answered once: publishes by
//!   [`Answer::Published`] (ranges of consecutive tokens may be coalesced, independent ranges come in
//!   any order), everything else by [`Answer::Done`]. [`Answer::Returned`] comes before the
//!   `Published` of its token. **Invariant:** a `Published { Routed }` comes only after the durability
//!   class of every destination is satisfied; a publish with no durable destination is answered at once.
//! - After `Done` of an `OpenSession` or `Consume`, deliveries may follow; never before.
//! - Answers and deliveries never arrive re-entrantly: always as a later `Input`.
//! - After [`Outputs::close`] was set, or [`Input::Closed`] was handled, nothing more is fed. The broker
//!   then detaches its consumers (unsettled deliveries go back), deletes its exclusive streams and closes
//!   its session by itself; the connection need not ask for it.
//!
//! Owns: these traits and enums.
//! Never: a protocol's packets; sockets.
//! Next: `gateway/topology.rs`, `gateway/session.rs` (the pieces of commands), `message.rs`, `properties.rs`, `error.rs`; then one gateway's `connection.rs`.

mod outputs;
mod session;
mod topology;

pub use outputs::{Close, ClosedBy, Outputs, SendBuffer};
pub use session::{FilterName, FilterSpec, SendRetained, SessionFilter, SessionOpen, Will};
pub use topology::{
    BindTo, BindingSpec, Consume, ExchangeDeclare, ExchangeKind, Replay, SeekTo, StreamDeclare,
    ValueFilter,
};

use crate::authority::Principal;
use crate::error::{ErrorKind, Refusal};
use crate::id::{ConnectionId, ConsumerTag, MonotonicMs, Now, Offset, Token, UnixMs};
use crate::message::{Message, OriginTag, Quality};
use crate::properties::PropertyCodec;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;

/// One protocol. Registered by `server/`, shared by all workers.
pub trait Gateway: Send + Sync {
    /// Short name: configuration section `[gateway.<name>]`, `protocol` in rules, metrics label.
    fn name(&self) -> &'static str;
    /// The persisted number of messages that came in by it; not 0.
    fn tag(&self) -> OriginTag;
    /// Its conversion to neutral properties.
    fn codec(&self) -> Arc<dyn PropertyCodec>;
    /// A connection for an accepted socket; called on the worker it is pinned to.
    fn accept(&self, seat: Seat) -> Box<dyn Connection>;
}

/// What a connection knows of itself from the start.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// Its id, for [`Message::publisher`].
    pub id: ConnectionId,
    /// The other end.
    pub peer: SocketAddr,
    /// The time of acceptance.
    pub now: Now,
    /// Seed for names and ids it makes up; different for each connection.
    pub seed: u64,
}

/// A protocol's state machine for one socket. Pure: no I/O, no clock, no randomness.
pub trait Connection {
    /// Takes an input, fills `out`. Never panics, whatever the peer sent.
    fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Outputs);
    /// When it wants [`Input::Timeout`], if ever; asked after every `handle`. May fire late, never early.
    fn poll_timeout(&self) -> Option<MonotonicMs>;
    /// What the console shows of it.
    fn view(&self) -> ConnectionView;
}

/// What is fed to a connection.
#[derive(Debug)]
pub enum Input<'a> {
    /// All bytes of one read. The connection consumes all of them (it keeps a partial packet itself).
    Bytes(Bytes),
    /// Answers to its commands and notices; it drains the list.
    Answers(&'a mut Vec<Answer>),
    /// Deliveries to its consumers, in order per consumer; it drains the list. The broker hands out
    /// more only after these were handled, so what is unsent is bounded.
    Deliveries(&'a mut Vec<Delivery>),
    /// The time of [`Connection::poll_timeout`] has come.
    Timeout,
    /// The peer closed or the socket failed. Only commands are taken from the outputs now.
    Closed,
    /// The broker ends the connection: say so in the protocol's words and set [`Outputs::close`].
    Stop(StopReason),
}

/// Why the broker ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The node shuts down.
    Shutdown,
    /// An operator closed it.
    Kicked,
    /// Another connection took its session over.
    TakenOver,
    /// Its user was deleted or may not connect any more.
    Unauthorised,
    /// It does not read what it is sent, past the limit.
    SlowReader,
    /// It did not log in in time.
    LoginTimeout,
}

/// What a connection may ask. Names are in its vhost (see [`Command::Enter`]). Each publish and each settlement is one of
/// them and moves twice: what is long and rare is behind a pointer.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Check credentials; answered by [`Reply::Principal`] or `BadCredentials` / `AccessRefused`.
    Login {
        /// Answered by this.
        token: Token,
        /// Absent: anonymous.
        user: Option<Arc<str>>,
        /// Absent: none given.
        secret: Option<Bytes>,
        /// Client identifier where the protocol has one; else empty.
        client_id: Arc<str>,
    },
    /// Enter a vhost; all later commands are in it. Checks `connect`. `NotFound` when there is none.
    Enter {
        /// Answered by this, [`Reply::Done`].
        token: Token,
        /// Its name, `/` by default.
        vhost: Arc<str>,
    },
    /// Publish. Answered by [`Answer::Published`] when the token is not [`Token::NONE`].
    Publish {
        /// Consecutive tokens for consecutive publishes let answers be coalesced.
        token: Token,
        /// Answer [`Answer::Returned`] when no stream takes it.
        mandatory: bool,
        /// While a destination has no room: wait for it ([`Answer::Blocked`] says so), rather than be
        /// refused with `Busy` at once. For publishers that cannot be refused but by losing them.
        patient: bool,
        /// Stored once: publishes of this session under the same key, by whichever of its connections, are one
        /// until [`Command::Forget`]. For sessions that outlive their connection; others count by themselves.
        once: Option<OnceKey>,
        /// Routed then, by the bindings there are then, rather than now; kept in a journal until then, whatever its
        /// quality. Absent: now, unless the exchange delays ([`ExchangeDeclare::delays`]) and the message asks
        /// for it ([`PropertyCodec::later`]).
        later: Option<UnixMs>,
        /// The message, complete.
        message: Arc<Message>,
    },
    /// The peer has let go of a key: the next publish under it is another message. Answered by
    /// [`Reply::Done`] when that is as durable as the session.
    Forget {
        /// Answered by this.
        token: Token,
        /// Which.
        once: OnceKey,
    },
    /// Publishes and settlements that take effect together: in every shard that has a part of them, all of
    /// its part or nothing. Only [`Command::Publish`] and [`Command::Settle`] are allowed inside; each publish is
    /// answered by its own token. When one names no exchange or is denied, all are refused and what is settled goes
    /// back ([`Outcome::Released`]).
    Atomic {
        /// In order.
        commands: Vec<Command>,
    },
    /// Declare an exchange. [`Reply::Done`], `Inequivalent`, `AccessRefused`, `NotFound` (passive).
    DeclareExchange {
        /// Answered by this.
        token: Token,
        /// What.
        declare: Box<ExchangeDeclare>,
    },
    /// Delete an exchange; a missing one is [`Reply::Done`] too.
    DeleteExchange {
        /// Answered by this.
        token: Token,
        /// Its name.
        name: Arc<str>,
        /// Only when nothing is bound to it (`InUse`).
        if_unused: bool,
    },
    /// Declare a queue. Answered by [`Reply::Stream`].
    DeclareStream {
        /// Answered by this.
        token: Token,
        /// What.
        declare: Box<StreamDeclare>,
    },
    /// Delete a queue. Answered by [`Reply::Count`] of messages deleted; 0 when there was no queue.
    DeleteStream {
        /// Answered by this.
        token: Token,
        /// Its name.
        name: Arc<str>,
        /// Only without consumers (`InUse`).
        if_unused: bool,
        /// Only without messages (`NotEmpty`).
        if_empty: bool,
    },
    /// Remove all ready messages. Answered by [`Reply::Count`].
    Purge {
        /// Answered by this.
        token: Token,
        /// Queue name.
        stream: Arc<str>,
    },
    /// Bind a queue to an exchange. [`Reply::Done`]; the same binding twice is one.
    Bind {
        /// Answered by this.
        token: Token,
        /// What.
        binding: Box<BindingSpec>,
    },
    /// Undo a binding; a missing one is [`Reply::Done`] too.
    Unbind {
        /// Answered by this.
        token: Token,
        /// What.
        binding: Box<BindingSpec>,
    },
    /// Attach a consumer to a queue. [`Reply::Done`], [`Reply::Replaying`], `SecondConsumer`, `Locked`, `NotFound`.
    Consume {
        /// Answered by this.
        token: Token,
        /// How.
        consume: Box<Consume>,
    },
    /// Detach a consumer; what it has unsettled stays with it until settled or the connection ends.
    /// [`Reply::Done`] always; no delivery follows the answer.
    Cancel {
        /// Answered by this.
        token: Token,
        /// Which.
        consumer: ConsumerTag,
    },
    /// Change how many unsettled deliveries a consumer may hold; `u32::MAX` is no limit.
    SetCredit {
        /// Which.
        consumer: ConsumerTag,
        /// The new limit, not an addition.
        credit: u32,
    },
    /// Take one message. Answered by [`Reply::Got`]. The delivery's consumer is `consumer`; settle it by
    /// that tag (it need not be attached; use one tag per channel for this).
    Get {
        /// Answered by this.
        token: Token,
        /// Queue name.
        stream: Arc<str>,
        /// The tag its settlement will name: one tag for each queue that is asked this way, not that of
        /// a `Consume` (offsets of two queues could not be told apart).
        consumer: ConsumerTag,
        /// Settled by being handed out.
        presettled: bool,
    },
    /// Settle deliveries of a consumer. No answer.
    Settle {
        /// Whose; for `Get` the tag given there.
        consumer: ConsumerTag,
        /// First offset.
        first: Offset,
        /// Last offset, included. Every offset between must have been delivered to this consumer (all of
        /// one stream) and be unsettled: coalesce dense runs only.
        last: Offset,
        /// How.
        outcome: Outcome,
    },
    /// All that a consumer has not settled goes back to its places in one step, with what is on its way to it, so that
    /// nothing overtakes what comes again. Not for consumers that replay ([`Reply::Replaying`]). Answered by
    /// [`Reply::Done`]: what is delivered to the consumer before the answer is void.
    GiveBack {
        /// Answered by this.
        token: Token,
        /// Whose.
        consumer: ConsumerTag,
        /// What stays with it.
        except: Vec<Offset>,
    },
    /// The peer has a delivery of the session and says so before it is settled
    /// ([`Quality::ExactlyOnce`]): from now on it is never handed out as a message again, but as
    /// [`Delivery::received`]. Answered by [`Reply::Done`] when that is as durable as the session.
    Receive {
        /// Answered by this.
        token: Token,
        /// The session's tag.
        consumer: ConsumerTag,
        /// Which.
        offset: Offset,
    },
    /// Open or resume a session; its connection then gets its deliveries. Answered by
    /// [`Reply::Session`]. A live connection of the same client is stopped by [`StopReason::TakenOver`].
    OpenSession {
        /// Answered by this.
        token: Token,
        /// How.
        session: Box<SessionOpen>,
    },
    /// Change how long the session outlives its connection (orderly disconnect). No answer.
    SetSessionExpiry {
        /// Seconds after the connection ends; `u32::MAX` never; 0 at once.
        expiry_s: u32,
    },
    /// Bind the session to filters. Answered by [`Reply::Subscribed`], one result per filter in order.
    Subscribe {
        /// Answered by this.
        token: Token,
        /// What.
        filters: Vec<SessionFilter>,
    },
    /// Undo such bindings. Answered by [`Reply::Unsubscribed`], one per filter: whether it existed.
    Unsubscribe {
        /// Answered by this.
        token: Token,
        /// Which.
        filters: Vec<FilterName>,
    },
    /// The session's will is void: its connection ends in order. No answer.
    DropWill,
}

/// What a session's publisher calls one message that is to be stored once; unique in its session until it is
/// forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OnceKey(pub u16);

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Taken: it leaves the stream.
    Accepted,
    /// Back to its original place, for anyone, flagged as redelivered.
    Released,
    /// Not wanted: it leaves the stream (to the dead-letter exchange where there is one).
    Rejected,
}

/// What a connection is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Publishes `first..=last` (consecutive tokens) are finished, all alike. A publish without a token
    /// ([`Token::NONE`]) is told of too when it was refused at once: a range of that token alone.
    Published {
        /// First token.
        first: Token,
        /// Last token, included.
        last: Token,
        /// How.
        outcome: PublishOutcome,
    },
    /// A mandatory message that no stream took; its `Published` follows.
    Returned {
        /// Of the publish.
        token: Token,
        /// As it was published.
        message: Arc<Message>,
    },
    /// A command is finished.
    Done {
        /// Of the command.
        token: Token,
        /// How.
        result: Result<Reply, Refusal>,
    },
    /// The broker detached a consumer: its queue is gone or its right was lost.
    Ended {
        /// Which.
        consumer: ConsumerTag,
        /// Why.
        why: Refusal,
    },
    /// A consumer of a queue has not settled a delivery in time: the connection gives back what it holds, in its
    /// protocol's words.
    Overdue {
        /// Which.
        consumer: ConsumerTag,
        /// How long it may hold one, in milliseconds.
        after_ms: u64,
    },
    /// The broker stops (`Some`, with the reason) or resumes (`None`) taking publishes.
    Blocked(Option<&'static str>),
}

/// How a publish ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishOutcome {
    /// At least one stream took it, as durable as that stream asks.
    Routed,
    /// No stream wanted it; that is no error.
    Unroutable,
    /// It was not taken.
    Refused(ErrorKind),
}

/// What a finished command brings.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Nothing more to say.
    Done,
    /// Logged in.
    Principal(Arc<Principal>),
    /// A queue is there.
    Stream {
        /// Messages ready.
        ready: u64,
        /// Consumers attached.
        consumers: u32,
    },
    /// A consumer is attached to a queue that keeps what was read ([`Mode::Replay`](crate::limits::Mode::Replay)).
    Replaying,
    /// How many messages.
    Count(u64),
    /// The answer to `Get`.
    Got {
        /// The message, if there was one.
        delivery: Option<Delivery>,
        /// Messages ready after it.
        ready: u64,
    },
    /// A session is open.
    Session {
        /// An earlier one was resumed: its filters and unsettled deliveries are there (they come again
        /// first, in order, with `attempt` above 1).
        present: bool,
    },
    /// Per filter: the quality granted, or why not.
    Subscribed(Vec<Result<Quality, Refusal>>),
    /// Per filter: whether it existed.
    Unsubscribed(Vec<bool>),
}

/// A message handed to one consumer.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// To whom.
    pub consumer: ConsumerTag,
    /// Its place in the stream: names it when settling. Dense per stream, so a gateway may derive its
    /// own delivery ids from it.
    pub offset: Offset,
    /// 1 for the first try.
    pub attempt: u32,
    /// As granted to this subscriber. Sessions: `AtMostOnce` is settled by being handed out.
    pub quality: Quality,
    /// The retain flag this subscriber shall see.
    pub retain: bool,
    /// The subscriber's number of the matching filter; 0 is none.
    pub identifier: u32,
    /// Further such numbers, when several filters with numbers match.
    pub more_identifiers: Option<Arc<Vec<u32>>>,
    /// The peer has it already ([`Command::Receive`]): only the rest of its settlement is owed, which comes before
    /// anything new.
    pub received: bool,
    /// The message.
    pub message: Arc<Message>,
}

/// A row of the console's connection page, supplied by the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionView {
    /// Gateway name and version of the protocol, such as `x 1.0`.
    pub protocol: String,
    /// User; empty before login or when anonymous.
    pub user: String,
    /// Client identifier or the client's own name; may be empty.
    pub client: String,
    /// Vhost; empty before it is entered.
    pub vhost: String,
    /// Further facts as name and value, shown as they are.
    pub facts: Vec<(&'static str, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_small_enough_to_be_moved_for_each_message() {
        assert!(size_of::<Command>() <= 80, "{}", size_of::<Command>());
    }
}
