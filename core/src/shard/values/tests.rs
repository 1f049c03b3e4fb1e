//! Last values replaced, ended, limited, and read page by page.
//!
//! Owns the tests of a shard's values without a shard; `core/tests` has those with one. Read next: [`super::page`].

use super::*;
use crate::address::TopicFilter;
use proptest::prelude::*;

const VHOST: VhostId = VhostId(1);

fn value(address: &str, body: &'static str) -> Arc<Message> {
    Arc::new(Message {
        address: address.parse().unwrap(),
        body: Bytes::from_static(body.as_bytes()),
        ..Message::default()
    })
}

fn of(filter: &str, count: usize) -> PageOf {
    PageOf {
        vhost: VHOST,
        filter: filter.parse().unwrap(),
        hides_system: true,
        after: None,
        count,
    }
}

/// Reads page after page; says how many addresses were looked at in vain at most.
fn read(values: &Values, filter: &str, count: usize) -> Vec<String> {
    let mut of = of(filter, count);
    let mut found = Vec::new();
    loop {
        let page = values.page(&of, UnixMs(0));
        assert!(page.values.len() <= count);
        let texts = page.values.iter().map(|value| value.address.to_string());
        found.extend(texts);
        match page.next {
            Some(next) => of.after = Some(next),
            None => return found,
        }
    }
}

#[test]
fn a_value_is_replaced_and_an_empty_one_removes_it() {
    let mut values = Values::default();
    values.put(VHOST, value("a", "1"));
    values.put(VHOST, value("a", "22"));
    values.put(VhostId(2), value("a", "other"));
    let cost = value("a", "22").cost_bytes() + value("a", "other").cost_bytes();
    assert_eq!((values.kept.entries, values.kept.bytes), (2, cost as u64));
    let page = values.page(&of("#", 9), UnixMs(0));
    assert_eq!(&page.values[0].body[..], b"22");
    values.put(VHOST, value("a", ""));
    values.put(VhostId(2), value("a", ""));
    assert_eq!(values.kept, Volume::default());
    assert!(values.vhosts.is_empty());
}

#[test]
fn what_has_ended_is_not_read_and_goes() {
    let mut values = Values::default();
    let mut short = value("a/short", "x").detached();
    short.expires = Some(UnixMs(100));
    values.put(VHOST, Arc::new(short));
    values.put(VHOST, value("a/long", "x"));
    assert_eq!(values.page(&of("a/#", 9), UnixMs(99)).values.len(), 2);
    assert_eq!(values.page(&of("a/#", 9), UnixMs(100)).values.len(), 1);
    values.remove_ended(UnixMs(100));
    assert_eq!((values.kept.entries, values.first_end()), (1, None));
}

#[test]
fn beyond_the_limits_only_what_replaces_or_removes_is_taken() {
    let mut values = Values::default();
    values.put(VHOST, value("a", "123"));
    let bytes = values.kept.bytes;
    assert!(values.takes(VHOST, &value("b", "1"), (2, 2 * bytes)));
    assert!(!values.takes(VHOST, &value("b", "1"), (1, 2 * bytes)));
    assert!(!values.takes(VHOST, &value("b", "1"), (2, bytes)));
    assert!(values.takes(VHOST, &value("a", "321"), (1, bytes)));
    assert!(!values.takes(VHOST, &value("a", "4321"), (1, bytes)));
    assert!(values.takes(VHOST, &value("b", ""), (1, bytes)));
}

#[test]
fn a_filter_skips_what_it_cannot_match() {
    let mut values = Values::default();
    for device in 0..1000 {
        for sensor in 0..40 {
            values.put(VHOST, value(&format!("site/{device}/s{sensor}"), "x"));
        }
    }
    // 40,000 addresses, two looks for each of 1,000 devices: one page's worth of looking.
    let mut of = of("site/+/s7", PAGE_VALUES_MAX);
    let page = values.page(&of, UnixMs(0));
    assert_eq!(page.values.len(), PAGE_VALUES_MAX);
    of.after = page.next;
    let page = values.page(&of, UnixMs(0));
    assert_eq!(
        (page.values.len(), page.next),
        (1000 - PAGE_VALUES_MAX, None)
    );
}

fn text(wild: bool) -> impl Strategy<Value = String> {
    let level = match wild {
        true => prop_oneof![
            3 => "[ab-]{0,2}", 1 => Just("+".to_owned()), 1 => Just("#".to_owned()), 1 => Just("$s".to_owned())
        ]
        .boxed(),
        false => prop_oneof![4 => "[ab-]{0,2}", 1 => Just("$s".to_owned())].boxed(),
    };
    proptest::collection::vec(level, 0..4).prop_map(|levels| levels.join("/"))
}

proptest! {
    #[test]
    fn pages_give_what_matches_once_and_in_order(
        addresses in proptest::collection::btree_set(text(false), 0..40),
        filter in text(true),
        count in 1usize..5,
    ) {
        let mut values = Values::default();
        for address in &addresses {
            values.put(VHOST, value(address, "x"));
        }
        let wanted: TopicFilter = filter.parse().unwrap();
        let expected: Vec<String> = addresses
            .iter()
            .filter(|address| {
                let address: Address = address.parse().unwrap();
                wanted.matches(&address) && !(wanted.starts_wild() && address.is_system())
            })
            .cloned()
            .collect();
        prop_assert_eq!(read(&values, &filter, count), expected);
    }
}
