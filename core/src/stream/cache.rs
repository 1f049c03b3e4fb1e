//! Rows of chunks that lie in blocks, as far as they are in memory.
//!
//! Rows whose blocks are not known to be durable stay; of the others those that came first go when there is too much.
//!
//! Owns: [`Cache`]. Never: reads a block (`index.rs`).

use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// The words of a chunk's rows.
pub(super) type Words = Arc<Vec<u64>>;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Cache {
    rows: FxHashMap<u32, (u64, Words)>,
    /// In the order they came, with the number of the coming: a block may have come again.
    order: VecDeque<(u32, u64)>,
    pinned: VecDeque<(u32, u64)>,
    comings: u64,
    bytes: usize,
    /// Rows that went for want of room.
    evicted: u64,
    pub(super) bytes_max: usize,
}

/// Rows in memory, and what keeping them takes.
fn bytes_of(words: &Words) -> usize {
    words.capacity() * 8 + 96
}

impl Cache {
    pub(super) fn get(&self, block: u32) -> Option<Words> {
        self.rows.get(&block).map(|(_, words)| words.clone())
    }

    /// Takes rows in that were read from a durable block.
    pub(super) fn insert(&mut self, block: u32, words: Words) {
        let coming = self.put(block, words);
        self.order.push_back((block, coming));
        self.shrink();
    }

    /// Takes rows in whose block is still to be written.
    pub(super) fn pin(&mut self, block: u32, words: Words) {
        let coming = self.put(block, words);
        self.pinned.push_back((block, coming));
    }

    fn put(&mut self, block: u32, words: Words) -> u64 {
        self.remove(block);
        self.comings += 1;
        self.bytes += bytes_of(&words);
        self.rows.insert(block, (self.comings, words));
        self.comings
    }

    /// Takes rows out.
    pub(super) fn remove(&mut self, block: u32) -> Option<Words> {
        let (_, words) = self.rows.remove(&block)?;
        self.bytes -= bytes_of(&words);
        Some(words)
    }

    /// All that was pinned is durable.
    pub(super) fn unpin(&mut self) {
        self.order.append(&mut self.pinned);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > self.bytes_max
            && let Some((block, coming)) = self.order.pop_front()
        {
            if self
                .rows
                .get(&block)
                .is_some_and(|(came, _)| *came == coming)
            {
                self.remove(block);
                self.evicted += 1;
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Words {
        Arc::new(vec![0; 500])
    }

    #[test]
    fn what_came_first_goes_first_unless_it_is_pinned() {
        let mut cache = Cache {
            bytes_max: 2 * bytes_of(&words()),
            ..Cache::default()
        };
        cache.pin(1, words());
        for block in 2..5 {
            cache.insert(block, words());
        }
        let has = |cache: &Cache| [1, 2, 3, 4].map(|block| cache.get(block).is_some());
        assert_eq!(has(&cache), [true, false, false, true]);
        cache.unpin();
        cache.insert(2, words());
        assert_eq!(has(&cache), [true, true, false, false]);
        assert_eq!(cache.evicted(), 3);
        assert_eq!(cache.bytes(), 2 * bytes_of(&words()));
        cache.remove(2);
        cache.pin(2, words());
        cache.insert(3, words());
        cache.insert(4, words());
        assert!(
            has(&cache)[1],
            "an earlier coming of a pinned block is forgotten"
        );
    }
}
