//! Messages that cannot be read: told once for each segment, and counted.
//!
//! Owns: where the bytes lie that cannot be read, for whoever looks for them: the file or the object, the segment, the
//! place in it. Never says what becomes of the message. Read next: [`super::reader`].

use super::Journal;
use super::segment::segment_path;
use anabranch_core::id::Position;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

/// Segments of which it was told, by their bases.
#[derive(Debug, Default)]
pub(super) struct Unreadable(Mutex<BTreeSet<Position>>);

impl Unreadable {
    /// Says whether it was not told before.
    fn is_new(&self, base: Position) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert(base)
    }
}

impl Journal {
    /// The message at a position cannot be read; it is set aside.
    pub(crate) fn is_unreadable(&self, position: Position, why: &dyn Display) {
        self.inner.health.is_unreadable();
        let (base, object, span) = {
            let shared = self.lock();
            let segment = shared.segment_covering(position);
            let base = segment.map_or(Position(0), |segment| segment.base);
            let object = segment.and_then(|segment| segment.object());
            let span = segment.and_then(|segment| segment.frame_covering(position));
            (base, object.is_some(), span)
        };
        if !self.inner.unreadable.is_new(base) {
            return;
        }
        let place = match self.folder().filter(|_| object) {
            Some(folder) => folder.object_address(base),
            None => segment_path(&self.inner.dir, base).display().to_string(),
        };
        tracing::error!(
            place,
            segment = base.0,
            position = position.0,
            from = span.map(|span| span.offset),
            to = span.map(|span| span.end_offset),
            why = %why,
            "a message cannot be read and is set aside, and the rest of its stream goes on; others of this segment are \
             counted and not named: `anabranch store check` lists what is wrong in it"
        );
    }
}
