//! Header values as JSON text, for what a user property cannot hold as plain text.
//!
//! Plain where JSON says the same (null, true, 32-bit numbers, text, lists, tables), else an
//! object of one member that names the type, such as `{"i64": 5}`. What is written reads back as
//! the same value, types included.

use anabranch_core::properties::Value;
use bytes::Bytes;
use serde_json::{Map, Value as Json, json};

/// Deeper values are not written; no gateway takes them in.
const DEPTH_MAX: usize = 100;

/// Names of types that stand in an object of one member.
const TAGS: [&str; 15] = [
    "i8",
    "i16",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "f32",
    "f64",
    "decimal",
    "binary",
    "short",
    "timestamp",
    "bytes",
    "table",
];

/// The JSON text of a value.
pub(crate) fn to_text(value: &Value) -> String {
    to_json(value, 0).to_string()
}

/// The value of a JSON text that [`to_text`] wrote; `None` for any other text.
pub(crate) fn from_text(text: &str) -> Option<Value> {
    // The parser bounds the depth by itself.
    from_json(&serde_json::from_str(text).ok()?)
}

fn to_json(value: &Value, depth: usize) -> Json {
    if depth > DEPTH_MAX {
        return Json::Null;
    }
    match value {
        Value::Void => Json::Null,
        Value::Bool(flag) => json!(flag),
        Value::Int(number, 32) => json!(number),
        Value::Int(number, bits) => json!({ format!("i{bits}"): number }),
        Value::UInt(number, bits) => json!({ format!("u{bits}"): number }),
        // As text, since JSON has no infinity and its parser may round.
        Value::Float(number) => json!({ "f32": number.to_string() }),
        Value::Double(number) => json!({ "f64": number.to_string() }),
        Value::Decimal { scale, unscaled } => json!({ "decimal": [scale, unscaled] }),
        Value::Text(bytes) => match str::from_utf8(bytes) {
            Ok(text) => json!(text),
            Err(_) => json!({ "bytes": hex(bytes) }),
        },
        Value::ShortText(bytes) => match str::from_utf8(bytes) {
            Ok(text) => json!({ "short": text }),
            Err(_) => json!({ "short": { "bytes": hex(bytes) } }),
        },
        Value::Binary(bytes) => json!({ "binary": hex(bytes) }),
        Value::Timestamp(seconds) => json!({ "timestamp": seconds }),
        Value::List(values) => values
            .iter()
            .map(|value| to_json(value, depth + 1))
            .collect(),
        Value::Table(entries) => table(entries, depth),
    }
}

/// A table as an object, unless names repeat, are no text, or read like a type.
fn table(entries: &[(Bytes, Value)], depth: usize) -> Json {
    let mut object = Map::new();
    for (name, value) in entries {
        if let Ok(name) = str::from_utf8(name) {
            object.insert(name.to_owned(), to_json(value, depth + 1));
        }
    }
    let reads_like_a_type = object.len() == 1 && object.keys().any(|name| is_tag(name));
    if object.len() == entries.len() && !reads_like_a_type {
        return Json::Object(object);
    }
    let pairs: Vec<Json> = entries
        .iter()
        .map(|(name, value)| {
            json!([
                to_json(&Value::Text(name.clone()), depth + 1),
                to_json(value, depth + 1)
            ])
        })
        .collect();
    json!({ "table": pairs })
}

fn is_tag(name: &str) -> bool {
    TAGS.contains(&name)
}

fn from_json(json: &Json) -> Option<Value> {
    Some(match json {
        Json::Null => Value::Void,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => Value::Int(i64::from(i32::try_from(number.as_i64()?).ok()?), 32),
        Json::String(text) => Value::Text(Bytes::from(text.clone())),
        Json::Array(values) => Value::List(values.iter().map(from_json).collect::<Option<_>>()?),
        Json::Object(object) => match object.iter().next() {
            Some((tag, inner)) if object.len() == 1 && is_tag(tag) => tagged(tag, inner)?,
            _ => {
                let entry = |(name, value): (&String, &Json)| {
                    Some((Bytes::from(name.clone()), from_json(value)?))
                };
                Value::Table(object.iter().map(entry).collect::<Option<_>>()?)
            }
        },
    })
}

fn tagged(tag: &str, inner: &Json) -> Option<Value> {
    Some(match tag {
        "i8" | "i16" | "i64" => Value::Int(inner.as_i64()?, tag.get(1..)?.parse().ok()?),
        "u8" | "u16" | "u32" | "u64" => Value::UInt(inner.as_u64()?, tag.get(1..)?.parse().ok()?),
        "f32" => Value::Float(inner.as_str()?.parse().ok()?),
        "f64" => Value::Double(inner.as_str()?.parse().ok()?),
        "decimal" => {
            let parts = inner.as_array()?;
            let part = |index: usize| parts.get(index)?.as_u64();
            Value::Decimal {
                scale: part(0)?.try_into().ok()?,
                unscaled: part(1)?.try_into().ok()?,
            }
        }
        "binary" => Value::Binary(unhex(inner.as_str()?)?),
        "bytes" => Value::Text(unhex(inner.as_str()?)?),
        "short" => match inner.as_str() {
            Some(text) => Value::ShortText(Bytes::from(text.to_owned())),
            None => Value::ShortText(unhex(inner.get("bytes")?.as_str()?)?),
        },
        "timestamp" => Value::Timestamp(inner.as_u64()?),
        "table" => {
            let pair = |pair: &Json| match from_json(pair.get(0)?)? {
                Value::Text(name) => Some((name, from_json(pair.get(1)?)?)),
                _ => None,
            };
            Value::Table(inner.as_array()?.iter().map(pair).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Bytes> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect::<Option<Vec<u8>>>()
        .map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..6).prop_map(Bytes::from)
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Void),
            any::<bool>().prop_map(Value::Bool),
            any::<i32>().prop_map(|number| Value::Int(i64::from(number), 32)),
            any::<i64>().prop_map(|number| Value::Int(number, 64)),
            any::<u64>().prop_map(|number| Value::UInt(number, 64)),
            any::<f64>()
                .prop_filter("a number", |number| !number.is_nan())
                .prop_map(Value::Double),
            any::<(u8, u32)>().prop_map(|(scale, unscaled)| Value::Decimal { scale, unscaled }),
            bytes().prop_map(Value::Text),
            bytes().prop_map(Value::ShortText),
            bytes().prop_map(Value::Binary),
            any::<u64>().prop_map(Value::Timestamp),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let name = prop_oneof![bytes(), Just(Bytes::from_static(b"i64"))];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
                proptest::collection::vec((name, inner), 0..4).prop_map(Value::Table),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_value_comes_back_with_its_types(value in value()) {
            prop_assert_eq!(from_text(&to_text(&value)), Some(value));
        }
    }

    #[test]
    fn what_json_can_say_is_plain_json() {
        let table = Value::Table(vec![
            (Bytes::from_static(b"a"), Value::Int(1, 32)),
            (
                Bytes::from_static(b"b"),
                Value::Text(Bytes::from_static(b"x")),
            ),
        ]);
        assert_eq!(to_text(&table), r#"{"a":1,"b":"x"}"#);
        assert_eq!(to_text(&Value::Int(1, 64)), r#"{"i64":1}"#);
        assert_eq!(from_text("not json"), None);
        assert_eq!(from_text("1e400"), None);
    }
}
