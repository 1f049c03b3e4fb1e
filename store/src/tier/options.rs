//! How a tier is configured, and why it cannot be used.
//!
//! Owns: the settings as the node gives them. Read next: [`super::objects`].

use std::fmt;
use std::io;

/// Where sealed segments go, and how many stay.
#[derive(Clone, PartialEq, Eq)]
pub struct TierOptions {
    /// `file:///folder` or `s3://bucket/prefix`.
    pub url: String,
    /// The S3 server; empty for Amazon's of the region.
    pub endpoint: String,
    /// Region of the bucket.
    pub region: String,
    /// Key of the account; empty to find one as Amazon's tools do: in the environment, or of the machine.
    pub access_key_id: String,
    /// Its secret.
    pub secret_access_key: String,
    /// Whether the server may be spoken to without TLS.
    pub allow_http: bool,
    /// Bytes of sealed segments that each shard keeps on its disk.
    pub local_bytes: u64,
    /// Bytes of the memory for ranges read back, of all shards.
    pub cache_bytes: u64,
}

impl Default for TierOptions {
    fn default() -> Self {
        Self {
            url: String::new(),
            endpoint: String::new(),
            region: "us-east-1".to_owned(),
            access_key_id: String::new(),
            secret_access_key: String::new(),
            allow_http: false,
            local_bytes: 1 << 30,
            cache_bytes: 64 << 20,
        }
    }
}

impl fmt::Debug for TierOptions {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierOptions")
            .field("url", &self.url)
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("allow_http", &self.allow_http)
            .field("local_bytes", &self.local_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .finish_non_exhaustive()
    }
}

/// Why a tier does not start. That the object store does not answer is no reason.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The URL is of no kind that is known.
    #[error("store.tier.url must be file:///folder or s3://bucket/prefix, not `{0}`")]
    Url(String),
    /// A setting does not fit.
    #[error("store.tier: {0}")]
    Settings(String),
    /// The system gave no thread.
    #[error("the thread of the object store does not start: {0}")]
    Thread(io::Error),
}
