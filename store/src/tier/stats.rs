//! What is counted of a tier.
//!
//! Owns: the counters, the last failure, and saying once in the log that the object store does not do as it should.
//! Read next: [`super`].

use super::objects::ObjectError;
use super::ranges::Ranges;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What was done since the start.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TierStats {
    /// Segments sent there and verified.
    pub uploads: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// Objects removed.
    pub removals: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Ranges read back, each one request.
    pub range_reads: u64,
    /// Their bytes.
    pub range_bytes: u64,
    /// Reads that the memory for ranges answered.
    pub cache_hits: u64,
    /// Ranges that were asked for because they were not there.
    pub cache_misses: u64,
    /// Bytes in that memory.
    pub cache_bytes: u64,
    /// What the last request said, while the last one failed.
    pub error: Option<String>,
}

/// The counters.
#[derive(Debug, Default)]
pub(super) struct Counters {
    uploads: AtomicU64,
    uploaded_bytes: AtomicU64,
    removals: AtomicU64,
    failures: AtomicU64,
    range_reads: AtomicU64,
    range_bytes: AtomicU64,
    error: Mutex<Option<String>>,
}

impl Counters {
    pub(super) fn sent(&self, bytes: u64) {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        self.uploaded_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.answered();
    }

    pub(super) fn removed(&self) {
        self.removals.fetch_add(1, Ordering::Relaxed);
        self.answered();
    }

    pub(super) fn read(&self, bytes: u64) {
        self.range_reads.fetch_add(1, Ordering::Relaxed);
        self.range_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.answered();
    }

    /// The object store does as it should.
    pub(super) fn answered(&self) {
        let before = self.lock_error().take();
        if before.is_some() {
            tracing::info!("the object store answers again");
        }
    }

    pub(super) fn failed(&self, what: &str, error: &ObjectError) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let text = format!("{what}: {error}");
        let before = self.lock_error().replace(text.clone());
        if before.is_none() {
            tracing::warn!("{text}; nothing is lost, it is tried again");
        }
    }

    fn lock_error(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stats(&self, ranges: &Ranges) -> TierStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = ranges.counts();
        TierStats {
            uploads: load(&self.uploads),
            uploaded_bytes: load(&self.uploaded_bytes),
            removals: load(&self.removals),
            failures: load(&self.failures),
            range_reads: load(&self.range_reads),
            range_bytes: load(&self.range_bytes),
            cache_hits: counts.hits,
            cache_misses: counts.misses,
            cache_bytes: counts.bytes,
            error: self.lock_error().clone(),
        }
    }
}
