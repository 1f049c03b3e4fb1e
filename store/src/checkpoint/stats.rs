//! Counters of a checkpoint folder.
//!
//! Owns: what is counted. Read next: [`super::write`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters since opening, and what lies in the folder.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointStats {
    /// Checkpoints written.
    pub written: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Bytes of runs and blocks written for them.
    pub bytes: u64,
    /// Times that all runs were folded into one.
    pub folds: u64,
    /// Bytes written by that.
    pub folded_bytes: u64,
    /// How long the last checkpoint took, from its moment until it was durable, in microseconds.
    pub last_us: u64,
    /// Longest time that copying kept the shard at a stretch, in microseconds.
    pub longest_pause_us: u64,
    /// Runs of the newest checkpoint.
    pub runs: u64,
    /// Their bytes.
    pub run_bytes: u64,
    /// Blocks read back from the index file.
    pub blocks_read: u64,
    /// Blocks written to it.
    pub blocks_written: u64,
    /// Blocks that it has room for.
    pub index_blocks: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    written: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    folds: AtomicU64,
    folded_bytes: AtomicU64,
    last_us: AtomicU64,
    longest_pause_us: AtomicU64,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Counters {
    pub(super) fn written(&self, bytes: u64) {
        self.written.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn folded(&self, bytes: u64) {
        self.folds.fetch_add(1, Ordering::Relaxed);
        self.folded_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn took(&self, time: Duration) {
        self.last_us.store(micros(time), Ordering::Relaxed);
    }

    pub(super) fn paused(&self, time: Duration) {
        self.longest_pause_us
            .fetch_max(micros(time), Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> CheckpointStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CheckpointStats {
            written: of(&self.written),
            failed: of(&self.failed),
            bytes: of(&self.bytes),
            folds: of(&self.folds),
            folded_bytes: of(&self.folded_bytes),
            last_us: of(&self.last_us),
            longest_pause_us: of(&self.longest_pause_us),
            ..CheckpointStats::default()
        }
    }
}
