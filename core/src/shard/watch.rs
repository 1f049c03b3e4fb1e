//! Handing last values in: to a session that was bound, to a queue that was bound.
//!
//! While somebody reads values for a stream, the stream's shard *watches*: it remembers the addresses of which a
//! message to be kept came in for that stream since the reading began. A value of such an address is as old as that
//! message or older, and is not handed in. Publishes and values are compared as they come in, which for a journalled
//! shard is the order of its journal, so the binding, the messages behind it and the values stand there in one order.
//!
//! When a watch would remember too much it forgets everything and says so at the next page: the worker then reads
//! that page anew, after what was forgotten is sure to be part of it (`worker/values.rs`).
//!
//! Owns: watches, the pages on their way into a stream, when the next page may come.
//! Never: the values themselves (`values.rs`).

use super::limit::end_of;
use super::values::PAGE_VALUES_MAX;
use super::{Place, Shard, Store};
use crate::address::{Address, TopicFilter};
use crate::error::{ErrorKind, Refusal};
use crate::id::{ConnectionId, Sequence, StreamId, UnixMs, VhostId, WorkerId};
use crate::message::{Message, Quality};
use crate::port::{Extra, HandIn, Handed, ReadingKey, ShardReply, Ticket};
use crate::stream::{Entry, entry_cost};
use crate::trie::FilterTrie;
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Addresses that one watch remembers.
const SEEN_MAX: usize = 16_384;
/// The next page comes when so few messages of the stream are left to be handed out ...
const DRAINED: u64 = PAGE_VALUES_MAX as u64 / 2;
/// ... and what it keeps, settled or not, costs so little: large values would else fill it in a few pages.
const DRAINED_BYTES: u64 = 1 << 20;

/// What came in while values were read.
#[derive(Debug)]
struct Watch {
    vhost: VhostId,
    filter: TopicFilter,
    /// A queue: only what is stored there counts. Absent: a session, which gets all that match.
    queue: Option<StreamId>,
    seen: FxHashSet<Address>,
    /// It forgot what it had seen.
    forgot: bool,
}

/// All watches of a shard, and pages that wait to be answered: the leader's memory.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    open: BTreeMap<ReadingKey, Watch>,
    filters: FxHashMap<VhostId, FilterTrie<ReadingKey>>,
    pages: Vec<Waiting>,
}

/// A page that was handed in and is not answered.
#[derive(Debug)]
struct Waiting {
    frame: u64,
    stream: StreamId,
    from: WorkerId,
    ticket: Ticket,
}

impl Watches {
    /// Begins to watch. Sessions do not see addresses that start with `$` by a leading wildcard.
    pub(super) fn open(
        &mut self,
        key: ReadingKey,
        vhost: VhostId,
        filter: &TopicFilter,
        queue: Option<StreamId>,
    ) {
        let filters = self.filters.entry(vhost).or_default();
        filters.insert(filter, queue.is_none(), key);
        let watch = Watch {
            vhost,
            filter: filter.clone(),
            queue,
            seen: FxHashSet::default(),
            forgot: false,
        };
        self.open.insert(key, watch);
    }

    fn close(&mut self, key: ReadingKey) {
        if let Some(watch) = self.open.remove(&key)
            && let Some(filters) = self.filters.get_mut(&watch.vhost)
        {
            filters.remove(&watch.filter, |known| *known == key);
            if filters.is_empty() {
                self.filters.remove(&watch.vhost);
            }
        }
    }

    /// Ends those of a connection, or of one of its filters.
    pub(super) fn close_all(&mut self, connection: ConnectionId, filter: Option<&TopicFilter>) {
        if self.open.is_empty() {
            return;
        }
        let first = ReadingKey {
            connection,
            number: 0,
        };
        let last = ReadingKey {
            connection,
            number: u64::MAX,
        };
        let of = self.open.range(first..=last);
        let of = of.filter(|(_, watch)| filter.is_none_or(|filter| watch.filter == *filter));
        let keys: Vec<ReadingKey> = of.map(|(key, _)| *key).collect();
        for key in keys {
            self.close(key);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// A message to be kept came in.
    pub(super) fn saw(&mut self, vhost: VhostId, streams: &[StreamId], address: &Address) {
        let Some(filters) = self.filters.get(&vhost) else {
            return;
        };
        let open = &mut self.open;
        filters.visit(address, |key| {
            let Some(watch) = open.get_mut(key) else {
                return;
            };
            if watch.queue.is_some_and(|queue| !streams.contains(&queue)) {
                return;
            }
            if watch.seen.len() >= SEEN_MAX {
                watch.seen.clear();
                watch.forgot = true;
            }
            // The key must not keep a read buffer alive.
            let address = Address(Bytes::copy_from_slice(&address.0));
            watch.seen.insert(address);
        });
    }
}

impl<B: Place> Shard<B> {
    /// Takes a page of values for a stream.
    pub(super) fn hand_in(&mut self, from: WorkerId, ticket: Ticket, hand_in: HandIn)
    where
        Self: Store<B>,
    {
        let HandIn {
            reading,
            queue,
            filter,
            values,
            last,
        } = hand_in;
        let stream = queue.or_else(|| self.session_of(reading.connection));
        let Some(watch) = self.watches.open.get_mut(&reading) else {
            let why = Refusal::new(
                ErrorKind::NotFound,
                "nobody waits for these values any more",
            );
            return self.reply(from, ticket, Err(why));
        };
        if std::mem::take(&mut watch.forgot) {
            return self.reply(from, ticket, Ok(ShardReply::HandedIn { again: true }));
        }
        let fresh = values.into_iter();
        let fresh = fresh.filter(|value| !watch.seen.contains(&value.address));
        let fresh: Vec<Arc<Message>> = fresh.collect();
        if last {
            self.watches.close(reading);
        }
        let Some(stream) = stream else {
            let why = Refusal::new(ErrorKind::NotFound, "the connection has no session");
            return self.reply(from, ticket, Err(why));
        };
        let handed = match filter {
            Some(filter) => Handed {
                quality: filter.quality,
                identifier: filter.identifier,
                no_local: filter.no_local,
            },
            None => Handed {
                quality: Quality::ExactlyOnce,
                identifier: 0,
                no_local: false,
            },
        };
        let extra = Extra {
            handed: Some(handed),
            ..Extra::default()
        };
        for value in fresh {
            self.publish(from, Sequence(0), &[stream], None, Some(&extra), &value);
        }
        if last {
            return self.reply(from, ticket, Ok(ShardReply::HandedIn { again: false }));
        }
        let frame = self.frame_of_now();
        self.watches.pages.push(Waiting {
            frame,
            stream,
            from,
            ticket,
        });
    }

    /// Answers the pages whose streams have handed most of them out: then the next may come. A queue takes them as
    /// they come, for it may have nobody that drains it.
    pub(super) fn answer_pages(&mut self) {
        if self.watches.pages.is_empty() {
            return;
        }
        let mut pages = std::mem::take(&mut self.watches.pages);
        pages.retain(|page| {
            let stream = self.by_id.get(&page.stream);
            let stream = stream.and_then(|at| self.streams[*at as usize].as_deref());
            let full = stream.is_some_and(|stream| {
                let lags = stream.ready() > DRAINED || stream.kept().bytes > DRAINED_BYTES;
                !stream.is_queue() && lags
            });
            let waits = full || !self.progress.has_reached(page.frame);
            if !waits {
                let done = Ok(ShardReply::HandedIn { again: false });
                self.reply(page.from, page.ticket, done);
            }
            waits
        });
        self.watches.pages = pages;
    }

    /// Puts a value into the stream it was handed in for.
    pub(super) fn store_value(
        &mut self,
        clock: UnixMs,
        id: StreamId,
        handed: Handed,
        message: &Message,
        (place, record_bytes): (&B, usize),
    ) {
        let Some(&at) = self.by_id.get(&id) else {
            return;
        };
        let Some(stream) = self.streams[at as usize].as_deref() else {
            return;
        };
        let (is_queue, before) = (stream.is_queue(), stream.kept());
        let full = !is_queue && self.session_is_full(before);
        let Some(stream) = self.streams[at as usize].as_deref_mut() else {
            return;
        };
        if full {
            stream.tally.dropped += 1;
            return;
        }
        let expires = end_of(message, &stream.limits, clock);
        stream.note_end(expires, clock);
        stream.push(Entry {
            body: place.clone(),
            expires,
            cost_bytes: entry_cost(message, record_bytes),
            identifier: handed.identifier,
            quality: message.quality.min(handed.quality),
            retain: true,
            by_topic: true,
            no_local: handed.no_local,
            body_bytes: u32::try_from(message.body.len()).unwrap_or(u32::MAX),
            stored: clock,
            more_identifiers: None,
        });
        let after = stream.kept();
        self.account(is_queue, before, after);
        self.refer(place, entry_cost(message, record_bytes), 1);
        self.list(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> ReadingKey {
        ReadingKey {
            connection: ConnectionId(7),
            number,
        }
    }

    fn saw(watches: &mut Watches, streams: &[StreamId], address: &str) {
        watches.saw(VhostId(1), streams, &address.parse().unwrap());
    }

    #[test]
    fn a_watch_sees_what_its_filter_matches_and_a_queue_s_what_is_stored_there() {
        let mut watches = Watches::default();
        watches.open(key(1), VhostId(1), &"a/#".parse().unwrap(), None);
        watches.open(key(2), VhostId(1), &"#".parse().unwrap(), Some(StreamId(5)));
        saw(&mut watches, &[], "a/b");
        saw(&mut watches, &[StreamId(5)], "c");
        let seen = |watches: &Watches, number| watches.open[&key(number)].seen.len();
        assert_eq!((seen(&watches, 1), seen(&watches, 2)), (1, 1));
        watches.close_all(ConnectionId(7), Some(&"a/#".parse().unwrap()));
        assert_eq!(watches.open.len(), 1);
        watches.close_all(ConnectionId(7), None);
        assert!(watches.is_idle() && watches.filters.is_empty());
    }

    #[test]
    fn a_watch_that_saw_too_much_says_that_it_forgot() {
        let mut watches = Watches::default();
        watches.open(key(1), VhostId(1), &"#".parse().unwrap(), None);
        for number in 0..=SEEN_MAX {
            saw(&mut watches, &[], &number.to_string());
        }
        let watch = &watches.open[&key(1)];
        assert!(watch.forgot && watch.seen.len() == 1);
    }
}
