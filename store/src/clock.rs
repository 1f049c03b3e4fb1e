//! The wall clock as a trait, so that a simulation can own time.
//!
//! Owns: reading milliseconds since the Unix epoch. Never decides anything: the leader stamps a
//! frame with it once, and every replica obeys the stamp. Read next: [`crate::group`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Source of the wall-clock time that a leader stamps into frames.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch. May step backwards; callers force it monotone.
    fn now_ms(&self) -> u64;
}

/// A clock that goes with the timers of the runtime it was made in: it stands still when they do,
/// as in a simulation, and else advances like the machine's.
#[derive(Debug, Clone, Copy)]
pub struct RuntimeClock {
    start_ms: u64,
    start: tokio::time::Instant,
}

impl RuntimeClock {
    /// A clock that shows `start_ms` milliseconds since the Unix epoch now. Must be called inside
    /// the runtime.
    pub fn new(start_ms: u64) -> Self {
        Self {
            start_ms,
            start: tokio::time::Instant::now(),
        }
    }
}

impl Clock for RuntimeClock {
    fn now_ms(&self) -> u64 {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.start_ms.saturating_add(elapsed)
    }
}

/// The machine's own clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| {
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            })
    }
}

/// A clock that stands still until it is moved; for simulations.
#[derive(Debug, Default, Clone)]
pub struct ManualClock {
    now_ms: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that shows `now_ms` milliseconds since the Unix epoch.
    pub fn new(now_ms: u64) -> Self {
        Self {
            now_ms: Arc::new(AtomicU64::new(now_ms)),
        }
    }

    /// Sets the time shown, in milliseconds; it may go backwards.
    pub fn set_ms(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Moves the time forward by `by_ms` milliseconds.
    pub fn advance_ms(&self, by_ms: u64) {
        self.now_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }
}
