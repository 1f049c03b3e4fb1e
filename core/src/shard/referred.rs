//! Which parts of the journal are referred to.
//!
//! For each page of the journal: how many entries of streams have their record there, or a part of it. What else is
//! made of records (last values, wills, what was heard) is whole in memory and in checkpoints, and needs no journal.
//!
//! Owns: [`Referred`], its pairs, the ranges that nothing refers to.
//! Never: gives space back (`store/`).
//! Next: `stream/packed.rs`, for why an entry's cost covers its record.

use super::checkpoint::{Changes, encoded};
use crate::id::Position;
use crate::stream::Weight;
use bytes::Bytes;
use std::collections::VecDeque;

/// Length of a page in bytes. Persisted: counts are kept for it.
pub const JOURNAL_PAGE_BYTES: u64 = 64 << 10;
/// Pages whose counts are kept in one pair. Persisted.
const GROUP_PAGES: u64 = 512;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Referred {
    /// Number of the first page that is counted; nothing refers to those before.
    first: u64,
    counts: VecDeque<u64>,
    /// For checkpoints: of groups.
    pub(super) changes: Changes<u64>,
    /// Groups that are known to be noted as changed.
    recent: [Option<u64>; 2],
    /// Where the last applied frame ends.
    pub(super) applied: Position,
    /// Entries of records below it are of a time when their cost did not cover them: between the first of them and
    /// here nothing is known to be dead.
    pub(super) sound_from: Position,
}

fn pages(position: Position, bytes: u64) -> std::ops::RangeInclusive<u64> {
    let last = position.0.saturating_add(bytes.saturating_sub(1));
    position.0 / JOURNAL_PAGE_BYTES..=last / JOURNAL_PAGE_BYTES
}

impl Referred {
    fn count(&self, page: u64) -> u64 {
        let nth = page.checked_sub(self.first);
        let count = nth.and_then(|nth| self.counts.get(nth as usize));
        count.copied().unwrap_or(0)
    }

    fn group(&self, group: u64) -> Option<Bytes> {
        let pages = group * GROUP_PAGES..(group + 1) * GROUP_PAGES;
        let counts: Vec<u64> = pages.map(|page| self.count(page)).collect();
        counts
            .iter()
            .any(|count| *count > 0)
            .then(|| encoded(&counts))
    }

    fn touch(&mut self, page: u64) {
        let group = page / GROUP_PAGES;
        if self.recent.contains(&Some(group)) {
            return;
        }
        let mut changes = std::mem::take(&mut self.changes);
        changes.touch(&group, || self.group(group));
        self.changes = changes;
        self.recent = [Some(group), self.recent[0]];
    }

    /// So many more entries refer to a record.
    pub(crate) fn add(&mut self, position: Position, bytes: u64, entries: u64) {
        for page in pages(position, bytes) {
            if entries == 0 {
                return;
            }
            self.touch(page);
            if self.counts.is_empty() {
                self.first = page;
            }
            while page < self.first {
                self.counts.push_front(0);
                self.first -= 1;
            }
            let nth = (page - self.first) as usize;
            if nth >= self.counts.len() {
                self.counts.resize(nth + 1, 0);
            }
            self.counts[nth] += entries;
        }
    }

    /// An entry that referred to a record is gone. One whose place is not known keeps its pages.
    pub(crate) fn remove(&mut self, weight: Weight) {
        let Some(position) = weight.position else {
            return;
        };
        for page in pages(position, weight.cost) {
            self.touch(page);
            let nth = page.checked_sub(self.first);
            if let Some(count) = nth.and_then(|nth| self.counts.get_mut(nth as usize)) {
                *count = count.saturating_sub(1);
            }
        }
        while self.counts.front() == Some(&0) {
            self.counts.pop_front();
            self.first += 1;
        }
    }

    /// Where the first page begins that something refers to.
    pub(crate) fn oldest(&self) -> Option<Position> {
        let any = !self.counts.is_empty();
        any.then_some(Position(self.first * JOURNAL_PAGE_BYTES))
    }

    /// Whole pages between two positions that nothing refers to, as ranges.
    pub(crate) fn dead(&self, from: Position, to: Position) -> Vec<(Position, Position)> {
        let from = from.0.div_ceil(JOURNAL_PAGE_BYTES);
        let to = to.min(self.applied).0 / JOURNAL_PAGE_BYTES;
        let mut ranges: Vec<(Position, Position)> = Vec::new();
        let mut put = |first: u64, end: u64| {
            let (first, end) = (
                Position(first * JOURNAL_PAGE_BYTES),
                Position(end * JOURNAL_PAGE_BYTES),
            );
            match ranges.last_mut() {
                Some((_, last)) if *last == first => *last = end,
                _ if first < end => ranges.push((first, end)),
                _ => {}
            }
        };
        let counted = match self.counts.is_empty() {
            true => to,
            false => self.first,
        };
        put(from, to.min(counted).max(from));
        let sound = self.sound_from.0.div_ceil(JOURNAL_PAGE_BYTES);
        for page in from.max(counted).max(sound)..to {
            if self.count(page) == 0 {
                put(page, page + 1);
            }
        }
        ranges
    }

    /// The same shard's, with nothing counted.
    pub(super) fn emptied(self) -> Referred {
        let mut empty = Referred {
            applied: self.applied,
            sound_from: self.sound_from,
            ..Referred::default()
        };
        empty.changes.begin();
        empty
    }

    pub(super) fn freeze(&mut self) {
        self.changes.freeze();
        self.recent = [None; 2];
    }

    /// The next group that is to be copied into a checkpoint, absent when nothing refers to it.
    pub(super) fn next_change(&mut self) -> Option<(u64, Option<Bytes>)> {
        let mut changes = std::mem::take(&mut self.changes);
        let next = changes.next(|group| self.group(*group));
        self.changes = changes;
        next
    }

    /// Counts of a group, as a checkpoint has them.
    pub(super) fn restore(&mut self, group: u64, counts: Vec<u64>) {
        let begin = group.saturating_mul(GROUP_PAGES);
        for (page, count) in (begin..).zip(counts).filter(|(_, count)| *count > 0) {
            let notes = std::mem::take(&mut self.changes);
            self.add(Position(page.saturating_mul(JOURNAL_PAGE_BYTES)), 1, count);
            self.changes = notes;
            self.recent = [None; 2];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn dead_is_what_no_record_touches(
            steps in proptest::collection::vec((any::<bool>(), 0u64..40, 1u64..200_000, 1u64..3), 1..60),
            (from, length) in (0u64..3_000_000, 0u64..3_000_000),
        ) {
            let mut referred = Referred { applied: Position(2_600_000), ..Referred::default() };
            referred.changes.begin();
            let mut plain: Vec<(u64, u64)> = Vec::new();
            for (add, at, bytes, entries) in steps {
                if add {
                    referred.add(Position(at * 60_000), bytes, entries);
                    plain.extend((0..entries).map(|_| (at * 60_000, bytes)));
                } else if !plain.is_empty() {
                    let (position, cost) = plain.swap_remove(at as usize % plain.len());
                    referred.remove(Weight { cost, body: 0, position: Some(Position(position)) });
                }
            }
            let touched = |page: u64| {
                let (first, end) = (page * JOURNAL_PAGE_BYTES, (page + 1) * JOURNAL_PAGE_BYTES);
                plain.iter().any(|(at, bytes)| *at < end && at + bytes > first)
            };
            let first = (0..100).find(|page| touched(*page));
            prop_assert_eq!(referred.oldest(), first.map(|page| Position(page * JOURNAL_PAGE_BYTES)));
            let to = from + length;
            let dead: Vec<u64> = (from.div_ceil(JOURNAL_PAGE_BYTES)..to.min(2_600_000) / JOURNAL_PAGE_BYTES)
                .filter(|page| !touched(*page))
                .collect();
            let ranges = referred.dead(Position(from), Position(to));
            let told = ranges.iter().flat_map(|(first, end)| first.0 / JOURNAL_PAGE_BYTES..end.0 / JOURNAL_PAGE_BYTES);
            prop_assert_eq!(told.collect::<Vec<_>>(), dead);
            prop_assert!(ranges.is_sorted_by(|(_, end), (next, _)| end < next), "merged");
            // Pairs give it back.
            let mut again = Referred { applied: Position(2_600_000), ..Referred::default() };
            referred.freeze();
            while let Some((group, counts)) = referred.next_change() {
                if let Some(counts) = counts {
                    again.restore(group, postcard::from_bytes(&counts).unwrap());
                }
            }
            prop_assert!((0..100).all(|page| again.count(page) == referred.count(page)));
        }
    }

    #[test]
    fn where_costs_did_not_cover_records_only_what_lies_before_is_dead() {
        let page = JOURNAL_PAGE_BYTES;
        let mut referred = Referred {
            applied: Position(10 * page),
            sound_from: Position(5 * page + 1),
            ..Referred::default()
        };
        referred.add(Position(2 * page), 10, 1);
        let dead = referred.dead(Position(0), Position(20 * page));
        assert_eq!(
            dead,
            [
                (Position(0), Position(2 * page)),
                (Position(6 * page), Position(10 * page))
            ]
        );
    }
}
