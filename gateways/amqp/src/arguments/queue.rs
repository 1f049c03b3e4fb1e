//! What the arguments of a queue ask of it: its kind, its mode, its limits.
//!
//! Owns the reading of every `x-` argument of `queue.declare` that has a meaning here. Arguments that say
//! how another broker lays a queue out are checked and mean nothing; those that ask for something this
//! broker does not do are refused by name. Never: what a limit does (core). Read next: [`reading`].

mod reading;
#[cfg(test)]
mod tests;
mod value;

use anabranch_core::limits::StreamLimits;
use anabranch_core::properties::Value as NeutralValue;
use bytes::Bytes;

use self::reading::Reading;
use super::{Arguments, kept};
use crate::error::{AmqpError, ReplyCode};
use crate::map::wire_table;
use crate::wire::field::ShortStr;
use crate::wire::table::Table;

/// The kind of queue a client asks for. All are streams to core; they differ in what may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// What a queue is when it says nothing.
    Classic,
    /// Durable, shared between connections, with a delivery limit.
    Quorum,
    /// Durable, keeps what was read, and is read by each consumer from a place of its own.
    Stream,
}

impl QueueKind {
    const fn name(self) -> &'static str {
        match self {
            QueueKind::Classic => "classic",
            QueueKind::Quorum => "quorum",
            QueueKind::Stream => "stream",
        }
    }
}

/// What `queue.declare` says beside its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    /// Outlives the node.
    pub durable: bool,
    /// One connection's own.
    pub exclusive: bool,
    /// Goes with its last consumer.
    pub auto_delete: bool,
}

/// The arguments of a queue, read.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueArguments {
    /// Its kind.
    pub kind: QueueKind,
    /// What is asked of core.
    pub limits: StreamLimits,
    /// As given, without `x-queue-type` `classic`, so that it equals an absent one.
    pub arguments: Arguments,
}

/// Reads the arguments of a queue.
///
/// # Errors
/// 540 for what is not built, by name; 406 for a value that cannot be and for what the kind of queue does
/// not have.
pub fn queue(table: Table<'_>, flags: Flags) -> Result<QueueArguments, AmqpError> {
    let kind = kind(table)?;
    if kind != QueueKind::Classic {
        let wrong = [
            ("auto-delete", flags.auto_delete),
            ("exclusive", flags.exclusive),
            ("non-durable", !flags.durable),
        ];
        if let Some((property, _)) = wrong.into_iter().find(|(_, wrong)| *wrong) {
            let kind = kind.name();
            return Err(precondition(format!(
                "invalid property '{property}' for a {kind} queue"
            )));
        }
    }
    let mut reading = Reading::new(kind, flags.auto_delete);
    for (name, value) in table.iter() {
        reading.argument(name.as_bytes(), value)?;
    }
    let pairs = table.iter().map(|(name, value)| (name.as_bytes(), value));
    let classic = kind == QueueKind::Classic;
    Ok(QueueArguments {
        kind,
        limits: reading.finish()?,
        arguments: kept(pairs.filter(|(name, _)| !(classic && *name == b"x-queue-type"))),
    })
}

/// Reads arguments of a queue that were not given over the wire, as if they had been: a client that gives
/// the same later declares the same queue.
///
/// # Errors
/// As [`queue`]; 406 also for a name that is longer than the wire takes.
pub fn queue_of(
    given: &[(Bytes, NeutralValue)],
    flags: Flags,
) -> Result<QueueArguments, AmqpError> {
    if let Some((name, _)) = given.iter().find(|(name, _)| ShortStr::new(name).is_none()) {
        let name = String::from_utf8_lossy(name);
        return Err(invalid(&name, "the name must be at most 255 bytes"));
    }
    let raw = wire_table(given);
    let table = Table::new(&raw)
        .map_err(|_| precondition("the arguments are nested too deep or too long".to_owned()))?;
    queue(table, flags)
}

fn kind(table: Table<'_>) -> Result<QueueKind, AmqpError> {
    let Some(value) = table.first("x-queue-type") else {
        return Ok(QueueKind::Classic);
    };
    match value.as_long_str() {
        Some(b"classic") => Ok(QueueKind::Classic),
        Some(b"quorum") => Ok(QueueKind::Quorum),
        Some(b"stream") => Ok(QueueKind::Stream),
        _ => Err(invalid(
            "x-queue-type",
            "must be 'classic', 'quorum' or 'stream'",
        )),
    }
}

fn precondition(text: String) -> AmqpError {
    AmqpError::channel(ReplyCode::PRECONDITION_FAILED, text)
}

fn invalid(name: &str, must: &str) -> AmqpError {
    precondition(format!("invalid arg '{name}' for queue: {must}"))
}
