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

impl Held {
    /// What it counts for: its payload, and what a small one takes beside.
    fn cost(&self) -> usize {
        self.frame.payload.len() + size_of::<Held>()
    }
}

/// Recent frames, dense in log index.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    held: VecDeque<Held>,
    bytes: usize,
}

impl Tail {
    pub(crate) fn push(&mut self, position: Position, frame: Frame) {
        let held = Held { position, frame };
        self.bytes += held.cost();
        self.held.push_back(held);
    }

    /// Forgets old frames beyond `budget_bytes`, but none from `needed_from` on.
    pub(crate) fn evict(&mut self, budget_bytes: usize, needed_from: u64) {
        while self.bytes > budget_bytes {
            match self.held.front() {
                Some(oldest) if oldest.frame.index.0 < needed_from => {
                    self.bytes -= oldest.cost();
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
                self.bytes -= dropped.cost();
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

    /// Bytes held.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::FrameKind;
    use anabranch_core::id::{Term, UnixMs};

    fn frame(index: u64, len: usize) -> Frame {
        Frame {
            term: Term(1),
            index: LogIndex(index),
            committed: LogIndex(0),
            clock: UnixMs(0),
            kind: FrameKind::Records,
            payload: vec![index as u8; len].into(),
        }
    }

    /// Frames of 10 payload bytes, from log index 5 on.
    fn tail(count: u64) -> Tail {
        let mut tail = Tail::default();
        for nth in 0..count {
            tail.push(Position(1000 + nth * 64), frame(5 + nth, 10));
        }
        tail
    }

    #[test]
    fn it_holds_no_more_than_its_budget_but_for_what_is_needed() {
        let mut tail = tail(1000);
        let one = tail.held_bytes() / 1000;
        assert!(one > 10, "small frames count with what they take beside");
        tail.evict(20 * one, 5);
        assert_eq!(tail.held_bytes(), 1000 * one);
        tail.evict(20 * one, 505);
        assert_eq!(tail.held_bytes(), 500 * one);
        tail.evict(20 * one, u64::MAX);
        assert_eq!(tail.held_bytes(), 20 * one);
        assert!(tail.frame(LogIndex(984)).is_none());
        assert_eq!(tail.frame(LogIndex(985)).unwrap().1, &frame(985, 10));
        tail.truncate_from(990);
        assert_eq!(tail.held_bytes(), 5 * one);
        tail.evict(0, u64::MAX);
        assert_eq!(tail.held_bytes(), 0);
    }

    #[test]
    fn a_position_gives_the_rest_of_its_payload_and_nothing_beside_it() {
        let tail = tail(3);
        let payload = 1000 + 64 + LOGICAL_HEADER_BYTES as u64;
        assert_eq!(tail.bytes_from(Position(payload)).unwrap(), [6; 10][..]);
        assert_eq!(tail.bytes_from(Position(payload + 9)).unwrap(), [6; 1][..]);
        for beside in [999, 1064, payload - 1, payload + 10, 1000 + 3 * 64 + 60] {
            assert!(tail.bytes_from(Position(beside)).is_none(), "{beside}");
        }
    }
}
