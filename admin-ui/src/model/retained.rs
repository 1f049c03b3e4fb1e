//! Last values as the API shows them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::BodyEncoding;

/// The last value of an address: what a new subscriber gets first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RetainedValue {
    /// Its vhost.
    pub vhost: String,
    /// Its address, `/` between levels.
    pub address: String,
    /// When it was accepted.
    pub published_at_ms: u64,
    /// Media type of the body.
    pub content_type: Option<String>,
    /// Properties and headers as text or JSON.
    pub headers: BTreeMap<String, Value>,
    /// The body, or its beginning.
    pub body: String,
    /// How `body` is written.
    pub body_encoding: BodyEncoding,
    /// Length of the whole body.
    pub body_bytes: u64,
    /// Whether `body` is only the beginning.
    pub cut: bool,
}

/// Some last values in the order of their addresses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RetainedPage {
    /// Those that match and may be received.
    pub items: Vec<RetainedValue>,
    /// Ask on behind this address; none when there are no more.
    pub next: Option<String>,
}

/// Which last values are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetainedQuery {
    /// The vhost.
    pub vhost: String,
    /// `/` between levels; `+` is one level, `#` any number.
    pub filter: String,
    /// Only addresses behind this one.
    pub after: Option<String>,
    /// How many at most.
    pub count: usize,
    /// Bytes of each body at most.
    pub body_limit_bytes: usize,
}
