//! The state machine that the consensus library drives: it applies frames to the shard's state.
//!
//! Owns: what was applied last, the monotone clock, the members, the moment that a checkpoint is of.
//! Never stores a message body: those are in the journal, and the state refers to them by position.
//! Read next: [`crate::checkpoint`], [`crate::group`].

use super::log::{frame_id, log_id};
use super::types::{Applied, LogId, SnapshotMeta, StoredMembership, Types};
use crate::checkpoint::{CheckpointOpenError, Checkpoints, Manifest, Standing};
use crate::journal::Journal;
use anabranch_core::id::{LogIndex, Position, UnixMs};
use anabranch_core::index::{Blocks, Delta};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use openraft::{EntryPayload, OptionalSend};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

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

    /// Begins a checkpoint: what [`StateMachine::copy`] gives is the state as of now, whatever is
    /// applied meanwhile.
    fn freeze(&mut self);

    /// Copies what changed since the checkpoint before, about `bytes` of it in one call; `None` while
    /// there is more to copy. What was given once is not given again.
    fn copy(&mut self, bytes: usize) -> Option<Delta>;

    /// All that was copied is durable.
    fn written(&mut self);

    /// Takes the pairs of a checkpoint as the state of a machine just made, whose blocks are in
    /// `blocks`. Called once, also when there is no checkpoint: then there are no pairs. The text says
    /// why they cannot be taken.
    fn restore(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
        blocks: Arc<dyn Blocks>,
    ) -> Result<(), String>;
}

/// The shard's state and what the library must know of it.
#[derive(Debug)]
pub struct Machine<S> {
    /// A lock only so that a state that cannot be shared can live here; it is never contended.
    state: Mutex<S>,
    journal: Journal,
    checkpoints: Arc<Checkpoints>,
    /// What the checkpoint being copied is of.
    frozen: Option<Standing>,
    last_applied: Option<LogId>,
    membership: StoredMembership,
    clock: UnixMs,
}

impl<S: StateMachine> Machine<S> {
    /// A machine that stands where the newest checkpoint says, or at the beginning.
    pub(crate) fn new(
        state: S,
        journal: Journal,
        checkpoints: Arc<Checkpoints>,
    ) -> Result<Self, CheckpointOpenError> {
        let mut machine = Self {
            state: Mutex::new(state),
            journal,
            frozen: None,
            last_applied: None,
            membership: StoredMembership::default(),
            clock: UnixMs(0),
            checkpoints: checkpoints.clone(),
        };
        if let Some(standing) = checkpoints.standing() {
            machine.stand(&standing)?;
        }
        checkpoints.restore(|pairs, blocks| machine.state().restore(pairs, blocks))?;
        Ok(machine)
    }

    fn stand(&mut self, standing: &Standing) -> Result<(), CheckpointOpenError> {
        self.membership = members_of(standing)
            .map_err(|error| CheckpointOpenError::Refused(error.to_string()))?;
        self.clock = standing.clock;
        self.last_applied = Some(log_id(standing.id));
        Ok(())
    }

    /// The shard's state.
    pub(crate) fn state(&mut self) -> &mut S {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a checkpoint of what is applied now. `false` before the first frame, or while the last
    /// one is not yet synced here (a checkpoint above the synced log would open a hole after a crash).
    pub(crate) fn freeze(&mut self) -> io::Result<bool> {
        if self.frozen.is_some() {
            // One that was given up while it was copied: its copy is still needed.
            return Ok(true);
        }
        let Some(last) = self.last_applied.as_ref().map(frame_id) else {
            return Ok(false);
        };
        if last.index >= self.journal.synced_end() {
            return Ok(false);
        }
        let members = serde_json::to_vec(&self.membership).map_err(io::Error::other)?;
        self.state().freeze();
        self.frozen = Some(Standing {
            id: last,
            clock: self.clock,
            members: members.into(),
        });
        Ok(true)
    }

    /// Copies about `bytes` of what is frozen; `true` when that was the last of it. What was copied is
    /// with the checkpoints then.
    pub(crate) fn copy(&mut self, bytes: usize) -> bool {
        let start = Instant::now();
        let copied = self.state().copy(bytes);
        let done = copied.is_some();
        if let Some(delta) = copied
            && let Some(standing) = self.frozen.take()
        {
            self.checkpoints.hold(standing, delta);
        }
        self.checkpoints.paused(start.elapsed());
        done
    }
}

fn members_of(standing: &Standing) -> io::Result<StoredMembership> {
    serde_json::from_slice(&standing.members)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

type ManifestSnapshot = openraft::type_config::alias::SnapshotOf<Types, Manifest>;

fn snapshot_of(manifest: Manifest) -> io::Result<ManifestSnapshot> {
    Ok(Snapshot {
        meta: SnapshotMeta {
            last_log_id: Some(log_id(manifest.standing.id)),
            last_membership: members_of(&manifest.standing)?,
        },
        snapshot: manifest,
    })
}

/// Gives the library the newest checkpoint as its snapshot. It writes none: the shard decides when
/// one is written, and a checkpoint that cannot be written must not stop the group.
#[derive(Debug)]
pub struct Builder {
    newest: Option<Manifest>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = Manifest;

    async fn build_snapshot(&mut self) -> Result<ManifestSnapshot, io::Error> {
        let newest = self.newest.take();
        snapshot_of(newest.ok_or_else(|| io::Error::other("there is no checkpoint yet"))?)
    }
}

impl<S: StateMachine> RaftStateMachine<Types> for Machine<S> {
    type SnapshotData = Manifest;
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
        let newest = Some(self.checkpoints.newest()?);
        Some(Builder { newest })
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        Builder {
            newest: self.checkpoints.newest(),
        }
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMeta,
        snapshot: Manifest,
    ) -> Result<(), io::Error> {
        // Its files must be here: they are not sent yet.
        if self.checkpoints.newest().as_ref() != Some(&snapshot) {
            return Err(io::Error::other(
                "the runs of a checkpoint of another member are not here",
            ));
        }
        self.stand(&snapshot.standing).map_err(io::Error::other)?;
        let checkpoints = self.checkpoints.clone();
        checkpoints
            .restore(|pairs, blocks| self.state().restore(pairs, blocks))
            .map_err(io::Error::other)
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<ManifestSnapshot>, io::Error> {
        self.checkpoints.newest().map(snapshot_of).transpose()
    }
}
