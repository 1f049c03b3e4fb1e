//! The writer: the only code that changes a journal's files after recovery.
//!
//! Owns: group commit (all that waits becomes one gathered write and one sync), the order of votes
//! and frames, the poisoned state. Never answers before the bytes are synced; never retries a failed disk
//! operation. Read next: [`op`], [`segments`], [`super::queue`] (how it is fed and where it runs).

mod op;
mod segments;

pub use op::Completion;
pub(crate) use op::{Cut, Op, Roll};

use super::error::WriteError;
use super::frame::{Frame, Link, encode_head};
use super::gather::Gather;
use super::keeper::{Job, Keeper, Place};
use super::meta::{Meta, MetaFile};
use super::pack::{Packer, Packing};
use super::placement::{Shared, StoredLen};
use super::room::{GiveBack, Punch};
use super::spares::Spares;
use super::stats::Health;
use super::table::SideTable;
use super::tiered::Catalogue;
use crate::disk::{Disk, DiskFile};
use crate::seal::{Sealer, Sealing};
use crate::tier::Folder;
use anabranch_core::id::Position;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes gathered before they are written without waiting for the rest of the batch.
const GATHER_BYTES: usize = 16 * 1024 * 1024;

/// The segment being written.
pub(crate) struct Current {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) salt: u32,
    pub(crate) offset: u64,
    pub(crate) capacity_bytes: u64,
    /// Seals its frames, if they are to be.
    pub(crate) sealer: Option<Sealer>,
}

/// The writer's state. It is moved to its own thread, or into a local task in a simulation.
pub(crate) struct Writer {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) meta: MetaFile,
    /// What stands in it.
    written: Meta,
    pub(crate) epoch: u32,
    pub(crate) chain: u32,
    pub(crate) current: Current,
    /// First log index not written yet.
    pub(crate) end_index: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) health: Arc<Health>,
    spares: Spares,
    keeper: Keeper,
    gather: Gather,
    unsynced: Vec<Arc<dyn DiskFile>>,
    waiting: Vec<Completion>,
    /// What waits for room: a step to a new segment and all that came after it.
    stalled: VecDeque<Op>,
    /// Base of the newest segment that is durable under its name.
    newest_base: Position,
    sealing: Sealing,
    packer: Packer,
    /// Where frames lie as readers see it, told when a frame is shorter than it was thought to be.
    shared: Arc<Mutex<Shared>>,
    /// What was gathered and is still to be told.
    untold: Vec<StoredLen>,
}

/// What a writer starts from: the state that recovery found.
pub(crate) struct WriterStart {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) meta: MetaFile,
    pub(crate) written: Meta,
    pub(crate) chain: u32,
    pub(crate) current: Current,
    /// First log index not written yet.
    pub(crate) end_index: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) background: bool,
    pub(crate) health: Arc<Health>,
    pub(crate) newest_base: Position,
    /// Side files that sealed segments lack.
    pub(crate) missing_tables: Vec<SideTable>,
    /// What lies in the object store, and this journal's part of it.
    pub(crate) catalogue: Catalogue,
    pub(crate) folder: Option<Arc<Folder>>,
    /// Holes that may not have been punched before a crash.
    pub(crate) unfinished: Vec<Punch>,
    pub(crate) packing: Packing,
    pub(super) shared: Arc<Mutex<Shared>>,
}

impl Writer {
    pub(crate) fn new(start: WriterStart) -> Self {
        let spares = Spares::new(start.disk.clone(), start.dir.clone(), start.background);
        let place = Place {
            disk: start.disk.clone(),
            dir: start.dir.clone(),
            shelf: spares.shelf(),
            health: start.health.clone(),
            segment_bytes: start.segment_bytes,
            folder: start.folder,
        };
        let mut keeper = Keeper::new(place, &start.catalogue, start.background);
        for table in start.missing_tables {
            keeper.give(Job::Table(table));
        }
        keeper.give(Job::GiveBack(GiveBack::finish(start.unfinished)));
        Self {
            disk: start.disk,
            dir: start.dir,
            meta: start.meta,
            epoch: start.written.epoch,
            written: start.written,
            chain: start.chain,
            current: start.current,
            end_index: start.end_index,
            segment_bytes: start.segment_bytes,
            health: start.health,
            spares,
            keeper,
            gather: Gather::default(),
            unsynced: Vec::new(),
            waiting: Vec::new(),
            stalled: VecDeque::new(),
            newest_base: start.newest_base,
            sealing: start.packing.sealing,
            packer: Packer::new(start.packing.compression),
            shared: start.shared,
            untold: Vec::new(),
        }
    }

    /// Does all of `ops` and reports each completion once what stands before it is synced. What needs room
    /// that is not there waits, with all behind it, for the next call.
    pub(crate) fn run(&mut self, ops: &mut Vec<Op>) {
        let stalled = std::mem::take(&mut self.stalled);
        for op in stalled.into_iter().chain(ops.drain(..)) {
            self.take(op);
        }
        if self.health.poison().is_none()
            && let Err(error) = self.settle()
        {
            self.poison(&error);
        }
        self.report();
        if self.health.poison().is_none() {
            self.keeper.work();
            self.prepare_next();
        }
    }

    /// Whether it is to be called again though nothing comes: something waits for room.
    pub(crate) fn wants_room(&self) -> bool {
        self.health.no_space() && self.health.poison().is_none()
    }

    /// The end: what still waits for room is answered that there was none.
    pub(crate) fn finish(&mut self) {
        self.run(&mut Vec::new());
        for op in std::mem::take(&mut self.stalled) {
            if let Op::Done(done) = op {
                done(Err(WriteError::NoRoom));
            }
        }
    }

    fn take(&mut self, op: Op) {
        if self.health.poison().is_some() {
            match op {
                Op::Done(done) | Op::Purge(_, done) | Op::GiveBack(_, done) => {
                    self.waiting.push(done);
                }
                Op::Frame(_) | Op::Roll(_) | Op::Meta(_) | Op::Cut(_) | Op::Keep(_) => {}
            }
            return;
        }
        if !self.stalled.is_empty() && !op.frees_room() {
            self.stalled.push_back(op);
            return;
        }
        if let Err(error) = self.step(op) {
            self.poison(&error);
        }
    }

    fn poison(&mut self, error: &io::Error) {
        tracing::error!(dir = %self.dir.display(), %error, "the journal stops: a disk operation failed");
        self.health.set_poison(error.to_string().into());
        self.gather.clear();
        self.untold.clear();
        self.unsynced.clear();
        self.keeper.drop_waiting();
        for op in std::mem::take(&mut self.stalled) {
            self.take(op);
        }
    }

    fn report(&mut self) {
        let poison = self.health.poison();
        for done in self.waiting.drain(..) {
            done(match &poison {
                Some(cause) => Err(WriteError::Poisoned(cause.clone())),
                None => Ok(()),
            });
        }
    }

    fn step(&mut self, op: Op) -> io::Result<()> {
        match op {
            Op::Frame(frame) => self.gather_frame(&frame),
            Op::Roll(roll) => {
                self.write_gathered()?;
                self.roll(roll)
            }
            // A vote and the frames around it must reach the disk in the order they were asked for.
            Op::Meta(meta) => {
                self.settle()?;
                self.write_meta(meta)
            }
            Op::Purge(id, done) => {
                self.waiting.push(done);
                self.settle()?;
                self.write_meta(Meta {
                    purged: Some(id),
                    ..self.written
                })
            }
            Op::Cut(cut) => {
                self.settle()?;
                self.cut(cut)
            }
            Op::GiveBack(work, done) => {
                self.keeper.give(Job::GiveBack(work));
                self.keeper.give(Job::Done(done));
                self.settle()
            }
            Op::Keep(job) => {
                self.keeper.give(job);
                Ok(())
            }
            Op::Done(done) => {
                self.waiting.push(done);
                Ok(())
            }
        }
    }

    fn gather_frame(&mut self, frame: &Frame) -> io::Result<()> {
        let link = Link {
            salt: self.current.salt,
            epoch: self.epoch,
            prev_crc: self.chain,
            synced_end: self.health.synced_end(),
        };
        let before = self.gather.len;
        let packed = self
            .packer
            .pack(frame, link, self.current.sealer.as_mut())?;
        if let Some(packed) = packed {
            self.gather.push(&packed.head, &packed.body);
            self.chain = packed.crc;
            let stored = (self.gather.len - before) as u64;
            self.health.packed(frame.payload.len() as u64, stored);
            if self.packer.compresses() {
                self.untold.push(StoredLen {
                    index: frame.index,
                    payload: frame.payload.clone(),
                    bytes: stored,
                });
            }
        } else {
            let (head, crc) = encode_head(frame, link);
            self.gather.push(&head, &frame.payload);
            self.chain = crc;
        }
        self.gather.end_index = frame.index.0 + 1;
        if self.gather.len >= GATHER_BYTES {
            self.write_gathered()
        } else {
            Ok(())
        }
    }

    /// Writes what was gathered, without a sync.
    fn write_gathered(&mut self) -> io::Result<()> {
        if self.gather.len == 0 {
            return Ok(());
        }
        let len = self.gather.len as u64;
        self.current
            .file
            .write_at(&mut self.gather.slices(), self.current.offset)?;
        self.health.wrote(len);
        self.current.offset += len;
        self.end_index = self.gather.end_index;
        self.gather.clear();
        self.tell_places();
        if !self
            .unsynced
            .last()
            .is_some_and(|last| Arc::ptr_eq(last, &self.current.file))
        {
            self.unsynced.push(self.current.file.clone());
        }
        Ok(())
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells readers where the frames just written lie, before anybody may look for them there: what is not
    /// synced is read from memory.
    fn tell_places(&mut self) {
        if !self.untold.is_empty() {
            let untold = std::mem::take(&mut self.untold);
            self.shared().settle(self.newest_base, &untold);
        }
    }

    /// Writes and syncs everything so far.
    fn settle(&mut self) -> io::Result<()> {
        self.write_gathered()?;
        for file in std::mem::take(&mut self.unsynced) {
            file.sync()?;
            self.health.did_sync();
        }
        self.health.set_synced_end(self.end_index);
        Ok(())
    }

    fn write_meta(&mut self, mut meta: Meta) -> io::Result<()> {
        meta.synced_end = self.end_index;
        // A segment that still waits for room is not there yet.
        meta.newest_base = self.newest_base.0;
        // What waited for room does not know of a purge that did not wait.
        if meta.purged.map(|id| id.index) < self.written.purged.map(|id| id.index) {
            meta.purged = self.written.purged;
        }
        self.meta.write(&meta)?;
        self.written = meta;
        Ok(())
    }
}
