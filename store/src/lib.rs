//! Journal, index, checkpoint, recovery and replication of one shard.
