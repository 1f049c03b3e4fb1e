//! A replicated group: the handle through which a shard appends, reads and checkpoints.
//!
//! Owns: opening (lock, checkpoint, journal, consensus, replay), proposals and their answers, the
//! limit on what is under way, shutting down. Never knows what a payload means. Everything of a
//! group but the journal's writer runs on the current-thread runtime of the shard's own thread.
//! Read next: [`crate::raft`], [`crate::journal`].

use crate::checkpoint::{CheckpointOpenError, CheckpointStats, Checkpoints};
use crate::clock::Clock;
use crate::disk::{Disk, DiskLock};
use crate::journal::{
    GivenBack, Journal, JournalOptions, JournalStats, OpenError, Packing, ReadError, TierCounts,
    TierPlace, WriteError, WriterMode,
};
use crate::raft::{
    Answer, Applied, LogStore, Machine, NoPeers, Proposal, StateMachine, Types, config,
};
use crate::tier::Tier;
use anabranch_core::id::{LogIndex, Position, UnixMs};
use bytes::Bytes;
use openraft::errors::ClientWriteError;
use openraft::{BasicNode, Raft};
use openraft_rt::deterministic_rng::DeterministicRng;
use openraft_rt_tokio::TokioRuntime;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How long a group of one may take to lead and to replay before opening is given up.
const START_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// How long a purge may take before it is given up (to be tried at the next checkpoint).
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of the state copied at a stretch for a checkpoint: well below a millisecond.
const COPY_BYTES: usize = 128 * 1024;

/// Name of the lock file in a group's directory.
const LOCK_NAME: &str = "lock";

/// How a group is kept.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// Name of the group, for logs.
    pub name: String,
    /// This node's number among the members.
    pub node: u64,
    /// Length of a segment file, in bytes.
    pub segment_bytes: u64,
    /// Payload bytes of recent frames kept in memory beyond those that must be.
    pub tail_bytes: usize,
    /// Payload bytes proposed and not yet answered; more waits in [`Group::propose`].
    pub outstanding_bytes: usize,
    /// Where the journal's writer runs.
    pub writer: WriterMode,
    /// What election timeouts are drawn from.
    pub seed: u64,
    /// How what is written is packed.
    pub packing: Packing,
    /// Where sealed segments of the journal go, if they go anywhere.
    pub tier: Option<Tier>,
}

impl GroupOptions {
    /// The usual settings for a group of one.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            node: 1,
            segment_bytes: 64 * 1024 * 1024,
            tail_bytes: 16 * 1024 * 1024,
            outstanding_bytes: 16 * 1024 * 1024,
            writer: WriterMode::Thread,
            seed: 1,
            packing: Packing::default(),
            tier: None,
        }
    }
}

/// Why a group cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum GroupOpenError {
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The checkpoint cannot be read, or the state machine refuses it.
    #[error("{path}: the checkpoint cannot be used: {source}", path = path.display())]
    Checkpoint {
        /// Directory of the group.
        path: PathBuf,
        /// Why not.
        source: CheckpointOpenError,
    },
    /// The consensus layer did not start.
    #[error("{path}: the group does not start: {what}", path = path.display())]
    Start {
        /// Directory of the group.
        path: PathBuf,
        /// Why not.
        what: String,
    },
}

/// Why a proposal was not (or perhaps not) carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another member leads, or none does; the proposal was not appended.
    #[error("this node does not lead the group")]
    NotLeader,
    /// The journal stopped after a failed disk operation; the outcome is unknown.
    #[error("the shard stopped after a failed disk operation: {0}")]
    Poisoned(Arc<str>),
    /// The group is shut down, or lost leadership while the proposal was under way; the outcome is
    /// unknown.
    #[error("the group stopped before the proposal was answered")]
    Stopped,
    /// The payload is larger than a frame may be.
    #[error("a proposal of {0} bytes is too large")]
    TooLarge(usize),
}

/// Why no checkpoint was written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The group has stopped.
    #[error("the group has stopped")]
    Stopped,
    /// The disk failed; the older checkpoint is still there.
    #[error("writing the checkpoint: {0}")]
    Io(#[from] io::Error),
}

/// Why no room was given back.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The group has stopped.
    #[error("the group has stopped")]
    Stopped,
    /// The consensus layer does not let go of the log: no checkpoint covers it, or a member still
    /// needs it.
    #[error("the log up to {0} is still needed")]
    NotCovered(LogIndex),
    /// The journal refused or failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// A proposal that was committed and applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Its frame.
    pub index: LogIndex,
    /// What the state machine answered.
    pub applied: Applied,
}

/// Counters of a group since it was opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct GroupStats {
    /// The journal's counters.
    pub journal: JournalStats,
    /// The checkpoints' counters.
    pub checkpoint: CheckpointStats,
    /// Payload bytes proposed and not yet answered.
    pub outstanding_bytes: usize,
    /// Bytes of frames that the tail holds in memory.
    pub tail_bytes: usize,
    /// Where the journal's segments lie.
    pub tier: TierCounts,
}

/// A handle to the group; clones share it.
pub struct Group<S: StateMachine> {
    inner: Arc<Inner<S>>,
}

impl<S: StateMachine> Clone for Group<S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<S: StateMachine> std::fmt::Debug for Group<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("name", &self.inner.options.name)
            .finish_non_exhaustive()
    }
}

struct Inner<S: StateMachine> {
    options: GroupOptions,
    raft: Raft<Types, Machine<S>>,
    journal: Journal,
    checkpoints: Arc<Checkpoints>,
    clock: Arc<dyn Clock>,
    last_stamp: AtomicU64,
    outstanding: Arc<Outstanding>,
    lock: Mutex<Option<Box<dyn DiskLock>>>,
    /// Held while a checkpoint is written: two would be in each other's way.
    checkpointing: tokio::sync::Mutex<()>,
    /// First log index that no checkpoint covers.
    uncovered: AtomicU64,
}

/// What was proposed and not yet answered.
#[derive(Debug, Default)]
struct Outstanding {
    bytes: AtomicUsize,
    freed: Notify,
}

impl<S: StateMachine> Group<S> {
    /// Opens the group that lies in `dir` (created when missing) and returns once it leads and has
    /// applied everything committed. Must run inside the shard's runtime.
    pub async fn open(
        dir: &Path,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: GroupOptions,
        state: S,
    ) -> Result<Self, GroupOpenError> {
        let seed = options.seed;
        DeterministicRng::<TokioRuntime>::scope(
            seed,
            Self::open_seeded(dir, disk, clock, options, state),
        )
        .await
    }

    async fn open_seeded(
        dir: &Path,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: GroupOptions,
        state: S,
    ) -> Result<Self, GroupOpenError> {
        let start_error = |what: String| GroupOpenError::Start {
            path: dir.to_owned(),
            what,
        };
        let checkpoint_error = |source| GroupOpenError::Checkpoint {
            path: dir.to_owned(),
            source,
        };
        disk.create_dir(dir).map_err(OpenError::io(dir))?;
        let lock = take_lock(&*disk, dir)?;
        let background = options.writer == WriterMode::Thread;
        let checkpoints =
            Checkpoints::open(disk.clone(), dir, background, &options.packing.sealing)
                .map_err(checkpoint_error)?;
        let checkpoints = Arc::new(checkpoints);
        let standing = checkpoints.standing();
        let covered = standing.as_ref().map(|standing| standing.id.index);
        let uncovered = covered.map_or(0, |index| index.0 + 1);
        let journal = Journal::open(
            disk,
            dir,
            JournalOptions {
                segment_bytes: options.segment_bytes,
                tail_bytes: options.tail_bytes,
                writer: options.writer,
                checkpoint: covered,
                packing: options.packing.clone(),
                tier: options.tier.clone().map(|tier| TierPlace {
                    tier,
                    shard: options.name.clone(),
                }),
                ..JournalOptions::default()
            },
        )?;
        let clock_floor = standing.map_or(0, |standing| standing.clock.0);
        let machine =
            Machine::new(state, journal.clone(), checkpoints.clone()).map_err(checkpoint_error)?;
        let config = config(&options.name).map_err(|error| start_error(error.to_string()))?;
        let last = journal.last();
        let raft = Raft::new(
            options.node,
            Arc::new(config),
            NoPeers,
            LogStore::new(journal.clone()),
            machine,
        )
        .await
        .map_err(|error| start_error(error.to_string()))?;
        let group = Self {
            inner: Arc::new(Inner {
                options,
                raft,
                journal,
                checkpoints,
                clock,
                last_stamp: AtomicU64::new(clock_floor),
                outstanding: Arc::default(),
                lock: Mutex::new(Some(lock)),
                checkpointing: tokio::sync::Mutex::new(()),
                uncovered: AtomicU64::new(uncovered),
            }),
        };
        match group.lead(last.map(|last| last.index)).await {
            Ok(()) => Ok(group),
            Err(what) => {
                group.shutdown().await;
                Err(start_error(what))
            }
        }
    }

    /// Founds the group when it is new; waits until it leads and has applied its own log.
    async fn lead(&self, last: Option<LogIndex>) -> Result<(), String> {
        let raft = &self.inner.raft;
        let initialized = raft
            .is_initialized()
            .await
            .map_err(|error| error.to_string())?;
        if !initialized {
            let members = BTreeMap::from([(self.inner.options.node, BasicNode::new(""))]);
            raft.initialize(members)
                .await
                .map_err(|error| error.to_string())?;
        }
        let node = self.inner.options.node;
        let waiting = raft.wait(Some(START_TIMEOUT));
        let led = waiting.metrics(
            |metrics| {
                metrics.current_leader == Some(node)
                    && metrics.last_applied.is_some()
                    && metrics.last_applied.map(|id| LogIndex(id.index)) >= last
            },
            "the group leads and has applied its log",
        );
        led.await.map_err(|error| match self.poisoned() {
            Some(cause) => cause.to_string(),
            None => error.to_string(),
        })?;
        Ok(())
    }

    /// Appends one frame. Waits only while too much is under way; `done` is called once, on the
    /// runtime's thread or the writer's, when the frame is committed and applied, or failed. Many
    /// proposals may be under way; they are appended and answered in the order of the calls.
    pub async fn propose(
        &self,
        payload: Bytes,
        done: impl FnOnce(Result<Committed, ProposeError>) + Send + 'static,
    ) {
        let inner = &self.inner;
        let len = payload.len();
        if len > crate::journal::frame::MAX_PAYLOAD_BYTES {
            return done(Err(ProposeError::TooLarge(len)));
        }
        self.room_for(len).await;
        let now = inner.clock.now_ms();
        let stamp = now.max(inner.last_stamp.fetch_max(now, Ordering::Relaxed));
        let proposal = Proposal {
            clock: UnixMs(stamp),
            committed: inner.journal.committed(),
            payload,
        };
        let outstanding = inner.outstanding.clone();
        let journal = inner.journal.clone();
        let answer = Answer::new(
            move |result: Option<openraft::raft::ClientWriteResult<Types>>| {
                outstanding.bytes.fetch_sub(len, Ordering::AcqRel);
                outstanding.freed.notify_one();
                done(match result {
                    Some(Ok(written)) => Ok(Committed {
                        index: LogIndex(written.log_id.index),
                        applied: written.data,
                    }),
                    Some(Err(ClientWriteError::ForwardToLeader(_))) => Err(ProposeError::NotLeader),
                    Some(Err(_)) | None => Err(journal
                        .poisoned()
                        .map_or(ProposeError::Stopped, ProposeError::Poisoned)),
                });
            },
        );
        // On an error the library drops the answer, which then reports it.
        let _ = inner.raft.client_write_ff(proposal, Some(answer)).await;
    }

    /// Appends one frame and waits for its answer.
    pub async fn propose_and_wait(&self, payload: Bytes) -> Result<Committed, ProposeError> {
        let (send, receive) = oneshot::channel();
        self.propose(payload, move |result| {
            let _ = send.send(result);
        })
        .await;
        receive.await.unwrap_or(Err(ProposeError::Stopped))
    }

    async fn room_for(&self, len: usize) {
        let outstanding = &self.inner.outstanding;
        loop {
            let before = outstanding.bytes.load(Ordering::Acquire);
            if before == 0 || before + len <= self.inner.options.outstanding_bytes {
                outstanding.bytes.fetch_add(len, Ordering::AcqRel);
                return;
            }
            outstanding.freed.notified().await;
        }
    }

    /// Reads payload bytes by position, from memory without a copy or else from disk.
    pub fn read(&self, position: Position, len: usize) -> Result<Bytes, ReadError> {
        self.inner.journal.read(position, len)
    }

    /// The journal, for readers on other threads.
    pub fn journal(&self) -> &Journal {
        &self.inner.journal
    }

    /// Why the shard stopped, if it did: nothing can be proposed any more.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.inner.journal.poisoned()
    }

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
            self.inner.uncovered.store(index.0 + 1, Ordering::Release);
        }
        Ok(written)
    }

    /// Gives up what is `dead` (ascending ranges) below the frame `through`, which a checkpoint covers: nothing
    /// that any kept checkpoint or the state refers to may lie there. See [`Journal::give_back`].
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

    /// Runs `work` with the state machine, between two frames, on the runtime's thread.
    pub async fn with_state<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, CheckpointError> {
        self.with_machine(|machine| work(machine.state())).await
    }

    async fn with_machine<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Machine<S>) -> T + Send + 'static,
    ) -> Result<T, CheckpointError> {
        let done = self.inner.raft.with_state_machine(move |machine| {
            let result = work(machine);
            Box::pin(async move { result })
        });
        done.await.map_err(|_| CheckpointError::Stopped)
    }

    /// Counters.
    pub fn stats(&self) -> GroupStats {
        GroupStats {
            journal: self.inner.journal.stats(),
            checkpoint: self.inner.checkpoints.stats(),
            outstanding_bytes: self.inner.outstanding.bytes.load(Ordering::Relaxed),
            tail_bytes: self.inner.journal.tail_bytes(),
            tier: self.inner.journal.tier_counts(),
        }
    }

    /// Stops the group: proposals under way are answered or failed, the journal is closed and the
    /// lock given back.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        // A checkpoint under way is finished: nobody may write into the folder once the lock is free.
        let _no_checkpoint = inner.checkpointing.lock().await;
        inner.checkpoints.stop_folding();
        if let Some(folder) = inner.journal.folder() {
            folder.stop();
        }
        let stop =
            DeterministicRng::<TokioRuntime>::scope(inner.options.seed, inner.raft.shutdown());
        if let Err(error) = stop.await {
            tracing::warn!(group = inner.options.name, %error, "the consensus task ended badly");
        }
        let (send, receive) = oneshot::channel();
        inner.journal.close(Box::new(move |_| {
            let _ = send.send(());
        }));
        let _ = receive.await;
        inner.journal.join();
        inner
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}

/// Takes the lock of a folder, or says who holds it.
pub fn take_lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn DiskLock>, OpenError> {
    let path = dir.join(LOCK_NAME);
    match disk.lock(&path) {
        Ok(lock) => Ok(lock),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(OpenError::Locked {
            path: dir.to_owned(),
            holder: error.to_string(),
        }),
        Err(source) => Err(OpenError::Io { path, source }),
    }
}
