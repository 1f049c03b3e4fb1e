//! The headers by which a message asks an exchange of type `x-delayed-message` to wait.
//!
//! `x-delay` says for how many milliseconds, `x-deliver-at` until when (milliseconds since 1970, or a timestamp); the
//! latter wins. As with the plugin that introduced the type, a value that is no number, or not above 0, asks for
//! nothing, and a message that has waited carries its `x-delay` negated.
//!
//! Owns the reading of both and the negation. Never: whether an exchange delays (core).

use anabranch_core::id::UnixMs;
use anabranch_core::properties::Wait;
use bytes::Bytes;

use crate::wire::properties::Properties;
use crate::wire::table::{TableWriter, Value};

/// The type of an exchange that delays.
pub const EXCHANGE_TYPE: &[u8] = b"x-delayed-message";
/// Its argument that says how it routes what is due.
pub const TYPE_ARGUMENT: &str = "x-delayed-type";
/// How many milliseconds to wait.
const H_DELAY: &str = "x-delay";
/// Until when to wait.
const H_DELIVER_AT: &str = "x-deliver-at";

/// How long a message with these raw properties asks to wait.
pub fn wait(raw: &[u8]) -> Option<Wait> {
    let headers = Properties::walk(raw).ok()?.headers?;
    let number = |name| headers.first(name).and_then(whole);
    let above = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
    match number(H_DELIVER_AT).and_then(above) {
        Some(time) => Some(Wait::Until(UnixMs(time))),
        None => number(H_DELAY).and_then(above).map(Wait::For),
    }
}

/// The same properties with `x-delay` negated; nothing when there is none that was waited for.
pub fn waited(raw: &[u8]) -> Option<Bytes> {
    let properties = Properties::walk(raw).ok()?;
    let headers = properties.headers?;
    headers
        .first(H_DELAY)
        .and_then(whole)
        .filter(|ms| *ms > 0)?;
    let mut table = TableWriter::new();
    for (name, value) in headers.iter() {
        let value = match name.as_bytes() == H_DELAY.as_bytes() {
            true => negated(value),
            false => value,
        };
        table.pair(name.as_bytes(), value).ok()?;
    }
    let whole = Properties {
        headers: Some(table.table()),
        ..properties
    };
    Some(whole.to_bytes())
}

fn negated(value: Value<'_>) -> Value<'_> {
    match whole(value).map(i64::saturating_neg) {
        None => value,
        Some(ms) => match i32::try_from(ms) {
            Ok(ms) => Value::I32(ms),
            Err(_) => Value::I64(ms),
        },
    }
}

/// A number of any kind as a whole one.
fn whole(value: Value<'_>) -> Option<i64> {
    match value {
        Value::LongStr(text) => std::str::from_utf8(text.0).ok()?.trim().parse().ok(),
        Value::F32(number) => Some(number as i64),
        Value::F64(number) => Some(number as i64),
        Value::Decimal(scale, unscaled) => {
            let divisor = 10i64.checked_pow(scale.into());
            Some(divisor.map_or(0, |divisor| i64::from(unscaled) / divisor))
        }
        Value::Timestamp(seconds) => i64::try_from(seconds).ok()?.checked_mul(1000),
        other => other.as_i64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(headers: &[(&'static str, Value<'_>)]) -> Bytes {
        let mut table = TableWriter::new();
        for (name, value) in headers {
            table.named(name, *value);
        }
        let list = Properties {
            headers: Some(table.table()),
            delivery_mode: Some(2),
            ..Properties::default()
        };
        list.to_bytes()
    }

    #[test]
    fn a_delay_is_a_number_of_any_kind_above_0() {
        for value in [
            Value::I32(1500),
            Value::U16(1500),
            Value::I64(1500),
            Value::F64(1500.9),
            Value::Decimal(1, 15_009),
            Value::text("1500"),
        ] {
            assert_eq!(wait(&with(&[("x-delay", value)])), Some(Wait::For(1500)));
        }
        for value in [
            Value::I32(0),
            Value::I32(-1500),
            Value::text("soon"),
            Value::F64(f64::NAN),
            Value::Bool(true),
            Value::Void,
        ] {
            assert_eq!(wait(&with(&[("x-delay", value)])), None, "{value:?}");
        }
        assert_eq!(wait(&[0, 0]), None);
    }

    #[test]
    fn delays_have_no_limit_of_49_days() {
        let ms = 1000 * 86_400_000i64;
        let list = with(&[("x-delay", Value::I64(ms))]);
        assert_eq!(wait(&list), Some(Wait::For(ms as u64)));
        let after = waited(&list).unwrap();
        let headers = Properties::walk(&after).unwrap().headers.unwrap();
        assert_eq!(headers.first("x-delay"), Some(Value::I64(-ms)));
    }

    #[test]
    fn an_absolute_time_is_milliseconds_or_a_timestamp_and_wins() {
        let at = Value::I64(1_800_000_000_123);
        let list = with(&[("x-delay", Value::I32(5)), ("x-deliver-at", at)]);
        assert_eq!(wait(&list), Some(Wait::Until(UnixMs(1_800_000_000_123))));
        let list = with(&[("x-deliver-at", Value::Timestamp(1_800_000_000))]);
        assert_eq!(wait(&list), Some(Wait::Until(UnixMs(1_800_000_000_000))));
        assert_eq!(waited(&list), None);
    }

    #[test]
    fn what_has_waited_says_so_and_does_not_ask_again() {
        let list = with(&[
            ("a", Value::text("b")),
            ("x-delay", Value::U16(40)),
            ("c", Value::Void),
        ]);
        let after = waited(&list).unwrap();
        let properties = Properties::walk(&after).unwrap();
        assert_eq!(properties.delivery_mode, Some(2));
        let headers: Vec<_> = properties.headers.unwrap().iter().collect();
        assert_eq!(headers.len(), 3);
        assert_eq!(headers[1].1, Value::I32(-40));
        assert_eq!((wait(&after), waited(&after)), (None, None));
    }
}
