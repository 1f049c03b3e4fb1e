//! Where a read is served from: a mapping where a reader walks, else the file.
//!
//! Owns: which segments are mapped (a bounded number of bytes, what was longest not walked through goes first), and
//! what is asked of the system ahead of a walk and behind it. Never maps a segment of which a frame may still be cut.
//! Read next: [`super::reader`], [`super::walks`], [`super::mapped`], [`super::ahead`].
//!
//! Jumps are read from the file: one call brings the record, while a page that is touched in a mapping brings a
//! fault and an entry in the page table for each 4 KiB. A walk pays for a whole chunk at once.
//!
//! Who must not wait for the disk is served from a chunk that has come, else by a read of what is in the system's cache
//! anyway; only what is in neither is asked for and comes later.

use super::ahead::{Ahead, Behind, Bring, Job, Place};
use super::mapped::Mapped;
use super::placement::Shared;
use super::segment::{FrameSpan, Segment, SegmentFile};
use super::stats::Health;
use super::walks::{AHEAD_CHUNKS, CHUNK_BYTES, Chunk, Here, Step, Walks};
use super::{Journal, JournalOptions};
use crate::seal::DataKey;
use anabranch_core::id::Position;
use bytes::Bytes;
use std::io;
use std::sync::Arc;

/// How many times the tail in memory is left in the system's cache before the end, behind a reader that walks: for
/// those that are a little behind.
const FRESH_TAILS: u64 = 4;

/// What a journal knows of its readers.
#[derive(Debug)]
pub(super) struct Reading {
    walks: Walks,
    /// Bases of mapped segments, the one that was entered last at the end.
    mapped: Vec<Position>,
    /// Counts bytes that are mapped, those that only slices hold included; knows what is synced.
    health: Arc<Health>,
    mapped_bytes_max: u64,
    /// Bytes before the end that are left in the system's cache.
    fresh_bytes: u64,
}

impl Reading {
    pub(super) fn new(health: Arc<Health>, options: &JournalOptions) -> Self {
        Self {
            walks: Walks::default(),
            mapped: Vec::new(),
            health,
            mapped_bytes_max: options.mapped_bytes,
            fresh_bytes: (options.tail_bytes as u64).saturating_mul(FRESH_TAILS),
        }
    }

    /// A chunk was in nobody's cache before a walk asked for it.
    pub(super) fn brought(&mut self, walk: u64, chunk: Chunk) {
        self.walks.brought(walk, vec![chunk]);
    }
}

/// What a read does about bytes that are not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cold {
    /// Waits for the disk.
    Wait,
    /// Asks for them and is told `WouldBlock`.
    Later,
}

/// Where a read is served from. It counts as a reader of its file.
pub(super) struct Spot {
    from: Source,
    base: Position,
    /// Where frames end in the file.
    end: u64,
    cold: Cold,
    walks: bool,
    /// The chunk that a walk enters by it.
    entered: Option<Chunk>,
    work: Vec<Job>,
}

enum Source {
    Mapped(Arc<Mapped>),
    File(Arc<SegmentFile>),
}

impl Spot {
    /// Bytes at an offset of the file, as far as they are in memory.
    pub(super) fn peek(&self, ahead: &Ahead, offset: u64, len: usize) -> Option<&[u8]> {
        match &self.from {
            Source::Mapped(mapped) => mapped.peek(offset, len, |nth| self.loads(ahead, nth)),
            Source::File(_) => None,
        }
    }

    /// The same, to keep.
    pub(super) fn take(&self, ahead: &Ahead, offset: u64, len: usize) -> Option<Bytes> {
        match &self.from {
            Source::Mapped(mapped) => mapped.take(offset, len, |nth| self.loads(ahead, nth)),
            Source::File(_) => None,
        }
    }

    /// Whether a chunk is loaded now: by a walk, and not before it has come, and is still there, when nobody is to wait
    /// for it.
    fn loads(&self, ahead: &Ahead, nth: u32) -> bool {
        let chunk = Chunk {
            base: self.base,
            nth,
        };
        let is_here = || ahead.has_come(Place::Chunk(chunk)) && !self.is_gone(chunk);
        self.walks && (self.waits(ahead) || is_here())
    }

    /// Whether a chunk is known not to be in the system's cache.
    fn is_gone(&self, chunk: Chunk) -> bool {
        let at = chunk.offset();
        let len = CHUNK_BYTES.min(self.end.saturating_sub(at));
        self.file().is_cached(at, len) == Some(false)
    }

    /// A walk enters a chunk, which may have been here before: what the system has taken back since is not touched
    /// before it has come again.
    fn enter(&self, ahead: &Ahead, chunk: Chunk) {
        if !self.is_gone(chunk) {
            return;
        }
        if let Source::Mapped(mapped) = &self.from {
            mapped.forget(chunk.nth);
        }
        ahead.forget(std::iter::once(Place::Chunk(chunk)));
    }

    fn waits(&self, ahead: &Ahead) -> bool {
        self.cold == Cold::Wait || !ahead.serves()
    }

    fn file(&self) -> &Arc<SegmentFile> {
        match &self.from {
            Source::Mapped(mapped) => mapped.file(),
            Source::File(file) => file,
        }
    }

    /// The key of the frames, if they are sealed.
    pub(super) fn key(&self) -> Option<&DataKey> {
        self.file().key().map(Arc::as_ref)
    }

    /// Fills `buf` from an offset of the file; `WouldBlock` when it comes later.
    pub(super) fn read_at(&self, ahead: &Ahead, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let file = self.file();
        if self.waits(ahead) {
            return file.read_at(buf, offset);
        }
        if file.read_now(buf, offset)? {
            return Ok(());
        }
        let bring = |place, offset, len| Bring {
            place,
            file: file.clone(),
            offset,
            len,
            walk: None,
        };
        let end = offset + buf.len() as u64;
        let first = Chunk::at(self.base, offset);
        let last = Chunk::at(self.base, end.saturating_sub(1));
        // More than is read ahead of a walk may not be remembered to have come, all at once.
        let by_chunk = self.walks && last.nth - first.nth <= AHEAD_CHUNKS;
        let chunks = || (first.nth..=last.nth).map(|nth| Chunk { nth, ..first });
        let jump = Place::Jump(self.base, offset);
        let come = if by_chunk {
            ahead.await_all(chunks().map(|chunk| {
                let at = chunk.offset();
                let len = CHUNK_BYTES.min(self.end.max(end) - at);
                bring(Place::Chunk(chunk), at, len)
            }))
        } else {
            ahead.await_all(std::iter::once(bring(jump, offset, end - offset)))
        };
        if !come {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // Gone again, or not to be read: this read ends the matter. What comes after it waits for nothing, so it asks
        // once more; only where nobody can tell what is there, what has come is believed to be.
        if file.is_cached(offset, end - offset).is_some() {
            match by_chunk {
                true => ahead.forget(chunks().map(Place::Chunk)),
                false => ahead.forget(std::iter::once(jump)),
            }
        }
        file.read_at(buf, offset)
    }
}

impl Journal {
    /// Has done what a read has to do for later ones, and looks at where it has come to.
    pub(super) fn look_ahead(&self, spot: &mut Spot) {
        if let Some(chunk) = spot.entered.take() {
            spot.enter(&self.inner.ahead, chunk);
        }
        if !spot.work.is_empty() {
            self.inner.ahead.give(spot.work.drain(..));
        }
    }
}

/// Bytes of a chunk that frames lie in.
fn chunk_len(segment: &Segment, chunk: Chunk) -> u64 {
    let rest = segment.end_offset().saturating_sub(chunk.offset());
    rest.min(CHUNK_BYTES)
}

impl Shared {
    /// Where the read of the byte at `offset` of the `nth` segment's file is served from, which lies in `frame`.
    /// `None` when the segment has no file yet.
    pub(super) fn spot(
        &mut self,
        nth: usize,
        frame: &FrameSpan,
        offset: u64,
        cold: Cold,
    ) -> Option<Spot> {
        let segment = self.segments.get(nth)?;
        let file = segment.file.get()?;
        let here = Here {
            chunk: Chunk::at(segment.base, offset),
            frame: Chunk::at(segment.base, frame.offset),
            last: Chunk::at(segment.base, segment.last_offset()),
            end: segment.end(),
        };
        let step = self.reading.walks.step(here);
        let (base, end) = (segment.base, segment.end_offset());
        let Step::Entered(walk) = step else {
            let walks = step == Step::On;
            // Where no walk has looked, the system may have taken back what was loaded: a jump touches none of it.
            let mapped = segment.mapped.clone().filter(|_| walks);
            return Some(Spot {
                from: mapped.map_or_else(|| Source::File(file.clone()), Source::Mapped),
                base,
                end,
                cold,
                walks,
                entered: None,
                work: Vec::new(),
            });
        };
        let file = file.clone();
        // First what gives memory back.
        let mut work = self.behind(walk);
        work.extend(self.ahead(walk, nth, here.chunk));
        let mut unmapped = Vec::new();
        let mapped = self.map(nth, &mut unmapped);
        if !unmapped.is_empty() {
            work.push(Job::Unmap(unmapped));
        }
        Some(Spot {
            from: mapped.map_or(Source::File(file), Source::Mapped),
            base,
            end,
            cold,
            walks: true,
            entered: Some(here.chunk),
            work,
        })
    }

    /// The chunk that a walk is in and those that it comes to, as far as it did not ask for them. What is being
    /// written is in the system's cache anyway.
    fn ahead(&mut self, walk: u64, nth: usize, chunk: Chunk) -> Vec<Job> {
        let full = self.segments.len().saturating_sub(1);
        let (mut nth, mut next) = (nth, chunk);
        let mut coming = Vec::new();
        while nth < full && coming.len() <= AHEAD_CHUNKS as usize {
            let segment = &self.segments[nth];
            coming.push((nth, next));
            next.nth += 1;
            if next.offset() >= segment.end_offset() {
                nth += 1;
                let following = self.segments.get(nth);
                let Some(following) = following.filter(|one| one.base == segment.end()) else {
                    break;
                };
                next = Chunk::at(following.base, 0);
            }
        }
        let chunks: Vec<Chunk> = coming.iter().map(|(_, chunk)| *chunk).collect();
        let new = self.reading.walks.ahead(walk, &chunks);
        let new = coming.into_iter().filter(|(_, chunk)| new.contains(chunk));
        let new = new.filter_map(|(nth, chunk)| {
            let segment = &self.segments[nth];
            // What lies in the object store is read ahead by who brings it from there.
            let file = segment.object().is_none().then(|| segment.file.get())??;
            Some(Job::Bring(Bring {
                place: Place::Chunk(chunk),
                file: file.clone(),
                offset: chunk.offset(),
                len: chunk_len(segment, chunk),
                walk: Some(walk),
            }))
        });
        new.collect()
    }

    fn behind(&mut self, walk: u64) -> Vec<Job> {
        let fresh = Position(self.end.0.saturating_sub(self.reading.fresh_bytes));
        let passed = self.reading.walks.behind(walk, fresh);
        let gone = passed.into_iter().filter_map(|chunk| {
            let segment = self.segment_covering(chunk.base)?;
            let is_it = segment.base == chunk.base;
            is_it.then_some(Job::Behind(Behind {
                chunk,
                file: segment.file.get()?.clone(),
                mapped: segment.mapped.clone(),
                len: chunk_len(segment, chunk),
            }))
        });
        gone.collect()
    }

    /// The mapping of a segment, made when there is none and there is room for it. Only of a segment in which
    /// nothing is written or cut any more.
    fn map(&mut self, nth: usize, unmapped: &mut Vec<Arc<Mapped>>) -> Option<Arc<Mapped>> {
        let full = self.segments.len().saturating_sub(1);
        let final_end = self.applied_end.min(self.reading.health.synced_end());
        let segment = self.segments.get(nth)?;
        if nth >= full || segment.end_index().0 > final_end {
            return None;
        }
        let (base, len) = (segment.base, segment.end_offset());
        let file = segment.file.get()?.clone();
        // One that was cut and went on since is mapped again.
        let there = segment.mapped.clone().filter(|one| one.len() == len);
        if there.is_none() {
            unmapped.extend(self.segments[nth].mapped.take());
        }
        self.reading.mapped.retain(|one| *one != base);
        if there.is_none() && !self.make_room(len, unmapped) {
            return None;
        }
        self.reading.mapped.push(base);
        if there.is_some() {
            return there;
        }
        match Mapped::of(file, len, self.reading.health.mapped()) {
            Ok(mapped) => {
                let mapped = mapped.map(Arc::new);
                self.segments[nth].mapped.clone_from(&mapped);
                mapped
            }
            Err(error) => {
                tracing::warn!(base = base.0, %error, "a segment cannot be mapped; it is read from its file");
                None
            }
        }
    }

    /// Unmaps until `len` more bytes may be mapped; `false` when slices hold too much. (Slices of what is unmapped
    /// here count from the next time on.)
    fn make_room(&mut self, len: u64, unmapped: &mut Vec<Arc<Mapped>>) -> bool {
        // Unmapping takes a while: it is done without the lock, when `unmapped` goes.
        let mut going = 0;
        let segments = &mut self.segments;
        self.reading.mapped.retain(|base| {
            let found = segments.binary_search_by_key(base, |segment| segment.base);
            found.is_ok_and(|nth| segments[nth].mapped.is_some())
        });
        loop {
            let mapped = self.reading.health.mapped_bytes();
            if mapped.saturating_sub(going) + len <= self.reading.mapped_bytes_max {
                return true;
            }
            if self.reading.mapped.is_empty() {
                return false;
            }
            let base = self.reading.mapped.remove(0);
            let found = segments.binary_search_by_key(&base, |segment| segment.base);
            let gone = found.ok().and_then(|nth| segments[nth].mapped.take());
            if let Some(gone) = gone {
                going += gone.len();
                unmapped.push(gone);
            }
        }
    }
}
