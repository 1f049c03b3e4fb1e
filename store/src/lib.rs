//! Journal, index, checkpoint, recovery and replication of one shard.

pub mod clock;
pub mod disk;
