//! Who may do what: the questions core asks, answered by `auth/`.
//!
//! Owns: [`Principal`], [`Action`], [`Resource`], [`Verdict`] and the trait [`Authority`].
//! Never: rules, passwords or tokens.
//! Next: `auth/README.md` for the table operation -> action x resource.

use crate::address::{Address, TopicFilter};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;

/// Who acts, as established at login. Shared, never changed; a change of roles makes a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principal {
    /// Unique among live principals of this node: key of verdict caches.
    pub id: u64,
    /// User name; empty for an anonymous one.
    pub user: Arc<str>,
    /// Came in without credentials.
    pub anonymous: bool,
    /// Client identifier where the protocol has one.
    pub client_id: Arc<str>,
    /// Short name of the gateway, such as a rule may name it; `http` for API and console.
    pub protocol: &'static str,
    /// Where from.
    pub address: Option<IpAddr>,
    /// Roles and groups held.
    pub roles: Vec<Arc<str>>,
}

/// What is done. Persisted by name in rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Open a connection to a vhost.
    Connect,
    /// Publish to an exchange or topic.
    Publish,
    /// Be handed a message of this address.
    Receive,
    /// Bind one's own session to a filter.
    Subscribe,
    /// Take messages from a stream.
    Consume,
    /// Declare or delete a stream or exchange.
    Configure,
    /// Bind or unbind a stream and an exchange.
    Bind,
    /// Remove all messages of a stream.
    Purge,
    /// Look at messages without taking them.
    Peek,
    /// Set or clear a last value.
    Retain,
    /// Join a shared group.
    Share,
    /// See the console and the API.
    AdminManagement,
    /// Change policies.
    AdminPolicy,
    /// See nodes and metrics.
    AdminMonitoring,
    /// Everything: users, rules, vhosts.
    AdminAll,
}

/// On what. Borrowed: asking allocates nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource<'a> {
    /// The vhost itself (connect).
    Vhost,
    /// An address, by whatever protocol it is spoken of.
    Topic(&'a Address),
    /// A filter: allowed when every address it can match is.
    Filter(&'a TopicFilter),
    /// An exchange by name.
    Exchange(&'a str),
    /// A queue or other stream by name.
    Queue(&'a str),
    /// A session by client identifier.
    Session(&'a str),
    /// Administration.
    Admin,
}

/// What a rule's conditions look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Quality as its number.
    pub quality: u8,
    /// Retain asked.
    pub retain: bool,
    /// Size of the body.
    pub body_bytes: usize,
}

/// Allow or deny, and which rule said so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether it may be done.
    pub allowed: bool,
    /// The rule that decided; `None` when none matched (then it is denied).
    pub rule: Option<Arc<str>>,
}

/// A question, whole.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Who.
    pub principal: &'a Principal,
    /// Does what.
    pub action: Action,
    /// In which vhost.
    pub vhost: &'a str,
    /// On what.
    pub resource: Resource<'a>,
    /// How.
    pub circumstances: Circumstances,
}

/// Answers core's questions. Implemented by `auth/`; called from every worker and shard thread.
pub trait Authority: Send + Sync {
    /// Decides. Must not block on I/O.
    fn decide(&self, question: &Question<'_>) -> Verdict;

    /// Changes whenever any verdict may have changed: cached verdicts of an older generation are void.
    fn generation(&self) -> u64;

    /// Whether verdicts depend on [`Circumstances`] for this action (then they are not cached).
    fn circumstantial(&self, action: Action) -> bool;
}

/// Allows everything: for tests and for a broker without rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl Authority for AllowAll {
    fn decide(&self, _: &Question<'_>) -> Verdict {
        Verdict {
            allowed: true,
            rule: None,
        }
    }
    fn generation(&self) -> u64 {
        0
    }
    fn circumstantial(&self, _: Action) -> bool {
        false
    }
}
