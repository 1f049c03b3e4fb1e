//! Looking at the folder of a shard, stopped or live: checking, dumping, counting; and mending a stopped one.
//!
//! Owns: what a tool is told of a shard. Only [`mod@repair`] changes anything, and only it takes the lock. All
//! reading is done by what the server reads with; there is no second parser here. Read next: [`mod@check`],
//! [`mod@dump`], [`mod@stats`], [`mod@repair`], then `journal/survey.rs` and `checkpoint/survey.rs`.

mod check;
mod dump;
mod repair;
mod state;
mod stats;

pub use check::{Checked, check};
pub use dump::{DumpFrom, Dumped, dump};
pub use repair::{Consent, Mended, RepairError, Step, StepKind, repair};
pub use stats::{KindCount, Stats, stats};

use crate::checkpoint::CheckpointOpenError;
use crate::disk::Disk;
use crate::journal::OpenError;
use crate::seal::Sealing;
use crate::tier::{Tier, Unreached};
use std::path::PathBuf;
use std::sync::Arc;

/// What lies in a shard's folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardKind {
    /// Names, users, rules.
    Meta,
    /// Streams and messages.
    Data,
}

/// Where folders are read from.
#[derive(Debug, Clone)]
pub struct Source {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// What opens sealed files.
    pub sealing: Sealing,
    /// Where segments are read from that lie in an object store; without it they are passed over, and counted.
    pub tier: Option<Tier>,
}

/// A shard's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardFolder {
    /// Its name in the data folder.
    pub name: String,
    /// Where it is.
    pub dir: PathBuf,
    /// What lies in it.
    pub kind: ShardKind,
}

impl ShardFolder {
    /// The folder of that name, when it is a shard's: `meta`, or `shard-` and a number.
    pub fn named(data: &std::path::Path, name: &str) -> Option<ShardFolder> {
        let kind = match name.strip_prefix("shard-") {
            Some(number) if number.parse::<u16>().is_ok() => ShardKind::Data,
            None if name == "meta" => ShardKind::Meta,
            Some(_) | None => return None,
        };
        Some(ShardFolder {
            name: name.to_owned(),
            dir: data.join(name),
            kind,
        })
    }
}

/// Segments of a shard that lie in an object store.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Away {
    /// How many.
    pub segments: u64,
    /// Bytes of their objects.
    pub bytes: u64,
    /// Whether they were read.
    pub read: bool,
}

/// How far a look has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub doing: &'static str,
    /// Of `total`.
    pub done: u64,
    /// In the same unit, as far as it is known.
    pub total: u64,
}

/// Why nothing can be said of a shard.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// Its journal cannot be looked at.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// Its checkpoints cannot.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointOpenError),
    /// Frames are sealed, and the key was not given.
    #[error("{path}: {what}", path = path.display())]
    Sealed {
        /// The file.
        path: PathBuf,
        /// Which key.
        what: String,
    },
    /// The object store does not answer as it should.
    #[error(transparent)]
    Tier(#[from] Unreached),
    /// The state that the checkpoint and the journal give cannot be made.
    #[error("{path}: {what}", path = path.display())]
    State {
        /// The shard's folder.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// The disk failed.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The shard's folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}
