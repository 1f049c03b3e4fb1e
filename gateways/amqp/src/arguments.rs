//! Arguments of declare, bind and consume: what is taken, what is refused by name.
//!
//! A name the broker would have to act on and does not yet is refused with 540 and named, never
//! ignored; a name nobody gives a meaning is kept and compared at redeclaration, as deployed brokers do.
//! Owns these lists. Never: what an accepted argument does.

use anabranch_core::properties::Value as NeutralValue;
use bytes::Bytes;

use crate::error::{AmqpError, ReplyCode};
use crate::map::neutral_value;
use crate::wire::table::{Table, Value};

/// Arguments of a queue that ask for something not built.
const QUEUE_NOT_BUILT: [&str; 20] = [
    "x-consumer-timeout",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-delayed-retry-min",
    "x-delivery-limit",
    "x-expires",
    "x-filter-size-bytes",
    "x-initial-cluster-size",
    "x-max-age",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-message-deduplication",
    "x-message-ttl",
    "x-overflow",
    "x-quorum-initial-group-size",
    "x-single-active-consumer",
    "x-stream-max-segment-size-bytes",
    "x-subscription-mode",
];

/// Arguments of an exchange that ask for something not built.
const EXCHANGE_NOT_BUILT: [&str; 3] = [
    "alternate-exchange",
    "x-delayed-type",
    "x-message-deduplication",
];

/// Arguments of a consumer that ask for something not built.
const CONSUME_NOT_BUILT: [&str; 4] = [
    "x-stream-filter",
    "x-stream-match-unfiltered",
    "x-stream-offset",
    "x-credit",
];

/// Named values as core takes them.
pub type Arguments = Vec<(Bytes, NeutralValue)>;

fn refuse(table: Table<'_>, not_built: &[&str], of: &'static str) -> Result<(), AmqpError> {
    for (name, _) in table.iter() {
        if let Some(name) = not_built
            .iter()
            .find(|known| known.as_bytes() == name.as_bytes())
        {
            return Err(AmqpError::connection(
                ReplyCode::NOT_IMPLEMENTED,
                format!("argument '{name}' of {of} is not supported"),
            ));
        }
    }
    Ok(())
}

fn kept<'a>(pairs: impl Iterator<Item = (&'a [u8], Value<'a>)>) -> Arguments {
    pairs
        .map(|(name, value)| (Bytes::copy_from_slice(name), neutral_value(value)))
        .collect()
}

fn all(table: Table<'_>) -> Arguments {
    kept(table.iter().map(|(name, value)| (name.as_bytes(), value)))
}

/// Arguments of a queue. `x-queue-type` `classic` is what a queue is when it says nothing, and is left
/// out so that both are equivalent.
///
/// # Errors
/// 540 for what is not built, 406 for a value that cannot be.
pub fn queue(table: Table<'_>) -> Result<Arguments, AmqpError> {
    refuse(table, &QUEUE_NOT_BUILT, "a queue")?;
    let pairs = table.iter().map(|(name, value)| (name.as_bytes(), value));
    match table.first("x-queue-type") {
        None => {}
        Some(value) => match value.as_long_str() {
            Some(b"classic") => {}
            Some(kind @ (b"quorum" | b"stream")) => {
                return Err(AmqpError::connection(
                    ReplyCode::NOT_IMPLEMENTED,
                    format!(
                        "argument 'x-queue-type' of a queue: '{}' is not supported",
                        String::from_utf8_lossy(kind)
                    ),
                ));
            }
            _ => {
                return Err(AmqpError::channel(
                    ReplyCode::PRECONDITION_FAILED,
                    "invalid arg 'x-queue-type' for queue: must be 'classic'",
                ));
            }
        },
    }
    Ok(kept(pairs.filter(|(name, _)| *name != b"x-queue-type")))
}

/// Arguments of an exchange.
///
/// # Errors
/// 540 for what is not built.
pub fn exchange(table: Table<'_>) -> Result<Arguments, AmqpError> {
    refuse(table, &EXCHANGE_NOT_BUILT, "an exchange")?;
    Ok(all(table))
}

/// Arguments of a binding.
///
/// # Errors
/// 406 when `x-match` is not one of its four values.
pub fn binding(table: Table<'_>) -> Result<Arguments, AmqpError> {
    match table.first("x-match") {
        None => {}
        Some(value) => match value.as_long_str() {
            Some(b"all" | b"any" | b"all-with-x" | b"any-with-x") => {}
            _ => {
                return Err(AmqpError::channel(
                    ReplyCode::PRECONDITION_FAILED,
                    "invalid arg 'x-match' for binding: must be 'all', 'any', 'all-with-x' or 'any-with-x'",
                ));
            }
        },
    }
    Ok(all(table))
}

/// The priority of a consumer.
///
/// # Errors
/// 540 for what is not built, 406 when `x-priority` is no integer.
pub fn consumer_priority(table: Table<'_>) -> Result<i32, AmqpError> {
    refuse(table, &CONSUME_NOT_BUILT, "a consumer")?;
    match table.first("x-priority") {
        None => Ok(0),
        Some(value) => value
            .as_i64()
            .and_then(|n| i32::try_from(n).ok())
            .ok_or_else(|| {
                AmqpError::channel(
                    ReplyCode::PRECONDITION_FAILED,
                    "invalid arg 'x-priority' for consumer: must be an integer",
                )
            }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Scope;
    use crate::wire::table::TableWriter;

    fn of(name: &'static str, value: Value<'_>) -> Bytes {
        let mut table = TableWriter::new();
        table.named(name, value);
        table.finish()
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        let raw = of("x-message-ttl", Value::I32(1));
        let error = queue(Table::new(&raw).unwrap()).unwrap_err();
        assert_eq!(
            (error.code, error.scope),
            (ReplyCode::NOT_IMPLEMENTED, Scope::Connection)
        );
        assert!(error.text.contains("x-message-ttl"));
        let raw = of("x-stream-offset", Value::text("first"));
        assert_eq!(
            consumer_priority(Table::new(&raw).unwrap())
                .unwrap_err()
                .code,
            ReplyCode::NOT_IMPLEMENTED
        );
        let raw = of("alternate-exchange", Value::text("x"));
        assert_eq!(
            exchange(Table::new(&raw).unwrap()).unwrap_err().code,
            ReplyCode::NOT_IMPLEMENTED
        );
    }

    #[test]
    fn unknown_arguments_are_kept_and_classic_equals_absent() {
        let raw = of("x-my-own", Value::I32(7));
        assert_eq!(
            queue(Table::new(&raw).unwrap()).unwrap(),
            [(Bytes::from_static(b"x-my-own"), NeutralValue::Int(7, 32))]
        );
        let raw = of("x-queue-type", Value::text("classic"));
        assert_eq!(queue(Table::new(&raw).unwrap()).unwrap(), []);
        let raw = of("x-queue-type", Value::I32(1));
        assert_eq!(
            queue(Table::new(&raw).unwrap()).unwrap_err().code,
            ReplyCode::PRECONDITION_FAILED
        );
    }

    #[test]
    fn consumer_priority_is_an_integer_of_any_width() {
        let raw = of("x-priority", Value::I8(-3));
        assert_eq!(consumer_priority(Table::new(&raw).unwrap()), Ok(-3));
        let raw = of("x-priority", Value::text("high"));
        assert_eq!(
            consumer_priority(Table::new(&raw).unwrap())
                .unwrap_err()
                .code,
            ReplyCode::PRECONDITION_FAILED
        );
        let raw = of("x-match", Value::text("some"));
        assert_eq!(
            binding(Table::new(&raw).unwrap()).unwrap_err().code,
            ReplyCode::PRECONDITION_FAILED
        );
    }
}
