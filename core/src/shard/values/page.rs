//! Reading last values page by page, in the order of addresses.
//!
//! Owns what a page is, and how far a filter lets the next look jump; never when a page is answered.
//! Read next: [`super::reads`].

use super::{Kept, Values};
use crate::address::{Address, MANY, ONE, TopicFilter, levels, matches};
use crate::id::{UnixMs, VhostId};
use crate::message::Message;
use bytes::Bytes;
use smallvec::SmallVec;
use std::ops::Bound;
use std::sync::Arc;

/// Most values of one page.
pub(crate) const PAGE_VALUES_MAX: usize = 512;
/// A page ends when its values cost so much.
const PAGE_BYTES_MAX: usize = 256 << 10;
/// Addresses looked at for one page: a filter that few of them match gives short pages, and other requests their turn.
const PAGE_LOOKED_MAX: usize = 16_384;

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
