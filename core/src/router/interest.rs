//! Which shards have sessions that may match an address.
//!
//! Sessions' filters are never metadata: they live, and are matched, in their shard. Publishers only
//! know here which shards to send a message to.
//!
//! Owns: [`Interest`].
//! Never: who the sessions are.
//! Next: `router.rs`, `simple.rs`.

use crate::address::{Address, TopicFilter};
use crate::id::{ShardId, VhostId};
use crate::simple::{Depths, simple};
use crate::trie::FilterTrie;
use hashbrown::HashTable;
use rustc_hash::FxHashMap;

/// The filters of all sessions, by vhost, with the shards they live in.
#[derive(Debug, Default)]
pub struct Interest {
    /// By hash only: two filters of one hash count as one, so that one may seem to be there that is not.
    simple: HashTable<Hashed>,
    depths: Depths,
    /// All others.
    vhosts: FxHashMap<VhostId, FilterTrie<Interested>>,
}

/// A filter of a hash. Its vhost is in the hash.
#[derive(Clone, Copy, Debug)]
struct Hashed {
    hash: u64,
    /// How many sessions have it.
    sessions: u32,
    shard: ShardId,
}

#[derive(Clone, Copy, Debug)]
struct Interested {
    shard: ShardId,
    /// How many of its sessions have this filter.
    sessions: u64,
}

impl Interest {
    /// Counts one more session of `shard` with this filter; whether it is the first.
    pub fn add(&mut self, vhost: VhostId, filter: &TopicFilter, shard: ShardId) -> bool {
        if let Some(key) = simple(vhost, filter) {
            self.depths.note(key);
            let same = |known: &Hashed| (known.hash, known.shard) == (key.hash, shard);
            if let Some(known) = self.simple.find_mut(key.hash, same) {
                known.sessions += 1;
                return false;
            }
            let first = Hashed {
                hash: key.hash,
                sessions: 1,
                shard,
            };
            self.simple
                .insert_unique(key.hash, first, |known| known.hash);
            return true;
        }
        let filters = self.vhosts.entry(vhost).or_default();
        let known = filters
            .values_mut(filter)
            .find(|known| known.shard == shard);
        if let Some(known) = known {
            known.sessions += 1;
            return false;
        }
        // As shards match: a leading wildcard of a session hides addresses that start with `$`.
        filters.insert(filter, true, Interested { shard, sessions: 1 });
        true
    }

    /// Counts one session less; whether it was the last.
    pub fn remove(&mut self, vhost: VhostId, filter: &TopicFilter, shard: ShardId) -> bool {
        if let Some(key) = simple(vhost, filter) {
            let same = |known: &Hashed| (known.hash, known.shard) == (key.hash, shard);
            let Ok(mut known) = self.simple.find_entry(key.hash, same) else {
                return false;
            };
            known.get_mut().sessions -= 1;
            let last = known.get().sessions == 0;
            if last {
                known.remove();
            }
            return last;
        }
        let Some(filters) = self.vhosts.get_mut(&vhost) else {
            return false;
        };
        let known = filters
            .values_mut(filter)
            .find(|known| known.shard == shard);
        let Some(known) = known else {
            return false;
        };
        known.sessions -= 1;
        if known.sessions > 0 {
            return false;
        }
        filters.remove(filter, |known| known.shard == shard);
        if filters.is_empty() {
            self.vhosts.remove(&vhost);
        }
        true
    }

    /// Calls `found` with each shard that has a session whose filter matches; perhaps repeatedly.
    pub fn visit(&self, vhost: VhostId, address: &Address, mut found: impl FnMut(ShardId)) {
        if !self.simple.is_empty() {
            self.depths.visit(vhost, address, |hash, _, _| {
                let known = self.simple.iter_hash(hash);
                let same = known.filter(|known| known.hash == hash);
                same.for_each(|known| found(known.shard));
            });
        }
        if let Some(filters) = self.vhosts.get(&vhost) {
            filters.visit(address, |known| found(known.shard));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VHOST: VhostId = VhostId(1);

    fn shards(interest: &Interest, address: &str) -> Vec<u16> {
        let mut found = Vec::new();
        interest.visit(VHOST, &address.parse().unwrap(), |shard| {
            found.push(shard.0)
        });
        found.sort_unstable();
        found
    }

    #[test]
    fn interest_lasts_from_the_first_session_to_the_last() {
        let mut interest = Interest::default();
        let filter: TopicFilter = "+/b".parse().unwrap();
        assert!(interest.add(VHOST, &filter, ShardId(1)));
        assert!(!interest.add(VHOST, &filter, ShardId(1)));
        assert!(interest.add(VHOST, &filter, ShardId(2)));
        assert_eq!(shards(&interest, "a/b"), [1, 2]);
        assert!(!interest.remove(VHOST, &filter, ShardId(1)));
        assert_eq!(shards(&interest, "a/b"), [1, 2]);
        assert!(interest.remove(VHOST, &filter, ShardId(1)));
        assert_eq!(shards(&interest, "a/b"), [2]);
        assert!(!interest.remove(VHOST, &filter, ShardId(1)));
        assert!(interest.remove(VHOST, &filter, ShardId(2)));
        assert!(interest.vhosts.is_empty());
    }

    #[test]
    fn filters_with_a_wildcard_at_the_end_or_none_are_as_exact_as_others() {
        let mut interest = Interest::default();
        for (text, shard) in [("a/b", 1), ("a/b/#", 2), ("a/b/+", 3), ("a/+/c", 4)] {
            assert!(interest.add(VHOST, &text.parse().unwrap(), ShardId(shard)));
        }
        assert_eq!(interest.vhosts.len(), 1, "only one is in the tree");
        assert_eq!(shards(&interest, "a/b"), [1, 2]);
        assert_eq!(shards(&interest, "a/b/c"), [2, 3, 4]);
        assert_eq!(shards(&interest, "a/b/c/d"), [2]);
        assert!(shards(&interest, "a").is_empty() && shards(&interest, "a/x").is_empty());
        assert!(interest.remove(VHOST, &"a/b/#".parse().unwrap(), ShardId(2)));
        assert_eq!(shards(&interest, "a/b/c/d"), [0u16; 0]);
        assert!(!interest.remove(VHOST, &"a/b/#".parse().unwrap(), ShardId(2)));
    }

    #[test]
    fn a_leading_wildcard_is_not_interested_in_system_addresses() {
        let mut interest = Interest::default();
        interest.add(VHOST, &"#".parse().unwrap(), ShardId(1));
        interest.add(VHOST, &"$x/#".parse().unwrap(), ShardId(2));
        assert_eq!(shards(&interest, "$x/y"), [2]);
        assert_eq!(shards(&interest, "x/y"), [1]);
    }

    #[test]
    fn vhosts_do_not_hear_each_other() {
        let mut interest = Interest::default();
        interest.add(VhostId(2), &"#".parse().unwrap(), ShardId(1));
        assert!(shards(&interest, "a").is_empty());
    }
}
