//! A stream's ready messages as its limits see them: how many, how large, which is the oldest.
//!
//! Owns: what the leader remembers for the limits; looking at and taking from the ready ones out of turn.
//! Never: decides that one must go (`shard/limit.rs`, `shard/seek.rs`).

use super::{Place, SlotState, Stream, Volume};
use crate::id::{Offset, UnixMs};
use crate::limits::Mode;
use std::ops::{Deref, DerefMut};

/// First and last offset of each run.
pub type Ranges = Vec<(Offset, Offset)>;

/// Appends an offset, widening the last range when it continues it.
pub fn extend(ranges: &mut Ranges, offset: u64) {
    match ranges.last_mut() {
        Some((_, last)) if last.0 + 1 == offset => *last = Offset(offset),
        _ => ranges.push((Offset(offset), Offset(offset))),
    }
}

/// Adds ranges that lie behind all that are there.
pub fn extend_by(ranges: &mut Ranges, more: &[(Offset, Offset)]) {
    for (first, end) in more {
        match ranges.last_mut() {
            Some((_, last)) if last.0 + 1 == first.0 => *last = *end,
            _ => ranges.push((*first, *end)),
        }
    }
}

/// What the leader remembers for the limits of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// Everything below had its chance to be handed out before it ended.
    pub seen: u64,
    /// Something came that ends at once, unless it is handed out at once.
    pub fleeting: bool,
    /// When its first message ends, as the shard's list of what becomes due has it; 0 is not at all.
    pub due: UnixMs,
    /// Messages that were let in and are not stored yet, with the bytes of their bodies; counted only where further
    /// ones may be refused.
    pub coming: Volume,
    /// Where messages stay: the oldest, with the bytes of their bodies, that are to go and are not gone yet.
    pub going: Volume,
    /// What ends before something that came before it.
    pub early: Early,
    /// When that is looked for, as the shard's list has it; 0 is not at all.
    pub swept_at: UnixMs,
}

/// Those of one stream, which has none as long as nothing was noted: sessions never do.
#[derive(Clone, Debug, Default)]
pub struct KeptBounds(Option<Box<Bounds>>);

static NOTHING: Bounds = Bounds {
    seen: 0,
    fleeting: false,
    due: UnixMs(0),
    coming: Volume::NONE,
    going: Volume::NONE,
    early: Early {
        latest: 0,
        first: UnixMs(0),
    },
    swept_at: UnixMs(0),
};

impl Deref for KeptBounds {
    type Target = Bounds;

    fn deref(&self) -> &Bounds {
        self.0.as_deref().unwrap_or(&NOTHING)
    }
}

impl DerefMut for KeptBounds {
    fn deref_mut(&mut self) -> &mut Bounds {
        self.0.get_or_insert_default()
    }
}

/// Whether messages end in the order in which they came, and when the first one ends that does not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Early {
    /// The latest end so far; [`Early::NEVER`] when one never ends.
    latest: u64,
    /// The first end that is earlier than one before it; 0 when there is none.
    first: UnixMs,
}

impl Early {
    const NEVER: u64 = u64::MAX;

    /// One comes that ends then; 0 is never.
    pub fn note(&mut self, end: UnixMs) {
        if end.0 == 0 {
            self.latest = Early::NEVER;
        } else if end.0 >= self.latest {
            self.latest = end.0;
        } else {
            self.seen(end);
        }
    }

    /// When the first ends that ends early; 0 is none.
    pub fn first(&self) -> UnixMs {
        self.first
    }

    /// One that ends early may be there already.
    pub fn suspect(&mut self) {
        self.seen(UnixMs(1));
    }

    /// All that end early were looked at.
    pub fn settle(&mut self) {
        self.first = UnixMs(0);
    }

    /// What another look found.
    pub fn add(&mut self, other: Early) {
        self.latest = self.latest.max(other.latest);
        if other.first.0 != 0 {
            self.seen(other.first);
        }
    }

    fn seen(&mut self, end: UnixMs) {
        if self.first.0 == 0 || end < self.first {
            self.first = end;
        }
    }
}

impl<B: Place> Stream<B> {
    /// Bytes of the bodies of ready messages.
    pub fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// The lowest ready offset, also when nobody may receive it now.
    pub fn oldest_ready(&self) -> Option<u64> {
        let waiting = [self.next(), self.aside.first(), self.first_postponed()];
        waiting.into_iter().flatten().min()
    }

    /// Whether a message was settled or dropped, and the journal does not know yet.
    pub fn is_leaving(&self, offset: u64) -> bool {
        self.state(offset) == Some(SlotState::Leaving)
    }

    /// Whether a message is there and with nobody.
    pub fn is_ready(&self, offset: u64) -> bool {
        match self.state(offset) {
            Some(state) => state == SlotState::Ready,
            None => (self.cursor..self.end).contains(&offset),
        }
    }

    /// What is ready, with the bytes of the bodies.
    pub fn ready_volume(&self) -> Volume {
        Volume {
            entries: self.ready(),
            bytes: self.ready_bytes,
        }
    }

    /// Whether so much is more than may be ready.
    pub fn is_over(&self, ready: Volume) -> bool {
        self.allows_not(ready.entries, ready.bytes)
    }

    /// Whether a message of so many bytes would still find room, after what was let in before it and with what takes
    /// room beside the stream's own ready messages.
    pub fn takes_one_more(&self, bytes: u64, beside: Volume) -> bool {
        let all = self.ready() + beside.entries + self.bounds.coming.entries + 1;
        // What a reader is handed at once is never in the way.
        let only_lead = matches!(self.limits.mode, Mode::Exclusive | Mode::Failover);
        let staying = all.saturating_sub(self.readers.room(only_lead));
        let staying_bytes = match staying {
            0 => 0,
            _ => self.ready_bytes + beside.bytes + self.bounds.coming.bytes + bytes,
        };
        !self.allows_not(staying, staying_bytes)
    }

    /// What comes at `clock` ends then.
    pub fn note_end(&mut self, end: UnixMs, clock: UnixMs) {
        self.bounds.fleeting |= end.0 != 0 && end <= clock;
        self.bounds.early.note(end);
    }

    /// Something that was let in is stored.
    pub fn came(&mut self, bytes: u32) {
        if self.bounds.coming.entries > 0 {
            let coming = &mut self.bounds.coming;
            coming.entries -= 1;
            coming.bytes = coming.bytes.saturating_sub(u64::from(bytes));
        }
    }

    fn allows_not(&self, messages: u64, bytes: u64) -> bool {
        let over = |most: Option<u64>, has: u64| most.is_some_and(|most| has > most);
        over(self.limits.messages_max, messages) || over(self.limits.bytes_max, bytes)
    }

    /// Settles every ready message below an offset, so that nobody gets it any more.
    pub fn leave_below(&mut self, end: u64) -> Ranges {
        let mut ranges = Ranges::new();
        while let Some(offset) = self.oldest_ready().filter(|offset| *offset < end) {
            self.leave(offset);
            extend(&mut ranges, offset);
        }
        ranges
    }

    /// Everything handed out from an offset on goes back to its place; names the holder of each.
    pub fn take_back(&mut self, from: u64) -> Vec<u32> {
        let held = self.listed(from).filter_map(|(offset, state)| match state {
            SlotState::Held(holder) => Some((offset, holder)),
            SlotState::Ready | SlotState::Leaving | SlotState::Gone => None,
        });
        let held: Vec<(u64, u32)> = held.collect();
        held.iter().for_each(|(offset, _)| self.release(*offset));
        held.into_iter().map(|(_, holder)| holder).collect()
    }

    /// Offsets from `from` on that are held, leaving or were so, with what they are doing, in order.
    pub(super) fn listed(&self, from: u64) -> impl Iterator<Item = (u64, SlotState)> {
        let all = self.chunks.from(from).flat_map(|chunk| {
            let listed = chunk.slots.listed();
            let kept = listed.filter(|(at, _)| !chunk.gone.has(*at));
            kept.map(|(at, state)| (chunk.start() + at as u64, state))
        });
        all.filter(move |(offset, _)| *offset >= from)
    }

    /// Offsets this consumer holds, in order.
    pub fn held_by(&self, holder: u32) -> Vec<u64> {
        let held = self.listed(self.base);
        let held = held.filter(|(_, state)| *state == SlotState::Held(holder));
        held.map(|(offset, _)| offset).collect()
    }

    /// Offsets that were handed out and are not gone, settled or not, in order.
    pub fn out_offsets(&self) -> Vec<Offset> {
        let out = self
            .listed(self.base)
            .filter(|(_, state)| matches!(state, SlotState::Held(_) | SlotState::Leaving));
        out.map(|(offset, _)| Offset(offset)).collect()
    }

    /// Offsets that are not gone, in order: the same on every replica.
    pub fn kept_offsets(&self) -> impl Iterator<Item = u64> {
        self.kept_from(self.base)
    }

    /// The same from an offset on.
    pub(super) fn kept_from(&self, from: u64) -> impl Iterator<Item = u64> {
        let end = self.end;
        self.chunks.from(from).flat_map(move |chunk| {
            let kept = chunk.kept(chunk.below(from), chunk.below(end));
            kept.map(|at| chunk.start() + at as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::stream;
    use crate::id::Offset;

    #[test]
    fn ready_bytes_follow_every_way_a_message_can_go() {
        let mut stream = stream(5);
        assert_eq!(stream.ready_bytes(), 25);
        stream.hold(0, 1);
        stream.hold(1, 1);
        stream.set_aside(2);
        assert_eq!(stream.ready_bytes(), 15);
        stream.release(1);
        assert_eq!(stream.ready_bytes(), 20);
        stream.leave(2);
        stream.remove(4);
        assert_eq!(stream.ready_bytes(), 10);
        stream.remove(2);
        stream.remove(0);
        assert_eq!((stream.ready(), stream.ready_bytes()), (2, 10));
        stream.leave(3);
        stream.remove(3);
        assert_eq!((stream.ready(), stream.ready_bytes()), (1, 5));
    }

    #[test]
    fn what_is_below_leaves_and_what_is_held_above_comes_back() {
        let mut stream = stream(6);
        for offset in [0, 1, 3, 4] {
            stream.hold(offset, offset as u32);
        }
        stream.release(1);
        let ranges = stream.leave_below(3);
        assert_eq!(ranges, [(Offset(1), Offset(2))]);
        assert_eq!(stream.take_back(3), [3, 4]);
        assert_eq!((stream.ready(), stream.held()), (3, 1));
        assert_eq!((stream.next(), stream.attempts(3)), (Some(3), 1));
    }
}
