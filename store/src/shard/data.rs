//! One data shard as others see it: streams, sessions and their messages.
//!
//! Owns: what it is made with, starting and ending it, handing requests in, its counters. Never decides what a request
//! means. Read next: [`actor`] (what runs on its thread), [`saving`] (its checkpoints).

mod actor;
mod saving;

use super::cell::Machine;
use super::inbox::Inbox;
use super::space::{JournalLimit, Shortage};
use super::thread::{self, ShardStartError};
use crate::clock::Clock;
use crate::disk::Disk;
use crate::group::{Group, GroupOptions, GroupStats};
use actor::Actor;
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::{ShardId, WorkerId};
use anabranch_core::port::{ShardEvent, ShardPort, ShardRequest, WorkerPort};
use anabranch_core::shard::ShardSetup;
use rustc_hash::FxHashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

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
