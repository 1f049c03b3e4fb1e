//! Which blocks of the index file are free.
//!
//! A block that a chunk no longer needs is named by the checkpoint before, and may be by the one before that: it rests
//! until neither of the two newest durable checkpoints names it.
//!
//! Owns: [`Allocator`]. Never: what is in a block.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// See the module's text. The first block is never used, so that 0 is no block.
#[derive(Debug)]
pub(super) struct Allocator {
    /// The first that was never used.
    end: u32,
    free: BinaryHeap<Reverse<u32>>,
    /// Not needed since the last freeze.
    released: Vec<u32>,
    /// Not named by the checkpoint that is being copied.
    frozen: Vec<u32>,
    /// Not named by what was copied and is not known to be durable.
    copied: Vec<u32>,
    /// Not named by the newest durable checkpoint.
    resting: Vec<u32>,
}

impl Default for Allocator {
    fn default() -> Allocator {
        Allocator {
            end: 1,
            free: BinaryHeap::new(),
            released: Vec::new(),
            frozen: Vec::new(),
            copied: Vec::new(),
            resting: Vec::new(),
        }
    }
}

impl Allocator {
    /// A block that no checkpoint names which might be opened. `None` when there is no number left for one.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        if let Some(Reverse(block)) = self.free.pop() {
            return Some(block);
        }
        let block = self.end;
        self.end = self.end.checked_add(1)?;
        Some(block)
    }

    /// It is not needed any more.
    pub(super) fn release(&mut self, block: u32) {
        self.released.push(block);
    }

    /// The checkpoint that is being copied has another in its stead.
    pub(super) fn replace(&mut self, block: u32) {
        self.frozen.push(block);
    }

    pub(super) fn freeze(&mut self) {
        self.frozen.append(&mut self.released);
    }

    pub(super) fn copied(&mut self) {
        self.copied.append(&mut self.frozen);
    }

    pub(super) fn written(&mut self) {
        let rested = std::mem::replace(&mut self.resting, std::mem::take(&mut self.copied));
        self.free.extend(rested.into_iter().map(Reverse));
    }

    /// The first that was never used: kept in checkpoints.
    pub(super) fn end(&self) -> u32 {
        self.end
    }

    /// How many blocks are in use, and how many of those that ever were are not.
    pub(super) fn used_and_free(&self) -> (u64, u64) {
        let lists = [&self.released, &self.frozen, &self.copied, &self.resting];
        let free = self.free.len() + lists.into_iter().map(Vec::len).sum::<usize>();
        let ever = u64::from(self.end - 1);
        (ever.saturating_sub(free as u64), free as u64)
    }

    /// A checkpoint names these, ascending, and all others below `end` may be named by the one before it. One that is
    /// named twice is in use all the same, and so are those behind it.
    pub(super) fn restore(&mut self, end: u32, named: &[u32]) {
        let last = named.last().map_or(0, |last| *last);
        self.end = end.max(last.saturating_add(1)).max(1);
        let mut named = named.iter().copied().peekable();
        for block in 1..self.end {
            let mut is_named = false;
            while named.next_if_eq(&block).is_some() {
                is_named = true;
            }
            if !is_named {
                self.resting.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_rests_until_two_later_checkpoints_are_durable() {
        let mut blocks = Allocator::default();
        let first = blocks.allocate();
        assert_eq!((first, blocks.allocate()), (Some(1), Some(2)));
        let next = |blocks: &mut Allocator| {
            blocks.freeze();
            blocks.copied();
            blocks.written();
        };
        next(&mut blocks);
        blocks.release(1);
        // Named by the checkpoint before.
        next(&mut blocks);
        assert_eq!(blocks.allocate(), Some(3));
        next(&mut blocks);
        assert_eq!(blocks.allocate(), Some(1));
    }

    #[test]
    fn a_checkpoint_that_could_not_be_written_frees_nothing() {
        let mut blocks = Allocator::default();
        blocks.allocate();
        blocks.release(1);
        blocks.freeze();
        blocks.copied();
        blocks.freeze();
        blocks.copied();
        assert_eq!(blocks.allocate(), Some(2));
        blocks.written();
        assert_eq!(blocks.allocate(), Some(3));
        blocks.written();
        assert_eq!(blocks.allocate(), Some(1));
    }

    #[test]
    fn after_a_restart_what_the_checkpoint_before_may_name_rests() {
        let mut blocks = Allocator::default();
        blocks.restore(5, &[2, 4]);
        assert_eq!(blocks.allocate(), Some(5));
        blocks.written();
        assert_eq!((blocks.allocate(), blocks.allocate()), (Some(1), Some(3)));
        assert_eq!(blocks.allocate(), Some(6));
    }

    #[test]
    fn a_block_that_is_named_twice_frees_none_behind_it() {
        let mut blocks = Allocator::default();
        blocks.restore(5, &[2, 2, 4]);
        blocks.written();
        assert_eq!((blocks.allocate(), blocks.allocate()), (Some(1), Some(3)));
        assert_eq!(blocks.allocate(), Some(5));
    }
}
