//! Who reads the files front to back, and where: what is read ahead of such a reader, and what behind it can go.
//!
//! Owns: telling a walk from a jump, by a few places that were read last. Never touches a file. Read next:
//! [`super::spot`], which acts on it.
//!
//! Files are looked at in chunks of 1 MiB. A read goes on with a walk when it lies in the walk's chunk, the one
//! before, or the next one (where the frame that it lies in may begin earlier). Several readers in one chunk are
//! one walk.

use anabranch_core::id::Position;

/// Unit in which is loaded, read ahead and let go, in bytes of a segment's file.
pub(super) const CHUNK_BYTES: u64 = 1024 * 1024;
/// Chunks read ahead of a walk.
pub(super) const AHEAD_CHUNKS: u32 = 4;
/// Reads after which it is a walk.
const WALK_AFTER_READS: u32 = 8;
/// Places remembered.
const WALKS_MAX: usize = 8;
/// Chunks that a walk remembers to have had read: more are left to the system.
const BROUGHT_MAX: usize = 256;
/// A walk that is followed by another within this many bytes leaves what it has read to that one.
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
    /// Chunks that were in nobody's cache before.
    brought: Vec<Chunk>,
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
            self.join(id, read.chunk);
            Step::Entered(id)
        } else {
            Step::On
        }
    }

    /// A walk that comes to where another one is takes it over.
    fn join(&mut self, id: u64, at: Chunk) {
        let mut brought = Vec::new();
        self.walks.retain_mut(|walk| {
            let is_other = walk.id != id && walk.here.chunk == at;
            if is_other {
                brought.append(&mut walk.brought);
            }
            !is_other
        });
        self.brought(id, brought);
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
            brought: Vec::new(),
        });
    }

    fn walk(&mut self, id: u64) -> Option<&mut Walk> {
        self.walks.iter_mut().find(|walk| walk.id == id)
    }

    /// Of the chunks that a walk comes to, in their order, those that it did not ask for yet.
    pub(super) fn ahead(&mut self, id: u64, coming: &[Chunk]) -> Vec<Chunk> {
        let Some(walk) = self.walk(id) else {
            return Vec::new();
        };
        let new = coming.iter().copied();
        let new: Vec<Chunk> = new.filter(|chunk| Some(*chunk) > walk.ahead).collect();
        walk.ahead = walk.ahead.max(new.last().copied());
        new
    }

    /// Notes chunks that were not in the system's cache before the walk asked for them.
    pub(super) fn brought(&mut self, id: u64, chunks: Vec<Chunk>) {
        if let Some(walk) = self.walk(id) {
            let room = BROUGHT_MAX.saturating_sub(walk.brought.len());
            walk.brought.extend(chunks.into_iter().take(room));
        }
    }

    /// Chunks behind a walk that nobody else is about to read, as far as the walk had them read. Those after
    /// the position `fresh` stay: readers at the end want them.
    pub(super) fn behind(&mut self, id: u64, fresh: Position) -> Vec<Chunk> {
        let Some(walk) = self.walk(id) else {
            return Vec::new();
        };
        let kept_from = walk.before;
        let (passed, kept) = walk.brought.drain(..).partition(|one| *one < kept_from);
        walk.brought = kept;
        let mut passed: Vec<Chunk> = passed;
        passed.retain(|chunk| {
            let at = chunk.position();
            let follows = |walk: &&mut Walk| {
                let distance = at.checked_sub(walk.here.chunk.position());
                walk.id != id && walk.is_one() && distance.is_some_and(|far| far < FOLLOW_BYTES)
            };
            if let Some(follower) = self.walks.iter_mut().find(follows) {
                if follower.brought.len() < BROUGHT_MAX {
                    follower.brought.push(*chunk);
                }
                return false;
            }
            at + CHUNK_BYTES <= fresh.0
        });
        passed
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
        assert_eq!(entered, [7, 1024, 2048, 3072, 4096, 5120, 6144, 7168]);
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
    fn only_what_a_walk_brought_and_nobody_follows_goes_behind_it() {
        let mut walks = Walks::default();
        let end = Position(u64::MAX);
        let id = walk(&mut walks, 200, 205);
        walks.brought(id, vec![chunk(200), chunk(202), chunk(203), chunk(204)]);
        // The chunk before the one that is read stays.
        assert_eq!(walks.behind(id, end), [chunk(200), chunk(202)]);
        assert_eq!(walks.behind(id, end), []);
        // What is near the end stays for good.
        assert_eq!(walk(&mut walks, 205, 206), id);
        assert_eq!(walks.behind(id, Position(200 * CHUNK_BYTES)), []);
        // A follower gets what the one in front brought.
        assert_eq!(walk(&mut walks, 206, 208), id);
        let follower = walk(&mut walks, 180, 182);
        walks.brought(id, vec![chunk(205)]);
        assert_eq!(walks.behind(id, end), []);
        assert_eq!(walk(&mut walks, 182, 204), follower);
        assert_eq!(walks.behind(follower, end), []);
        // They meet, and are one from then on.
        let mut entered = Vec::new();
        for nth in 204..212 {
            if let Step::Entered(id) = walks.step(read(nth * CHUNK_BYTES)) {
                entered.push(id);
            }
        }
        assert!(!entered.is_empty());
        let gone: Vec<Chunk> = [id, follower]
            .into_iter()
            .flat_map(|id| walks.behind(id, end))
            .collect();
        assert_eq!(gone, [chunk(204), chunk(205)]);
    }
}
