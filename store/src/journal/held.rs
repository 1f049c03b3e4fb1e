//! Chunks of history in memory, which a thread read for those who walk through it.
//!
//! Owns: which chunks are held, how many, and which of them goes first. They were read around the system's cache, unless
//! they were there: history evicts nobody's pages. Never reads: see [`super::ahead`]; never holds what may still be cut.
//! Read next: [`super::walks`], which says who wants what, and [`super::spot`], where a read is served from here.

use super::walks::{CHUNK_BYTES, Chunk, Walks};
use bytes::Bytes;
use rustc_hash::FxHashMap;

/// Chunks that are held at most: for each walk the one that it is in, the one before, and those read ahead of it. What is
/// left of that when fewer walk is for those that follow.
const HELD_MAX: usize = 32;

/// What is held.
#[derive(Debug, Default)]
pub(super) struct Held {
    chunks: FxHashMap<Chunk, Bytes>,
}

impl Held {
    /// Holds a chunk; the one that is wanted last makes room.
    pub(super) fn put(&mut self, chunk: Chunk, bytes: Bytes, walks: &Walks) {
        self.chunks.insert(chunk, bytes);
        if self.chunks.len() > HELD_MAX {
            // One that nobody comes to is wanted last of all.
            let distance = |chunk: &Chunk| walks.distance_to(*chunk).unwrap_or(u64::MAX);
            if let Some(last) = self.chunks.keys().copied().max_by_key(distance) {
                self.chunks.remove(&last);
            }
        }
    }

    /// Lets go of what no walk comes to; whether there is anything else.
    pub(super) fn let_go(&mut self, walks: &Walks) -> bool {
        if !self.chunks.is_empty() {
            self.chunks
                .retain(|chunk, _| walks.distance_to(*chunk).is_some());
        }
        !self.chunks.is_empty()
    }

    pub(super) fn contains(&self, chunk: Chunk) -> bool {
        self.chunks.contains_key(&chunk)
    }

    /// What is held of a segment's file from a chunk on, without a gap, up to that with the byte before `end`.
    pub(super) fn run(&self, first: Chunk, end: u64) -> Run {
        let mut run = Run::default();
        if self.chunks.is_empty() {
            return run;
        }
        let Some(bytes) = self.chunks.get(&first) else {
            return run;
        };
        (run.offset, run.first) = (first.offset(), bytes.clone());
        let mut next = first;
        loop {
            next.nth += 1;
            let more = (next.offset() < end).then(|| self.chunks.get(&next));
            let Some(bytes) = more.flatten() else {
                return run;
            };
            run.rest.push(bytes.clone());
        }
    }
}

/// Bytes of a file, as they follow each other in chunks.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Where the first chunk begins in the file.
    offset: u64,
    first: Bytes,
    /// All but the last of all are whole.
    rest: Vec<Bytes>,
}

impl Run {
    /// Whether it has the chunk that begins at `offset`.
    pub(super) fn has_chunk(&self, offset: u64) -> bool {
        let Some(into) = offset.checked_sub(self.offset) else {
            return false;
        };
        !self.first.is_empty() && into / CHUNK_BYTES <= self.rest.len() as u64
    }

    /// Bytes at an offset of the file, if they lie in its first chunk.
    pub(super) fn peek(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        self.first.get(from..from.checked_add(len)?)
    }

    /// The same from all of it, to keep: from `slice_from` bytes on a slice, which holds on to its chunk; less is copied.
    pub(super) fn take(&self, offset: u64, len: usize, slice_from: usize) -> Option<Bytes> {
        match self.peek(offset, len) {
            Some(bytes) if len < slice_from => Some(Bytes::copy_from_slice(bytes)),
            Some(bytes) => Some(self.first.slice_ref(bytes)),
            None => {
                let mut bytes = vec![0; self.covers(offset, len).then_some(len)?];
                self.copy(&mut bytes, offset).then(|| bytes.into())
            }
        }
    }

    /// Fills `buf` from an offset of the file, if all of it is here.
    pub(super) fn copy(&self, buf: &mut [u8], offset: u64) -> bool {
        if !self.covers(offset, buf.len()) {
            return false;
        }
        let mut skip = (offset - self.offset) as usize;
        let mut left = buf;
        for chunk in std::iter::once(&self.first).chain(&self.rest) {
            let here = chunk.get(skip..).unwrap_or_default();
            let len = here.len().min(left.len());
            let (now, later) = left.split_at_mut(len);
            now.copy_from_slice(&here[..len]);
            left = later;
            skip = skip.saturating_sub(chunk.len());
        }
        left.is_empty()
    }

    fn covers(&self, offset: u64, len: usize) -> bool {
        let bytes: usize = self.rest.iter().map(Bytes::len).sum();
        let end = self.offset + (self.first.len() + bytes) as u64;
        offset >= self.offset && offset.saturating_add(len as u64) <= end
    }
}

#[cfg(test)]
mod tests {
    use super::super::walks::{Here, Step};
    use super::*;
    use anabranch_core::id::Position;

    fn chunk(nth: u32) -> Chunk {
        let base = Position(0);
        Chunk { base, nth }
    }

    fn bytes(nth: u32, len: u64) -> Bytes {
        (0..len).map(|at| (at as u32 / 3 + nth) as u8).collect()
    }

    fn walk(walks: &mut Walks, nth: u32) {
        let here = Here {
            chunk: chunk(nth),
            frame: chunk(nth),
            last: chunk(1000),
            end: Position(u64::MAX),
        };
        let steps = (0..10).map(|_| walks.step(here));
        assert!(steps.into_iter().any(|step| step != Step::Jump));
    }

    #[test]
    fn what_lies_across_chunks_is_put_together() {
        let mut held = Held::default();
        let walks = Walks::default();
        let whole = [bytes(1, CHUNK_BYTES), bytes(2, CHUNK_BYTES), bytes(3, 5000)];
        for (nth, bytes) in (1..).zip(&whole) {
            held.put(chunk(nth), bytes.clone(), &walks);
        }
        let all = whole.concat();
        let run = held.run(chunk(1), 4 * CHUNK_BYTES);
        for (from, len) in [
            (0, 10),
            (CHUNK_BYTES - 5, 10),
            (CHUNK_BYTES - 5, CHUNK_BYTES + 10),
            (7, 2 * CHUNK_BYTES + 4000),
            (2 * CHUNK_BYTES - 1, 2),
        ] {
            let expected = &all[from as usize..(from + len) as usize];
            let taken = run.take(CHUNK_BYTES + from, len as usize, 100).unwrap();
            assert!(taken == expected, "{len} bytes from {from}");
            let mut copied = vec![0; len as usize];
            assert!(run.copy(&mut copied, CHUNK_BYTES + from));
            assert!(copied == expected, "{len} bytes from {from}");
        }
        assert!(run.take(CHUNK_BYTES - 1, 2, 0).is_none());
        assert!(run.take(3 * CHUNK_BYTES + 4999, 2, 0).is_none());
        assert!(run.peek(2 * CHUNK_BYTES - 1, 2).is_none());
        let has = |nth: u64| run.has_chunk(nth * CHUNK_BYTES);
        assert_eq!([0, 1, 2, 3, 4].map(has), [false, true, true, true, false]);
        // Not beyond the frame.
        let run = held.run(chunk(1), 2 * CHUNK_BYTES);
        assert!(run.has_chunk(CHUNK_BYTES) && !run.has_chunk(2 * CHUNK_BYTES));
        assert!(!held.run(chunk(9), u64::MAX).has_chunk(9 * CHUNK_BYTES));
    }

    #[test]
    fn what_is_wanted_last_makes_room_and_what_nobody_wants_goes() {
        let (mut held, mut walks) = (Held::default(), Walks::default());
        walk(&mut walks, 5);
        let max = HELD_MAX as u32;
        // One that nobody comes to, and others from the last to the first.
        held.put(chunk(2), Bytes::new(), &walks);
        for nth in (5..5 + max).rev() {
            held.put(chunk(nth), Bytes::new(), &walks);
        }
        assert!(!held.contains(chunk(2)) && held.contains(chunk(4 + max)));
        held.put(chunk(4), Bytes::new(), &walks);
        assert_eq!(held.chunks.len(), HELD_MAX);
        walk(&mut walks, 6);
        walk(&mut walks, 7);
        assert!(held.let_go(&walks));
        assert!(!held.contains(chunk(5)) && held.contains(chunk(6)));
        // Who walks on keeps what is held.
        walks.rest();
        walk(&mut walks, 7);
        walks.rest();
        assert!(held.let_go(&walks) && held.contains(chunk(7)));
        walks.rest();
        assert!(!held.let_go(&walks));
    }
}
