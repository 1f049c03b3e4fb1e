//! A stream and its one subscription: entries, what is handed out, and the order in which it goes out.
//!
//! An offset is in one of five states: *waiting* (never handed out, at or above the cursor), *ready*
//! (released, or set aside until someone may receive it), *held* by a consumer, *leaving* (settled, the
//! journal does not know yet) or *gone*. Entries lie in chunks of consecutive offsets (`stream/chunk.rs`); one of which
//! everything is gone is dropped, wherever it lies. A session's offset can also be
//! *received* (`stream/owed.rs`): its peer has the message and only the rest of its settlement is owed. Which
//! consumer holds what is the leader's memory; entries, what is gone or received and the cursor come back from
//! the journal.
//!
//! Owns: offsets and their states, and the counters that go with them.
//! Never: chooses a consumer (`dispatch.rs`), encodes a record.
//! Next: `stream/states.rs` (how an offset's state changes), `stream/kind.rs` (whose it is), `stream/counts.rs`, `stream/keyed.rs` (what a key-shared stream knows beside),
//! `stream/saved.rs`.
//!
//! `B` says where a message is: `Arc<Message>` in a volatile shard, `Position` in a journalled one.

mod allocator;
mod bits;
mod block;
mod bounds;
mod cache;
mod chunk;
mod chunks;
mod counts;
mod ended;
mod filters;
mod index;
mod kept;
mod keyed;
mod kind;
mod modes;
mod offsets;
mod owed;
mod packed;
mod place;
mod postponed;
mod rebuild;
mod runs;
mod saved;
mod slots;
mod states;

pub use bits::CHUNK_OFFSETS;
pub use bounds::{Bounds, Early, KeptBounds, Ranges, extend, extend_by};
pub use counts::{KeptTally, Tally, Volume};
pub use filters::FilterList;
pub use keyed::{KeyHash, Keyed, LOOK_AHEAD_MAX, Target};
pub use kind::{Group, Kind, Session};
pub use rebuild::LostRows;
pub use saved::SavedStream;
pub use slots::SlotState;

pub(crate) use index::{Index, KEY_CHUNK, KEY_HEAD, Next, Serial, Who};
pub use packed::entry_cost;
pub use place::Place;
pub(crate) use place::Weight;
pub(crate) use saved::Misfit;

use chunk::{Of, place};
use chunks::Chunks;
use offsets::Offsets;

use crate::id::{Offset, StreamId, UnixMs, VhostId};
use crate::limits::{KeptLimits, Mode, StreamLimits};
use crate::message::Quality;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A reference to a message, with what dispatch needs without reading it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry<B> {
    /// Where the message is.
    pub body: B,
    /// When it ends; 0 never.
    pub expires: UnixMs,
    /// What it costs.
    pub cost_bytes: u32,
    /// The subscriber's number of the filter that matched; 0 none.
    pub identifier: u32,
    /// As granted.
    pub quality: Quality,
    /// The retain flag the subscriber shall see.
    pub retain: bool,
    /// A topic exchange routed it: the right to receive its address is asked.
    pub by_topic: bool,
    /// Not for the connection that published it.
    pub no_local: bool,
    /// Bytes of its body.
    pub body_bytes: u32,
    /// When it came in, by the leader's clock. Not in checkpoints up to version 2.
    #[serde(skip)]
    pub stored: UnixMs,
    /// Further numbers of filters that matched.
    pub more_identifiers: Option<Arc<Vec<u32>>>,
}

/// A stream. See the module's text for the states of an offset.
#[derive(Debug)]
pub struct Stream<B: Place> {
    /// Which.
    pub id: StreamId,
    /// In.
    pub vhost: VhostId,
    /// Its name; empty for sessions, and for what was made when shards did not know names.
    pub name: Arc<str>,
    /// Whose it is.
    pub kind: Kind,
    /// Its limits.
    pub limits: KeptLimits,
    /// Attached and holding consumers.
    pub readers: crate::dispatch::Readers,
    /// Its keys; present exactly when the mode is [`Mode::KeyShared`].
    pub keyed: Option<Box<Keyed>>,
    /// Counts.
    pub tally: KeptTally,
    /// The lowest offset that is not gone; the end when all are.
    base: u64,
    /// First offset never handed out.
    cursor: u64,
    /// First offset not yet put in.
    end: u64,
    chunks: Chunks<B>,
    /// Handed out or passed by, and can go out now.
    returned: Offsets,
    /// Nobody attached may receive them now.
    aside: Offsets,
    /// Came back, and wait before they can go out again.
    postponed: Option<Box<Offsets>>,
    owed: Option<Box<owed::Owed>>,
    /// Further numbers of filters, of the few entries that have some.
    #[expect(
        clippy::box_collection,
        reason = "nearly no stream has one, and there are millions of streams"
    )]
    more_identifiers: Option<Box<BTreeMap<u64, Arc<Vec<u32>>>>>,
    /// What the streams of a journalled shard share.
    index: Option<Arc<Index>>,
    /// What checkpoints call it.
    pub(crate) serial: Serial,
    /// The epoch in which it came to be listed as changed; 0 when its head is as the last checkpoint has it.
    marked: u32,
    /// A checkpoint has it.
    saved: bool,
    held: u64,
    /// Entries that are not gone.
    kept: u64,
    bytes: u64,
    kept_bytes: u64,
    /// Bytes of bodies of what is ready.
    ready_bytes: u64,
    /// What the journal knows of the cursor.
    pub cursor_known: u64,
    /// The leader's memory of what the stream's limits need.
    pub bounds: KeptBounds,
    /// Whether it stands in the shard's list of streams to dispatch.
    pub listed: bool,
}

impl<B: Place> Stream<B> {
    /// An empty stream.
    pub fn new(id: StreamId, vhost: VhostId, kind: Kind, limits: StreamLimits) -> Stream<B> {
        let keyed = (limits.mode == Mode::KeyShared).then(Box::default);
        Stream {
            id,
            vhost,
            name: Arc::default(),
            kind,
            limits: limits.into(),
            readers: crate::dispatch::Readers::default(),
            keyed,
            tally: KeptTally::default(),
            base: 0,
            cursor: 0,
            end: 0,
            chunks: Chunks::default(),
            returned: Offsets::default(),
            aside: Offsets::default(),
            postponed: None,
            owed: None,
            more_identifiers: None,
            index: None,
            serial: Serial::default(),
            marked: 0,
            saved: false,
            held: 0,
            kept: 0,
            bytes: 0,
            kept_bytes: 0,
            ready_bytes: 0,
            cursor_known: 0,
            bounds: KeptBounds::default(),
            listed: false,
        }
    }

    /// First offset never handed out.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// First offset not yet put in.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// What the outside calls one of its offsets: it is unique among all levels of a queue.
    pub fn outside(&self, offset: u64) -> Offset {
        Offset::of_level(self.id.rank(), offset)
    }

    fn who(&self) -> Who {
        Who {
            id: self.id,
            serial: self.serial,
        }
    }

    fn of(&self) -> Of<'_> {
        (self.index.as_deref(), self.who())
    }

    /// Puts an entry in at the end.
    pub fn push(&mut self, mut entry: Entry<B>) {
        self.touch();
        if entry.body.position().is_some()
            && let Some(more) = entry.more_identifiers.take()
        {
            self.more_identifiers
                .get_or_insert_default()
                .insert(self.end, more);
        }
        self.bytes += u64::from(entry.cost_bytes);
        self.kept_bytes += u64::from(entry.cost_bytes);
        self.ready_bytes += u64::from(entry.body_bytes);
        self.kept += 1;
        let who = self.who();
        self.chunks
            .push(self.end, entry, (self.index.as_deref(), who));
        self.end += 1;
    }

    /// The lowest offset that can go out now.
    pub fn next(&self) -> Option<u64> {
        let next = self.next_returned();
        match self.keyed.as_deref() {
            None => next,
            Some(keyed) => keyed.first().into_iter().chain(next).min(),
        }
    }

    fn next_returned(&self) -> Option<u64> {
        match self.returned.first() {
            Some(first) => Some(first),
            None => (self.cursor < self.end).then_some(self.cursor),
        }
    }

    /// Whether something can go out, here or, as far as a stream can tell, in a level below.
    pub fn has_next(&self) -> bool {
        self.limits.priority_max.is_some()
            || !self.returned.is_empty()
            || self.cursor < self.end
            || self.parked() > 0
            || self.owed_ready() > 0
    }

    /// Where the oldest entry's message is that a checkpoint made now would keep.
    pub fn oldest(&self) -> Option<B> {
        self.entry(self.base).map(|entry| entry.body)
    }

    /// The entry at an offset that is not gone.
    pub fn entry(&self, offset: u64) -> Option<Entry<B>> {
        let Some(more) = &self.more_identifiers else {
            return self.stored(offset);
        };
        let mut entry = self.stored(offset)?;
        entry.more_identifiers = more.get(&offset).cloned();
        Some(entry)
    }

    fn stored(&self, offset: u64) -> Option<Entry<B>> {
        let (number, at) = place(offset);
        self.chunks.get(number)?.entry(at, self.of())
    }

    /// How often an offset was handed out.
    pub fn attempts(&self, offset: u64) -> u32 {
        self.slot(offset).map_or(0, |slot| slot.attempts)
    }

    /// Settles everything that can go out, so that nobody gets it any more; returns the ranges.
    pub fn leave_ready(&mut self) -> Ranges {
        let before = self.ready();
        let ranges = self.leave_below(u64::MAX);
        self.tally.dropped += before - self.ready();
        ranges
    }

    /// Names the weight of each entry that is not gone, for the last time.
    pub(crate) fn each_weight(&self, mut each: impl FnMut(Weight)) {
        for chunk in self.chunks.from(self.base) {
            chunk.each_weight(self.end, self.of(), &mut each);
        }
    }

    /// Looks at about `most` entries from an offset on that have not left, one by one; where nothing of a chunk ever ends,
    /// at none of them, and says so once. Returns at how many it looked, and where to go on if there is more.
    pub fn look(
        &self,
        from: u64,
        most: usize,
        mut each: impl FnMut(u64, Option<Entry<B>>),
    ) -> (usize, Option<u64>) {
        let mut looked = 0;
        for chunk in self.chunks.from(from) {
            let start = chunk.start().max(from);
            if looked >= most {
                return (looked, Some(start));
            }
            looked += 1;
            if !chunk.may_end() {
                each(start, None);
                continue;
            }
            for at in chunk.kept(chunk.below(from), chunk.below(self.end)) {
                let offset = chunk.start() + at as u64;
                if self.state(offset) != Some(SlotState::Leaving)
                    && let Some(entry) = self.entry(offset)
                {
                    looked += 1;
                    each(offset, Some(entry));
                }
            }
        }
        (looked, None)
    }

    /// Offsets that have not left, in order.
    pub fn present_offsets(&self) -> impl Iterator<Item = u64> {
        let left = |offset: &u64| self.state(*offset) == Some(SlotState::Leaving);
        self.kept_offsets().filter(move |offset| !left(offset))
    }

    /// Offsets, attempts and entries that have not left, in order.
    pub fn present(&self) -> impl Iterator<Item = (u64, u32, Entry<B>)> {
        self.present_from(self.base)
    }

    /// The same from an offset on.
    pub fn present_from(&self, from: u64) -> impl Iterator<Item = (u64, u32, Entry<B>)> {
        self.kept_from(from).filter_map(|offset| {
            let left = self.state(offset) == Some(SlotState::Leaving);
            let entry = (!left).then(|| self.entry(offset)).flatten()?;
            Some((offset, self.attempts(offset), entry))
        })
    }

    /// First offset that is waiting and asks for no settlement, from `from` on: such a one may pass those
    /// that wait for credit.
    pub fn next_unsettled_free(&self, from: u64) -> Option<u64> {
        let start = from.max(self.cursor);
        let chunks = self
            .chunks
            .from(start)
            .filter(|chunk| chunk.some_unsettled());
        let mut offsets = chunks.flat_map(|chunk| {
            let kept = chunk.kept(chunk.below(start), chunk.below(self.end));
            kept.map(|at| chunk.start() + at as u64)
        });
        offsets.find(|offset| {
            self.entry(*offset)
                .is_some_and(|entry| entry.quality == Quality::AtMostOnce)
        })
    }
}

#[cfg(test)]
mod tests;
