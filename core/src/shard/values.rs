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
//! Owns: the values, their end, their limits, reading them, and who waits for frames.
//! Never: who is handed them (`watch.rs`).

use super::checkpoint::marks::{self, Marks};
use super::{Place, Shard};
use crate::address::{Address, MANY, ONE, TopicFilter, levels, matches};
use crate::id::{UnixMs, VhostId, WorkerId};
use crate::message::Message;
use crate::port::{ShardReply, Ticket};
use crate::record::{Change, Mark, message_bytes};
use crate::stream::Volume;
use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Most values of one page.
pub(crate) const PAGE_VALUES_MAX: usize = 512;
/// A page ends when its values cost so much.
const PAGE_BYTES_MAX: usize = 256 << 10;
/// Addresses looked at for one page: a filter that few of them match gives short pages, and other requests their turn.
const PAGE_LOOKED_MAX: usize = 16_384;

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

/// Some values, in the order of their addresses.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) values: Vec<Arc<Message>>,
    /// The last address looked at, when there may be more behind it.
    pub(crate) next: Option<Address>,
}

/// What a page is made of.
#[derive(Clone, Debug)]
pub(crate) struct PageOf {
    pub(crate) vhost: VhostId,
    pub(crate) filter: TopicFilter,
    /// As filters of sessions do: a leading wildcard does not match addresses that start with `$`.
    pub(crate) hides_system: bool,
    pub(crate) after: Option<Address>,
    pub(crate) count: usize,
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

    /// The next page: values that match and have not ended.
    pub(crate) fn page(&self, of: &PageOf, now: UnixMs) -> Page {
        let mut page = Page::default();
        let Some(values) = self.vhosts.get(&of.vhost) else {
            return page;
        };
        let filter: SmallVec<[&[u8]; 16]> = levels(&of.filter.0).collect();
        let conceals = of.hides_system && of.filter.starts_wild();
        let start = literal_start(&of.filter);
        let mut from = match &of.after {
            Some(after) => Bound::Excluded(after.clone()),
            None => Bound::Included(Address(start)),
        };
        let mut bytes = 0;
        let mut looked = 0;
        loop {
            let mut jump = None;
            for (address, Kept { message: value, .. }) in
                values.range((from.clone(), Bound::Unbounded))
            {
                let full = page.values.len() >= of.count.min(PAGE_VALUES_MAX);
                if full || bytes >= PAGE_BYTES_MAX || looked >= PAGE_LOOKED_MAX {
                    return page;
                }
                looked += 1;
                page.next = Some(address.clone());
                let next = match conceals && address.is_system() {
                    // The byte after `$`.
                    true => Next::To(Bytes::from_static(b"%")),
                    false => look(&filter, address),
                };
                match next {
                    Next::Here => {
                        if !value.expired(now) {
                            bytes += value.cost_bytes();
                            page.values.push(value.clone());
                        }
                    }
                    Next::Step => {}
                    Next::To(place) => {
                        jump = Some(place);
                        break;
                    }
                    Next::End => break,
                }
            }
            match jump {
                Some(place) => from = Bound::Included(Address(place)),
                None => break,
            }
        }
        page.next = None;
        page
    }
}

/// The levels before the first wildcard, as flat text: what every address that matches begins with. A `#` takes no
/// level too, so there the separator before it is left out.
fn literal_start(filter: &TopicFilter) -> Bytes {
    let mut length = 0;
    for level in levels(&filter.0) {
        if level == ONE {
            break;
        }
        if level == MANY {
            length = usize::saturating_sub(length, 1);
            break;
        }
        length += level.len() + 1;
    }
    filter.0.slice(..length.min(filter.0.len()))
}

/// Where to look next.
enum Next {
    /// This one matches; then at the next one.
    Here,
    /// At the next one.
    Step,
    /// At the first from this text on: nothing before it matches.
    To(Bytes),
    /// Nowhere: nothing behind it matches.
    End,
}

/// Compares an address with a filter, and says how far nothing else can match.
fn look(filter: &[&[u8]], address: &Address) -> Next {
    let flat = &address.0;
    let parts: SmallVec<[&[u8]; 16]> = levels(flat).collect();
    let mut start = 0;
    for (at, wanted) in filter.iter().enumerate() {
        if *wanted == MANY {
            return match matches(filter, &parts) {
                true => Next::Here,
                false => Next::Step,
            };
        }
        let Some(level) = parts.get(at) else {
            // What lies below it comes right behind it.
            return Next::Step;
        };
        if *wanted != ONE && wanted != level {
            // All addresses between this one and the first of these that lies behind it begin as this one does,
            // and none of them has the wanted level.
            let mut place = flat[..start].to_vec();
            place.extend_from_slice(wanted);
            if place[..] > flat[..] {
                return Next::To(place.into());
            }
            place.push(b'/');
            if place[..] > flat[..] {
                return Next::To(place.into());
            }
            return behind(&flat[..start]);
        }
        start += level.len() + 1;
    }
    match parts.len() > filter.len() {
        true => behind(&flat[..start]),
        false => Next::Here,
    }
}

/// Behind everything that begins with a text that is empty or ends in a separator.
fn behind(begin: &[u8]) -> Next {
    let Some((_, begin)) = begin.split_last() else {
        return Next::End;
    };
    let mut place = begin.to_vec();
    // The byte after `/`.
    place.push(b'0');
    Next::To(place.into())
}

/// How far a journalled shard has come with its own frames: the leader's memory.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    applied: u64,
    under_way: u64,
}

impl Progress {
    pub(super) fn taken(&mut self) {
        self.under_way += 1;
    }

    pub(super) fn applied(&mut self) {
        self.applied += 1;
        self.under_way = self.under_way.saturating_sub(1);
    }

    pub(super) fn has_reached(&self, frame: u64) -> bool {
        self.applied >= frame
    }
}

/// A page that waits for frames.
#[derive(Debug)]
pub(crate) struct Read {
    frame: u64,
    from: WorkerId,
    ticket: Ticket,
    of: PageOf,
}

impl<B: Place> Shard<B> {
    /// The frame that holds what was handed in last; it need not be taken yet.
    pub(super) fn frame_of_now(&self) -> u64 {
        let pending = u64::from(!self.builder.is_empty());
        self.progress.applied + self.progress.under_way + pending
    }

    /// Whether a message that is to be kept finds room.
    pub(super) fn takes_value(&self, vhost: VhostId, message: &Message) -> bool {
        let limits = (self.limits.values_max, self.limits.values_bytes_max);
        self.values.takes(vhost, message, limits)
    }

    pub(super) fn read_values(&mut self, from: WorkerId, ticket: Ticket, of: PageOf) {
        let frame = self.frame_of_now();
        self.reads.push(Read {
            frame,
            from,
            ticket,
            of,
        });
    }

    /// Answers the pages whose frames are applied.
    pub(super) fn answer_reads(&mut self, now: UnixMs) {
        let progress = &self.progress;
        let due = self
            .reads
            .extract_if(.., |read| progress.has_reached(read.frame));
        for Read {
            from, ticket, of, ..
        } in due.collect::<Vec<_>>()
        {
            let Page { values, next } = self.values.page(&of, now);
            self.reply(from, ticket, Ok(ShardReply::Values { values, next }));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VHOST: VhostId = VhostId(1);

    fn value(address: &str, body: &'static str) -> Arc<Message> {
        Arc::new(Message {
            address: address.parse().unwrap(),
            body: Bytes::from_static(body.as_bytes()),
            ..Message::default()
        })
    }

    fn of(filter: &str, count: usize) -> PageOf {
        PageOf {
            vhost: VHOST,
            filter: filter.parse().unwrap(),
            hides_system: true,
            after: None,
            count,
        }
    }

    /// Reads page after page; says how many addresses were looked at in vain at most.
    fn read(values: &Values, filter: &str, count: usize) -> Vec<String> {
        let mut of = of(filter, count);
        let mut found = Vec::new();
        loop {
            let page = values.page(&of, UnixMs(0));
            assert!(page.values.len() <= count);
            let texts = page.values.iter().map(|value| value.address.to_string());
            found.extend(texts);
            match page.next {
                Some(next) => of.after = Some(next),
                None => return found,
            }
        }
    }

    #[test]
    fn a_value_is_replaced_and_an_empty_one_removes_it() {
        let mut values = Values::default();
        values.put(VHOST, value("a", "1"));
        values.put(VHOST, value("a", "22"));
        values.put(VhostId(2), value("a", "other"));
        let cost = value("a", "22").cost_bytes() + value("a", "other").cost_bytes();
        assert_eq!((values.kept.entries, values.kept.bytes), (2, cost as u64));
        let page = values.page(&of("#", 9), UnixMs(0));
        assert_eq!(&page.values[0].body[..], b"22");
        values.put(VHOST, value("a", ""));
        values.put(VhostId(2), value("a", ""));
        assert_eq!(values.kept, Volume::default());
        assert!(values.vhosts.is_empty());
    }

    #[test]
    fn what_has_ended_is_not_read_and_goes() {
        let mut values = Values::default();
        let mut short = value("a/short", "x").detached();
        short.expires = Some(UnixMs(100));
        values.put(VHOST, Arc::new(short));
        values.put(VHOST, value("a/long", "x"));
        assert_eq!(values.page(&of("a/#", 9), UnixMs(99)).values.len(), 2);
        assert_eq!(values.page(&of("a/#", 9), UnixMs(100)).values.len(), 1);
        values.remove_ended(UnixMs(100));
        assert_eq!((values.kept.entries, values.first_end()), (1, None));
    }

    #[test]
    fn beyond_the_limits_only_what_replaces_or_removes_is_taken() {
        let mut values = Values::default();
        values.put(VHOST, value("a", "123"));
        let bytes = values.kept.bytes;
        assert!(values.takes(VHOST, &value("b", "1"), (2, 2 * bytes)));
        assert!(!values.takes(VHOST, &value("b", "1"), (1, 2 * bytes)));
        assert!(!values.takes(VHOST, &value("b", "1"), (2, bytes)));
        assert!(values.takes(VHOST, &value("a", "321"), (1, bytes)));
        assert!(!values.takes(VHOST, &value("a", "4321"), (1, bytes)));
        assert!(values.takes(VHOST, &value("b", ""), (1, bytes)));
    }

    #[test]
    fn a_filter_skips_what_it_cannot_match() {
        let mut values = Values::default();
        for device in 0..1000 {
            for sensor in 0..40 {
                values.put(VHOST, value(&format!("site/{device}/s{sensor}"), "x"));
            }
        }
        // 40,000 addresses, two looks for each of 1,000 devices: one page's worth of looking.
        let mut of = of("site/+/s7", PAGE_VALUES_MAX);
        let page = values.page(&of, UnixMs(0));
        assert_eq!(page.values.len(), PAGE_VALUES_MAX);
        of.after = page.next;
        let page = values.page(&of, UnixMs(0));
        assert_eq!(
            (page.values.len(), page.next),
            (1000 - PAGE_VALUES_MAX, None)
        );
    }

    fn text(wild: bool) -> impl Strategy<Value = String> {
        let level = match wild {
            true => prop_oneof![
                3 => "[ab-]{0,2}", 1 => Just("+".to_owned()), 1 => Just("#".to_owned()), 1 => Just("$s".to_owned())
            ]
            .boxed(),
            false => prop_oneof![4 => "[ab-]{0,2}", 1 => Just("$s".to_owned())].boxed(),
        };
        proptest::collection::vec(level, 0..4).prop_map(|levels| levels.join("/"))
    }

    proptest! {
        #[test]
        fn pages_give_what_matches_once_and_in_order(
            addresses in proptest::collection::btree_set(text(false), 0..40),
            filter in text(true),
            count in 1usize..5,
        ) {
            let mut values = Values::default();
            for address in &addresses {
                values.put(VHOST, value(address, "x"));
            }
            let wanted: TopicFilter = filter.parse().unwrap();
            let expected: Vec<String> = addresses
                .iter()
                .filter(|address| {
                    let address: Address = address.parse().unwrap();
                    wanted.matches(&address) && !(wanted.starts_wild() && address.is_system())
                })
                .cloned()
                .collect();
            prop_assert_eq!(read(&values, &filter, count), expected);
        }
    }
}
