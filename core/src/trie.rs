//! A set of filters with values, asked by address: which values' filters match?
//!
//! One node per distinct filter prefix. A match walks all prefixes that fit at once, level by level, so
//! each pair of node and level is looked at once: the cost is bounded by levels times matching prefixes,
//! whatever the number of `#` in the filters, and nothing is allocated while few prefixes match.
//!
//! Owns: [`FilterTrie`].
//! Never: what the values mean; removing repeats when several filters of one owner match.
//! Next: `exchange.rs` and `router.rs`, which keep such sets.

use crate::address::{Address, MANY, ONE, TopicFilter, levels};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// Filters with values. `V` says who asked for the filter.
#[derive(Clone, Debug)]
pub struct FilterTrie<V> {
    /// The root is the first; places of freed nodes are in `free`.
    nodes: Vec<Node<V>>,
    free: Vec<u32>,
    len: usize,
}

/// "No such child": the root is nobody's child.
const NONE: u32 = 0;
const ROOT: u32 = 0;

#[derive(Clone, Debug)]
struct Node<V> {
    /// Child by the level `+`.
    one: u32,
    /// Child by the level `#`.
    many: u32,
    named: Named,
    values: SmallVec<[Held<V>; 1]>,
    /// Its level is `#` and another `#` stands before it: only such a node can be entered twice.
    is_nested: bool,
    /// The first level of its filter is a wildcard.
    starts_wild: bool,
}

#[derive(Clone, Debug)]
struct Held<V> {
    value: V,
    hides_system: bool,
}

/// Children by name: a list while few, since most nodes have one.
#[derive(Clone, Debug)]
enum Named {
    Few(SmallVec<[(Box<[u8]>, u32); 1]>),
    Many(FxHashMap<Box<[u8]>, u32>),
}

/// Above so many children they are hashed.
const FEW_MAX: usize = 8;

impl Named {
    fn get(&self, level: &[u8]) -> Option<u32> {
        match self {
            Named::Few(list) => list
                .iter()
                .find(|(name, _)| **name == *level)
                .map(|(_, child)| *child),
            Named::Many(map) => map.get(level).copied(),
        }
    }

    fn insert(&mut self, level: &[u8], child: u32) {
        match self {
            Named::Few(list) if list.len() < FEW_MAX => list.push((level.into(), child)),
            Named::Few(list) => {
                let mut map: FxHashMap<Box<[u8]>, u32> = list.drain(..).collect();
                map.insert(level.into(), child);
                *self = Named::Many(map);
            }
            Named::Many(map) => {
                map.insert(level.into(), child);
            }
        }
    }

    fn remove(&mut self, level: &[u8]) {
        match self {
            Named::Few(list) => list.retain(|(name, _)| **name != *level),
            Named::Many(map) => {
                map.remove(level);
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Named::Few(list) => list.is_empty(),
            Named::Many(map) => map.is_empty(),
        }
    }
}

impl<V> Node<V> {
    fn new() -> Node<V> {
        Node {
            one: NONE,
            many: NONE,
            named: Named::Few(SmallVec::new()),
            values: SmallVec::new(),
            is_nested: false,
            starts_wild: false,
        }
    }

    fn has_children(&self) -> bool {
        self.one != NONE || self.many != NONE || !self.named.is_empty()
    }

    fn child(&self, level: &[u8]) -> Option<u32> {
        let child = match level {
            ONE => self.one,
            MANY => self.many,
            name => return self.named.get(name),
        };
        (child != NONE).then_some(child)
    }
}

impl<V> Default for FilterTrie<V> {
    fn default() -> FilterTrie<V> {
        FilterTrie {
            nodes: vec![Node::new()],
            free: Vec::new(),
            len: 0,
        }
    }
}

impl<V> FilterTrie<V> {
    /// Number of values held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a value under a filter; the same value twice is there twice. With `hides_system`, a filter
    /// whose first level is a wildcard does not match addresses whose first level starts with `$`.
    pub fn insert(&mut self, filter: &TopicFilter, hides_system: bool, value: V) {
        let mut at = ROOT;
        let mut below_many = false;
        let starts_wild = filter.starts_wild();
        for level in levels(&filter.0) {
            let is_many = level == MANY;
            at = match self.node(at).child(level) {
                Some(child) => child,
                None => self.grow(at, level, is_many && below_many, starts_wild),
            };
            below_many |= is_many;
        }
        self.node_mut(at).values.push(Held {
            value,
            hides_system,
        });
        self.len += 1;
    }

    /// Removes the values of exactly this filter that `which` picks; says how many there were.
    pub fn remove(&mut self, filter: &TopicFilter, mut which: impl FnMut(&V) -> bool) -> usize {
        let names: SmallVec<[&[u8]; 16]> = levels(&filter.0).collect();
        let mut path: SmallVec<[u32; 17]> = SmallVec::new();
        let mut at = ROOT;
        path.push(at);
        for level in &names {
            let Some(child) = self.node(at).child(level) else {
                return 0;
            };
            at = child;
            path.push(at);
        }
        let values = &mut self.node_mut(at).values;
        let before = values.len();
        values.retain(|held| !which(&held.value));
        let removed = before - values.len();
        self.len -= removed;
        for (parent, level) in path.iter().zip(&names).rev() {
            let Some(child) = self.node(*parent).child(level) else {
                break;
            };
            if !self.node(child).values.is_empty() || self.node(child).has_children() {
                break;
            }
            self.prune(*parent, level, child);
        }
        removed
    }

    /// The values of exactly this filter.
    pub fn values_mut(&mut self, filter: &TopicFilter) -> impl Iterator<Item = &mut V> {
        let found = levels(&filter.0).try_fold(ROOT, |at, level| self.node(at).child(level));
        let node = found.map(|at| self.node_mut(at));
        node.into_iter()
            .flat_map(|node| node.values.iter_mut().map(|held| &mut held.value))
    }

    /// Calls `found` with each value whose filter matches, once per filter it stands under.
    pub fn visit<'a>(&'a self, address: &Address, found: impl FnMut(&'a V)) {
        let mut walk = Walk {
            trie: self,
            conceal: address.is_system(),
            open: SmallVec::new(),
            entered: Entered::default(),
            found,
        };
        let mut now: Frontier = SmallVec::new();
        let mut next: Frontier = SmallVec::new();
        now.push(ROOT);
        walk.open_from(ROOT);
        for level in levels(&address.0) {
            for at in now.drain(..).chain(walk.open.iter().copied()) {
                let node = self.node(at);
                if node.one != NONE {
                    next.push(node.one);
                }
                if let Some(child) = node.named.get(level) {
                    next.push(child);
                }
            }
            for at in &next {
                walk.open_from(*at);
            }
            std::mem::swap(&mut now, &mut next);
            if now.is_empty() && walk.open.is_empty() {
                return;
            }
        }
        for at in now {
            walk.report(self.node(at));
        }
    }

    fn node(&self, at: u32) -> &Node<V> {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node<V> {
        &mut self.nodes[at as usize]
    }

    fn grow(&mut self, parent: u32, level: &[u8], is_nested: bool, starts_wild: bool) -> u32 {
        let node = Node {
            is_nested,
            starts_wild,
            ..Node::new()
        };
        let child = match self.free.pop() {
            Some(place) => {
                *self.node_mut(place) = node;
                place
            }
            None => {
                self.nodes.push(node);
                // Memory ends long before 2^32 nodes.
                (self.nodes.len() - 1) as u32
            }
        };
        let parent = self.node_mut(parent);
        match level {
            ONE => parent.one = child,
            MANY => parent.many = child,
            name => parent.named.insert(name, child),
        }
        child
    }

    fn prune(&mut self, parent: u32, level: &[u8], child: u32) {
        let parent = self.node_mut(parent);
        match level {
            ONE => parent.one = NONE,
            MANY => parent.many = NONE,
            name => parent.named.remove(name),
        }
        *self.node_mut(child) = Node::new();
        self.free.push(child);
    }
}

/// Nodes reached by the levels so far.
type Frontier = SmallVec<[u32; 32]>;

/// One match in progress.
struct Walk<'a, V, F> {
    trie: &'a FilterTrie<V>,
    /// The address is one that leading wildcards may hide.
    conceal: bool,
    /// `#` nodes reached: each stays, since it takes any number of levels. Only those with children.
    open: Frontier,
    entered: Entered,
    found: F,
}

impl<'a, V, F: FnMut(&'a V)> Walk<'a, V, F> {
    /// Enters the `#` below a node just reached, and the `#` below that one, since `#` takes no level
    /// too. What ends in a `#` matches whatever follows, so it is reported at once.
    fn open_from(&mut self, at: u32) {
        let mut many = self.trie.node(at).many;
        while many != NONE {
            let node = self.trie.node(many);
            if node.is_nested && !self.entered.insert(many) {
                return;
            }
            self.report(node);
            if node.has_children() {
                self.open.push(many);
            }
            many = node.many;
        }
    }

    fn report(&mut self, node: &'a Node<V>) {
        let conceal = self.conceal && node.starts_wild;
        for held in &node.values {
            if !(conceal && held.hides_system) {
                (self.found)(&held.value);
            }
        }
    }
}

/// Nested `#` nodes already entered: hashed once they are more than a few.
#[derive(Default)]
struct Entered {
    few: SmallVec<[u32; 16]>,
    more: FxHashSet<u32>,
}

impl Entered {
    /// Whether it was not there yet.
    fn insert(&mut self, at: u32) -> bool {
        if self.few.contains(&at) {
            return false;
        }
        if self.few.len() < self.few.inline_size() {
            self.few.push(at);
            return true;
        }
        self.more.insert(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::LEVELS_MAX;
    use proptest::prelude::*;

    fn filter(text: &str) -> TopicFilter {
        text.parse().unwrap()
    }

    fn found(trie: &FilterTrie<usize>, address: &str) -> Vec<usize> {
        let mut all = Vec::new();
        trie.visit(&address.parse().unwrap(), |value| all.push(*value));
        all.sort_unstable();
        all
    }

    fn level() -> impl Strategy<Value = &'static str> {
        prop_oneof![3 => Just("a"), 2 => Just("b"), 1 => Just(""), 1 => Just("$s")]
    }

    fn wild() -> impl Strategy<Value = &'static str> {
        prop_oneof![2 => level(), 1 => Just("+"), 1 => Just("#")]
    }

    fn joined<S: Strategy<Value = &'static str>>(level: S) -> impl Strategy<Value = String> {
        proptest::collection::vec(level, 0..7).prop_map(|levels| levels.join("/"))
    }

    proptest! {
        #[test]
        fn finds_exactly_the_filters_that_match(
            filters in proptest::collection::vec((joined(wild()), any::<bool>()), 0..40),
            removed in proptest::collection::vec(any::<bool>(), 40),
            address in joined(level()),
        ) {
            let mut trie = FilterTrie::default();
            for (number, (text, hides)) in filters.iter().enumerate() {
                trie.insert(&filter(text), *hides, number);
            }
            for (number, (text, _)) in filters.iter().enumerate().filter(|(n, _)| removed[*n]) {
                prop_assert_eq!(trie.remove(&filter(text), |value| *value == number), 1);
            }
            let parsed: Address = address.parse().unwrap();
            let expected: Vec<usize> = filters
                .iter()
                .enumerate()
                .filter(|(number, (text, hides))| {
                    let filter = filter(text);
                    let hidden = *hides && filter.starts_wild() && parsed.is_system();
                    !removed[*number] && filter.matches(&parsed) && !hidden
                })
                .map(|(number, _)| number)
                .collect();
            prop_assert_eq!(trie.len(), removed.iter().take(filters.len()).filter(|r| !**r).count());
            prop_assert_eq!(found(&trie, &address), expected);
        }
    }

    #[test]
    fn nothing_is_left_when_all_filters_are_gone() {
        let mut trie = FilterTrie::default();
        let all: Vec<String> = (0..50).map(|n| format!("plant/{n}/+/#")).collect();
        for (number, text) in all.iter().enumerate() {
            trie.insert(&filter(text), true, number);
        }
        let grown = trie.nodes.len();
        for (number, text) in all.iter().enumerate() {
            assert_eq!(trie.remove(&filter(text), |value| *value == number), 1);
        }
        assert!(trie.is_empty() && !trie.node(ROOT).has_children());
        assert_eq!(trie.free.len(), grown - 1);
        for (number, text) in all.iter().enumerate() {
            trie.insert(&filter(text), true, number);
        }
        assert_eq!(trie.nodes.len(), grown);
        assert_eq!(found(&trie, "plant/7/x/y/z"), [7]);
    }

    #[test]
    fn removing_what_is_not_there_removes_nothing() {
        let mut trie = FilterTrie::default();
        trie.insert(&filter("a/b/c"), false, 1);
        assert_eq!(trie.remove(&filter("a/b"), |_| true), 0);
        assert_eq!(trie.remove(&filter("a/x"), |_| true), 0);
        assert_eq!(trie.remove(&filter("a/b/c"), |value| *value == 2), 0);
        assert_eq!(found(&trie, "a/b/c"), [1]);
    }

    #[test]
    fn values_of_one_filter_can_be_changed() {
        let mut trie = FilterTrie::default();
        trie.insert(&filter("a/+"), false, 1);
        trie.insert(&filter("a/b"), false, 5);
        trie.values_mut(&filter("a/+"))
            .for_each(|value| *value += 1);
        assert_eq!(trie.values_mut(&filter("a")).count(), 0);
        assert_eq!(found(&trie, "a/b"), [2, 5]);
    }

    /// Filters such as `#/a/#/a/...` make a naive matcher try every way to share out the levels; here
    /// the deepest such filters and address are a few thousand steps, each node once per level.
    #[test]
    fn many_wildcards_do_not_multiply() {
        let mut trie = FilterTrie::default();
        let pairs = LEVELS_MAX / 2;
        for count in 1..=pairs {
            trie.insert(&filter(&vec!["#/a"; count].join("/")), false, count);
            trie.insert(&filter(&vec!["#/+"; count].join("/")), false, 1000 + count);
        }
        let mut calls = 0;
        let address: Address = vec!["a"; LEVELS_MAX].join("/").parse().unwrap();
        trie.visit(&address, |_| calls += 1);
        assert_eq!(calls, 2 * pairs);
    }
}
