//! Checkpoints of what was applied, and room given back below them.
//!
//! Owns that one checkpoint is written at a time, and that nothing goes that no checkpoint covers. Never says what
//! is dead. Read next: [`crate::checkpoint`].

use super::{CheckpointError, Group, ReleaseError};
use crate::journal::{GivenBack, WriterMode};
use crate::raft::{Machine, StateMachine};
use anabranch_core::id::{LogIndex, Position};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a purge may take before it is given up (to be tried at the next checkpoint).
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of the state copied at a stretch for a checkpoint: well below a millisecond.
const COPY_BYTES: usize = 128 * 1024;

impl<S: StateMachine> Group<S> {
    /// Writes a checkpoint of what is applied now. `None` when nothing was applied that is synced.
    pub async fn checkpoint_now(&self) -> Result<Option<LogIndex>, CheckpointError> {
        let _one_at_a_time = self.inner.checkpointing.lock().await;
        let start = tokio::time::Instant::now();
        if !self.with_machine(Machine::freeze).await?? {
            return Ok(None);
        }
        while !self
            .with_machine(|machine| machine.copy(COPY_BYTES))
            .await?
        {
            // Whatever else the shard has to do comes in between.
            tokio::task::yield_now().await;
        }
        let checkpoints = self.inner.checkpoints.clone();
        let written = if self.inner.options.writer == WriterMode::Thread {
            let writing = tokio::task::spawn_blocking(move || checkpoints.write());
            writing.await.map_err(io::Error::other)??
        } else {
            checkpoints.write()?
        };
        self.with_state(StateMachine::written).await?;
        let checkpoints = &self.inner.checkpoints;
        checkpoints.took(start.elapsed());
        checkpoints.fold_when_due();
        if let Some(index) = written {
            self.inner.journal.cover(index);
            self.inner.uncovered.store(index.0 + 1, Ordering::Release);
        }
        Ok(written)
    }

    /// The newest frame that a checkpoint covers.
    pub fn covered(&self) -> Option<LogIndex> {
        let uncovered = self.inner.uncovered.load(Ordering::Acquire);
        uncovered.checked_sub(1).map(LogIndex)
    }

    /// Gives up what is `dead` (ascending ranges) below the frame `through`, which a checkpoint covers: nothing
    /// that any kept checkpoint or the state refers to may lie there. See [`crate::journal::Journal::give_back`].
    pub async fn give_back(
        &self,
        dead: &[(Position, Position)],
        through: LogIndex,
    ) -> Result<GivenBack, ReleaseError> {
        let journal = &self.inner.journal;
        let Some(upto) = journal.sealed_through(through) else {
            return Ok(GivenBack::default());
        };
        if upto.0 >= self.inner.uncovered.load(Ordering::Acquire) {
            return Err(ReleaseError::NotCovered(upto));
        }
        if journal.purged().is_none_or(|purged| purged.index < upto) {
            self.purge(upto).await?;
        }
        let (send, receive) = oneshot::channel();
        let done = Box::new(move |result| {
            let _ = send.send(result);
        });
        let given = journal.give_back(dead, upto, done)?;
        receive.await.map_err(|_| ReleaseError::Stopped)??;
        Ok(given)
    }

    async fn purge(&self, upto: LogIndex) -> Result<(), ReleaseError> {
        let raft = &self.inner.raft;
        let stopped = |_| ReleaseError::Stopped;
        // The library purges only what its snapshot covers: tell it of the newest checkpoint first.
        raft.trigger().snapshot().await.map_err(stopped)?;
        let waiting = raft.wait(Some(RELEASE_TIMEOUT));
        let covered = waiting.metrics(
            |metrics| metrics.snapshot.is_some_and(|id| id.index >= upto.0),
            "a checkpoint covers what is to be released",
        );
        covered.await.map_err(|_| ReleaseError::NotCovered(upto))?;
        raft.trigger().purge_log(upto.0).await.map_err(stopped)?;
        let purged = waiting.metrics(
            |metrics| metrics.purged.is_some_and(|id| id.index >= upto.0),
            "the log is purged",
        );
        purged.await.map_err(|_| ReleaseError::NotCovered(upto))?;
        Ok(())
    }
}
