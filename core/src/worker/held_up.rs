//! Publishes that a shard lets wait, because a stream that holds its publishers is full.
//!
//! They are taken out of the lane, so that what is behind them goes on, and count against their connection: it is told,
//! and beyond a limit of bytes its socket is not read.
//!
//! Owns: that count. Never: how long they wait (`shard/hold.rs`).

use super::Worker;
use super::publish::Waiting;
use crate::gateway::Answer;
use crate::id::{Sequence, ShardId};
use rustc_hash::FxHashMap;

/// Publishes that wait at shards.
#[derive(Default)]
pub(super) struct HeldUp(FxHashMap<(ShardId, Sequence), (Waiting, usize)>);

impl Worker {
    /// A shard lets one of this worker's publishes wait.
    pub(super) fn publish_waits(&mut self, shard: ShardId, sequence: Sequence, cost_bytes: usize) {
        let lane = self.lanes.entry(shard).or_default();
        let Some(waiting) = lane.finish(sequence) else {
            return;
        };
        self.held_up
            .0
            .insert((shard, sequence), (waiting, cost_bytes));
        self.with(waiting.connection, |state| {
            if state.waiting_bytes == 0 {
                let why = Some("a queue is full and holds its publishers");
                state.mail.answers.push(Answer::Blocked(why));
            }
            state.waiting_bytes += cost_bytes;
        });
    }

    /// One that waited is finished.
    pub(super) fn no_more_waits(&mut self, shard: ShardId, sequence: Sequence) -> Option<Waiting> {
        if self.held_up.0.is_empty() {
            return None;
        }
        let (waiting, cost_bytes) = self.held_up.0.remove(&(shard, sequence))?;
        self.with(waiting.connection, |state| {
            state.waiting_bytes = state.waiting_bytes.saturating_sub(cost_bytes);
            if state.waiting_bytes == 0 && state.parked_bytes == 0 {
                state.mail.answers.push(Answer::Blocked(None));
            }
        });
        Some(waiting)
    }
}
