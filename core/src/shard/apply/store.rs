//! Storing a message: in the streams that are named, and in every session and group of this shard whose filters match.
//!
//! Owns: the entry that each of them gets, and the remembered matches.
//! Never: whether a publish is a repeat (`shard/apply.rs`, `shard/once.rs`), who is handed the message.
//! Next: `shard/matching.rs`, `shard/limit.rs` (which drops what is too much), `shard/deliver.rs`.

use crate::address::Address;
use crate::gateway::PublishOutcome;
use crate::id::{StreamId, UnixMs, VhostId};
use crate::message::Message;
use crate::port::Extra;
use crate::shard::limit::end_of;
use crate::shard::matching::{self, Wanted};
use crate::shard::{CACHE_ENTRIES_MAX, Match, Place, Shard};
use crate::stream::{Entry, Stream, entry_cost};
use bytes::Bytes;
use std::sync::Arc;

impl<B: Place> Shard<B> {
    /// Puts a message into its named streams and every matching session's. It lies at a place, in a record of so many
    /// bytes where it is journalled.
    pub(crate) fn store(
        &mut self,
        clock: UnixMs,
        streams: &[StreamId],
        by_topic: Option<VhostId>,
        extra: Option<&Extra>,
        message: &Message,
        (place, record_bytes): (&B, usize),
    ) -> PublishOutcome {
        if let Some(extra) = extra {
            if let (Some(handed), Some(stream)) = (extra.handed, streams.first()) {
                self.store_value(clock, *stream, handed, message, (place, record_bytes));
                return PublishOutcome::Routed;
            }
            if let Some(once) = extra.once {
                let to = (streams, by_topic, extra);
                return self.store_once(clock, once, to, message, (place, record_bytes));
            }
            if let Some(later) = extra.later {
                return self.store_later(clock, later, message, (place, record_bytes));
            }
            if let Some(vhost) = extra.keep {
                self.values.put(vhost, Arc::new(message.detached()));
            }
        }
        let cost_bytes = entry_cost(message, record_bytes);
        let mut kept: Option<B> = None;
        let mut entries = 0;
        let mut taken = false;
        let mut entry = |stream: &Stream<B>, quality, identifier, retain, no_local| Entry {
            // A message that will not be handed out at once stays a while: without its read buffer.
            body: match !B::BORROWS || stream.readers.room_beyond(stream.ready()) {
                true => place.clone(),
                false => kept.get_or_insert_with(|| place.kept()).clone(),
            },
            expires: message.expires.unwrap_or_default(),
            cost_bytes,
            identifier,
            quality,
            retain,
            by_topic: by_topic.is_some(),
            no_local,
            more_identifiers: None,
            stored: clock,
            body_bytes: u32::try_from(message.body.len()).unwrap_or(u32::MAX),
        };
        for id in streams {
            let Some(&at) = self.by_id.get(id) else {
                continue;
            };
            let Some(mut stream) = self.streams[at as usize].as_deref_mut() else {
                continue;
            };
            if let Some(max) = stream.limits.priority_max {
                stream.came(u32::try_from(message.body.len()).unwrap_or(u32::MAX));
                let level = self.level_for(at, max, message.priority);
                let Some(found) = self.streams[level as usize].as_deref_mut() else {
                    continue;
                };
                stream = found;
            }
            let mut entry = entry(stream, message.quality, 0, false, false);
            entry.expires = end_of(message, &stream.limits, clock);
            stream.note_end(entry.expires, clock);
            if stream.limits.priority_max.is_none() {
                stream.came(entry.body_bytes);
            }
            self.queues.bytes += u64::from(entry.cost_bytes);
            self.queues.entries += 1;
            stream.push(entry);
            (taken, entries) = (true, entries + 1);
            if stream.id.rank() != 0 {
                self.list(at);
            } else if !stream.listed {
                stream.listed = true;
                self.list.push(at);
            }
        }
        let Some(vhost) = by_topic else {
            self.refer(place, cost_bytes, entries);
            return outcome(taken);
        };
        let matches = self.matching(vhost, &message.address);
        for wanted in matches.iter() {
            let at = &wanted.place;
            let Some(kept) = self.streams[*at as usize].as_deref().map(Stream::kept) else {
                continue;
            };
            let full = self.session_is_full(kept);
            let Some(stream) = self.streams[*at as usize].as_deref_mut() else {
                continue;
            };
            if let Some(deaths) = &message.deaths
                && stream.is_group()
                && deaths.cycles(stream.title())
            {
                continue;
            }
            taken = true;
            if full {
                stream.tally.dropped += 1;
                continue;
            }
            let retain = wanted.retain_as_published && message.retain;
            let mut entry = entry(
                stream,
                message.quality.min(wanted.quality),
                wanted.identifier,
                retain,
                wanted.no_local,
            );
            entry.more_identifiers.clone_from(&wanted.more_identifiers);
            if stream.is_group() {
                entry.expires = end_of(message, &stream.limits, clock);
                stream.note_end(entry.expires, clock);
            }
            self.sessions_hold.bytes += u64::from(entry.cost_bytes);
            self.sessions_hold.entries += 1;
            stream.push(entry);
            entries += 1;
            if !stream.listed {
                stream.listed = true;
                self.list.push(*at);
            }
        }
        self.refer(place, cost_bytes, entries);
        outcome(taken)
    }

    /// So many entries more refer to a place in the journal.
    pub(crate) fn refer(&mut self, place: &B, cost_bytes: u32, entries: u64) {
        if let Some(position) = place.position() {
            self.referred.add(position, u64::from(cost_bytes), entries);
        }
    }

    /// The sessions whose filters match, each once.
    fn matching(&mut self, vhost: VhostId, address: &Address) -> Arc<[Wanted]> {
        let Some(filters) = self.filters.get(&vhost) else {
            return Arc::from([]);
        };
        if let Some(known) = filters.cache.get(address) {
            return known.clone();
        }
        let mut found: Vec<Match> = Vec::new();
        filters
            .trie
            .visit(address, |holders| found.extend(holders.iter().copied()));
        self.match_alone(vhost, address, &mut found);
        let found = matching::merge(found);
        let Some(filters) = self.filters.get_mut(&vhost) else {
            return found;
        };
        if filters.cache.len() >= CACHE_ENTRIES_MAX {
            filters.cache.clear();
        }
        // The key must not keep a read buffer alive.
        filters
            .cache
            .insert(Address(Bytes::copy_from_slice(&address.0)), found.clone());
        found
    }
}

fn outcome(taken: bool) -> PublishOutcome {
    match taken {
        true => PublishOutcome::Routed,
        false => PublishOutcome::Unroutable,
    }
}
