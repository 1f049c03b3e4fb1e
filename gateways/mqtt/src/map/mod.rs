//! Properties of this protocol to and from the core's neutral ones.
//!
//! A message of this protocol keeps its property block as it came ([`ORIGIN`] is its tag), without
//! what was for one hop only: a subscriber here is handed those bytes, another gateway asks
//! [`MqttProperties`] for the neutral form. A message of another origin is written as a block by
//! [`write_block`] (`write.rs`).
//!
//! | neutral | here |
//! |---|---|
//! | content type, correlation, is text | the properties of that name |
//! | reply to a topic | Response Topic |
//! | reply to a stream | Response Topic `$amqp/<vhost>/q/<stream>`, or `amqp-reply_to` if it is no text |
//! | time to live | Message Expiry Interval, by the caller, since it counts down |
//! | header, text | user property |
//! | header, another scalar | user property as text, its type in `amqp-header-types` |
//! | header, anything else | user property `<name>;json` (`json_value.rs`), listed there too |
//! | message id, time stamp, kind, application, user, priority, encoding | user property `amqp-<name>` |
//! | death records | of the newest `x-death-reason`, `x-death-stream`, `x-death-count` |
//!
//! `amqp-header-types` is a JSON list of `[name, type, before]`, where `before` counts the user
//! properties of the same name in front of the one meant; only what it lists is read back as
//! something other than text, so a device's own property is never taken for ours.

mod write;

use std::collections::BTreeMap;

use anabranch_core::address::Address;
use anabranch_core::message::{Message, OriginTag};
use anabranch_core::properties::{Properties, PropertyCodec, ReplyTo, Value};
use bytes::Bytes;

use crate::address::{address_of_dotted, unescape_level};
use crate::codec::{PropertyId, PropertyIter, Value as Wire};
use crate::json_value;

pub use write::{write_block, write_death};

/// The persisted number of messages that came in by this gateway.
pub const ORIGIN: OriginTag = OriginTag(1);

/// First level of the topics that stand for streams of another protocol's making.
pub const STREAM_TOPIC_ROOT: &str = "$amqp";

/// What the names of user properties start with that stand for neutral fields.
const FIELD_PREFIX: &str = "amqp-";
/// The user property that lists the types of others.
const TYPES: &str = "amqp-header-types";
/// What the name of a user property ends with whose value is JSON.
const JSON_SUFFIX: &str = ";json";

/// This protocol's conversion to neutral properties.
#[derive(Clone, Copy, Debug, Default)]
pub struct MqttProperties;

impl PropertyCodec for MqttProperties {
    fn to_neutral(&self, message: &Message) -> Properties {
        let mut neutral = Properties {
            quality: Some(message.quality),
            retain: message.retain,
            time_to_live_ms: message
                .expires
                .map(|expires| expires.0.saturating_sub(message.published.0)),
            ..Properties::default()
        };
        let owned = |bytes: &[u8]| message.properties.slice_ref(bytes);
        let mut types = Types::default();
        for property in PropertyIter::over(&message.properties) {
            match (property.id, property.value) {
                (PropertyId::CONTENT_TYPE, Wire::Text(text)) => {
                    neutral.content_type = Some(owned(text.as_bytes()));
                }
                (PropertyId::CORRELATION_DATA, Wire::Binary(bytes)) => {
                    neutral.correlation = Some(owned_or_empty(bytes, owned));
                }
                (PropertyId::RESPONSE_TOPIC, Wire::Text(text)) => {
                    neutral.reply_to = Some(reply_to(text));
                }
                (PropertyId::PAYLOAD_FORMAT, Wire::Int(flag)) => neutral.is_text = Some(flag == 1),
                (PropertyId::USER_PROPERTY, Wire::Pair(TYPES, list)) => types = Types::read(list),
                (PropertyId::USER_PROPERTY, Wire::Pair(name, value)) => {
                    let name = owned_or_empty(name.as_bytes(), owned);
                    let value = owned_or_empty(value.as_bytes(), owned);
                    neutral.headers.push((name, Value::Text(value)));
                }
                _ => {}
            }
        }
        types.apply(&mut neutral);
        neutral
    }
}

/// The priority that a block says, in a user property `amqp-priority`; 0 when it says none.
#[inline]
pub fn priority(block: &[u8]) -> u8 {
    match block.is_empty() {
        true => 0,
        false => priority_in(block),
    }
}

#[cold]
fn priority_in(block: &[u8]) -> u8 {
    let said = PropertyIter::over(block).find_map(|property| match property.value {
        Wire::Pair(name, digits) if name.strip_prefix(FIELD_PREFIX) == Some("priority") => {
            let number: u8 = digits.parse().ok()?;
            (number.to_string() == digits).then_some(number)
        }
        _ => None,
    });
    said.unwrap_or_default()
}

/// A slice of the message's block; an empty one does not hold it.
fn owned_or_empty(bytes: &[u8], owned: impl Fn(&[u8]) -> Bytes) -> Bytes {
    if bytes.is_empty() {
        Bytes::new()
    } else {
        owned(bytes)
    }
}

/// Vhost and name of the stream that a topic stands for.
fn stream_of(topic: &str) -> Option<(String, String)> {
    let mut levels = topic.split('/');
    let parts = (
        levels.next()?,
        levels.next()?,
        levels.next()?,
        levels.next()?,
        levels.next(),
    );
    match parts {
        (STREAM_TOPIC_ROOT, vhost, "q", stream, None) => {
            Some((unescape_level(vhost), unescape_level(stream)))
        }
        _ => None,
    }
}

/// The address at which the default exchange of `vhost` has the stream that a topic stands for;
/// `None` if it stands for none of that vhost.
pub fn stream_address(topic: &[u8], vhost: &str) -> Option<Address> {
    let (named, stream) = stream_of(str::from_utf8(topic).ok()?)?;
    (named == vhost).then(|| address_of_dotted(&stream).ok())?
}

/// Where a response topic points.
fn reply_to(response_topic: &str) -> ReplyTo {
    match stream_of(response_topic) {
        Some((_, stream)) => ReplyTo::Stream(Bytes::from(stream)),
        None => ReplyTo::Topic(Bytes::copy_from_slice(response_topic.as_bytes())),
    }
}

/// Types of user properties, by their name and how many of that name stand before.
#[derive(Default)]
struct Types {
    listed: BTreeMap<(String, u32), String>,
}

impl Types {
    fn read(list: &str) -> Types {
        let listed: Vec<(String, String, u32)> = serde_json::from_str(list).unwrap_or_default();
        let entry = |(name, tag, before)| ((name, before), tag);
        Types {
            listed: listed.into_iter().map(entry).collect(),
        }
    }

    /// Gives headers their types back, and moves those that stand for fields into them.
    fn apply(mut self, neutral: &mut Properties) {
        let mut counts = Counts::default();
        for (name, value) in std::mem::take(&mut neutral.headers) {
            let typed = match (&value, str::from_utf8(&name)) {
                (Value::Text(text), Ok(name)) if !self.listed.is_empty() => {
                    let tag = self.listed.remove(&(name.to_owned(), counts.next(name)));
                    let text = str::from_utf8(text).unwrap_or_default();
                    tag.and_then(|tag| typed(name, &tag, text))
                }
                _ => None,
            };
            let (name, value) = typed.unwrap_or((name, value));
            if !set_field(neutral, &name, &value) {
                neutral.headers.push((name, value));
            }
        }
    }
}

/// Numbers user properties of the same name.
#[derive(Default)]
struct Counts {
    seen: BTreeMap<String, u32>,
}

impl Counts {
    /// How many of this name were asked for before.
    fn next(&mut self, name: &str) -> u32 {
        let seen = self.seen.entry(name.to_owned()).or_insert(0);
        *seen += 1;
        *seen - 1
    }
}

/// The header that a listed user property stands for; `None` if its value was changed to
/// something that is not of its type.
fn typed(name: &str, tag: &str, text: &str) -> Option<(Bytes, Value)> {
    let plain = || Bytes::copy_from_slice(name.as_bytes());
    let bits = || tag.get(1..)?.parse::<u8>().ok();
    let value = match tag {
        "json" => {
            let name = name.strip_suffix(JSON_SUFFIX)?;
            return Some((
                Bytes::copy_from_slice(name.as_bytes()),
                json_value::from_text(text)?,
            ));
        }
        "bool" => Value::Bool(text.parse().ok()?),
        "i8" | "i16" | "i32" | "i64" => Value::Int(text.parse().ok()?, bits()?),
        "u8" | "u16" | "u32" | "u64" => Value::UInt(text.parse().ok()?, bits()?),
        "f32" => Value::Float(text.parse().ok()?),
        "f64" => Value::Double(text.parse().ok()?),
        "timestamp" => Value::Timestamp(text.parse().ok()?),
        "short" => Value::ShortText(Bytes::copy_from_slice(text.as_bytes())),
        _ => return None,
    };
    Some((plain(), value))
}

/// Sets the field that a header named `amqp-<name>` stands for; false if it stands for none, or
/// if the field is set already.
fn set_field(neutral: &mut Properties, name: &[u8], value: &Value) -> bool {
    let Some(field) = name.strip_prefix(FIELD_PREFIX.as_bytes()) else {
        return false;
    };
    let Value::Text(text) = value else {
        return false;
    };
    // A number only in the form that it is written back in.
    let number = |most: u64| {
        let digits = str::from_utf8(text).ok()?;
        let number: u64 = digits.parse().ok()?;
        (number <= most && number.to_string() == digits).then_some(number)
    };
    let place = match field {
        b"content_type" => &mut neutral.content_type,
        b"content_encoding" => &mut neutral.content_encoding,
        b"message_id" => &mut neutral.message_id,
        b"type" => &mut neutral.kind,
        b"app_id" => &mut neutral.app_id,
        b"user_id" => &mut neutral.user_id,
        b"reply_to" => {
            let free = neutral.reply_to.is_none();
            neutral
                .reply_to
                .get_or_insert(ReplyTo::Stream(text.clone()));
            return free;
        }
        b"timestamp" => {
            let seconds = number(u64::MAX);
            let free = neutral.timestamp.is_none() && seconds.is_some();
            neutral.timestamp = neutral.timestamp.or(seconds);
            return free;
        }
        b"priority" => {
            let priority = number(255).and_then(|number| u8::try_from(number).ok());
            let free = neutral.priority.is_none() && priority.is_some();
            neutral.priority = neutral.priority.or(priority);
            return free;
        }
        _ => return false,
    };
    if place.is_some() {
        return false;
    }
    *place = Some(text.clone());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::put_pair;
    use anabranch_core::id::UnixMs;
    use anabranch_core::message::Quality;
    use bytes::BytesMut;

    fn text(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn a_response_topic_is_an_address_or_a_stream() {
        assert_eq!(reply_to("a/b"), ReplyTo::Topic(text("a/b")));
        assert_eq!(reply_to("$amqp/%2F/q/jobs"), ReplyTo::Stream(text("jobs")));
        assert_eq!(reply_to("$amqp/%2F/q"), ReplyTo::Topic(text("$amqp/%2F/q")));
    }

    #[test]
    fn a_topic_of_a_stream_is_an_address_in_its_own_vhost() {
        let address = |topic: &str, vhost| {
            stream_address(topic.as_bytes(), vhost).map(|address| address.as_str().to_owned())
        };
        assert_eq!(address("$amqp/%2F/q/jobs", "/").as_deref(), Some("jobs"));
        assert_eq!(
            address("$amqp/a/q/x.y%2Fz", "a").as_deref(),
            Some("x/y%2Fz")
        );
        for other in [
            "$amqp/b/q/jobs",
            "$amqp/%2F/q",
            "$amqp/%2F/q/a/b",
            "$amqp/%2F/e/a",
        ] {
            assert_eq!(address(other, "/"), None, "{other}");
        }
    }

    #[test]
    fn a_key_stays_a_header_of_its_name() {
        let mut block = BytesMut::new();
        put_pair(&mut block, "x-key", "meter-7");
        let message = Message {
            properties: block.freeze(),
            ..Message::default()
        };
        let neutral = MqttProperties.to_neutral(&message);
        assert_eq!(
            neutral.headers,
            [(text("x-key"), Value::Text(text("meter-7")))]
        );
    }

    #[test]
    fn the_lifetime_is_what_the_publisher_gave() {
        let message = Message {
            published: UnixMs(1_000),
            expires: Some(UnixMs(61_000)),
            quality: Quality::AtLeastOnce,
            ..Message::default()
        };
        let neutral = MqttProperties.to_neutral(&message);
        assert_eq!(neutral.time_to_live_ms, Some(60_000));
        assert_eq!(neutral.quality, Some(Quality::AtLeastOnce));
    }
}
