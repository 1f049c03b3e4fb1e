//! A set of offsets, kept as runs: what lies in one run takes no more room than one offset.
//!
//! Owns: [`Offsets`]. Never: what its offsets do (`stream.rs`).

use std::collections::BTreeMap;

/// See the module's text. Nothing while it is empty, since each of millions of streams has some.
#[derive(Clone, Debug, Default)]
pub(super) struct Offsets(Option<Box<Runs>>);

#[derive(Clone, Debug, Default)]
struct Runs {
    /// First and last of each run; none touches the next.
    runs: BTreeMap<u64, u64>,
    len: u64,
}

impl Offsets {
    pub(super) fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |runs| runs.len)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn first(&self) -> Option<u64> {
        let (first, _) = self.0.as_ref()?.runs.first_key_value()?;
        Some(*first)
    }

    pub(super) fn insert(&mut self, offset: u64) {
        if self.0.get_or_insert_default().run(offset).is_none() {
            self.insert_run(offset, offset);
        }
    }

    /// Puts in all offsets from `first` to `last`, none of which may be in it.
    pub(super) fn insert_run(&mut self, first: u64, last: u64) {
        self.0.get_or_insert_default().insert_run(first, last);
    }

    #[inline]
    pub(super) fn remove(&mut self, offset: u64) -> bool {
        !self.is_empty() && self.remove_known(offset)
    }

    fn remove_known(&mut self, offset: u64) -> bool {
        let Some(runs) = &mut self.0 else {
            return false;
        };
        let removed = runs.remove(offset);
        if runs.len == 0 {
            self.0 = None;
        }
        removed
    }

    /// Takes everything out of another one, which has none of these.
    pub(super) fn append(&mut self, other: &mut Offsets) {
        if self.is_empty() {
            return std::mem::swap(self, other);
        }
        let Some(others) = other.0.take() else {
            return;
        };
        for (first, last) in others.runs {
            self.insert_run(first, last);
        }
    }
}

impl Runs {
    /// The run that has this offset.
    fn run(&self, offset: u64) -> Option<(u64, u64)> {
        let (first, last) = self.runs.range(..=offset).next_back()?;
        (*last >= offset).then_some((*first, *last))
    }

    fn insert_run(&mut self, first: u64, last: u64) {
        self.len += last - first + 1;
        let before = first.checked_sub(1).and_then(|before| self.run(before));
        let first = before.map_or(first, |(start, _)| start);
        let behind = last.checked_add(1);
        let last = match behind.and_then(|behind| self.runs.remove(&behind)) {
            Some(end) => end,
            None => last,
        };
        self.runs.insert(first, last);
    }

    fn remove(&mut self, offset: u64) -> bool {
        let Some((first, last)) = self.run(offset) else {
            return false;
        };
        self.len -= 1;
        match first == offset {
            true => drop(self.runs.remove(&first)),
            false => drop(self.runs.insert(first, offset - 1)),
        }
        if offset < last {
            self.runs.insert(offset + 1, last);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn runs(offsets: &Offsets) -> impl Iterator<Item = (&u64, &u64)> {
        offsets.0.iter().flat_map(|runs| runs.runs.iter())
    }

    proptest! {
        #[test]
        fn it_is_a_set(steps in proptest::collection::vec((0u8..4, 0u64..40, 0u64..6), 0..200)) {
            let (mut offsets, mut other) = (Offsets::default(), Offsets::default());
            let (mut plain, mut beside) = (BTreeSet::new(), BTreeSet::new());
            for (step, first, more) in steps {
                let free = |at: u64| !plain.contains(&at) && !beside.contains(&at);
                match step {
                    0 if !beside.contains(&first) => {
                        offsets.insert(first);
                        plain.insert(first);
                    }
                    1 if (first..=first + more).all(free) => {
                        other.insert_run(first, first + more);
                        beside.extend(first..=first + more);
                    }
                    2 => prop_assert_eq!(offsets.remove(first), plain.remove(&first)),
                    3 => {
                        offsets.append(&mut other);
                        plain.append(&mut beside);
                    }
                    _ => {}
                }
                prop_assert_eq!(offsets.len(), plain.len() as u64);
                prop_assert_eq!(offsets.first(), plain.first().copied());
                prop_assert_eq!((offsets.is_empty(), other.len()), (plain.is_empty(), beside.len() as u64));
                let all: Vec<u64> = runs(&offsets).flat_map(|(first, last)| *first..=*last).collect();
                prop_assert_eq!(all, plain.iter().copied().collect::<Vec<_>>());
                let mut pairs = runs(&offsets).zip(runs(&offsets).skip(1));
                prop_assert!(pairs.all(|((_, last), (next, _))| last + 1 < *next));
            }
        }
    }
}
