//! A replicated group: the handle through which a shard appends, reads and checkpoints.
//!
//! Owns: opening (lock, checkpoint, journal, consensus, replay) and shutting down. Never knows what a payload
//! means. Everything of a group but the journal's writer runs on the current-thread runtime of the shard's own
//! thread. Read next: [`propose`], [`cover`], [`crate::raft`], [`crate::journal`].

mod cover;
mod error;
mod propose;

pub use error::{CheckpointError, GroupOpenError, ProposeError, ReleaseError};
pub use propose::Committed;

use crate::checkpoint::{CheckpointOpenError, CheckpointStats, Checkpoints};
use crate::clock::Clock;
use crate::disk::{Disk, DiskLock};
use crate::journal::{
    Journal, JournalOptions, JournalStats, OpenError, Packing, ReadError, TierCounts, TierPlace,
    WriterMode,
};
use crate::raft::{LogStore, Machine, NoPeers, StateMachine, Types, config};
use crate::tier::Tier;
use anabranch_core::id::{LogIndex, Position};
use bytes::Bytes;
use openraft::{BasicNode, Raft};
use openraft_rt::deterministic_rng::DeterministicRng;
use openraft_rt_tokio::TokioRuntime;
use propose::Outstanding;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a group of one may take to lead and to replay before opening is given up.
const START_TIMEOUT: Duration = Duration::from_secs(10 * 60);

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
        let covered_id = standing.as_ref().map(|standing| standing.id);
        let covered = covered_id.map(|id| id.index);
        let uncovered = covered.map_or(0, |index| index.0 + 1);
        // Looked at before the journal, which cannot tell why its frames make no sense then.
        let purged = crate::journal::purged(&*disk, dir).map_err(OpenError::io(dir))?;
        if let Some(purged) = purged.filter(|purged| covered.is_none_or(|index| index < *purged)) {
            return Err(checkpoint_error(CheckpointOpenError::Uncovered { purged }));
        }
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
            LogStore::new(journal.clone(), covered_id),
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
