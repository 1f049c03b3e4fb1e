//! A part of a stream: the entries of some consecutive offsets, which of them are gone, and what they are doing.
//!
//! Owns: one chunk, and all of a stream in the order of their numbers. A chunk of which everything is gone is not
//! there, but for the last one: where nothing is journalled its memory serves what comes, elsewhere it stays until the
//! next checkpoint knows.
//! Never: where the stream begins and ends, how far it is handed out (`stream.rs`).
//! Next: `place.rs` (its rows), `slots.rs`, `index.rs` (who copies it when).

use super::Entry;
use super::bits::{Bits, CHUNK_OFFSETS};
use super::index::{Gone, Home, Index, Serial, State, Who, chunk_key};
use super::place::{Place, Rows, Weight};
use super::saved::SavedChunk;
use super::slots::{Slot, SlotState, Slots};
use std::collections::VecDeque;

const OFFSETS: u64 = CHUNK_OFFSETS as u64;

/// The chunk of an offset, and its place there.
pub(super) fn place(offset: u64) -> (u64, usize) {
    (offset / OFFSETS, (offset % OFFSETS) as usize)
}

/// The index and the stream that a chunk belongs to.
pub(super) type Of<'a> = (Option<&'a Index>, Who);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Chunk<B: Place> {
    pub(super) number: u64,
    /// Places of which nothing is left, also those that were before the first entry.
    pub(super) gone: Bits,
    /// How many entries are not gone.
    pub(super) present: u16,
    /// It has all its entries, and no checkpoint has it: so it was counted.
    unsaved: bool,
    /// A checkpoint has a pair of it.
    saved: bool,
    /// The epoch in which it came to be listed as changed; 0 when it is as the last checkpoint has it.
    marked: u32,
    rows: B::Rows,
    pub(super) slots: Slots,
}

impl<B: Place> Chunk<B> {
    /// For the entries from this offset on.
    fn new(offset: u64) -> Chunk<B> {
        let (number, at) = place(offset);
        let mut rows = B::Rows::default();
        rows.renew(at);
        Chunk {
            number,
            gone: Bits::below(at),
            present: 0,
            unsaved: false,
            saved: false,
            marked: 0,
            rows,
            slots: Slots::default(),
        }
    }

    /// For the entries from this offset on; nothing of it may be left.
    fn renew(&mut self, offset: u64) {
        let (number, at) = place(offset);
        self.number = number;
        self.gone = Bits::below(at);
        self.rows.renew(at);
        self.slots.clear();
    }

    fn home<'a>(&self, (index, who): Of<'a>) -> Home<'a> {
        Home {
            index,
            stream: who.serial,
            number: self.number,
        }
    }

    /// It is about to change.
    pub(super) fn touch(&mut self, of: Of<'_>) {
        if let Some(index) = of.0
            && self.marked != index.epoch()
        {
            self.mark(of.1, index);
        }
    }

    #[cold]
    fn mark(&mut self, who: Who, index: &Index) {
        let mut state = index.lock();
        if state.is_uncopied(self.marked) {
            self.copy(who.serial, &mut state);
        }
        self.marked = index.epoch();
        state.chunk_changed(who, self.number);
    }

    /// Copies it into the checkpoint that is being made, unless that was done.
    pub(super) fn copy_listed(&mut self, stream: Serial, state: &mut State) {
        if state.is_uncopied(self.marked) {
            self.copy(stream, state);
            self.marked = 0;
        }
    }

    fn copy(&mut self, stream: Serial, state: &mut State) {
        let home = Home {
            index: None,
            stream,
            number: self.number,
        };
        let from = self.gone.first_without(0, CHUNK_OFFSETS);
        let rows = match self.present {
            0 => None,
            _ => self.rows.save(from.unwrap_or(0), home, state),
        };
        if std::mem::take(&mut self.unsaved) {
            state.count_unsaved(false);
        }
        match rows {
            Some(rows) => {
                let value = SavedChunk {
                    gone: self.gone.0,
                    rows,
                };
                state.put(chunk_key(stream, self.number), Some(value.encode()));
                self.saved = true;
            }
            None if std::mem::take(&mut self.saved) => {
                self.rows.replace(state);
                state.put_gone(Gone::Chunk(stream, self.number));
            }
            None => {}
        }
    }

    /// Its stream goes: what the checkpoint that is being made has of it is copied first.
    pub(super) fn bury(&mut self, stream: Serial, state: &mut State) {
        self.copy_listed(stream, state);
        self.leave(stream, state);
    }

    /// It goes.
    fn leave(&mut self, stream: Serial, state: &mut State) {
        if std::mem::take(&mut self.unsaved) {
            state.count_unsaved(false);
        }
        self.rows.release(state);
        if self.saved {
            state.gone(Gone::Chunk(stream, self.number));
        }
    }

    /// The first offset that belongs here.
    pub(super) fn start(&self) -> u64 {
        self.number * OFFSETS
    }

    /// How many of its places lie below an offset.
    pub(super) fn below(&self, offset: u64) -> usize {
        offset.saturating_sub(self.start()).min(OFFSETS) as usize
    }

    fn push(&mut self, at: usize, entry: Entry<B>, of: Of<'_>) {
        self.touch(of);
        self.rows.push(entry, self.home(of));
        self.present += 1;
        if at + 1 == CHUNK_OFFSETS
            && let Some(index) = of.0
        {
            self.unsaved = true;
            index.lock().count_unsaved(true);
        }
    }

    pub(super) fn entry(&self, at: usize, of: Of<'_>) -> Option<Entry<B>> {
        match self.gone.has(at) {
            true => None,
            false => self.rows.entry(at, self.home(of)),
        }
    }

    pub(super) fn weight(&self, at: usize, of: Of<'_>) -> Weight {
        match self.gone.has(at) {
            true => Weight::default(),
            false => self.rows.weight(at, self.present, self.home(of)),
        }
    }

    /// Names the weight of each entry that is not gone, for the last time.
    pub(super) fn each_weight(&self, end: u64, of: Of<'_>, each: impl FnMut(Weight)) {
        let kept = self.kept(0, self.below(end));
        self.rows
            .each_weight(kept, self.present, self.home(of), each);
    }

    /// Whether the time of some of its messages may end.
    pub(super) fn may_end(&self) -> bool {
        self.rows.may_end()
    }

    /// Whether some of its messages ask for no settlement.
    pub(super) fn some_unsettled(&self) -> bool {
        self.rows.some_unsettled()
    }

    /// An entry is gone.
    pub(super) fn remove(&mut self, at: usize, weight: Weight, of: Of<'_>) {
        self.touch(of);
        self.gone.set(at);
        self.present -= 1;
        self.rows.remove(at, weight);
    }

    /// Bytes of the body of an entry that is not gone.
    pub(super) fn body(&self, at: usize, of: Of<'_>) -> u64 {
        self.rows.weight(at, self.present, self.home(of)).body
    }

    /// The cursor of the stream moves from the place `before` to the place `to`; those between were handed out so many
    /// times.
    pub(super) fn advance(&mut self, (before, to): (usize, usize), attempts: u32) {
        if !self.slots.are_alike(attempts) {
            let from = self.gone.first_without(0, to).unwrap_or(to);
            self.slots.extend((from, before, to), attempts);
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
        let (gone, to) = (self.gone, self.below(cursor));
        self.slots
            .set(at, slot, || (gone.first_without(0, to).unwrap_or(to), to));
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
        self.0.push_back(Chunk {
            number,
            gone,
            present,
            unsaved: false,
            saved: true,
            marked: 0,
            rows,
            slots: Slots::default(),
        });
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

    /// A chunk of which nothing is left, and that no checkpoint has any more, goes.
    pub(super) fn forget_empty(&mut self, number: u64) {
        if let Ok(nth) = self.find(number)
            && self.0[nth].present == 0
            && !self.0[nth].saved
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
