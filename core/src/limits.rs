//! What is asked of a stream beyond keeping order: mode, sizes, times, what happens to what it drops.
//!
//! Owns: [`StreamLimits`], as declarations and policies ask it and as a shard keeps it. Persisted as JSON inside
//! records, metadata and checkpoints: fields keep their names and meaning, a new field gets a default.
//! Never: does any of it (`shard/limit.rs`, `dispatch.rs`).
//! Next: `stream.rs`.

use crate::address::Address;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::ops::{Deref, DerefMut};
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
    /// It waits until there is room, and its publisher with it.
    Hold,
}

/// How long a message that came back waits before it is ready again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retry {
    /// Never longer than so many milliseconds.
    #[serde(default)]
    pub max_ms: Option<u64>,
    /// After its first return, in milliseconds; at least 1.
    pub min_ms: u64,
    /// After each further return so many times as long; absent: by `min_ms` longer.
    #[serde(default)]
    pub multiplier: Option<u32>,
}

impl Retry {
    /// After so many deliveries.
    pub fn wait_ms(&self, deliveries: u32) -> u64 {
        let times = u64::from(deliveries.max(1));
        let wait_ms = match self.multiplier {
            None => self.min_ms.saturating_mul(times),
            Some(multiplier) => {
                let power = u64::from(multiplier).checked_pow(deliveries.max(1) - 1);
                self.min_ms.saturating_mul(power.unwrap_or(u64::MAX))
            }
        };
        wait_ms.min(self.max_ms.unwrap_or(u64::MAX))
    }
}

/// How sure a dropped message arrives where it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterStrategy {
    /// A full stream that refuses does not get it; what has no destination is gone.
    #[default]
    AtMostOnce,
    /// It stays where it was dropped until all its destinations have it.
    AtLeastOnce,
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
    /// Messages of a higher priority go out first, priorities up to here; absent: they make no difference. By
    /// declaration only, and not in [`Mode::KeyShared`] or [`Mode::Replay`].
    pub priority_max: Option<u8>,
    /// Where dropped messages go.
    pub dead_letter: Option<DeadLetterTo>,
    /// How sure they arrive there; see [`StreamLimits::insists`].
    pub dead_letter_strategy: DeadLetterStrategy,
    /// How long a message waits that its reader gave back; absent: it is ready at once.
    pub retry: Option<Retry>,
    /// A delivery is taken from its reader after so many milliseconds without settlement; 0 is never, absent is what
    /// the shard says.
    pub ack_timeout_ms: Option<u64>,
}

/// No limit.
static NONE: StreamLimits = StreamLimits {
    auto_delete: false,
    mode: Mode::Shared,
    expires_ms: None,
    message_ttl_ms: None,
    messages_max: None,
    bytes_max: None,
    age_max_ms: None,
    overflow: Overflow::DropOldest,
    delivery_limit: None,
    priority_max: None,
    dead_letter: None,
    dead_letter_strategy: DeadLetterStrategy::AtMostOnce,
    retry: None,
    ack_timeout_ms: None,
};

/// The limits of one stream as its shard keeps them: nothing at all where there are none, since there may be millions.
#[derive(Clone, Debug, Default)]
pub struct KeptLimits(Option<Box<StreamLimits>>);

impl Deref for KeptLimits {
    type Target = StreamLimits;

    fn deref(&self) -> &StreamLimits {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for KeptLimits {
    fn deref_mut(&mut self) -> &mut StreamLimits {
        self.0.get_or_insert_default()
    }
}

impl From<StreamLimits> for KeptLimits {
    fn from(limits: StreamLimits) -> KeptLimits {
        KeptLimits((limits != NONE).then(|| Box::new(limits)))
    }
}

impl StreamLimits {
    /// Whether ready messages are bounded, by dropping the oldest.
    pub fn drops_oldest(&self) -> bool {
        self.is_bounded() && self.overflow == Overflow::DropOldest
    }

    /// Whether ready messages are bounded, by refusing further ones or letting them wait.
    pub fn refuses(&self) -> bool {
        self.is_bounded() && self.overflow != Overflow::DropOldest
    }

    /// Whether ready messages are bounded, by letting further ones wait.
    pub fn holds(&self) -> bool {
        self.is_bounded() && self.overflow == Overflow::Hold
    }

    /// Whether dropped messages must arrive where they go. Not of a stream that drops its oldest to take more: what it
    /// had to keep would bound nothing.
    pub fn insists(&self) -> bool {
        self.dead_letter_strategy == DeadLetterStrategy::AtLeastOnce
            && self.dead_letter.is_some()
            && self.overflow != Overflow::DropOldest
    }

    fn is_bounded(&self) -> bool {
        self.messages_max.is_some() || self.bytes_max.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_by_steps_or_by_a_factor_up_to_the_most() {
        let waits = |retry: Retry| [0, 1, 2, 3, 9, u32::MAX].map(|times| retry.wait_ms(times));
        let linear = Retry {
            min_ms: 100,
            max_ms: Some(500),
            multiplier: None,
        };
        assert_eq!(waits(linear), [100, 100, 200, 300, 500, 500]);
        let doubled = Retry {
            multiplier: Some(2),
            ..linear
        };
        assert_eq!(waits(doubled), [100, 100, 200, 400, 500, 500]);
        let constant = Retry {
            multiplier: Some(1),
            ..linear
        };
        assert_eq!(waits(constant), [100; 6]);
        let endless = Retry {
            max_ms: None,
            ..doubled
        };
        assert_eq!(endless.wait_ms(u32::MAX), u64::MAX);
    }
}
