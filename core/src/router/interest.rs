//! Which shards have sessions that may match an address.
//!
//! Sessions' filters are never metadata: they live, and are matched, in their shard. Publishers only
//! know here which shards to send a message to.
//!
//! Owns: [`Interest`].
//! Never: who the sessions are.
//! Next: `router.rs`.

use crate::address::{Address, TopicFilter};
use crate::id::{ShardId, VhostId};
use crate::trie::FilterTrie;
use rustc_hash::FxHashMap;

/// The filters of all sessions, by vhost, with the shards they live in.
#[derive(Debug, Default)]
pub struct Interest {
    vhosts: FxHashMap<VhostId, FilterTrie<Interested>>,
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
        let filter: TopicFilter = "a/+".parse().unwrap();
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
