//! Neutral values and JSON, for arguments and headers in the API.
//!
//! Owns: the translation; what JSON cannot hold becomes text.
//! Never: fails on what a client sent.

use anabranch_core::properties::Value as Neutral;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Number, Value};
use std::collections::BTreeMap;

/// Levels of lists and tables that are shown.
const DEPTH_MAX: usize = 16;

/// A neutral value as JSON.
pub(super) fn to_json(value: &Neutral) -> Value {
    shown(value, 0)
}

fn shown(value: &Neutral, depth: usize) -> Value {
    if depth > DEPTH_MAX {
        return Value::String("...".to_owned());
    }
    match value {
        Neutral::Void => Value::Null,
        Neutral::Bool(value) => Value::Bool(*value),
        Neutral::Int(value, _) => Value::from(*value),
        Neutral::UInt(value, _) => Value::from(*value),
        Neutral::Float(value) => number(f64::from(*value)),
        Neutral::Double(value) => number(*value),
        Neutral::Decimal { scale, unscaled } => {
            number(f64::from(*unscaled) / 10f64.powi(i32::from(*scale)))
        }
        Neutral::Text(text) | Neutral::ShortText(text) | Neutral::Binary(text) => shown_bytes(text),
        Neutral::Timestamp(seconds) => Value::from(*seconds),
        Neutral::List(list) => list.iter().map(|value| shown(value, depth + 1)).collect(),
        Neutral::Table(table) => {
            let fields = table
                .iter()
                .map(|(name, value)| (text(name), shown(value, depth + 1)));
            Value::Object(fields.collect())
        }
    }
}

fn number(value: f64) -> Value {
    Number::from_f64(value).map_or_else(|| Value::String(value.to_string()), Value::Number)
}

fn shown_bytes(bytes: &Bytes) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::String(text.to_owned()),
        Err(_) => Value::String(format!("base64:{}", STANDARD.encode(bytes))),
    }
}

/// Bytes as text, whatever they are.
pub(super) fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Named neutral values as JSON; of repeated names the first.
pub(super) fn table_to_json(table: &[(Bytes, Neutral)]) -> BTreeMap<String, Value> {
    let mut out = BTreeMap::new();
    for (name, value) in table {
        out.entry(text(name)).or_insert_with(|| to_json(value));
    }
    out
}

/// JSON as a neutral value.
pub(super) fn from_json(value: &Value) -> Neutral {
    match value {
        Value::Null => Neutral::Void,
        Value::Bool(value) => Neutral::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(value) => Neutral::Int(value, 64),
            None => Neutral::Double(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => Neutral::Text(Bytes::copy_from_slice(text.as_bytes())),
        Value::Array(list) => Neutral::List(list.iter().map(from_json).collect()),
        Value::Object(fields) => Neutral::Table(table(fields)),
    }
}

fn table(fields: &Map<String, Value>) -> Vec<(Bytes, Neutral)> {
    let named = |(name, value): (&String, &Value)| {
        (Bytes::copy_from_slice(name.as_bytes()), from_json(value))
    };
    fields.iter().map(named).collect()
}

/// Named JSON values as neutral ones.
pub(super) fn table_from_json(fields: &BTreeMap<String, Value>) -> Vec<(Bytes, Neutral)> {
    let named = |(name, value): (&String, &Value)| {
        (Bytes::copy_from_slice(name.as_bytes()), from_json(value))
    };
    fields.iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_comes_back_as_it_was() {
        let value = json!({"a": [1, -2, 0.5, true, null], "b": {"c": "text"}});
        assert_eq!(to_json(&from_json(&value)), value);
    }

    #[test]
    fn what_json_cannot_hold_is_text() {
        assert_eq!(
            to_json(&Neutral::Binary(Bytes::from_static(&[0xFF]))),
            json!("base64:/w==")
        );
        assert_eq!(to_json(&Neutral::Double(f64::NAN)), json!("NaN"));
        assert_eq!(
            to_json(&Neutral::Decimal {
                scale: 2,
                unscaled: 150
            }),
            json!(1.5)
        );
    }
}
