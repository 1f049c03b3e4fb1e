//! The filters of one session, found by their text.
//!
//! Owns: [`FilterList`]: few filters are one piece of bytes and nothing more, since most sessions have one or two and
//! there are millions of sessions; many are a list with an index. Persisted as a list of [`FilterSpec`].
//! Never: matching (`trie.rs`).

use crate::address::TopicFilter;
use crate::gateway::FilterSpec;
use crate::message::Quality;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// So many filters are looked through one by one.
const FEW_MAX: usize = 16;

const QUALITY: u8 = 3;
const NO_LOCAL: u8 = 4;
const RETAIN: u8 = 8;
const IDENTIFIED: u8 = 16;

/// Filters with what each asks, each filter once.
#[derive(Clone, Debug)]
pub struct FilterList(Kept);

#[derive(Clone, Debug)]
enum Kept {
    /// One behind the other: flags, the number when there is one (4), the length of the text (2), the text.
    Few(Box<[u8]>),
    Many(Box<Many>),
}

#[derive(Clone, Debug, Default)]
struct Many {
    list: Vec<FilterSpec>,
    places: FxHashMap<TopicFilter, u32>,
}

fn pack(bytes: &mut Vec<u8>, spec: &FilterSpec) {
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    let text = &spec.filter.0[..];
    bytes.reserve_exact(7 + text.len());
    bytes.push(
        spec.quality as u8
            | bit(spec.no_local, NO_LOCAL)
            | bit(spec.retain_as_published, RETAIN)
            | bit(spec.identifier != 0, IDENTIFIED),
    );
    if spec.identifier != 0 {
        bytes.extend_from_slice(&spec.identifier.to_le_bytes());
    }
    // Longer filters are refused where they come in.
    let length = text.len().min(usize::from(u16::MAX));
    bytes.extend_from_slice(&(length as u16).to_le_bytes());
    bytes.extend_from_slice(&text[..length]);
}

/// A packed filter: what it asks beside its text, and the text.
struct Packed<'a> {
    flags: u8,
    identifier: u32,
    text: &'a [u8],
}

impl<'a> Packed<'a> {
    /// The first of some, and the rest.
    fn first(bytes: &'a [u8]) -> Option<(Packed<'a>, &'a [u8])> {
        let (&flags, mut rest) = bytes.split_first()?;
        let mut identifier = 0;
        if flags & IDENTIFIED != 0 {
            let (number, behind) = rest.split_first_chunk()?;
            (identifier, rest) = (u32::from_le_bytes(*number), behind);
        }
        let (length, rest) = rest.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let packed = Packed {
            flags,
            identifier,
            text,
        };
        Some((packed, rest))
    }

    fn all(mut bytes: &'a [u8]) -> impl Iterator<Item = Packed<'a>> {
        std::iter::from_fn(move || {
            let (first, rest) = Packed::first(bytes)?;
            bytes = rest;
            Some(first)
        })
    }

    fn spec(&self) -> FilterSpec {
        FilterSpec {
            filter: TopicFilter(Bytes::copy_from_slice(self.text)),
            quality: Quality::from_number(self.flags & QUALITY).unwrap_or_default(),
            no_local: self.flags & NO_LOCAL != 0,
            retain_as_published: self.flags & RETAIN != 0,
            identifier: self.identifier,
        }
    }
}

impl Default for FilterList {
    fn default() -> FilterList {
        FilterList(Kept::Few(Box::default()))
    }
}

impl FilterList {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = FilterSpec> {
        let (few, many) = match &self.0 {
            Kept::Few(bytes) => (&bytes[..], &[][..]),
            Kept::Many(many) => (&[][..], &many.list[..]),
        };
        let few = Packed::all(few).map(|packed| packed.spec());
        few.chain(many.iter().cloned())
    }

    /// The one with this text.
    pub fn get(&self, text: &[u8]) -> Option<FilterSpec> {
        match &self.0 {
            Kept::Few(bytes) => {
                let found = Packed::all(bytes).find(|packed| packed.text == text)?;
                Some(found.spec())
            }
            Kept::Many(many) => {
                let text = TopicFilter(Bytes::copy_from_slice(text));
                let place = *many.places.get(&text)?;
                many.list.get(place as usize).cloned()
            }
        }
    }

    /// Puts one in; says which one with the same filter it replaces.
    pub fn set(&mut self, spec: FilterSpec) -> Option<FilterSpec> {
        let mut list: Vec<FilterSpec> = match &mut self.0 {
            Kept::Few(_) => self.iter().collect(),
            Kept::Many(many) => return many.set(spec),
        };
        let known = list.iter_mut().find(|known| known.filter == spec.filter);
        let replaced = match known {
            Some(known) => Some(std::mem::replace(known, spec)),
            None => {
                list.push(spec);
                None
            }
        };
        self.keep(list);
        replaced
    }

    /// Takes one out; the last one moves to its place.
    pub fn remove(&mut self, filter: &TopicFilter) -> Option<FilterSpec> {
        let mut list: Vec<FilterSpec> = match &mut self.0 {
            Kept::Few(_) => self.iter().collect(),
            Kept::Many(many) => {
                let removed = many.remove(filter);
                if many.list.is_empty() {
                    *self = FilterList::default();
                }
                return removed;
            }
        };
        let place = list.iter().position(|spec| spec.filter == *filter)?;
        let removed = list.swap_remove(place);
        self.keep(list);
        Some(removed)
    }

    fn keep(&mut self, list: Vec<FilterSpec>) {
        self.0 = match list.len() > FEW_MAX {
            true => {
                let numbered = (0..).zip(&list);
                let places = numbered.map(|(place, spec)| (spec.filter.clone(), place));
                let places = places.collect();
                Kept::Many(Box::new(Many { list, places }))
            }
            false => {
                let mut bytes = Vec::new();
                list.iter().for_each(|spec| pack(&mut bytes, spec));
                Kept::Few(bytes.into_boxed_slice())
            }
        };
    }
}

impl Many {
    fn set(&mut self, spec: FilterSpec) -> Option<FilterSpec> {
        if let Some(place) = self.places.get(&spec.filter) {
            return Some(std::mem::replace(&mut self.list[*place as usize], spec));
        }
        self.places
            .insert(spec.filter.clone(), self.list.len() as u32);
        self.list.push(spec);
        None
    }

    fn remove(&mut self, filter: &TopicFilter) -> Option<FilterSpec> {
        let place = self.places.remove(filter)? as usize;
        let removed = self.list.swap_remove(place);
        if let Some(moved) = self.list.get(place) {
            self.places.insert(moved.filter.clone(), place as u32);
        }
        Some(removed)
    }
}

impl FromIterator<FilterSpec> for FilterList {
    fn from_iter<I: IntoIterator<Item = FilterSpec>>(specs: I) -> FilterList {
        let mut list = FilterList::default();
        for spec in specs {
            list.set(spec);
        }
        list
    }
}

impl PartialEq for FilterList {
    fn eq(&self, other: &FilterList) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Serialize for FilterList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.iter().count()))?;
        for spec in self.iter() {
            list.serialize_element(&spec)?;
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for FilterList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FilterList, D::Error> {
        let list = Vec::<FilterSpec>::deserialize(deserializer)?;
        Ok(list.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Quality;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn spec(number: u8, identifier: u32) -> FilterSpec {
        FilterSpec {
            filter: format!("a/{number}").parse().unwrap(),
            quality: Quality::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            identifier,
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map_by_filter(steps in proptest::collection::vec((any::<bool>(), 0u8..40), 0..200)) {
            let mut list = FilterList::default();
            let mut model: BTreeMap<u8, FilterSpec> = BTreeMap::new();
            for (identifier, (add, number)) in (0..).zip(steps) {
                let spec = spec(number, identifier);
                match add {
                    true => prop_assert_eq!(list.set(spec.clone()), model.insert(number, spec)),
                    false => prop_assert_eq!(list.remove(&spec.filter), model.remove(&number)),
                }
            }
            let mut kept: Vec<_> = list.iter().collect();
            kept.sort_by(|a, b| a.filter.cmp(&b.filter));
            let mut expected: Vec<_> = model.into_values().collect();
            expected.sort_by(|a, b| a.filter.cmp(&b.filter));
            prop_assert_eq!(&kept, &expected);
            let again: FilterList = postcard::from_bytes(&postcard::to_allocvec(&list).unwrap()).unwrap();
            prop_assert_eq!(&again, &list);
            for number in 0..40 {
                let text = format!("a/{number}");
                let found = list.get(text.as_bytes());
                prop_assert_eq!(found.as_ref(), expected.iter().find(|spec| spec.filter.as_str() == text));
            }
        }
    }
}
