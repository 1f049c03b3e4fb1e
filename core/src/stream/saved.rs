//! A stream in a checkpoint: a pair for its head and one for each chunk, or the whole of it in earlier forms.
//!
//! Values are in postcard encoding, fields in order. Persisted (version of the form).
//!
//! Owns: what of a stream is kept, how it is copied, and how it comes back.
//! Never: keys beside those of streams (`shard/checkpoint.rs`).
//! Next: `index.rs` (when something is copied), `shard/checkpoint/first.rs`, the first form.

use super::bits::{Bits, CHUNK_OFFSETS};
use super::block;
use super::index::{Gone, Index, Serial, State, head_key};
use super::packed::Packed;
use super::place::Place;
use super::{Entry, Group, Kind, Session, Stream, Tally, place};
use crate::id::{Offset, Position, StreamId, VhostId};
use crate::index::{Block, Blocks};
use crate::limits::StreamLimits;
use crate::record::AsJson;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// More chunks than any stream fills while a checkpoint and its journal last, and few beside the places of a level: a
/// million messages each second for twelve days.
const FAR_CHUNKS: u64 = 1 << 32;

/// A stream as whole checkpoints kept it (versions 1 and 2).
#[derive(Clone, Debug, Deserialize)]
pub struct SavedStream<B> {
    pub(crate) id: StreamId,
    pub(crate) vhost: VhostId,
    pub(crate) name: Arc<str>,
    pub(crate) session: Option<Session>,
    pub(crate) group: Option<Group>,
    pub(crate) limits: AsJson<StreamLimits>,
    pub(crate) tally: Tally,
    pub(crate) base: u64,
    pub(crate) cursor: u64,
    pub(crate) entries: Vec<Entry<B>>,
    pub(crate) gone: Vec<(u64, u64)>,
    pub(crate) received: Vec<u64>,
}

/// All of a stream but its entries and the leader's memory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedHead {
    id: StreamId,
    vhost: VhostId,
    name: Arc<str>,
    session: Option<Session>,
    group: Option<Group>,
    /// Absent where there are none.
    limits: Option<AsJson<StreamLimits>>,
    tally: Tally,
    /// First offset never handed out, as the journal knows it.
    cursor: u64,
    /// First offset not put in.
    end: u64,
    received: Vec<u64>,
    /// Further numbers of filters, by offset.
    more_identifiers: BTreeMap<u64, Arc<Vec<u32>>>,
}

/// A chunk.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedChunk {
    /// A bit for each place of which nothing is left. Where the stream goes on in a later chunk and places behind the last
    /// row were never filled, for them, too.
    pub(super) gone: [u64; 4],
    pub(super) rows: SavedRows,
}

/// The rows of a chunk.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedRows {
    /// Place of the first.
    pub(super) from: u8,
    pub(super) count: u8,
    pub(super) wide: bool,
    /// Some ask for no settlement.
    pub(super) unsettled: bool,
    /// See `block.rs`.
    pub(super) base: u64,
    /// What those cost that are not gone.
    pub(super) cost: u64,
    /// Bytes of their bodies.
    pub(super) body: u64,
    pub(super) place: SavedPlace,
}

/// Where they are.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum SavedPlace {
    /// Here, as words.
    Here(Vec<u64>),
    /// In these blocks; 0 is none.
    Blocks(u32, u32),
}

impl SavedChunk {
    pub(super) fn encode(&self) -> Bytes {
        // Encoding to a growing buffer can only fail for types that are not in it.
        postcard::to_allocvec(self).unwrap_or_default().into()
    }
}

/// A checkpoint's pairs of a stream do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misfit;

impl<B: Place> Stream<B> {
    /// It is about to change.
    pub(crate) fn touch(&mut self) {
        if let Some(index) = &self.index
            && self.marked != index.epoch()
        {
            self.mark(&index.clone());
        }
    }

    #[cold]
    fn mark(&mut self, index: &Index) {
        let mut state = index.lock();
        self.copy_head(&mut state);
        self.marked = index.epoch();
        state.stream_changed(self.who());
    }

    /// Copies its head into the checkpoint that is being made, unless that was done.
    pub(crate) fn copy_head(&mut self, state: &mut State) {
        if !state.is_uncopied(self.marked) {
            return;
        }
        let limits = &*self.limits;
        let head = SavedHead {
            id: self.id,
            vhost: self.vhost,
            name: self.name.clone(),
            session: self.session().cloned(),
            group: self.group().cloned(),
            limits: (*limits != StreamLimits::default()).then(|| AsJson(limits.clone())),
            tally: self.counts(),
            cursor: self.cursor_known.max(self.base),
            end: self.end,
            received: self.received(),
            more_identifiers: self
                .more_identifiers
                .as_deref()
                .cloned()
                .unwrap_or_default(),
        };
        // As above.
        let value = postcard::to_allocvec(&head).unwrap_or_default();
        state.put(head_key(self.serial), Some(value.into()));
        (self.marked, self.saved) = (0, true);
    }

    /// Copies a chunk into the checkpoint that is being made, unless that was done.
    pub(crate) fn copy_chunk(&mut self, number: u64, state: &mut State) {
        if let Some(chunk) = self.chunks.get_mut(number) {
            chunk.copy_listed(self.serial, state);
        }
        self.chunks.forget_empty(number);
    }

    /// It is a part of a journalled shard from now on. What it has already is new to the shard's checkpoints, unless it
    /// was restored from one.
    pub(crate) fn adopt(&mut self, index: &Arc<Index>) {
        self.index = Some(index.clone());
        if !self.saved {
            self.serial = index.lock().next_serial();
            self.touch();
            let who = self.who();
            self.chunks
                .iter_mut()
                .for_each(|chunk| chunk.touch((Some(index), who)));
        }
    }

    /// It is removed: what the checkpoint that is being made has of it is copied first.
    pub(crate) fn bury(&mut self) {
        let Some(index) = self.index.take() else {
            return;
        };
        let mut state = index.lock();
        self.copy_head(&mut state);
        if self.saved {
            state.gone(Gone::Stream(self.serial));
        }
        let serial = self.serial;
        self.chunks
            .iter_mut()
            .for_each(|chunk| chunk.bury(serial, &mut state));
    }
}

fn kind_of(session: Option<Session>, group: Option<Group>) -> Kind {
    match (session, group) {
        (Some(session), _) => Kind::Session(session),
        (None, Some(group)) => Kind::Group(group),
        (None, None) => Kind::Queue,
    }
}

impl Stream<Position> {
    /// The stream of a whole checkpoint.
    pub fn restore(saved: SavedStream<Position>) -> Stream<Position> {
        let kind = kind_of(saved.session, saved.group);
        let mut stream = Stream::new(saved.id, saved.vhost, kind, saved.limits.0);
        stream.name = saved.name;
        (stream.base, stream.cursor, stream.end) = (saved.base, saved.base, saved.base);
        for mut entry in saved.entries {
            // Costs were not rounded then.
            let beyond = entry.cost_bytes.saturating_sub(entry.body_bytes);
            entry.cost_bytes = entry
                .body_bytes
                .saturating_add(beyond.saturating_add(15) / 16 * 16);
            stream.push(entry);
        }
        stream.tally = saved.tally.into();
        stream.reach_delivered(saved.cursor);
        for (first, last) in saved.gone {
            stream.remove_ranges(&[(Offset(first), Offset(last))], |_| {});
        }
        for offset in saved.received {
            stream.receive(offset);
        }
        stream
    }

    /// The blocks that have the row of an offset, if they could not be read.
    pub(crate) fn unreadable_blocks(&self, offset: u64) -> Vec<Block> {
        let chunk = self.chunks.get(place(offset).0);
        let found = chunk.zip(self.index.as_deref());
        found.map_or_else(Vec::new, |(chunk, index)| chunk.unreadable_blocks(index))
    }

    /// The stream of a pair, without its chunks, and what is to be done once those are there.
    pub(crate) fn restore_head(
        serial: Serial,
        value: &[u8],
    ) -> Result<(Stream<Position>, Vec<u64>), Misfit> {
        let head: SavedHead = postcard::from_bytes(value).map_err(|_| Misfit)?;
        let limits = head.limits.map(|limits| limits.0).unwrap_or_default();
        let kind = kind_of(head.session, head.group);
        let mut stream = Stream::new(head.id, head.vhost, kind, limits);
        stream.serial = serial;
        stream.name = head.name;
        stream.tally = head.tally.into();
        (stream.base, stream.end) = (head.end, head.end);
        stream.cursor_known = head.cursor;
        if !head.more_identifiers.is_empty() {
            stream.more_identifiers = Some(Box::new(head.more_identifiers));
        }
        stream.saved = true;
        Ok((stream, head.received))
    }

    /// The id in the head of a stream.
    pub(crate) fn id_of_head(value: &[u8]) -> Option<StreamId> {
        let head: SavedHead = postcard::from_bytes(value).ok()?;
        Some(head.id)
    }

    /// The head of a stream that may be an old one: as if the stream ended in another chunk, at an offset that it never
    /// had. What the journal says of offsets that it handed out since is then of none that it hands out again.
    pub(crate) fn head_that_ends_far(value: &[u8]) -> Result<Bytes, Misfit> {
        let mut head: SavedHead = postcard::from_bytes(value).map_err(|_| Misfit)?;
        let (number, _) = place(head.end);
        head.end = (number + FAR_CHUNKS) * CHUNK_OFFSETS as u64;
        // As above.
        Ok(postcard::to_allocvec(&head).unwrap_or_default().into())
    }

    /// A chunk of such a stream: what would come behind its rows is gone.
    pub(crate) fn chunk_without_more(value: &[u8]) -> Result<Bytes, Misfit> {
        let mut chunk: SavedChunk = postcard::from_bytes(value).map_err(|_| Misfit)?;
        let mut gone = Bits(chunk.gone);
        let behind = usize::from(chunk.rows.from) + usize::from(chunk.rows.count);
        (behind..CHUNK_OFFSETS).for_each(|at| gone.set(at));
        chunk.gone = gone.0;
        Ok(chunk.encode())
    }

    /// Whether the rows of a chunk's pair are where it says. Its blocks may have been given to others since: what they hold
    /// says whose they are.
    pub(crate) fn has_its_rows(
        stream: Serial,
        number: u64,
        value: &[u8],
        blocks: &dyn Blocks,
    ) -> bool {
        let Ok(SavedChunk { rows, .. }) = postcard::from_bytes(value) else {
            return false;
        };
        match rows.place {
            SavedPlace::Here(_) => true,
            SavedPlace::Blocks(first, second) => {
                let shape = (rows.wide, rows.from, rows.count);
                block::fetch(blocks, (stream, number), [first, second], shape).is_some()
            }
        }
    }

    /// A chunk of a pair: behind those that are there. Names its blocks.
    pub(crate) fn restore_chunk(&mut self, number: u64, value: &[u8]) -> Result<Vec<u32>, Misfit> {
        let saved: SavedChunk = postcard::from_bytes(value).map_err(|_| Misfit)?;
        let gone = Bits(saved.gone);
        let start = number.saturating_mul(CHUNK_OFFSETS as u64);
        let pushed = self.end.saturating_sub(start).min(CHUNK_OFFSETS as u64) as usize;
        let present = (0..pushed).filter(|at| !gone.has(*at)).count();
        let first = gone.first_without(0, pushed);
        let last = usize::from(saved.rows.from) + usize::from(saved.rows.count);
        let (number_end, _) = place(self.end);
        // Where a stream goes on far behind it, see `head_that_ends_far`.
        let is_cut = |last| gone.first_without(last, pushed).is_none();
        let fits = number <= number_end
            && self.chunks.last().is_none_or(|last| last < number)
            && first.is_some_and(|first| first >= usize::from(saved.rows.from))
            && (last == pushed || last < pushed && number < number_end && is_cut(last))
            && saved.rows.is_sound();
        let Some(first) = first.filter(|_| fits) else {
            return Err(Misfit);
        };
        if self.kept == 0 {
            self.base = start + first as u64;
        }
        let rows = Packed::restore(saved.rows);
        let (cost, body) = rows.sums();
        self.kept += present as u64;
        self.kept_bytes += cost;
        self.bytes += cost;
        self.ready_bytes += body;
        let blocks = rows.blocks().collect();
        self.chunks.restore(number, gone, present as u16, rows);
        Ok(blocks)
    }

    /// All chunks are there.
    pub(crate) fn restored(&mut self, received: Vec<u64>) {
        let until = self.cursor_known.clamp(self.base, self.end);
        self.cursor = self.base;
        self.pass(until, 1);
        // What is gone was passed, though the journal may not say that it was handed out.
        let (mut expected, mut passed) = (until, until);
        for offset in self.kept_from(until) {
            if offset != expected {
                passed = offset;
            }
            expected = offset + 1;
        }
        if expected < self.end {
            passed = self.end;
        }
        self.pass(passed, 0);
        received.into_iter().for_each(|offset| self.receive(offset));
    }

    /// The cursor moves past what can go out again and what is gone.
    fn pass(&mut self, until: u64, attempts: u32) {
        if self.cursor >= until {
            return;
        }
        let mut run: Option<(u64, u64)> = None;
        let mut runs = Vec::new();
        for offset in self
            .kept_from(self.cursor)
            .take_while(|offset| *offset < until)
        {
            match &mut run {
                Some((_, last)) if *last + 1 == offset => *last = offset,
                _ => runs.extend(run.replace((offset, offset))),
            }
        }
        runs.extend(run);
        runs.into_iter()
            .for_each(|(first, last)| self.returned.insert_run(first, last));
        self.advance(until, attempts);
    }
}

impl SavedRows {
    /// Whether its parts fit together.
    fn is_sound(&self) -> bool {
        match &self.place {
            SavedPlace::Here(words) => {
                words.len() == usize::from(self.count) * block::words_per_row(self.wide)
            }
            SavedPlace::Blocks(first, second) => *first != 0 && (*second != 0) == self.wide,
        }
    }
}

#[cfg(test)]
mod tests;
