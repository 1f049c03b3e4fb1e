//! Why something was not done by a group: one enum for each thing that may be asked.
//!
//! Owns the errors and their texts; never decides. Read next: [`super`].

use crate::checkpoint::CheckpointOpenError;
use crate::journal::{OpenError, WriteError};
use anabranch_core::id::LogIndex;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a group cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum GroupOpenError {
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The checkpoint cannot be read, or the state machine refuses it.
    #[error("{path}: the checkpoint cannot be used: {source}", path = path.display())]
    Checkpoint {
        /// Directory of the group.
        path: PathBuf,
        /// Why not.
        source: CheckpointOpenError,
    },
    /// The consensus layer did not start.
    #[error("{path}: the group does not start: {what}", path = path.display())]
    Start {
        /// Directory of the group.
        path: PathBuf,
        /// Why not.
        what: String,
    },
}

/// Why a proposal was not (or perhaps not) carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another member leads, or none does; the proposal was not appended.
    #[error("this node does not lead the group")]
    NotLeader,
    /// The journal stopped after a failed disk operation; the outcome is unknown.
    #[error("the shard stopped after a failed disk operation: {0}")]
    Poisoned(Arc<str>),
    /// The group is shut down, or lost leadership while the proposal was under way; the outcome is
    /// unknown.
    #[error("the group stopped before the proposal was answered")]
    Stopped,
    /// The payload is larger than a frame may be.
    #[error("a proposal of {0} bytes is too large")]
    TooLarge(usize),
}

/// Why no checkpoint was written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The group has stopped.
    #[error("the group has stopped")]
    Stopped,
    /// The disk failed; the older checkpoint is still there.
    #[error("writing the checkpoint: {0}")]
    Io(#[from] io::Error),
}

/// Why no room was given back.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The group has stopped.
    #[error("the group has stopped")]
    Stopped,
    /// The consensus layer does not let go of the log: no checkpoint covers it, or a member still
    /// needs it.
    #[error("the log up to {0} is still needed")]
    NotCovered(LogIndex),
    /// The journal refused or failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}
