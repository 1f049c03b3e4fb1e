//! What the filters of one session ask together of a message that several of them match.
//!
//! Owns: one copy for each session, as its filters ask it: the highest quality, every number.
//! Never: walks filters (`trie.rs`) or stores (`apply.rs`).

use super::Match;
use crate::message::Quality;
use std::sync::Arc;

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
    found.sort_unstable_by_key(|candidate| (candidate.place, candidate.spec.identifier));
    let sessions = found.chunk_by(|one, next| one.place == next.place);
    sessions.filter_map(wanted).collect()
}

fn wanted(filters: &[Match]) -> Option<Wanted> {
    let place = filters.first()?.place;
    let specs = || filters.iter().map(|candidate| &candidate.spec);
    let mut identifiers: Vec<u32> = specs().map(|spec| spec.identifier).collect();
    identifiers.dedup();
    identifiers.retain(|identifier| *identifier != 0);
    let identifier = identifiers.first().copied().unwrap_or(0);
    let more_identifiers = (identifiers.len() > 1).then(|| Arc::new(identifiers[1..].to_vec()));
    Some(Wanted {
        place,
        quality: specs().map(|spec| spec.quality).max().unwrap_or_default(),
        no_local: specs().all(|spec| spec.no_local),
        retain_as_published: specs().any(|spec| spec.retain_as_published),
        identifier,
        more_identifiers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::FilterSpec;

    fn candidate(place: u32, quality: Quality, identifier: u32, no_local: bool) -> Match {
        Match {
            place,
            spec: FilterSpec {
                filter: "a/#".parse().unwrap(),
                quality,
                no_local,
                retain_as_published: identifier == 7,
                identifier,
            },
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
