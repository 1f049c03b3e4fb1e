//! Policies: limits and modes for all streams or groups whose name matches, set by an operator.
//!
//! Several policies may match one name. They are merged: of each setting, the matching policy of the highest priority
//! that says something about it counts (equal priorities: the first by name). A declaration's own setting counts
//! before any policy's, but of two numbers that bound the same the lower one.
//!
//! Owns: [`Policy`], [`Policies`] and the merge. Persisted as JSON in records and checkpoints: fields keep their names
//! and meaning, a new field gets a default.
//! Never: tells a shard (`shard/policies.rs` looks here).

use super::{Meta, Stream};
use crate::address::TopicFilter;
use crate::error::{ErrorKind, Refusal};
use crate::id::{StreamId, VhostId};
use crate::limits::{DeadLetterStrategy, DeadLetterTo, Mode, Overflow, Retry, StreamLimits};
use regex::Regex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// More policies than this in all vhosts are refused.
pub const POLICIES_MAX: usize = 10_000;
/// A longer pattern is refused, in bytes.
pub const PATTERN_BYTES_MAX: usize = 1024;
/// What a compiled pattern may take, in bytes.
const PATTERN_COMPILED_BYTES_MAX: usize = 1 << 20;

/// What a policy is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AppliesTo {
    /// Queues, by name; streams that keep their messages are queues too.
    #[default]
    Queues,
    /// Groups of sessions, by the group's name.
    Groups,
    /// All of these.
    All,
    /// Only streams that keep their messages, by name.
    Streams,
}

/// What is asked after policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Queue,
    Stream,
    Group,
}

impl AppliesTo {
    fn is_about(self, of: Of) -> bool {
        match self {
            AppliesTo::All => true,
            AppliesTo::Queues => of != Of::Group,
            AppliesTo::Groups => of == Of::Group,
            AppliesTo::Streams => of == Of::Stream,
        }
    }
}

/// Settings for all names that match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Unique in its vhost, 1 to 255 bytes.
    pub name: Arc<str>,
    /// A regular expression that is looked for anywhere in the name; `^` and `$` anchor it.
    pub pattern: Arc<str>,
    /// What it is about.
    #[serde(default)]
    pub applies_to: AppliesTo,
    /// Higher counts before lower.
    #[serde(default)]
    pub priority: i64,
    /// What it sets.
    #[serde(default)]
    pub settings: Settings,
}

/// What a policy sets; absent is not set. See [`StreamLimits`] for the meaning of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// How readers share it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Goes when unused for so long, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Messages end after so long, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_ttl_ms: Option<u64>,
    /// Ready messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_max: Option<u64>,
    /// Bytes of ready bodies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
    /// How long messages stay, in milliseconds; for streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_max_ms: Option<u64>,
    /// What happens beyond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<Overflow>,
    /// How often a message may come back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_limit: Option<u32>,
    /// Where dropped messages go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<DeadLetterTo>,
    /// How sure they arrive there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_strategy: Option<DeadLetterStrategy>,
    /// Filters of the vhost's topic exchange whose messages are kept; for streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<Vec<TopicFilter>>,
    /// How long what was given back waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// How long a delivery may be unsettled, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack_timeout_ms: Option<u64>,
}

impl Settings {
    /// Adds what is not set here and is set in `lower`.
    fn complete(&mut self, lower: &Settings) {
        fn take<T: Clone>(mine: &mut Option<T>, theirs: &Option<T>) {
            if mine.is_none() {
                mine.clone_from(theirs);
            }
        }
        take(&mut self.mode, &lower.mode);
        take(&mut self.expires_ms, &lower.expires_ms);
        take(&mut self.message_ttl_ms, &lower.message_ttl_ms);
        take(&mut self.messages_max, &lower.messages_max);
        take(&mut self.bytes_max, &lower.bytes_max);
        take(&mut self.age_max_ms, &lower.age_max_ms);
        take(&mut self.overflow, &lower.overflow);
        take(&mut self.delivery_limit, &lower.delivery_limit);
        take(&mut self.dead_letter, &lower.dead_letter);
        take(&mut self.dead_letter_strategy, &lower.dead_letter_strategy);
        take(&mut self.capture, &lower.capture);
        take(&mut self.retry, &lower.retry);
        take(&mut self.ack_timeout_ms, &lower.ack_timeout_ms);
    }

    /// A declaration's limits with these settings added.
    fn over(&self, declared: &StreamLimits) -> StreamLimits {
        fn lower<T: Ord + Copy>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }
        }
        let default = StreamLimits::default();
        if declared.mode == Mode::Replay {
            return StreamLimits {
                auto_delete: declared.auto_delete,
                mode: Mode::Replay,
                bytes_max: lower(declared.bytes_max, self.bytes_max),
                age_max_ms: lower(declared.age_max_ms, self.age_max_ms),
                ..default
            };
        }
        let unset = |mode| mode == default.mode;
        // What has levels keeps no order of keys.
        let fits = |mode: &Mode| declared.priority_max.is_none() || *mode != Mode::KeyShared;
        StreamLimits {
            auto_delete: declared.auto_delete,
            mode: match unset(declared.mode) {
                true => self.mode.filter(fits).unwrap_or(declared.mode),
                false => declared.mode,
            },
            expires_ms: lower(declared.expires_ms, self.expires_ms),
            message_ttl_ms: lower(declared.message_ttl_ms, self.message_ttl_ms),
            messages_max: lower(declared.messages_max, self.messages_max),
            bytes_max: lower(declared.bytes_max, self.bytes_max),
            age_max_ms: None,
            overflow: match declared.overflow == default.overflow {
                true => self.overflow.unwrap_or(declared.overflow),
                false => declared.overflow,
            },
            delivery_limit: lower(declared.delivery_limit, self.delivery_limit),
            // It says which streams there are, so no policy changes it.
            priority_max: declared.priority_max,
            dead_letter: declared
                .dead_letter
                .clone()
                .or_else(|| self.dead_letter.clone()),
            dead_letter_strategy: match declared.dead_letter_strategy {
                DeadLetterStrategy::AtMostOnce => self.dead_letter_strategy.unwrap_or_default(),
                DeadLetterStrategy::AtLeastOnce => DeadLetterStrategy::AtLeastOnce,
            },
            retry: declared.retry.or(self.retry),
            // 0 is no limit, so the lower one would not do.
            ack_timeout_ms: declared.ack_timeout_ms.or(self.ack_timeout_ms),
        }
    }
}

#[derive(Clone, Debug)]
struct Compiled {
    policy: Policy,
    pattern: Regex,
}

/// All policies, by vhost and name.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    all: BTreeMap<(VhostId, Arc<str>), Compiled>,
    generation: u64,
}

impl Policies {
    /// Changes whenever a policy does.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Makes or replaces one.
    ///
    /// # Errors
    /// `BadRequest` when the pattern is no regular expression, `QuotaExceeded` when there are too many.
    pub fn put(&mut self, vhost: VhostId, policy: Policy) -> Result<(), Refusal> {
        let bad = |why: &dyn std::fmt::Display| {
            let text = format!("the pattern of policy '{}': {why}", policy.name);
            Refusal::new(ErrorKind::BadRequest, text)
        };
        if policy.settings.mode == Some(Mode::Replay) {
            let text = format!(
                "policy '{}': a queue is a stream by declaration only",
                policy.name
            );
            return Err(Refusal::new(ErrorKind::BadRequest, text));
        }
        if policy.pattern.len() > PATTERN_BYTES_MAX {
            return Err(bad(&format_args!("longer than {PATTERN_BYTES_MAX} bytes")));
        }
        let pattern = regex::RegexBuilder::new(&policy.pattern)
            .size_limit(PATTERN_COMPILED_BYTES_MAX)
            .build()
            .map_err(|why| bad(&why))?;
        let key = (vhost, policy.name.clone());
        if self.all.len() >= POLICIES_MAX && !self.all.contains_key(&key) {
            let text = format!("the limit of {POLICIES_MAX} policies is reached");
            return Err(Refusal::new(ErrorKind::QuotaExceeded, text));
        }
        self.all.insert(key, Compiled { policy, pattern });
        self.generation += 1;
        Ok(())
    }

    /// Deletes one.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn remove(&mut self, vhost: VhostId, name: &Arc<str>) -> Result<(), Refusal> {
        if self.all.remove(&(vhost, name.clone())).is_none() {
            let text = format!("no policy '{name}'");
            return Err(Refusal::new(ErrorKind::NotFound, text));
        }
        self.generation += 1;
        Ok(())
    }

    /// Deletes those of a vhost.
    pub(super) fn remove_vhost(&mut self, vhost: VhostId) {
        self.all.retain(|(of, _), _| *of != vhost);
        self.generation += 1;
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (VhostId, &Policy)> {
        let all = self.all.iter();
        all.map(|((vhost, _), known)| (*vhost, &known.policy))
    }

    /// Those that match a name, the highest first.
    fn matching(&self, vhost: VhostId, of: Of, name: &str) -> Vec<&Policy> {
        let from = (vhost, Arc::from(""));
        let of_vhost = self
            .all
            .range(from..)
            .take_while(|((at, _), _)| *at == vhost);
        let mut found: Vec<&Policy> = of_vhost
            .map(|(_, known)| known)
            .filter(|known| known.policy.applies_to.is_about(of) && known.pattern.is_match(name))
            .map(|known| &known.policy)
            .collect();
        // Stable: of equal priorities the first by name stays first.
        found.sort_by_key(|policy| std::cmp::Reverse(policy.priority));
        found
    }

    fn merged(&self, vhost: VhostId, of: Of, name: &str) -> Settings {
        let mut merged = Settings::default();
        for policy in self.matching(vhost, of, name) {
            merged.complete(&policy.settings);
        }
        merged
    }
}

fn of(stream: &Stream) -> Of {
    match stream.limits.mode {
        Mode::Replay => Of::Stream,
        Mode::Shared | Mode::Exclusive | Mode::Failover | Mode::KeyShared => Of::Queue,
    }
}

impl Meta {
    /// The filters whose messages policies keep in a registered stream.
    pub(super) fn captured_by(&self, stream: StreamId) -> Vec<TopicFilter> {
        let Some(stream) = self.stream_by_id(stream) else {
            return Vec::new();
        };
        let settings = self.policies.merged(stream.vhost, of(stream), &stream.name);
        settings.capture.unwrap_or_default()
    }

    /// All policies.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// The names of the policies that count for a registered stream, the highest first.
    pub fn policies_of_stream(&self, stream: StreamId) -> Vec<Arc<str>> {
        let Some(stream) = self.stream_by_id(stream) else {
            return Vec::new();
        };
        let matching = self
            .policies
            .matching(stream.vhost, of(stream), &stream.name);
        matching
            .into_iter()
            .map(|policy| policy.name.clone())
            .collect()
    }

    /// What bounds a registered stream: its declaration and the policies that match its name.
    pub fn effective_limits(&self, stream: StreamId) -> StreamLimits {
        let Some(stream) = self.stream_by_id(stream) else {
            return StreamLimits::default();
        };
        let settings = self.policies.merged(stream.vhost, of(stream), &stream.name);
        settings.over(&StreamLimits {
            auto_delete: stream.auto_delete,
            ..stream.limits.clone()
        })
    }

    /// What bounds a group, and how its members share it: as the policies for its name say. A member cannot be
    /// refused once it is one, so in exclusive mode the others wait, as in failover.
    pub fn group_limits(&self, vhost: VhostId, group: &str) -> StreamLimits {
        let mut settings = self.policies.merged(vhost, Of::Group, group);
        if settings.mode == Some(Mode::Exclusive) {
            settings.mode = Some(Mode::Failover);
        }
        settings.over(&StreamLimits::default())
    }

    /// The names of the policies that count for a group, the highest first.
    pub fn policies_of_group(&self, vhost: VhostId, group: &str) -> Vec<Arc<str>> {
        let matching = self.policies.matching(vhost, Of::Group, group);
        matching
            .into_iter()
            .map(|policy| policy.name.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str, pattern: &str, priority: i64, settings: Settings) -> Policy {
        Policy {
            name: name.into(),
            pattern: pattern.into(),
            applies_to: AppliesTo::All,
            priority,
            settings,
        }
    }

    #[test]
    fn of_each_setting_the_highest_policy_that_has_it_counts() {
        let mut policies = Policies::default();
        let low = Settings {
            mode: Some(Mode::Failover),
            messages_max: Some(10),
            ..Settings::default()
        };
        let high = Settings {
            messages_max: Some(99),
            ..Settings::default()
        };
        policies.put(VhostId(1), policy("low", "", 1, low)).unwrap();
        policies
            .put(VhostId(1), policy("high", "^jobs", 2, high))
            .unwrap();
        let merged = policies.merged(VhostId(1), Of::Queue, "jobs.a");
        assert_eq!(
            (merged.mode, merged.messages_max),
            (Some(Mode::Failover), Some(99))
        );
        let other = policies.merged(VhostId(1), Of::Queue, "other");
        assert_eq!(other.messages_max, Some(10));
        assert_eq!(
            policies.merged(VhostId(2), Of::Queue, "jobs.a"),
            Settings::default()
        );
    }

    #[test]
    fn a_declaration_counts_before_policies_and_the_lower_of_two_bounds() {
        let settings = Settings {
            mode: Some(Mode::KeyShared),
            messages_max: Some(10),
            bytes_max: Some(5),
            ..Settings::default()
        };
        let declared = StreamLimits {
            mode: Mode::Failover,
            messages_max: Some(3),
            ..StreamLimits::default()
        };
        let both = settings.over(&declared);
        assert_eq!(
            (both.mode, both.messages_max, both.bytes_max),
            (Mode::Failover, Some(3), Some(5))
        );
    }

    #[test]
    fn streams_are_queues_and_something_of_their_own() {
        let about = |to: AppliesTo| [Of::Queue, Of::Stream, Of::Group].map(|of| to.is_about(of));
        assert_eq!(about(AppliesTo::Queues), [true, true, false]);
        assert_eq!(about(AppliesTo::Streams), [false, true, false]);
        assert_eq!(about(AppliesTo::Groups), [false, false, true]);
        assert_eq!(about(AppliesTo::All), [true, true, true]);
    }

    #[test]
    fn a_pattern_that_is_none_is_refused() {
        let mut policies = Policies::default();
        let refused = policies.put(VhostId(1), policy("bad", "(", 0, Settings::default()));
        assert_eq!(refused.unwrap_err().kind, ErrorKind::BadRequest);
    }
}
