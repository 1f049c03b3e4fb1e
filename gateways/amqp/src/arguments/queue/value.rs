//! What the value of an argument may be: numbers within bounds, texts of a known set, names and keys.
//!
//! Owns a reader for each form of value, which refuses with the argument's name; never what the value is for.
//! Read next: [`super::reading`].

use std::sync::Arc;

use anabranch_core::limits::{DeadLetterKey, Mode, Overflow};
use bytes::Bytes;

use super::{QueueKind, invalid};
use crate::address;
use crate::arguments::duration;
use crate::error::AmqpError;
use crate::wire::table::Value;

/// A whole number of any width, not below `least`.
pub(super) fn number(name: &str, value: Value<'_>, least: u64) -> Result<u64, AmqpError> {
    let number = value.as_i64().and_then(|n| u64::try_from(n).ok());
    number
        .filter(|n| *n >= least)
        .ok_or_else(|| invalid(name, &format!("must be an integer, at least {least}")))
}

pub(super) fn text<'a>(name: &str, value: Value<'a>) -> Result<&'a [u8], AmqpError> {
    value
        .as_long_str()
        .ok_or_else(|| invalid(name, "must be a string"))
}

pub(super) fn one_of<'a>(
    name: &str,
    value: Value<'a>,
    known: &[&str],
) -> Result<&'a [u8], AmqpError> {
    let text = text(name, value)?;
    if known.iter().any(|known| known.as_bytes() == text) {
        return Ok(text);
    }
    Err(invalid(
        name,
        &format!("must be one of {}", known.join(", ")),
    ))
}

/// Refuses an argument that is for another kind of queue.
pub(super) fn only(kind: QueueKind, wanted: QueueKind, name: &str) -> Result<(), AmqpError> {
    match wanted {
        wanted if kind == wanted => Ok(()),
        QueueKind::Classic => Err(invalid(name, "is for queues of type 'classic'")),
        QueueKind::Quorum => Err(invalid(name, "is for queues of type 'quorum'")),
        QueueKind::Stream => Err(invalid(name, "is for queues of type 'stream'")),
    }
}

pub(super) fn within(
    name: &str,
    value: Value<'_>,
    least: u64,
    most: u64,
) -> Result<u64, AmqpError> {
    match number(name, value, least)? {
        number if number <= most => Ok(number),
        _ => Err(invalid(name, &format!("must be at most {most}"))),
    }
}

/// How long a stream keeps a message.
pub(super) fn age(name: &str, value: Value<'_>) -> Result<u64, AmqpError> {
    let must = "must be a whole number and one of Y, M, D, h, m, s, such as '7D'";
    duration::read_ms(text(name, value)?).ok_or_else(|| invalid(name, must))
}

pub(super) fn overflow(
    kind: QueueKind,
    name: &str,
    value: Value<'_>,
) -> Result<Overflow, AmqpError> {
    const KNOWN: [&str; 4] = [
        "drop-head",
        "reject-publish",
        "reject-publish-dlx",
        "hold-publisher",
    ];
    match (one_of(name, value, &KNOWN)?, kind) {
        (b"drop-head", _) => Ok(Overflow::DropOldest),
        (b"reject-publish", _) => Ok(Overflow::Reject),
        (b"hold-publisher", _) => Ok(Overflow::Hold),
        (_, QueueKind::Classic) => Ok(Overflow::RejectAndDeadLetter),
        (_, QueueKind::Quorum | QueueKind::Stream) => Err(invalid(
            name,
            "'reject-publish-dlx' is for queues of type 'classic'",
        )),
    }
}

/// A number of returns; -1 is none.
pub(super) fn delivery_limit(name: &str, value: Value<'_>) -> Result<Option<u32>, AmqpError> {
    if value.as_i64() == Some(-1) {
        return Ok(None);
    }
    let limit = number(name, value, 0)?;
    Ok(Some(u32::try_from(limit).unwrap_or(u32::MAX)))
}

pub(super) fn exchange(name: &str, value: Value<'_>) -> Result<Arc<str>, AmqpError> {
    match std::str::from_utf8(text(name, value)?) {
        Ok(exchange) if !exchange.contains('\0') => Ok(exchange.into()),
        _ => Err(invalid(name, "must be UTF-8 text")),
    }
}

pub(super) fn key(name: &str, value: Value<'_>) -> Result<Box<DeadLetterKey>, AmqpError> {
    let key = text(name, value)?;
    if key.len() > address::KEY_BYTES_MAX {
        return Err(invalid(name, "must be at most 255 bytes"));
    }
    let converted = address::key_to_address(&Bytes::copy_from_slice(key))
        .map_err(|error| invalid(name, &error.to_string()))?;
    Ok(Box::new(DeadLetterKey {
        address: converted.address,
        origin_key: converted.origin_key,
    }))
}

pub(super) fn mode(name: &str, value: Value<'_>) -> Result<Mode, AmqpError> {
    const KNOWN: [&str; 4] = ["shared", "exclusive", "failover", "key_shared"];
    Ok(match one_of(name, value, &KNOWN)? {
        b"shared" => Mode::Shared,
        b"exclusive" => Mode::Exclusive,
        b"failover" => Mode::Failover,
        _ => Mode::KeyShared,
    })
}
