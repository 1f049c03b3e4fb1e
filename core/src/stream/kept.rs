//! A stream whose messages stay, as those who read it from places of their own see it ([`Mode::Replay`]).
//!
//! Nothing of it is ever handed out in the sense of `stream.rs`: its slots stay empty, and messages leave from the
//! front only.
//!
//! Owns: finding a place in it.
//! Never: who reads (`dispatch/cursor.rs`), when something leaves (`shard/retention.rs`).

use super::{Place, Stream, Weight};
use crate::gateway::SeekTo;
use crate::id::{Offset, UnixMs};
use crate::limits::Mode;
use crate::port::KeptRange;

impl<B: Place> Stream<B> {
    /// Whether messages stay.
    pub fn replays(&self) -> bool {
        self.limits.mode == Mode::Replay
    }

    /// The lowest offset that is not gone, or the one that comes next when all are.
    pub fn first(&self) -> u64 {
        self.kept_offsets().next().unwrap_or(self.end())
    }

    /// The highest offset that is not gone.
    fn last_kept(&self) -> Option<u64> {
        self.chunks.last_kept(self.end)
    }

    /// The offset of a place, as of now.
    pub fn place_of(&self, to: SeekTo) -> u64 {
        let (first, end) = (self.first(), self.end());
        match to {
            SeekTo::Start => first,
            SeekTo::Last => self.last_kept().unwrap_or(end),
            SeekTo::End => end,
            SeekTo::Offset(offset) => offset.0.clamp(first, end),
            SeekTo::Time(time) => self.first_since(time),
        }
    }

    /// The first offset that came in at a time or later. The times that entries came in never go back.
    fn first_since(&self, time: UnixMs) -> u64 {
        let (mut low, mut high) = (self.first(), self.end());
        while low < high {
            let middle = low + (high - low) / 2;
            // Offsets need not follow each other.
            let next = self.next_kept(middle).unwrap_or(high);
            let earlier = self.entry(next).is_some_and(|entry| entry.stored < time);
            match earlier {
                true => low = next + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Lets go of what lies below an offset, naming the weight of each message.
    pub(crate) fn trim_below(&mut self, first: u64, each: impl FnMut(Weight)) {
        if let Some(last) = first.checked_sub(1) {
            self.remove_ranges(&[(Offset(0), Offset(last))], each);
        }
    }

    /// What is kept, if anything.
    pub fn kept_range(&self) -> Option<KeptRange> {
        let first = self.first();
        let last = self.last_kept()?;
        Some(KeptRange {
            first: Offset(first),
            first_at: self.entry(first)?.stored,
            last: Offset(last),
            last_at: self.entry(last)?.stored,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::stream;
    use crate::gateway::SeekTo;
    use crate::id::{Offset, Position, UnixMs};
    use crate::stream::{Entry, Stream};

    /// Offsets 2 to 6, which came in at 20, 30, 30, 50, 60.
    fn kept() -> Stream<Position> {
        let entry = stream(1).entry(0).unwrap();
        let mut stream = stream(0);
        for time in [0, 10, 20, 30, 30, 50, 60] {
            stream.push(Entry {
                stored: UnixMs(time),
                ..entry.clone()
            });
        }
        stream.remove_ranges(&[(Offset(0), Offset(1))], |_| {});
        stream
    }

    #[test]
    fn every_place_is_found_and_what_lies_outside_is_brought_to_an_end() {
        let stream = kept();
        for (to, offset) in [
            (SeekTo::Start, 2),
            (SeekTo::Last, 6),
            (SeekTo::End, 7),
            (SeekTo::Offset(Offset(0)), 2),
            (SeekTo::Offset(Offset(4)), 4),
            (SeekTo::Offset(Offset(99)), 7),
            (SeekTo::Time(UnixMs(0)), 2),
            (SeekTo::Time(UnixMs(21)), 3),
            (SeekTo::Time(UnixMs(30)), 3),
            (SeekTo::Time(UnixMs(31)), 5),
            (SeekTo::Time(UnixMs(61)), 7),
        ] {
            assert_eq!(stream.place_of(to), offset, "{to:?}");
        }
        let range = stream.kept_range().unwrap();
        assert_eq!((range.first, range.first_at), (Offset(2), UnixMs(20)));
        assert_eq!((range.last, range.last_at), (Offset(6), UnixMs(60)));
    }

    #[test]
    fn of_nothing_every_place_is_its_end() {
        let mut empty = kept();
        empty.remove_ranges(&[(Offset(0), Offset(99))], |_| {});
        for to in [
            SeekTo::Start,
            SeekTo::Last,
            SeekTo::End,
            SeekTo::Time(UnixMs(0)),
        ] {
            assert_eq!(empty.place_of(to), 7);
        }
        assert_eq!(empty.kept_range(), None);
    }
}
