//! Where a read is served from: what is held where a reader walks, else the file.
//!
//! Owns: what is read ahead of a walk. Never holds what may still be cut. Read next: [`super::reader`], [`super::walks`],
//! [`super::held`], [`super::ahead`].
//!
//! Who must not wait for the disk is served from what is held, else by a read of what is in the system's cache anyway;
//! only what is in neither is asked for and comes later.

use super::Journal;
use super::ahead::{Ahead, Bring, Place};
use super::held::{Held, Run};
use super::placement::Shared;
use super::segment::{FrameSpan, Segment, SegmentFile};
use super::stats::Health;
use super::walks::{AHEAD_CHUNKS, CHUNK_BYTES, Chunk, Here, Step, Walks};
use crate::seal::DataKey;
use bytes::Bytes;
use std::io;
use std::sync::Arc;

/// What a journal knows of its readers.
#[derive(Debug)]
pub(super) struct Reading {
    walks: Walks,
    held: Held,
    /// Knows what is synced.
    health: Arc<Health>,
}

impl Reading {
    pub(super) fn new(health: Arc<Health>) -> Self {
        Self {
            walks: Walks::default(),
            held: Held::default(),
            health,
        }
    }

    pub(super) fn holds(&self, chunk: Chunk) -> bool {
        self.held.contains(chunk)
    }

    /// Holds a chunk that was read for walks.
    pub(super) fn hold(&mut self, chunk: Chunk, bytes: Bytes) {
        self.held.put(chunk, bytes, &self.walks);
    }

    /// Forgets who did not walk on since this was last called, and what is held for them; whether anything is held.
    pub(super) fn rest(&mut self) -> bool {
        self.walks.rest();
        self.held.let_go(&self.walks)
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
    file: Arc<SegmentFile>,
    /// What is held from where the read begins, to the end of its frame at most.
    held: Run,
    first: Chunk,
    frame_end: u64,
    /// Where frames end in the file.
    end: u64,
    cold: Cold,
    walks: bool,
    /// Nothing of the file is cut any more.
    is_final: bool,
    /// What a walk comes to by it.
    ahead: Vec<Bring>,
}

impl Spot {
    /// Bytes at an offset of the file, as far as they are held in one piece.
    pub(super) fn peek(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.held.peek(offset, len)
    }

    /// The same in any pieces, to keep.
    pub(super) fn take(&self, offset: u64, len: usize, slice_from: usize) -> Option<Bytes> {
        self.held.take(offset, len, slice_from)
    }

    /// Chunks of the rest of the frame that are not held, as many as are read ahead at most.
    fn missing(&self) -> Vec<Chunk> {
        let chunks = (0..=AHEAD_CHUNKS).map(|more| Chunk {
            nth: self.first.nth + more,
            ..self.first
        });
        let is_part = |chunk: &Chunk| *chunk == self.first || chunk.offset() < self.frame_end;
        let chunks = chunks.take_while(is_part);
        chunks
            .filter(|chunk| !self.held.has_chunk(chunk.offset()))
            .collect()
    }

    fn waits(&self, ahead: &Ahead) -> bool {
        self.cold == Cold::Wait || !ahead.serves()
    }

    /// The key of the frames, if they are sealed.
    pub(super) fn key(&self) -> Option<&DataKey> {
        self.file.key().map(Arc::as_ref)
    }

    /// Fills `buf` from an offset of the file; `WouldBlock` when it comes later.
    pub(super) fn read_at(&self, ahead: &Ahead, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.held.copy(buf, offset) {
            return Ok(());
        }
        let file = &self.file;
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
            is_final: self.is_final,
        };
        let end = offset + buf.len() as u64;
        let base = self.first.base;
        let first = Chunk::at(base, offset);
        let last = Chunk::at(base, end.saturating_sub(1));
        // More than is read ahead of a walk may not be remembered to have come, all at once.
        let by_chunk = self.walks && last.nth - first.nth <= AHEAD_CHUNKS;
        let chunks = || (first.nth..=last.nth).map(|nth| Chunk { nth, ..first });
        let jump = Place::Jump(base, offset);
        let come = if by_chunk {
            let missing = chunks().filter(|chunk| !self.held.has_chunk(chunk.offset()));
            ahead.await_all(missing.map(|chunk| {
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
    /// Has done what a read has to do for later ones, and looks at where it has come to. Who waits, waits for what is
    /// being read already.
    pub(super) fn look_ahead(&self, spot: &mut Spot) {
        let ahead = &self.inner.ahead;
        if !spot.ahead.is_empty() {
            ahead.give(spot.ahead.drain(..));
        }
        if spot.walks && spot.cold == Cold::Wait {
            let missing = spot.missing();
            if !missing.is_empty() {
                ahead.wait_for(&missing);
                spot.held = self.lock().reading.held.run(spot.first, spot.frame_end);
            }
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
        let here = Here {
            chunk: Chunk::at(segment.base, offset),
            frame: Chunk::at(segment.base, frame.offset),
            last: Chunk::at(segment.base, segment.last_offset()),
            end: segment.end(),
        };
        let step = self.reading.walks.step(here);
        let ahead = match step {
            Step::Entered(walk) => {
                self.reading.held.let_go(&self.reading.walks);
                self.ahead(walk, nth, here.chunk)
            }
            Step::On | Step::Jump => Vec::new(),
        };
        let segment = self.segments.get(nth)?;
        Some(Spot {
            file: segment.file.get()?.clone(),
            held: self.reading.held.run(here.chunk, frame.end_offset),
            first: here.chunk,
            frame_end: frame.end_offset,
            end: segment.end_offset(),
            cold,
            walks: step != Step::Jump,
            is_final: self.is_final(nth),
            ahead,
        })
    }

    /// Whether nothing of a segment is written or cut any more.
    fn is_final(&self, nth: usize) -> bool {
        let full = self.segments.len().saturating_sub(1);
        let final_end = self.applied_end.min(self.reading.health.synced_end());
        let segment = self.segments.get(nth);
        nth < full && segment.is_some_and(|segment| segment.end_index().0 <= final_end)
    }

    /// The chunk that a walk is in and those that it comes to, as far as it did not ask for them. What is being
    /// written is in the system's cache anyway.
    fn ahead(&mut self, walk: u64, nth: usize, chunk: Chunk) -> Vec<Bring> {
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
            Some(Bring {
                place: Place::Chunk(chunk),
                file: file.clone(),
                offset: chunk.offset(),
                len: chunk_len(segment, chunk),
                is_final: self.is_final(nth),
            })
        });
        new.collect()
    }
}
