//! The host of one data shard: streams, sessions and their messages.
//!
//! Owns: the thread, the frames (all that waits, up to [`FRAME_BYTES`], no linger), what happens
//! when the disk is nearly full or the journal fails, when to write a checkpoint. Never decides what
//! a request means. Everything here runs on the shard's own thread: its lock is never contended.
//! Read next: [`anabranch_core::shard`], [`crate::group`].

use super::attempts::Attempts;
use super::bodies::JournalBodies;
use super::cell::{Cell, Machine, SharedCell, lock};
use super::inbox::Inbox;
use super::ledger::Ledger;
use super::space::{JournalLimit, Shortage, Watch};
use super::thread::{self, ShardStartError};
use super::{Clocks, FRAME_BYTES, SMALL_FRAMES_UNDER_WAY};
use crate::clock::Clock;
use crate::disk::Disk;
use crate::group::{CheckpointError, Group, GroupOptions, GroupStats};
use crate::journal::GivenBack;
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::{LogIndex, MonotonicMs, Now, Position, ShardId, WorkerId};
use anabranch_core::port::{ShardEvent, ShardPort, ShardRequest, WorkerPort};
use anabranch_core::shard::{Shard, ShardSetup};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A checkpoint is written, however little the journal has grown, when so much has changed that none has: what is
/// changed and not saved is in memory.
const UNSAVED_BYTES_MAX: usize = 64 << 20;

/// Turns of the tasks that share this thread between two rounds that hand out history: from the disk's answer to the
/// end of a frame there are about so many steps of theirs.
const TURNS: usize = 4;
/// Longest wait between two rounds, in milliseconds.
const IDLE_ROUND_MS: u64 = 500;

/// Where workers' events go.
pub type WorkerPorts = Vec<(WorkerId, Arc<dyn WorkerPort>)>;

/// What a data shard is made with.
pub struct DataShardSetup {
    /// Directory of its group.
    pub dir: PathBuf,
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// How its group is kept.
    pub options: GroupOptions,
    /// Core's part.
    pub shard: ShardSetup,
    /// All workers that may ask it.
    pub workers: WorkerPorts,
    /// Publishes are refused while the disk has less room than this, in bytes.
    pub low_water_bytes: u64,
    /// And while the files of the data folder take nearly as much as this allows.
    pub limit: Option<JournalLimit>,
    /// A checkpoint is written when the journal has grown by this many bytes.
    pub checkpoint_bytes: u64,
}

pub(super) type Batch = (WorkerId, Vec<ShardRequest>);

/// A running data shard; the thread ends with [`DataShard::shutdown`].
pub struct DataShard {
    id: ShardId,
    inbox: Arc<Inbox<Batch>>,
    workers: FxHashMap<WorkerId, Arc<dyn WorkerPort>>,
    group: Group<Machine>,
    shortage: Arc<Mutex<Option<Shortage>>>,
    index: Arc<IndexCounters>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl std::fmt::Debug for DataShard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataShard")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl DataShard {
    /// Opens the shard on a thread of its own; returns once it has replayed its journal.
    pub fn start(setup: DataShardSetup) -> Result<DataShard, ShardStartError> {
        let name = format!("shard-{}", setup.shard.id);
        let (shard, thread) = thread::start(name, |report| async move {
            match Actor::open(setup).await {
                Ok((actor, handle)) => {
                    let _ = report.send(Ok(handle));
                    actor.run().await;
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            }
        })?;
        *shard.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(shard)
    }

    /// Opens the shard as a task of the current runtime: for simulations.
    pub async fn start_local(setup: DataShardSetup) -> Result<DataShard, ShardStartError> {
        let (actor, handle) = Actor::open(setup).await?;
        let (send, receive) = oneshot::channel();
        *handle.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(receive);
        tokio::spawn(async move {
            actor.run().await;
            let _ = send.send(());
        });
        Ok(handle)
    }

    /// Which shard.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Counters of its group.
    pub fn stats(&self) -> GroupStats {
        self.group.stats()
    }

    /// Why it stopped, if it did.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.group.poisoned()
    }

    /// Why publishes are refused, when they are for want of room.
    pub fn shortage(&self) -> Option<Shortage> {
        *self.shortage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has in memory of its index file, and what it could not read of it.
    pub fn index(&self) -> IndexStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IndexStats {
            cached_bytes: of(&self.index.cached_bytes),
            evicted: of(&self.index.evicted),
            damaged: of(&self.index.damaged),
        }
    }

    /// Finishes what waits, writes a checkpoint and ends; blocks until then. For a shard on a thread.
    pub fn shutdown(&self) {
        self.inbox.stop();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(shard = self.id.0, "the shard's thread panicked");
        }
    }

    /// The same for [`DataShard::start_local`].
    pub async fn shutdown_local(&self) {
        self.inbox.stop();
        let ended = self
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(ended) = ended {
            let _ = ended.await;
        }
    }
}

impl ShardPort for DataShard {
    fn send(&self, from: WorkerId, requests: Vec<ShardRequest>) {
        let Err((from, requests)) = self.inbox.push((from, requests)) else {
            return;
        };
        let Some(port) = self.workers.get(&from) else {
            return;
        };
        let outcome = PublishOutcome::Refused(ErrorKind::ShuttingDown);
        let mut events = Vec::new();
        for request in requests {
            match request {
                ShardRequest::Publish { sequence, .. } if sequence.0 != 0 => {
                    events.push(ShardEvent::Published {
                        first: sequence,
                        last: sequence,
                        outcome,
                    });
                }
                ShardRequest::Ask { ticket, .. } => {
                    events.push(ShardEvent::Reply {
                        ticket,
                        result: Err(super::shutting_down()),
                    });
                }
                _ => {}
            }
        }
        if !events.is_empty() {
            port.send(self.id, events);
        }
    }
}

/// Entries of streams, as far as they lie in the index file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct IndexStats {
    /// Bytes of memory that those take which are at hand.
    pub cached_bytes: u64,
    /// Chunks of them that left memory for want of room since opening.
    pub evicted: u64,
    /// Chunks of them that could not be read since opening; their messages are set aside.
    pub damaged: u64,
}

#[derive(Debug, Default)]
struct IndexCounters {
    cached_bytes: AtomicU64,
    evicted: AtomicU64,
    damaged: AtomicU64,
}

/// What a frame's answer changes.
#[derive(Debug, Default)]
struct Progress {
    frames_under_way: AtomicUsize,
    failed: AtomicBool,
}

struct Actor {
    cell: SharedCell,
    inbox: Arc<Inbox<Batch>>,
    group: Group<Machine>,
    clocks: Clocks,
    progress: Arc<Progress>,
    checkpointing: Arc<AtomicBool>,
    covered: Arc<Covered>,
    /// Something has come from the disk or from the object store.
    arrived: Arc<AtomicBool>,
    /// The last checkpoint gave room back.
    relieved: Arc<AtomicBool>,
    shortage: Arc<Mutex<Option<Shortage>>>,
    index: Arc<IndexCounters>,
    watch: Watch,
    dir: PathBuf,
    checkpoint_bytes: u64,
    checkpoint_at: u64,
    /// Bytes of the journal when a checkpoint was begun last.
    tried_at: u64,
    told_failure: bool,
    attempts: Arc<Mutex<Attempts>>,
}

impl Actor {
    async fn open(setup: DataShardSetup) -> Result<(Actor, DataShard), ShardStartError> {
        let inbox = Arc::new(Inbox::default());
        let clocks = Clocks::new(setup.clock.clone());
        let workers: FxHashMap<_, _> = setup.workers.into_iter().collect();
        let id = setup.shard.id;
        let cell = Arc::new(Mutex::new(Cell {
            shard: Shard::new(setup.shard),
            bodies: None,
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
            covered: Arc::default(),
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

    async fn run(mut self) {
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
            && let Err(error) = self.group.checkpoint_now().await
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

    fn checkpoint_when_due(&mut self) {
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
type Covered = Mutex<Option<(Vec<(Position, Position)>, LogIndex)>>;

/// Writes a checkpoint, and gives up what was dead at the one before it.
async fn checkpoint_and_give_back(
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
