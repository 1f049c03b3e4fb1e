//! How a connection's host takes its mail, and whether it may read more of its socket.
//!
//! Owns: the list of connections with mail; telling shards what was taken off their hands.
//! Never: what is in the mail (`worker/host.rs`).
//! Next: `worker/connected.rs`.

use super::{Mail, Worker};
use crate::dispatch::travel_units;
use crate::id::{ConnectionId, ConsumerTag, Now, ShardId};
use crate::port::{ConsumerKey, ShardRequest};
use smallvec::SmallVec;

impl Worker {
    /// A connection with mail, each once until it gets more.
    pub fn next_ready(&mut self) -> Option<ConnectionId> {
        self.ready.pop()
    }

    /// Swaps a connection's mail for the empty `mail`, and tells the shards that it was taken.
    pub fn take_mail(&mut self, now: Now, connection: ConnectionId, mail: &mut Mail) {
        let Some(state) = self.connections.get_mut(&connection) else {
            return;
        };
        state.listed = false;
        std::mem::swap(&mut state.mail, mail);
        let mut runs: SmallVec<[(ShardId, ShardRequest); 2]> = SmallVec::new();
        let mut rest = &mail.deliveries[..];
        while let Some(first) = rest.first() {
            let tag = first.consumer;
            let length = rest
                .iter()
                .position(|delivery| delivery.consumer != tag)
                .unwrap_or(rest.len());
            let (run, after) = rest.split_at(length);
            rest = after;
            self.counts.delivered += run.len() as u64;
            state.delivered += run.len() as u64;
            let mut count = 0;
            for delivery in run {
                self.counts.delivered_bytes += delivery.message.body.len() as u64;
                count += travel_units(delivery.message.cost_bytes());
            }
            let Some(reader) = state.readers.get_mut(&tag) else {
                continue;
            };
            if !reader.presettled && reader.giving_back == 0 {
                reader.held += run.len() as u32;
            }
            let consumer = ConsumerKey { connection, tag };
            runs.push((
                reader.shard,
                ShardRequest::Drained {
                    consumer,
                    stream: reader.stream,
                    count,
                },
            ));
        }
        for (shard, request) in runs {
            self.request(now, shard, request);
        }
    }

    /// What a consumer had was taken back: what had been delivered to it before is in nobody's hands.
    pub(super) fn void(&mut self, now: Now, connection: ConnectionId, tag: ConsumerTag) {
        let Some(state) = self.connections.get_mut(&connection) else {
            return;
        };
        let Some(reader) = state.readers.get_mut(&tag) else {
            return;
        };
        reader.giving_back = reader.giving_back.saturating_sub(1);
        let (shard, stream) = (reader.shard, reader.stream);
        let mut count = 0;
        state.mail.deliveries.retain(|delivery| {
            let stays = delivery.consumer != tag;
            if !stays {
                count += travel_units(delivery.message.cost_bytes());
            }
            stays
        });
        if count > 0 {
            let consumer = ConsumerKey { connection, tag };
            let drained = ShardRequest::Drained {
                consumer,
                stream,
                count,
            };
            self.request(now, shard, drained);
        }
    }

    /// Whether its socket may be read: not while it has parked too much for a blocked shard, or a stream that holds
    /// its publishers.
    pub fn may_read(&self, connection: ConnectionId) -> bool {
        let Some(state) = self.connections.get(&connection) else {
            return true;
        };
        let most = self.limits.parked_bytes_max;
        state.held.bytes() + state.once.bytes() + state.waiting_bytes < most
            && (self.blocked.is_empty() || state.parked_bytes < most)
    }
}
