//! Which values of a map changed since the last checkpoint, and how they were when it began.
//!
//! Owns: [`Changes`]. Never: the map, or what a value looks like in a pair.
//! Next: `stream/index.rs`, which does the same for streams.

use bytes::Bytes;
use rustc_hash::FxHashSet;
use std::hash::Hash;

/// See the module's text. One that was never asked for a checkpoint notes nothing.
#[derive(Clone, Debug)]
pub(crate) struct Changes<K> {
    notes: bool,
    /// Changed since the last freeze, each once.
    list: Vec<K>,
    listed: FxHashSet<K>,
    /// Changed before it, and not copied.
    frozen: Vec<K>,
    uncopied: FxHashSet<K>,
    /// Copied since they were about to change again: as they were, absent when there was none.
    early: Vec<(K, Option<Bytes>)>,
}

impl<K> Default for Changes<K> {
    fn default() -> Changes<K> {
        Changes {
            notes: false,
            list: Vec::new(),
            listed: FxHashSet::default(),
            frozen: Vec::new(),
            uncopied: FxHashSet::default(),
            early: Vec::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> Changes<K> {
    /// Begins to take notes.
    pub(crate) fn begin(&mut self) {
        self.notes = true;
    }

    /// The value of a key is about to change; `now` tells it as it is.
    pub(crate) fn touch(&mut self, key: &K, now: impl FnOnce() -> Option<Bytes>) {
        if !self.notes {
            return;
        }
        if !self.uncopied.is_empty() && self.uncopied.remove(key) {
            self.early.push((key.clone(), now()));
        }
        if self.listed.insert(key.clone()) {
            self.list.push(key.clone());
        }
    }

    /// Begins a checkpoint.
    pub(crate) fn freeze(&mut self) {
        self.frozen = std::mem::take(&mut self.list);
        self.uncopied = std::mem::take(&mut self.listed);
    }

    /// The next key to be copied, with its value at the freeze; `now` tells a value as it is.
    pub(crate) fn next(
        &mut self,
        now: impl FnOnce(&K) -> Option<Bytes>,
    ) -> Option<(K, Option<Bytes>)> {
        if let Some(early) = self.early.pop() {
            return Some(early);
        }
        while let Some(key) = self.frozen.pop() {
            if self.uncopied.remove(&key) {
                let value = now(&key);
                return Some((key, value));
            }
        }
        None
    }

    /// How many changed since the last freeze.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::checkpoint::noted::{Noted, Plain, deltas_give_each_freeze, steps};

    #[derive(Default)]
    struct Changing {
        map: Plain,
        changes: Changes<u8>,
    }

    impl Noted for Changing {
        fn set(&mut self, key: u8, value: Option<Bytes>) {
            let Changing { map, changes } = self;
            changes.touch(&key, || map.get(&key).cloned());
            match value {
                Some(value) => drop(map.insert(key, value)),
                None => drop(map.remove(&key)),
            }
        }

        fn freeze(&mut self) {
            self.changes.freeze();
        }

        fn next(&mut self) -> Option<(u8, Option<Bytes>)> {
            self.changes.next(|key| self.map.get(key).cloned())
        }

        fn plain(&self) -> Plain {
            self.map.clone()
        }
    }

    proptest::proptest! {
        #[test]
        fn deltas_give_the_state_at_each_freeze(steps in steps()) {
            let mut changing = Changing::default();
            changing.changes.begin();
            deltas_give_each_freeze(changing, steps)?;
        }
    }
}
