//! What the writer is asked to do, step by step.
//!
//! Owns the steps and which of them may go before those that wait for room. Never does one. Read next:
//! [`super::super::queue`] (how they reach the writer), [`super`].

use crate::disk::DiskFile;
use crate::journal::error::WriteError;
use crate::journal::frame::{Frame, HEAD_BYTES, decode_head};
use crate::journal::keeper::Job;
use crate::journal::meta::{FrameId, Meta};
use crate::journal::placement::Sealed;
use crate::journal::room::GiveBack;
use crate::journal::segment::{FileSlot, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::journal::window::Window;
use anabranch_core::id::{LogIndex, Position, Term};
use std::io;
use std::path::PathBuf;

/// Called once the operation is durable, or failed; on the writer's thread.
pub type Completion = Box<dyn FnOnce(Result<(), WriteError>) + Send>;

/// One step for the writer; steps are done in the order they were queued, but for those that free room
/// when there is none.
pub(crate) enum Op {
    /// Append a frame to the current segment.
    Frame(Frame),
    /// Go on in a new segment.
    Roll(Roll),
    /// Write the small durable facts.
    Meta(Meta),
    /// Move the purge pointer.
    Purge(FrameId, Completion),
    /// Drop every frame from `meta.cut_from`.
    Cut(Cut),
    /// Give up what is dead.
    GiveBack(GiveBack, Completion),
    /// Work for the keeper alone.
    Keep(Job),
    /// Report when everything before is synced.
    Done(Completion),
}

impl Op {
    /// Whether it may go before those that wait for room: it is as if those had been asked for later.
    pub(super) fn frees_room(&self) -> bool {
        match self {
            Op::Purge(..) | Op::GiveBack(..) | Op::Keep(_) => true,
            Op::Frame(_) | Op::Roll(_) | Op::Meta(_) | Op::Cut(_) | Op::Done(_) => false,
        }
    }
}

/// The segment after the current one.
pub(crate) struct Roll {
    pub(crate) base: Position,
    pub(crate) first_index: LogIndex,
    pub(crate) prev_term: Term,
    pub(crate) capacity_bytes: u64,
    pub(crate) slot: FileSlot,
    /// The segment that ends here, unless it has no frame.
    pub(crate) sealed: Option<Sealed>,
}

/// Where to cut, and what is left.
pub(crate) struct Cut {
    pub(crate) meta: Meta,
    /// Segment that becomes the current one.
    pub(crate) slot: FileSlot,
    pub(crate) capacity_bytes: u64,
    pub(crate) end_offset: u64,
    /// Offset of the last frame kept in it; `None` when the segment is left without a frame.
    pub(crate) last_offset: Option<u64>,
    /// Later segments, oldest first.
    pub(crate) dropped: Vec<PathBuf>,
    /// Segments whose side files tell of a life that is over.
    pub(crate) forgotten: Vec<Position>,
}

impl Cut {
    /// Finds where what is kept ends: when the cut was asked for, frames may have been on their way to the disk
    /// whose length there was not known.
    pub(super) fn find_end(
        &mut self,
        file: &dyn DiskFile,
        header: &SegmentHeader,
    ) -> io::Result<()> {
        let mut window = Window::new(file, header.capacity_bytes);
        let (mut offset, mut last) = (SEGMENT_HEADER_BYTES, None);
        for _ in header.first_index.0..self.meta.cut_from {
            let head = window.get(offset, HEAD_BYTES)?;
            let head = head.ok_or(io::ErrorKind::UnexpectedEof)?;
            let head = decode_head(head).map_err(io::Error::other)?;
            last = Some(offset);
            offset += head.stored_len();
        }
        self.end_offset = offset;
        self.last_offset = last;
        Ok(())
    }
}
