//! Neutral properties as a property block, and what the broker adds of its own.
//!
//! The names and the table are the parent module's, which reads back what is written here.

use anabranch_core::address::Address;
use anabranch_core::death::{DeathReason, Deaths};
use anabranch_core::properties::{Properties, ReplyTo, Value};
use bytes::{Bytes, BytesMut};

use super::{Counts, FIELD_PREFIX, JSON_SUFFIX, STREAM_TOPIC_ROOT, TYPES};
use crate::address::escape_level;
use crate::codec::topic;
use crate::codec::{PropertyId, put_binary, put_int, put_pair, put_text};
use crate::json_value;

/// Appends what last dropped a message on its way to a block.
pub fn write_death(deaths: &Deaths, block: &mut BytesMut) {
    let Some(newest) = deaths.list.first() else {
        return;
    };
    let reason = match newest.reason {
        DeathReason::Rejected => "rejected",
        DeathReason::Expired => "expired",
        DeathReason::Overflow => "maxlen",
        DeathReason::DeliveryLimit => "delivery_limit",
    };
    put_pair(block, "x-death-reason", reason);
    put_pair(block, "x-death-stream", &newest.stream);
    put_pair(block, "x-death-count", &newest.count.to_string());
}

/// Writes neutral properties as a block, without message expiry. `vhost` is the one whose streams
/// a reply names.
pub fn write_block(neutral: &Properties, vhost: &str, block: &mut BytesMut) {
    let mut writer = Writer {
        block,
        counts: Counts::default(),
        types: Vec::new(),
    };
    if let Some(is_text) = neutral.is_text {
        put_int(writer.block, PropertyId::PAYLOAD_FORMAT, u32::from(is_text));
    }
    if let Some(content_type) = &neutral.content_type {
        match legal_text(content_type) {
            Some(text) => put_text(writer.block, PropertyId::CONTENT_TYPE, text),
            None => writer.field("content_type", content_type),
        }
    }
    if let Some(reply_to) = &neutral.reply_to {
        writer.reply_to(reply_to, vhost);
    }
    if let Some(correlation) = &neutral.correlation {
        put_binary(writer.block, PropertyId::CORRELATION_DATA, correlation);
    }
    let texts = [
        ("content_encoding", &neutral.content_encoding),
        ("message_id", &neutral.message_id),
        ("type", &neutral.kind),
        ("app_id", &neutral.app_id),
        ("user_id", &neutral.user_id),
    ];
    for (name, field) in texts {
        if let Some(bytes) = field {
            writer.field(name, bytes);
        }
    }
    if let Some(seconds) = neutral.timestamp {
        writer.field("timestamp", &Bytes::from(seconds.to_string()));
    }
    if let Some(priority) = neutral.priority {
        writer.field("priority", &Bytes::from(priority.to_string()));
    }
    for (name, value) in &neutral.headers {
        writer.header(&String::from_utf8_lossy(name), value);
    }
    writer.finish();
}

/// Text that a string of this protocol can hold.
fn legal_text(bytes: &[u8]) -> Option<&str> {
    let text = topic::check_text(bytes).ok()?;
    (text.len() <= usize::from(u16::MAX)).then_some(text)
}

struct Writer<'a> {
    block: &'a mut BytesMut,
    counts: Counts,
    /// Of the user properties that are not plain text: name, type, and how many of the name stand
    /// before.
    types: Vec<(String, &'static str, u32)>,
}

impl Writer<'_> {
    /// A neutral field that has no property of its own.
    fn field(&mut self, name: &str, bytes: &Bytes) {
        let name = format!("{FIELD_PREFIX}{name}");
        self.header(&name, &Value::Text(bytes.clone()));
    }

    fn reply_to(&mut self, reply_to: &ReplyTo, vhost: &str) {
        let response_topic = match reply_to {
            ReplyTo::Topic(flat) => Address::new(flat.clone())
                .ok()
                .map(|address| address.as_str().to_owned()),
            ReplyTo::Stream(name) => legal_text(name).map(|name| {
                let (vhost, name) = (escape_level(vhost), escape_level(name));
                format!("{STREAM_TOPIC_ROOT}/{vhost}/q/{name}")
            }),
        };
        match response_topic {
            Some(topic) if !topic.is_empty() => {
                put_text(self.block, PropertyId::RESPONSE_TOPIC, &topic);
            }
            _ => {
                let (ReplyTo::Topic(bytes) | ReplyTo::Stream(bytes)) = reply_to;
                self.field("reply_to", bytes);
            }
        }
    }

    fn header(&mut self, name: &str, value: &Value) {
        let (text, tag) = match value {
            Value::Text(bytes) => (legal_text(bytes).map(str::to_owned), None),
            Value::ShortText(bytes) => (legal_text(bytes).map(str::to_owned), Some("short")),
            Value::Bool(flag) => (Some(flag.to_string()), Some("bool")),
            Value::Int(number, bits) => (Some(number.to_string()), int_tag(*bits)),
            Value::UInt(number, bits) => (Some(number.to_string()), uint_tag(*bits)),
            Value::Float(number) => (Some(number.to_string()), Some("f32")),
            Value::Double(number) => (Some(number.to_string()), Some("f64")),
            Value::Timestamp(seconds) => (Some(seconds.to_string()), Some("timestamp")),
            Value::Void
            | Value::Decimal { .. }
            | Value::Binary(_)
            | Value::List(_)
            | Value::Table(_) => (None, None),
        };
        match text {
            Some(text) => {
                put_pair(self.block, name, &text);
                let before = self.counts.next(name);
                if let Some(tag) = tag {
                    self.types.push((name.to_owned(), tag, before));
                }
            }
            None => {
                let name = format!("{name}{JSON_SUFFIX}");
                put_pair(self.block, &name, &json_value::to_text(value));
                let before = self.counts.next(&name);
                self.types.push((name, "json", before));
            }
        }
    }

    fn finish(self) {
        if !self.types.is_empty()
            && let Ok(list) = serde_json::to_string(&self.types)
        {
            put_pair(self.block, TYPES, &list);
        }
    }
}

const fn int_tag(bits: u8) -> Option<&'static str> {
    Some(match bits {
        8 => "i8",
        16 => "i16",
        32 => "i32",
        _ => "i64",
    })
}

const fn uint_tag(bits: u8) -> Option<&'static str> {
    Some(match bits {
        8 => "u8",
        16 => "u16",
        32 => "u32",
        _ => "u64",
    })
}

#[cfg(test)]
mod tests {
    use super::super::{MqttProperties, priority};
    use super::*;
    use anabranch_core::message::{Message, Quality};
    use anabranch_core::properties::PropertyCodec;
    use proptest::prelude::*;

    fn text(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    /// Neutral, to a block, and back as a message of this protocol.
    fn there_and_back(neutral: &Properties) -> Properties {
        let mut block = BytesMut::new();
        write_block(neutral, "/", &mut block);
        let message = Message {
            properties: block.freeze(),
            ..Message::default()
        };
        MqttProperties.to_neutral(&message)
    }

    #[test]
    fn neutral_properties_come_back_with_their_types() {
        let neutral = Properties {
            content_type: Some(text("application/json")),
            content_encoding: Some(text("gzip")),
            correlation: Some(Bytes::from_static(&[0, 255])),
            reply_to: Some(ReplyTo::Stream(text("answers/a+b"))),
            message_id: Some(text("m-1")),
            timestamp: Some(1_700_000_000),
            kind: Some(text("reading")),
            app_id: Some(Bytes::from_static(&[0xFF])),
            user_id: Some(text("ann")),
            priority: Some(7),
            is_text: Some(true),
            headers: vec![
                (text("plain"), Value::Text(text("x"))),
                (text("n"), Value::Text(text("5"))),
                (text("n"), Value::Int(-5, 64)),
                (text("n"), Value::Text(text("6"))),
                (text("n"), Value::List(vec![])),
                (text("n;json"), Value::Text(text("[]"))),
                (text("flag"), Value::Bool(true)),
                (text("ratio"), Value::Double(0.1)),
                (
                    text("list"),
                    Value::List(vec![Value::Void, Value::Int(1, 32)]),
                ),
                (text("raw"), Value::Binary(Bytes::from_static(&[1, 2]))),
                (text("odd;json"), Value::Text(text("{}"))),
            ],
            quality: Some(Quality::AtMostOnce),
            ..Properties::default()
        };
        assert_eq!(there_and_back(&neutral), neutral);
    }

    fn header() -> impl Strategy<Value = (Bytes, Value)> {
        let name = "[ab]{1,2}(;json)?".prop_map(Bytes::from);
        let bytes = || proptest::collection::vec(any::<u8>(), 0..4).prop_map(Bytes::from);
        let value = prop_oneof![
            3 => "[0-9a-z{}]{0,3}".prop_map(|text| Value::Text(Bytes::from(text))),
            1 => bytes().prop_map(Value::Text),
            1 => bytes().prop_map(Value::ShortText),
            1 => bytes().prop_map(Value::Binary),
            1 => any::<bool>().prop_map(Value::Bool),
            1 => any::<i16>().prop_map(|number| Value::Int(number.into(), 16)),
            1 => any::<u8>().prop_map(|number| Value::UInt(number.into(), 8)),
            1 => any::<u64>().prop_map(Value::Timestamp),
            1 => Just(Value::List(vec![Value::Void])),
        ];
        (name, value)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn headers_come_back_in_order_with_their_types(
            headers in proptest::collection::vec(header(), 0..8),
        ) {
            let neutral =
                Properties { headers, quality: Some(Quality::AtMostOnce), ..Properties::default() };
            prop_assert_eq!(there_and_back(&neutral), neutral);
        }
    }

    #[test]
    fn a_devices_own_properties_stay_text() {
        let mut block = BytesMut::new();
        put_pair(&mut block, "n", "5");
        put_pair(&mut block, "n;json", "[1]");
        put_pair(&mut block, "amqp-priority", "07");
        let message = Message {
            properties: block.clone().freeze(),
            ..Message::default()
        };
        assert_eq!(priority(&message.properties), 0, "not as it is written");
        let neutral = MqttProperties.to_neutral(&message);
        assert_eq!(
            neutral.headers,
            [
                (text("n"), Value::Text(text("5"))),
                (text("n;json"), Value::Text(text("[1]"))),
                (text("amqp-priority"), Value::Text(text("07"))),
            ]
        );
        let mut again = BytesMut::new();
        write_block(&neutral, "/", &mut again);
        assert_eq!(again, block);
    }

    #[test]
    fn a_device_says_a_priority_as_it_would_be_told_one() {
        for (said, expected) in [("0", 0), ("9", 9), ("255", 255), ("256", 0), ("+7", 0)] {
            let mut block = BytesMut::new();
            put_pair(&mut block, "n", "5");
            put_pair(&mut block, "amqp-priority", said);
            assert_eq!(priority(&block), expected, "{said}");
        }
        assert_eq!(priority(&[]), 0);
    }

    #[test]
    fn a_stream_whose_name_is_no_text_is_still_replied_to() {
        let neutral = Properties {
            reply_to: Some(ReplyTo::Stream(Bytes::from_static(&[0xFF]))),
            quality: Some(Quality::AtMostOnce),
            ..Properties::default()
        };
        assert_eq!(there_and_back(&neutral), neutral);
    }
}
