//! Streams found by something that they know themselves: only its hash and the stream's place are kept.
//!
//! Owns: [`Places`]. Never: compares; whoever asks does, with the stream at hand.

use hashbrown::HashTable;
use std::hash::{Hash, Hasher};

/// See the module's text. Nine bytes for each entry, beside what a hash table leaves empty.
#[derive(Debug, Default)]
pub(crate) struct Places(HashTable<Entry>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    place: u32,
}

fn short(hash: u64) -> u32 {
    (hash ^ hash >> 32) as u32
}

/// Spreads what is left of a hash over all bits again.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The hash of something.
pub(crate) fn hash_of(what: impl Hash) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    what.hash(&mut hasher);
    hasher.finish()
}

impl Places {
    /// The place with this hash that `is` the one.
    pub(crate) fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let hash = short(hash);
        let same = |entry: &Entry| entry.hash == hash && is(entry.place);
        self.0.find(spread(hash), same).map(|entry| entry.place)
    }

    /// Puts a place in.
    pub(crate) fn insert(&mut self, hash: u64, place: u32) {
        let hash = short(hash);
        let entry = Entry { hash, place };
        self.0
            .insert_unique(spread(hash), entry, |entry| spread(entry.hash));
    }

    /// Takes a place out; says whether it was there.
    pub(crate) fn remove(&mut self, hash: u64, place: u32) -> bool {
        let hash = short(hash);
        let same = |entry: &Entry| (entry.hash, entry.place) == (hash, place);
        match self.0.find_entry(spread(hash), same) {
            Ok(found) => {
                found.remove();
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_one_hash_each_place_is_told_by_whoever_asks() {
        let mut places = Places::default();
        for place in 0..1000 {
            places.insert(hash_of(place % 500), place);
        }
        assert_eq!(places.find(hash_of(7), |place| place > 499), Some(507));
        assert_eq!(places.find(hash_of(7), |place| place < 499), Some(7));
        assert!(places.remove(hash_of(7), 7) && !places.remove(hash_of(7), 7));
        assert_eq!(places.find(hash_of(7), |place| place < 499), None);
        assert_eq!(places.find(hash_of(501), |_| true), None);
    }
}
