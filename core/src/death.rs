//! What became of a message that a stream dropped and that went on elsewhere: its death records.
//!
//! Owns: [`Deaths`], which travel with the message and which gateways show in their own words. Persisted in records
//! and checkpoints (postcard: fields append never, a new form gets a new flag in `record.rs`).
//! Never: when a message is dropped (`shard/limit.rs`), where it goes (`worker/forward.rs`).

use crate::id::UnixMs;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Why a stream dropped a message. Persisted in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeathReason {
    /// A consumer did not want it.
    Rejected,
    /// It ended.
    Expired,
    /// The stream was full.
    Overflow,
    /// It came back too often.
    DeliveryLimit,
}

/// Drops of one stream for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// The stream's name.
    pub stream: Arc<str>,
    /// Why.
    pub reason: DeathReason,
    /// How often.
    pub count: u64,
    /// When first.
    pub first: UnixMs,
    /// The exchange it had been published to.
    pub exchange: Bytes,
    /// The address it had been published to, as core writes it.
    pub address: Bytes,
    /// See [`Message::origin_key`](crate::message::Message::origin_key).
    pub origin_key: Bytes,
    /// Milliseconds it had been given to live by its publisher, when it was given some and they were taken off.
    pub time_to_live_ms: Option<u64>,
}

/// All drops of one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deaths {
    /// Newest first; one for each stream and reason.
    pub list: Vec<Death>,
    /// Of the first of all: stream, reason and exchange.
    pub first: (Arc<str>, DeathReason, Bytes),
}

impl Deaths {
    /// Most records a message keeps; older ones are forgotten.
    pub const MAX: usize = 32;

    /// With one more drop: counted into the record of the same stream and reason, which moves to the front.
    pub fn with(before: Option<&Deaths>, death: Death) -> Deaths {
        let first = before.map_or_else(
            || (death.stream.clone(), death.reason, death.exchange.clone()),
            |deaths| deaths.first.clone(),
        );
        let mut list = before.map(|deaths| deaths.list.clone()).unwrap_or_default();
        let same = list
            .iter()
            .position(|known| known.stream == death.stream && known.reason == death.reason);
        let newest = match same {
            Some(at) => {
                let known = list.remove(at);
                Death {
                    count: known.count + 1,
                    ..known
                }
            }
            None => death,
        };
        list.insert(0, newest);
        list.truncate(Self::MAX);
        Deaths { list, first }
    }

    /// Whether a drop now would go round for ever: the message was dropped by this stream before, and by no
    /// consumer's wish since.
    pub fn cycles(&self, stream: &str) -> bool {
        let since = self.list.iter().position(|known| &*known.stream == stream);
        since.is_some_and(|at| {
            let mut since = self.list[..=at].iter();
            since.all(|known| known.reason != DeathReason::Rejected)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(stream: &str, reason: DeathReason) -> Death {
        Death {
            stream: stream.into(),
            reason,
            count: 1,
            first: UnixMs(1),
            exchange: Bytes::new(),
            address: Bytes::new(),
            origin_key: Bytes::new(),
            time_to_live_ms: None,
        }
    }

    #[test]
    fn the_same_death_is_counted_and_comes_to_the_front() {
        let one = Deaths::with(None, death("a", DeathReason::Expired));
        let two = Deaths::with(Some(&one), death("b", DeathReason::Rejected));
        let three = Deaths::with(Some(&two), death("a", DeathReason::Expired));
        let told: Vec<_> = three
            .list
            .iter()
            .map(|known| (&*known.stream, known.count))
            .collect();
        assert_eq!(told, [("a", 2), ("b", 1)]);
        assert_eq!(&*three.first.0, "a");
    }

    #[test]
    fn a_circle_without_a_rejection_is_seen() {
        let one = Deaths::with(None, death("a", DeathReason::Expired));
        let two = Deaths::with(Some(&one), death("b", DeathReason::Overflow));
        assert!(two.cycles("a") && two.cycles("b") && !two.cycles("c"));
        let wished = Deaths::with(Some(&two), death("c", DeathReason::Rejected));
        assert!(!wished.cycles("a"));
    }
}
