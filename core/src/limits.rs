//! What is asked of a stream beyond keeping order: mode, sizes, times, what happens to what it drops.
//!
//! Owns: [`StreamLimits`], as declarations and policies ask it and as a shard keeps it. Persisted as JSON inside
//! records, metadata and checkpoints: fields keep their names and meaning, a new field gets a default.
//! Never: does any of it (`shard/limit.rs`, `dispatch.rs`).
//! Next: `stream.rs`.

use crate::address::Address;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How the readers of one stream share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By credit and priority, in turns; no order across readers.
    #[default]
    Shared,
    /// A second reader is refused.
    Exclusive,
    /// One reader at a time, by priority, then by arrival; the others wait.
    Failover,
    /// By key: messages of one key are unsettled at one reader only, in order.
    KeyShared,
    /// Each reader reads all of it, from a place of its own; messages stay however often they were read, until they
    /// are too old or too much ([`StreamLimits::age_max_ms`], [`StreamLimits::bytes_max`]). Only by declaration.
    Replay,
}

/// What happens to a publish when the stream is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// It is taken; the oldest ready message is dropped.
    #[default]
    DropOldest,
    /// It is refused.
    Reject,
    /// It is refused, and goes where dropped messages go.
    RejectAndDeadLetter,
}

/// Where dropped messages go.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeadLetterTo {
    /// An exchange of the same vhost; empty is the default exchange. Missing: the message is dropped.
    pub exchange: Arc<str>,
    /// Another key; absent: the message's own.
    #[serde(default)]
    pub key: Option<Box<DeadLetterKey>>,
}

/// A key as its gateway wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeadLetterKey {
    /// Canonical.
    pub address: Address,
    /// See [`Message::origin_key`](crate::message::Message::origin_key).
    #[serde(default)]
    pub origin_key: Bytes,
}

/// What bounds a stream; absent is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamLimits {
    /// Goes when its last consumer goes.
    pub auto_delete: bool,
    /// How readers share it.
    pub mode: Mode,
    /// Goes when it was not used (consumed, declared, taken from) for so many milliseconds.
    pub expires_ms: Option<u64>,
    /// A message ends so many milliseconds after it came in; its own expiry counts when it is earlier.
    pub message_ttl_ms: Option<u64>,
    /// Ready messages.
    pub messages_max: Option<u64>,
    /// Bytes of the bodies of ready messages.
    pub bytes_max: Option<u64>,
    /// How long messages stay, in milliseconds after they came in; only in [`Mode::Replay`].
    pub age_max_ms: Option<u64>,
    /// What happens beyond.
    pub overflow: Overflow,
    /// How often a message may come back before it is dropped.
    pub delivery_limit: Option<u32>,
    /// Where dropped messages go.
    pub dead_letter: Option<DeadLetterTo>,
}

impl StreamLimits {
    /// Whether ready messages are bounded, by dropping the oldest.
    pub fn drops_oldest(&self) -> bool {
        self.is_bounded() && self.overflow == Overflow::DropOldest
    }

    /// Whether ready messages are bounded, by refusing further ones.
    pub fn refuses(&self) -> bool {
        self.is_bounded() && self.overflow != Overflow::DropOldest
    }

    fn is_bounded(&self) -> bool {
        self.messages_max.is_some() || self.bytes_max.is_some()
    }
}
