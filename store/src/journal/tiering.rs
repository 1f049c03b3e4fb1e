//! Segments that move to an object store, as the journal sees it.
//!
//! Owns: which segment may move next, and the two steps on this side: the list of what lies there (durable) before
//! readers go there, and only then the end of the segment's file. Never asks anything of the object store. Read next:
//! [`crate::tier`] (who moves), [`super::tiered`] (the list), [`super::keeper`] (who writes it).

use super::Journal;
use super::keeper::{Job, Noted};
use super::segment::{SEGMENT_HEADER_BYTES, SegmentFile, SegmentHeader};
use super::tiered::Tiered;
use super::writer::Op;
use crate::disk::DiskFile;
use crate::tier::{Folder, Object, Tier};
use anabranch_core::id::Position;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

/// Where a journal's sealed segments go.
#[derive(Debug, Clone)]
pub struct TierPlace {
    /// The object store.
    pub tier: Tier,
    /// The name of the journal's shard.
    pub shard: String,
}

/// A segment that may move.
#[derive(Debug)]
pub(crate) struct Movable {
    pub(crate) base: Position,
    /// Bytes of its file up to the end of the last frame.
    pub(crate) len: u64,
    handle: Arc<SegmentFile>,
}

impl Movable {
    /// Its file; whoever has it is counted as a reader as long as this lives.
    pub(crate) fn file(&self) -> Arc<dyn DiskFile> {
        self.handle.disk_file().clone()
    }

    fn header(&self) -> io::Result<SegmentHeader> {
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        self.handle.read_at(&mut header, 0)?;
        let header = SegmentHeader::decode(&header);
        header.ok_or_else(|| io::Error::other("the segment's header is not readable"))
    }
}

/// Where the segments of a journal lie.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct TierCounts {
    /// Segments on the disk, the one being written included.
    pub local_segments: u64,
    /// Length of their files, holes included.
    pub local_bytes: u64,
    /// Segments in the object store.
    pub tiered_segments: u64,
    /// Bytes of their objects.
    pub tiered_bytes: u64,
    /// Segments that are to move and have not yet.
    pub waiting: u64,
    /// Objects that are to be removed and are not yet.
    pub doomed: u64,
}

impl Journal {
    /// The journal's part of the object store, when there is one.
    pub(crate) fn folder(&self) -> Option<&Arc<Folder>> {
        self.inner.folder.as_ref()
    }

    /// The next segment to move: the oldest that is full and purged (checkpoints cover it, and no log reader goes
    /// there), while such segments take more here than is to stay. None of `but`.
    pub(crate) fn movable(&self, but: &BTreeSet<Position>) -> Option<Movable> {
        let keep_bytes = self.folder()?.keep_bytes();
        let shared = self.lock();
        let mut beyond = shared.beyond(keep_bytes);
        let segment = beyond.find(|one| !but.contains(&one.base))?;
        Some(Movable {
            base: segment.base,
            len: segment.end_offset(),
            handle: segment.file.get()?.clone(),
        })
    }

    /// Lists a segment as one that lies in the object store; it is there, whole. `done` when that is durable.
    pub(crate) fn note_object(&self, moved: Movable, object: Object, done: Noted) {
        match moved.header() {
            Ok(header) => self.keep(Job::Tiered(Tiered { header, object }, done)),
            Err(error) => done(Err(error)),
        }
    }

    /// Has readers read it there from now on, and its file removed; [`Journal::note_object`] was done. `false` when
    /// it was released meanwhile.
    pub(crate) fn switch(&self, base: Position, object: Object) -> bool {
        let Some(folder) = self.folder() else {
            return false;
        };
        let mut shared = self.lock();
        let found = shared.segments.binary_search_by_key(&base, |one| one.base);
        let segment = found.ok().and_then(|nth| shared.segments.get_mut(nth));
        let Some(segment) = segment else {
            return false;
        };
        let file = folder.file(base, object, segment.capacity_bytes);
        if let Some(before) = segment.move_out(file, object) {
            self.keep(Job::Moved(base, before));
        }
        true
    }

    /// An object is gone. `done` when it is durably not listed.
    pub(crate) fn forget_object(&self, base: Position, done: Noted) {
        self.keep(Job::ObjectGone(base, done));
    }

    fn keep(&self, job: Job) {
        self.inner.queue.push([Op::Keep(job)]);
    }

    /// Segments in the object store of which something lives.
    pub(crate) fn tiered(&self) -> BTreeMap<Position, Object> {
        let shared = self.lock();
        let segments = shared.segments.iter();
        let tiered = segments.filter_map(|one| Some((one.base, one.object()?)));
        tiered.collect()
    }

    /// Where its segments lie.
    pub fn tier_counts(&self) -> TierCounts {
        let mut counts = TierCounts::default();
        let shared = self.lock();
        for segment in &shared.segments {
            match segment.object() {
                Some(object) => {
                    counts.tiered_segments += 1;
                    counts.tiered_bytes += object.len;
                }
                None => {
                    counts.local_segments += 1;
                    counts.local_bytes += segment.capacity_bytes;
                }
            }
        }
        if let Some(folder) = self.folder() {
            counts.waiting = shared.beyond(folder.keep_bytes()).count() as u64;
            counts.doomed = folder.doomed().len() as u64;
        }
        counts
    }
}

impl super::placement::Shared {
    /// Segments that are full and purged and on the disk, from the oldest, as many as take what is over
    /// `keep_bytes`.
    fn beyond(&self, keep_bytes: u64) -> impl Iterator<Item = &super::segment::Segment> {
        let purged_end = self.meta.purged.map_or(0, |purged| purged.index.0 + 1);
        let here = || self.sealed().filter(|one| one.object().is_none());
        let total: u64 = here().map(|one| one.capacity_bytes).sum();
        let mut over = total.saturating_sub(keep_bytes);
        here().take_while(move |one| {
            let goes = over > 0 && one.end_index().0 <= purged_end;
            over = over.saturating_sub(one.capacity_bytes);
            goes
        })
    }
}
