//! Policies as the API shows and takes them.

use serde::{Deserialize, Serialize};

/// Settings for all queues, streams or groups whose name matches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Its vhost.
    pub vhost: String,
    /// Its name, unique in the vhost.
    pub name: String,
    /// A regular expression looked for anywhere in the name.
    pub pattern: String,
    /// `queues`, `streams`, `groups` or `all`.
    pub applies_to: String,
    /// Of several that match and set the same, the highest counts.
    pub priority: i64,
    /// What it sets.
    pub settings: PolicySettings,
}

/// What a policy sets; what is absent is not set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySettings {
    /// `shared`, `exclusive`, `failover` or `key_shared`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The queue goes when it was unused for so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Messages end after so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_ttl_ms: Option<u64>,
    /// Messages that may wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_max: Option<u64>,
    /// Bytes of bodies that may wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
    /// How long a stream keeps messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_max_ms: Option<u64>,
    /// `drop_oldest`, `reject`, `reject_and_dead_letter` or `hold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<String>,
    /// How often a message may come back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_limit: Option<u32>,
    /// Messages of a higher priority go out first, up to this one. A declaration's only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_max: Option<u8>,
    /// Exchange that gets what is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_exchange: Option<String>,
    /// With this routing key; absent: the message's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_key: Option<String>,
    /// `at_most_once` or `at_least_once`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_strategy: Option<String>,
    /// Topics whose messages streams keep, as filters with `/` between levels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<Vec<String>>,
    /// What its reader gave back waits so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_min_ms: Option<u64>,
    /// ... and never longer than so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_max_ms: Option<u64>,
    /// ... each time so many times as long; absent: each time by `retry_min_ms` longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_multiplier: Option<u32>,
    /// A delivery is taken from its reader after so long without acknowledgement; 0 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack_timeout_ms: Option<u64>,
}
