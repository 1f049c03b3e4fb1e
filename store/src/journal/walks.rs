//! Who reads the files front to back, and where: what is read ahead of such a reader, and who comes to what is held.
//!
//! Owns: telling a walk from a jump, by a few places that were read last. Never touches a file. Read next:
//! [`super::spot`], which acts on it.
//!
//! Files are looked at in chunks of 2 MiB. A read goes on with a walk when it lies in the walk's chunk, the one
//! before, or the next one (where the frame that it lies in may begin earlier). Several readers in one chunk are
//! one walk.

use crate::disk::block_buf::BLOCK_BUF_BYTES;
use anabranch_core::id::Position;

/// Unit in which is loaded, read ahead and let go, in bytes of a segment's file.
pub(super) const CHUNK_BYTES: u64 = BLOCK_BUF_BYTES as u64;
/// Chunks read ahead of a walk.
pub(super) const AHEAD_CHUNKS: u32 = 2;
/// Reads after which it is a walk.
const WALK_AFTER_READS: u32 = 8;
/// Places remembered.
const WALKS_MAX: usize = 8;
/// A walk that is followed by another within this many bytes leaves what was read for it to that one.
const FOLLOW_BYTES: u64 = 64 * 1024 * 1024;

/// A chunk of a segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Chunk {
    /// Where the segment begins.
    pub(super) base: Position,
    pub(super) nth: u32,
}

impl Chunk {
    /// The chunk that has the byte at `offset` of a segment's file.
    pub(super) fn at(base: Position, offset: u64) -> Self {
        let nth = u32::try_from(offset / CHUNK_BYTES).unwrap_or(u32::MAX);
        Self { base, nth }
    }

    /// Its first byte in the file.
    pub(super) fn offset(self) -> u64 {
        u64::from(self.nth) * CHUNK_BYTES
    }

    /// About where it lies in the journal.
    fn position(self) -> u64 {
        self.base.0.saturating_add(self.offset())
    }
}

/// Where a read is, and what lies around it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Here {
    pub(super) chunk: Chunk,
    /// Chunk in which the frame begins that is read, or a part of which.
    pub(super) frame: Chunk,
    /// Chunk in which the segment's last frame begins.
    pub(super) last: Chunk,
    /// Where the segment ends: the next one begins there.
    pub(super) end: Position,
}

/// What a read is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// One of which nobody knows what follows.
    Jump,
    /// One of a walk.
    On,
    /// One by which the walk with this number enters a chunk.
    Entered(u64),
}

#[derive(Debug)]
struct Walk {
    id: u64,
    here: Here,
    before: Chunk,
    reads: u32,
    used: u64,
    /// The last chunk that was read ahead.
    ahead: Option<Chunk>,
}

impl Walk {
    fn is_one(&self) -> bool {
        self.reads >= WALK_AFTER_READS
    }

    fn goes_on(&self, read: &Here) -> bool {
        let at = self.here.chunk;
        if read.chunk == at || read.chunk == self.before {
            return true;
        }
        if read.chunk.base == at.base {
            return read.chunk > at && read.frame.nth <= at.nth.saturating_add(1);
        }
        read.chunk.base == self.here.end
            && read.frame.nth == 0
            && at.nth.saturating_add(1) >= self.here.last.nth
    }
}

/// The places that were read last.
#[derive(Debug, Default)]
pub(super) struct Walks {
    walks: Vec<Walk>,
    reads: u64,
    /// The last read when it was last looked who walks.
    rested: u64,
}

impl Walks {
    /// Takes note of a read.
    pub(super) fn step(&mut self, read: Here) -> Step {
        self.reads += 1;
        let fits = self.walks.iter_mut().filter(|walk| walk.goes_on(&read));
        let Some(walk) = fits.max_by_key(|walk| walk.used) else {
            self.begin(read);
            return Step::Jump;
        };
        walk.used = self.reads;
        let entered = read.chunk > walk.here.chunk;
        if entered {
            walk.before = walk.here.chunk;
            walk.here = read;
        }
        walk.reads = walk.reads.saturating_add(1);
        if walk.reads < WALK_AFTER_READS {
            Step::Jump
        } else if entered || walk.reads == WALK_AFTER_READS {
            let id = walk.id;
            // One that comes to where another one is takes it over.
            self.walks
                .retain(|walk| walk.id == id || walk.here.chunk != read.chunk);
            Step::Entered(id)
        } else {
            Step::On
        }
    }

    /// Remembers a place, in the room of one that is no walk, else of the one longest not used.
    fn begin(&mut self, read: Here) {
        if self.walks.len() >= WALKS_MAX {
            let unused = self.walks.iter().enumerate();
            let unused = unused.min_by_key(|(_, walk)| (walk.is_one(), walk.used));
            if let Some((nth, _)) = unused {
                self.walks.swap_remove(nth);
            }
        }
        self.walks.push(Walk {
            id: self.reads,
            here: read,
            before: read.chunk,
            reads: 1,
            used: self.reads,
            ahead: None,
        });
    }

    /// Of the chunks that a walk comes to, in their order, those that it did not ask for yet.
    pub(super) fn ahead(&mut self, id: u64, coming: &[Chunk]) -> Vec<Chunk> {
        let Some(walk) = self.walks.iter_mut().find(|walk| walk.id == id) else {
            return Vec::new();
        };
        let new = coming.iter().copied();
        let new: Vec<Chunk> = new.filter(|chunk| Some(*chunk) > walk.ahead).collect();
        walk.ahead = walk.ahead.max(new.last().copied());
        new
    }

    /// Forgets who did not walk on since this was last called.
    pub(super) fn rest(&mut self) {
        self.walks.retain(|walk| walk.used > self.rested);
        self.rested = self.reads;
    }

    /// How many bytes the walk that comes to a chunk first has before it; `None` when none comes to it soon. A walk goes
    /// on reading the chunk that it was in before.
    pub(super) fn distance_to(&self, chunk: Chunk) -> Option<u64> {
        let comes = self
            .walks
            .iter()
            .filter(|walk| walk.is_one() && walk.before <= chunk);
        let distances =
            comes.map(|walk| chunk.position().saturating_sub(walk.here.chunk.position()));
        distances.min().filter(|bytes| *bytes < FOLLOW_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 4 * CHUNK_BYTES;
    const FRAME: u64 = 64 * 1024;

    /// The read of a byte, in a journal of segments of four chunks.
    fn read(position: u64) -> Here {
        let base = Position(position / SEGMENT * SEGMENT);
        let offset = position - base.0;
        Here {
            chunk: Chunk::at(base, offset),
            frame: Chunk::at(base, offset / FRAME * FRAME),
            last: Chunk::at(base, SEGMENT - FRAME),
            end: Position(base.0 + SEGMENT),
        }
    }

    fn chunk(nth: u64) -> Chunk {
        read(nth * CHUNK_BYTES).chunk
    }

    /// Reads from chunk to chunk; gives the walk's number.
    fn walk(walks: &mut Walks, from: u64, to: u64) -> u64 {
        let mut number = None;
        for position in (from * CHUNK_BYTES..to * CHUNK_BYTES).step_by(1024) {
            if let Step::Entered(id) = walks.step(read(position)) {
                assert!(number.is_none_or(|number| number == id), "one walk");
                number = Some(id);
            }
        }
        number.unwrap()
    }

    #[test]
    fn a_walk_is_told_after_a_few_reads_and_enters_each_chunk_once() {
        let mut walks = Walks::default();
        let mut entered = Vec::new();
        for nth in 0..8 * CHUNK_BYTES / 1024 {
            match walks.step(read(nth * 1024)) {
                Step::Jump => assert!(nth < u64::from(WALK_AFTER_READS) - 1),
                Step::On => {}
                Step::Entered(_) => entered.push(nth),
            }
        }
        let chunks = (1..8).map(|nth| nth * CHUNK_BYTES / 1024);
        assert!(entered.into_iter().eq([7].into_iter().chain(chunks)));
    }

    #[test]
    fn jumps_never_become_a_walk_nor_end_one() {
        let mut walks = Walks::default();
        let id = walk(&mut walks, 1, 2);
        for nth in 0..1000u64 {
            let far = 100 + nth * 7919 % 900;
            assert_eq!(walks.step(read(far * CHUNK_BYTES)), Step::Jump, "{nth}");
        }
        assert_eq!(walks.step(read(2 * CHUNK_BYTES)), Step::Entered(id));
        assert_eq!(walks.walks.len(), WALKS_MAX);
    }

    #[test]
    fn records_larger_than_a_chunk_are_walked_too() {
        let mut walks = Walks::default();
        let mut steps = Vec::new();
        for nth in 0..20u64 {
            // A frame for each, which begins right after the one before; the record ends in its last chunk.
            let begin = nth * 3 / 2;
            let here = |nth: u64| Chunk {
                base: Position(0),
                nth: nth as u32,
            };
            steps.push(walks.step(Here {
                chunk: here(begin + 1),
                frame: here(begin),
                last: here(100),
                end: Position(101 * CHUNK_BYTES),
            }));
        }
        assert!(
            steps[8..].iter().all(|step| *step != Step::Jump),
            "{steps:?}"
        );
    }

    #[test]
    fn what_comes_is_asked_for_once() {
        let mut walks = Walks::default();
        let id = walk(&mut walks, 0, 1);
        let coming = |from: u64| -> Vec<Chunk> { (from..from + 3).map(chunk).collect() };
        assert_eq!(walks.ahead(id, &coming(0)), coming(0));
        assert_eq!(walks.ahead(id, &coming(1)), [chunk(3)]);
        assert_eq!(walks.ahead(id, &coming(1)), []);
        assert_eq!(walks.ahead(id + 1, &coming(1)), []);
    }

    #[test]
    fn a_chunk_is_wanted_by_who_is_there_and_who_follows() {
        let mut walks = Walks::default();
        let id = walk(&mut walks, 200, 205);
        let wanted = |walks: &Walks, nth| walks.distance_to(chunk(nth));
        // The chunk before the one that is read is still read.
        assert_eq!(wanted(&walks, 202), None);
        assert_eq!(wanted(&walks, 203), Some(0));
        assert_eq!(wanted(&walks, 208), Some(4 * CHUNK_BYTES));
        assert_eq!(wanted(&walks, 204 + 64), None);
        // What the one in front has left behind is another's soon.
        let follower = walk(&mut walks, 180, 182);
        assert_eq!(wanted(&walks, 202), Some(21 * CHUNK_BYTES));
        assert_eq!(wanted(&walks, 208), Some(4 * CHUNK_BYTES));
        assert_eq!(walk(&mut walks, 182, 204), follower);
        // They meet, and are one from then on.
        let mut entered = Vec::new();
        for nth in 204..212 {
            if let Step::Entered(id) = walks.step(read(nth * CHUNK_BYTES)) {
                entered.push(id);
            }
        }
        assert!(entered.contains(&id) || entered.contains(&follower));
        assert_eq!(walks.walks.len(), 1);
        assert_eq!(wanted(&walks, 209), None);
    }
}
