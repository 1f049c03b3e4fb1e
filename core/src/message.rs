//! The canonical unit that flows: address, properties, body, origin.
//!
//! A message keeps its origin's properties as the bytes that came in, with the origin's tag. Delivery
//! by the same gateway forwards those bytes; another gateway asks the origin's [`PropertyCodec`] for
//! the neutral form at that moment. What core itself needs (expiry, quality, priority) stands beside
//! the bytes, so that no hot path decodes them.
//!
//! Owns: [`Message`] and its small enums.
//! Never: an encoding of the raw properties.
//! Next: `properties.rs` (the neutral form), `record.rs` (how it is stored).
//!
//! [`PropertyCodec`]: crate::properties::PropertyCodec

use crate::address::Address;
use crate::death::Deaths;
use crate::id::{ConnectionId, UnixMs};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Which gateway a message came in by, as its persisted number. 0 is the broker itself (neutral
/// properties in core's own encoding, see [`Properties::encode`](crate::properties::Properties::encode)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct OriginTag(pub u8);

impl OriginTag {
    /// The broker itself: console, CLI, API.
    pub const BROKER: OriginTag = OriginTag(0);
}

/// How sure delivery shall be. Persisted numbers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[repr(u8)]
pub enum Quality {
    /// May be lost.
    #[default]
    AtMostOnce = 0,
    /// Acknowledged, may come twice.
    AtLeastOnce = 1,
    /// Acknowledged twice over, comes once.
    ExactlyOnce = 2,
}

impl Quality {
    /// The quality with this persisted number.
    pub fn from_number(number: u8) -> Option<Quality> {
        match number {
            0 => Some(Quality::AtMostOnce),
            1 => Some(Quality::AtLeastOnce),
            2 => Some(Quality::ExactlyOnce),
            _ => None,
        }
    }
}

/// A message, shared by reference between everyone it is delivered to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Name of the exchange it was published to; empty is the default exchange. UTF-8, at most 255 bytes.
    pub exchange: Bytes,
    /// Canonical address.
    pub address: Address,
    /// The address as its origin wrote it, only when that cannot be had back from `address`; else empty.
    pub origin_key: Bytes,
    /// Which gateway's encoding `properties` is.
    pub origin: OriginTag,
    /// The origin's properties as they came in.
    pub properties: Bytes,
    /// The payload.
    pub body: Bytes,
    /// What the publisher asked for.
    pub quality: Quality,
    /// Whether the publisher asked to keep it as the last value of its address.
    pub retain: bool,
    /// 0 lowest; gateways without priorities use 0.
    pub priority: u8,
    /// When it was taken in (the receiving node's clock).
    pub published: UnixMs,
    /// When it ends, if ever.
    pub expires: Option<UnixMs>,
    /// The connection that published it, for subscribers that do not want their own; 0 is none.
    /// Not stored: after a restart no connection is the publisher any more.
    pub publisher: ConnectionId,
    /// What dropped it on its way here, if anything did.
    pub deaths: Option<Arc<Deaths>>,
}

impl Message {
    /// What it costs in memory, in bytes, roughly: its variable parts, and a fixed share for itself, its
    /// reference count, its allocations and an entry in one stream.
    pub fn cost_bytes(&self) -> usize {
        const FIXED: usize = 320;
        FIXED
            + self.exchange.len()
            + self.address.0.len()
            + self.origin_key.len()
            + self.properties.len()
            + self.body.len()
    }

    /// Whether it has ended at `now`.
    pub fn expired(&self, now: UnixMs) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }

    /// Milliseconds left at `now`, at least 1 while it is alive; `None` when it never ends.
    pub fn remaining_ms(&self, now: UnixMs) -> Option<u64> {
        self.expires.map(|end| end.0.saturating_sub(now.0).max(1))
    }

    /// A copy whose bytes are its own: for messages that stay, so that a small one does not keep a
    /// whole read buffer alive.
    pub fn detached(&self) -> Message {
        let total = self.exchange.len()
            + self.address.0.len()
            + self.origin_key.len()
            + self.properties.len()
            + self.body.len();
        let mut all = Vec::with_capacity(total);
        for part in [
            &self.exchange,
            &self.address.0,
            &self.origin_key,
            &self.properties,
            &self.body,
        ] {
            all.extend_from_slice(part);
        }
        let mut all = Bytes::from(all);
        Message {
            exchange: all.split_to(self.exchange.len()),
            address: Address(all.split_to(self.address.0.len())),
            origin_key: all.split_to(self.origin_key.len()),
            properties: all.split_to(self.properties.len()),
            body: all,
            deaths: self.deaths.clone(),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detached_copy_is_equal_and_its_own() {
        let buffer = Bytes::from(vec![b'x'; 4096]);
        let message = Message {
            body: buffer.slice(0..10),
            properties: buffer.slice(20..25),
            ..Message::default()
        };
        let copy = message.detached();
        assert_eq!(copy, message);
        assert_ne!(copy.body.as_ptr(), message.body.as_ptr());
    }

    #[test]
    fn a_live_message_has_at_least_a_millisecond_left() {
        let message = Message {
            expires: Some(UnixMs(100)),
            ..Message::default()
        };
        assert!(!message.expired(UnixMs(99)) && message.expired(UnixMs(100)));
        assert_eq!(message.remaining_ms(UnixMs(99)), Some(1));
    }
}
