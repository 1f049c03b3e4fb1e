//! The state of one channel: a value the connection owns.
//!
//! Owns what a channel remembers between frames: the content being received, confirms, deliveries that
//! wait for acknowledgement, consumers, and the frames that wait while a method is being answered.
//! Never touches a sibling; what happens to it is decided in the connection's modules.

use std::collections::VecDeque;
use std::sync::Arc;

use anabranch_core::address::Address;
use anabranch_core::gateway::{Consume, Delivery};
use anabranch_core::id::ConsumerTag;
use bytes::{Bytes, BytesMut};
use rustc_hash::FxHashMap;

use crate::confirm::Confirms;
use crate::published::Facts;
use crate::token::ChannelLife;
use crate::transaction::Transaction;
use crate::unacked::Unacked;
use crate::unfinished::Share;
use crate::wire::frame::FrameKind;

/// Where a channel is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Open.
    Open,
    /// We sent `channel.close`: everything but `channel.close-ok` is ignored (AMQP 0-9-1 section
    /// 2.2.10).
    ClosedByUs,
    /// The client sent `channel.close`: `close-ok` leaves when so many consumers are detached.
    ClosedByPeer {
        /// Consumers not yet detached.
        detaching: u32,
    },
}

/// A message being received.
#[derive(Debug)]
pub struct Content {
    /// Exchange it goes to.
    pub exchange: Bytes,
    /// Its address.
    pub address: Address,
    /// The key as the client wrote it, when the address does not give it back.
    pub origin_key: Bytes,
    /// Give it back when nothing takes it.
    pub mandatory: bool,
    /// Set by the content header.
    pub header: Option<Header>,
}

/// What a content header said.
#[derive(Debug)]
pub struct Header {
    /// Raw flags and list.
    pub properties: Bytes,
    /// What they say that routing needs.
    pub facts: Facts,
    /// Octets of body not yet received.
    pub missing_bytes: u64,
    /// Body so far, when it comes in more than one frame.
    pub body: BytesMut,
    /// What `body` takes of what may be unfinished; none for a body in one frame.
    pub share: Option<Share>,
}

/// A channel.
#[derive(Debug)]
pub struct Channel {
    /// Which life of which number it is.
    pub life: ChannelLife,
    /// Where it is in its life.
    pub state: State,
    /// A method is being answered; the next ones wait in `backlog`.
    pub waiting: bool,
    /// Frames that wait.
    pub backlog: VecDeque<(FrameKind, Bytes)>,
    /// The message being received.
    pub content: Option<Content>,
    /// Publishes so far.
    pub published: u64,
    /// Name of the exchange published to last, and the number of the first publish to it in a row.
    pub exchange: (Bytes, u64),
    /// Set by `confirm.select`.
    pub confirms: Option<Box<Confirms>>,
    /// Set by `tx.select`.
    pub tx: Option<Box<Transaction>>,
    /// Its consumer of the pseudo-queue of answers.
    pub reply: Option<Box<ReplyQueue>>,
    /// Deliveries so far.
    pub delivered: u64,
    /// Deliveries sent and not acknowledged.
    pub unacked: Unacked,
    /// Limit per consumer, for consumers to come; 0 is none.
    pub prefetch: u16,
    /// Limit for the channel as a whole; 0 is none.
    pub window: u16,
    /// Deliveries to consumers that count against `window`.
    pub in_window: u32,
    /// Deliveries held back by `window`: at most `window` for each consumer, since none has more credit.
    pub held: VecDeque<Delivery>,
    /// Consumers by their tag.
    pub consumers: FxHashMap<Bytes, ConsumerTag>,
    /// What `basic.get` calls its deliveries, by queue.
    pub gets: FxHashMap<Arc<str>, ConsumerTag>,
    /// Consumers the broker ended while a method was being answered: told after the answer, as clients
    /// that delete a queue they consume from expect.
    pub ended: Vec<Bytes>,
    /// The queue declared last, for methods that name none.
    pub last_queue: Option<Arc<str>>,
}

impl Channel {
    /// An open channel.
    pub fn new(life: ChannelLife) -> Self {
        Self {
            life,
            state: State::Open,
            waiting: false,
            backlog: VecDeque::new(),
            content: None,
            published: 0,
            exchange: (Bytes::new(), 0),
            confirms: None,
            tx: None,
            reply: None,
            delivered: 0,
            unacked: Unacked::default(),
            prefetch: 0,
            window: 0,
            in_window: 0,
            held: VecDeque::new(),
            consumers: FxHashMap::default(),
            gets: FxHashMap::default(),
            ended: Vec::new(),
            last_queue: None,
        }
    }

    /// Whether nothing waits to be done on it.
    pub fn is_idle(&self) -> bool {
        match self.state {
            State::Open => !self.waiting && self.backlog.is_empty(),
            State::ClosedByUs => true,
            State::ClosedByPeer { detaching } => detaching == 0,
        }
    }
}

/// A consumer, as the connection knows it.
#[derive(Debug)]
pub struct Consumer {
    /// Its channel.
    pub of: ChannelLife,
    /// Its tag.
    pub tag: Bytes,
    /// Deliveries are settled by being handed out.
    pub no_ack: bool,
    /// Its own limit of unsettled deliveries.
    pub credit: u32,
    /// It was cancelled or its channel closed: deliveries on their way go back.
    pub detaching: bool,
    /// What its deliveries are stamped with.
    pub told: Told,
    /// Questions under way that it gives back all it has: deliveries are void until they are answered.
    pub giving_back: u32,
}

/// What a queue tells with each delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing.
    Nothing,
    /// How often the message came back, if it did.
    Returns,
    /// Its offset.
    Offset,
}

/// What stands for the pseudo-queue of answers on a channel.
#[derive(Debug)]
pub struct ReplyQueue {
    /// The queue's own name.
    pub name: Arc<str>,
    /// Who reads it.
    pub consumer: ConsumerTag,
}

/// A question to core that waits for its answer.
#[derive(Debug)]
pub struct Ask {
    /// The channel that waits; channel 0 is the connection.
    pub of: ChannelLife,
    /// The method that asked.
    pub method: (u16, u16),
    /// What is done with the answer.
    pub then: Then,
}

/// What is done with an answer.
#[derive(Debug)]
pub enum Then {
    /// Log in.
    LogIn,
    /// Enter the vhost.
    Enter(Arc<str>),
    /// Answer the method with the `-ok` that has no arguments, unless `nowait`.
    Ok {
        /// No answer is wanted.
        nowait: bool,
    },
    /// Answer `queue.declare-ok`.
    Declared {
        /// The queue.
        queue: Arc<str>,
        /// No answer is wanted.
        nowait: bool,
    },
    /// Answer with a count of messages.
    Counted {
        /// No answer is wanted.
        nowait: bool,
    },
    /// Answer `queue.declare-ok` for a reply queue that was asked after.
    ReplyExists {
        /// The queue.
        queue: Arc<str>,
        /// No answer is wanted.
        nowait: bool,
    },
    /// Attach the consumer of a reply queue that was declared for it.
    ReplyQueue {
        /// The consumer.
        consume: Box<Consume>,
        /// No answer is wanted.
        nowait: bool,
    },
    /// Answer `basic.consume-ok`.
    Consuming {
        /// The consumer.
        consumer: ConsumerTag,
        /// No answer is wanted.
        nowait: bool,
    },
    /// Answer `basic.cancel-ok`.
    Cancelled {
        /// The consumer.
        consumer: ConsumerTag,
        /// Its tag, since the broker may end it before the answer comes.
        tag: Bytes,
        /// No answer is wanted.
        nowait: bool,
    },
    /// Answer `basic.get-ok` or `basic.get-empty`.
    Got {
        /// What the delivery is called.
        consumer: ConsumerTag,
        /// It is settled by being handed out.
        no_ack: bool,
    },
    /// A consumer gave back all it had.
    GaveBack {
        /// The consumer.
        consumer: ConsumerTag,
    },
    /// A consumer of a closed channel is detached.
    Detached {
        /// The consumer.
        consumer: ConsumerTag,
    },
}
