//! A data shard's state, shared by its actor and the group's state machine.
//!
//! Owns: applying frames to core's shard and telling workers what came of it. Both sides run on the
//! shard's own thread, so the lock is never contended. Read next: [`super::data`].

use super::Clocks;
use super::bodies::JournalBodies;
use super::data::Batch;
use super::inbox::Inbox;
use super::ledger::Ledger;
use crate::raft::{Applied, StateMachine};
use anabranch_core::id::{LogIndex, Now, Position, UnixMs, WorkerId};
use anabranch_core::index::{Blocks, Delta};
use anabranch_core::port::WorkerPort;
use anabranch_core::shard::Shard;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the actor and the state machine share.
pub(super) struct Cell {
    pub(super) shard: Shard<Position>,
    /// `None` while the journal is replayed: then nobody listens.
    pub(super) bodies: Option<JournalBodies>,
    /// Frames came after the checkpoint that the state was read from.
    pub(super) replayed: bool,
    pub(super) ledger: Ledger,
    pub(super) workers: FxHashMap<WorkerId, Arc<dyn WorkerPort>>,
    pub(super) clocks: Clocks,
}

impl Cell {
    /// Hands out what can be, and tells workers everything there is to tell.
    pub(super) fn tell(&mut self, now: Now) {
        let Some(bodies) = &mut self.bodies else {
            return;
        };
        self.shard.dispatch(now, bodies);
        bodies.end_round();
        if let Some(withheld) = self.shard.withheld(now) {
            tracing::info!(
                user = %withheld.user,
                address = %withheld.address,
                count = withheld.count,
                "messages were withheld: no rule lets this consumer receive their address"
            );
        }
        let id = self.shard.id();
        for (worker, events) in self.shard.events() {
            self.ledger.answered(worker, &events);
            if let Some(port) = self.workers.get(&worker) {
                port.send(id, events);
            }
        }
    }
}

pub(super) type SharedCell = Arc<Mutex<Cell>>;

pub(super) fn lock(cell: &Mutex<Cell>) -> MutexGuard<'_, Cell> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Core's shard as the group's state machine.
pub(super) struct Machine {
    pub(super) cell: SharedCell,
    pub(super) inbox: Arc<Inbox<Batch>>,
}

impl StateMachine for Machine {
    fn apply(
        &mut self,
        _index: LogIndex,
        clock: UnixMs,
        position: Position,
        payload: &Bytes,
    ) -> Result<Applied, String> {
        // The frame's own checksum was verified, or its bytes were made in this life of the node.
        let mut cell = lock(&self.cell);
        cell.replayed |= cell.bodies.is_none();
        let applied = cell.shard.apply(clock, position, payload, true);
        applied.map_err(|error| error.to_string())?;
        Ok(Applied::default())
    }

    fn applied_run(&mut self) {
        let mut cell = lock(&self.cell);
        let now = cell.clocks.now();
        cell.tell(now);
        drop(cell);
        // What was handed out may have left something for the next frame.
        self.inbox.wake();
    }

    fn freeze(&mut self) {
        lock(&self.cell).shard.freeze();
    }

    fn copy(&mut self, bytes: usize) -> Option<Delta> {
        lock(&self.cell).shard.copy(bytes)
    }

    fn written(&mut self) {
        lock(&self.cell).shard.written();
    }

    fn restore(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
        blocks: Arc<dyn Blocks>,
    ) -> Result<(), String> {
        lock(&self.cell)
            .shard
            .restore_pairs(pairs, blocks)
            .map_err(|error| error.to_string())
    }
}
