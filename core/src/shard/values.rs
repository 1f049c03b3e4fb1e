//! Last values: for each address the last message that was published to be kept there.
//!
//! A message with [`Extra::keep`](crate::port::Extra) becomes the value of its address when its record is applied,
//! in the order of the journal; one with an empty body removes it. Values are whole messages in memory and in
//! checkpoints: one that stays for years keeps no part of the journal.
//!
//! A reader asks page by page in the order of addresses. A page is answered only when everything that was handed
//! to the shard before the question is applied, so that it misses nothing that was confirmed; see
//! `worker/values.rs` for what makes the whole of it right.
//!
//! Owns: the values, their end, their limits. Never: who is handed them (`watch.rs`).
//! Next: `values/page.rs` (reading them), `values/reads.rs` (who waits for frames).

mod page;
mod reads;
#[cfg(test)]
mod tests;

pub(crate) use page::{PAGE_VALUES_MAX, PageOf};
pub(crate) use reads::{Progress, Read};

use super::checkpoint::marks::{self, Marks};
use super::{Place, Shard};
use crate::address::Address;
use crate::id::{UnixMs, VhostId};
use crate::message::Message;
use crate::port::ShardReply;
use crate::record::{Change, Mark, message_bytes};
use crate::stream::Volume;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All last values of a shard.
#[derive(Debug, Default)]
pub(crate) struct Values {
    vhosts: BTreeMap<VhostId, BTreeMap<Address, Kept>>,
    ends: BTreeSet<(UnixMs, VhostId, Address)>,
    kept: Volume,
    /// For checkpoints.
    pub(super) marks: Marks<(VhostId, Address)>,
}

/// A value, and whether the next checkpoint is to have it.
#[derive(Debug)]
struct Kept {
    message: Arc<Message>,
    mark: marks::Mark,
}

impl Values {
    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.kept.entries
    }

    /// How many there are, and their cost.
    pub(crate) fn kept(&self) -> Volume {
        self.kept
    }

    /// The value of an address.
    fn get(&self, vhost: VhostId, address: &Address) -> Option<&Arc<Message>> {
        Some(&self.vhosts.get(&vhost)?.get(address)?.message)
    }

    /// Whether a message may become a value within these limits; one that makes room always may.
    fn takes(&self, vhost: VhostId, message: &Message, (most, bytes_max): (u64, u64)) -> bool {
        let cost = message.cost_bytes() as u64;
        let fits = self.kept.entries < most && self.kept.bytes + cost <= bytes_max;
        fits || message.body.is_empty() || {
            let before = self.get(vhost, &message.address);
            before.is_some_and(|before| {
                let before = before.cost_bytes() as u64;
                cost <= before || self.kept.bytes - before + cost <= bytes_max
            })
        }
    }

    /// The next value that is to be copied into a checkpoint, absent when it is gone.
    pub(super) fn next_change(&mut self) -> Option<((VhostId, Address), Option<Bytes>)> {
        if let Some(early) = self.marks.next_early() {
            return Some(early);
        }
        while let Some(key) = self.marks.next_key() {
            let values = self.vhosts.get_mut(&key.0);
            let kept = values.and_then(|values| values.get_mut(&key.1));
            let value = match kept {
                Some(kept) => {
                    let is = self.marks.copied(&mut kept.mark);
                    is.then(|| Some(message_bytes(&kept.message)))
                }
                None => self.marks.copied_gone(&key).then_some(None),
            };
            if let Some(value) = value {
                return Some((key, value));
            }
        }
        None
    }

    /// A value that a checkpoint has.
    pub(super) fn restore(&mut self, vhost: VhostId, message: Message) {
        self.insert(vhost, Arc::new(message), marks::Mark::default());
    }

    /// Makes a message the value of its address, or with an empty body removes that. The message must own its bytes.
    pub(super) fn put(&mut self, vhost: VhostId, message: Arc<Message>) {
        if message.body.is_empty() {
            self.remove(vhost, &message.address);
            return;
        }
        let key = (vhost, message.address.clone());
        // The old one goes with its key, which is a part of its bytes.
        let mark = match self.take(vhost, &message.address) {
            Some(old) => self
                .marks
                .replaced(old.mark, &key, || message_bytes(&old.message)),
            None => self.marks.came(&key),
        };
        self.insert(vhost, message, mark);
    }

    fn insert(&mut self, vhost: VhostId, message: Arc<Message>, mark: marks::Mark) {
        let address = message.address.clone();
        if let Some(end) = message.expires {
            self.ends.insert((end, vhost, address.clone()));
        }
        self.kept.entries += 1;
        self.kept.bytes += message.cost_bytes() as u64;
        let values = self.vhosts.entry(vhost).or_default();
        values.insert(address, Kept { message, mark });
    }

    fn take(&mut self, vhost: VhostId, address: &Address) -> Option<Kept> {
        let old = self.vhosts.get_mut(&vhost)?.remove(address)?;
        if let Some(end) = old.message.expires {
            self.ends.remove(&(end, vhost, address.clone()));
        }
        self.kept.entries -= 1;
        self.kept.bytes -= old.message.cost_bytes() as u64;
        Some(old)
    }

    fn remove(&mut self, vhost: VhostId, address: &Address) -> bool {
        let Some(old) = self.take(vhost, address) else {
            return false;
        };
        if self.vhosts.get(&vhost).is_some_and(BTreeMap::is_empty) {
            self.vhosts.remove(&vhost);
        }
        let key = (vhost, old.message.address.clone());
        self.marks
            .went(old.mark, &key, || message_bytes(&old.message));
        true
    }

    fn first_end(&self) -> Option<UnixMs> {
        self.ends.first().map(|(end, ..)| *end)
    }

    fn remove_ended(&mut self, before: UnixMs) {
        while let Some((end, vhost, address)) = self.ends.first().cloned() {
            if end > before {
                return;
            }
            self.remove(vhost, &address);
        }
    }
}

impl<B: Place> Shard<B> {
    /// Whether a message that is to be kept finds room.
    pub(super) fn takes_value(&self, vhost: VhostId, message: &Message) -> bool {
        let limits = (self.limits.values_max, self.limits.values_bytes_max);
        self.values.takes(vhost, message, limits)
    }

    /// Asks for the end of what has ended.
    pub(super) fn end_values(&mut self, now: UnixMs) {
        if self.values.first_end().is_some_and(|end| end <= now) {
            let change = Change::ValuesExpired { before: now };
            self.change(now, Mark::default(), change);
        }
    }

    pub(super) fn apply_values_expired(&mut self, before: UnixMs) {
        self.values.remove_ended(before);
    }

    pub(super) fn apply_drop_value(&mut self, vhost: VhostId, address: &Address) -> ShardReply {
        ShardReply::Count(u64::from(self.values.remove(vhost, address)))
    }
}
