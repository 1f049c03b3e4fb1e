//! What one subscriber, one consumer or one group of them has received.
//!
//! Owns the check of arrivals against what was sent. Never touches a socket. Next: `sequence.rs`,
//! then `lane.rs`, which feeds it.

use std::ops::Range;

use crate::sequence::{Faults, Stamp, Track};

/// One place where messages arrive; several connections may share it.
pub struct Receiver {
    hears: Range<usize>,
    payload_bytes: usize,
    /// Earlier messages should be gone.
    first: u64,
    ordered: bool,
    /// One per lane of the run.
    tracks: Vec<Track>,
    stray: u64,
}

impl Receiver {
    /// A receiver that should hear the lanes `hears`, of `lanes` in all, each message once and in
    /// order, with `payload_bytes` in each.
    pub fn new(hears: Range<usize>, lanes: usize, payload_bytes: usize) -> Self {
        Self {
            hears,
            payload_bytes,
            first: 0,
            ordered: true,
            tracks: (0..lanes).map(|_| Track::starting_at(0)).collect(),
            stray: 0,
        }
    }

    /// Messages may come in any order.
    pub fn unordered(mut self) -> Self {
        self.ordered = false;
        self
    }

    /// Of each lane, only message `first` and later ones may come.
    pub fn starting_at(mut self, first: u64) -> Self {
        self.first = first;
        self.tracks.fill_with(|| Track::starting_at(first));
        self
    }

    /// Notes a message; gives its stamp when it belongs here.
    #[inline]
    pub fn take(&mut self, payload: &[u8], run: u32) -> Option<Stamp> {
        let stamp = Stamp::read(payload).filter(|stamp| {
            stamp.run == run
                && payload.len() == self.payload_bytes
                && self.hears.contains(&(stamp.sender as usize))
                && stamp.sequence >= self.first
        });
        match stamp {
            Some(stamp) => self.tracks[stamp.sender as usize].see(stamp.sequence),
            None => self.stray += 1,
        }
        stamp
    }

    /// Where the window of this lane starts: behind the last message that came or, without an
    /// order, as many messages on as came.
    #[inline]
    pub fn floor(&self, lane: usize) -> u64 {
        let track = &self.tracks[lane];
        if self.ordered {
            track.next()
        } else {
            track.arrived_below()
        }
    }

    /// Messages that have come, repeated ones counted once.
    pub fn arrived(&self) -> u64 {
        let tracks = self.tracks[self.hears.clone()].iter();
        tracks.map(|track| track.arrived_below() - self.first).sum()
    }

    /// What went wrong so far, when lane `n` has sent `sent(n)` messages.
    pub fn faults(&self, sent: impl Fn(usize) -> u64) -> Faults {
        let mut faults = Faults {
            stray: self.stray,
            ..Faults::default()
        };
        for number in self.hears.clone() {
            faults.add(&self.tracks[number].faults(sent(number)));
        }
        if !self.ordered {
            faults.reordered = 0;
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn give(receiver: &mut Receiver, run: u32, sender: u32, sequences: &[u64]) {
        for &sequence in sequences {
            let mut payload = [0; 32];
            let stamp = Stamp {
                run,
                sender,
                sequence,
                sent_ns: 4,
            };
            stamp.write(&mut payload);
            receiver.take(&payload, 1);
        }
    }

    #[test]
    fn what_was_not_addressed_to_a_receiver_is_astray() {
        let mut receiver = Receiver::new(0..1, 2, 32);
        give(&mut receiver, 1, 1, &[0]);
        give(&mut receiver, 2, 0, &[0]);
        assert_eq!(receiver.take(b"short", 1), None);
        assert_eq!(receiver.take(&[0; 33], 0), None);
        assert_eq!(receiver.arrived(), 0);
        let stray = Faults {
            stray: 4,
            ..Faults::default()
        };
        assert_eq!(receiver.faults(|_| 0), stray);
    }

    #[test]
    fn a_group_has_no_order_but_loses_and_repeats_nothing() {
        let mut group = Receiver::new(0..1, 1, 32).unordered();
        give(&mut group, 1, 0, &[3, 0]);
        assert_eq!((group.floor(0), group.arrived()), (2, 2));
        give(&mut group, 1, 0, &[2, 1]);
        assert_eq!(group.floor(0), 4);
        assert!(group.faults(|_| 4).is_clean());
        give(&mut group, 1, 0, &[2]);
        let faults = Faults {
            lost: 1,
            repeated: 1,
            ..Faults::default()
        };
        assert_eq!(group.faults(|_| 5), faults);
    }

    #[test]
    fn an_older_value_is_astray() {
        let mut reader = Receiver::new(0..1, 1, 32).unordered().starting_at(10);
        give(&mut reader, 1, 0, &[11, 10, 2]);
        assert_eq!(reader.arrived(), 2);
        let faults = Faults {
            lost: 1,
            stray: 1,
            ..Faults::default()
        };
        assert_eq!(reader.faults(|_| 13), faults);
    }
}
