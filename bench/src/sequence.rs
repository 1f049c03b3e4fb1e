//! The stamp every message carries, and the check at the receiver for what was lost, repeated,
//! reordered or not meant for it.
//!
//! Owns the payload's layout. Never touches a protocol. Next: `engine.rs`.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | run: which run of which row sent this, little-endian |
//! | 4 | 4 | sender: index of the publisher in that run |
//! | 8 | 8 | sequence: counts up from 0 per sender |
//! | 16 | 8 | sent: nanoseconds since the run began |
//! | 24 | rest | filler |

use std::collections::BTreeSet;

/// Bytes of a payload that the stamp takes; no payload may be shorter.
pub const STAMP_BYTES: usize = 24;

/// Sequence numbers of one sender that may be missing at one receiver before they are only
/// counted, not remembered one by one.
const MISSING_MAX: usize = 100_000;

/// Who sent a message, which of its messages it is, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Identifies the run, so that leftovers of an earlier one are told apart.
    pub run: u32,
    /// Index of the publisher.
    pub sender: u32,
    /// Counts up from 0 per sender.
    pub sequence: u64,
    /// Nanoseconds since the run began.
    pub sent_ns: u64,
}

impl Stamp {
    /// Writes the stamp over the first [`STAMP_BYTES`] of `payload`, which must be that long.
    #[inline]
    pub fn write(&self, payload: &mut [u8]) {
        payload[0..4].copy_from_slice(&self.run.to_le_bytes());
        payload[4..8].copy_from_slice(&self.sender.to_le_bytes());
        payload[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        payload[16..24].copy_from_slice(&self.sent_ns.to_le_bytes());
    }

    /// Reads a stamp back; `None` when the payload is too short to hold one.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Self> {
        let (head, _) = payload.split_first_chunk::<STAMP_BYTES>()?;
        let u32_at =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Some(Self {
            run: u32_at(0),
            sender: u32_at(4),
            sequence: u64_at(8),
            sent_ns: u64_at(16),
        })
    }
}

/// What went wrong with the messages of a run; all zero when it was clean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Faults {
    /// Sent and never received.
    pub lost: u64,
    /// Received more than once.
    pub repeated: u64,
    /// Received after a later message of the same sender.
    pub reordered: u64,
    /// Received where it was not addressed, or from an earlier run, or without a stamp.
    pub stray: u64,
}

impl Faults {
    /// Whether every message arrived once, in order, where it belonged.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the counts of another part of the run.
    pub fn add(&mut self, other: &Self) {
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.reordered += other.reordered;
        self.stray += other.stray;
    }
}

/// What one receiver has seen of one sender.
pub struct Track {
    /// One above the highest sequence number seen.
    next: u64,
    missing: BTreeSet<u64>,
    missing_uncounted: u64,
    repeated: u64,
    reordered: u64,
}

impl Track {
    /// Nothing has arrived, and nothing before `first` is to.
    pub fn starting_at(first: u64) -> Self {
        Self {
            next: first,
            missing: BTreeSet::new(),
            missing_uncounted: 0,
            repeated: 0,
            reordered: 0,
        }
    }

    /// Notes that the message numbered `sequence` has arrived.
    #[inline]
    pub fn see(&mut self, sequence: u64) {
        if sequence == self.next {
            self.next += 1;
        } else {
            self.see_out_of_order(sequence);
        }
    }

    #[cold]
    fn see_out_of_order(&mut self, sequence: u64) {
        if sequence > self.next {
            let gap = sequence - self.next;
            let room = (MISSING_MAX - self.missing.len()) as u64;
            self.missing.extend(self.next..self.next + gap.min(room));
            self.missing_uncounted += gap.saturating_sub(room);
            self.next = sequence + 1;
        } else if self.missing.remove(&sequence) {
            self.reordered += 1;
        } else {
            self.repeated += 1;
        }
    }

    /// One above the highest sequence number seen. A lost message does not hold it back, so a
    /// window counted from here never closes because of a loss.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// One above the highest number seen, less the numbers below it that are missing.
    #[inline]
    pub fn arrived_below(&self) -> u64 {
        self.next - self.missing.len() as u64 - self.missing_uncounted
    }

    /// The faults so far, when the sender has sent `sent` messages in all.
    pub fn faults(&self, sent: u64) -> Faults {
        let tail = sent.saturating_sub(self.next);
        Faults {
            lost: self.missing.len() as u64 + self.missing_uncounted + tail,
            repeated: self.repeated,
            reordered: self.reordered,
            stray: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arrivals: &[u64], sent: u64, expected: Faults) {
        let mut track = Track::starting_at(0);
        arrivals.iter().for_each(|sequence| track.see(*sequence));
        assert_eq!(track.faults(sent), expected, "{arrivals:?}");
    }

    #[test]
    fn a_stamp_reads_back_as_written() {
        let stamp = Stamp {
            run: 7,
            sender: 3,
            sequence: u64::MAX - 5,
            sent_ns: 1 << 40,
        };
        let mut payload = [0xAA; 128];
        stamp.write(&mut payload);
        assert_eq!(Stamp::read(&payload), Some(stamp));
        assert_eq!(Stamp::read(&payload[..STAMP_BYTES - 1]), None);
    }

    #[test]
    fn faults_are_told_apart() {
        check(&[0, 1, 2], 3, Faults::default());
        check(
            &[0, 2],
            3,
            Faults {
                lost: 1,
                ..Faults::default()
            },
        );
        check(
            &[0, 2, 1],
            3,
            Faults {
                reordered: 1,
                ..Faults::default()
            },
        );
        check(
            &[0, 1, 1, 2],
            3,
            Faults {
                repeated: 1,
                ..Faults::default()
            },
        );
        check(
            &[0, 1],
            5,
            Faults {
                lost: 3,
                ..Faults::default()
            },
        );
        check(
            &[0, 2, 1, 1],
            4,
            Faults {
                lost: 1,
                reordered: 1,
                repeated: 1,
                stray: 0,
            },
        );
    }

    #[test]
    fn a_huge_gap_is_counted_without_being_stored() {
        let mut track = Track::starting_at(0);
        track.see(10_000_000_000);
        assert_eq!(track.missing.len(), MISSING_MAX);
        assert_eq!(track.faults(10_000_000_001).lost, 10_000_000_000);
    }
}
