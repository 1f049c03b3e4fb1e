//! The journal of one shard: an append-only sequence of frames in segment files.
//!
//! Owns: placement of frames, the tail in memory, reading by log index and by position, cutting and
//! releasing. Never interprets a payload; never waits for the disk while appending. Read next:
//! [`frame`] (the layout), [`writer`] (how bytes become durable), [`recovery`] (how they come back),
//! [`reader`] and [`spot`] (where a read is served from), [`ahead`] (who reads for readers), [`held`] (what it read),
//! [`crate::raft`] (who appends).
//!
//! A **position** counts logical bytes from the journal's beginning: the logical frames one after
//! the other, without this replica's envelopes, so it means the same on every replica.

mod ahead;
pub mod error;
mod evidence;
mod files;
pub mod frame;
mod gather;
mod held;
mod holes;
mod inventory;
mod keeper;
mod manifest;
pub(crate) mod mend;
pub mod meta;
mod opened;
pub mod pack;
mod placement;
mod queue;
mod reader;
mod recovery;
mod released;
mod room;
mod segment;
mod spares;
mod spot;
mod stats;
pub(crate) mod survey;
mod table;
mod tail;
mod tiered;
mod tiering;
mod unreadable;
mod walks;
mod window;
mod writer;

pub use error::{OpenError, ReadError, WriteError};
pub use frame::{Frame, FrameKind};
pub use manifest::{Checked, Extent, Manifest, ManifestError, SegmentExtents};
pub use meta::{FrameId, VoteRecord};
pub use pack::{Compression, Packing};
pub use queue::WriterMode;
pub use room::GivenBack;
pub use stats::JournalStats;
pub(crate) use tiering::Movable;
pub use tiering::{TierCounts, TierPlace};
pub use writer::Completion;

use crate::disk::Disk;
use crate::tier::Folder;
use ahead::Ahead;
use anabranch_core::id::{LogIndex, Position};
use keeper::{Covered, Job};
use opened::Opened;
use placement::Shared;
use queue::{Queue, Running};
use recovery::{Told, recover};
use spot::Reading;
use stats::Health;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tail::Tail;
use tiered::Catalogue;
use unreadable::Unreadable;
use writer::{Op, Writer, WriterStart};

/// How a journal is kept.
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// Length of a segment file in bytes. The first ones are shorter; a larger frame gets a file of
    /// its own size.
    pub segment_bytes: u64,
    /// Bytes of recent frames kept in memory beyond those that must be.
    pub tail_bytes: usize,
    /// Where the writer runs.
    pub writer: WriterMode,
    /// The log index of the checkpoint that the owner has: frames up to it must be there, and their
    /// payloads are not read again at opening.
    pub checkpoint: Option<LogIndex>,
    /// How frames are packed.
    pub packing: Packing,
    /// Where sealed segments go, if they go anywhere.
    pub tier: Option<TierPlace>,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 * 1024 * 1024,
            tail_bytes: 16 * 1024 * 1024,
            writer: WriterMode::Thread,
            checkpoint: None,
            packing: Packing::default(),
            tier: None,
        }
    }
}

/// The last frame that the journal in `dir` gave up, as far as its meta file can be read.
pub(crate) fn purged(disk: &dyn Disk, dir: &Path) -> io::Result<Option<LogIndex>> {
    let meta = meta::Slots::look(disk, dir)?.and_then(|slots| slots.meta());
    Ok(meta.and_then(|meta| meta.purged).map(|purged| purged.index))
}

/// A handle to the journal; clones share it and may read from any thread.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    options: JournalOptions,
    queue: Arc<Queue>,
    health: Arc<Health>,
    shared: Arc<Mutex<Shared>>,
    /// Packed frames that were opened last.
    opened: Opened,
    folder: Option<Arc<Folder>>,
    unreadable: Unreadable,
    ahead: Ahead,
    running: Mutex<Option<Running>>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("dir", &self.inner.dir)
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal in `dir`, which exists and is locked by the caller, and starts its writer.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: JournalOptions,
    ) -> Result<Journal, OpenError> {
        let checkpoint_end = options.checkpoint.map_or(0, |index| index.0 + 1);
        let told = Told {
            segment_bytes: options.segment_bytes.max(segment::SEGMENT_HEADER_BYTES * 2),
            trusted_end: checkpoint_end,
            must_reach: checkpoint_end,
            sealing: options.packing.sealing.clone(),
            tier: options.tier.clone(),
            lose_synced: false,
        };
        let found = recover(&*disk, dir, &told)?;
        let folder = found.folder;
        let catalogue = match (found.catalogue, &folder) {
            (Some(catalogue), _) => catalogue,
            (None, None) => Catalogue::default(),
            // Its name is durable before anything goes there.
            (None, Some(folder)) => {
                let new = Catalogue::new(folder.identity());
                new.write(&*disk, dir).map_err(OpenError::io(dir))?;
                new
            }
        };
        let health = Arc::new(Health::default());
        health.set_synced_end(found.next_index.0);
        let queue = Arc::new(Queue::default());
        let newest = found.segments.back();
        let newest_base = newest.map_or(Position(0), |newest| newest.base);
        let shared = Arc::new(Mutex::new(Shared {
            segments: found.segments,
            released: found.released,
            tail: Tail::default(),
            meta: found.meta,
            last: found.last,
            next_index: found.next_index,
            end: found.end,
            applied_end: checkpoint_end,
            committed: found.committed,
            seals: told.sealing.current().is_some(),
            reading: Reading::new(health.clone()),
        }));
        let writer = Writer::new(WriterStart {
            disk,
            dir: dir.to_owned(),
            meta: found.meta_file,
            written: found.meta,
            chain: found.chain,
            current: found.current,
            end_index: found.next_index.0,
            segment_bytes: told.segment_bytes,
            background: options.writer == WriterMode::Thread,
            health: health.clone(),
            newest_base,
            missing_tables: found.missing_tables,
            catalogue,
            folder: folder.clone(),
            unfinished: found.unfinished,
            packing: options.packing.clone(),
            shared: shared.clone(),
        });
        let running = queue::start("journal-writer", queue.clone(), writer, options.writer)
            .map_err(OpenError::io(dir))?;
        let ahead = Ahead::new(shared.clone(), options.writer == WriterMode::Thread);
        if found.cut {
            tracing::warn!(dir = %dir.display(), next = found.next_index.0, "a torn tail was cut");
        }
        Ok(Journal {
            inner: Arc::new(Inner {
                dir: dir.to_owned(),
                options,
                queue,
                health,
                shared,
                opened: Opened::default(),
                folder,
                unreadable: Unreadable::default(),
                ahead,
                running: Mutex::new(Some(running)),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.inner
            .shared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends frames that follow the last one; they can be read when this returns, and are durable
    /// when `done` is called with `Ok`. On an error return nothing was appended and `done` is gone.
    pub fn append(&self, frames: Vec<Frame>, done: Completion) -> Result<(), WriteError> {
        if let Some(cause) = self.inner.health.poison() {
            return Err(WriteError::Poisoned(cause));
        }
        let mut shared = self.lock();
        shared.check_order(&frames)?;
        let mut ops = Vec::with_capacity(frames.len() + 2);
        self.inner.health.appended(frames.len() as u64);
        for frame in frames {
            if let Some(roll) = shared.place(&frame, self.inner.options.segment_bytes) {
                ops.push(roll);
                // Should its file go missing, recovery knows that there was one.
                ops.push(Op::Meta(shared.meta));
            }
            ops.push(Op::Frame(frame));
        }
        ops.push(Op::Done(done));
        let needed_from = shared.applied_end.min(self.inner.health.synced_end());
        shared
            .tail
            .evict(self.inner.options.tail_bytes, needed_from);
        // Queued under the lock, so that the queue's order is the journal's order.
        self.inner.queue.push(ops);
        Ok(())
    }

    /// Makes a vote durable.
    pub fn save_vote(&self, vote: VoteRecord, done: Completion) {
        let mut shared = self.lock();
        shared.meta.vote = Some(vote);
        self.inner
            .queue
            .push([Op::Meta(shared.meta), Op::Done(done)]);
    }

    /// The last vote given to [`Journal::save_vote`].
    pub fn vote(&self) -> Option<VoteRecord> {
        self.lock().meta.vote
    }

    /// Drops every frame after `keep` (`None`: every frame). What was applied must not be dropped.
    pub fn truncate_after(
        &self,
        keep: Option<LogIndex>,
        done: Completion,
    ) -> Result<(), WriteError> {
        let mut shared = self.lock();
        let first = shared
            .segments
            .front()
            .map_or(0, |segment| segment.first_index.0);
        let from = keep.map_or(first, |keep| keep.0 + 1);
        if from >= shared.next_index.0 {
            self.inner.queue.push([Op::Done(done)]);
            return Ok(());
        }
        let term = keep.and_then(|keep| {
            shared
                .term_of(keep)
                .or_else(|| self.term_on_disk(&shared, keep))
        });
        let cut = shared.cut(&self.inner.dir, from, term)?;
        self.inner.opened.clear();
        self.inner.queue.push([Op::Cut(cut), Op::Done(done)]);
        Ok(())
    }

    /// Moves the purge pointer: frames up to `id` are no longer part of the log. Their bytes stay
    /// until [`Journal::give_back`].
    pub fn purge(&self, id: FrameId, done: Completion) -> Result<(), WriteError> {
        let mut shared = self.lock();
        if id.index >= shared.next_index {
            return Err(WriteError::OutOfRange(id.index));
        }
        let before = shared.meta.purged.filter(|purged| purged.index > id.index);
        let purged = before.unwrap_or(id);
        shared.meta.purged = Some(purged);
        self.inner.queue.push([Op::Purge(purged, done)]);
        Ok(())
    }

    /// Tells that a checkpoint covers the frames up to `through`. Where those lie that are in the newest segment is
    /// written down by and by, so that the next opening need not read them to know.
    pub fn cover(&self, through: LogIndex) {
        let shared = self.lock();
        let newest = shared.segments.back();
        let covered = newest.and_then(|newest| {
            Some(Covered {
                base: newest.base,
                file: newest.file.get()?.clone(),
                frames: newest.table_through(through)?,
                epoch: shared.meta.epoch,
            })
        });
        if let Some(covered) = covered {
            // Queued under the lock: the side file of the full segment comes after it.
            self.inner.queue.push([Op::Keep(Job::Covered(covered))]);
        }
    }

    /// The purge pointer.
    pub fn purged(&self) -> Option<FrameId> {
        self.lock().meta.purged
    }

    /// Says whether the disk is nearly full: then released files are given back to it rather than kept to
    /// be used again.
    pub fn set_tight(&self, tight: bool) {
        self.inner.health.set_tight(tight);
    }

    /// Tells how far the state machine has applied: later frames stay in memory.
    pub fn set_applied(&self, applied: LogIndex) {
        let mut shared = self.lock();
        shared.applied_end = shared.applied_end.max(applied.0 + 1);
    }

    /// Tells how far the group has committed; written into no frame by itself.
    pub fn set_committed(&self, committed: LogIndex) {
        let mut shared = self.lock();
        shared.committed = shared.committed.max(committed);
    }

    /// The highest committed index that is known: told, or found in a frame at opening.
    pub fn committed(&self) -> LogIndex {
        self.lock().committed
    }

    /// Identity of the last frame, `None` when there never was one.
    pub fn last(&self) -> Option<FrameId> {
        self.lock().last
    }

    /// The first position after the last frame.
    pub fn end(&self) -> Position {
        self.lock().end
    }

    /// First log index that is not on stable storage here.
    pub fn synced_end(&self) -> LogIndex {
        LogIndex(self.inner.health.synced_end())
    }

    /// Why the journal stopped, if it did.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.inner.health.poison()
    }

    /// Whether there was no room for the next segment: new messages should be refused. The writer tries
    /// again by itself.
    pub fn no_space(&self) -> bool {
        self.inner.health.no_space()
    }

    /// Whom to tell, on the writer's thread, when that changes.
    pub fn on_space(&self, tell: impl Fn() + Send + Sync + 'static) {
        self.inner.health.on_space(tell);
    }

    /// Counters since opening.
    pub fn stats(&self) -> JournalStats {
        self.inner.health.stats()
    }

    /// Bytes of frames that the tail holds in memory.
    pub fn tail_bytes(&self) -> usize {
        self.lock().tail.held_bytes()
    }

    /// Notes in the meta file how far the disk is, so that a later loss of the last frames is told
    /// from a torn write, and ends the writer. `done` is called when that is durable.
    pub fn close(&self, done: Completion) {
        let shared = self.lock();
        self.inner
            .queue
            .push([Op::Meta(shared.meta), Op::Done(done)]);
        drop(shared);
        self.inner.queue.close();
    }

    /// Waits for the writer's thread after [`Journal::close`], and for the one that reads; returns at once for a
    /// local writer.
    pub fn join(&self) {
        self.inner.ahead.end();
        let running = self
            .inner
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(Running::Thread(thread)) = running
            && thread.join().is_err()
        {
            tracing::error!(dir = %self.inner.dir.display(), "the journal's writer panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
    }
}

#[cfg(test)]
mod tests;
