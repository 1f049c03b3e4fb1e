//! States against plain lists, and what long-held messages cost.

use super::super::tests::stream;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    Hold(u64),
    Release(u64),
    Leave(u64),
    Aside(u64),
    Recall,
    Remove(u64, u64),
    /// Settled at once: gone, or leaving.
    Settle(u64, u64, bool),
    Delivered(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u64..400).prop_map(Step::Push),
        3 => (0u64..900).prop_map(Step::Hold),
        2 => (0u64..900).prop_map(Step::Release),
        2 => (0u64..900).prop_map(Step::Leave),
        1 => (0u64..900).prop_map(Step::Aside),
        1 => Just(Step::Recall),
        4 => (0u64..900, 0u64..500).prop_map(|(first, more)| Step::Remove(first, more)),
        2 => (0u64..900, 0u64..500, any::<bool>()).prop_map(|(first, more, gone)| Step::Settle(first, first + more, gone)),
        1 => (0u64..900).prop_map(Step::Delivered),
    ]
}

/// State and attempts of offsets that are not gone; what is waiting is in none.
#[derive(Default)]
struct Plain {
    cursor: u64,
    end: u64,
    kept: BTreeMap<u64, Option<(SlotState, u32)>>,
    aside: Vec<u64>,
}

impl Plain {
    fn reach(&mut self, cursor: u64, attempts: u32) {
        for at in self.cursor..cursor {
            if let Some(kept) = self.kept.get_mut(&at) {
                *kept = Some((SlotState::Ready, attempts));
            }
        }
        self.cursor = self.cursor.max(cursor);
    }

    fn count(&self, of: impl Fn(SlotState) -> bool) -> u64 {
        let kept = self.kept.values();
        kept.filter(|kept| of(kept.map_or(SlotState::Ready, |kept| kept.0)))
            .count() as u64
    }
}

proptest! {
    #[test]
    fn states_are_those_of_plain_lists(steps in proptest::collection::vec(step(), 1..80)) {
        let mut stream = stream(0);
        let mut plain = Plain::default();
        for step in steps {
            match step {
                Step::Push(count) => {
                    for mut entry in super::super::tests::entries(count) {
                        entry.body.0 = plain.end;
                        stream.push(entry);
                        plain.kept.insert(plain.end, None);
                        plain.end += 1;
                    }
                }
                Step::Hold(at) => {
                    let ready = matches!(plain.kept.get(&at), Some(None | Some((SlotState::Ready, _))));
                    if ready {
                        plain.reach(at + 1, 0);
                        let attempts = plain.kept[&at].map_or(0, |kept| kept.1) + 1;
                        plain.aside.retain(|aside| *aside != at);
                        prop_assert_eq!(stream.hold(at, 7), attempts);
                        plain.kept.insert(at, Some((SlotState::Held(7), attempts)));
                    }
                }
                Step::Release(at) => {
                    stream.release(at);
                    if let Some(Some((state @ SlotState::Held(_), _))) = plain.kept.get_mut(&at) {
                        *state = SlotState::Ready;
                    }
                }
                Step::Leave(at) => {
                    stream.leave(at);
                    if plain.kept.contains_key(&at) {
                        plain.reach(at + 1, 0);
                        plain.aside.retain(|aside| *aside != at);
                        let attempts = plain.kept[&at].map_or(0, |kept| kept.1);
                        plain.kept.insert(at, Some((SlotState::Leaving, attempts)));
                    }
                }
                Step::Aside(at) => {
                    let ready = matches!(plain.kept.get(&at), Some(None | Some((SlotState::Ready, _))));
                    if ready && !plain.aside.contains(&at) {
                        stream.set_aside(at);
                        plain.reach(at + 1, 0);
                        plain.aside.push(at);
                    }
                }
                Step::Recall => {
                    stream.recall_aside();
                    plain.aside.clear();
                }
                Step::Remove(first, more) => {
                    let gone: Vec<u64> = plain.kept.range(first..=first + more).map(|(at, _)| *at).collect();
                    let removed = stream.remove_ranges(&[(Offset(first), Offset(first + more))], |_| {});
                    prop_assert_eq!(removed, gone.len() as u64);
                    if let Some(last) = gone.last() {
                        plain.reach(last + 1, 0);
                    }
                    plain.kept.retain(|at, _| !gone.contains(at));
                    plain.aside.retain(|at| !gone.contains(at));
                }
                Step::Settle(first, last, goes) => {
                    let held = plain.kept.range_mut(first..=last);
                    let held = held.filter(|(_, kept)| matches!(kept, Some((SlotState::Held(7), _))));
                    let held: Vec<u64> = held.map(|(at, kept)| {
                        *kept = kept.map(|kept| (SlotState::Leaving, kept.1));
                        *at
                    }).collect();
                    let mut left = Vec::new();
                    let count = match goes {
                        true => stream.remove_held((first, last), 7),
                        false => stream.leave_held((first, last), 7, &mut left),
                    };
                    prop_assert_eq!(count, held.len() as u64);
                    match goes {
                        true => plain.kept.retain(|at, _| !held.contains(at)),
                        false => {
                            let left: Vec<u64> = left.iter().flat_map(|(first, last)| first.0..=last.0).collect();
                            prop_assert_eq!(left, held);
                        }
                    }
                }
                Step::Delivered(until) => {
                    stream.reach_delivered(until);
                    plain.reach(until.min(plain.end), 1);
                }
            }
            let ready = plain.count(|state| state == SlotState::Ready);
            let held = plain.count(|state| matches!(state, SlotState::Held(_)));
            prop_assert_eq!((stream.ready(), stream.held()), (ready, held));
            prop_assert_eq!((stream.cursor(), stream.end()), (plain.cursor, plain.end));
            prop_assert_eq!(stream.kept().entries, plain.kept.len() as u64);
            prop_assert_eq!(stream.bytes(), (ready + held) * 10);
            prop_assert_eq!(stream.ready_bytes(), ready * 5);
            let kept: Vec<u64> = stream.kept_offsets().collect();
            prop_assert_eq!(&kept, &plain.kept.keys().copied().collect::<Vec<_>>());
            prop_assert_eq!(stream.base, kept.first().copied().unwrap_or(plain.end));
            let mut next = plain.kept.iter().filter(|(at, kept)| {
                kept.is_none_or(|kept| kept.0 == SlotState::Ready) && !plain.aside.contains(at)
            });
            prop_assert_eq!(stream.next(), next.next().map(|(at, _)| *at));
            for (at, kept) in &plain.kept {
                prop_assert_eq!(stream.state(*at), kept.map(|kept| kept.0));
                prop_assert_eq!(stream.attempts(*at), kept.map_or(0, |kept| kept.1));
                prop_assert_eq!(stream.entry(*at).map(|entry| entry.body.0), Some(*at));
            }
            prop_assert!(stream.chunks.len() <= kept.iter().map(|at| at / 255).collect::<std::collections::BTreeSet<_>>().len() + 1);
        }
    }
}

/// One message that stays costs one chunk, however much goes past it.
#[test]
fn what_flows_past_one_held_message_costs_nothing() {
    let mut stream = stream(1);
    stream.hold(0, 1);
    for at in 1..200_000 {
        for entry in super::super::tests::entries(1) {
            stream.push(entry);
        }
        stream.hold(at, 2);
        stream.remove(at);
    }
    assert!(stream.chunks.len() <= 2 && stream.returned.is_empty());
    assert_eq!((stream.base, stream.kept().entries), (0, 1));
    stream.remove(0);
    assert_eq!((stream.base, stream.chunks.len()), (200_000, 1));
}
