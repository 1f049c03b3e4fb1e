//! What runs on a data shard's own thread: its lock is never contended.
//!
//! Owns: the rounds, the frames (all that waits, up to [`FRAME_BYTES`], no linger), what happens when the disk is nearly
//! full or the journal fails. Never decides what a request means.
//! Read next: [`anabranch_core::shard`], [`crate::group`], [`super::saving`] (when a checkpoint is written).

use super::saving::{Covered, checkpoint_and_give_back, covered_at_start};
use super::{Batch, DataShard, DataShardSetup, IndexCounters};
use crate::group::Group;
use crate::shard::attempts::Attempts;
use crate::shard::bodies::JournalBodies;
use crate::shard::cell::{Cell, Machine, SharedCell, lock};
use crate::shard::inbox::Inbox;
use crate::shard::ledger::Ledger;
use crate::shard::space::{Shortage, Watch};
use crate::shard::thread::ShardStartError;
use crate::shard::{Clocks, FRAME_BYTES, SMALL_FRAMES_UNDER_WAY};
use anabranch_core::id::{MonotonicMs, Now};
use anabranch_core::shard::Shard;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

/// Turns of the tasks that share this thread between two rounds that hand out history: from the disk's answer to the
/// end of a frame there are about so many steps of theirs.
const TURNS: usize = 4;
/// Longest wait between two rounds, in milliseconds.
const IDLE_ROUND_MS: u64 = 500;

/// What a frame's answer changes.
#[derive(Debug, Default)]
struct Progress {
    frames_under_way: AtomicUsize,
    failed: AtomicBool,
}

pub(super) struct Actor {
    pub(super) cell: SharedCell,
    pub(super) inbox: Arc<Inbox<Batch>>,
    pub(super) group: Group<Machine>,
    clocks: Clocks,
    progress: Arc<Progress>,
    pub(super) checkpointing: Arc<AtomicBool>,
    pub(super) covered: Arc<Covered>,
    /// Something has come from the disk or from the object store.
    arrived: Arc<AtomicBool>,
    /// The last checkpoint gave room back.
    pub(super) relieved: Arc<AtomicBool>,
    shortage: Arc<Mutex<Option<Shortage>>>,
    index: Arc<IndexCounters>,
    watch: Watch,
    dir: PathBuf,
    pub(super) checkpoint_bytes: u64,
    pub(super) checkpoint_at: u64,
    /// Bytes of the journal when a checkpoint was begun last.
    pub(super) tried_at: u64,
    told_failure: bool,
    pub(super) attempts: Arc<Mutex<Attempts>>,
}

impl Actor {
    pub(super) async fn open(setup: DataShardSetup) -> Result<(Actor, DataShard), ShardStartError> {
        let inbox = Arc::new(Inbox::default());
        let clocks = Clocks::new(setup.clock.clone());
        let workers: FxHashMap<_, _> = setup.workers.into_iter().collect();
        let id = setup.shard.id;
        let cell = Arc::new(Mutex::new(Cell {
            shard: Shard::new(setup.shard),
            bodies: None,
            replayed: false,
            ledger: Ledger::default(),
            workers: workers.clone(),
            clocks: clocks.clone(),
        }));
        let machine = Machine {
            cell: cell.clone(),
            inbox: inbox.clone(),
        };
        let opened = Group::open(
            &setup.dir,
            setup.disk.clone(),
            setup.clock,
            match &setup.limit {
                Some(limit) => limit.fit(setup.options),
                None => setup.options,
            },
            machine,
        );
        let group = opened.await?;
        let covered = covered_at_start(&group, &cell);
        {
            let mut cell = lock(&cell);
            cell.bodies = Some(JournalBodies::new(group.journal().clone()));
            cell.shard.begin();
        }
        // Publishers are told at once, whoever calls next.
        let wake = inbox.clone();
        group.journal().on_space(move || wake.wake());
        let arrived = Arc::new(AtomicBool::new(false));
        {
            let (arrived, inbox) = (arrived.clone(), inbox.clone());
            group.journal().on_arrival(move || {
                arrived.store(true, Ordering::Release);
                inbox.wake();
            });
        }
        if let Some(folder) = group.journal().folder() {
            folder.start(group.journal().clone());
        }
        let shortage = Arc::new(Mutex::new(None));
        let index = Arc::new(IndexCounters::default());
        let usual = setup.checkpoint_bytes;
        let limit = setup.limit.as_ref();
        let checkpoint_bytes = limit.map_or(usual, |limit| limit.checkpoint_bytes(usual));
        let handle = DataShard {
            id,
            inbox: inbox.clone(),
            workers,
            group: group.clone(),
            shortage: shortage.clone(),
            index: index.clone(),
            thread: Mutex::new(None),
            ended: Mutex::new(None),
        };
        let actor = Actor {
            cell,
            inbox,
            clocks,
            progress: Arc::default(),
            checkpointing: Arc::default(),
            covered: Arc::new(covered),
            arrived,
            relieved: Arc::default(),
            shortage,
            index,
            watch: Watch::new(
                setup.disk,
                setup.dir.clone(),
                setup.low_water_bytes,
                setup.limit,
            ),
            dir: setup.dir,
            checkpoint_bytes: checkpoint_bytes.max(1),
            checkpoint_at: group.journal().stats().bytes + checkpoint_bytes,
            tried_at: 0,
            told_failure: false,
            attempts: Arc::default(),
            group,
        };
        Ok((actor, handle))
    }

    pub(super) async fn run(mut self) {
        let mut batches = Vec::new();
        loop {
            let stopping = self.inbox.take(&mut batches);
            let worked = !batches.is_empty();
            let frames = self.round(&mut batches, stopping);
            let proposed = !frames.is_empty();
            for frame in frames {
                self.propose(frame).await;
            }
            self.look_at_index();
            self.checkpoint_when_due();
            if worked || proposed {
                // The consensus tasks share this thread.
                tokio::task::yield_now().await;
                continue;
            }
            if stopping && self.progress.frames_under_way.load(Ordering::Acquire) == 0 {
                break;
            }
            let at = self.wake_at();
            if at > Instant::now() {
                let _ = tokio::time::timeout_at(at, self.inbox.woken()).await;
                continue;
            }
            // Readers of history always have more to do: a time that has passed would be waited for without a turn
            // for anybody else.
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
        }
        if !self.has_failed()
            && let Err(error) =
                checkpoint_and_give_back(&self.group, &self.cell, &self.covered, &self.attempts)
                    .await
        {
            tracing::warn!(dir = %self.dir.display(), %error, "no checkpoint at the end");
        }
        self.group.shutdown().await;
    }

    /// When to look again though nobody calls. What is due but may not be proposed now waits for a
    /// frame to be answered, which calls.
    fn wake_at(&self) -> Instant {
        let now = self.clocks.now().monotonic;
        let idle = now.after(IDLE_ROUND_MS);
        let under_way = self.progress.frames_under_way.load(Ordering::Acquire);
        let at = if self.has_failed() || under_way >= SMALL_FRAMES_UNDER_WAY {
            idle
        } else {
            lock(&self.cell).shard.poll_timeout().min(idle)
        };
        self.clocks.at(at)
    }

    fn has_failed(&self) -> bool {
        self.progress.failed.load(Ordering::Acquire)
    }

    /// Handles everything that waits; gives the frames to propose.
    fn round(&mut self, batches: &mut Vec<Batch>, stopping: bool) -> Vec<Bytes> {
        let now = self.clocks.now();
        self.check_space(now);
        let failed = self.has_failed();
        let mut frames = Vec::new();
        let mut cell = lock(&self.cell);
        let Cell {
            shard,
            bodies: Some(bodies),
            ledger,
            workers,
            ..
        } = &mut *cell
        else {
            return frames;
        };
        if failed && !self.told_failure {
            self.told_failure = true;
            for (worker, events) in ledger.fail_all() {
                if let Some(port) = workers.get(&worker) {
                    port.send(shard.id(), events);
                }
            }
        }
        if self.arrived.swap(false, Ordering::AcqRel) {
            shard.arrived(now, bodies);
        }
        for (from, mut requests) in batches.drain(..) {
            if failed {
                shard.fail(&mut requests, from);
                continue;
            }
            ledger.asked(from, &requests);
            shard.handle(now, from, &mut requests, bodies);
            if shard.pending_bytes() >= FRAME_BYTES {
                frames.extend(shard.take_frame(now));
            }
        }
        if now.monotonic >= shard.poll_timeout() {
            shard.timeout(now);
        }
        cell.tell(now);
        let under_way = self.progress.frames_under_way.load(Ordering::Acquire) + frames.len();
        if !failed && (stopping || under_way < SMALL_FRAMES_UNDER_WAY) {
            // At the end settlements do not wait for company.
            let linger_over = MonotonicMs(u64::MAX);
            let at = if stopping {
                Now {
                    monotonic: linger_over,
                    ..now
                }
            } else {
                now
            };
            frames.extend(cell.shard.take_frame(at));
        }
        frames
    }

    async fn propose(&self, frame: Bytes) {
        self.progress
            .frames_under_way
            .fetch_add(1, Ordering::AcqRel);
        let progress = self.progress.clone();
        let inbox = self.inbox.clone();
        let done = move |result: Result<_, _>| {
            progress.frames_under_way.fetch_sub(1, Ordering::AcqRel);
            // All frames under way fail together; the first says it for them.
            if let Err(error) = result
                && !progress.failed.swap(true, Ordering::AcqRel)
            {
                tracing::error!(%error, "a frame was not confirmed: the shard stops");
            }
            inbox.wake();
        };
        self.group.propose(frame, done).await;
    }

    fn check_space(&mut self, now: Now) {
        let written = self.group.journal().stats().bytes;
        let journal = self.group.journal();
        let relieved = self.relieved.swap(false, Ordering::AcqRel);
        let Some(looked) = self.watch.look(now, written, journal, relieved) else {
            return;
        };
        journal.set_tight(looked.tight);
        let before = std::mem::replace(
            &mut *self.shortage.lock().unwrap_or_else(PoisonError::into_inner),
            looked.shortage,
        );
        match (before, looked.shortage) {
            (None, Some(why)) => {
                // Publishes are parked by the workers then; everything that frees room goes on.
                lock(&self.cell).shard.set_room(false);
                tracing::warn!(dir = %self.dir.display(), "publishing stops: {why}");
            }
            (Some(_), None) => {
                lock(&self.cell).shard.set_room(true);
                tracing::warn!(dir = %self.dir.display(), "there is room again: publishing goes on");
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        if looked.relieve {
            // Room comes from checkpoints, and what was dead in the one before the newest is what can go:
            // so each needs a frame above the last.
            lock(&self.cell).shard.nudge();
            self.checkpoint_at = 0;
        }
    }

    /// Says what cannot be read of the index file, once for all that was met in a round.
    fn look_at_index(&self) {
        let mut cell = lock(&self.cell);
        let cached = cell.shard.cached();
        let (bytes, index) = (cached.bytes as u64, &self.index);
        index.cached_bytes.store(bytes, Ordering::Relaxed);
        index.evicted.store(cached.evicted, Ordering::Relaxed);
        if let Some(damaged) = cell.shard.damaged() {
            index.damaged.fetch_add(damaged.chunks, Ordering::Relaxed);
            tracing::error!(
                dir = %self.dir.display(),
                stream = damaged.stream.0,
                name = %damaged.name,
                offset = damaged.offset,
                chunks = damaged.chunks,
                "entries cannot be read: their blocks of the index file are damaged; messages from this offset on are \
                 set aside, at most 255 for each chunk, and the rest of the stream goes on"
            );
        }
    }
}
