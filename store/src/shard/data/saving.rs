//! When a data shard writes a checkpoint, and what of its journal is given back then.
//!
//! Owns: that step. Never: how a checkpoint is written ([`crate::checkpoint`]), what is dead (core knows).
//! Read next: [`crate::group`], `attempts.rs` (what is said of those that fail).

use super::actor::Actor;
use crate::group::{CheckpointError, Group};
use crate::journal::GivenBack;
use crate::shard::attempts::Attempts;
use crate::shard::cell::{Machine, SharedCell, lock};
use anabranch_core::id::{LogIndex, Position};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

/// A checkpoint is written, however little the journal has grown, when so much has changed that none has: what is
/// changed and not saved is in memory.
const UNSAVED_BYTES_MAX: usize = 64 << 20;

impl Actor {
    pub(super) fn checkpoint_when_due(&mut self) {
        let bytes = self.group.journal().stats().bytes;
        // One that failed is tried again when there is more to put into it.
        let is_much =
            bytes > self.tried_at && lock(&self.cell).shard.unsaved_bytes() > UNSAVED_BYTES_MAX;
        let is_due = bytes >= self.checkpoint_at || is_much;
        if !is_due || self.checkpointing.swap(true, Ordering::AcqRel) {
            return;
        }
        self.checkpoint_at = bytes + self.checkpoint_bytes;
        self.tried_at = bytes;
        let (group, running) = (self.group.clone(), self.checkpointing.clone());
        let (cell, covered) = (self.cell.clone(), self.covered.clone());
        let (relieved, inbox) = (self.relieved.clone(), self.inbox.clone());
        let attempts = self.attempts.clone();
        tokio::spawn(async move {
            match checkpoint_and_give_back(&group, &cell, &covered, &attempts).await {
                Ok(given) if given.is_nothing() => {}
                Ok(given) => {
                    let (segments, bytes) = (given.segments, given.bytes);
                    tracing::debug!(segments, bytes, "room of the journal was given back");
                    relieved.store(true, Ordering::Release);
                    inbox.wake();
                }
                // Said already, if it is news.
                Err(_) => {}
            }
            if let Some(folder) = group.journal().folder() {
                folder.look();
            }
            running.store(false, Ordering::Release);
        });
    }
}

/// What was dead when the checkpoint before the newest was taken, and its frame: whichever of the two is used,
/// nobody reads that again.
pub(super) type Covered = Mutex<Option<(Vec<(Position, Position)>, LogIndex)>>;

/// What the checkpoint covers that a server starts from. What was dead in it is known unless frames came after it: then
/// nothing is said to be.
pub(super) fn covered_at_start(group: &Group<Machine>, cell: &SharedCell) -> Covered {
    let cell = lock(cell);
    let covered = group.covered().map(|index| {
        let end = group.journal().sealed_end().filter(|_| !cell.replayed);
        let dead = end.map(|end| cell.shard.dead_ranges(Position(0), end));
        (dead.unwrap_or_default(), index)
    });
    Mutex::new(covered)
}

/// Writes a checkpoint, and gives up what was dead at the one before it.
pub(super) async fn checkpoint_and_give_back(
    group: &Group<Machine>,
    cell: &SharedCell,
    covered: &Covered,
    attempts: &Mutex<Attempts>,
) -> Result<GivenBack, CheckpointError> {
    // What is dead now is dead in the checkpoint, which is taken later.
    let sealed = group.journal().sealed_end();
    let dead = sealed.map_or_else(Vec::new, |end| {
        // From the very beginning: core counts in pages, and the first segment may begin inside one.
        lock(cell).shard.dead_ranges(Position(0), end)
    });
    let attempt = group.checkpoint_now().await;
    attempts
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .tell(&attempt);
    let Some(index) = attempt? else {
        return Ok(GivenBack::default());
    };
    let before = {
        let mut covered = covered.lock().unwrap_or_else(PoisonError::into_inner);
        // The same frame again is no second checkpoint to fall back on.
        if covered.as_ref().is_some_and(|(_, last)| *last == index) {
            return Ok(GivenBack::default());
        }
        covered.replace((dead, index))
    };
    let Some((dead, through)) = before else {
        return Ok(GivenBack::default());
    };
    Ok(group
        .give_back(&dead, through)
        .await
        .unwrap_or_else(|error| {
            tracing::warn!(%error, "no room was given back; it is tried with the next checkpoint");
            GivenBack::default()
        }))
}
