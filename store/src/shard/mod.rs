//! The hosts of core's shards: a thread each, with the shard's value, its group and its runtime.
//!
//! Owns: turning what arrives into frames, applying what comes back, and telling workers. Never
//! decides what a request means: that is core's. Read next: [`data`] (streams and sessions),
//! [`meta`] (vhosts, users, rules, names), [`inbox`] (how workers reach a shard), [`bodies`] (how a
//! place in the journal becomes a message again).

mod attempts;
mod bodies;
mod cell;
pub mod data;
mod inbox;
mod ledger;
pub mod meta;
mod space;
mod thread;

pub use data::{DataShard, DataShardSetup, IndexStats, WorkerPorts};
pub use meta::{MetaShard, MetaShardSetup};
pub use space::{JournalLimit, Shortage};
pub use thread::ShardStartError;

use crate::clock::Clock;
use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::id::{MonotonicMs, Now, UnixMs};
use std::sync::Arc;
use tokio::time::Instant;

/// Bytes at which a frame is full: what waits beyond goes into the next one.
pub const FRAME_BYTES: usize = 256 * 1024;

/// Frames under way before a frame that is not full waits for company: one is being synced, the next
/// is queued behind it.
const SMALL_FRAMES_UNDER_WAY: usize = 2;

/// What the clocks say, from the runtime's timers and the wall clock.
#[derive(Clone)]
struct Clocks {
    start: Instant,
    wall: Arc<dyn Clock>,
}

impl Clocks {
    fn new(wall: Arc<dyn Clock>) -> Self {
        Self {
            start: Instant::now(),
            wall,
        }
    }

    fn now(&self) -> Now {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now {
            monotonic: MonotonicMs(elapsed),
            unix: UnixMs(self.wall.now_ms()),
        }
    }

    fn at(&self, time: MonotonicMs) -> Instant {
        self.start + std::time::Duration::from_millis(time.0)
    }
}

fn shutting_down() -> Refusal {
    Refusal::new(ErrorKind::ShuttingDown, "the node is shutting down")
}
