//! A reader's own place in a stream whose messages stay.
//!
//! Owns: [`Cursor`]: what comes next, which messages are wanted, what was handed out and is not settled. That is all a
//! reader that lags takes of memory.
//! Never: the stream's messages, the limit of what is unsettled (`dispatch/reader.rs`).
//! Next: `shard/replay.rs`, which moves it.

use crate::gateway::ValueFilter;
use std::collections::VecDeque;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Cursor {
    next: u64,
    only: Option<ValueFilter>,
    /// In order.
    unsettled: VecDeque<u64>,
}

impl Cursor {
    /// The next message is the one of this offset.
    pub fn new(next: u64, only: Option<ValueFilter>) -> Cursor {
        Cursor {
            next,
            only,
            unsettled: VecDeque::new(),
        }
    }

    /// The offset that comes next; what lies below `first` is there no more.
    pub fn next(&self, first: u64) -> u64 {
        self.next.max(first)
    }

    /// Which messages are wanted; absent is all.
    pub fn only(&self) -> Option<&ValueFilter> {
        self.only.as_ref()
    }

    /// Goes on behind an offset, which is not handed out.
    pub fn pass(&mut self, offset: u64) {
        self.next = offset + 1;
    }

    /// Hands an offset out.
    pub fn hold(&mut self, offset: u64) {
        self.pass(offset);
        self.unsettled.push_back(offset);
    }

    /// Takes the offsets from `first` to `last` as settled; returns how many of them were not yet.
    pub fn settle(&mut self, first: u64, last: u64) -> u32 {
        let from = self.unsettled.partition_point(|offset| *offset < first);
        let to = self.unsettled.partition_point(|offset| *offset <= last);
        if from >= to {
            return 0;
        }
        let settled = self.unsettled.drain(from..to).count();
        if self.unsettled.is_empty() && self.unsettled.capacity() > 1024 {
            self.unsettled = VecDeque::new();
        }
        settled as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_settled_counts_once_whatever_lies_between() {
        let mut cursor = Cursor::new(3, None);
        assert_eq!((cursor.next(0), cursor.next(5)), (3, 5));
        for offset in [5, 6, 9] {
            cursor.hold(offset);
        }
        cursor.pass(10);
        assert_eq!(cursor.next(0), 11);
        assert_eq!(cursor.settle(6, 8), 1);
        assert_eq!(cursor.settle(0, 20), 2);
        assert_eq!(cursor.settle(0, u64::MAX), 0);
        assert_eq!(cursor.settle(7, 3), 0, "a range the wrong way round");
    }
}
