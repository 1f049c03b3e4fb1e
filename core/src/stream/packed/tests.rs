//! Packed rows against plain entries.

use super::*;
use proptest::prelude::*;

fn entry() -> impl Strategy<Value = Entry<Position>> {
    let sizes = (prop_oneof![4 => 0u32..5000, 1 => any::<u32>()], 0u32..80);
    let times = (
        0u64..1 << 48,
        prop_oneof![3 => Just(0u64), 1 => 0..1u64 << 48],
    );
    let flags = (
        0u8..3,
        any::<[bool; 3]>(),
        prop_oneof![3 => Just(0u32), 1 => any::<u32>()],
    );
    (0u64..1 << 56, sizes, times, flags).prop_map(
        |(position, (body, units), (stored, expires), flags)| Entry {
            body: Position(position),
            expires: UnixMs(expires),
            cost_bytes: body
                .saturating_add(NARROW_COST as u32)
                .saturating_add(units * COST_UNIT as u32),
            identifier: flags.2,
            quality: Quality::from_number(flags.0).unwrap(),
            retain: flags.1[0],
            by_topic: flags.1[1],
            no_local: flags.1[2],
            body_bytes: body,
            stored: UnixMs(stored),
            more_identifiers: None,
        },
    )
}

proptest! {
    #[test]
    fn packed_entries_come_back_as_they_were(
        from in 0usize..100,
        entries in proptest::collection::vec(entry(), 1..150),
        alike in any::<bool>(),
    ) {
        let home = Home { index: None, stream: crate::stream::Serial(1), number: 0 };
        let mut packed = Packed::default();
        packed.renew(from);
        let mut sums = (0, 0);
        let narrow = |entry: &Entry<Position>| Entry {
            expires: UnixMs(0),
            identifier: 0,
            stored: UnixMs(7 + entry.stored.0 % 1000),
            body_bytes: 100,
            cost_bytes: 420 + (entry.cost_bytes % 30) * 16,
            ..entry.clone()
        };
        let mut entries: Vec<_> = match alike {
            true => entries.iter().map(narrow).collect(),
            false => entries,
        };
        entries.sort_by_key(|entry| entry.stored);
        for entry in &entries {
            packed.push(entry.clone(), home);
            sums = (sums.0 + u64::from(entry.cost_bytes), sums.1 + u64::from(entry.body_bytes));
        }
        prop_assert_eq!(packed.sums(), sums);
        prop_assert!(!alike || !packed.wide);
        for (nth, entry) in entries.iter().enumerate() {
            let back = packed.entry(from + nth, home);
            prop_assert_eq!(back.as_ref(), Some(entry));
            let weight = packed.weight(from + nth, 1, home);
            prop_assert_eq!((weight.cost, weight.body), (u64::from(entry.cost_bytes), u64::from(entry.body_bytes)));
        }
        prop_assert_eq!(packed.entry(from + entries.len(), home), None);
    }

    /// From its position on, what a message costs covers its record.
    #[test]
    fn an_entry_costs_as_much_as_its_record_and_little_more(body in 0usize..3000, address in 1usize..200, record in 0usize..5000) {
        let message = Message {
            body: vec![0; body].into(),
            address: crate::address::Address(vec![b'a'; address].into()),
            ..Message::default()
        };
        let cost = entry_cost(&message, record) as usize;
        let least = message.cost_bytes().max(record);
        prop_assert!((least..least + COST_UNIT as usize).contains(&cost) && (cost - body).is_multiple_of(COST_UNIT as usize));
    }
}
