//! Flags that bound a queue or group, the same for `policy set` and `stream add`.
//!
//! Times are milliseconds, or a number with s, m, h or d.
//!
//! Owns: the flags, and what policies and applications call each.
//! Never: what a limit does.

use clap::Args;
use serde_json::{Map, Value};

use super::quantity::{Bytes, Millis};

/// What may be bounded; absent is not.
#[derive(Debug, Args)]
pub struct LimitFlags {
    /// How readers share it
    #[arg(long, value_parser = ["shared", "exclusive", "failover", "key_shared"])]
    mode: Option<String>,
    /// The queue goes when unused for so long: milliseconds, or a number with s, m, h or d, like every time here
    #[arg(long, value_name = "TIME")]
    expires_ms: Option<Millis>,
    /// Messages end after so long
    #[arg(long, value_name = "TIME")]
    message_ttl_ms: Option<Millis>,
    /// Messages that may wait
    #[arg(long, value_name = "COUNT")]
    messages_max: Option<u64>,
    /// Bytes of bodies that may wait: a number, or with KiB, MiB, GiB or TiB
    #[arg(long, value_name = "BYTES")]
    bytes_max: Option<Bytes>,
    /// What happens when no more may wait
    #[arg(long, value_parser = ["drop_oldest", "reject", "reject_and_dead_letter", "hold"])]
    overflow: Option<String>,
    /// How often a message may come back
    #[arg(long, value_name = "COUNT")]
    delivery_limit: Option<u32>,
    /// Exchange that gets what is dropped
    #[arg(long, value_name = "EXCHANGE")]
    dead_letter_exchange: Option<String>,
    /// ... with this routing key [default: the message's own]
    #[arg(long, value_name = "KEY", requires = "dead_letter_exchange")]
    dead_letter_key: Option<String>,
    /// How sure it gets there: at_least_once needs an overflow that refuses or holds
    #[arg(long, value_parser = ["at_most_once", "at_least_once"])]
    dead_letter_strategy: Option<String>,
    /// What its reader gives back waits so long before it is ready again
    #[arg(long, value_name = "TIME", value_parser = Millis::some)]
    retry_min_ms: Option<Millis>,
    /// ... and never longer than so long
    #[arg(long, value_name = "TIME", requires = "retry_min_ms")]
    retry_max_ms: Option<Millis>,
    /// ... after each further return so many times as long [default: by retry-min-ms longer]
    #[arg(long, value_name = "FACTOR", requires = "retry_min_ms", value_parser = clap::value_parser!(u32).range(1..))]
    retry_multiplier: Option<u32>,
    /// A delivery is taken from its reader after so long without acknowledgement; 0 is never
    #[arg(long, value_name = "TIME")]
    ack_timeout_ms: Option<Millis>,
}

impl LimitFlags {
    /// As a policy's settings.
    pub(super) fn settings(&self) -> Map<String, Value> {
        let given = self.given();
        given.map(|(name, _, value)| (name, value)).collect()
    }

    /// As the arguments that an application would write.
    pub(super) fn arguments(&self) -> Map<String, Value> {
        let written = |(name, argument, value): (String, &str, Value)| {
            let value = match (name.as_str(), value.as_str()) {
                ("overflow", Some("reject")) => Value::from("reject-publish"),
                ("overflow", Some("reject_and_dead_letter")) => Value::from("reject-publish-dlx"),
                ("overflow", Some("hold")) => Value::from("hold-publisher"),
                ("overflow", _) => Value::from("drop-head"),
                ("dead_letter_strategy", Some(text)) => Value::from(text.replace('_', "-")),
                _ => value,
            };
            (argument.to_owned(), value)
        };
        self.given().map(written).collect()
    }

    /// Each flag that was given: its name in a policy, its name as an argument, its value.
    fn given(&self) -> impl Iterator<Item = (String, &'static str, Value)> {
        fn text(value: &Option<String>) -> Option<Value> {
            value.clone().map(Value::from)
        }
        fn time(value: Option<Millis>) -> Option<Value> {
            value.map(|ms| ms.0.into())
        }
        let all = [
            ("mode", "x-subscription-mode", text(&self.mode)),
            ("expires_ms", "x-expires", time(self.expires_ms)),
            ("message_ttl_ms", "x-message-ttl", time(self.message_ttl_ms)),
            (
                "messages_max",
                "x-max-length",
                self.messages_max.map(Value::from),
            ),
            (
                "bytes_max",
                "x-max-length-bytes",
                self.bytes_max.map(|bytes| bytes.0.into()),
            ),
            ("overflow", "x-overflow", text(&self.overflow)),
            (
                "delivery_limit",
                "x-delivery-limit",
                self.delivery_limit.map(Value::from),
            ),
            (
                "dead_letter_exchange",
                "x-dead-letter-exchange",
                text(&self.dead_letter_exchange),
            ),
            (
                "dead_letter_key",
                "x-dead-letter-routing-key",
                text(&self.dead_letter_key),
            ),
            (
                "dead_letter_strategy",
                "x-dead-letter-strategy",
                text(&self.dead_letter_strategy),
            ),
            (
                "retry_min_ms",
                "x-delayed-retry-min",
                time(self.retry_min_ms),
            ),
            (
                "retry_max_ms",
                "x-delayed-retry-max",
                time(self.retry_max_ms),
            ),
            (
                "retry_multiplier",
                "x-delayed-retry-multiplier",
                self.retry_multiplier.map(Value::from),
            ),
            (
                "ack_timeout_ms",
                "x-consumer-timeout",
                time(self.ack_timeout_ms),
            ),
        ];
        let given = all.into_iter();
        given.filter_map(|(name, argument, value)| Some((name.to_owned(), argument, value?)))
    }
}
