//! The state machine that the consensus library drives: it applies frames to the shard's state.
//!
//! Owns: what was applied last, the monotone clock, the members, checkpoints. Never stores a
//! message body: those are in the journal, and the state refers to them by position. Read next:
//! [`super::checkpoint`], [`crate::group`].

use super::checkpoint::{Checkpoint, load_newest};
use super::log::{frame_id, log_id};
use super::types::{Applied, LogId, SnapshotMeta, StoredMembership, Types};
use crate::disk::Disk;
use crate::journal::Journal;
use anabranch_core::id::{LogIndex, Position, UnixMs};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use openraft::{EntryPayload, OptionalSend};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// What a shard does with committed frames. Everything must follow from the arguments alone, so that
/// every replica comes to the same state.
pub trait StateMachine: Send + 'static {
    /// Applies one frame. `clock` never goes back; `position` is that of the payload's first byte.
    ///
    /// # Errors
    /// The payload makes no sense: the group stops, since nothing after it is certain.
    fn apply(
        &mut self,
        index: LogIndex,
        clock: UnixMs,
        position: Position,
        payload: &Bytes,
    ) -> Result<Applied, String>;

    /// Called after a run of frames was applied: the moment to pass on what came of them.
    fn applied_run(&mut self) {}

    /// The whole state as bytes.
    fn checkpoint(&self) -> Vec<u8>;

    /// Replaces the state by one that [`StateMachine::checkpoint`] gave; the text says why not.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), String>;
}

/// Where checkpoints go, and who writes them.
#[derive(Debug, Clone)]
pub(crate) struct CheckpointPlace {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    /// Written by a thread of its own, so that the shard goes on meanwhile.
    pub(crate) background: bool,
}

impl CheckpointPlace {
    /// The newest whole checkpoint.
    async fn load(&self) -> io::Result<Option<Checkpoint>> {
        if !self.background {
            return load_newest(&*self.disk, &self.dir);
        }
        let place = self.clone();
        let loaded = tokio::task::spawn_blocking(move || load_newest(&*place.disk, &place.dir));
        loaded.await.map_err(io::Error::other)?
    }

    pub(crate) async fn write(&self, checkpoint: Checkpoint) -> io::Result<()> {
        if !self.background {
            return checkpoint.write(&*self.disk, &self.dir);
        }
        let place = self.clone();
        let written =
            tokio::task::spawn_blocking(move || checkpoint.write(&*place.disk, &place.dir));
        written.await.map_err(io::Error::other)?
    }
}

/// The shard's state and what the library must know of it.
#[derive(Debug)]
pub struct Machine<S> {
    /// A lock only so that a state that cannot be shared can live here; it is never contended.
    state: Mutex<S>,
    journal: Journal,
    place: CheckpointPlace,
    last_applied: Option<LogId>,
    membership: StoredMembership,
    clock: UnixMs,
}

impl<S: StateMachine> Machine<S> {
    /// A machine that stands where `checkpoint` says, or at the beginning.
    pub(crate) fn new(
        mut state: S,
        journal: Journal,
        place: CheckpointPlace,
        checkpoint: Option<Checkpoint>,
    ) -> Result<Self, String> {
        let mut machine_clock = UnixMs(0);
        let mut last_applied = None;
        let mut membership = StoredMembership::default();
        if let Some(checkpoint) = checkpoint {
            state.restore(&checkpoint.state)?;
            machine_clock = checkpoint.clock;
            last_applied = Some(log_id(checkpoint.id));
            membership = checkpoint.membership;
        }
        Ok(Self {
            state: Mutex::new(state),
            journal,
            place,
            last_applied,
            membership,
            clock: machine_clock,
        })
    }

    /// The shard's state.
    pub(crate) fn state(&mut self) -> &mut S {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state as of the last frame applied; `None` before the first, or while that frame is not
    /// yet synced here (a checkpoint above the synced log would open a hole after a crash).
    pub(crate) fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        let id = frame_id(self.last_applied.as_ref()?);
        if id.index >= self.journal.synced_end() {
            return None;
        }
        Some(Checkpoint {
            id,
            clock: self.clock,
            membership: self.membership.clone(),
            state: self.state().checkpoint().into(),
        })
    }

    pub(crate) fn place(&self) -> CheckpointPlace {
        self.place.clone()
    }
}

fn meta_of(checkpoint: &Checkpoint) -> SnapshotMeta {
    SnapshotMeta {
        last_log_id: Some(log_id(checkpoint.id)),
        last_membership: checkpoint.membership.clone(),
    }
}

type CheckpointSnapshot = openraft::type_config::alias::SnapshotOf<Types, Checkpoint>;

/// Gives the library the newest checkpoint as its snapshot. It writes none: the shard decides when
/// one is written, and a checkpoint that cannot be written must not stop the group.
#[derive(Debug)]
pub struct Builder {
    newest: Option<Checkpoint>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = Checkpoint;

    async fn build_snapshot(&mut self) -> Result<CheckpointSnapshot, io::Error> {
        let newest = self.newest.take();
        let checkpoint = newest.ok_or_else(|| io::Error::other("there is no checkpoint yet"))?;
        Ok(Snapshot {
            meta: meta_of(&checkpoint),
            snapshot: checkpoint,
        })
    }
}

impl<S: StateMachine> RaftStateMachine<Types> for Machine<S> {
    type SnapshotData = Checkpoint;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.last_applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            let index = LogIndex(entry.log_id.index);
            let applied = match entry.payload {
                EntryPayload::Blank => Applied::default(),
                EntryPayload::Membership(members) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), members);
                    Applied::default()
                }
                EntryPayload::Normal(proposal) => {
                    let place = self.journal.payload_position(index);
                    let position = place.ok_or_else(|| {
                        io::Error::other(format!("log index {index} has no position"))
                    })?;
                    self.clock = self.clock.max(proposal.clock);
                    let clock = self.clock;
                    self.state()
                        .apply(index, clock, position, &proposal.payload)
                        .map_err(|what| io::Error::other(format!("log index {index}: {what}")))?
                }
            };
            self.last_applied = Some(entry.log_id);
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        if let Some(last) = self.last_applied {
            self.journal.set_applied(LogIndex(last.index));
        }
        self.state().applied_run();
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, _force: bool) -> Option<Self::SnapshotBuilder> {
        // Without one the library is told to wait: an error here would stop the group.
        match self.place.load().await {
            Ok(Some(newest)) => Some(Builder {
                newest: Some(newest),
            }),
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(%error, "the newest checkpoint cannot be read");
                None
            }
        }
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        Builder {
            newest: self.place.load().await.ok().flatten(),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Checkpoint,
    ) -> Result<(), io::Error> {
        self.state()
            .restore(&snapshot.state)
            .map_err(io::Error::other)?;
        self.clock = snapshot.clock;
        self.last_applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.place.write(snapshot).await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<CheckpointSnapshot>, io::Error> {
        let newest = self.place.load().await?;
        Ok(newest.map(|checkpoint| Snapshot {
            meta: meta_of(&checkpoint),
            snapshot: checkpoint,
        }))
    }
}
