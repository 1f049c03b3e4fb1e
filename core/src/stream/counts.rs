//! How much a stream keeps, has ready and has handed out.
//!
//! Owns: [`Volume`], [`Tally`], and the questions that the stream's own counters answer.
//! Never: changes a counter (`stream.rs` does, with the states of offsets).
//! Next: `shard/room.rs`, which adds streams up.

use super::{Place, Stream};
use serde::{Deserialize, Serialize};
use std::ops::{Deref, DerefMut};

/// How much a stream, or all of a kind, keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Entries.
    pub entries: u64,
    /// Their cost.
    pub bytes: u64,
}

impl Volume {
    pub(super) const NONE: Volume = Volume {
        entries: 0,
        bytes: 0,
    };

    /// Counts what was `before` as what is `after`.
    pub fn replace(&mut self, before: Volume, after: Volume) {
        self.entries = (self.entries + after.entries).saturating_sub(before.entries);
        self.bytes = (self.bytes + after.bytes).saturating_sub(before.bytes);
    }
}

/// Counts since the node started or the checkpoint was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Put in; kept only in checkpoints.
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

/// The counts of one stream: nothing before something happened beside storing, which is counted by offsets.
#[derive(Clone, Debug, Default)]
pub struct KeptTally(Option<Box<Tally>>);

static NOTHING: Tally = Tally {
    published: 0,
    delivered: 0,
    settled: 0,
    dropped: 0,
    dead_lettered: 0,
    rejected: 0,
};

impl Deref for KeptTally {
    type Target = Tally;

    fn deref(&self) -> &Tally {
        self.0.as_deref().unwrap_or(&NOTHING)
    }
}

impl DerefMut for KeptTally {
    fn deref_mut(&mut self) -> &mut Tally {
        self.0.get_or_insert_default()
    }
}

impl From<Tally> for KeptTally {
    fn from(tally: Tally) -> KeptTally {
        let kept = Tally {
            published: 0,
            ..tally
        };
        KeptTally((kept != NOTHING).then(|| Box::new(kept)))
    }
}

impl<B: Place> Stream<B> {
    /// Counts as checkpoints and people see them.
    pub fn counts(&self) -> Tally {
        Tally {
            published: self.end,
            ..*self.tally
        }
    }

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
}
