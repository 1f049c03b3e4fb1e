//! The writer: the only code that changes a journal's files after recovery.
//!
//! Owns: group commit (all that waits becomes one gathered write and one sync), the order of votes
//! and frames, the poisoned state, making the next segment ready. Never answers before the bytes
//! are synced; never retries a failed disk operation. Read next: [`super::queue`] (how it is fed
//! and where it runs), [`super::frame`].

use super::error::WriteError;
use super::files::{drop_tail, install_segment};
use super::frame::{Frame, HEAD_BYTES, Link, decode_head, encode_head};
use super::gather::Gather;
use super::keeper::{Job, Keeper};
use super::meta::{Meta, MetaFile};
use super::placement::Sealed;
use super::segment::{
    FileSlot, SEGMENT_HEADER_BYTES, SegmentFile, SegmentHeader, grown_capacity, salt_of,
    segment_path,
};
use super::spares::Spares;
use super::stats::Health;
use super::table::SideTable;
use crate::disk::{Disk, DiskFile};
use anabranch_core::id::{LogIndex, Position, Term};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Called once the operation is durable, or failed; on the writer's thread.
pub type Completion = Box<dyn FnOnce(Result<(), WriteError>) + Send>;

/// Bytes gathered before they are written without waiting for the rest of the batch.
const GATHER_BYTES: usize = 16 * 1024 * 1024;

/// One step for the writer; steps are done in the order they were queued.
pub(crate) enum Op {
    /// Append a frame to the current segment.
    Frame(Frame),
    /// Go on in a new segment.
    Roll {
        base: Position,
        first_index: LogIndex,
        prev_term: Term,
        capacity_bytes: u64,
        slot: FileSlot,
        /// The segment that ends here, unless it has no frame.
        sealed: Option<Sealed>,
    },
    /// Write the small durable facts.
    Meta(Meta),
    /// Drop every frame from `meta.cut_from`.
    Cut(Cut),
    /// Delete the segments with these bases, or keep one as the next.
    Release(Vec<Position>),
    /// Report when everything before is synced.
    Done(Completion),
}

/// Where to cut, and what is left.
pub(crate) struct Cut {
    pub(crate) meta: Meta,
    /// Segment that becomes the current one.
    pub(crate) slot: FileSlot,
    pub(crate) capacity_bytes: u64,
    pub(crate) end_offset: u64,
    /// Offset of the last frame kept in it; `None` when the segment is left without a frame.
    pub(crate) last_offset: Option<u64>,
    /// Later segments, oldest first.
    pub(crate) dropped: Vec<PathBuf>,
    /// Segments whose side files tell of a life that is over.
    pub(crate) forgotten: Vec<Position>,
}

/// The segment being written.
pub(crate) struct Current {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) salt: u32,
    pub(crate) offset: u64,
    pub(crate) capacity_bytes: u64,
}

/// The writer's state. It is moved to its own thread, or into a local task in a simulation.
pub(crate) struct Writer {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) meta: MetaFile,
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
}

/// What a writer starts from: the state that recovery found.
pub(crate) struct WriterStart {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) meta: MetaFile,
    pub(crate) epoch: u32,
    pub(crate) chain: u32,
    pub(crate) current: Current,
    /// First log index not written yet.
    pub(crate) end_index: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) background: bool,
    pub(crate) health: Arc<Health>,
    /// Side files that sealed segments lack.
    pub(crate) missing_tables: Vec<SideTable>,
}

impl Writer {
    pub(crate) fn new(start: WriterStart) -> Self {
        let spares = Spares::new(start.disk.clone(), start.dir.clone(), start.background);
        let mut keeper = Keeper::new(start.disk.clone(), start.dir.clone(), start.background);
        for table in start.missing_tables {
            keeper.give(Job::Table(table));
        }
        Self {
            disk: start.disk,
            dir: start.dir,
            meta: start.meta,
            epoch: start.epoch,
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
        }
    }

    /// Does all of `ops` and reports each [`Op::Done`] once what stands before it is synced.
    pub(crate) fn run(&mut self, ops: &mut Vec<Op>) {
        for op in ops.drain(..) {
            if let Op::Done(done) = op {
                self.waiting.push(done);
                continue;
            }
            if self.health.poison().is_none()
                && let Err(error) = self.step(op)
            {
                self.poison(&error);
            }
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

    fn poison(&mut self, error: &io::Error) {
        tracing::error!(dir = %self.dir.display(), %error, "the journal stops: a disk operation failed");
        self.health.set_poison(error.to_string().into());
        self.gather.clear();
        self.unsynced.clear();
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
            Op::Roll {
                base,
                first_index,
                prev_term,
                capacity_bytes,
                slot,
                sealed,
            } => {
                self.write_gathered()?;
                if let Some(sealed) = sealed {
                    // Written when this round is over: all of it is synced then.
                    let table = self.table_of(sealed, prev_term);
                    self.keeper.give(Job::Table(table));
                }
                let salt = salt_of(base, self.epoch);
                let header = SegmentHeader {
                    salt,
                    prev_crc: self.chain,
                    base,
                    first_index,
                    prev_term,
                    capacity_bytes,
                };
                let file = self.next_segment(&header)?;
                self.current = Current {
                    file: file.clone(),
                    salt,
                    offset: SEGMENT_HEADER_BYTES,
                    capacity_bytes,
                };
                let _ = slot.set(SegmentFile::new(file));
                Ok(())
            }
            // A vote and the frames around it must reach the disk in the order they were asked for.
            Op::Meta(meta) => {
                self.settle()?;
                self.write_meta(meta)
            }
            Op::Cut(cut) => {
                self.settle()?;
                self.cut(cut)
            }
            Op::Release(bases) => {
                self.settle()?;
                self.release(&bases)
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
        let (head, crc) = encode_head(frame, link);
        self.gather.push(&head, &frame.payload);
        self.gather.end_index = frame.index.0 + 1;
        self.chain = crc;
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
        if !self
            .unsynced
            .last()
            .is_some_and(|last| Arc::ptr_eq(last, &self.current.file))
        {
            self.unsynced.push(self.current.file.clone());
        }
        Ok(())
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
        self.meta.write(&meta)
    }

    fn cut(&mut self, cut: Cut) -> io::Result<()> {
        let file = cut.slot.get().map(|file| file.disk_file().clone());
        let Some(file) = file else {
            return Err(io::Error::other(
                "a cut names a segment that was never made",
            ));
        };
        // The record of the cut comes first: from here on a scan refuses the dropped frames.
        self.end_index = cut.meta.cut_from;
        self.epoch = cut.meta.epoch;
        self.write_meta(cut.meta)?;
        self.health.set_synced_end(self.end_index);
        drop_tail(
            &*self.disk,
            &self.dir,
            &*file,
            cut.end_offset,
            cut.capacity_bytes,
            &cut.dropped,
        )?;
        for base in cut.forgotten {
            self.keeper.give(Job::Forget(base));
        }
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        file.read_at(&mut header, 0)?;
        let header = SegmentHeader::decode(&header)
            .ok_or_else(|| io::Error::other("segment header unreadable"))?;
        self.chain = match cut.last_offset {
            None => header.prev_crc,
            Some(offset) => {
                let mut head = [0; HEAD_BYTES];
                file.read_at(&mut head, offset)?;
                decode_head(&head).map_err(io::Error::other)?.crc
            }
        };
        self.current = Current {
            file,
            salt: header.salt,
            offset: cut.end_offset,
            capacity_bytes: cut.capacity_bytes,
        };
        Ok(())
    }

    fn release(&mut self, bases: &[Position]) -> io::Result<()> {
        let tight = self.health.tight();
        if tight {
            self.spares.give_back()?;
        }
        for base in bases {
            let path = segment_path(&self.dir, *base);
            if tight {
                self.disk.remove(&path)?;
            } else {
                self.spares.recycle(&path, self.segment_bytes)?;
            }
            self.keeper.give(Job::Forget(*base));
        }
        self.disk.sync_dir(&self.dir)
    }

    /// The side file of the current segment, which ends here.
    fn table_of(&self, sealed: Sealed, last_term: Term) -> SideTable {
        SideTable {
            salt: self.current.salt,
            chain: self.chain,
            base: sealed.base,
            first_index: sealed.first_index,
            last_term,
            committed: sealed.committed,
            capacity_bytes: sealed.capacity_bytes,
            frames: sealed.frames,
            given_back: Vec::new(),
        }
    }

    /// Makes a segment file durable under its name.
    fn next_segment(&mut self, header: &SegmentHeader) -> io::Result<Arc<dyn DiskFile>> {
        let spare = self.spares.take(header.capacity_bytes)?;
        install_segment(&*self.disk, &self.dir, &spare.path, &*spare.file, header)?;
        Ok(spare.file)
    }

    /// Has the next segment ready before it is needed: the wait for its zeros is not in the way of
    /// a confirm. Early, for a fast publisher fills a segment in the time that it takes to make one.
    fn prepare_next(&mut self) {
        let begun = self.current.offset > self.current.capacity_bytes / 8;
        if !begun || self.health.no_space() {
            return;
        }
        let len = grown_capacity(self.current.capacity_bytes, self.segment_bytes);
        if let Err(error) = self.spares.prepare(len) {
            self.note_no_space(&error);
        }
    }

    fn note_no_space(&mut self, error: &io::Error) {
        tracing::warn!(dir = %self.dir.display(), %error, "no room for the next segment");
        self.health.set_no_space();
    }
}
