//! How much a stream keeps, has ready and has handed out.
//!
//! Owns: [`Volume`], [`Tally`], and the questions that the stream's own counters answer.
//! Never: changes a counter (`stream.rs` does, with the states of offsets).
//! Next: `shard/room.rs`, which adds streams up.

use super::{Place, Stream, place};
use serde::{Deserialize, Serialize};

/// How much a stream, or all of a kind, keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Entries.
    pub entries: u64,
    /// Their cost.
    pub bytes: u64,
}

impl Volume {
    /// Counts what was `before` as what is `after`.
    pub fn replace(&mut self, before: Volume, after: Volume) {
        self.entries = (self.entries + after.entries).saturating_sub(before.entries);
        self.bytes = (self.bytes + after.bytes).saturating_sub(before.bytes);
    }
}

/// Counts since the node started or the checkpoint was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Put in.
    pub published: u64,
    /// Handed out.
    pub delivered: u64,
    /// Taken.
    pub settled: u64,
    /// Dropped without being taken.
    pub dropped: u64,
    /// Dropped here and sent on.
    pub dead_lettered: u64,
    /// Publishes refused because it was full.
    pub rejected: u64,
}

impl<B: Place> Stream<B> {
    /// Messages waiting or ready.
    pub fn ready(&self) -> u64 {
        let back = self.returned.len() + self.aside.len() + self.postponed_count();
        self.end - self.cursor + back + self.parked() as u64
    }

    /// Messages handed out, not settled.
    pub fn held(&self) -> u64 {
        self.held + self.owed_ready()
    }

    /// Messages that have not left.
    pub fn messages(&self) -> u64 {
        self.ready() + self.held()
    }

    /// Cost of what has not left.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Entries not gone, and what they cost: the same on every replica, unlike [`Stream::messages`] and
    /// [`Stream::bytes`], which the leader knows earlier.
    pub fn kept(&self) -> Volume {
        Volume {
            entries: self.kept,
            bytes: self.kept_bytes,
        }
    }

    pub(super) fn body_bytes(&self, offset: u64) -> u64 {
        let (number, at) = place(offset);
        let chunk = self.chunks.get(number);
        chunk.map_or(0, |chunk| chunk.weight(at, self.of()).body)
    }
}
