//! Arguments of declare, bind and consume: what is taken, what is refused by name.
//!
//! A name the broker would have to act on and does not yet is refused with 540 and named, never
//! ignored; a name nobody gives a meaning is kept and compared at redeclaration, as deployed brokers do.
//! Owns exchanges and bindings; `queue` reads those of queues, `consume` those of consumers. Never: what an accepted
//! argument does.

mod consume;
mod duration;
mod queue;

use std::sync::Arc;

use anabranch_core::properties::Value as NeutralValue;
use bytes::Bytes;

pub use self::consume::{ConsumeArguments, consumer};
pub use self::queue::{Flags, QueueArguments, QueueKind, queue, queue_of};
use crate::error::{AmqpError, ReplyCode};
use crate::map::neutral_value;
use crate::wire::table::{Table, Value};

/// Arguments of an exchange that ask for something not built.
const EXCHANGE_NOT_BUILT: [&str; 1] = ["x-message-deduplication"];

/// The argument of an exchange that names who takes what it cannot route.
pub const ALTERNATE: &str = "alternate-exchange";
/// The argument of a binding that asks for last values. Not part of what tells bindings apart.
pub const RETAINED: &str = "x-retained";

/// Named values as core takes them.
pub type Arguments = Vec<(Bytes, NeutralValue)>;

fn not_supported(name: &str, of: &str) -> AmqpError {
    AmqpError::connection(
        ReplyCode::NOT_IMPLEMENTED,
        format!("argument '{name}' of {of} is not supported"),
    )
}

fn invalid(text: String) -> AmqpError {
    AmqpError::channel(
        ReplyCode::PRECONDITION_FAILED,
        format!("invalid arg {text}"),
    )
}

fn refuse(table: Table<'_>, not_built: &[&str], of: &str) -> Result<(), AmqpError> {
    let names = || not_built.iter().copied();
    for (name, _) in table.iter() {
        if let Some(name) = names().find(|known| known.as_bytes() == name.as_bytes()) {
            return Err(not_supported(name, of));
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

/// Arguments of an exchange, and the name of its alternate exchange.
///
/// # Errors
/// 540 for what is not built, 406 when the alternate exchange is no name.
pub fn exchange(table: Table<'_>) -> Result<(Arguments, Option<Arc<str>>), AmqpError> {
    refuse(table, &EXCHANGE_NOT_BUILT, "an exchange")?;
    let alternate = table.first(ALTERNATE).map(|value| {
        let name = value.as_long_str().map(std::str::from_utf8);
        match name {
            Some(Ok(name)) if !name.contains('\0') => Ok(name.into()),
            _ => Err(invalid(format!(
                "'{ALTERNATE}' for exchange: must be a name"
            ))),
        }
    });
    Ok((all(table), alternate.transpose()?))
}

/// Arguments of a binding, and whether the last values that match are wanted now.
///
/// # Errors
/// 406 when `x-match` is not one of its four values or `x-retained` is neither true nor false.
pub fn binding(table: Table<'_>) -> Result<(Arguments, bool), AmqpError> {
    match table.first("x-match") {
        None => {}
        Some(value) => match value.as_long_str() {
            Some(b"all" | b"any" | b"all-with-x" | b"any-with-x") => {}
            _ => {
                return Err(invalid(
                    "'x-match' for binding: must be 'all', 'any', 'all-with-x' or 'any-with-x'"
                        .to_owned(),
                ));
            }
        },
    }
    let retained = match table.first(RETAINED) {
        None => false,
        Some(Value::Bool(retained)) => retained,
        Some(_) => {
            return Err(invalid(format!(
                "'{RETAINED}' for binding: must be true or false"
            )));
        }
    };
    let pairs = table.iter().map(|(name, value)| (name.as_bytes(), value));
    let rest = kept(pairs.filter(|(name, _)| *name != RETAINED.as_bytes()));
    Ok((rest, retained))
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
        let raw = of("x-message-deduplication", Value::Bool(true));
        let error = exchange(Table::new(&raw).unwrap()).unwrap_err();
        assert_eq!(
            (error.code, error.scope),
            (ReplyCode::NOT_IMPLEMENTED, Scope::Connection)
        );
    }

    #[test]
    fn an_alternate_exchange_is_a_name_and_is_kept() {
        let raw = of(ALTERNATE, Value::text("rest"));
        let (kept, alternate) = exchange(Table::new(&raw).unwrap()).unwrap();
        assert_eq!((kept.len(), alternate.as_deref()), (1, Some("rest")));
        for wrong in [
            Value::I32(1),
            Value::Bytes(b"rest"),
            Value::text("a\0"),
            Value::LongStr(crate::wire::field::LongStr(b"\xff")),
        ] {
            let raw = of(ALTERNATE, wrong);
            let error = exchange(Table::new(&raw).unwrap()).unwrap_err();
            assert_eq!(error.code, ReplyCode::PRECONDITION_FAILED);
        }
    }

    #[test]
    fn last_values_are_asked_for_and_tell_no_bindings_apart() {
        let raw = of(RETAINED, Value::Bool(true));
        assert_eq!(binding(Table::new(&raw).unwrap()), Ok((Vec::new(), true)));
        let raw = of(RETAINED, Value::text("true"));
        let error = binding(Table::new(&raw).unwrap()).unwrap_err();
        assert_eq!(error.code, ReplyCode::PRECONDITION_FAILED);
    }

    #[test]
    fn a_match_is_one_of_four() {
        let raw = of("x-match", Value::text("some"));
        assert_eq!(
            binding(Table::new(&raw).unwrap()).unwrap_err().code,
            ReplyCode::PRECONDITION_FAILED
        );
    }
}
