//! From a place in the journal back to the message.
//!
//! Owns: reading and parsing a record, and remembering what one round of handing out reads more than
//! once (a message with many destinations). Never keeps a message beyond a round: it would keep its
//! whole frame in memory. Read next: [`crate::journal`].

use crate::journal::Journal;
use anabranch_core::id::Position;
use anabranch_core::message::Message;
use anabranch_core::record::{RECORD_HEADER_BYTES, read_message, record_bytes};
use anabranch_core::shard::{Bodies, Fetched};
use std::sync::Arc;

/// Slots of the memory of one round; a power of two.
const SLOTS: usize = 1024;

/// Messages of one shard by place.
pub(crate) struct JournalBodies {
    journal: Journal,
    slots: Vec<Option<(Position, Arc<Message>)>>,
    used: Vec<usize>,
}

impl JournalBodies {
    pub(crate) fn new(journal: Journal) -> Self {
        Self {
            journal,
            slots: vec![None; SLOTS],
            used: Vec::new(),
        }
    }

    /// Forgets what the round has read.
    pub(crate) fn end_round(&mut self) {
        for slot in self.used.drain(..) {
            self.slots[slot] = None;
        }
    }

    fn slot(position: Position) -> usize {
        (position.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % SLOTS
    }
}

impl Bodies<Position> for JournalBodies {
    fn fetch(&mut self, place: &Position) -> Fetched {
        let slot = Self::slot(*place);
        if let Some((position, message)) = &self.slots[slot]
            && position == place
        {
            return Fetched::Here(message.clone());
        }
        let record = self
            .journal
            .fetch_sized(*place, RECORD_HEADER_BYTES, |header| {
                record_bytes(header).ok()
            });
        let message = match record.map(read_message) {
            Ok(Ok(message)) => message,
            Ok(Err(error)) => {
                self.journal.is_unreadable(*place, &error);
                return Fetched::Lost;
            }
            Err(error) if error.is_away() => return Fetched::Later,
            Err(error) => {
                self.journal.is_unreadable(*place, &error);
                return Fetched::Lost;
            }
        };
        if self.slots[slot].is_none() {
            self.used.push(slot);
        }
        self.slots[slot] = Some((*place, message.clone()));
        Fetched::Here(message)
    }
}
