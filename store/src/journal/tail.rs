//! The bytes just written: frames not yet applied or synced, and the most recent others.
//!
//! Owns: which frames stay in memory. A frame that is not yet synced or not yet applied always
//! stays; others stay while they fit in the budget. Never copies a payload: it holds the very
//! bytes that were proposed. Read next: [`super::Journal`].

use super::frame::{Frame, LOGICAL_HEADER_BYTES};
use anabranch_core::id::{LogIndex, Position};
use bytes::Bytes;
use std::collections::VecDeque;

#[derive(Debug)]
struct Held {
    position: Position,
    frame: Frame,
}

/// Recent frames, dense in log index.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    held: VecDeque<Held>,
    bytes: usize,
}

impl Tail {
    pub(crate) fn push(&mut self, position: Position, frame: Frame) {
        self.bytes += frame.payload.len();
        self.held.push_back(Held { position, frame });
    }

    /// Forgets old frames beyond `budget_bytes`, but none from `needed_from` on.
    pub(crate) fn evict(&mut self, budget_bytes: usize, needed_from: u64) {
        while self.bytes > budget_bytes {
            match self.held.front() {
                Some(oldest) if oldest.frame.index.0 < needed_from => {
                    self.bytes -= oldest.frame.payload.len();
                    self.held.pop_front();
                }
                _ => return,
            }
        }
    }

    /// Forgets every frame from log index `from` on.
    pub(crate) fn truncate_from(&mut self, from: u64) {
        while self
            .held
            .back()
            .is_some_and(|newest| newest.frame.index.0 >= from)
        {
            if let Some(dropped) = self.held.pop_back() {
                self.bytes -= dropped.frame.payload.len();
            }
        }
    }

    pub(crate) fn frame(&self, index: LogIndex) -> Option<(Position, &Frame)> {
        let first = self.held.front()?.frame.index;
        let nth = usize::try_from(index.0.checked_sub(first.0)?).ok()?;
        self.held.get(nth).map(|held| (held.position, &held.frame))
    }

    /// The payload bytes from `position` to the end of its frame, shared with the frame; `None`
    /// unless they are held.
    pub(crate) fn bytes_from(&self, position: Position) -> Option<Bytes> {
        let nth = self
            .held
            .partition_point(|held| held.position <= position)
            .checked_sub(1)?;
        let held = &self.held[nth];
        let inside = usize::try_from(position.0 - held.position.0).ok()?;
        let from = inside.checked_sub(LOGICAL_HEADER_BYTES)?;
        (from < held.frame.payload.len()).then(|| held.frame.payload.slice(from..))
    }

    /// Payload bytes held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes
    }
}
