//! Offsets whose message the peer of a session has already, while the rest of their settlement is owed.
//!
//! Such an offset is never handed out as a message again: when it is released it goes out first of all,
//! whatever its message's expiry says, until it is settled.
//!
//! Owns: which offsets these are. Never: when a peer has something (`shard/receipts.rs`).

use super::{Place, SlotState, Stream};
use std::collections::BTreeSet;

/// Kept only by streams that have such offsets.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// All of them.
    received: BTreeSet<u64>,
    /// Those that nobody holds now.
    ready: BTreeSet<u64>,
}

impl<B: Place> Stream<B> {
    /// The peer has what was handed out under this offset. Nothing when it is gone.
    pub fn receive(&mut self, offset: u64) {
        if offset < self.base || offset >= self.end() {
            return;
        }
        // The journal may know of this before it knows that the offset was handed out.
        self.reach_delivered(offset + 1);
        let Some(state) = self.slot(offset).map(|slot| slot.state()) else {
            return;
        };
        self.touch();
        let owed = self.owed.get_or_insert_default();
        owed.received.insert(offset);
        if state == SlotState::Ready {
            self.returned.remove(offset);
            self.aside.remove(offset);
            owed.ready.insert(offset);
        }
    }

    /// The lowest such offset that can go out now.
    pub fn next_owed(&self) -> Option<u64> {
        self.owed.as_ref()?.ready.first().copied()
    }

    /// How many of them nobody holds now.
    pub(super) fn owed_ready(&self) -> u64 {
        let owed = self.owed.as_ref();
        owed.map_or(0, |owed| owed.ready.len() as u64)
    }

    /// All of them, in order.
    pub(super) fn received(&self) -> Vec<u64> {
        let owed = self.owed.as_ref();
        owed.map(|owed| owed.received.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Takes back an offset that was released, if it is one of these.
    pub(super) fn owe_again(&mut self, offset: u64) -> bool {
        self.owed.as_mut().is_some_and(|owed| {
            let known = owed.received.contains(&offset);
            known && owed.ready.insert(offset)
        })
    }

    /// It is handed out, or settled.
    pub(super) fn owe_elsewhere(&mut self, offset: u64) {
        if let Some(owed) = &mut self.owed {
            owed.ready.remove(&offset);
        }
    }

    /// It is gone.
    pub(super) fn owe_no_more(&mut self, offset: u64) {
        if let Some(owed) = &mut self.owed {
            owed.received.remove(&offset);
            if owed.received.is_empty() {
                self.owed = None;
            }
        }
    }
}
