//! The filters of one session, found by their text.
//!
//! Owns: [`FilterList`]: few filters are a list and nothing more, since most sessions have one or two; many are
//! indexed. Persisted as the list.
//! Never: matching (`trie.rs`).

use crate::address::TopicFilter;
use crate::gateway::FilterSpec;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ops::Deref;

/// So many filters are looked through one by one.
const FEW_MAX: usize = 16;

/// Filters with what each asks, each filter once.
#[derive(Clone, Debug, Default)]
pub struct FilterList {
    list: Vec<FilterSpec>,
    /// Places in the list, of all of them or of none.
    places: FxHashMap<TopicFilter, u32>,
}

impl FilterList {
    fn place(&self, filter: &TopicFilter) -> Option<usize> {
        if self.places.is_empty() {
            return self.list.iter().position(|spec| spec.filter == *filter);
        }
        self.places.get(filter).map(|place| *place as usize)
    }

    /// Puts one in; says which one with the same filter it replaces.
    pub fn set(&mut self, spec: FilterSpec) -> Option<FilterSpec> {
        if let Some(place) = self.place(&spec.filter) {
            return Some(std::mem::replace(&mut self.list[place], spec));
        }
        if !self.places.is_empty() {
            self.places
                .insert(spec.filter.clone(), self.list.len() as u32);
        }
        self.list.push(spec);
        if self.places.is_empty() && self.list.len() > FEW_MAX {
            self.places = (0..)
                .zip(&self.list)
                .map(|(place, spec)| (spec.filter.clone(), place))
                .collect();
        }
        None
    }

    /// Takes one out; the last one moves to its place.
    pub fn remove(&mut self, filter: &TopicFilter) -> Option<FilterSpec> {
        let place = self.place(filter)?;
        let removed = self.list.swap_remove(place);
        if !self.places.is_empty() {
            self.places.remove(filter);
            if let Some(moved) = self.list.get(place) {
                self.places.insert(moved.filter.clone(), place as u32);
            }
        }
        Some(removed)
    }
}

impl Deref for FilterList {
    type Target = [FilterSpec];

    fn deref(&self) -> &[FilterSpec] {
        &self.list
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
        self.list == other.list
    }
}

impl Serialize for FilterList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.list.serialize(serializer)
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
            let mut kept = list.to_vec();
            kept.sort_by(|a, b| a.filter.cmp(&b.filter));
            let mut expected: Vec<_> = model.into_values().collect();
            expected.sort_by(|a, b| a.filter.cmp(&b.filter));
            prop_assert_eq!(kept, expected);
            let again: FilterList = postcard::from_bytes(&postcard::to_allocvec(&list).unwrap()).unwrap();
            prop_assert_eq!(again, list);
        }
    }
}
