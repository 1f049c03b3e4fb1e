//! Where messages are, and how a chunk keeps its entries for each kind of place.
//!
//! A volatile shard keeps the messages themselves: its rows are plain entries ([`Plain`]). A journalled one keeps places
//! in its journal: its rows are packed (`packed.rs`) and may lie outside memory.
//!
//! Owns: [`Place`], what a chunk asks of its rows, plain rows.
//! Never: which offsets are gone (`chunk.rs`).

use super::Entry;
use super::index::{Home, State};
use super::packed::Packed;
use super::saved::SavedRows;
use crate::id::Position;
use crate::message::Message;
use std::fmt::Debug;
use std::sync::Arc;

/// Where a shard keeps messages: itself (`Arc<Message>`) or a place in the journal (`Position`).
pub trait Place: Clone + Debug + Send + 'static {
    /// How a chunk keeps its entries.
    type Rows: Rows<Self>;
    /// Whether it keeps alive more than the message, as long as it is not [`Place::kept`].
    const BORROWS: bool;

    /// The same for a message that stays a while: without the read buffer it came in.
    fn kept(&self) -> Self;
    /// Where in the journal it is, when it is there.
    fn position(&self) -> Option<Position>;
}

impl Place for Arc<Message> {
    type Rows = Plain<Arc<Message>>;
    const BORROWS: bool = true;

    fn kept(&self) -> Self {
        Arc::new(self.detached())
    }

    fn position(&self) -> Option<Position> {
        None
    }
}

impl Place for Position {
    type Rows = Packed;
    const BORROWS: bool = false;

    fn kept(&self) -> Self {
        *self
    }

    fn position(&self) -> Option<Position> {
        Some(*self)
    }
}

/// What the counters of a stream need of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// What it costs.
    pub cost: u64,
    /// Bytes of its body.
    pub body: u64,
    /// Where in the journal its message is, when that is there and known.
    pub position: Option<Position>,
}

/// The entries of one chunk, by their places in it.
pub trait Rows<B>: Debug + Default + Send {
    /// Forgets all; the next entry has this place.
    fn renew(&mut self, from: usize);
    /// Puts one in behind all others.
    fn push(&mut self, entry: Entry<B>, home: Home<'_>);
    /// One that is not gone, unless it cannot be read.
    fn entry(&self, at: usize, home: Home<'_>) -> Option<Entry<B>>;
    /// The weight of one that is not gone, of so many; a share of all when it cannot be read.
    fn weight(&self, at: usize, present: u16, home: Home<'_>) -> Weight;
    /// Names the weights of those that are `kept`, of so many, for the last time: blocks are read and not kept in
    /// memory.
    fn each_weight(
        &self,
        kept: impl Iterator<Item = usize>,
        present: u16,
        home: Home<'_>,
        each: impl FnMut(Weight),
    );
    /// Whether the time of some of them may end.
    fn may_end(&self) -> bool;
    /// One is gone.
    fn remove(&mut self, at: usize, weight: Weight);
    /// Whether some asks for no settlement.
    fn some_unsettled(&self) -> bool;
    /// What a checkpoint keeps of them, when nothing is left below the place `from`; nothing where there are none.
    fn save(&mut self, from: usize, home: Home<'_>, state: &mut State) -> Option<SavedRows>;
    /// Gives the blocks back that they have.
    fn release(&mut self, state: &mut State);
    /// The same, for the checkpoint that is being copied does without them.
    fn replace(&mut self, state: &mut State);
}

/// Entries as they are.
#[derive(Debug)]
pub struct Plain<B> {
    from: u8,
    rows: Vec<Option<Entry<B>>>,
}

impl<B> Default for Plain<B> {
    fn default() -> Plain<B> {
        Plain {
            from: 0,
            rows: Vec::new(),
        }
    }
}

impl<B> Plain<B> {
    fn row(&self, at: usize) -> Option<&Entry<B>> {
        let nth = at.checked_sub(usize::from(self.from))?;
        self.rows.get(nth)?.as_ref()
    }
}

impl<B: Clone + Debug + Send> Rows<B> for Plain<B> {
    fn renew(&mut self, from: usize) {
        self.from = from as u8;
        self.rows.clear();
    }

    fn push(&mut self, entry: Entry<B>, _: Home<'_>) {
        self.rows.push(Some(entry));
    }

    fn entry(&self, at: usize, _: Home<'_>) -> Option<Entry<B>> {
        self.row(at).cloned()
    }

    fn weight(&self, at: usize, _: u16, _: Home<'_>) -> Weight {
        self.row(at).map_or(Weight::default(), |entry| Weight {
            cost: u64::from(entry.cost_bytes),
            body: u64::from(entry.body_bytes),
            position: None,
        })
    }

    fn each_weight(
        &self,
        kept: impl Iterator<Item = usize>,
        present: u16,
        home: Home<'_>,
        each: impl FnMut(Weight),
    ) {
        kept.map(|at| self.weight(at, present, home)).for_each(each);
    }

    fn may_end(&self) -> bool {
        true
    }

    fn remove(&mut self, at: usize, _: Weight) {
        let nth = at - usize::from(self.from);
        if let Some(row) = self.rows.get_mut(nth) {
            *row = None;
        }
    }

    fn some_unsettled(&self) -> bool {
        true
    }

    fn save(&mut self, _: usize, _: Home<'_>, _: &mut State) -> Option<SavedRows> {
        None
    }

    fn release(&mut self, _: &mut State) {}

    fn replace(&mut self, _: &mut State) {}
}
