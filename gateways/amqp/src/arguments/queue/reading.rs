//! Argument after argument, until a queue's limits are known.
//!
//! Owns which argument means what, and which go together; never the form of a value. Read next: [`super::value`].

use std::sync::Arc;

use anabranch_core::limits::{
    DeadLetterKey, DeadLetterStrategy, DeadLetterTo, Mode, Retry, StreamLimits,
};

use super::value::{
    age, delivery_limit, exchange, key, mode, number, one_of, only, overflow, text, within,
};
use super::{QueueKind, invalid};
use crate::arguments::not_supported;
use crate::error::AmqpError;
use crate::wire::table::Value;

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

/// What was read so far.
pub(super) struct Reading {
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
    /// Of a queue of this kind, before its first argument.
    pub(super) fn new(kind: QueueKind, auto_delete: bool) -> Self {
        Self {
            kind,
            limits: StreamLimits {
                auto_delete,
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
        }
    }

    /// Takes one argument.
    pub(super) fn argument(&mut self, name: &[u8], value: Value<'_>) -> Result<(), AmqpError> {
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

    /// What all arguments ask for together.
    pub(super) fn finish(mut self) -> Result<StreamLimits, AmqpError> {
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
