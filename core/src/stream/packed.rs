//! Entries of a journalled stream, packed: 16 bytes each, or 32 where one of a chunk needs them.
//!
//! A row is two or four words of 64 bits, written little-endian. Persisted.
//!
//! | narrow | bits | meaning |
//! |---|---|---|
//! | flags | 8 | quality in bits 0-1, 4 retain, 8 by topic, 16 no local, 128 lost |
//! | position | 56 | of the record in the journal |
//! | time | 32 | milliseconds from the chunk's base to when it came in |
//! | body | 27 | bytes of its body |
//! | rest | 5 | cost beyond the body and [`NARROW_COST`], in units of [`COST_UNIT`] |
//!
//! | wide | bits | meaning |
//! |---|---|---|
//! | flags, position | 64 | as above |
//! | time | 48 | when it came in |
//! | expires | 48 | when it ends; 0 never |
//! | body | 32 | bytes of its body |
//! | cost | 32 | what it costs |
//! | identifier | 32 | the subscriber's number of its filter |
//!
//! *Lost* rows stand for entries whose block could not be read when more came behind them.
//!
//! Rows are in memory, or in blocks of the index file and perhaps in its cache. While a chunk is the last of its stream
//! its rows come back into memory when one more comes.
//!
//! Owns: this format, and where the rows of one chunk are.
//! Never: which are gone (`chunk.rs`), blocks as bytes (`block.rs`).

use super::Entry;
use super::bits::Bits;
use super::block::words_per_row;
use super::cache::Words;
use super::index::{Home, State};
use super::place::{Rows, Weight};
use super::saved::{SavedPlace, SavedRows};
use crate::id::{Position, UnixMs};
use crate::message::{Message, Quality};
use std::sync::Arc;

/// What every message costs at least beyond its body. Persisted: narrow rows count from it.
const NARROW_COST: u64 = 320;
/// Costs beyond the body are multiples of it. Persisted.
const COST_UNIT: u64 = 16;
/// So many rows are kept in the chunk's pair; more take a block.
const INLINE_ROWS_MAX: usize = 16;

const QUALITY: u64 = 3;
const RETAIN: u64 = 4;
const BY_TOPIC: u64 = 8;
const NO_LOCAL: u64 = 16;
const LOST: u64 = 128;

const MAX_27: u64 = (1 << 27) - 1;
const MAX_48: u64 = (1 << 48) - 1;

/// What an entry for a message costs: its own cost, or the bytes of its record where that is longer, so that from the
/// record's position on so many bytes have all of it. Rounded so that packing keeps it.
pub fn entry_cost(message: &Message, record_bytes: usize) -> u32 {
    let body = message.body.len();
    let beyond = message.cost_bytes().max(record_bytes).saturating_sub(body);
    let beyond = beyond.next_multiple_of(COST_UNIT as usize);
    u32::try_from(body + beyond).unwrap_or(u32::MAX)
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Packed {
    /// Place of the first row.
    from: u8,
    /// How many rows there are.
    count: u8,
    /// How many of them the blocks have.
    written: u8,
    wide: bool,
    /// Some asked for no settlement when it came.
    unsettled: bool,
    /// Whether the rows are in blocks and not in `words`. Never where there are none: no block is asked for them.
    away: bool,
    words: Vec<u64>,
    /// Zero is none.
    blocks: [u32; 2],
    base: u64,
    /// Of what is not gone.
    cost: u64,
    body: u64,
}

/// What a chunk's pair tells of rows that cannot be read, and are narrow.
#[derive(Debug)]
pub(super) struct LostChunk {
    pub(super) from: u8,
    pub(super) count: u8,
    pub(super) base: u64,
    pub(super) block: u32,
    pub(super) unsettled: bool,
    pub(super) gone: Bits,
    /// Cost and bodies of what is not gone.
    pub(super) sums: (u64, u64),
}

impl LostChunk {
    /// The row of an entry.
    pub(super) fn narrow(&self, entry: &Entry<Position>) -> Option<[u64; 2]> {
        narrow(entry, self.base)
    }
}

fn flags(entry: &Entry<Position>) -> u64 {
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    entry.quality as u64
        | bit(entry.retain, RETAIN)
        | bit(entry.by_topic, BY_TOPIC)
        | bit(entry.no_local, NO_LOCAL)
}

fn narrow(entry: &Entry<Position>, base: u64) -> Option<[u64; 2]> {
    let (cost, body) = (u64::from(entry.cost_bytes), u64::from(entry.body_bytes));
    let rest = cost.checked_sub(body)?.checked_sub(NARROW_COST)?;
    let time = entry.stored.0.checked_sub(base)?;
    let fits = entry.expires.0 == 0
        && entry.identifier == 0
        && body <= MAX_27
        && rest % COST_UNIT == 0
        && rest / COST_UNIT < 32
        && time <= u64::from(u32::MAX);
    let size = body | (rest / COST_UNIT) << 27;
    fits.then(|| [entry.body.0 << 8 | flags(entry), time | size << 32])
}

fn wide(entry: &Entry<Position>) -> [u64; 4] {
    let (stored, expires) = (entry.stored.0.min(MAX_48), entry.expires.0.min(MAX_48));
    [
        entry.body.0 << 8 | flags(entry),
        stored | expires << 48,
        expires >> 16 | u64::from(entry.body_bytes) << 32,
        u64::from(entry.cost_bytes) | u64::from(entry.identifier) << 32,
    ]
}

/// The entry of a row; nothing when it is lost or makes no sense.
fn entry_of(row: &[u64], base: u64) -> Option<Entry<Position>> {
    let (first, second) = (*row.first()?, *row.get(1)?);
    if first & LOST != 0 {
        return None;
    }
    let mut entry = Entry {
        body: Position(first >> 8),
        expires: UnixMs(0),
        cost_bytes: 0,
        identifier: 0,
        quality: Quality::from_number((first & QUALITY) as u8)?,
        retain: first & RETAIN != 0,
        by_topic: first & BY_TOPIC != 0,
        no_local: first & NO_LOCAL != 0,
        body_bytes: 0,
        stored: UnixMs(0),
        more_identifiers: None,
    };
    match (row.get(2), row.get(3)) {
        (Some(third), Some(fourth)) => {
            entry.stored = UnixMs(second & MAX_48);
            entry.expires = UnixMs(second >> 48 | (third & 0xFFFF_FFFF) << 16);
            entry.body_bytes = (third >> 32) as u32;
            entry.cost_bytes = *fourth as u32;
            entry.identifier = (fourth >> 32) as u32;
        }
        _ => {
            let size = second >> 32;
            let body = size & MAX_27;
            entry.stored = UnixMs(base.saturating_add(second & 0xFFFF_FFFF));
            entry.body_bytes = body as u32;
            entry.cost_bytes = (body + NARROW_COST + (size >> 27) * COST_UNIT) as u32;
        }
    }
    Some(entry)
}

/// What a row weighs; nothing when it is lost.
fn weight_of(row: &[u64]) -> Option<Weight> {
    let (first, second) = (*row.first()?, *row.get(1)?);
    if first & LOST != 0 {
        return None;
    }
    let (cost, body) = match (row.get(2), row.get(3)) {
        (Some(third), Some(fourth)) => (fourth & 0xFFFF_FFFF, third >> 32),
        _ => {
            let body = second >> 32 & MAX_27;
            (body + NARROW_COST + (second >> 59) * COST_UNIT, body)
        }
    };
    let position = Some(Position(first >> 8));
    Some(Weight {
        cost,
        body,
        position,
    })
}

impl Packed {
    fn row<'a>(&self, words: &'a [u64], at: usize) -> Option<&'a [u64]> {
        let nth = at.checked_sub(usize::from(self.from))?;
        let width = words_per_row(self.wide);
        words.get(nth * width..(nth + 1) * width)
    }

    fn with_words<T>(&self, home: Home<'_>, read: impl FnOnce(&[u64]) -> Option<T>) -> Option<T> {
        match self.away {
            true => read(&home.load(self.blocks, (self.wide, self.from, self.count))?),
            false => read(&self.words),
        }
    }

    /// What one of so many weighs that cannot be read.
    fn share(&self, present: u16) -> Weight {
        let present = u64::from(present.max(1));
        Weight {
            cost: self.cost / present,
            body: self.body / present,
            position: None,
        }
    }

    /// Back into memory, since more comes. What cannot be read is lost.
    #[cold]
    fn bring(&mut self, home: Home<'_>) {
        let words = home.take(self.blocks, (self.wide, self.from, self.count));
        let lost = || [LOST, 0, 0, 0].into_iter().take(words_per_row(self.wide));
        let count = usize::from(self.count);
        self.words = words.unwrap_or_else(|| (0..count).flat_map(|_| lost()).collect());
        self.away = false;
    }

    #[cold]
    fn widen(&mut self) {
        let base = self.base;
        let widened = self
            .words
            .chunks_exact(2)
            .flat_map(|row| match entry_of(row, base) {
                Some(entry) => wide(&entry),
                None => [LOST, 0, 0, 0],
            });
        self.words = widened.collect();
        self.wide = true;
        // What the blocks have is narrow.
        self.written = 0;
    }

    /// Rows below a place are gone: they need not be kept.
    fn trim(&mut self, from: usize) {
        let gone = from.saturating_sub(usize::from(self.from));
        let gone = gone.min(usize::from(self.count));
        self.words.drain(..gone * words_per_row(self.wide));
        self.words.shrink_to_fit();
        self.from += gone as u8;
        self.count -= gone as u8;
    }

    /// Rows that a checkpoint has, as they were saved; nothing is read yet.
    pub(super) fn restore(saved: SavedRows) -> Packed {
        let mut packed = Packed {
            from: saved.from,
            count: saved.count,
            wide: saved.wide,
            unsettled: saved.unsettled,
            base: saved.base,
            cost: saved.cost,
            body: saved.body,
            ..Packed::default()
        };
        match saved.place {
            SavedPlace::Here(words) => packed.words = words,
            SavedPlace::Blocks(first, second) => {
                packed.away = true;
                packed.written = saved.count;
                packed.blocks = [first, second];
            }
        }
        packed
    }

    /// The positions of its first and its last row; nothing when they cannot be read or are lost.
    pub(super) fn span(&self, home: Home<'_>) -> Option<(Position, Position)> {
        self.with_words(home, |words| {
            let mut rows = words.chunks_exact(words_per_row(self.wide));
            let first = weight_of(rows.next()?)?.position?;
            let last = rows
                .next_back()
                .map_or(Some(first), |row| weight_of(row)?.position)?;
            Some((first, last))
        })
    }

    /// What is known of rows that are in a block and cannot be read, if they are narrow.
    pub(super) fn lost(&self, gone: Bits) -> Option<LostChunk> {
        let [block, _] = self.blocks;
        let in_block = self.away && !self.wide && block != 0;
        in_block.then_some(LostChunk {
            from: self.from,
            count: self.count,
            base: self.base,
            block,
            unsettled: self.unsettled,
            gone,
            sums: self.sums(),
        })
    }

    /// The blocks it has.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> + use<> {
        self.blocks.into_iter().filter(|block| *block != 0)
    }

    /// Cost and bodies of what is not gone.
    pub(super) fn sums(&self) -> (u64, u64) {
        (self.cost, self.body)
    }
}

impl Rows<Position> for Packed {
    fn renew(&mut self, from: usize) {
        *self = Packed {
            from: from as u8,
            blocks: self.blocks,
            ..Packed::default()
        };
    }

    fn push(&mut self, entry: Entry<Position>, home: Home<'_>) {
        if self.count == 0 {
            self.base = entry.stored.0;
            self.words.reserve_exact(2);
        } else if self.away {
            self.bring(home);
        }
        let row = match self.wide {
            true => None,
            false => narrow(&entry, self.base),
        };
        match row {
            Some(row) => self.words.extend(row),
            None => {
                if !self.wide {
                    self.widen();
                }
                self.words.extend(wide(&entry));
            }
        }
        self.count += 1;
        self.unsettled |= entry.quality == Quality::AtMostOnce;
        self.cost += u64::from(entry.cost_bytes);
        self.body += u64::from(entry.body_bytes);
    }

    fn entry(&self, at: usize, home: Home<'_>) -> Option<Entry<Position>> {
        self.with_words(home, |words| entry_of(self.row(words, at)?, self.base))
    }

    fn weight(&self, at: usize, present: u16, home: Home<'_>) -> Weight {
        let known = self.with_words(home, |words| weight_of(self.row(words, at)?));
        known.unwrap_or_else(|| self.share(present))
    }

    fn each_weight(
        &self,
        kept: impl Iterator<Item = usize>,
        present: u16,
        home: Home<'_>,
        mut each: impl FnMut(Weight),
    ) {
        let read = match self.away {
            true => home.peek(self.blocks, (self.wide, self.from, self.count)),
            false => None,
        };
        let words = read.as_deref().map_or(&self.words[..], |read| &read[..]);
        for at in kept {
            let known = self.row(words, at).and_then(weight_of);
            each(known.unwrap_or_else(|| self.share(present)));
        }
    }

    fn may_end(&self) -> bool {
        self.wide
    }

    fn remove(&mut self, _: usize, weight: Weight) {
        self.cost = self.cost.saturating_sub(weight.cost);
        self.body = self.body.saturating_sub(weight.body);
    }

    fn some_unsettled(&self) -> bool {
        self.unsettled
    }

    fn save(&mut self, from: usize, home: Home<'_>, state: &mut State) -> Option<SavedRows> {
        if !self.away && self.written < self.count {
            self.trim(from);
            self.replace(state);
            if usize::from(self.count) > INLINE_ROWS_MAX
                && let Some(blocks) =
                    state.write(home, self.wide, (self.from, self.base), &self.words)
            {
                self.blocks = blocks;
                self.written = self.count;
            }
        }
        let in_blocks = self.written == self.count && self.blocks[0] != 0;
        if in_blocks && !self.away {
            let words: Words = Arc::new(std::mem::take(&mut self.words));
            state.pin(self.blocks[0], words);
            self.away = true;
        }
        Some(SavedRows {
            from: self.from,
            count: self.count,
            wide: self.wide,
            unsettled: self.unsettled,
            base: self.base,
            cost: self.cost,
            body: self.body,
            place: match in_blocks {
                true => SavedPlace::Blocks(self.blocks[0], self.blocks[1]),
                false => SavedPlace::Here(self.words.clone()),
            },
        })
    }

    fn release(&mut self, state: &mut State) {
        self.blocks().for_each(|block| state.release(block));
        (self.blocks, self.written) = ([0; 2], 0);
    }

    fn replace(&mut self, state: &mut State) {
        self.blocks().for_each(|block| state.replace(block));
        (self.blocks, self.written) = ([0; 2], 0);
    }
}

#[cfg(test)]
mod tests;
