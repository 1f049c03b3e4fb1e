//! The clocks of a node: the only place of the network side that reads them.
//!
//! Owns: [`Clock`] and the real one.
//! Never: decides anything by time.
//! Next: `desk.rs`, which reads it once per turn.

use anabranch_core::id::{MonotonicMs, Now, UnixMs};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Says what time it is; read once per turn of a worker, from its thread.
pub trait Clock: Send + Sync {
    /// Both clocks at this moment.
    fn now(&self) -> Now;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    /// Where the monotonic clock is 1: a zero would look like "never" to a reader.
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let since_start = self.start.elapsed().as_millis();
        // A machine whose clock stands before 1970 gets 1970: nothing here depends on the date.
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            monotonic: MonotonicMs(
                u64::try_from(since_start)
                    .unwrap_or(u64::MAX)
                    .saturating_add(1),
            ),
            unix: UnixMs(u64::try_from(unix.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}
