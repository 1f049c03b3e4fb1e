//! The chunks of a stream, in the order of their numbers.
//!
//! Owns: finding one, which are there. A chunk of which everything is gone is not there, but for the last one: where
//! nothing is journalled its memory serves what comes, elsewhere it stays until the next checkpoint knows.
//! Never: what is in a chunk (`chunk.rs`), where the stream begins and ends (`stream.rs`).

use super::Entry;
use super::bits::{Bits, CHUNK_OFFSETS};
use super::chunk::{Chunk, Of, place};
use super::place::Place;
use std::collections::VecDeque;

/// All chunks of a stream.
#[derive(Debug)]
pub(super) struct Chunks<B: Place>(VecDeque<Chunk<B>>);

impl<B: Place> Default for Chunks<B> {
    fn default() -> Chunks<B> {
        Chunks(VecDeque::new())
    }
}

impl<B: Place> Chunks<B> {
    /// Where the chunk of a number is, or would be.
    #[inline]
    pub(super) fn find(&self, number: u64) -> Result<usize, usize> {
        match self.0.front() {
            Some(front) if front.number == number => Ok(0),
            Some(front) => self.find_behind(front, number),
            None => Err(0),
        }
    }

    fn find_behind(&self, front: &Chunk<B>, number: u64) -> Result<usize, usize> {
        let Some(guess) = number.checked_sub(front.number) else {
            return Err(0);
        };
        let guess = usize::try_from(guess).unwrap_or(usize::MAX);
        match self.0.get(guess) {
            Some(chunk) if chunk.number == number => Ok(guess),
            _ => self.0.binary_search_by_key(&number, |chunk| chunk.number),
        }
    }

    pub(super) fn at(&self, nth: usize) -> Option<&Chunk<B>> {
        self.0.get(nth)
    }

    pub(super) fn at_mut(&mut self, nth: usize) -> Option<&mut Chunk<B>> {
        self.0.get_mut(nth)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Chunk<B>> {
        self.0.get(self.find(number).ok()?)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Chunk<B>> {
        let nth = self.find(number).ok()?;
        self.0.get_mut(nth)
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The number of the last one.
    pub(super) fn last(&self) -> Option<u64> {
        self.0.back().map(|chunk| chunk.number)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Chunk<B>> {
        self.0.iter_mut()
    }

    /// Puts an entry in behind all others, at this offset.
    pub(super) fn push(&mut self, offset: u64, entry: Entry<B>, of: Of<'_>) {
        let (number, at) = place(offset);
        if self.0.back().is_none_or(|last| last.number != number) {
            if self.0.is_empty() {
                self.0.reserve_exact(1);
            }
            self.0.push_back(Chunk::new(offset));
        }
        if let Some(last) = self.0.back_mut() {
            last.push(at, entry, of);
        }
    }

    /// Puts one in behind all others, as a checkpoint has it.
    pub(super) fn restore(&mut self, number: u64, gone: Bits, present: u16, rows: B::Rows) {
        if self.0.is_empty() {
            self.0.reserve_exact(1);
        }
        self.0
            .push_back(Chunk::restored(number, gone, present, rows));
    }

    /// Nothing is left of a chunk of a stream that ends at `end`.
    pub(super) fn emptied(&mut self, nth: usize, end: u64, (index, who): Of<'_>) {
        let is_last = nth + 1 == self.0.len();
        let Some(chunk) = self.0.get_mut(nth) else {
            return;
        };
        if is_last && (index.is_none() || chunk.number == place(end).0) {
            return chunk.renew(end);
        }
        if let Some(index) = index {
            chunk.leave(who.serial, &mut index.lock());
        }
        self.0.remove(nth);
        if self.0.is_empty() && self.0.capacity() > 4 {
            self.0 = VecDeque::new();
        }
    }

    /// Takes the first one out, whatever is in it.
    pub(super) fn pop_first(&mut self) -> Option<Chunk<B>> {
        self.0.pop_front()
    }

    /// A chunk of which nothing is left, and that no checkpoint has any more, goes.
    pub(super) fn forget_empty(&mut self, number: u64) {
        if let Ok(nth) = self.find(number)
            && self.0[nth].is_nothing()
        {
            self.0.remove(nth);
        }
    }

    /// The lowest offset that is not gone.
    pub(super) fn first_kept(&self) -> Option<u64> {
        let chunk = self.0.front().filter(|chunk| chunk.present > 0)?;
        let at = chunk.gone.first_without(0, CHUNK_OFFSETS)?;
        Some(chunk.start() + at as u64)
    }

    /// The highest offset that is not gone, of a stream that ends at `end`.
    pub(super) fn last_kept(&self, end: u64) -> Option<u64> {
        let mut chunks = self.0.iter().rev();
        let chunk = chunks.find(|chunk| chunk.present > 0)?;
        let at = chunk.kept(0, chunk.below(end)).last()?;
        Some(chunk.start() + at as u64)
    }

    /// Those with offsets from this one on.
    pub(super) fn from(&self, offset: u64) -> impl Iterator<Item = &Chunk<B>> {
        let (Ok(nth) | Err(nth)) = self.find(place(offset).0);
        self.0.range(nth..)
    }

    /// Those with offsets from `from` on and below `to`, with where they are.
    pub(super) fn between(&self, from: u64, to: u64) -> std::ops::Range<usize> {
        let (Ok(first) | Err(first)) = self.find(place(from).0);
        let last = match to.checked_sub(1) {
            Some(last) => self.find(place(last).0),
            None => Err(0),
        };
        let end = match last {
            Ok(nth) => nth + 1,
            Err(nth) => nth,
        };
        first..end.max(first)
    }
}
