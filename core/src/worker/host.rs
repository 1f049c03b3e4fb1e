//! What a worker and its host say to each other.
//!
//! Owns: credentials to check and their result, what leaves a worker and what comes back, the mail of a
//! connection, rows and counts for the console.
//! Never: decides anything. Next: `worker.rs`.

use crate::error::Refusal;
use crate::gateway::{Answer, Delivery, StopReason};
use crate::id::{ConnectionId, ShardId, WorkerId};
use crate::meta::{MetaCommand, MetaReply};
use crate::port::{ShardEvent, ShardRequest};
use std::net::SocketAddr;
use std::sync::Arc;

/// Credentials to check.
#[derive(Clone, Debug)]
pub struct LoginRequest {
    /// Whose.
    pub connection: ConnectionId,
    /// By which gateway.
    pub protocol: &'static str,
    /// From where.
    pub peer: SocketAddr,
    /// Absent: anonymous.
    pub user: Option<Arc<str>>,
    /// Absent: none given.
    pub secret: Option<bytes::Bytes>,
    /// Client identifier; may be empty.
    pub client_id: Arc<str>,
}

/// Credentials that were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// As which user.
    pub user: Arc<str>,
    /// Without credentials.
    pub anonymous: bool,
    /// With which roles.
    pub roles: Vec<Arc<str>>,
}

/// What a worker wants from its host.
#[derive(Debug)]
pub enum Outgoing {
    /// Requests to a shard that another thread holds.
    Requests {
        /// Which.
        to: ShardId,
        /// In order.
        requests: Vec<ShardRequest>,
    },
    /// Events of the volatile shard hosted here, for another worker.
    Events {
        /// Which.
        to: WorkerId,
        /// From.
        from: ShardId,
        /// In order.
        events: Vec<ShardEvent>,
    },
    /// Check credentials; answered by [`HostAnswer::Verified`].
    Verify {
        /// Answered with it.
        ask: u64,
        /// What.
        login: LoginRequest,
    },
    /// Propose to the metadata shard; answered by [`HostAnswer::Proposed`].
    Propose {
        /// Answered with it.
        ask: u64,
        /// What.
        command: MetaCommand,
    },
}

/// What the host answers.
#[derive(Debug)]
pub enum HostAnswer {
    /// To [`Outgoing::Verify`].
    Verified {
        /// Of the question.
        ask: u64,
        /// How.
        result: Result<Verified, Refusal>,
    },
    /// To [`Outgoing::Propose`].
    Proposed {
        /// Of the question.
        ask: u64,
        /// How.
        result: Result<MetaReply, Refusal>,
    },
}

/// What a connection is to be fed, in this order.
#[derive(Debug, Default)]
pub struct Mail {
    /// Answers.
    pub answers: Vec<Answer>,
    /// Deliveries.
    pub deliveries: Vec<Delivery>,
    /// Answers that come behind them.
    pub late: Vec<Answer>,
    /// The broker ends it.
    pub stop: Option<StopReason>,
}

impl Mail {
    /// Whether there is nothing to feed.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
            && self.deliveries.is_empty()
            && self.late.is_empty()
            && self.stop.is_none()
    }
}

/// Counts since the worker started.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerCounts {
    /// Connections open now.
    pub connections: u64,
    /// Messages taken in.
    pub published: u64,
    /// Their bodies' bytes.
    pub published_bytes: u64,
    /// Messages that no stream wanted.
    pub unroutable: u64,
    /// Messages refused.
    pub refused: u64,
    /// Messages handed to connections.
    pub delivered: u64,
    /// Their bodies' bytes.
    pub delivered_bytes: u64,
    /// Commands that the rules denied.
    pub denied: u64,
}

/// What the console shows of a connection beside its gateway's own view.
#[derive(Clone, Debug)]
pub struct ConnectionRow {
    /// Which.
    pub id: ConnectionId,
    /// Gateway.
    pub protocol: &'static str,
    /// The other end.
    pub peer: SocketAddr,
    /// User; empty before login.
    pub user: Arc<str>,
    /// Vhost; empty before it is entered.
    pub vhost: Arc<str>,
    /// Messages it published.
    pub published: u64,
    /// Messages it was handed.
    pub delivered: u64,
    /// Consumers and sessions it reads by.
    pub readers: u32,
    /// Publishers of a full shard are held back.
    pub blocked: bool,
}
