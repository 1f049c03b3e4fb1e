//! Several runs read as one: pairs in the order of their keys, the highest run's value of each key.
//!
//! Owns: the merge, with one piece of each run in memory at a time. Never drops a key that went: what
//! lies beneath decides whether that still matters. Read next: [`super::run`].

use super::run::{Change, RunError, RunReader};
use bytes::Bytes;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The merged runs.
pub(super) struct Merge {
    /// Lowest first.
    readers: Vec<RunReader>,
    heads: BinaryHeap<Reverse<Head>>,
}

/// The next pair of one run.
struct Head {
    key: Bytes,
    value: Option<Bytes>,
    run: usize,
}

impl Ord for Head {
    /// By key; of the same key the highest run's comes first.
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key).then(other.run.cmp(&self.run))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

impl Merge {
    /// Begins with runs, lowest first.
    pub(super) fn new(readers: Vec<RunReader>) -> Result<Merge, RunError> {
        let mut merge = Merge {
            heads: BinaryHeap::with_capacity(readers.len()),
            readers,
        };
        for run in 0..merge.readers.len() {
            merge.advance(run)?;
        }
        Ok(merge)
    }

    /// Bytes of all runs read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.readers.iter().map(RunReader::bytes_read).sum()
    }

    /// The next key and its value; `None` at the end, where all runs are known to be whole.
    pub(super) fn next(&mut self) -> Result<Option<Change>, RunError> {
        let Some(Reverse(first)) = self.heads.pop() else {
            return Ok(None);
        };
        self.advance(first.run)?;
        while self
            .heads
            .peek()
            .is_some_and(|Reverse(head)| head.key == first.key)
        {
            if let Some(Reverse(beneath)) = self.heads.pop() {
                self.advance(beneath.run)?;
            }
        }
        Ok(Some((first.key, first.value)))
    }

    fn advance(&mut self, run: usize) -> Result<(), RunError> {
        if let Some((key, value)) = self.readers[run].next()? {
            self.heads.push(Reverse(Head { key, value, run }));
        }
        Ok(())
    }
}
