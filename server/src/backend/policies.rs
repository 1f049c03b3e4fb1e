//! Policies for the API.
//!
//! Owns: how the API words a policy's settings. Never: what they do (core's `meta/policy.rs`).

use std::sync::Arc;

use anabranch_admin::backend::{BackendError, Identity};
use anabranch_admin::model::{DeclareStream, Policy, PolicySettings};
use anabranch_core::address::TopicFilter;
use anabranch_core::limits::{
    DeadLetterKey, DeadLetterStrategy, DeadLetterTo, Mode, Overflow, Retry, StreamLimits,
};
use anabranch_core::meta::MetaCommand;
use anabranch_core::meta::policy::{AppliesTo, Policy as Stored, Settings};
use bytes::Bytes;

use super::{Done, NodeBackend};
use crate::gateways;

const APPLIES_TO: [(&str, AppliesTo); 4] = [
    ("queues", AppliesTo::Queues),
    ("streams", AppliesTo::Streams),
    ("groups", AppliesTo::Groups),
    ("all", AppliesTo::All),
];
const MODES: [(&str, Mode); 4] = [
    ("shared", Mode::Shared),
    ("exclusive", Mode::Exclusive),
    ("failover", Mode::Failover),
    ("key_shared", Mode::KeyShared),
];
const OVERFLOWS: [(&str, Overflow); 4] = [
    ("drop_oldest", Overflow::DropOldest),
    ("reject", Overflow::Reject),
    ("reject_and_dead_letter", Overflow::RejectAndDeadLetter),
    ("hold", Overflow::Hold),
];
const STRATEGIES: [(&str, DeadLetterStrategy); 2] = [
    ("at_most_once", DeadLetterStrategy::AtMostOnce),
    ("at_least_once", DeadLetterStrategy::AtLeastOnce),
];

impl NodeBackend {
    pub(super) fn list_policies(&self, vhost: Option<&str>) -> Done<Vec<Policy>> {
        let vhosts = self.vhosts(vhost);
        let meta = self.parts.fabric.meta();
        let mut list = Vec::new();
        for (of, policy) in meta.policies().all() {
            if let Some((_, name)) = vhosts.iter().find(|(id, _)| *id == of) {
                list.push(row(name, policy));
            }
        }
        Ok(list)
    }

    /// A policy that captures into one stream by its whole name makes the stream when it is not there.
    pub(super) async fn store_policy(&self, who: &Identity, policy: Policy) -> Done<()> {
        let vhost = self.vhost(&policy.vhost)?;
        let captures = policy.settings.capture.as_ref();
        let captures = captures.is_some_and(|filters| !filters.is_empty());
        let named = captures.then(|| whole_name(&policy.pattern)).flatten();
        let vhost_name = policy.vhost.clone();
        let stored = Stored {
            name: Arc::from(policy.name),
            pattern: Arc::from(policy.pattern),
            applies_to: meant("applies_to", &APPLIES_TO, &policy.applies_to)?,
            priority: policy.priority,
            settings: settings(policy.settings)?,
        };
        let policy = stored;
        self.put(MetaCommand::PutPolicy { vhost, policy }).await?;
        match named {
            Some(name) if self.parts.fabric.meta().stream(vhost, &name).is_none() => {
                let declare = DeclareStream {
                    kind: "stream".to_owned(),
                    durable: true,
                    ..DeclareStream::default()
                };
                self.add_stream(who, &vhost_name, &name, declare).await?;
                Ok(())
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) async fn drop_policy(&self, vhost: &str, name: &str) -> Done<()> {
        let vhost = self.vhost(vhost)?;
        let name = Arc::from(name);
        self.put(MetaCommand::DeletePolicy { vhost, name }).await
    }
}

/// The only name that a pattern matches, when it is written as one: `^` in front, `$` behind, and nothing special
/// between but what is escaped.
fn whole_name(pattern: &str) -> Option<String> {
    let inner = pattern.strip_prefix('^')?.strip_suffix('$')?;
    let mut name = String::new();
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => name.push(letters.next().filter(char::is_ascii_punctuation)?),
            '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' => {
                return None;
            }
            plain => name.push(plain),
        }
    }
    (!name.is_empty()).then_some(name)
}

/// Filters as devices write them.
fn filters(given: &[String]) -> Done<Vec<TopicFilter>> {
    let read = given.iter().map(|text| topic_filter(text));
    read.collect()
}

/// A filter with `/` between levels.
pub(super) fn topic_filter(text: &str) -> Done<TopicFilter> {
    TopicFilter::new(Bytes::copy_from_slice(text.as_bytes()))
        .map_err(|error| BackendError::Invalid(format!("capture {text:?}: {error}")))
}

/// What a word of the API stands for.
fn meant<T: Copy>(field: &str, words: &[(&str, T)], word: &str) -> Done<T> {
    let found = words.iter().find(|(known, _)| *known == word);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
        let why = format!("{field} must be one of {}, not {word:?}", known.join(", "));
        BackendError::Invalid(why)
    })
}

/// How the API calls a mode.
pub(super) fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Shared => "shared",
        Mode::Exclusive => "exclusive",
        Mode::Failover => "failover",
        Mode::KeyShared => "key_shared",
        Mode::Replay => "replay",
    }
}

fn overflow_word(overflow: Overflow) -> &'static str {
    match overflow {
        Overflow::DropOldest => "drop_oldest",
        Overflow::Reject => "reject",
        Overflow::RejectAndDeadLetter => "reject_and_dead_letter",
        Overflow::Hold => "hold",
    }
}

fn strategy_word(strategy: DeadLetterStrategy) -> &'static str {
    match strategy {
        DeadLetterStrategy::AtMostOnce => "at_most_once",
        DeadLetterStrategy::AtLeastOnce => "at_least_once",
    }
}

fn settings(given: PolicySettings) -> Done<Settings> {
    let key = given.dead_letter_key.map(|key| {
        let (address, origin_key) = gateways::key_address(&key)
            .map_err(|error| BackendError::Invalid(format!("dead_letter_key: {error}")))?;
        Ok(Box::new(DeadLetterKey {
            address,
            origin_key,
        }))
    });
    let key = key.transpose()?;
    if key.is_some() && given.dead_letter_exchange.is_none() {
        let why = "dead_letter_key needs dead_letter_exchange";
        return Err(BackendError::Invalid(why.to_owned()));
    }
    let retry = match given.retry_min_ms {
        Some(min_ms) => Some(Retry {
            min_ms: min_ms.max(1),
            max_ms: given.retry_max_ms,
            multiplier: given.retry_multiplier,
        }),
        None if given.retry_max_ms.is_some() || given.retry_multiplier.is_some() => {
            let why = "retry_max_ms and retry_multiplier need retry_min_ms";
            return Err(BackendError::Invalid(why.to_owned()));
        }
        None => None,
    };
    if given.priority_max.is_some() {
        let why = "priority_max is what a queue is declared with (x-max-priority), not a policy";
        return Err(BackendError::Invalid(why.to_owned()));
    }
    let strategy = given
        .dead_letter_strategy
        .map(|word| meant("dead_letter_strategy", &STRATEGIES, &word));
    let mode = given.mode.map(|word| meant("mode", &MODES, &word));
    let overflow = given
        .overflow
        .map(|word| meant("overflow", &OVERFLOWS, &word));
    Ok(Settings {
        mode: mode.transpose()?,
        expires_ms: given.expires_ms,
        message_ttl_ms: given.message_ttl_ms,
        messages_max: given.messages_max,
        bytes_max: given.bytes_max,
        age_max_ms: given.age_max_ms,
        overflow: overflow.transpose()?,
        delivery_limit: given.delivery_limit,
        dead_letter: given.dead_letter_exchange.map(|exchange| DeadLetterTo {
            exchange: Arc::from(exchange),
            key,
        }),
        dead_letter_strategy: strategy.transpose()?,
        capture: given.capture.as_deref().map(filters).transpose()?,
        retry,
        ack_timeout_ms: given.ack_timeout_ms,
    })
}

/// What bounds a stream, worded as a policy's settings, without its mode.
pub(super) fn limit_words(limits: &StreamLimits) -> PolicySettings {
    let bounded = limits.messages_max.is_some() || limits.bytes_max.is_some();
    let overflows = bounded && limits.mode != Mode::Replay;
    let overflow = overflows.then(|| overflow_word(limits.overflow).to_owned());
    let (dead_letter_exchange, dead_letter_key) = dead_letter_words(limits.dead_letter.as_ref());
    PolicySettings {
        mode: None,
        expires_ms: limits.expires_ms,
        message_ttl_ms: limits.message_ttl_ms,
        messages_max: limits.messages_max,
        bytes_max: limits.bytes_max,
        age_max_ms: limits.age_max_ms,
        overflow,
        delivery_limit: limits.delivery_limit,
        priority_max: limits.priority_max,
        dead_letter_exchange,
        dead_letter_key,
        // The usual one is not worth a word.
        dead_letter_strategy: (limits.dead_letter_strategy != DeadLetterStrategy::AtMostOnce)
            .then(|| strategy_word(limits.dead_letter_strategy).to_owned()),
        capture: None,
        retry_min_ms: limits.retry.map(|retry| retry.min_ms),
        retry_max_ms: limits.retry.and_then(|retry| retry.max_ms),
        retry_multiplier: limits.retry.and_then(|retry| retry.multiplier),
        ack_timeout_ms: limits.ack_timeout_ms,
    }
}

/// Exchange and key.
fn dead_letter_words(to: Option<&DeadLetterTo>) -> (Option<String>, Option<String>) {
    let key = to.and_then(|to| to.key.as_ref());
    (
        to.map(|to| to.exchange.to_string()),
        key.map(|key| gateways::address_key(&key.address, &key.origin_key)),
    )
}

fn row(vhost: &str, policy: &Stored) -> Policy {
    let settings = &policy.settings;
    let (dead_letter_exchange, dead_letter_key) = dead_letter_words(settings.dead_letter.as_ref());
    Policy {
        vhost: vhost.to_owned(),
        name: policy.name.to_string(),
        pattern: policy.pattern.to_string(),
        applies_to: match policy.applies_to {
            AppliesTo::Queues => "queues",
            AppliesTo::Streams => "streams",
            AppliesTo::Groups => "groups",
            AppliesTo::All => "all",
        }
        .to_owned(),
        priority: policy.priority,
        settings: PolicySettings {
            mode: settings.mode.map(|mode| mode_word(mode).to_owned()),
            expires_ms: settings.expires_ms,
            message_ttl_ms: settings.message_ttl_ms,
            messages_max: settings.messages_max,
            bytes_max: settings.bytes_max,
            age_max_ms: settings.age_max_ms,
            overflow: settings.overflow.map(|word| overflow_word(word).to_owned()),
            delivery_limit: settings.delivery_limit,
            priority_max: None,
            dead_letter_exchange,
            dead_letter_key,
            dead_letter_strategy: settings
                .dead_letter_strategy
                .map(|strategy| strategy_word(strategy).to_owned()),
            capture: settings.capture.as_ref().map(|filters| {
                let words = filters.iter().map(|filter| filter.as_str().to_owned());
                words.collect()
            }),
            retry_min_ms: settings.retry.map(|retry| retry.min_ms),
            retry_max_ms: settings.retry.and_then(|retry| retry.max_ms),
            retry_multiplier: settings.retry.and_then(|retry| retry.multiplier),
            ack_timeout_ms: settings.ack_timeout_ms,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_one_name_when_it_is_written_as_one() {
        for (pattern, name) in [
            ("^telemetry$", Some("telemetry")),
            (r"^a\.b$", Some("a.b")),
            ("telemetry", None),
            ("^a.b$", None),
            ("^(a|b)$", None),
            (r"^\d$", None),
            ("^$", None),
        ] {
            assert_eq!(whole_name(pattern).as_deref(), name, "{pattern}");
        }
    }
}
