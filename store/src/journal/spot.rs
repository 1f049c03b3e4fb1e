//! Where a read is served from: a mapping where a reader walks, else the file.
//!
//! Owns: which segments are mapped (a bounded number of bytes, what was longest not walked through goes first), and
//! what is asked of the system ahead of a walk and behind it. Never maps a segment of which a frame may still be cut.
//! Read next: [`super::reader`], [`super::walks`], [`super::mapped`].
//!
//! Jumps are read from the file: one call brings the record, while a page that is touched in a mapping brings a
//! fault and an entry in the page table for each 4 KiB. A walk pays for a whole chunk at once.

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
}

/// Where a read is served from. It counts as a reader of its file.
pub(super) struct Spot {
    from: Source,
    walks: bool,
    work: Option<Work>,
}

enum Source {
    Mapped(Arc<Mapped>),
    File(Arc<SegmentFile>),
}

/// What is done for a walk that enters a chunk, without the journal's lock.
struct Work {
    walk: u64,
    ahead: Vec<(Chunk, Arc<SegmentFile>, u64)>,
    behind: Vec<Behind>,
    /// Mappings that had to make room.
    _unmapped: Vec<Arc<Mapped>>,
}

/// A chunk that may leave the system's cache.
struct Behind {
    chunk: Chunk,
    file: Arc<SegmentFile>,
    mapped: Option<Arc<Mapped>>,
    len: u64,
}

impl Spot {
    /// Bytes at an offset of the file, as far as they are in memory.
    pub(super) fn peek(&self, offset: u64, len: usize) -> Option<&[u8]> {
        match &self.from {
            Source::Mapped(mapped) => mapped.peek(offset, len, self.walks),
            Source::File(_) => None,
        }
    }

    /// The same, to keep.
    pub(super) fn take(&self, offset: u64, len: usize) -> Option<Bytes> {
        match &self.from {
            Source::Mapped(mapped) => mapped.take(offset, len, self.walks),
            Source::File(_) => None,
        }
    }

    /// The key of the frames, if they are sealed.
    pub(super) fn key(&self) -> Option<&DataKey> {
        let file = match &self.from {
            Source::Mapped(mapped) => mapped.file(),
            Source::File(file) => file,
        };
        file.key().map(Arc::as_ref)
    }

    /// Fills `buf` from an offset of the file.
    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.from {
            Source::Mapped(mapped) => mapped.file().read_at(buf, offset),
            Source::File(file) => file.read_at(buf, offset),
        }
    }
}

impl Journal {
    /// Does what a read has to do for later ones.
    pub(super) fn look_ahead(&self, spot: &mut Spot) {
        let Some(work) = spot.work.take() else {
            return;
        };
        // Advice that is not taken costs time, and nothing else.
        let mut brought = Vec::new();
        for (chunk, file, len) in &work.ahead {
            if matches!(file.read_ahead(chunk.offset(), *len), Ok(false)) {
                brought.push(*chunk);
            }
        }
        for behind in &work.behind {
            if let Some(mapped) = &behind.mapped {
                mapped.unload(behind.chunk.nth);
            }
            let _ = behind.file.uncache(behind.chunk.offset(), behind.len);
        }
        if !brought.is_empty() {
            self.lock().reading.walks.brought(work.walk, brought);
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
    pub(super) fn spot(&mut self, nth: usize, frame: &FrameSpan, offset: u64) -> Option<Spot> {
        let segment = self.segments.get(nth)?;
        let file = segment.file.get()?;
        let here = Here {
            chunk: Chunk::at(segment.base, offset),
            frame: Chunk::at(segment.base, frame.offset),
            last: Chunk::at(segment.base, segment.last_offset()),
            end: segment.end(),
        };
        let step = self.reading.walks.step(here);
        let Step::Entered(walk) = step else {
            let mapped = segment.mapped.clone();
            return Some(Spot {
                from: mapped.map_or_else(|| Source::File(file.clone()), Source::Mapped),
                walks: step == Step::On,
                work: None,
            });
        };
        let file = file.clone();
        let ahead = self.ahead(walk, nth, here.chunk);
        let behind = self.behind(walk);
        let mut unmapped = Vec::new();
        let mapped = self.map(nth, &mut unmapped);
        Some(Spot {
            from: mapped.map_or(Source::File(file), Source::Mapped),
            walks: true,
            work: Some(Work {
                walk,
                ahead,
                behind,
                _unmapped: unmapped,
            }),
        })
    }

    /// The chunk that a walk is in and those that it comes to, as far as it did not ask for them. What is being
    /// written is in the system's cache anyway.
    fn ahead(
        &mut self,
        walk: u64,
        nth: usize,
        chunk: Chunk,
    ) -> Vec<(Chunk, Arc<SegmentFile>, u64)> {
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
            let file = segment.file.get()?.clone();
            Some((chunk, file, chunk_len(segment, chunk)))
        });
        new.collect()
    }

    fn behind(&mut self, walk: u64) -> Vec<Behind> {
        let fresh = Position(self.end.0.saturating_sub(self.reading.fresh_bytes));
        let passed = self.reading.walks.behind(walk, fresh);
        let gone = passed.into_iter().filter_map(|chunk| {
            let segment = self.segment_covering(chunk.base)?;
            let is_it = segment.base == chunk.base;
            is_it.then_some(Behind {
                chunk,
                file: segment.file.get()?.clone(),
                mapped: segment.mapped.clone(),
                len: chunk_len(segment, chunk),
            })
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
