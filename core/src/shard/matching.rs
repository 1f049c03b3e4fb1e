//! What the filters of one session ask together of a message that several of them match.
//!
//! Owns: one copy for each session, as its filters ask it: the highest quality, every number; the sessions of one
//! filter, found by their place, since there may be a million.
//! Never: walks filters (`trie.rs`) or stores (`apply/store.rs`).

use super::Match;
use crate::message::Quality;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// So many sessions of one filter are looked through one by one.
const FEW_MAX: usize = 16;

/// The sessions that have one filter, each once.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    list: SmallVec<[Match; 1]>,
    /// Where each session stands in the list: of all of them or of none.
    places: Option<Box<FxHashMap<u32, u32>>>,
}

impl Holders {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Match> {
        self.list.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn find(&self, place: u32) -> Option<usize> {
        match &self.places {
            None => self.list.iter().position(|held| held.place == place),
            Some(places) => places.get(&place).map(|at| *at as usize),
        }
    }

    /// Puts a session in, or changes what it asks; says whether it is new.
    pub(super) fn set(&mut self, session: Match) -> bool {
        if let Some(at) = self.find(session.place) {
            self.list[at] = session;
            return false;
        }
        if let Some(places) = &mut self.places {
            places.insert(session.place, self.list.len() as u32);
        }
        self.list.push(session);
        if self.places.is_none() && self.list.len() > FEW_MAX {
            let numbered = (0..).zip(&self.list);
            let places = numbered.map(|(at, held)| (held.place, at)).collect();
            self.places = Some(Box::new(places));
        }
        true
    }

    /// Takes a session out; says whether it was there.
    pub(super) fn remove(&mut self, place: u32) -> bool {
        let Some(at) = self.find(place) else {
            return false;
        };
        self.list.swap_remove(at);
        if let Some(places) = &mut self.places {
            places.remove(&place);
            if let Some(moved) = self.list.get(at) {
                places.insert(moved.place, at as u32);
            }
        }
        true
    }
}

/// A session that a message goes to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// Its stream.
    pub(crate) place: u32,
    /// The highest that any of its filters asks.
    pub(crate) quality: Quality,
    /// None of its filters wants it from the session's own connection: one that does is enough.
    pub(crate) no_local: bool,
    /// One of its filters wants the publisher's retain flag.
    pub(crate) retain_as_published: bool,
    /// The lowest number of its filters; 0 none has one.
    pub(crate) identifier: u32,
    /// Its other numbers. Made once for all messages of an address.
    pub(crate) more_identifiers: Option<Arc<Vec<u32>>>,
}

/// One for each session, of all filters that match.
pub(super) fn merge(mut found: Vec<Match>) -> Arc<[Wanted]> {
    found.sort_unstable_by_key(|candidate| (candidate.place, candidate.identifier));
    let sessions = found.chunk_by(|one, next| one.place == next.place);
    sessions.filter_map(wanted).collect()
}

fn wanted(filters: &[Match]) -> Option<Wanted> {
    let place = filters.first()?.place;
    let all = || filters.iter();
    let mut identifiers: Vec<u32> = all().map(|one| one.identifier).collect();
    identifiers.dedup();
    identifiers.retain(|identifier| *identifier != 0);
    let identifier = identifiers.first().copied().unwrap_or(0);
    let more_identifiers = (identifiers.len() > 1).then(|| Arc::new(identifiers[1..].to_vec()));
    Some(Wanted {
        place,
        quality: all().map(|one| one.quality).max().unwrap_or_default(),
        no_local: all().all(|one| one.no_local),
        retain_as_published: all().any(|one| one.retain_as_published),
        identifier,
        more_identifiers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    fn candidate(place: u32, quality: Quality, identifier: u32, no_local: bool) -> Match {
        Match {
            place,
            quality,
            no_local,
            retain_as_published: identifier == 7,
            identifier,
        }
    }

    proptest::proptest! {
        #[test]
        fn holders_are_a_map_by_place(steps in proptest::collection::vec((proptest::prelude::any::<bool>(), 0u32..40), 0..200)) {
            let (mut holders, mut model) = (Holders::default(), std::collections::BTreeMap::new());
            for (identifier, (add, place)) in (0..).zip(steps) {
                let session = candidate(place, Quality::AtMostOnce, identifier, false);
                let same = match add {
                    true => holders.set(session) == model.insert(place, identifier).is_none(),
                    false => holders.remove(place) == model.remove(&place).is_some(),
                };
                proptest::prop_assert!(same);
            }
            let kept = holders.iter().map(|held| (held.place, held.identifier));
            let kept: std::collections::BTreeMap<u32, u32> = kept.collect();
            proptest::prop_assert_eq!((holders.list.len(), kept), (model.len(), model));
        }
    }

    #[test]
    fn a_session_gets_one_copy_at_the_highest_quality_with_every_number_once() {
        use Quality::*;
        let merged = merge(vec![
            candidate(4, AtMostOnce, 7, true),
            candidate(2, AtLeastOnce, 0, true),
            candidate(4, ExactlyOnce, 3, false),
            candidate(4, AtLeastOnce, 7, false),
            candidate(4, AtLeastOnce, 9, true),
        ]);
        let alone = Wanted {
            place: 2,
            quality: AtLeastOnce,
            no_local: true,
            retain_as_published: false,
            identifier: 0,
            more_identifiers: None,
        };
        let together = Wanted {
            place: 4,
            quality: ExactlyOnce,
            no_local: false,
            retain_as_published: true,
            identifier: 3,
            more_identifiers: Some(Arc::new(vec![7, 9])),
        };
        assert_eq!(*merged, [alone, together]);
    }
}
