//! AMQP properties to and from core's neutral form.
//!
//! Delivery of a message that came in by AMQP never comes here: its bytes are forwarded. A message of
//! another origin is converted when it is delivered. What has no property of its own in AMQP travels in
//! the headers named below; reading them back gives the neutral form again (property test at the foot).
//!
//! Owns: the names of those headers and both conversions. Never: what another gateway makes of the
//! neutral form.

use anabranch_core::id::UnixMs;
use anabranch_core::message::{Message, OriginTag, Quality};
use anabranch_core::properties::{
    Properties as Neutral, PropertyCodec, ReplyTo, Value as NeutralValue, Wait,
};
use bytes::{Bytes, BytesMut};

use crate::delay;
use crate::wire::field::{LongStr, ShortStr};
use crate::wire::properties::Properties;
use crate::wire::table::{Array, ArrayWriter, DEPTH_MAX, Table, TableWriter, Value};

/// Persisted: the origin of messages that came in by AMQP 0-9-1.
pub const ORIGIN: OriginTag = OriginTag(2);

/// Whole address of a message that did not come in by AMQP.
pub const H_TOPIC: &str = "x-mqtt-topic";
/// Delivery quality, 0 to 2.
pub const H_QOS: &str = "x-mqtt-qos";
/// Keep as the last value of its address; publishers may set it.
pub const H_RETAIN: &str = "x-mqtt-retain";
/// Content type when it is no short string.
pub const H_CONTENT_TYPE: &str = "x-mqtt-content-type";
/// 1 when the body is said to be UTF-8 text, 0 when said not to be.
pub const H_PAYLOAD_FORMAT: &str = "x-mqtt-payload-format";
/// Where an answer goes, as an address.
pub const H_RESPONSE_TOPIC: &str = "x-mqtt-response-topic";
/// Correlation as bytes.
pub const H_CORRELATION: &str = "x-mqtt-correlation-data";
/// All named values in order, as pairs, when names repeat or are too long.
pub const H_USER_PROPERTIES: &str = "x-mqtt-user-properties";
/// The reserved property `cluster_id`, for other origins and back.
const H_CLUSTER_ID: &str = "x-amqp-cluster-id";
/// In front of the address of an answer in `reply_to`.
const REPLY_TO_TOPIC: &[u8] = b"mqtt:";

/// The address that an answer with this routing key is meant for, when the key is a `reply_to` that stands for one.
pub fn answered_topic(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(REPLY_TO_TOPIC)
}

/// The conversion registered with core.
#[derive(Clone, Copy, Debug, Default)]
pub struct AmqpProperties;

impl PropertyCodec for AmqpProperties {
    fn to_neutral(&self, message: &Message) -> Neutral {
        to_neutral(&message.properties)
    }

    fn later(&self, message: &Message) -> Option<Wait> {
        delay::wait(&message.properties)
    }

    fn waited(&self, message: &Message) -> Option<Bytes> {
        delay::waited(&message.properties)
    }
}

/// A wire value as a neutral one. Values read from the wire are nested `DEPTH_MAX` deep at most.
pub fn neutral_value(value: Value<'_>) -> NeutralValue {
    match value {
        Value::Void => NeutralValue::Void,
        Value::Bool(b) => NeutralValue::Bool(b),
        Value::I8(n) => NeutralValue::Int(n.into(), 8),
        Value::U8(n) => NeutralValue::UInt(n.into(), 8),
        Value::I16(n) | Value::StandardI16(n) => NeutralValue::Int(n.into(), 16),
        Value::U16(n) => NeutralValue::UInt(n.into(), 16),
        Value::I32(n) => NeutralValue::Int(n.into(), 32),
        Value::U32(n) => NeutralValue::UInt(n.into(), 32),
        Value::I64(n) | Value::StandardI64(n) => NeutralValue::Int(n, 64),
        Value::F32(n) => NeutralValue::Float(n),
        Value::F64(n) => NeutralValue::Double(n),
        Value::Decimal(scale, n) => NeutralValue::Decimal {
            scale,
            unscaled: n as u32,
        },
        Value::LongStr(LongStr(text)) => NeutralValue::Text(Bytes::copy_from_slice(text)),
        Value::Bytes(bytes) => NeutralValue::Binary(Bytes::copy_from_slice(bytes)),
        Value::Array(array) => NeutralValue::List(array.iter().map(neutral_value).collect()),
        Value::Timestamp(seconds) => NeutralValue::Timestamp(seconds),
        Value::Table(table) => NeutralValue::Table(neutral_table(table)),
    }
}

/// A wire table as neutral pairs, in order, repeats kept.
pub fn neutral_table(table: Table<'_>) -> Vec<(Bytes, NeutralValue)> {
    table
        .iter()
        .map(|(name, value)| {
            (
                Bytes::copy_from_slice(name.as_bytes()),
                neutral_value(value),
            )
        })
        .collect()
}

/// Hands a neutral value to `put` as a wire value.
fn wire_value(value: &NeutralValue, depth: u32, put: &mut dyn FnMut(Value<'_>)) {
    match value {
        NeutralValue::Void => put(Value::Void),
        NeutralValue::Bool(b) => put(Value::Bool(*b)),
        NeutralValue::Int(n, width) => put(match width {
            8 => Value::I8(*n as i8),
            16 => Value::I16(*n as i16),
            32 => Value::I32(*n as i32),
            _ => Value::I64(*n),
        }),
        NeutralValue::UInt(n, width) => put(match width {
            8 => Value::U8(*n as u8),
            16 => Value::U16(*n as u16),
            32 => Value::U32(*n as u32),
            // AMQP has no unsigned 64-bit integer that peers agree on.
            _ => i64::try_from(*n).map_or(Value::F64(*n as f64), Value::I64),
        }),
        NeutralValue::Float(n) => put(Value::F32(*n)),
        NeutralValue::Double(n) => put(Value::F64(*n)),
        NeutralValue::Decimal { scale, unscaled } => put(Value::Decimal(*scale, *unscaled as i32)),
        NeutralValue::Text(text) | NeutralValue::ShortText(text) => {
            put(Value::LongStr(LongStr(text)))
        }
        NeutralValue::Binary(bytes) => put(Value::Bytes(bytes)),
        NeutralValue::Timestamp(seconds) => put(Value::Timestamp(*seconds)),
        // Deeper than any peer would read again.
        NeutralValue::List(_) | NeutralValue::Table(_) if depth >= DEPTH_MAX => put(Value::Void),
        NeutralValue::List(values) => {
            let mut array = ArrayWriter::new();
            for value in values {
                wire_value(value, depth + 1, &mut |value| {
                    array.push(value);
                });
            }
            put(Value::Array(array.array()));
        }
        NeutralValue::Table(pairs) => {
            let mut table = TableWriter::new();
            for (name, value) in pairs {
                put_pair(&mut table, name, value, depth + 1);
            }
            put(Value::Table(table.table()));
        }
    }
}

/// Neutral pairs as a wire table; pairs whose name cannot be written are left out.
pub fn wire_table(pairs: &[(Bytes, NeutralValue)]) -> Bytes {
    let mut table = TableWriter::new();
    for (name, value) in pairs {
        put_pair(&mut table, name, value, 1);
    }
    table.finish()
}

/// Appends a pair when its name can be written at all.
fn put_pair(table: &mut TableWriter, name: &[u8], value: &NeutralValue, depth: u32) {
    wire_value(value, depth, &mut |value| {
        let _ = table.pair(name, value);
    });
}

fn kept(text: Option<ShortStr<'_>>) -> Option<Bytes> {
    text.map(|text| Bytes::copy_from_slice(text.as_bytes()))
}

/// The neutral form of a raw property list; what is malformed gives what could be read.
pub fn to_neutral(raw: &[u8]) -> Neutral {
    let Ok(properties) = Properties::walk(raw) else {
        return Neutral::default();
    };
    let mut neutral = Neutral {
        content_type: kept(properties.content_type),
        content_encoding: kept(properties.content_encoding),
        correlation: kept(properties.correlation_id),
        reply_to: properties
            .reply_to
            .map(|to| match answered_topic(to.as_bytes()) {
                Some(address) => ReplyTo::Topic(Bytes::copy_from_slice(address)),
                None => ReplyTo::Stream(Bytes::copy_from_slice(to.as_bytes())),
            }),
        message_id: kept(properties.message_id),
        timestamp: properties.timestamp_s,
        kind: kept(properties.kind),
        app_id: kept(properties.app_id),
        user_id: kept(properties.user_id),
        priority: properties.priority,
        is_text: None,
        time_to_live_ms: properties.expiration_ms().ok().flatten(),
        quality: match properties.delivery_mode {
            None => None,
            Some(2) => Some(Quality::AtLeastOnce),
            Some(_) => Some(Quality::AtMostOnce),
        },
        retain: false,
        headers: Vec::new(),
    };
    let mut listed = None;
    for (name, value) in properties
        .headers
        .into_iter()
        .flat_map(|headers| headers.iter())
    {
        if !take_header(&mut neutral, name.as_bytes(), value, &mut listed) {
            neutral.headers.push((
                Bytes::copy_from_slice(name.as_bytes()),
                neutral_value(value),
            ));
        }
    }
    if let Some(list) = listed {
        // The list is the whole truth about the names in it; their headers only repeat it.
        let named: std::collections::HashSet<_> = list
            .iter()
            .map(|(name, _): &(Bytes, _)| name.clone())
            .collect();
        neutral.headers.retain(|(name, _)| !named.contains(name));
        neutral.headers.splice(0..0, list);
    }
    if let Some(id) = properties.cluster_id {
        neutral.headers.push((
            Bytes::from_static(H_CLUSTER_ID.as_bytes()),
            NeutralValue::ShortText(Bytes::copy_from_slice(id.as_bytes())),
        ));
    }
    neutral
}

/// Takes a header that stands for something neutral; false when it is an ordinary one.
fn take_header(
    neutral: &mut Neutral,
    name: &[u8],
    value: Value<'_>,
    listed: &mut Option<Vec<(Bytes, NeutralValue)>>,
) -> bool {
    let Ok(name) = std::str::from_utf8(name) else {
        return false;
    };
    match (name, value) {
        (H_TOPIC, Value::LongStr(_)) => {}
        (H_QOS, value) => match value
            .as_i64()
            .and_then(|n| u8::try_from(n).ok())
            .and_then(Quality::from_number)
        {
            Some(quality) => neutral.quality = Some(quality),
            None => return false,
        },
        (H_RETAIN, Value::Bool(retain)) => neutral.retain = retain,
        (H_PAYLOAD_FORMAT, value) => match value.as_i64() {
            Some(n @ (0 | 1)) => neutral.is_text = Some(n == 1),
            _ => return false,
        },
        (H_CONTENT_TYPE, Value::LongStr(LongStr(text))) => {
            neutral.content_type = Some(Bytes::copy_from_slice(text))
        }
        (H_RESPONSE_TOPIC, Value::LongStr(LongStr(text))) => {
            neutral.reply_to = Some(ReplyTo::Topic(Bytes::copy_from_slice(text)));
        }
        (H_CORRELATION, Value::Bytes(bytes) | Value::LongStr(LongStr(bytes))) => {
            neutral.correlation = Some(Bytes::copy_from_slice(bytes));
        }
        (H_USER_PROPERTIES, Value::Array(array)) => match pairs_of(array) {
            Some(pairs) => *listed = Some(pairs),
            None => return false,
        },
        _ => return false,
    }
    true
}

/// The pairs of `x-mqtt-user-properties`; `None` when it is something else.
fn pairs_of(array: Array<'_>) -> Option<Vec<(Bytes, NeutralValue)>> {
    array
        .iter()
        .map(|pair| {
            let Value::Array(pair) = pair else {
                return None;
            };
            let mut parts = pair.iter();
            match (parts.next(), parts.next(), parts.next()) {
                (Some(Value::LongStr(LongStr(name))), Some(value), None) => {
                    Some((Bytes::copy_from_slice(name), neutral_value(value)))
                }
                _ => None,
            }
        })
        .collect()
}

/// Raw flags and list for delivering a message of another origin at `now`.
pub fn from_neutral(neutral: &Neutral, message: &Message, now: UnixMs) -> Bytes {
    write_neutral(neutral, message, now, true)
}

/// The same within `room_bytes` if that can be: named values that stand both as headers and in the list
/// are then left in the list alone.
pub fn from_neutral_within(
    neutral: &Neutral,
    message: &Message,
    now: UnixMs,
    room_bytes: usize,
) -> Bytes {
    let whole = from_neutral(neutral, message, now);
    if whole.len() <= room_bytes {
        whole
    } else {
        write_neutral(neutral, message, now, false)
    }
}

fn write_neutral(neutral: &Neutral, message: &Message, now: UnixMs, twice: bool) -> Bytes {
    let mut headers = TableWriter::new();
    let foreign = message.origin != OriginTag::BROKER;
    let quality = neutral.quality.unwrap_or(message.quality);
    if foreign {
        headers.named(H_TOPIC, Value::LongStr(LongStr(&message.address.0)));
        headers.named(H_QOS, Value::I32(quality as i32));
    }
    if message.retain || neutral.retain {
        headers.named(H_RETAIN, Value::Bool(true));
    }
    if let Some(is_text) = neutral.is_text {
        headers.named(H_PAYLOAD_FORMAT, Value::I32(is_text.into()));
    }
    let content_type = short_or_header(&mut headers, &neutral.content_type, H_CONTENT_TYPE);
    let correlation_id = neutral
        .correlation
        .as_deref()
        .filter(|bytes| std::str::from_utf8(bytes).is_ok_and(|text| !text.contains('\0')))
        .and_then(ShortStr::new);
    if let Some(correlation) = &neutral.correlation {
        headers.named(H_CORRELATION, Value::Bytes(correlation));
    }
    let mut reply = Vec::new();
    match &neutral.reply_to {
        Some(ReplyTo::Topic(address)) => {
            headers.named(H_RESPONSE_TOPIC, Value::LongStr(LongStr(address)));
            reply.extend_from_slice(REPLY_TO_TOPIC);
            reply.extend_from_slice(address);
        }
        Some(ReplyTo::Stream(name)) => reply.extend_from_slice(name),
        None => {}
    }
    let reply_to = neutral
        .reply_to
        .as_ref()
        .and_then(|_| ShortStr::new(&reply));
    let mut cluster_id = None;
    put_headers(&mut headers, neutral, &mut cluster_id, twice);

    let expiration = message.remaining_ms(now).map(|ms| ms.to_string());
    let short = |text: &Option<Bytes>| text.as_deref().map(|text| text.to_vec());
    let (content_encoding, message_id, kind, user_id, app_id) = (
        short(&neutral.content_encoding),
        short(&neutral.message_id),
        short(&neutral.kind),
        short(&neutral.user_id),
        short(&neutral.app_id),
    );
    let properties = Properties {
        content_type,
        content_encoding: content_encoding.as_deref().and_then(ShortStr::new),
        headers: (!headers.is_empty()).then(|| headers.table()),
        delivery_mode: Some(if quality == Quality::AtMostOnce { 1 } else { 2 }),
        priority: neutral.priority,
        correlation_id,
        reply_to,
        expiration: expiration
            .as_deref()
            .map(|text| ShortStr::cut(text.as_bytes())),
        message_id: message_id.as_deref().and_then(ShortStr::new),
        timestamp_s: neutral.timestamp,
        kind: kind.as_deref().and_then(ShortStr::new),
        user_id: user_id.as_deref().and_then(ShortStr::new),
        app_id: app_id.as_deref().and_then(ShortStr::new),
        cluster_id: cluster_id.and_then(ShortStr::new),
    };
    let mut out = BytesMut::new();
    properties.write(&mut out);
    out.freeze()
}

/// The text as a short string property, or in a header when it is too long for one.
fn short_or_header<'a>(
    headers: &mut TableWriter,
    text: &'a Option<Bytes>,
    name: &'static str,
) -> Option<ShortStr<'a>> {
    let text = text.as_deref()?;
    let short = ShortStr::new(text);
    if short.is_none() {
        headers.named(name, Value::LongStr(LongStr(text)));
    }
    short
}

/// Writes the named values: the first of each name as a header, and all of them as a list of pairs when
/// a name repeats or is too long to be a header's. Without `twice` what is in the list is no header.
fn put_headers<'a>(
    headers: &mut TableWriter,
    neutral: &'a Neutral,
    cluster_id: &mut Option<&'a [u8]>,
    twice: bool,
) {
    let mut named = Vec::with_capacity(neutral.headers.len());
    for (name, value) in &neutral.headers {
        match value {
            NeutralValue::ShortText(id) | NeutralValue::Text(id)
                if &name[..] == H_CLUSTER_ID.as_bytes() =>
            {
                *cluster_id = Some(id);
            }
            value => named.push((name, value)),
        }
    }
    let mut seen = std::collections::HashSet::new();
    let repeats = named
        .iter()
        .any(|(name, _)| name.len() > 255 || !seen.insert(&name[..]));
    if twice || !repeats {
        seen.clear();
        for (name, value) in &named {
            if name.len() <= 255 && seen.insert(&name[..]) {
                put_pair(headers, name, value, 0);
            }
        }
    }
    if repeats {
        let mut list = ArrayWriter::new();
        for (name, value) in &named {
            wire_value(value, 2, &mut |value| {
                let mut pair = ArrayWriter::new();
                pair.push(Value::LongStr(LongStr(name))).push(value);
                list.push(Value::Array(pair.array()));
            });
        }
        headers.named(H_USER_PROPERTIES, Value::Array(list.array()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_core::address::Address;
    use proptest::prelude::*;

    fn foreign(neutral: &Neutral) -> Message {
        Message {
            address: Address(Bytes::from_static(b"plant/1/temp")),
            origin: OriginTag(9),
            quality: neutral.quality.unwrap_or_default(),
            retain: neutral.retain,
            expires: neutral.time_to_live_ms.map(UnixMs),
            ..Message::default()
        }
    }

    fn text(max: usize) -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from)
    }

    fn value() -> impl Strategy<Value = NeutralValue> {
        let leaf = prop_oneof![
            Just(NeutralValue::Void),
            any::<bool>().prop_map(NeutralValue::Bool),
            any::<i16>().prop_map(|n| NeutralValue::Int(n.into(), 16)),
            any::<i64>().prop_map(|n| NeutralValue::Int(n, 64)),
            any::<u32>().prop_map(|n| NeutralValue::UInt(n.into(), 32)),
            text(300).prop_map(NeutralValue::Text),
            text(20).prop_map(NeutralValue::Binary),
        ];
        leaf.prop_recursive(2, 8, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(NeutralValue::List),
                prop::collection::vec(("[a-z]{0,3}".prop_map(Bytes::from), inner), 0..3)
                    .prop_map(NeutralValue::Table),
            ]
        })
    }

    prop_compose! {
        fn neutral()(
            content_type in prop::option::of(text(300)),
            correlation in prop::option::of(text(300)),
            reply in prop::option::of((any::<bool>(), "[a-z/]{0,300}")),
            message_id in prop::option::of(text(200)),
            timestamp in prop::option::of(any::<u64>()),
            priority in prop::option::of(any::<u8>()),
            is_text in prop::option::of(any::<bool>()),
            time_to_live_ms in prop::option::of(1u64..1 << 40),
            quality in 0u8..3,
            retain in any::<bool>(),
            headers in prop::collection::vec((prop_oneof!["[a-c]{1,2}", "[a-c]{256,260}"].prop_map(Bytes::from), value()), 0..5),
        ) -> Neutral {
            Neutral {
                content_type,
                correlation,
                reply_to: reply.map(|(topic, name)| match topic {
                    true => ReplyTo::Topic(name.into()),
                    false => ReplyTo::Stream(Bytes::from_static(b"answers")),
                }),
                message_id,
                timestamp,
                priority,
                is_text,
                time_to_live_ms,
                quality: Quality::from_number(quality),
                retain,
                headers,
                ..Neutral::default()
            }
        }
    }

    proptest! {
        #[test]
        fn neutral_to_amqp_and_back_loses_nothing(neutral in neutral()) {
            let raw = from_neutral(&neutral, &foreign(&neutral), UnixMs(0));
            prop_assert_eq!(&to_neutral(&raw), &neutral);
            let tight = from_neutral_within(&neutral, &foreign(&neutral), UnixMs(0), 0);
            prop_assert!(tight.len() <= raw.len());
            prop_assert_eq!(&to_neutral(&tight), &neutral);
        }

        #[test]
        fn any_bytes_give_some_neutral_form(raw in prop::collection::vec(any::<u8>(), 0..100)) {
            let neutral = to_neutral(&raw);
            let again = from_neutral(&neutral, &foreign(&neutral), UnixMs(0));
            prop_assert!(Properties::walk(&again).is_ok());
        }
    }

    fn raw(properties: Properties<'_>) -> Bytes {
        properties.to_bytes()
    }

    #[test]
    fn remaining_time_is_recomputed_at_delivery() {
        let neutral = Neutral {
            time_to_live_ms: Some(5000),
            ..Neutral::default()
        };
        let raw = from_neutral(&neutral, &foreign(&neutral), UnixMs(2000));
        assert_eq!(
            Properties::walk(&raw).unwrap().expiration,
            ShortStr::new(b"3000")
        );
    }

    #[test]
    fn an_answer_goes_to_an_address_or_a_queue() {
        let neutral = Neutral {
            reply_to: Some(ReplyTo::Topic(Bytes::from_static(b"a/b"))),
            ..Neutral::default()
        };
        let list = from_neutral(&neutral, &foreign(&neutral), UnixMs(0));
        assert_eq!(
            Properties::walk(&list).unwrap().reply_to,
            ShortStr::new(b"mqtt:a/b")
        );
        let queue = raw(Properties {
            reply_to: ShortStr::new(b"answers"),
            ..Properties::default()
        });
        assert_eq!(
            to_neutral(&queue).reply_to,
            Some(ReplyTo::Stream(Bytes::from_static(b"answers")))
        );
    }
}
