//! What the broker itself writes into the properties of a message it delivers.
//!
//! Properties are relayed as they came; only a message that was dropped on its way, that came back to a
//! queue that counts, that comes from a stream, or whose properties do not fit into the client's frames gets them written anew.
//! Owns the names of those headers. Never: when one of this happened (core says so).

use anabranch_core::death::{Death, DeathReason, Deaths};
use anabranch_core::id::Offset;
use anabranch_core::message::{Message, OriginTag};
use bytes::Bytes;

use crate::address;
use crate::map::ORIGIN;
use crate::wire::field::LongStr;
use crate::wire::properties::Properties;
use crate::wire::table::{ArrayWriter, Table, TableWriter, Value};

/// Every drop of the message, newest first.
const H_DEATH: &str = "x-death";
/// In front of what is told of the first and of the last drop.
const FIRST_AND_LAST: [&str; 6] = [
    "x-first-death-reason",
    "x-first-death-queue",
    "x-first-death-exchange",
    "x-last-death-reason",
    "x-last-death-queue",
    "x-last-death-exchange",
];
/// How often the message came back to its queue.
const H_DELIVERY_COUNT: &str = "x-delivery-count";
/// The place of a message in its stream.
const H_STREAM_OFFSET: &str = "x-stream-offset";
/// Headers were left out, since the properties did not fit into a frame.
const H_TRUNCATED: &str = "x-truncated";

/// A reason as peers know it.
fn reason(reason: DeathReason) -> &'static str {
    match reason {
        DeathReason::Rejected => "rejected",
        DeathReason::Expired => "expired",
        DeathReason::Overflow => "maxlen",
        DeathReason::DeliveryLimit => "delivery_limit",
    }
}

/// The properties with other headers: those that `stay`, then what `add` appends.
fn with_headers(
    properties: Properties<'_>,
    stay: impl Fn(&[u8]) -> bool,
    add: impl FnOnce(&mut TableWriter),
) -> Bytes {
    let mut headers = TableWriter::new();
    for (name, value) in properties.headers.iter().flat_map(|table| table.iter()) {
        if stay(name.as_bytes()) {
            // It was a name on the wire, so it is one again.
            let _ = headers.pair(name.as_bytes(), value);
        }
    }
    add(&mut headers);
    Properties {
        headers: (!headers.is_empty()).then(|| headers.table()),
        ..properties
    }
    .to_bytes()
}

/// The properties of a message that was dropped on its way: `x-death` and what goes with it in place of
/// what a client may have written there, and no `expiration`.
pub fn with_deaths(raw: &[u8], message: &Message, deaths: &Deaths) -> Bytes {
    let Ok(properties) = Properties::walk(raw) else {
        return Bytes::copy_from_slice(raw);
    };
    let properties = Properties {
        expiration: None,
        ..properties
    };
    let ours = |name: &[u8]| {
        name == H_DEATH.as_bytes() || FIRST_AND_LAST.iter().any(|known| known.as_bytes() == name)
    };
    with_headers(
        properties,
        |name| !ours(name),
        |headers| {
            let mut list = ArrayWriter::new();
            for death in &deaths.list {
                list.push(Value::Table(told(death, message.origin).table()));
            }
            headers.named(H_DEATH, Value::Array(list.array()));
            let (stream, why, exchange) = &deaths.first;
            let mut values = vec![reason(*why).as_bytes(), stream.as_bytes(), &exchange[..]];
            if let Some(last) = deaths.list.first() {
                values.extend([
                    reason(last.reason).as_bytes(),
                    last.stream.as_bytes(),
                    &last.exchange[..],
                ]);
            }
            for (name, value) in FIRST_AND_LAST.into_iter().zip(values) {
                headers.named(name, Value::LongStr(LongStr(value)));
            }
        },
    )
}

/// One entry of `x-death`.
fn told(death: &Death, origin: OriginTag) -> TableWriter {
    let mut key = Vec::new();
    if origin == ORIGIN && !death.origin_key.is_empty() {
        key.extend_from_slice(&death.origin_key);
    } else {
        address::address_to_key(&death.address, &mut key);
        address::cut_key(&mut key);
    }
    let mut keys = ArrayWriter::new();
    keys.push(Value::LongStr(LongStr(&key)));
    let mut table = TableWriter::new();
    table
        .named(
            "count",
            Value::I64(i64::try_from(death.count).unwrap_or(i64::MAX)),
        )
        .named("reason", Value::text(reason(death.reason)))
        .named("queue", Value::text(&death.stream))
        .named("time", Value::Timestamp(death.first.0 / 1000))
        .named("exchange", Value::LongStr(LongStr(&death.exchange)))
        .named("routing-keys", Value::Array(keys.array()));
    if let Some(ms) = death.time_to_live_ms {
        table.named("original-expiration", Value::text(&ms.to_string()));
    }
    table
}

/// What a queue tells with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// How often the message came back.
    Returns(u32),
    /// Its place in the stream.
    Offset(Offset),
}

impl Stamp {
    /// Of an attempt, when it is not the first.
    pub fn returns(attempt: u32) -> Option<Stamp> {
        (attempt > 1).then(|| Stamp::Returns(attempt - 1))
    }

    /// The properties with it, in place of what a client may have written there.
    pub fn onto(self, raw: &[u8]) -> Bytes {
        let Ok(properties) = Properties::walk(raw) else {
            return Bytes::copy_from_slice(raw);
        };
        let (stamped, number) = match self {
            Stamp::Returns(count) => (H_DELIVERY_COUNT, count.into()),
            Stamp::Offset(offset) => (H_STREAM_OFFSET, i64::try_from(offset.0).unwrap_or(i64::MAX)),
        };
        with_headers(
            properties,
            |name| name != stamped.as_bytes(),
            |headers| {
                headers.named(stamped, Value::I64(number));
            },
        )
    }
}

/// The properties in at most `room_bytes`: without their largest headers, as few as can be, and marked as
/// cut. All but headers always fit into the smallest frame there is.
pub fn cut_to(raw: &[u8], room_bytes: usize) -> Bytes {
    let Ok(properties) = Properties::walk(raw) else {
        return Bytes::copy_from_slice(raw);
    };
    let pairs = || {
        let table = properties.headers.unwrap_or_default();
        table.iter().map(|(name, value)| {
            let mut pair = TableWriter::new();
            let _ = pair.pair(name.as_bytes(), value);
            pair
        })
    };
    let mut mark = TableWriter::new();
    mark.named(H_TRUNCATED, Value::Bool(true));
    let headers_bytes = properties.headers.map_or(0, |table| table.raw().len());
    let mut over = (raw.len() + mark.table().raw().len()).saturating_sub(room_bytes);
    let mut sizes: Vec<(usize, usize)> = pairs()
        .map(|pair| pair.table().raw().len())
        .enumerate()
        .map(|(at, bytes)| (bytes, at))
        .collect();
    // The largest first, and the last of equal ones.
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut left_out = std::collections::HashSet::new();
    for (bytes, at) in sizes {
        if over == 0 {
            break;
        }
        over = over.saturating_sub(bytes);
        left_out.insert(at);
    }
    let mut kept = Vec::with_capacity(headers_bytes);
    for (at, pair) in pairs().enumerate() {
        if !left_out.contains(&at) {
            kept.extend_from_slice(pair.table().raw());
        }
    }
    kept.extend_from_slice(mark.table().raw());
    Properties {
        // Made of pairs that were well formed.
        headers: Table::new(&kept).ok(),
        ..properties
    }
    .to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::field::ShortStr;
    use anabranch_core::id::UnixMs;
    use proptest::prelude::*;

    fn death(stream: &str, reason: DeathReason, time_to_live_ms: Option<u64>) -> Death {
        Death {
            stream: stream.into(),
            reason,
            count: 2,
            first: UnixMs(1_700_000_000_500),
            exchange: Bytes::from_static(b"amq.topic"),
            address: Bytes::from_static(b"plant/1.5"),
            origin_key: Bytes::new(),
            time_to_live_ms,
        }
    }

    #[test]
    fn a_dropped_message_tells_where_why_and_when_and_has_no_expiration_c96() {
        let first = death("jobs", DeathReason::Expired, Some(1500));
        let deaths = Deaths::with(None, first);
        let deaths = Deaths::with(Some(&deaths), death("late", DeathReason::Rejected, None));
        let mut headers = TableWriter::new();
        headers
            .named("mine", Value::I32(1))
            .named(H_DEATH, Value::text("forged"))
            .named("x-first-death-queue", Value::text("forged"));
        let raw = Properties {
            headers: Some(headers.table()),
            expiration: ShortStr::new(b"1500"),
            message_id: ShortStr::new(b"m"),
            ..Properties::default()
        }
        .to_bytes();
        let message = Message {
            origin: ORIGIN,
            ..Message::default()
        };
        let told = with_deaths(&raw, &message, &deaths);
        let properties = Properties::walk(&told).unwrap();
        assert_eq!(properties.expiration, None);
        assert_eq!(properties.message_id, ShortStr::new(b"m"));
        let headers = properties.headers.unwrap();
        let names: Vec<_> = headers.iter().map(|(name, _)| name.as_bytes()).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[0], b"mine");
        let text = |name: &str| headers.first(name).unwrap().as_long_str().unwrap();
        assert_eq!(text("x-first-death-queue"), b"jobs");
        assert_eq!(text("x-first-death-reason"), b"expired");
        assert_eq!(text("x-last-death-queue"), b"late");
        assert_eq!(text("x-last-death-reason"), b"rejected");
        assert_eq!(text("x-last-death-exchange"), b"amq.topic");
        let Some(Value::Array(list)) = headers.first(H_DEATH) else {
            panic!("a list")
        };
        let tables: Vec<_> = list
            .iter()
            .map(|entry| match entry {
                Value::Table(table) => table,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[0].first("original-expiration"), None);
        let jobs = tables[1];
        assert_eq!(jobs.first("count"), Some(Value::I64(2)));
        assert_eq!(jobs.first("time"), Some(Value::Timestamp(1_700_000_000)));
        assert_eq!(jobs.first("original-expiration"), Some(Value::text("1500")));
        let Some(Value::Array(keys)) = jobs.first("routing-keys") else {
            panic!("a list")
        };
        assert_eq!(
            keys.iter().collect::<Vec<_>>(),
            [Value::text("plant.1%2E5")]
        );
    }

    #[test]
    fn a_key_is_told_as_its_publisher_wrote_it() {
        let mut dropped = death("q", DeathReason::Overflow, None);
        dropped.origin_key = Bytes::from_static(b"a.*");
        for (origin, key) in [(ORIGIN, "a.*"), (OriginTag(9), "plant.1%2E5")] {
            let table = told(&dropped, origin);
            let raw = table.table();
            let Some(Value::Array(keys)) = raw.first("routing-keys") else {
                panic!("a list")
            };
            assert_eq!(keys.iter().collect::<Vec<_>>(), [Value::text(key)]);
            assert_eq!(raw.first("reason"), Some(Value::text("maxlen")));
        }
    }

    #[test]
    fn a_count_of_returns_replaces_a_clients_d18() {
        let mut headers = TableWriter::new();
        headers.named(H_DELIVERY_COUNT, Value::I32(77));
        let raw = Properties {
            headers: Some(headers.table()),
            ..Properties::default()
        }
        .to_bytes();
        let counted = Stamp::Returns(2).onto(&raw);
        let headers = Properties::walk(&counted).unwrap().headers.unwrap();
        assert_eq!(headers.iter().count(), 1);
        assert_eq!(headers.first(H_DELIVERY_COUNT), Some(Value::I64(2)));
    }

    proptest! {
        #[test]
        fn what_is_cut_fits_and_keeps_the_small_headers(
            sizes in prop::collection::vec(0usize..6000, 0..12),
            room_bytes in 8000usize..20_000,
        ) {
            let mut headers = TableWriter::new();
            for size in &sizes {
                headers.named("h", Value::text(&"y".repeat(*size)));
            }
            let id = [b'i'; 255];
            let raw = Properties {
                headers: Some(headers.table()),
                message_id: ShortStr::new(&id),
                ..Properties::default()
            }
            .to_bytes();
            let cut = cut_to(&raw, room_bytes);
            prop_assert!(cut.len() <= room_bytes);
            let properties = Properties::walk(&cut).unwrap();
            prop_assert_eq!(properties.message_id, ShortStr::new(&id));
            let left = properties.headers.unwrap();
            prop_assert_eq!(left.first(H_TRUNCATED), Some(Value::Bool(true)));
            let kept: Vec<usize> = left
                .iter()
                .filter_map(|(_, value)| value.as_long_str().map(<[u8]>::len))
                .collect();
            // No header is left out that is smaller than one that was kept.
            let mut sorted = sizes.clone();
            sorted.sort_unstable();
            let mut smallest = kept.clone();
            smallest.sort_unstable();
            prop_assert_eq!(&sorted[..kept.len()], &smallest[..]);
        }
    }
}
