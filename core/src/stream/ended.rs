//! What is left of a stream that has ended: entries that nobody sees, which go some chunks at a time.
//!
//! Each chunk that goes names its blocks and what it refers to in the journal, so its rows may have to be read: of a
//! long stream that is no work for one step. In checkpoints it is a stream like any other, under an id of its own, so
//! that whatever is left after a crash goes on going.
//!
//! Owns: these steps. Never: when they are taken (`shard/ended.rs`).

use super::{Place, Stream, Weight};
use crate::dispatch::Readers;
use crate::id::StreamId;
use crate::limits::StreamLimits;
use crate::stream::{KeptBounds, Kind};
use std::sync::Arc;

impl<B: Place> Stream<B> {
    /// It has ended: from now on it is entries and nothing else.
    pub(crate) fn retire(&mut self) {
        self.touch();
        self.id = StreamId::of_ended(self.serial.0);
        self.name = Arc::default();
        self.kind = Kind::Queue;
        self.limits = StreamLimits::default().into();
        self.readers = Readers::default();
        self.bounds = KeptBounds::default();
        (self.keyed, self.owed) = (None, None);
        (self.postponed, self.more_identifiers) = (None, None);
    }

    /// The first so many of its chunks go, naming the weight of each entry for the last time. Says whether some are left.
    pub(crate) fn free_chunks(&mut self, most: usize, mut each: impl FnMut(Weight)) -> bool {
        for _ in 0..most {
            let Some(mut chunk) = self.chunks.pop_first() else {
                break;
            };
            if let Some(index) = &self.index {
                chunk.each_weight(self.end, self.of(), &mut each);
                chunk.bury(self.serial, &mut index.lock());
            }
        }
        self.chunks.last().is_some()
    }
}
