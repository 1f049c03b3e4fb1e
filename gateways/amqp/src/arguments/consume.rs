//! What the arguments of `basic.consume` ask: a priority, and of a stream from where it is read and which messages.
//!
//! Owns the reading of every `x-` argument of a consumer that has a meaning here. Never: whether the queue is a stream
//! (core knows).

use anabranch_core::gateway::{Replay, SeekTo, ValueFilter};
use anabranch_core::id::{Offset, UnixMs};
use bytes::Bytes;

use super::{duration, invalid, not_supported};
use crate::error::AmqpError;
use crate::wire::table::{Table, Value};

/// Values that a consumer may choose messages by.
const FILTER_VALUES_MAX: usize = 256;

/// The arguments of a consumer, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsumeArguments {
    /// Higher is served first.
    pub priority: i32,
    /// From where and what, when anything of it was said.
    pub replay: Option<Box<Replay>>,
}

fn bad(name: &str, must: &str) -> AmqpError {
    invalid(format!("'{name}' for consumer: must be {must}"))
}

/// Reads the arguments of a consumer that comes at `now`.
///
/// # Errors
/// 540 for what is not built, by name; 406 for a value that cannot be.
pub fn consumer(table: Table<'_>, now: UnixMs) -> Result<ConsumeArguments, AmqpError> {
    let mut read = ConsumeArguments::default();
    let (mut from, mut values, mut unfiltered) = (None, None, None);
    for (name, value) in table.iter() {
        match name.as_bytes() {
            b"x-priority" => {
                let priority = value.as_i64().and_then(|n| i32::try_from(n).ok());
                read.priority = priority.ok_or_else(|| bad("x-priority", "an integer"))?;
            }
            b"x-stream-offset" => from = Some(place(value, now)?),
            b"x-stream-filter" => values = Some(wanted(value)?),
            b"x-stream-match-unfiltered" => match value {
                Value::Bool(on) => unfiltered = Some(on),
                _ => return Err(bad("x-stream-match-unfiltered", "true or false")),
            },
            b"x-credit" => return Err(not_supported("x-credit", "a consumer")),
            _ => {}
        }
    }
    if from.is_some() || values.is_some() || unfiltered.is_some() {
        let only = values.map(|values| ValueFilter {
            values,
            unfiltered: unfiltered.unwrap_or(false),
        });
        read.replay = Some(Box::new(Replay {
            from: from.unwrap_or(SeekTo::End),
            only,
            subscribes: None,
        }));
    }
    Ok(read)
}

/// Where a stream is to be read from.
fn place(value: Value<'_>, now: UnixMs) -> Result<SeekTo, AmqpError> {
    const MUST: &str = "'first', 'last', 'next', an offset, a timestamp, or a time back such as '1h' (Y, M, D, h, m, s)";
    let must = || bad("x-stream-offset", MUST);
    match value {
        Value::Timestamp(seconds) => Ok(SeekTo::Time(UnixMs(seconds.saturating_mul(1000)))),
        Value::LongStr(text) => match text.0 {
            b"first" => Ok(SeekTo::Start),
            b"last" => Ok(SeekTo::Last),
            b"next" => Ok(SeekTo::End),
            text => {
                let back_ms = duration::read_ms(text).ok_or_else(must)?;
                Ok(SeekTo::Time(UnixMs(now.0.saturating_sub(back_ms))))
            }
        },
        value => {
            let offset = value.as_i64().and_then(|n| u64::try_from(n).ok());
            offset.map(|n| SeekTo::Offset(Offset(n))).ok_or_else(must)
        }
    }
}

/// Values to choose messages by: one or a list.
fn wanted(value: Value<'_>) -> Result<Vec<Bytes>, AmqpError> {
    let must = || {
        bad(
            "x-stream-filter",
            "a string or a list of at most 256 strings",
        )
    };
    let one = |value: Value<'_>| value.as_long_str().map(Bytes::copy_from_slice);
    let values: Option<Vec<Bytes>> = match value {
        Value::Array(list) => list.iter().map(one).collect(),
        value => one(value).map(|value| vec![value]),
    };
    values
        .filter(|values| values.len() <= FILTER_VALUES_MAX)
        .ok_or_else(must)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ReplyCode, Scope};
    use crate::wire::table::{ArrayWriter, TableWriter};

    const NOW: UnixMs = UnixMs(1_000_000_000);

    fn read(pairs: &[(&'static str, Value<'_>)]) -> Result<ConsumeArguments, AmqpError> {
        let mut table = TableWriter::new();
        for (name, value) in pairs {
            table.named(name, *value);
        }
        consumer(Table::new(&table.finish()).unwrap(), NOW)
    }

    #[test]
    fn every_form_of_an_offset_is_read_as_rabbitmq_documents_them() {
        for (value, from) in [
            (Value::text("first"), SeekTo::Start),
            (Value::text("last"), SeekTo::Last),
            (Value::text("next"), SeekTo::End),
            (Value::I8(7), SeekTo::Offset(Offset(7))),
            (
                Value::I64(5_000_000_000),
                SeekTo::Offset(Offset(5_000_000_000)),
            ),
            (Value::Timestamp(77), SeekTo::Time(UnixMs(77_000))),
            (Value::text("5m"), SeekTo::Time(UnixMs(NOW.0 - 300_000))),
            (Value::text("1h"), SeekTo::Time(UnixMs(NOW.0 - 3_600_000))),
            (Value::text("9Y"), SeekTo::Time(UnixMs(0))),
        ] {
            let replay = read(&[("x-stream-offset", value)]).unwrap().replay.unwrap();
            assert_eq!((replay.from, replay.only), (from, None), "{value:?}");
        }
    }

    #[test]
    fn a_filter_is_one_value_or_several() {
        let mut list = ArrayWriter::new();
        list.push(Value::text("a"));
        list.push(Value::text("b"));
        let several = read(&[
            ("x-stream-filter", Value::Array(list.array())),
            ("x-stream-match-unfiltered", Value::Bool(true)),
        ]);
        let replay = several.unwrap().replay.unwrap();
        let only = replay.only.unwrap();
        assert_eq!((only.values.len(), only.unfiltered), (2, true));
        assert_eq!(replay.from, SeekTo::End, "next is the default");
        let one = read(&[("x-stream-filter", Value::text("a"))]).unwrap();
        let only = one.replay.unwrap().only.unwrap();
        assert_eq!((&only.values[0][..], only.unfiltered), (&b"a"[..], false));
    }

    #[test]
    fn bad_values_are_406_and_named() {
        for (name, value) in [
            ("x-priority", Value::text("high")),
            ("x-stream-offset", Value::text("7")),
            ("x-stream-offset", Value::text("")),
            ("x-stream-offset", Value::text("1 h")),
            ("x-stream-offset", Value::text("1w")),
            ("x-stream-offset", Value::I32(-1)),
            ("x-stream-offset", Value::Bool(true)),
            ("x-stream-filter", Value::I32(1)),
            ("x-stream-match-unfiltered", Value::text("true")),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert_eq!(
                (error.code, error.scope),
                (ReplyCode::PRECONDITION_FAILED, Scope::Channel),
                "{name} {value:?}"
            );
            assert!(error.text.contains(name), "{}", error.text);
        }
        let error = read(&[("x-credit", Value::Void)]).unwrap_err();
        assert_eq!(error.code, ReplyCode::NOT_IMPLEMENTED);
    }

    #[test]
    fn a_priority_is_an_integer_of_any_width() {
        let read = read(&[("x-priority", Value::I8(-3))]).unwrap();
        assert_eq!((read.priority, read.replay), (-3, None));
    }
}
