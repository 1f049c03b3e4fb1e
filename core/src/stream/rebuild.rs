//! Rows that cannot be read, made again from the records that the journal has.
//!
//! A row of a queue or a stream stands for a record that names it, and rows are in the order of their records. So where
//! all records between two positions are known, and as many of them name the stream as it lacks rows there, those are
//! its rows: none could be another's. A narrow row holds nothing that its record does not tell. What sessions and
//! groups match depends on filters that may have changed since, and when a message ends on limits that may have: their
//! rows, and wide ones, are not made again.
//!
//! Owns: when that is certain. Never: reads the journal, or writes a block.
//! Next: `packed.rs` (rows), `shard/apply/store.rs` (how they come about).

use super::block;
use super::chunk::{Chunk, Of};
use super::index::{Index, Serial};
use super::packed::{LostChunk, entry_cost};
use super::{Entry, Stream};
use crate::id::{Position, StreamId, UnixMs};
use crate::index::{Block, BlockBytes};
use crate::message::Quality;
use crate::record::Record;

/// Chunks of one stream that follow each other, whose rows cannot be read.
#[derive(Debug)]
pub struct LostRows {
    /// Whose.
    pub stream: StreamId,
    /// Their records lie behind this position.
    pub from: Position,
    /// And before this one, if there are rows behind them.
    pub to: Option<Position>,
    serial: Serial,
    chunks: Vec<(u64, LostChunk)>,
    rows: Vec<Entry<Position>>,
    /// Nothing was met that may have given a row, or may not.
    certain: bool,
}

impl Stream<Position> {
    /// Rows in blocks that cannot be read, of which each stands for a record that names this stream.
    pub(crate) fn lost_rows(&self) -> Vec<LostRows> {
        let mut runs = Vec::new();
        if !self.is_queue() || self.id.rank() != 0 || self.limits.priority_max.is_some() {
            return runs;
        }
        let run = |from| LostRows {
            stream: self.id,
            from,
            to: None,
            serial: self.serial,
            chunks: Vec::new(),
            rows: Vec::new(),
            certain: true,
        };
        let mut now = run(Position(0));
        for chunk in self.chunks.from(0) {
            match chunk.span(self.of()) {
                Some((first, last)) => {
                    now.to = Some(first);
                    runs.push(std::mem::replace(&mut now, run(last)));
                }
                None => match chunk.lost(self.index.as_deref()) {
                    Some(lost) => now.chunks.push((chunk.number, lost)),
                    None => now.certain = false,
                },
            }
        }
        runs.push(now);
        runs.retain(|run| run.certain && !run.chunks.is_empty());
        runs
    }
}

impl Chunk<Position> {
    /// Where the records of its first and its last row lie; nothing when that cannot be read.
    fn span(&self, of: Of<'_>) -> Option<(Position, Position)> {
        self.rows.span(self.home(of))
    }

    /// What is known of its rows, when they cannot be read and are narrow.
    fn lost(&self, index: Option<&Index>) -> Option<LostChunk> {
        let unreadable = self.unreadable_blocks(index?);
        (!unreadable.is_empty()).then(|| self.rows.lost(self.gone))?
    }
}

impl LostRows {
    /// Takes note of a record; all from one position to the other are to be named, in order. It lies at a position, takes
    /// so many bytes and came at this time.
    pub fn note(&mut self, (position, bytes): (Position, usize), clock: UnixMs, record: &Record) {
        let Record::Publish {
            streams,
            by_topic,
            extra,
            message,
        } = record
        else {
            return;
        };
        if position <= self.from || self.to.is_some_and(|to| position >= to) {
            return;
        }
        for _ in streams.iter().filter(|stream| **stream == self.stream) {
            self.certain &= extra.as_deref().is_none_or(|extra| {
                extra.handed.is_none() && extra.once.is_none() && extra.later.is_none()
            });
            self.rows.push(Entry {
                body: position,
                expires: UnixMs(0),
                cost_bytes: entry_cost(message, bytes),
                identifier: 0,
                quality: message.quality,
                retain: false,
                by_topic: by_topic.is_some(),
                no_local: false,
                more_identifiers: None,
                stored: clock,
                body_bytes: u32::try_from(message.body.len()).unwrap_or(u32::MAX),
            });
        }
    }

    /// The blocks, with how many rows each has, when it is certain what was in them.
    pub fn blocks(&self) -> Option<Vec<(Block, BlockBytes, u8)>> {
        let lost = self.chunks.iter();
        let lost: usize = lost.map(|(_, chunk)| usize::from(chunk.count)).sum();
        if !self.certain || self.rows.len() != lost {
            return None;
        }
        let mut rows = &self.rows[..];
        let mut blocks = Vec::new();
        for (number, chunk) in &self.chunks {
            let (own, more) = rows.split_at(usize::from(chunk.count));
            rows = more;
            let words = chunk.words(own)?;
            let (bytes, _) = block::write(
                self.serial,
                *number,
                (false, chunk.from, chunk.base),
                &words,
            );
            blocks.push((Block(chunk.block), bytes, chunk.count));
        }
        Some(blocks)
    }
}

impl LostChunk {
    /// These entries as rows, if they are what the chunk's pair tells of them.
    fn words(&self, entries: &[Entry<Position>]) -> Option<Vec<u64>> {
        let places = usize::from(self.from)..;
        let kept = places
            .zip(entries)
            .filter(|(at, _)| !self.gone.has(*at))
            .map(|(_, entry)| (u64::from(entry.cost_bytes), u64::from(entry.body_bytes)));
        let sums = kept.fold((0, 0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
        let mut qualities = entries.iter().map(|entry| entry.quality);
        let unsettled = qualities.any(|quality| quality == Quality::AtMostOnce);
        if sums != self.sums || unsettled && !self.unsettled {
            return None;
        }
        let rows = entries.iter().map(|entry| self.narrow(entry));
        Some(rows.collect::<Option<Vec<_>>>()?.concat())
    }
}
