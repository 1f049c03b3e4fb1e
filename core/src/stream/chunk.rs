//! A part of a stream: the entries of some consecutive offsets, which of them are gone, and what they are doing.
//!
//! Owns: one chunk.
//! Never: where the stream begins and ends, how far it is handed out (`stream.rs`).
//! Next: `chunks.rs` (all of a stream), `place.rs` (its rows), `slots.rs`, `index.rs` (who copies it when).

use super::Entry;
use super::bits::{Bits, CHUNK_OFFSETS};
use super::index::{Gone, Home, Index, Serial, State, Who, chunk_key};
use super::place::{Place, Rows, Weight};
use super::saved::SavedChunk;
use super::slots::{Slot, SlotState, Slots};
use crate::id::Position;
use crate::index::Block;

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
    pub(super) rows: B::Rows,
    pub(super) slots: Slots,
}

impl Chunk<Position> {
    /// The blocks of its rows, if they could not be read.
    pub(super) fn unreadable_blocks(&self, index: &Index) -> Vec<Block> {
        let state = index.lock();
        let mut blocks: Vec<u32> = self.rows.blocks().collect();
        if !blocks
            .first()
            .is_some_and(|first| state.is_unreadable(*first))
        {
            blocks.clear();
        }
        blocks.into_iter().map(Block).collect()
    }
}

impl<B: Place> Chunk<B> {
    /// For the entries from this offset on.
    pub(super) fn new(offset: u64) -> Chunk<B> {
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

    /// As a checkpoint has it.
    pub(super) fn restored(number: u64, gone: Bits, present: u16, rows: B::Rows) -> Chunk<B> {
        Chunk {
            number,
            gone,
            present,
            unsaved: false,
            saved: true,
            marked: 0,
            rows,
            slots: Slots::default(),
        }
    }

    /// Nothing is left of it, and no checkpoint has it.
    pub(super) fn is_nothing(&self) -> bool {
        self.present == 0 && !self.saved
    }

    /// For the entries from this offset on; nothing of it may be left.
    pub(super) fn renew(&mut self, offset: u64) {
        let (number, at) = place(offset);
        self.number = number;
        self.gone = Bits::below(at);
        self.rows.renew(at);
        self.slots.clear();
    }

    pub(super) fn home<'a>(&self, (index, who): Of<'a>) -> Home<'a> {
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
    pub(super) fn leave(&mut self, stream: Serial, state: &mut State) {
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

    pub(super) fn push(&mut self, at: usize, entry: Entry<B>, of: Of<'_>) {
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

    /// The cursor moves by one, past a place that is not gone: this consumer holds it, for the first time.
    pub(super) fn hold_next(&mut self, at: usize, holder: u32) {
        let gone = self.gone;
        let held = Slot::ready(1).with(SlotState::Held(holder));
        self.slots
            .push(at, held, || gone.first_without(0, at).unwrap_or(at));
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
