//! What a tool sees of a journalled shard's state: its streams, where their messages are, and what of its index file is
//! in use.
//!
//! Owns: [`StreamFacts`], [`IndexUse`], and how they are gathered. Never: changes anything.
//! Next: `checkpoint.rs` (how a state comes back).

use super::Shard;
use crate::id::{Offset, Position, StreamId, UnixMs, VhostId};
use crate::index::Block;
use crate::stream::{Kind, LostRows};
use std::ops::ControlFlow;
use std::sync::Arc;

/// What kind of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamSort {
    /// Consumers share it.
    Queue,
    /// It keeps what was read.
    Replay,
    /// One session's own.
    Session,
    /// Members of a group share it.
    Group,
}

/// One stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFacts {
    /// Which.
    pub id: StreamId,
    /// In.
    pub vhost: VhostId,
    /// Its name, or that of its session or group; empty where the shard knows none.
    pub name: Arc<str>,
    /// What it is.
    pub sort: StreamSort,
    /// Entries that are not gone.
    pub entries: u64,
    /// What they cost, in bytes.
    pub bytes: u64,
    /// First offset not yet put in.
    pub end: Offset,
}

/// Where an entry's message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPlace {
    /// Of its record in the journal.
    pub position: Position,
    /// When it came in; 0 not known.
    pub stored: UnixMs,
}

/// The row of an entry that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRow {
    /// The blocks that had it, one of which is damaged; none when the row was lost in an earlier life.
    pub blocks: Vec<Block>,
}

/// Blocks of the index file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexUse {
    /// Named by the state.
    pub used: u64,
    /// Once used, and free or resting.
    pub free: u64,
}

impl Shard<Position> {
    /// Every stream.
    pub fn stream_facts(&self) -> impl Iterator<Item = StreamFacts> {
        self.streams.iter().flatten().map(|stream| {
            let kept = stream.kept();
            let (sort, name) = match &stream.kind {
                Kind::Queue if stream.replays() => (StreamSort::Replay, &stream.name),
                Kind::Queue => (StreamSort::Queue, &stream.name),
                Kind::Session(session) => (StreamSort::Session, &session.client_id),
                Kind::Group(group) => (StreamSort::Group, &group.name),
            };
            StreamFacts {
                id: stream.id,
                vhost: stream.vhost,
                name: name.clone(),
                sort,
                entries: kept.entries,
                bytes: kept.bytes,
                end: Offset(stream.end()),
            }
        })
    }

    /// Reads every entry of every stream, with those of streams that have ended and are not gone yet; where one cannot be
    /// read it is said what had it. Goes on while `visit` says so.
    pub fn each_entry(
        &self,
        visit: &mut dyn FnMut(StreamId, Offset, Result<EntryPlace, LostRow>) -> ControlFlow<()>,
    ) {
        let streams = self.streams.iter().flatten().map(|stream| &**stream);
        for stream in streams.chain(self.ended.iter()) {
            for offset in stream.kept_offsets() {
                let place = stream.entry(offset).map(|entry| EntryPlace {
                    position: entry.body,
                    stored: entry.stored,
                });
                let place = place.ok_or_else(|| LostRow {
                    blocks: stream.unreadable_blocks(offset),
                });
                if visit(stream.id, Offset(offset), place).is_break() {
                    return;
                }
            }
        }
    }

    /// Rows that cannot be read and that the journal may still tell, stream by stream. Every row is read for that.
    pub fn lost_rows(&self) -> Vec<LostRows> {
        let streams = self.streams.iter().flatten();
        streams.flat_map(|stream| stream.lost_rows()).collect()
    }

    /// How many blocks of the index file are in use.
    pub fn index_use(&self) -> IndexUse {
        let Some(index) = &self.index else {
            return IndexUse::default();
        };
        let (used, free) = index.lock().blocks_used_and_free();
        IndexUse { used, free }
    }

    /// Last values, which are whole in memory and in checkpoints.
    pub fn last_values(&self) -> u64 {
        self.values.count()
    }
}
