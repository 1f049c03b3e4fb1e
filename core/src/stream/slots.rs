//! What the handed-out offsets of a chunk are doing: the leader's memory.
//!
//! Most of them are all alike: released, or passed by, as many times as the others. That costs one number for the
//! chunk; a slot for each offset is kept only once one of them differs.
//!
//! Owns: [`Slots`]. Never: which offsets are gone (`chunk.rs`), how far the stream is handed out.

/// What a handed-out offset is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// It can go out, or could if somebody might receive it.
    Ready,
    /// With the consumer of this number.
    Held(u32),
    /// Settled; its record is on the way.
    Leaving,
    /// Nothing is there any more.
    Gone,
}

/// Soft state of an offset below the cursor that is not gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// [`READY`], [`LEAVING`] or who holds it.
    holder: u32,
    /// How often it was handed out.
    pub(super) attempts: u32,
}

/// No reader has this number.
const READY: u32 = 0;
/// Nor this one.
const LEAVING: u32 = u32::MAX;

impl Slot {
    pub(super) fn ready(attempts: u32) -> Slot {
        Slot {
            holder: READY,
            attempts,
        }
    }

    pub(super) fn state(self) -> SlotState {
        match self.holder {
            READY => SlotState::Ready,
            LEAVING => SlotState::Leaving,
            holder => SlotState::Held(holder),
        }
    }

    /// The same in another state; not for what is gone.
    pub(super) fn with(self, state: SlotState) -> Slot {
        let holder = match state {
            SlotState::Ready => READY,
            SlotState::Held(holder) => holder,
            SlotState::Leaving | SlotState::Gone => LEAVING,
        };
        Slot { holder, ..self }
    }
}

/// Of the places of one chunk that are handed out and not gone; of others it says nothing that means anything.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    /// Attempts of all of them, while none differs.
    alike: u32,
    /// Place of the first in the list.
    from: u8,
    list: Vec<Slot>,
}

impl Slots {
    pub(super) fn get(&self, at: usize) -> Slot {
        let nth = at.checked_sub(usize::from(self.from));
        let known = nth.and_then(|nth| self.list.get(nth));
        known.copied().unwrap_or(Slot::ready(self.alike))
    }

    /// Sets one of the places from `from` on and below `to`, which are those that are handed out.
    pub(super) fn set(&mut self, at: usize, slot: Slot, (from, to): (usize, usize)) {
        if self.list.is_empty() {
            self.list_up(from, to);
        }
        let nth = at.checked_sub(usize::from(self.from));
        if let Some(place) = nth.and_then(|nth| self.list.get_mut(nth)) {
            *place = slot;
        }
    }

    fn list_up(&mut self, from: usize, to: usize) {
        self.from = from as u8;
        self.list.reserve_exact(to - from);
        self.list.resize(to - from, Slot::ready(self.alike));
    }

    /// Those below `to` are handed out too, so many times; before, those from `from` on and below `before` were.
    pub(super) fn extend(&mut self, (from, before, to): (usize, usize, usize), attempts: u32) {
        if self.list.is_empty() {
            if before <= from {
                self.alike = attempts;
            }
            if self.alike == attempts {
                return;
            }
            self.list_up(from, before);
        }
        let count = to - usize::from(self.from);
        self.list.resize(count, Slot::ready(attempts));
    }

    /// Places whose state may be another than ready.
    pub(super) fn listed(&self) -> impl Iterator<Item = (usize, SlotState)> + '_ {
        let from = usize::from(self.from);
        (from..).zip(self.list.iter().map(|slot| slot.state()))
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.alike = 0;
    }
}
