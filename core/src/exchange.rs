//! How one exchange picks its ends: direct, fanout, topic and headers, as pure evaluation.
//!
//! Owns: [`Table`], the bindings of one exchange indexed for its kind, and [`Wanted`], one headers
//! binding.
//! Never: names, existence or rights (`meta.rs` refuses those before), removing repeats when several
//! bindings lead to one end (`router.rs`).
//! Next: `router.rs`, which asks a table once per address and remembers the answer.

use crate::address::{Address, TopicFilter};
use crate::error::{ErrorKind, Refusal};
use crate::gateway::ExchangeKind;
use crate::meta::arguments::{Arguments, equivalent};
use crate::meta::{BindingId, Target};
use crate::properties::{Properties, Value};
use crate::trie::FilterTrie;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// Argument of a headers binding that says how its other arguments combine.
pub const MATCH_ARGUMENT: &[u8] = b"x-match";
/// Arguments of this prefix are wanted headers only where the binding says so.
const QUIET_PREFIX: &[u8] = b"x-";

/// The end of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Which binding.
    pub binding: BindingId,
    /// Where it leads.
    pub target: Target,
}

/// The bindings of one exchange, indexed for its kind.
#[derive(Clone, Debug)]
pub enum Table {
    /// By equal key.
    Direct(FxHashMap<Bytes, SmallVec<[Bound; 1]>>),
    /// All of them, whatever their keys.
    Fanout(Vec<Bound>),
    /// By filter. A leading wildcard hides nothing here.
    Topic(FilterTrie<Bound>),
    /// By headers; the key says nothing.
    Headers(Vec<(Arc<Wanted>, Bound)>),
}

impl Table {
    /// An empty table.
    pub fn new(kind: ExchangeKind) -> Table {
        match kind {
            ExchangeKind::Direct => Table::Direct(FxHashMap::default()),
            ExchangeKind::Fanout => Table::Fanout(Vec::new()),
            ExchangeKind::Topic => Table::Topic(FilterTrie::default()),
            ExchangeKind::Headers => Table::Headers(Vec::new()),
        }
    }

    /// Adds a binding; the caller sees to it that there is one per identity.
    ///
    /// # Errors
    /// `BadRequest` when a headers binding does not say validly how to match.
    pub fn add(
        &mut self,
        filter: &TopicFilter,
        arguments: &Arguments,
        bound: Bound,
    ) -> Result<(), Refusal> {
        match self {
            Table::Direct(keys) => keys.entry(filter.0.clone()).or_default().push(bound),
            Table::Fanout(all) => all.push(bound),
            Table::Topic(filters) => filters.insert(filter, false, bound),
            Table::Headers(all) => all.push((Arc::new(Wanted::new(arguments)?), bound)),
        }
        Ok(())
    }

    /// Removes a binding that was added with this filter.
    pub fn remove(&mut self, filter: &TopicFilter, gone: Bound) {
        match self {
            Table::Direct(keys) => {
                if let Some(all) = keys.get_mut(&filter.0) {
                    all.retain(|bound| *bound != gone);
                    if all.is_empty() {
                        keys.remove(&filter.0);
                    }
                }
            }
            Table::Fanout(all) => all.retain(|bound| *bound != gone),
            Table::Topic(filters) => {
                filters.remove(filter, |bound| *bound == gone);
            }
            Table::Headers(all) => all.retain(|(_, bound)| *bound != gone),
        }
    }

    /// Calls `found` with each end that a message of this address goes to, once per binding. A
    /// headers exchange cannot say so by address: it names every end with the headers wanted for it; the others
    /// name ends alone.
    pub fn visit<'a>(
        &'a self,
        address: &Address,
        mut found: impl FnMut(Target, Option<&'a Arc<Wanted>>),
    ) {
        match self {
            Table::Direct(keys) => {
                for bound in keys.get(&address.0).into_iter().flatten() {
                    found(bound.target, None);
                }
            }
            Table::Fanout(all) => all.iter().for_each(|bound| found(bound.target, None)),
            Table::Topic(filters) => filters.visit(address, |bound| found(bound.target, None)),
            Table::Headers(all) => {
                for (wanted, bound) in all {
                    found(bound.target, Some(wanted));
                }
            }
        }
    }
}

/// The headers that a binding wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// One of them is enough; else all are needed.
    any: bool,
    headers: Vec<(Bytes, Value)>,
}

impl Wanted {
    /// Reads the arguments of a binding. `x-match` is `all` (also when absent), `any`, or one of these
    /// with `-with-x`, where other arguments that start with `x-` are wanted headers too.
    ///
    /// # Errors
    /// `BadRequest` when `x-match` is anything else.
    pub fn new(arguments: &Arguments) -> Result<Wanted, Refusal> {
        let mode: &[u8] = match arguments.named(MATCH_ARGUMENT) {
            None => b"all",
            Some(Value::Text(text) | Value::ShortText(text)) => text,
            Some(_) => b"",
        };
        let (any, with_x) = match mode {
            b"all" => (false, false),
            b"any" => (true, false),
            b"all-with-x" => (false, true),
            b"any-with-x" => (true, true),
            _ => {
                return Err(Refusal::new(
                    ErrorKind::BadRequest,
                    "argument 'x-match' must be 'all', 'any', 'all-with-x' or 'any-with-x'",
                ));
            }
        };
        let headers = arguments.as_slice().iter().filter(|(name, _)| {
            name != MATCH_ARGUMENT && (with_x || !name.starts_with(QUIET_PREFIX))
        });
        Ok(Wanted {
            any,
            headers: headers.cloned().collect(),
        })
    }

    /// Whether a message with these properties is wanted. No header wanted at all: `all` takes every
    /// message, `any` none. A wanted header without a value asks only that it is there. Of a header
    /// that a message repeats, one that fits is enough.
    pub fn matches(&self, properties: &Properties) -> bool {
        let met = |(name, wanted): &(Bytes, Value)| {
            let mut same_name = properties.headers.iter().filter(|(known, _)| known == name);
            same_name.any(|(_, value)| *wanted == Value::Void || equivalent(wanted, value))
        };
        if self.any {
            self.headers.iter().any(met)
        } else {
            self.headers.iter().all(met)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::StreamId;

    fn text(text: &'static str) -> Value {
        Value::Text(Bytes::from_static(text.as_bytes()))
    }

    fn pairs(pairs: &[(&'static str, Value)]) -> Vec<(Bytes, Value)> {
        let owned = |(name, value): &(&'static str, Value)| {
            (Bytes::from_static(name.as_bytes()), value.clone())
        };
        pairs.iter().map(owned).collect()
    }

    fn check(wanted: &[(&'static str, Value)], headers: &[(&'static str, Value)], expected: bool) {
        let arguments = Arguments::new(pairs(wanted)).unwrap();
        let properties = Properties {
            headers: pairs(headers),
            ..Properties::default()
        };
        let matched = Wanted::new(&arguments).unwrap().matches(&properties);
        assert_eq!(matched, expected, "{wanted:?} with {headers:?}");
    }

    #[test]
    fn all_needs_every_header_and_any_needs_one() {
        let headers = [("a", text("1")), ("b", text("2"))];
        check(&[("a", text("1")), ("b", text("2"))], &headers, true);
        check(&[("a", text("1")), ("c", text("3"))], &headers, false);
        check(
            &[("x-match", text("all")), ("a", text("1"))],
            &headers,
            true,
        );
        check(
            &[("x-match", text("any")), ("a", text("9")), ("b", text("2"))],
            &headers,
            true,
        );
        check(
            &[("x-match", text("any")), ("a", text("9"))],
            &headers,
            false,
        );
    }

    #[test]
    fn without_wanted_headers_all_takes_everything_and_any_nothing() {
        check(&[], &[], true);
        check(&[("x-match", text("all"))], &[("a", text("1"))], true);
        check(&[("x-match", text("any"))], &[("a", text("1"))], false);
    }

    #[test]
    fn a_wanted_header_without_a_value_asks_that_it_is_there() {
        check(&[("a", Value::Void)], &[("a", Value::Int(7, 32))], true);
        check(&[("a", Value::Void)], &[("b", Value::Int(7, 32))], false);
    }

    #[test]
    fn the_kind_of_value_counts_and_the_width_does_not() {
        check(&[("a", text("1"))], &[("a", Value::Int(1, 32))], false);
        check(
            &[("a", Value::Int(1, 8))],
            &[("a", Value::UInt(1, 64))],
            true,
        );
        check(
            &[("a", Value::Bool(true))],
            &[("a", Value::Int(1, 32))],
            false,
        );
    }

    #[test]
    fn quiet_headers_count_only_where_asked() {
        let headers = [("a", text("1")), ("x-b", text("2"))];
        check(&[("a", text("1")), ("x-b", text("9"))], &headers, true);
        check(
            &[("x-match", text("all-with-x")), ("x-b", text("9"))],
            &headers,
            false,
        );
        check(
            &[("x-match", text("all-with-x")), ("x-b", text("2"))],
            &headers,
            true,
        );
        check(
            &[("x-match", text("any")), ("x-b", text("2"))],
            &headers,
            false,
        );
        check(
            &[("x-match", text("any-with-x")), ("x-b", text("2"))],
            &headers,
            true,
        );
    }

    #[test]
    fn of_a_repeated_header_one_that_fits_is_enough() {
        check(
            &[("a", text("2"))],
            &[("a", text("1")), ("a", text("2"))],
            true,
        );
    }

    #[test]
    fn an_unknown_way_to_match_is_refused() {
        for wrong in [text("some"), Value::Int(1, 32), Value::Void] {
            let arguments = Arguments::new(pairs(&[("x-match", wrong)])).unwrap();
            assert_eq!(
                Wanted::new(&arguments).unwrap_err().kind,
                ErrorKind::BadRequest
            );
        }
    }

    /// Streams found for an address, with bindings given as key and stream.
    fn routed(kind: ExchangeKind, bindings: &[(&str, u64)], address: &str) -> Vec<u64> {
        let mut table = Table::new(kind);
        for (number, (key, stream)) in bindings.iter().enumerate() {
            let bound = Bound {
                binding: BindingId(number as u64),
                target: Target::Stream(StreamId(*stream)),
            };
            let filter = key.parse().unwrap();
            table.add(&filter, &Arguments::default(), bound).unwrap();
        }
        let mut found = Vec::new();
        table.visit(&address.parse().unwrap(), |target, _| match target {
            Target::Stream(stream) => found.push(stream.0),
            Target::Exchange(other) => panic!("leads to exchange {other}"),
        });
        found.sort_unstable();
        found
    }

    #[test]
    fn each_kind_picks_by_its_own_rule() {
        let bindings = [("a/b", 1), ("a/+", 2), ("#", 3)];
        assert_eq!(routed(ExchangeKind::Direct, &bindings, "a/b"), [1]);
        assert!(routed(ExchangeKind::Direct, &bindings, "a").is_empty());
        assert_eq!(routed(ExchangeKind::Fanout, &bindings, "x"), [1, 2, 3]);
        assert_eq!(routed(ExchangeKind::Topic, &bindings, "a/b"), [1, 2, 3]);
        assert_eq!(routed(ExchangeKind::Topic, &bindings, "$x/y"), [3]);
    }

    #[test]
    fn topic_wildcards_take_levels_as_the_corner_cases_say() {
        let one = |key: &str, address: &str| {
            !routed(ExchangeKind::Topic, &[(key, 1)], address).is_empty()
        };
        assert!(one("a/#/b", "a/b") && one("a/#/b", "a/x/y/b") && !one("a/#/b", "a/x"));
        assert!(!one("+", "") && one("#", "") && one("#/#", "") && one("#/#", "a"));
        assert!(one("+", "a") && one("+/+", "/") && !one("+", "a/b"));
    }

    #[test]
    fn a_removed_binding_leads_nowhere() {
        for kind in [
            ExchangeKind::Direct,
            ExchangeKind::Fanout,
            ExchangeKind::Topic,
            ExchangeKind::Headers,
        ] {
            let mut table = Table::new(kind);
            let filter: TopicFilter = "a".parse().unwrap();
            let [first, second] = [1, 2].map(|number| Bound {
                binding: BindingId(number),
                target: Target::Stream(StreamId(9)),
            });
            for bound in [first, second] {
                table.add(&filter, &Arguments::default(), bound).unwrap();
            }
            let count = |table: &Table| {
                let mut count = 0;
                table.visit(&"a".parse().unwrap(), |_, _| count += 1);
                count
            };
            table.remove(&filter, first);
            assert_eq!(count(&table), 1, "{kind:?}");
            table.remove(&filter, second);
            assert_eq!(count(&table), 0, "{kind:?}");
        }
    }
}
