//! Which shard a name belongs to: a fixed number of slots, and a shard for each.
//!
//! Owns: [`Placement`] and the hash from a name to its slot. Persisted: the hash never changes.
//! Never: moving what is already placed.

use crate::error::{ErrorKind, Refusal};
use crate::id::ShardId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Number of slots. Persisted: it never changes.
pub const SLOTS: usize = 4096;

/// The slot of a name (a queue's or a client's) in a vhost: 64-bit FNV-1a over vhost, a zero byte and
/// name, folded to 12 bits.
pub fn slot(vhost: &str, name: &str) -> u16 {
    let bytes = vhost.bytes().chain([0]).chain(name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    ((hash ^ (hash >> 12) ^ (hash >> 24) ^ (hash >> 36)) % SLOTS as u64) as u16
}

/// A shard for each slot; none before it was set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<ShardId>", into = "Vec<ShardId>")]
pub struct Placement {
    slots: Vec<ShardId>,
    /// Each once, by number: who reads all shards asks often.
    shards: Vec<ShardId>,
}

impl From<Vec<ShardId>> for Placement {
    fn from(slots: Vec<ShardId>) -> Placement {
        let shards: BTreeSet<ShardId> = slots.iter().copied().collect();
        let shards = shards.into_iter().collect();
        Placement { slots, shards }
    }
}

impl From<Placement> for Vec<ShardId> {
    fn from(placement: Placement) -> Vec<ShardId> {
        placement.slots
    }
}

impl Placement {
    /// Takes one shard per slot.
    ///
    /// # Errors
    /// `BadRequest` when there is another number of them, or one keeps its streams in memory only.
    pub fn new(slots: Vec<ShardId>) -> Result<Placement, Refusal> {
        if slots.len() != SLOTS {
            let text = format!("a placement has {SLOTS} slots, not {}", slots.len());
            return Err(Refusal::new(ErrorKind::BadRequest, text));
        }
        if let Some(shard) = slots.iter().find(|shard| shard.is_volatile()) {
            let text = format!("shard {shard} keeps its streams in memory and cannot be placed on");
            return Err(Refusal::new(ErrorKind::BadRequest, text));
        }
        Ok(slots.into())
    }

    /// Slots dealt out evenly, for [`MetaCommand::SetPlacement`](crate::meta::MetaCommand::SetPlacement);
    /// empty when there is no shard.
    pub fn even(shards: &[ShardId]) -> Vec<ShardId> {
        shards.iter().copied().cycle().take(SLOTS).collect()
    }

    /// All shards that slots go to, by number.
    pub fn shards(&self) -> &[ShardId] {
        &self.shards
    }

    /// The shard of a slot; `None` before the placement was set.
    pub fn shard(&self, slot: u16) -> Option<ShardId> {
        self.slots.get(usize::from(slot)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_persisted_hash_stays_what_it_is() {
        assert_ne!(slot("/", "jobs"), slot("other", "jobs"));
        assert_eq!([slot("/", "jobs"), slot("/", ""), slot("a", "b")], PINNED);
    }

    /// What the hash gave when the format was made.
    const PINNED: [u16; 3] = [2879, 2201, 1089];

    #[test]
    fn names_spread_over_all_slots() {
        let mut used = vec![0u32; SLOTS];
        for number in 0..SLOTS * 16 {
            used[usize::from(slot("/", &format!("device-{number}")))] += 1;
        }
        assert!(used.iter().all(|count| (1..60).contains(count)));
    }

    #[test]
    fn a_placement_names_a_data_shard_for_every_slot() {
        let even = Placement::even(&[ShardId(1), ShardId(2)]);
        let placement = Placement::new(even).unwrap();
        assert_eq!(placement.shard(0), Some(ShardId(1)));
        assert_eq!(placement.shard(4095), Some(ShardId(2)));
        assert_eq!(Placement::default().shard(0), None);
        assert!(Placement::new(vec![ShardId(1)]).is_err());
        assert!(Placement::new(vec![ShardId(0x8000); SLOTS]).is_err());
    }
}
