//! The state that a shard's checkpoint and journal give, made as a start makes it.
//!
//! Owns: which kind of state, and taking frames into it. Never hands anything out. Read next:
//! [`crate::shard`] (who else makes one).

use super::ShardKind;
use crate::checkpoint::CheckpointOpenError;
use crate::checkpoint::survey::Newest;
use crate::shard::meta;
use anabranch_core::authority::AllowAll;
use anabranch_core::id::{Position, ShardId, UnixMs};
use anabranch_core::properties::Codecs;
use anabranch_core::router::Fabric;
use anabranch_core::shard::{Shard, ShardLimits, ShardSetup};
use bytes::Bytes;
use std::sync::Arc;

/// Any number that is a journalled shard's.
const SHARD: ShardId = ShardId(1);

/// A journalled shard just made.
pub(super) fn empty_shard() -> Shard<Position> {
    Shard::new(ShardSetup {
        id: SHARD,
        incarnation: 0,
        workers: 0,
        limits: ShardLimits::default(),
        fabric: Arc::default(),
        authority: Arc::new(AllowAll),
        codecs: Codecs::default(),
    })
}

/// A shard's state.
pub(super) enum State {
    /// Metadata.
    Meta(Arc<Fabric>),
    /// Streams.
    Data(Box<Shard<Position>>),
}

impl State {
    /// The state of a checkpoint.
    pub(super) fn of(kind: ShardKind, newest: &Newest) -> Result<State, CheckpointOpenError> {
        match kind {
            ShardKind::Meta => {
                let fabric = Arc::new(Fabric::default());
                newest.restore(|pairs, _| meta::restore(&fabric, pairs))?;
                Ok(State::Meta(fabric))
            }
            ShardKind::Data => {
                let mut shard = empty_shard();
                newest.restore(|pairs, blocks| {
                    let restored = shard.restore_pairs(pairs, blocks);
                    restored.map_err(|error| error.to_string())
                })?;
                Ok(State::Data(Box::new(shard)))
            }
        }
    }

    /// Applies the records of a frame, which were verified.
    pub(super) fn apply(
        &mut self,
        clock: UnixMs,
        position: Position,
        payload: &Bytes,
    ) -> Result<(), String> {
        match self {
            State::Meta(fabric) => {
                for command in &meta::decode(payload)? {
                    // What a command answers is for who asked then.
                    let _ = fabric.apply(clock, command);
                }
                Ok(())
            }
            State::Data(shard) => {
                let applied = shard.apply(clock, position, payload, true);
                applied.map_err(|error| error.to_string())
            }
        }
    }
}
