//! Packed frames that were opened last, so that whoever reads one record after the other opens each frame once.
//!
//! Owns: which are kept, within a limit of bytes. Nothing is kept of a journal whose frames are plain. Read next:
//! [`super::reader`].

use anabranch_core::id::Position;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Payload bytes of opened frames that are kept; a larger frame is not.
pub(super) const OPENED_BYTES: usize = 8 * 1024 * 1024;

/// Payloads by the position of their frames.
#[derive(Debug, Default)]
pub(super) struct Opened(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// The one asked for last comes last.
    frames: VecDeque<(Position, Bytes)>,
    bytes: usize,
}

impl Opened {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, frame: Position) -> Option<Bytes> {
        let mut kept = self.lock();
        // Mostly that of the last time.
        let nth = kept.frames.iter().rposition(|(of, _)| *of == frame)?;
        let found = kept.frames.remove(nth)?;
        let payload = found.1.clone();
        kept.frames.push_back(found);
        Some(payload)
    }

    pub(super) fn put(&self, frame: Position, payload: Bytes) {
        if payload.len() > OPENED_BYTES {
            return;
        }
        let mut kept = self.lock();
        if kept.frames.iter().any(|(of, _)| *of == frame) {
            return;
        }
        kept.bytes += payload.len();
        kept.frames.push_back((frame, payload));
        while kept.bytes > OPENED_BYTES {
            let Some((_, oldest)) = kept.frames.pop_front() else {
                return;
            };
            kept.bytes -= oldest.len();
        }
    }

    /// Forgets all: positions may get other bytes.
    pub(super) fn clear(&self) {
        *self.lock() = Kept::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_last_stays_within_the_limit() {
        let opened = Opened::default();
        let third = || Bytes::from(vec![1; OPENED_BYTES / 3]);
        for at in 0..3 {
            opened.put(Position(at), third());
        }
        assert!(opened.get(Position(0)).is_some());
        opened.put(Position(3), third());
        assert!(opened.get(Position(1)).is_none() && opened.get(Position(0)).is_some());
        opened.put(Position(4), Bytes::from(vec![1; OPENED_BYTES + 1]));
        assert!(opened.get(Position(4)).is_none() && opened.get(Position(3)).is_some());
        assert!(opened.lock().bytes <= OPENED_BYTES);
        opened.clear();
        assert!(opened.get(Position(3)).is_none());
    }
}
