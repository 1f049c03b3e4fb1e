//! Neutral properties: the form between any two gateways, and the broker's own.
//!
//! Owns: [`Properties`], [`Value`], the trait [`PropertyCodec`] by which a gateway registers its
//! conversion, and the registry of those.
//! Never: a protocol's names of headers (each gateway's `map` module owns how it writes what has no
//! counterpart of its own).

use crate::id::UnixMs;
use crate::message::{Message, OriginTag, Quality};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A header value with its type kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// No value.
    Void,
    /// True or false.
    Bool(bool),
    /// A whole number with its width in bits (8, 16, 32, 64), negative allowed.
    Int(i64, u8),
    /// A whole number that is never negative, with its width in bits.
    UInt(u64, u8),
    /// 32-bit floating point.
    Float(f32),
    /// 64-bit floating point.
    Double(f64),
    /// `unscaled / 10^scale`.
    Decimal {
        /// Digits after the point.
        scale: u8,
        /// All digits.
        unscaled: u32,
    },
    /// Text or bytes of any length.
    Text(Bytes),
    /// Text or bytes of at most 255 bytes, where the origin tells it apart from `Text`.
    ShortText(Bytes),
    /// Bytes that are no text.
    Binary(Bytes),
    /// Seconds since the Unix epoch.
    Timestamp(u64),
    /// Values in order.
    List(Vec<Value>),
    /// Named values in order, repeats allowed.
    Table(Vec<(Bytes, Value)>),
}

/// Where an answer goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplyTo {
    /// A canonical address, published to the vhost's topic exchange.
    Topic(Bytes),
    /// A stream by its name, published to the default exchange.
    Stream(Bytes),
}

/// Everything a message may say about itself, without a protocol. Absent and empty are told apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Properties {
    /// MIME type of the body.
    pub content_type: Option<Bytes>,
    /// MIME encoding of the body.
    pub content_encoding: Option<Bytes>,
    /// Ties an answer to its question.
    pub correlation: Option<Bytes>,
    /// Where an answer goes.
    pub reply_to: Option<ReplyTo>,
    /// The publisher's id of the message.
    pub message_id: Option<Bytes>,
    /// The publisher's time stamp, seconds since the Unix epoch.
    pub timestamp: Option<u64>,
    /// The publisher's kind of message.
    pub kind: Option<Bytes>,
    /// The publishing application.
    pub app_id: Option<Bytes>,
    /// The publishing user, checked on the way in where a protocol says so.
    pub user_id: Option<Bytes>,
    /// As set by the publisher; absent and 0 are told apart.
    pub priority: Option<u8>,
    /// Whether the body is said to be UTF-8 text.
    pub is_text: Option<bool>,
    /// Time to live as the publisher gave it, in milliseconds.
    pub time_to_live_ms: Option<u64>,
    /// Delivery quality as the publisher gave it, when it did.
    pub quality: Option<Quality>,
    /// The publisher asked to keep it as the last value of its address.
    pub retain: bool,
    /// Named values in order, repeats allowed.
    pub headers: Vec<(Bytes, Value)>,
}

impl Properties {
    /// The broker's own encoding, origin [`OriginTag::BROKER`]. Persisted: one version byte (1), then
    /// JSON of this struct.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![1];
        // Writing this struct to memory cannot fail: all its map keys are field names.
        if let Ok(json) = serde_json::to_vec(self) {
            out.extend_from_slice(&json);
        }
        Bytes::from(out)
    }

    /// Reads what [`Properties::encode`] wrote; anything else is no properties.
    pub fn decode(raw: &[u8]) -> Properties {
        match raw.split_first() {
            Some((1, json)) => serde_json::from_slice(json).unwrap_or_default(),
            _ => Properties::default(),
        }
    }
}

/// A gateway's conversion between its raw properties and the neutral form. Pure.
pub trait PropertyCodec: Send + Sync {
    /// The neutral form of a message that came in by this gateway. Bytes that do not parse (they were
    /// checked on the way in) give what could be read.
    fn to_neutral(&self, message: &Message) -> Properties;

    /// When a message asks to be routed by an exchange that delays; absent: at once.
    fn later(&self, message: &Message) -> Option<Wait> {
        let _ = message;
        None
    }

    /// The raw properties of a message that has waited as it asked, so that it does not ask again; absent: as they
    /// are.
    fn waited(&self, message: &Message) -> Option<Bytes> {
        let _ = message;
        None
    }
}

/// How long a message asks to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// So many milliseconds from its publishing on.
    For(u64),
    /// Until this time.
    Until(UnixMs),
}

impl Wait {
    /// When it is over that begins at `since`.
    pub fn end(self, since: UnixMs) -> UnixMs {
        match self {
            Wait::For(ms) => since.after(ms),
            Wait::Until(time) => time,
        }
    }
}

/// Who converts which origin's properties; made once by `server/`.
#[derive(Clone, Default)]
pub struct Codecs {
    by_tag: Vec<(OriginTag, Arc<dyn PropertyCodec>)>,
}

impl Codecs {
    /// Registers the codec of `origin`.
    pub fn register(&mut self, origin: OriginTag, codec: Arc<dyn PropertyCodec>) {
        self.by_tag.push((origin, codec));
    }

    /// The neutral properties of any message; none when its origin is unknown to this build.
    pub fn neutral(&self, message: &Message) -> Properties {
        if message.origin == OriginTag::BROKER {
            return Properties::decode(&message.properties);
        }
        self.of(message)
            .map(|codec| codec.to_neutral(message))
            .unwrap_or_default()
    }

    /// See [`PropertyCodec::later`]. The broker's own messages never ask.
    pub fn later(&self, message: &Message) -> Option<Wait> {
        self.of(message)?.later(message)
    }

    /// See [`PropertyCodec::waited`].
    pub fn waited(&self, message: &Message) -> Option<Bytes> {
        self.of(message)?.waited(message)
    }

    fn of(&self, message: &Message) -> Option<&dyn PropertyCodec> {
        let known = self.by_tag.iter().find(|(tag, _)| *tag == message.origin);
        known.map(|(_, codec)| &**codec)
    }
}

impl std::fmt::Debug for Codecs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.by_tag.iter().map(|(tag, _)| tag))
            .finish()
    }
}
