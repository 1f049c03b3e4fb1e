//! How much a shard keeps, and when it takes no more.
//!
//! Two things fill up: what streams keep, and what is handed in and not yet committed. Beyond a limit workers are told
//! to hold their publishers back, until a good part is gone again.
//!
//! Owns: the sums over streams, when a shard or a session is full, and telling workers of it.
//! Never: the limits of one queue or group (`shard/limit.rs`).
//! Next: `shard/intake.rs`.

use super::{Place, Shard};
use crate::port::ShardEvent;
use crate::stream::Volume;

impl<B: Place> Shard<B> {
    /// Counts a change of what a stream keeps.
    pub(crate) fn account(&mut self, is_queue: bool, before: Volume, after: Volume) {
        match is_queue {
            true => self.queues.replace(before, after),
            false => self.sessions_hold.replace(before, after),
        }
    }

    /// Whether a session may not be given more: it is over its own limit, or all sessions together are over
    /// theirs and it is one of those that lag. One slow reader must not stop publishers or other readers.
    pub(crate) fn session_is_full(&self, kept: Volume) -> bool {
        let all_bytes_max = match self.journalled() {
            true => u64::MAX,
            false => self.limits.volatile_bytes_max,
        };
        let crowded = self.sessions_hold.bytes >= all_bytes_max
            || self.sessions_hold.entries >= self.limits.entries_max;
        kept.bytes >= self.limits.session_bytes_max || (crowded && kept.entries > 0)
    }

    /// The host says whether there is room to take publishes (a disk that is nearly full has none).
    pub fn set_room(&mut self, room: bool) {
        self.no_room = !room;
        self.block_or_resume();
    }

    pub(super) fn is_full(&self) -> bool {
        self.no_room
            || self.queues.entries >= self.limits.entries_max
            || (!self.journalled() && self.queues.bytes >= self.limits.volatile_bytes_max)
    }

    /// Whether enough has drained to take publishes again.
    fn has_drained(&self) -> bool {
        let bytes_max = self.limits.volatile_bytes_max;
        !self.no_room
            && self.queues.entries < self.limits.entries_max / 10 * 9
            && (self.journalled() || self.queues.bytes < bytes_max / 10 * 9)
    }

    pub(crate) fn block_or_resume(&mut self) {
        let parked = self.unapplied_bytes + self.builder.len();
        if !self.blocked && (parked > self.limits.parked_bytes_max || self.is_full()) {
            self.tell_blocked(true);
        } else if self.blocked && parked < self.limits.parked_bytes_max / 2 && self.has_drained() {
            self.tell_blocked(false);
        }
    }

    fn tell_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
        for worker in &self.workers {
            self.outbox.event(*worker, ShardEvent::Blocked(blocked));
        }
    }
}
