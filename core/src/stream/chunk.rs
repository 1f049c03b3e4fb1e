//! A part of a stream: the entries of some consecutive offsets, which of them are gone, and what they are doing.
//!
//! Owns: one chunk, and all of a stream in the order of their numbers. A chunk of which everything is gone is not
//! there.
//! Never: where the stream begins and ends, how far it is handed out (`stream.rs`).

use super::Entry;
use super::bits::{Bits, CHUNK_OFFSETS};
use super::slots::{Slot, SlotState, Slots};
use std::collections::VecDeque;

const OFFSETS: u64 = CHUNK_OFFSETS as u64;

/// The chunk of an offset, and its place there.
pub(super) fn place(offset: u64) -> (u64, usize) {
    (offset / OFFSETS, (offset % OFFSETS) as usize)
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Chunk<B> {
    pub(super) number: u64,
    /// Places of which nothing is left, also those that were before the first entry.
    pub(super) gone: Bits,
    /// How many entries are not gone.
    pub(super) present: u16,
    /// Place of the first row.
    from: u8,
    rows: Vec<Option<Entry<B>>>,
    pub(super) slots: Slots,
}

impl<B: Clone> Chunk<B> {
    /// For the entries from this offset on.
    fn new(offset: u64) -> Chunk<B> {
        let (number, at) = place(offset);
        Chunk {
            number,
            gone: Bits::below(at),
            present: 0,
            from: at as u8,
            rows: Vec::new(),
            slots: Slots::default(),
        }
    }

    /// The same memory for the entries from this offset on; nothing of it may be left.
    pub(super) fn renew(&mut self, offset: u64) {
        let (number, at) = place(offset);
        self.number = number;
        self.gone = Bits::below(at);
        self.from = at as u8;
        self.rows.clear();
        self.slots.clear();
    }

    /// The first offset that belongs here.
    pub(super) fn start(&self) -> u64 {
        self.number * OFFSETS
    }

    /// How many of its places lie below an offset.
    pub(super) fn below(&self, offset: u64) -> usize {
        offset.saturating_sub(self.start()).min(OFFSETS) as usize
    }

    fn push(&mut self, entry: Entry<B>) {
        if self.rows.capacity() == 0 {
            self.rows.reserve_exact(1);
        }
        self.rows.push(Some(entry));
        self.present += 1;
    }

    fn row(&self, at: usize) -> Option<&Entry<B>> {
        let nth = at.checked_sub(usize::from(self.from))?;
        self.rows.get(nth)?.as_ref()
    }

    pub(super) fn entry(&self, at: usize) -> Option<Entry<B>> {
        self.row(at).cloned()
    }

    /// What an entry costs, and the bytes of its body.
    pub(super) fn weight(&self, at: usize) -> (u64, u64) {
        self.row(at).map_or((0, 0), |entry| {
            (u64::from(entry.cost_bytes), u64::from(entry.body_bytes))
        })
    }

    /// An entry is gone.
    pub(super) fn remove(&mut self, at: usize) {
        self.gone.set(at);
        self.present -= 1;
        let nth = at - usize::from(self.from);
        if let Some(row) = self.rows.get_mut(nth) {
            *row = None;
        }
    }

    pub(super) fn slot(&self, at: usize) -> Slot {
        self.slots.get(at)
    }

    /// What a place below the cursor is doing.
    pub(super) fn state(&self, at: usize) -> SlotState {
        match self.gone.has(at) {
            true => SlotState::Gone,
            false => self.slots.get(at).state(),
        }
    }

    /// Sets a place; the stream is handed out up to `cursor`.
    pub(super) fn set(&mut self, at: usize, slot: Slot, cursor: u64) {
        let to = self.below(cursor);
        let from = self.gone.first_without(0, to).unwrap_or(to);
        self.slots.set(at, slot, (from, to));
    }

    /// Places below `to` whose entries are not gone.
    pub(super) fn kept(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + use<B> {
        let gone = self.gone;
        let mut next = from;
        std::iter::from_fn(move || {
            let at = gone.first_without(next, to)?;
            next = at + 1;
            Some(at)
        })
    }
}

/// All chunks of a stream.
#[derive(Debug)]
pub(super) struct Chunks<B>(VecDeque<Chunk<B>>);

impl<B> Default for Chunks<B> {
    fn default() -> Chunks<B> {
        Chunks(VecDeque::new())
    }
}

impl<B: Clone> Chunks<B> {
    /// Where the chunk of a number is, or would be.
    pub(super) fn find(&self, number: u64) -> Result<usize, usize> {
        let Some(front) = self.0.front() else {
            return Err(0);
        };
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

    /// Puts an entry in behind all others, at this offset.
    pub(super) fn push(&mut self, offset: u64, entry: Entry<B>) {
        let (number, _) = place(offset);
        if self.0.back().is_none_or(|last| last.number != number) {
            if self.0.is_empty() {
                self.0.reserve_exact(1);
            }
            self.0.push_back(Chunk::new(offset));
        }
        if let Some(last) = self.0.back_mut() {
            last.push(entry);
        }
    }

    /// Nothing is left of a chunk of a stream that ends at `end`. The memory of the last one serves what comes.
    pub(super) fn emptied(&mut self, nth: usize, end: u64) {
        if nth + 1 < self.0.len() {
            self.0.remove(nth);
        } else if let Some(last) = self.0.back_mut() {
            last.renew(end);
        }
    }

    /// The lowest offset that is not gone.
    pub(super) fn first_kept(&self) -> Option<u64> {
        let chunk = self.0.front().filter(|chunk| chunk.present > 0)?;
        let at = chunk.gone.first_without(0, CHUNK_OFFSETS)?;
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
