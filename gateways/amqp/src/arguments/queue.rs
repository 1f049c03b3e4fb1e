//! What the arguments of a queue ask of it: its kind, its mode, its limits.
//!
//! Owns the reading of every `x-` argument of `queue.declare` that has a meaning here. Arguments that say
//! how another broker lays a queue out are checked and mean nothing; those that ask for something this
//! broker does not do are refused by name. Never: what a limit does (core).

use std::sync::Arc;

use anabranch_core::limits::{
    DeadLetterKey, DeadLetterStrategy, DeadLetterTo, Mode, Overflow, Retry, StreamLimits,
};
use anabranch_core::properties::Value as NeutralValue;
use bytes::Bytes;

use super::{Arguments, duration, kept, not_supported};
use crate::address;
use crate::error::{AmqpError, ReplyCode};
use crate::map::wire_table;
use crate::wire::field::ShortStr;
use crate::wire::table::{Table, Value};

/// How often a message of a quorum queue may come back when the queue does not say.
const QUORUM_DELIVERY_LIMIT: u32 = 20;

/// Arguments of a queue that ask for something not built.
const NOT_BUILT: [&str; 1] = ["x-message-deduplication"];
/// The most levels that other brokers allow.
const PRIORITY_MAX: u64 = 255;

/// Arguments of a queue that messages leave when they were read, which a stream does not have.
const NOT_OF_STREAMS: [&str; 19] = [
    "x-consumer-timeout",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-delayed-retry-min",
    "x-delivery-limit",
    "x-expires",
    "x-max-in-memory-bytes",
    "x-max-in-memory-length",
    "x-max-length",
    "x-max-priority",
    "x-message-ttl",
    "x-overflow",
    "x-queue-master-locator",
    "x-queue-mode",
    "x-queue-version",
    "x-quorum-initial-group-size",
    "x-single-active-consumer",
    "x-subscription-mode",
];
/// The largest segment that other brokers allow a stream.
const SEGMENT_BYTES_MAX: u64 = 3_000_000_000;

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
    let mut reading = Reading {
        kind,
        limits: StreamLimits {
            auto_delete: flags.auto_delete,
            delivery_limit: (kind == QueueKind::Quorum).then_some(QUORUM_DELIVERY_LIMIT),
            mode: match kind {
                QueueKind::Classic | QueueKind::Quorum => Mode::default(),
                QueueKind::Stream => Mode::Replay,
            },
            ..StreamLimits::default()
        },
        exchange: None,
        key: None,
        mode: None,
        single_active: false,
        retry: Retry {
            min_ms: 0,
            max_ms: None,
            multiplier: None,
        },
        retries: true,
    };
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

/// A whole number of any width, not below `least`.
fn number(name: &str, value: Value<'_>, least: u64) -> Result<u64, AmqpError> {
    let number = value.as_i64().and_then(|n| u64::try_from(n).ok());
    number
        .filter(|n| *n >= least)
        .ok_or_else(|| invalid(name, &format!("must be an integer, at least {least}")))
}

fn text<'a>(name: &str, value: Value<'a>) -> Result<&'a [u8], AmqpError> {
    value
        .as_long_str()
        .ok_or_else(|| invalid(name, "must be a string"))
}

fn one_of<'a>(name: &str, value: Value<'a>, known: &[&str]) -> Result<&'a [u8], AmqpError> {
    let text = text(name, value)?;
    if known.iter().any(|known| known.as_bytes() == text) {
        return Ok(text);
    }
    Err(invalid(
        name,
        &format!("must be one of {}", known.join(", ")),
    ))
}

/// What was read so far.
struct Reading {
    kind: QueueKind,
    limits: StreamLimits,
    exchange: Option<Arc<str>>,
    key: Option<Box<DeadLetterKey>>,
    mode: Option<Mode>,
    single_active: bool,
    /// Its `min_ms` is 0 while nothing says that it is to wait.
    retry: Retry,
    retries: bool,
}

impl Reading {
    fn argument(&mut self, name: &[u8], value: Value<'_>) -> Result<(), AmqpError> {
        // What is no text has no meaning to anybody and is only kept.
        let Ok(name) = std::str::from_utf8(name) else {
            return Ok(());
        };
        if self.kind == QueueKind::Stream && NOT_OF_STREAMS.contains(&name) {
            return Err(invalid(name, "is not for queues of type 'stream'"));
        }
        if NOT_BUILT.contains(&name) {
            return Err(not_supported(name, "a queue"));
        }
        let limits = &mut self.limits;
        match name {
            "x-expires" => limits.expires_ms = Some(number(name, value, 1)?),
            "x-message-ttl" => limits.message_ttl_ms = Some(number(name, value, 0)?),
            "x-max-length" => limits.messages_max = Some(number(name, value, 0)?),
            "x-max-length-bytes" => limits.bytes_max = Some(number(name, value, 0)?),
            "x-max-age" => {
                only(self.kind, QueueKind::Stream, name)?;
                limits.age_max_ms = Some(age(name, value)?);
            }
            "x-delivery-limit" => limits.delivery_limit = delivery_limit(name, value)?,
            "x-overflow" => limits.overflow = overflow(self.kind, name, value)?,
            "x-max-priority" => {
                // Quorum queues have levels of their own making elsewhere, and do not take this there either.
                only(self.kind, QueueKind::Classic, name)?;
                let most = within(name, value, 0, PRIORITY_MAX)?;
                limits.priority_max = u8::try_from(most).ok().filter(|most| *most > 0);
            }
            "x-consumer-timeout" => limits.ack_timeout_ms = Some(number(name, value, 0)?),
            "x-delayed-retry-min" => self.retry.min_ms = number(name, value, 1)?,
            "x-delayed-retry-max" => self.retry.max_ms = Some(number(name, value, 1)?),
            "x-delayed-retry-multiplier" => {
                let multiplier = number(name, value, 1)?;
                self.retry.multiplier = Some(u32::try_from(multiplier).unwrap_or(u32::MAX));
            }
            "x-delayed-retry-type" => {
                const KNOWN: [&str; 4] = ["disabled", "all", "failed", "returned"];
                self.retries = one_of(name, value, &KNOWN)? != b"disabled";
            }
            "x-dead-letter-exchange" => self.exchange = Some(exchange(name, value)?),
            "x-dead-letter-routing-key" => self.key = Some(key(name, value)?),
            "x-single-active-consumer" => match value {
                Value::Bool(on) => self.single_active = on,
                _ => return Err(invalid(name, "must be true or false")),
            },
            "x-subscription-mode" => self.mode = Some(mode(name, value)?),
            "x-dead-letter-strategy" => {
                let known = ["at-most-once", "at-least-once"];
                limits.dead_letter_strategy = match one_of(name, value, &known)? {
                    b"at-least-once" => DeadLetterStrategy::AtLeastOnce,
                    _ => DeadLetterStrategy::AtMostOnce,
                };
            }
            // From here on: how other brokers lay a queue out. Checked, and without effect.
            "x-max-in-memory-length" | "x-max-in-memory-bytes" => {
                number(name, value, 0)?;
            }
            "x-queue-leader-locator" => {
                one_of(
                    name,
                    value,
                    &["client-local", "balanced", "random", "least-leaders"],
                )?;
            }
            "x-queue-master-locator" => {
                only(self.kind, QueueKind::Classic, name)?;
                text(name, value)?;
            }
            "x-queue-mode" => {
                only(self.kind, QueueKind::Classic, name)?;
                one_of(name, value, &["default", "lazy"])?;
            }
            "x-queue-version" => {
                only(self.kind, QueueKind::Classic, name)?;
                if !matches!(value.as_i64(), Some(1 | 2)) {
                    return Err(invalid(name, "must be 1 or 2"));
                }
            }
            "x-quorum-initial-group-size" | "x-quorum-target-group-size" => {
                only(self.kind, QueueKind::Quorum, name)?;
                number(name, value, 1)?;
            }
            "x-initial-cluster-size" => {
                only(self.kind, QueueKind::Stream, name)?;
                number(name, value, 1)?;
            }
            // Filters are exact here, and messages leave one by one.
            "x-filter-size-bytes" => {
                only(self.kind, QueueKind::Stream, name)?;
                within(name, value, 16, 255)?;
            }
            "x-stream-max-segment-size-bytes" => {
                only(self.kind, QueueKind::Stream, name)?;
                within(name, value, 1, SEGMENT_BYTES_MAX)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(mut self) -> Result<StreamLimits, AmqpError> {
        self.limits.dead_letter = match (self.exchange, self.key) {
            (Some(exchange), key) => Some(DeadLetterTo { exchange, key }),
            (None, None) => None,
            (None, Some(_)) => {
                return Err(invalid(
                    "x-dead-letter-routing-key",
                    "needs 'x-dead-letter-exchange'",
                ));
            }
        };
        if self.kind == QueueKind::Stream {
            return Ok(self.limits);
        }
        self.limits.retry = match (self.retry.min_ms, self.retry.max_ms) {
            (0, _) => None,
            (min, Some(max)) if max < min => {
                return Err(invalid(
                    "x-delayed-retry-max",
                    "must not be below 'x-delayed-retry-min'",
                ));
            }
            _ => self.retries.then_some(self.retry),
        };
        self.limits.mode = match (self.mode, self.single_active) {
            (Some(Mode::Failover) | None, true) => Mode::Failover,
            (mode, false) => mode.unwrap_or_default(),
            (Some(Mode::Shared | Mode::Exclusive | Mode::KeyShared | Mode::Replay), true) => {
                return Err(invalid(
                    "x-single-active-consumer",
                    "is what 'x-subscription-mode' calls 'failover'",
                ));
            }
        };
        if self.limits.mode == Mode::KeyShared && self.limits.priority_max.is_some() {
            return Err(invalid(
                "x-max-priority",
                "does not go with 'x-subscription-mode' 'key_shared', which keeps the order of each key",
            ));
        }
        Ok(self.limits)
    }
}

/// Refuses an argument that is for another kind of queue.
fn only(kind: QueueKind, wanted: QueueKind, name: &str) -> Result<(), AmqpError> {
    match wanted {
        wanted if kind == wanted => Ok(()),
        QueueKind::Classic => Err(invalid(name, "is for queues of type 'classic'")),
        QueueKind::Quorum => Err(invalid(name, "is for queues of type 'quorum'")),
        QueueKind::Stream => Err(invalid(name, "is for queues of type 'stream'")),
    }
}

fn within(name: &str, value: Value<'_>, least: u64, most: u64) -> Result<u64, AmqpError> {
    match number(name, value, least)? {
        number if number <= most => Ok(number),
        _ => Err(invalid(name, &format!("must be at most {most}"))),
    }
}

/// How long a stream keeps a message.
fn age(name: &str, value: Value<'_>) -> Result<u64, AmqpError> {
    let must = "must be a whole number and one of Y, M, D, h, m, s, such as '7D'";
    duration::read_ms(text(name, value)?).ok_or_else(|| invalid(name, must))
}

fn overflow(kind: QueueKind, name: &str, value: Value<'_>) -> Result<Overflow, AmqpError> {
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
fn delivery_limit(name: &str, value: Value<'_>) -> Result<Option<u32>, AmqpError> {
    if value.as_i64() == Some(-1) {
        return Ok(None);
    }
    let limit = number(name, value, 0)?;
    Ok(Some(u32::try_from(limit).unwrap_or(u32::MAX)))
}

fn exchange(name: &str, value: Value<'_>) -> Result<Arc<str>, AmqpError> {
    match std::str::from_utf8(text(name, value)?) {
        Ok(exchange) if !exchange.contains('\0') => Ok(exchange.into()),
        _ => Err(invalid(name, "must be UTF-8 text")),
    }
}

fn key(name: &str, value: Value<'_>) -> Result<Box<DeadLetterKey>, AmqpError> {
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

fn mode(name: &str, value: Value<'_>) -> Result<Mode, AmqpError> {
    const KNOWN: [&str; 4] = ["shared", "exclusive", "failover", "key_shared"];
    Ok(match one_of(name, value, &KNOWN)? {
        b"shared" => Mode::Shared,
        b"exclusive" => Mode::Exclusive,
        b"failover" => Mode::Failover,
        _ => Mode::KeyShared,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Scope;
    use crate::wire::table::TableWriter;

    const DURABLE: Flags = Flags {
        durable: true,
        exclusive: false,
        auto_delete: false,
    };

    fn read(pairs: &[(&'static str, Value<'_>)]) -> Result<QueueArguments, AmqpError> {
        let mut table = TableWriter::new();
        for (name, value) in pairs {
            table.named(name, *value);
        }
        queue(Table::new(&table.finish()).unwrap(), DURABLE)
    }

    fn limits(pairs: &[(&'static str, Value<'_>)]) -> StreamLimits {
        read(pairs).unwrap().limits
    }

    #[test]
    fn every_limit_is_read_in_any_width() {
        let asked = limits(&[
            ("x-expires", Value::I64(60_000)),
            ("x-message-ttl", Value::U8(0)),
            ("x-max-length", Value::I16(10)),
            ("x-max-length-bytes", Value::U32(4096)),
            ("x-overflow", Value::text("reject-publish-dlx")),
            ("x-delivery-limit", Value::I8(3)),
            ("x-dead-letter-exchange", Value::text("")),
            ("x-dead-letter-routing-key", Value::text("a.*.b")),
            ("x-single-active-consumer", Value::Bool(true)),
        ]);
        let key = asked.dead_letter.clone().unwrap().key.unwrap();
        assert_eq!(
            (key.address.as_str(), &key.origin_key[..]),
            ("a/*/b", &b"a.*.b"[..])
        );
        assert_eq!(
            StreamLimits {
                dead_letter: None,
                ..asked
            },
            StreamLimits {
                auto_delete: false,
                mode: Mode::Failover,
                expires_ms: Some(60_000),
                message_ttl_ms: Some(0),
                messages_max: Some(10),
                bytes_max: Some(4096),
                overflow: Overflow::RejectAndDeadLetter,
                delivery_limit: Some(3),
                age_max_ms: None,
                priority_max: None,
                dead_letter: None,
                dead_letter_strategy: DeadLetterStrategy::AtMostOnce,
                retry: None,
                ack_timeout_ms: None,
            }
        );
    }

    #[test]
    fn what_came_by_another_way_is_read_as_from_the_wire() {
        let given = |name: &'static str, value| (Bytes::from_static(name.as_bytes()), value);
        let asked = queue_of(
            &[
                given("x-message-ttl", NeutralValue::Int(60_000, 64)),
                given("x-overflow", NeutralValue::Text("reject-publish".into())),
            ],
            DURABLE,
        )
        .unwrap();
        let over_the_wire = read(&[
            ("x-message-ttl", Value::I64(60_000)),
            ("x-overflow", Value::text("reject-publish")),
        ]);
        assert_eq!(over_the_wire.unwrap(), asked);
        for wrong in [
            (Bytes::from(vec![b'x'; 256]), NeutralValue::Void),
            given("x-message-ttl", NeutralValue::Text("1".into())),
        ] {
            let error = queue_of(&[wrong], DURABLE).unwrap_err();
            assert_eq!(error.code, ReplyCode::PRECONDITION_FAILED);
        }
    }

    #[test]
    fn bad_types_and_values_are_406_and_named_c33_c34() {
        for (name, value) in [
            ("x-expires", Value::I32(0)),
            ("x-expires", Value::text("1")),
            ("x-message-ttl", Value::I32(-1)),
            ("x-max-length", Value::Bool(true)),
            ("x-max-length-bytes", Value::F64(1.0)),
            ("x-overflow", Value::text("drop-tail")),
            ("x-dead-letter-exchange", Value::I32(1)),
            (
                "x-dead-letter-exchange",
                Value::LongStr(crate::wire::field::LongStr(b"\xff")),
            ),
            ("x-dead-letter-routing-key", Value::text("without-exchange")),
            ("x-delivery-limit", Value::I32(-2)),
            ("x-single-active-consumer", Value::text("true")),
            ("x-subscription-mode", Value::text("any")),
            ("x-queue-type", Value::I32(1)),
            ("x-queue-type", Value::text("other")),
            ("x-queue-mode", Value::text("eager")),
            ("x-queue-version", Value::I32(3)),
            ("x-queue-leader-locator", Value::text("moon")),
            ("x-dead-letter-strategy", Value::text("never")),
            ("x-max-in-memory-length", Value::I32(-1)),
            ("x-quorum-initial-group-size", Value::I32(3)),
            ("x-max-age", Value::text("1D")),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert_eq!(
                (error.code, error.scope),
                (ReplyCode::PRECONDITION_FAILED, Scope::Channel),
                "{name} {value:?}"
            );
            assert!(error.text.contains(name), "{}", error.text);
        }
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        let name = "x-message-deduplication";
        let error = read(&[(name, Value::Bool(true))]).unwrap_err();
        assert_eq!(
            (error.code, error.scope),
            (ReplyCode::NOT_IMPLEMENTED, Scope::Connection)
        );
        assert!(error.text.contains(name));
    }

    #[test]
    fn priorities_are_1_to_255_of_classic_queues_and_not_by_key() {
        let most = |number| limits(&[("x-max-priority", Value::I32(number))]).priority_max;
        assert_eq!(
            [0, 1, 10, 255].map(most),
            [None, Some(1), Some(10), Some(255)]
        );
        let priority = ("x-max-priority", Value::I32(10));
        for wrong in [
            &[("x-max-priority", Value::I32(256))][..],
            &[("x-max-priority", Value::I32(-1))],
            &[("x-max-priority", Value::text("10"))],
            &[priority, ("x-queue-type", Value::text("quorum"))],
            &[priority, ("x-subscription-mode", Value::text("key_shared"))],
        ] {
            let error = read(wrong).unwrap_err();
            assert_eq!(
                (error.code, error.scope),
                (ReplyCode::PRECONDITION_FAILED, Scope::Channel)
            );
            assert!(error.text.contains("x-max-priority"), "{}", error.text);
        }
        let single = limits(&[priority, ("x-single-active-consumer", Value::Bool(true))]);
        assert_eq!(
            (single.mode, single.priority_max),
            (Mode::Failover, Some(10))
        );
    }

    #[test]
    fn modes_have_names_and_single_active_is_failover() {
        for (name, mode) in [
            ("shared", Mode::Shared),
            ("exclusive", Mode::Exclusive),
            ("failover", Mode::Failover),
            ("key_shared", Mode::KeyShared),
        ] {
            assert_eq!(
                limits(&[("x-subscription-mode", Value::text(name))]).mode,
                mode
            );
            let both = read(&[
                ("x-subscription-mode", Value::text(name)),
                ("x-single-active-consumer", Value::Bool(true)),
            ]);
            assert_eq!(both.is_ok(), mode == Mode::Failover);
        }
        assert_eq!(limits(&[]).mode, Mode::Shared);
    }

    #[test]
    fn a_stream_is_durable_and_shared_and_keeps_by_age_and_size() {
        let stream = ("x-queue-type", Value::text("stream"));
        let asked = read(&[
            stream,
            ("x-max-age", Value::text("7D")),
            ("x-max-length-bytes", Value::I64(5_000_000_000)),
            ("x-stream-max-segment-size-bytes", Value::I32(500_000_000)),
            ("x-initial-cluster-size", Value::I32(3)),
            ("x-filter-size-bytes", Value::U8(32)),
            ("x-queue-leader-locator", Value::text("client-local")),
        ]);
        let asked = asked.unwrap();
        assert_eq!((asked.kind, asked.arguments.len()), (QueueKind::Stream, 7));
        assert_eq!(
            asked.limits,
            StreamLimits {
                mode: Mode::Replay,
                age_max_ms: Some(604_800_000),
                bytes_max: Some(5_000_000_000),
                ..StreamLimits::default()
            }
        );
        for (name, value) in [
            ("x-max-age", Value::text("7d")),
            ("x-max-age", Value::I32(7)),
            ("x-stream-max-segment-size-bytes", Value::I64(3_000_000_001)),
            ("x-filter-size-bytes", Value::I32(15)),
            ("x-initial-cluster-size", Value::I32(0)),
            ("x-expires", Value::I32(1000)),
            ("x-max-length", Value::I32(1000)),
            ("x-max-priority", Value::I32(1)),
            ("x-single-active-consumer", Value::Bool(true)),
            ("x-subscription-mode", Value::text("failover")),
        ] {
            let error = read(&[stream, (name, value)]).unwrap_err();
            assert_eq!(
                (error.code, error.scope),
                (ReplyCode::PRECONDITION_FAILED, Scope::Channel)
            );
            assert!(error.text.contains(name), "{}", error.text);
        }
        let mut table = TableWriter::new();
        table.named(stream.0, stream.1);
        let raw = table.finish();
        for (flags, named) in [
            (
                Flags {
                    durable: false,
                    ..DURABLE
                },
                "non-durable",
            ),
            (
                Flags {
                    exclusive: true,
                    ..DURABLE
                },
                "exclusive",
            ),
            (
                Flags {
                    auto_delete: true,
                    ..DURABLE
                },
                "auto-delete",
            ),
        ] {
            let error = queue(Table::new(&raw).unwrap(), flags).unwrap_err();
            assert_eq!(error.code, ReplyCode::PRECONDITION_FAILED);
            assert!(error.text.contains(named), "{}", error.text);
        }
    }

    #[test]
    fn unknown_arguments_are_kept_and_classic_equals_absent_c35() {
        let asked = read(&[
            ("x-my-own", Value::I32(7)),
            ("x-queue-type", Value::text("classic")),
        ])
        .unwrap();
        assert_eq!(
            asked.arguments,
            [(
                Bytes::from_static(b"x-my-own"),
                anabranch_core::properties::Value::Int(7, 32)
            )]
        );
        assert_eq!(asked.limits, StreamLimits::default());
    }

    #[test]
    fn a_quorum_queue_is_durable_and_shared_and_has_a_delivery_limit_d17() {
        let quorum = ("x-queue-type", Value::text("quorum"));
        let asked = read(&[quorum, ("x-quorum-initial-group-size", Value::I32(3))]).unwrap();
        assert_eq!(asked.kind, QueueKind::Quorum);
        assert_eq!(asked.limits.delivery_limit, Some(20));
        assert_eq!(asked.arguments.len(), 2, "kept, so that classic differs");
        let none = limits(&[quorum, ("x-delivery-limit", Value::I32(-1))]);
        assert_eq!(none.delivery_limit, None);
        assert!(read(&[quorum, ("x-queue-mode", Value::text("lazy"))]).is_err());
        assert!(read(&[quorum, ("x-overflow", Value::text("reject-publish-dlx"))]).is_err());
        let mut table = TableWriter::new();
        table.named(quorum.0, quorum.1);
        let raw = table.finish();
        for flags in [
            Flags {
                durable: false,
                ..DURABLE
            },
            Flags {
                exclusive: true,
                ..DURABLE
            },
            Flags {
                auto_delete: true,
                ..DURABLE
            },
        ] {
            let error = queue(Table::new(&raw).unwrap(), flags).unwrap_err();
            assert_eq!(error.code, ReplyCode::PRECONDITION_FAILED);
        }
    }
}
