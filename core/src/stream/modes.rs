//! What the modes ask of a stream beyond who is chosen: a change of mode, and messages that wait for their key.
//!
//! Owns: these. Never: the states of an offset (`stream.rs`), the books about keys (`keyed.rs`).

use super::{KeyHash, Keyed, Place, SlotState, Stream};
use crate::limits::Mode;
use crate::port::ConsumerKey;

impl<B: Place> Stream<B> {
    /// Another mode, for what is handed out next. Returns those readers that must go, since one may be
    /// attached only ([`Mode::Exclusive`]).
    pub fn set_mode(&mut self, mode: Mode) -> Vec<ConsumerKey> {
        if self.limits.mode == mode {
            return Vec::new();
        }
        self.touch();
        self.limits.mode = mode;
        if let Some(keyed) = self.keyed.take() {
            let waiting = keyed.into_waiting();
            waiting.for_each(|offset| self.returned.insert(offset));
        }
        // Somebody else may be served now who may receive what was set aside.
        self.recall_aside();
        match mode {
            Mode::Shared | Mode::Failover | Mode::Replay => Vec::new(),
            Mode::Exclusive => self.readers.surplus(),
            Mode::KeyShared => {
                let held = self.listed(self.base);
                let held = held.filter_map(|(offset, state)| match state {
                    SlotState::Held(by) => Some((offset, by)),
                    SlotState::Ready | SlotState::Leaving | SlotState::Gone => None,
                });
                let keyed = Keyed::new(held);
                self.keyed = Some(Box::new(keyed));
                Vec::new()
            }
        }
    }

    /// Messages that wait for their key or for room at its reader.
    pub(super) fn parked(&self) -> usize {
        self.keyed.as_deref().map_or(0, Keyed::waiting)
    }

    /// The lowest offset of a key-shared stream whose key nobody has looked at, while more may be.
    pub fn next_unseen(&self) -> Option<u64> {
        let full = self.keyed.as_deref().is_some_and(Keyed::is_full);
        self.next_returned().filter(|_| !full)
    }

    /// Lets a message of a key-shared stream wait for its key or for room at its reader.
    pub fn park(&mut self, offset: u64, key: KeyHash) {
        self.reach(offset);
        if let Some(keyed) = self.keyed.as_deref_mut() {
            keyed.wait(offset, key);
        }
    }

    /// What nobody has looked at must not lie before what waits, or one of the same key would be overtaken. It does
    /// when something goes back whose key is not known, or that could not be handed out before: then what waits
    /// behind it is looked at once more.
    pub fn order_unseen(&mut self) {
        if let Some(first) = self.returned.first()
            && let Some(keyed) = self.keyed.as_deref_mut()
        {
            for offset in keyed.forget_behind(first) {
                self.returned.insert(offset);
            }
        }
    }
}
