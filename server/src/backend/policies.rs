//! Policies for the API.
//!
//! Owns: how the API words a policy's settings. Never: what they do (core's `meta/policy.rs`).

use std::sync::Arc;

use anabranch_admin::backend::BackendError;
use anabranch_admin::model::{Policy, PolicySettings};
use anabranch_core::limits::{DeadLetterKey, DeadLetterTo, Mode, Overflow, Retry, StreamLimits};
use anabranch_core::meta::MetaCommand;
use anabranch_core::meta::policy::{AppliesTo, Policy as Stored, Settings};

use super::{Done, NodeBackend};
use crate::gateways;

const APPLIES_TO: [(&str, AppliesTo); 3] = [
    ("queues", AppliesTo::Queues),
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

    pub(super) async fn store_policy(&self, policy: Policy) -> Done<()> {
        let vhost = self.vhost(&policy.vhost)?;
        let stored = Stored {
            name: Arc::from(policy.name),
            pattern: Arc::from(policy.pattern),
            applies_to: meant("applies_to", &APPLIES_TO, &policy.applies_to)?,
            priority: policy.priority,
            settings: settings(policy.settings)?,
        };
        let policy = stored;
        self.put(MetaCommand::PutPolicy { vhost, policy }).await
    }

    pub(super) async fn drop_policy(&self, vhost: &str, name: &str) -> Done<()> {
        let vhost = self.vhost(vhost)?;
        let name = Arc::from(name);
        self.put(MetaCommand::DeletePolicy { vhost, name }).await
    }
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
        overflow: overflow.transpose()?,
        delivery_limit: given.delivery_limit,
        dead_letter: given.dead_letter_exchange.map(|exchange| DeadLetterTo {
            exchange: Arc::from(exchange),
            key,
        }),
        retry,
        ack_timeout_ms: given.ack_timeout_ms,
    })
}

/// What bounds a stream, worded as a policy's settings, without its mode.
pub(super) fn limit_words(limits: &StreamLimits) -> PolicySettings {
    let bounded = limits.messages_max.is_some() || limits.bytes_max.is_some();
    let overflow = bounded.then(|| overflow_word(limits.overflow).to_owned());
    let (dead_letter_exchange, dead_letter_key) = dead_letter_words(limits.dead_letter.as_ref());
    PolicySettings {
        mode: None,
        expires_ms: limits.expires_ms,
        message_ttl_ms: limits.message_ttl_ms,
        messages_max: limits.messages_max,
        bytes_max: limits.bytes_max,
        overflow,
        delivery_limit: limits.delivery_limit,
        dead_letter_exchange,
        dead_letter_key,
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
            overflow: settings.overflow.map(|word| overflow_word(word).to_owned()),
            delivery_limit: settings.delivery_limit,
            dead_letter_exchange,
            dead_letter_key,
            retry_min_ms: settings.retry.map(|retry| retry.min_ms),
            retry_max_ms: settings.retry.and_then(|retry| retry.max_ms),
            retry_multiplier: settings.retry.and_then(|retry| retry.multiplier),
            ack_timeout_ms: settings.ack_timeout_ms,
        },
    }
}
