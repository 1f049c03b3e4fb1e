//! What can go wrong with a journal: one enum per operation.
//!
//! Owns: the wording that an operator reads. Read next: [`super::recovery`].

use crate::seal::KeyError;
use anabranch_core::id::{LogIndex, Position, Term};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk failed.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// File or directory that was worked on.
        path: PathBuf,
        /// What the disk said.
        source: io::Error,
    },
    /// Another process holds the directory.
    #[error("{path}: another server uses this data folder ({holder}); stop it or choose another folder", path = path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// What is known about the holder.
        holder: String,
    },
    /// It is encrypted, and the key is not there.
    #[error("{path}: {source}", path = path.display())]
    Key {
        /// The file concerned.
        path: PathBuf,
        /// Why it does not open.
        source: KeyError,
    },
    /// A part of it lies in an object store, and none is configured.
    #[error("{path}: segments of this journal lie in an object store: store.tier.url must name it", path = path.display())]
    NoTier {
        /// The directory.
        path: PathBuf,
    },
    /// Bytes that were once synced are not what they were. Nothing is cut; the shard must be
    /// repaired from a replica or from a backup.
    #[error("{path}: the journal is corrupt at log index {index} (position {position}): {what}; nothing was changed", path = path.display())]
    Corrupt {
        /// The file concerned.
        path: PathBuf,
        /// The first log index that cannot be believed.
        index: LogIndex,
        /// The position where it should begin.
        position: Position,
        /// What does not match, and how it is known to be no torn write.
        what: String,
    },
}

impl OpenError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> OpenError {
        let path = path.into();
        move |source| OpenError::Io { path, source }
    }
}

/// Why a write was not done. Except for the poisoned state, nothing was written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WriteError {
    /// An earlier write or sync failed. What reached the disk is unknown, so nothing is retried;
    /// only a restart, which reads the disk again, helps.
    #[error("the journal stopped after a failed disk operation: {0}")]
    Poisoned(Arc<str>),
    /// The payload is larger than a frame may be.
    #[error("a frame of {0} payload bytes is too large")]
    TooLarge(usize),
    /// The frame does not follow the last one.
    #[error(
        "frame {got} of term {got_term} does not follow; expected index {expected}, term {least_term} or later"
    )]
    OutOfOrder {
        /// Index that would follow.
        expected: LogIndex,
        /// Index given.
        got: LogIndex,
        /// Lowest term that may follow.
        least_term: Term,
        /// Term given.
        got_term: Term,
    },
    /// There is no room on the disk for the next segment, and the journal is closed before there was.
    #[error("there is no room on the disk for the next segment of the journal")]
    NoRoom,
    /// A cut or a purge names an index that the journal cannot go to.
    #[error("log index {0} is outside of the journal")]
    OutOfRange(LogIndex),
}

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No such frame: never written, cut, or released.
    #[error("log index {0} is not in the journal")]
    NoFrame(LogIndex),
    /// The bytes asked for are not inside one frame of the journal.
    #[error("position {0} with {1} bytes is not inside one frame of the journal")]
    NoBytes(Position, usize),
    /// What was there was dead, and its room was given back. Nothing is wrong with the journal.
    #[error("position {0} of the journal was given back: nothing referred to it any more")]
    GivenBack(Position),
    /// The bytes on disk fail their checksum.
    #[error("the frame at log index {0} is corrupt on disk")]
    Corrupt(LogIndex),
    /// The file ends before what it should have at this offset: somebody shortened it.
    #[error("a segment of the journal was cut short: its file ends before byte {0}")]
    CutShort(u64),
    /// The disk failed; or, of kind `WouldBlock`, see [`ReadError::is_away`].
    #[error("reading the journal: {0}")]
    Io(#[from] io::Error),
}

impl ReadError {
    /// Whether the bytes are not at hand and were asked for: they come later.
    pub fn is_away(&self) -> bool {
        matches!(self, ReadError::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}
