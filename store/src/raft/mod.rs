//! The consensus library, and the only place that names it.
//!
//! Owns: its configuration and the glue to journal and state. Nothing of the library leaves this
//! module and [`crate::group`], so that moving to another version touches these files only. Read
//! next: [`log`], [`machine`].

mod log;
mod machine;
mod network;
mod types;

pub use machine::{Machine, StateMachine};
pub use network::NoPeers;
pub use types::{Applied, Proposal, Types};

pub(crate) use log::LogStore;
pub(crate) use types::Answer;

use openraft::{Config, SnapshotPolicy};

/// Milliseconds between heartbeats of a leader.
const HEARTBEAT_MS: u64 = 250;
/// Shortest and longest wait of a follower before it asks to be elected, in milliseconds: a
/// failover stays below a second.
const ELECTION_MS: (u64, u64) = (600, 900);
/// How long a snapshot may take, in milliseconds: it may carry whole segments.
const SNAPSHOT_MS: u64 = 10 * 60 * 1000;
/// Entries in one replication request at most; their bytes have their own limit.
const REPLICATED_ENTRIES: u64 = 256;

/// The library's settings for a group called `name`.
pub(crate) fn config(name: &str) -> Result<Config, openraft::ConfigError> {
    Config {
        cluster_name: name.to_owned(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS.0,
        election_timeout_max: ELECTION_MS.1,
        install_snapshot_timeout: SNAPSHOT_MS,
        max_payload_entries: REPLICATED_ENTRIES,
        // We decide when a checkpoint becomes a snapshot, and how far the log is purged.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        enable_pre_vote: Some(true),
        ..Config::default()
    }
    .validate()
}
