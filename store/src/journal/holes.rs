//! From what is dead in a segment to the blocks of its file that can go.
//!
//! Owns: the arithmetic. Never touches a file. Read next: [`super::keeper`], which punches the holes.
//!
//! A frame that is dead as a whole goes as a whole; of one that is dead in part only a plain payload can
//! go in part (a packed one is of use only as a whole), and its head stays.

use super::frame::{ENVELOPE_BYTES, HEAD_BYTES, LOGICAL_HEADER_BYTES};
use super::segment::{FramePlace, FrameTable};
use crate::disk::BLOCK_BYTES;

/// The union of two lists of ranges; each list is ascending, and so is the result, in which no two touch.
pub(super) fn union(one: &[(u32, u32)], other: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut all = [one, other].concat();
    all.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::with_capacity(all.len());
    for (from, to) in all {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// Bytes in a list of ranges.
pub(super) fn total(ranges: &[(u32, u32)]) -> u64 {
    ranges.iter().map(|(from, to)| u64::from(to - from)).sum()
}

/// Whole blocks of the file, as offset and end, in which nothing but `given_back` lies. `is_plain` is asked
/// about frames that are dead in part, by the offset of their envelope.
pub(super) fn holes(
    frames: &FrameTable,
    given_back: &[(u32, u32)],
    capacity_bytes: u64,
    mut is_plain: impl FnMut(u64) -> bool,
) -> Vec<(u64, u64)> {
    let mut bytes = Joined::default();
    let places = &frames.places;
    let end_of = |nth: usize| {
        let next = places.get(nth + 1);
        next.map_or((frames.len, frames.end_offset), |next| {
            (u64::from(next.start), u64::from(next.offset))
        })
    };
    for (from, to) in given_back {
        let (from, to) = (u64::from(*from), u64::from(*to));
        let first = places.partition_point(|place| u64::from(place.start) <= from);
        for nth in first.saturating_sub(1)..places.len() {
            let FramePlace { start, offset } = places[nth];
            let (start, offset) = (u64::from(start), u64::from(offset));
            let (end, end_offset) = end_of(nth);
            if start >= to {
                break;
            }
            if from <= start && end <= to {
                bytes.add(offset, end_offset);
                continue;
            }
            let payload = start + LOGICAL_HEADER_BYTES as u64;
            let (from, to) = (from.max(payload), to.min(end));
            if from < to && is_plain(offset) {
                let at = |position: u64| offset + HEAD_BYTES as u64 + (position - payload);
                debug_assert_eq!(
                    at(end),
                    end_offset,
                    "a plain frame: {ENVELOPE_BYTES} bytes more"
                );
                bytes.add(at(from), at(to).min(end_offset));
            }
        }
    }
    // Who has holes is not used again: what was never written can go too.
    if !bytes.0.is_empty() {
        bytes.add(frames.end_offset, capacity_bytes);
    }
    let blocks = bytes.0.into_iter().map(|(from, to)| {
        let first = from.next_multiple_of(BLOCK_BYTES);
        (first, to / BLOCK_BYTES * BLOCK_BYTES)
    });
    blocks.filter(|(from, to)| from < to).collect()
}

/// Ranges that were added in ascending order; those that touch are one.
#[derive(Default)]
struct Joined(Vec<(u64, u64)>);

impl Joined {
    fn add(&mut self, from: u64, to: u64) {
        match self.0.last_mut() {
            Some(last) if last.1 >= from => last.1 = last.1.max(to),
            _ => self.0.push((from, to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Three frames of 10,000 logical bytes each, stored as they are.
    fn frames() -> FrameTable {
        let place = |nth: u32| FramePlace {
            start: nth * 10_000,
            offset: 512 + nth * 10_032,
        };
        FrameTable {
            places: Arc::new((0..3).map(place).collect()),
            len: 30_000,
            end_offset: 512 + 30_096,
        }
    }

    fn punched(given_back: &[(u32, u32)], plain: bool) -> Vec<(u64, u64)> {
        holes(&frames(), given_back, 65_536, |_| plain)
    }

    #[test]
    fn whole_frames_go_with_their_heads_and_parts_without() {
        // The second frame lies at 10,544..20,576; the room behind the last begins at 30,608.
        let unused = (32_768, 65_536);
        assert_eq!(
            punched(&[(10_000, 20_000)], false),
            [(12_288, 20_480), unused]
        );
        assert_eq!(punched(&[(0, 30_000)], false), [(4096, 65_536)]);
        // Without its last byte it is dead in part: its payload begins at 10,624.
        assert_eq!(
            punched(&[(10_000, 16_000)], true),
            [(12_288, 16_384), unused]
        );
        assert_eq!(punched(&[(10_000, 19_999)], false), []);
        assert_eq!(punched(&[(3000, 15_000)], true), [(4096, 8192), unused]);
        assert_eq!(punched(&[], true), []);
    }

    #[test]
    fn no_hole_has_a_byte_that_lives() {
        let frames = frames();
        for from in (0..30_000).step_by(997) {
            for to in (from + 1..=30_000).step_by(1231) {
                for (begin, end) in punched(&[(from, to)], true) {
                    for offset in [begin, end - 1] {
                        let frame = (0..3).rev().find(|nth| offset >= 512 + nth * 10_032);
                        let Some(nth) = frame.filter(|_| offset < frames.end_offset) else {
                            assert!(offset >= frames.end_offset);
                            continue;
                        };
                        let whole =
                            u64::from(from) <= nth * 10_000 && (nth + 1) * 10_000 <= u64::from(to);
                        let logical =
                            (offset - 512 - nth * 10_032).saturating_sub(32) + nth * 10_000;
                        let part = u64::from(from) <= logical && logical < u64::from(to);
                        assert!(whole || part, "{from}..{to}: {offset}");
                    }
                }
            }
        }
    }

    #[test]
    fn unions_have_no_two_that_touch() {
        assert_eq!(
            union(&[(0, 5), (10, 20)], &[(5, 7), (15, 30)]),
            [(0, 7), (10, 30)]
        );
        assert_eq!(total(&[(0, 7), (10, 30)]), 27);
    }
}
