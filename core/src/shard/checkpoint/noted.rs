//! What every way to note changes must do: deltas, copied while all goes on, give the state at each freeze.
//!
//! Owns the test that [`Changes`](super::changes::Changes) and [`Marks`](super::marks::Marks) have in common; never one
//! of the two. Read next: [`super::changes`].

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::collections::BTreeMap;

pub(super) type Plain = BTreeMap<u8, Bytes>;
pub(super) type Step = (u8, Option<u8>);

/// A map whose changes are noted.
pub(super) trait Noted {
    fn set(&mut self, key: u8, value: Option<Bytes>);
    fn freeze(&mut self);
    /// What is to be copied next.
    fn next(&mut self) -> Option<(u8, Option<Bytes>)>;
    fn plain(&self) -> Plain;
}

/// Keys below 10 with the value they get; 10 begins a checkpoint, or copies one key for it as 11 does.
pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((0u8..12, proptest::option::of(any::<u8>())), 0..200)
}

pub(super) fn deltas_give_each_freeze(
    mut noted: impl Noted,
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let (mut folded, mut frozen): (Plain, Option<Plain>) = (Plain::new(), None);
    let mut seen = Vec::new();
    for (key, value) in steps {
        match (key, &frozen) {
            (10, None) => {
                noted.freeze();
                frozen = Some(noted.plain());
                seen.clear();
            }
            (10 | 11, Some(expected)) => match noted.next() {
                Some((key, value)) => {
                    prop_assert!(!seen.contains(&key), "each once");
                    seen.push(key);
                    match value {
                        Some(value) => drop(folded.insert(key, value)),
                        None => drop(folded.remove(&key)),
                    }
                }
                None => {
                    prop_assert_eq!(&folded, expected);
                    frozen = None;
                }
            },
            (key, _) => noted.set(key, value.map(|value| Bytes::from(vec![value]))),
        }
    }
    Ok(())
}
