//! Which values of a large map changed since the last checkpoint, where each value can carry a mark.
//!
//! Owns: [`Marks`], [`Mark`]. Never: the map, or what a value looks like in a pair. It does what
//! [`Changes`](super::changes::Changes) does without looking a key up for each change: a map of retained values changes
//! as often as messages come. Only keys that went are remembered by name.

use bytes::Bytes;
use rustc_hash::FxHashSet;
use std::hash::Hash;

/// When a living value was noted last: the number of the checkpoint that is to have it; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark(u32);

/// See the module's text. One that was never asked for a checkpoint notes nothing.
#[derive(Clone, Debug)]
pub(crate) struct Marks<K> {
    notes: bool,
    /// What is noted now carries this; what the checkpoint being copied is to have carries one less.
    now: Mark,
    /// Changed since the last freeze, each once.
    list: Vec<K>,
    /// Those of them that went.
    gone: FxHashSet<K>,
    /// Changed before it, and not looked at yet.
    frozen: Vec<K>,
    /// Those of them that had gone before it and are not copied.
    frozen_gone: FxHashSet<K>,
    /// Copied since they were about to change again: as they were, absent when there was none.
    early: Vec<(K, Option<Bytes>)>,
}

impl<K> Default for Marks<K> {
    fn default() -> Marks<K> {
        Marks {
            notes: false,
            now: Mark(2),
            list: Vec::new(),
            gone: FxHashSet::default(),
            frozen: Vec::new(),
            frozen_gone: FxHashSet::default(),
            early: Vec::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> Marks<K> {
    /// Begins to take notes.
    pub(crate) fn begin(&mut self) {
        self.notes = true;
    }

    fn before(&self) -> Mark {
        Mark(self.now.0 - 1)
    }

    /// There is a value now where none was; gives its mark.
    pub(crate) fn came(&mut self, key: &K) -> Mark {
        if !self.notes {
            return Mark::default();
        }
        if !self.gone.is_empty() && self.gone.remove(key) {
            return self.now;
        }
        if !self.frozen_gone.is_empty() && self.frozen_gone.remove(key) {
            self.early.push((key.clone(), None));
        }
        self.list.push(key.clone());
        self.now
    }

    /// The value of a key went; `was` tells it as it was.
    pub(crate) fn went(&mut self, mark: Mark, key: &K, was: impl FnOnce() -> Bytes) {
        if !self.notes {
            return;
        }
        self.replaced(mark, key, was);
        self.gone.insert(key.clone());
    }

    /// The value of a key is another one now; `was` tells the old one. Gives the new one's mark.
    pub(crate) fn replaced(&mut self, mark: Mark, key: &K, was: impl FnOnce() -> Bytes) -> Mark {
        if !self.notes {
            return Mark::default();
        }
        if mark == self.before() {
            self.early.push((key.clone(), Some(was())));
        }
        if mark != self.now {
            self.list.push(key.clone());
        }
        self.now
    }

    /// Begins a checkpoint; the one before has copied everything.
    pub(crate) fn freeze(&mut self) {
        self.frozen = std::mem::take(&mut self.list);
        self.frozen_gone = std::mem::take(&mut self.gone);
        self.now.0 += 1;
    }

    /// What was copied early.
    pub(crate) fn next_early(&mut self) -> Option<(K, Option<Bytes>)> {
        self.early.pop()
    }

    /// The next key to look at: it is copied when [`Marks::copied`] or [`Marks::copied_gone`] says so.
    pub(crate) fn next_key(&mut self) -> Option<K> {
        self.frozen.pop()
    }

    /// Whether a living value is as it was at the freeze and to be copied; it is then.
    pub(crate) fn copied(&self, mark: &mut Mark) -> bool {
        let is = *mark == self.before();
        if is {
            *mark = Mark::default();
        }
        is
    }

    /// Whether a key without a value had none at the freeze, and that is to be copied; it is then.
    pub(crate) fn copied_gone(&mut self, key: &K) -> bool {
        self.frozen_gone.remove(key)
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
    use std::collections::BTreeMap;

    #[derive(Default)]
    struct Marked {
        map: BTreeMap<u8, (Mark, Bytes)>,
        marks: Marks<u8>,
    }

    impl Noted for Marked {
        fn set(&mut self, key: u8, value: Option<Bytes>) {
            let Marked { map, marks } = self;
            match (map.remove(&key), value) {
                (None, None) => {}
                (None, Some(value)) => drop(map.insert(key, (marks.came(&key), value))),
                (Some((mark, old)), None) => marks.went(mark, &key, || old),
                (Some((mark, old)), Some(value)) => {
                    let mark = marks.replaced(mark, &key, || old);
                    map.insert(key, (mark, value));
                }
            }
        }

        fn freeze(&mut self) {
            self.marks.freeze();
        }

        fn next(&mut self) -> Option<(u8, Option<Bytes>)> {
            let Marked { map, marks } = self;
            if let Some(early) = marks.next_early() {
                return Some(early);
            }
            while let Some(key) = marks.next_key() {
                let now = match map.get_mut(&key) {
                    Some((mark, value)) => marks.copied(mark).then(|| Some(value.clone())),
                    None => marks.copied_gone(&key).then_some(None),
                };
                if let Some(value) = now {
                    return Some((key, value));
                }
            }
            None
        }

        fn plain(&self) -> Plain {
            let values = self.map.iter();
            values
                .map(|(key, (_, value))| (*key, value.clone()))
                .collect()
        }
    }

    proptest::proptest! {
        #[test]
        fn deltas_give_the_state_at_each_freeze(steps in steps()) {
            let mut marked = Marked::default();
            marked.marks.begin();
            deltas_give_each_freeze(marked, steps)?;
        }
    }
}
