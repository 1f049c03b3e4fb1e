//! What a worker is made with.
//!
//! Owns: its part of the node, what it shares with other threads, its named limits.
//! Never: what happens beyond a limit (`worker/commands.rs`, `worker/publish.rs`).
//! Next: `worker.rs`.

use crate::authority::Authority;
use crate::id::WorkerId;
use crate::properties::Codecs;
use crate::router::Fabric;
use crate::shard::ShardLimits;
use std::sync::Arc;

/// What a worker is made with.
pub struct WorkerSetup {
    /// Which.
    pub id: WorkerId,
    /// This life of the node.
    pub incarnation: u64,
    /// How many there are: their numbers are dense from 0.
    pub workers: u16,
    /// Limits.
    pub limits: WorkerLimits,
    /// Shared by all threads of the node.
    pub fabric: Arc<Fabric>,
    /// For routing by headers.
    pub codecs: Codecs,
    /// Who may do what.
    pub authority: Arc<dyn Authority>,
}

/// Named limits of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    /// Of its volatile shard.
    pub shard: ShardLimits,
    /// Bytes a connection may still publish to a blocked shard before its socket is not read any more.
    pub parked_bytes_max: usize,
    /// Consumers of one connection.
    pub consumers_max: usize,
    /// Filters of one session.
    pub filters_max: usize,
}

impl Default for WorkerLimits {
    fn default() -> Self {
        WorkerLimits {
            shard: ShardLimits {
                session_bytes_max: 8 << 20,
                ..ShardLimits::default()
            },
            parked_bytes_max: 4 << 20,
            consumers_max: 65_536,
            filters_max: 8_192,
        }
    }
}
