//! What a connection says of its session: opening it, its will, its filters.
//!
//! Owns: the pieces of [`Command`](super::Command) that are about these.

use crate::address::TopicFilter;
use crate::id::ConsumerTag;
use crate::message::{Message, Quality};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A session to open.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionOpen {
    /// Unique in the vhost.
    pub client_id: Arc<str>,
    /// Forget an earlier session first.
    pub clean_start: bool,
    /// Seconds it outlives its connection; `u32::MAX` never ends; 0 ends with it.
    pub expiry_s: u32,
    /// What the connection calls its deliveries.
    pub consumer: ConsumerTag,
    /// How many deliveries above [`Quality::AtMostOnce`] it may hold unsettled.
    pub credit: u32,
    /// The first tag for its memberships in groups: each has a tag of its own, this one and those above.
    pub group_consumers: ConsumerTag,
    /// Published when its connection ends out of order; only for sessions that outlive their connection
    /// (others' wills are their gateway's to publish). `AccessRefused` when it may not be published.
    pub will: Option<Will>,
}

/// A message to publish when a session's connection ends out of order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// The message, complete but for its time.
    pub message: Arc<Message>,
    /// Seconds to wait after the end of the connection; the end of the session comes first.
    pub delay_s: u32,
}

/// A filter to bind a session to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFilter {
    /// What.
    pub spec: FilterSpec,
    /// As a member of this group: each message goes to one of its members. At most
    /// [`Quality::AtLeastOnce`] is granted then, and no last values are sent.
    pub group: Option<Arc<str>>,
    /// Whether the last values that match are sent now, with the retain flag.
    pub retained: SendRetained,
}

/// When a subscription is sent last values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendRetained {
    /// Each time it is made.
    #[default]
    Always,
    /// When the session did not have it before.
    IfNew,
    /// Never.
    Never,
}

/// Names a subscription of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FilterName {
    /// The group it is a member of.
    pub group: Option<Arc<str>>,
    /// Its filter.
    pub filter: TopicFilter,
}

/// A filter of a session, with what it asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterSpec {
    /// Which addresses.
    pub filter: TopicFilter,
    /// The most it wants; a delivery has the lower of this and the publisher's.
    pub quality: Quality,
    /// Not what this same connection published.
    pub no_local: bool,
    /// Keep the publisher's retain flag on live messages.
    pub retain_as_published: bool,
    /// A number of the subscriber's, handed back with each delivery; 0 is none.
    pub identifier: u32,
}
