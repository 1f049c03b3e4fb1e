//! What a key-shared stream hands to whom.

use super::*;
use proptest::prelude::*;

fn key(name: &str) -> KeyHash {
    KeyHash::of(name.as_bytes())
}

#[test]
fn a_key_in_flight_stays_with_its_holder_until_it_is_settled() {
    let mut keyed = Keyed::default();
    keyed.set_members(vec![1]);
    keyed.know(0, key("a"));
    keyed.hold(0, 1);
    keyed.wait(1, key("a"));
    // So many others that one of them wins the key.
    keyed.set_members((1..50).collect());
    assert_eq!(keyed.target(key("a")), Target::Reader(1));
    assert_eq!(keyed.first_for(1), Some((1, key("a"))));
    keyed.leave(0, 1);
    let Target::Reader(winner) = keyed.target(key("a")) else {
        panic!("somebody wins it");
    };
    assert_ne!(winner, 1);
    assert_eq!(
        (keyed.first_for(1), keyed.first_for(winner)),
        (None, Some((1, key("a"))))
    );
}

#[test]
fn keys_move_only_to_who_joins_and_from_who_leaves() {
    let keys: Vec<KeyHash> = (0..2000).map(|n| key(&format!("k{n}"))).collect();
    let mut keyed = Keyed::default();
    keyed.set_members((1..=10).collect());
    let owners =
        |keyed: &Keyed| -> Vec<Target> { keys.iter().map(|key| keyed.target(*key)).collect() };
    let ten = owners(&keyed);
    keyed.set_members((1..=11).collect());
    let eleven = owners(&keyed);
    let moved = ten.iter().zip(&eleven).filter(|(a, b)| a != b);
    assert!(moved.clone().all(|(_, to)| *to == Target::Reader(11)));
    assert!((100..300).contains(&moved.count()), "about an eleventh");
    keyed.set_members((1..=10).collect());
    assert_eq!(owners(&keyed), ten);
    keyed.set_members(vec![1, 2, 3, 4, 5, 6, 8, 9, 10]);
    for (before, after) in ten.iter().zip(owners(&keyed)) {
        assert!(*before == after || *before == Target::Reader(7));
    }
}

#[test]
fn released_ones_go_before_those_that_wait() {
    let mut keyed = Keyed::default();
    keyed.set_members(vec![1]);
    for offset in 0..3 {
        keyed.know(offset, key("a"));
        keyed.hold(offset, 1);
    }
    keyed.wait(3, key("a"));
    keyed.wait(4, key("b"));
    assert!(keyed.release(2, 1) && keyed.release(0, 1));
    assert_eq!(keyed.first_for(1), Some((0, key("a"))));
    keyed.hold(0, 1);
    assert_eq!(keyed.first_for(1), Some((2, key("a"))));
    assert_eq!((keyed.waiting(), keyed.first()), (3, Some(2)));
}

#[test]
fn a_key_that_two_hold_from_before_waits_until_one_has_settled() {
    let mut keyed = Keyed::new([(0, 1), (1, 2)]);
    keyed.set_members(vec![1, 2]);
    for (offset, _) in keyed.unread() {
        keyed.read(offset, key("a"));
    }
    keyed.wait(2, key("a"));
    assert_eq!(keyed.target(key("a")), Target::Nobody);
    keyed.leave(1, 2);
    assert_eq!(keyed.target(key("a")), Target::Reader(1));
    assert_eq!(keyed.first_for(1), Some((2, key("a"))));
}

#[test]
fn a_holder_that_gets_nothing_more_keeps_its_keys_until_they_are_settled() {
    let mut keyed = Keyed::default();
    keyed.set_members(vec![1, 2]);
    keyed.know(0, key("a"));
    keyed.hold(0, 1);
    keyed.wait(1, key("a"));
    keyed.set_members(vec![2]);
    assert_eq!(keyed.target(key("a")), Target::Nobody);
    assert!(!keyed.is_free_for(key("a"), 2) && keyed.first_free(2).is_none());
    assert!(keyed.release(0, 1));
    assert_eq!(keyed.first_for(2), Some((0, key("a"))));
}

#[derive(Clone, Debug)]
enum Step {
    Members(Vec<u32>),
    Wait(u8),
    Serve(u32),
    Leave(prop::sample::Index),
    Release(prop::sample::Index),
    Forget(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::collection::btree_set(1u32..6, 0..4)
            .prop_map(|set| Step::Members(set.into_iter().collect())),
        (0u8..4).prop_map(Step::Wait),
        (1u32..6).prop_map(Step::Serve),
        any::<prop::sample::Index>().prop_map(Step::Leave),
        any::<prop::sample::Index>().prop_map(Step::Release),
        any::<prop::sample::Index>().prop_map(Step::Forget),
    ]
}

proptest! {
    /// Whatever comes: one holder a key, lanes serve in order, and what is done with leaves nothing behind.
    #[test]
    fn the_books_agree_with_a_plain_list(steps in prop::collection::vec(step(), 1..80)) {
        let mut keyed = Keyed::default();
        // Offset -> key, holder (0: it waits).
        let mut plain: std::collections::BTreeMap<u64, (u8, u32)> = Default::default();
        let mut end = 0;
        for step in steps {
            match step {
                Step::Members(members) => keyed.set_members(members),
                Step::Wait(name) => {
                    keyed.wait(end, key(&name.to_string()));
                    plain.insert(end, (name, 0));
                    end += 1;
                }
                Step::Serve(number) => {
                    if let Some((offset, _)) = keyed.first_for(number) {
                        let name = plain[&offset].0;
                        let mut same = plain.iter().filter(|(_, (other, _))| *other == name);
                        prop_assert!(same.clone().all(|(_, (_, by))| *by == 0 || *by == number));
                        prop_assert!(same.all(|(at, (_, by))| *by != 0 || *at >= offset));
                        keyed.hold(offset, number);
                        plain.get_mut(&offset).unwrap().1 = number;
                    }
                }
                Step::Leave(_) | Step::Release(_) | Step::Forget(_) if plain.is_empty() => {}
                Step::Leave(at) => {
                    let (offset, (_, by)) = plain.iter().nth(at.index(plain.len())).map(|(o, s)| (*o, *s)).unwrap();
                    if by != 0 {
                        keyed.leave(offset, by);
                        plain.remove(&offset);
                    }
                }
                Step::Release(at) => {
                    let (offset, (name, by)) = plain.iter().nth(at.index(plain.len())).map(|(o, s)| (*o, *s)).unwrap();
                    if by != 0 {
                        prop_assert!(keyed.release(offset, by));
                        plain.insert(offset, (name, 0));
                    }
                }
                Step::Forget(at) => {
                    let (offset, (_, by)) = plain.iter().nth(at.index(plain.len())).map(|(o, s)| (*o, *s)).unwrap();
                    if by == 0 {
                        keyed.forget(offset);
                        plain.remove(&offset);
                    }
                }
            }
            let waiting: Vec<u64> = plain.iter().filter(|(_, (_, by))| *by == 0).map(|(at, _)| *at).collect();
            prop_assert_eq!(keyed.waiting(), waiting.len());
            prop_assert_eq!(keyed.first(), waiting.first().copied());
            prop_assert_eq!(keyed.of.len(), plain.len());
        }
        for (offset, (_, by)) in plain {
            match by {
                0 => keyed.forget(offset),
                _ => keyed.leave(offset, by),
            }
        }
        prop_assert!(keyed.keys.is_empty() && keyed.of.is_empty() && keyed.waiting() == 0);
        prop_assert!(keyed.lanes.values().all(BTreeSet::is_empty));
    }
}
