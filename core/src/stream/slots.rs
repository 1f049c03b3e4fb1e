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
    list: Option<Box<List>>,
}

/// Places one by one.
#[derive(Clone, Debug)]
struct List {
    /// Place of the first.
    from: u8,
    slots: Vec<Slot>,
}

impl Slots {
    pub(super) fn get(&self, at: usize) -> Slot {
        let known = self.list.as_deref().and_then(|list| {
            let nth = at.checked_sub(usize::from(list.from))?;
            list.slots.get(nth).copied()
        });
        known.unwrap_or(Slot::ready(self.alike))
    }

    /// Whether all are ready after so many attempts, also those that come if they had as many.
    pub(super) fn are_alike(&self, attempts: u32) -> bool {
        self.list.is_none() && self.alike == attempts
    }

    /// Sets one of the places that are handed out, which begin with the place `from` says and end below that of `to`.
    pub(super) fn set(&mut self, at: usize, slot: Slot, range: impl FnOnce() -> (usize, usize)) {
        let alike = Slot::ready(self.alike);
        let list = self.list.get_or_insert_with(|| List::of(range(), alike));
        let nth = at.checked_sub(usize::from(list.from));
        if let Some(place) = nth.and_then(|nth| list.slots.get_mut(nth)) {
            *place = slot;
        }
    }

    /// Sets the first place that was not handed out; those from the place that `from` says on were.
    pub(super) fn push(&mut self, at: usize, slot: Slot, from: impl FnOnce() -> usize) {
        let alike = Slot::ready(self.alike);
        let list = self
            .list
            .get_or_insert_with(|| List::of((from(), at), alike));
        debug_assert_eq!(usize::from(list.from) + list.slots.len(), at);
        list.slots.push(slot);
    }

    /// Those below `to` are handed out too, so many times; before, those from `from` on and below `before` were.
    pub(super) fn extend(&mut self, (from, before, to): (usize, usize, usize), attempts: u32) {
        if self.list.is_none() {
            if before <= from {
                self.alike = attempts;
            }
            if self.alike == attempts {
                return;
            }
        }
        let alike = Slot::ready(self.alike);
        let list = self
            .list
            .get_or_insert_with(|| List::of((from, before), alike));
        let count = to - usize::from(list.from);
        list.slots.resize(count, Slot::ready(attempts));
    }

    /// Places whose state may be another than ready.
    pub(super) fn listed(&self) -> impl Iterator<Item = (usize, SlotState)> + '_ {
        self.list.iter().flat_map(|list| {
            let from = usize::from(list.from);
            (from..).zip(list.slots.iter().map(|slot| slot.state()))
        })
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        *self = Slots::default();
    }
}

impl List {
    fn of((from, to): (usize, usize), slot: Slot) -> Box<List> {
        Box::new(List {
            from: from as u8,
            slots: vec![slot; to.saturating_sub(from)],
        })
    }
}
