//! Streams that have ended, until the last of their entries is gone.
//!
//! To all that asks, a stream is gone with the record that ends it. Its chunks go some in each round, so that nobody waits
//! for a long one; until then its pages of the journal and its blocks are in use.
//!
//! Owns: the streams that wait, and how much of them goes in a round.
//! Never: takes a stream out of what knows it (`apply.rs`).
//! Next: `stream/ended.rs`.

use super::{Place, Shard};
use crate::stream::{Serial, Stream};
use std::collections::VecDeque;

/// Chunks that go in one round: some 4000 entries, and as many blocks read at most as an index file gives in a
/// fraction of a millisecond.
const CHUNKS_MAX: usize = 16;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Ended<B: Place>(VecDeque<Box<Stream<B>>>);

impl<B: Place> Default for Ended<B> {
    fn default() -> Ended<B> {
        Ended(VecDeque::new())
    }
}

impl<B: Place> Ended<B> {
    /// One that a checkpoint has.
    pub(super) fn push(&mut self, stream: Box<Stream<B>>) {
        self.0.push_back(stream);
    }

    pub(super) fn find(&mut self, serial: Serial) -> Option<&mut Stream<B>> {
        let mut all = self.0.iter_mut();
        all.find_map(|stream| (stream.serial == serial).then_some(&mut **stream))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream<B>> {
        self.0.iter().map(|stream| &**stream)
    }
}

impl<B: Place> Shard<B> {
    /// A stream was taken out of everything that knows it.
    pub(super) fn end_stream(&mut self, mut stream: Box<Stream<B>>) {
        // Most have no more than that.
        if self.free_some(&mut stream) {
            stream.retire();
            self.ended.0.push_back(stream);
        }
    }

    /// Frees some of what has ended; says whether there is more.
    pub(super) fn free_ended(&mut self) -> bool {
        if let Some(mut stream) = self.ended.0.pop_front()
            && self.free_some(&mut stream)
        {
            self.ended.0.push_front(stream);
        }
        !self.ended.0.is_empty()
    }

    fn free_some(&mut self, stream: &mut Stream<B>) -> bool {
        let more = stream.free_chunks(CHUNKS_MAX, |weight| self.referred.remove(weight));
        if !more {
            stream.bury();
        }
        more
    }
}
