//! Filters that have no wildcard but at their end, found by a hash: `a/b`, `a/b/+`, `a/b/#`.
//!
//! Nearly all filters of devices are such ones, each of a device of its own; a tree of their levels would take several
//! hundred bytes for each. A hash of what stands before the wildcard and of the kind of end says nearly all: for an
//! address a few look-ups name the hashes of all such filters that match it.
//!
//! Owns: which filters these are, their hashes, those that match an address.
//! Never: who has the filter (`router/interest.rs`, `shard/alone.rs`); all other filters (`trie.rs`).

use crate::address::{Address, MANY, ONE, SEPARATOR, TopicFilter, levels};
use crate::id::VhostId;
use rustc_hash::FxHasher;
use std::hash::Hasher;

/// How such a filter ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As the address does.
    Same,
    /// With one more level, whatever it is.
    One,
    /// With any number of levels.
    Many,
}

/// What such a filter is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Simple {
    pub(crate) hash: u64,
    /// Levels before the wildcard.
    depth: usize,
    end: End,
}

/// How deep filters are that end with any number of levels, of all that were ever noted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Depths(u128);

fn begin(vhost: VhostId) -> FxHasher {
    let mut hasher = FxHasher::default();
    hasher.write_u32(vhost.0);
    hasher
}

fn add(hasher: &mut FxHasher, level: &[u8]) {
    hasher.write(level);
    hasher.write_u8(SEPARATOR);
}

fn finish(hasher: &FxHasher, end: End) -> u64 {
    let mut hasher = hasher.clone();
    hasher.write_u8(end as u8);
    hasher.finish()
}

/// What a filter is found by, when it is such a one. One that begins with a wildcard is none.
pub(crate) fn simple(vhost: VhostId, filter: &TopicFilter) -> Option<Simple> {
    let mut hasher = begin(vhost);
    let (mut depth, mut end) = (0, End::Same);
    for level in levels(&filter.0) {
        if end != End::Same {
            return None;
        }
        end = match level {
            ONE | MANY if depth == 0 => return None,
            ONE => End::One,
            MANY => End::Many,
            name => {
                add(&mut hasher, name);
                depth += 1;
                End::Same
            }
        };
    }
    let hash = finish(&hasher, end);
    Some(Simple { hash, depth, end })
}

impl Depths {
    /// There is such a filter.
    pub(crate) fn note(&mut self, filter: Simple) {
        if filter.end == End::Many {
            self.0 |= 1 << filter.depth.min(127);
        }
    }

    /// Names the hash of every such filter that matches an address, with how it ends and the address's bytes before
    /// that.
    pub(crate) fn visit<'a>(
        self,
        vhost: VhostId,
        address: &'a Address,
        mut found: impl FnMut(u64, End, &'a [u8]),
    ) {
        let flat = &address.0[..];
        let mut hasher = begin(vhost);
        let (mut depth, mut bytes) = (0, 0);
        let mut above: Option<(FxHasher, usize)> = None;
        for level in levels(flat) {
            above = (depth > 0).then(|| (hasher.clone(), bytes));
            add(&mut hasher, level);
            bytes += usize::from(depth > 0) + level.len();
            depth += 1;
            if self.0 >> depth.min(127) & 1 == 1 {
                found(finish(&hasher, End::Many), End::Many, &flat[..bytes]);
            }
        }
        found(finish(&hasher, End::Same), End::Same, flat);
        if let Some((hasher, bytes)) = above {
            found(finish(&hasher, End::One), End::One, &flat[..bytes]);
        }
    }
}

/// The text of a filter that [`Depths::visit`] names.
pub(crate) fn write_filter(text: &mut Vec<u8>, end: End, begin: &[u8]) {
    text.clear();
    text.extend_from_slice(begin);
    let wildcard = match end {
        End::Same => return,
        End::One => ONE,
        End::Many => MANY,
    };
    text.push(SEPARATOR);
    text.extend_from_slice(wildcard);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VHOST: VhostId = VhostId(3);

    fn text(levels: &'static str, most: usize) -> impl Strategy<Value = String> {
        let level = proptest::sample::select(levels.split(' ').collect::<Vec<_>>());
        proptest::collection::vec(level, 0..most).prop_map(|levels| levels.join("/"))
    }

    proptest! {
        #[test]
        fn those_that_match_are_named_and_no_others(
            filters in proptest::collection::vec(text("a b + #", 5), 1..8),
            address in text("a b cc", 5),
        ) {
            let filters: Vec<TopicFilter> = filters.iter().map(|text| text.parse().unwrap()).collect();
            let address: Address = address.parse().unwrap();
            let mut depths = Depths::default();
            let known: Vec<_> = filters.iter().filter_map(|filter| Some((simple(VHOST, filter)?, filter))).collect();
            known.iter().for_each(|(key, _)| depths.note(*key));
            let (mut named, mut all) = (Vec::new(), Vec::new());
            depths.visit(VHOST, &address, |hash, end, begin| {
                let mut text = Vec::new();
                write_filter(&mut text, end, begin);
                named.extend(known.iter().filter(|(key, filter)| key.hash == hash && filter.0 == text).map(|(_, filter)| *filter));
                all.push(hash);
            });
            let expected: Vec<_> = known.iter().filter(|(_, filter)| filter.matches(&address)).map(|(_, filter)| *filter).collect();
            named.sort();
            let mut expected = expected;
            expected.sort();
            prop_assert_eq!(named, expected);
            prop_assert!(known.iter().all(|(key, filter)| all.contains(&key.hash) == filter.matches(&address)));
        }
    }

    #[test]
    fn a_wildcard_may_stand_at_the_end_only() {
        let is = |text: &str| simple(VHOST, &text.parse().unwrap()).is_some();
        assert!(is("a/b") && is("a/+") && is("a/#") && is(""));
        assert!(!is("#") && !is("+") && !is("+/a") && !is("a/+/b") && !is("a/#/#"));
    }
}
