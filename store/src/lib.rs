//! Journal, index, checkpoint, recovery and replication of one shard.
//!
//! Owns: everything durable, and the consensus that makes several copies of it one. Never decodes a
//! payload and knows no protocol. Read next: [`group`] for the handle that a shard uses, [`journal`]
//! for how bytes become durable, [`checkpoint`] for how a state does, [`raft`] for the consensus beneath, [`seal`] for encryption at rest, [`disk`] and [`clock`] for what
//! a simulation replaces.

pub mod checkpoint;
pub mod clock;
pub mod disk;
pub mod finding;
pub mod group;
pub mod inspect;
pub mod journal;
pub mod raft;
pub mod seal;
pub mod shard;
pub mod tier;
