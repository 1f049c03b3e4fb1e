//! Yesterday's bytes: payloads and checkpoints of earlier versions are read back as what they were.
//!
//! The samples are the bytes an earlier build wrote. When a format changes, its version changes, a new
//! sample is added, and these stay.

mod node;

use anabranch_core::address::Address;
use anabranch_core::authority::AllowAll;
use anabranch_core::death::DeathReason;
use anabranch_core::gateway::FilterSpec;
use anabranch_core::id::*;
use anabranch_core::message::{Message, OriginTag, Quality};
use anabranch_core::properties::Codecs;
use anabranch_core::record::{Change, FirstLimits, Mark, PayloadBuilder, Record, Records};
use anabranch_core::router::Fabric;
use anabranch_core::shard::{Shard, ShardLimits, ShardSetup};
use bytes::{Bytes, BytesMut};
use node::Journal;
use node::kept::{Kept, seen, stats};
use std::sync::Arc;

const PAYLOAD: &[u8] = include_bytes!("samples/payload-1.bin");
const WHOLE_1: &[u8] = include_bytes!("samples/checkpoint-1.bin");
const WHOLE_2: &[u8] = include_bytes!("samples/checkpoint-2.bin");
const PAIRS_3: &[u8] = include_bytes!("samples/checkpoint-3.bin");
const PAIRS_4: &[u8] = include_bytes!("samples/checkpoint-4.bin");

fn message() -> Message {
    Message {
        exchange: Bytes::from_static(b"topics"),
        address: Address(Bytes::from_static(b"plant/7/temp")),
        origin_key: Bytes::from_static(b"raw"),
        origin: OriginTag(2),
        properties: Bytes::from_static(&[1, 2, 3]),
        body: Bytes::from_static(b"21.5"),
        quality: Quality::AtLeastOnce,
        retain: true,
        priority: 4,
        published: UnixMs(1_700_000_000_000),
        expires: Some(UnixMs(1_800_000_000_000)),
        publisher: ConnectionId(77),
        deaths: None,
    }
}

fn records() -> Vec<(u64, Record)> {
    let (queue, session) = (
        StreamId::of_registry(1),
        StreamId::of_session(ShardId(1), 1),
    );
    let spec = FilterSpec {
        filter: "plant/+/temp".parse().unwrap(),
        quality: Quality::AtLeastOnce,
        no_local: true,
        retain_as_published: true,
        identifier: 9,
    };
    let change = |change| (0, Record::Change(change));
    let publish = |sequence| {
        let record = Record::Publish {
            streams: [queue].into_iter().collect(),
            by_topic: Some(VhostId(1)),
            extra: None,
            message: Arc::new(message()),
        };
        (sequence, record)
    };
    vec![
        change(Change::Began { incarnation: 5 }),
        change(Change::CreateStream {
            stream: queue,
            vhost: VhostId(1),
            limits: FirstLimits { auto_delete: true },
        }),
        change(Change::OpenSession {
            vhost: VhostId(1),
            client_id: Arc::from("device"),
            clean_start: false,
            expiry_s: 60,
        }),
        change(Change::Subscribe {
            stream: session,
            filters: vec![spec],
        }),
        change(Change::CloseSession { stream: session }),
        publish(1),
        publish(2),
        publish(3),
        change(Change::Delivered {
            stream: queue,
            until: Offset(2),
        }),
        change(Change::Settled {
            stream: queue,
            ranges: vec![(Offset(0), Offset(0))],
        }),
        change(Change::Purge {
            stream: queue,
            ranges: vec![(Offset(2), Offset(2))],
        }),
        change(Change::SessionExpiry {
            stream: session,
            expiry_s: 120,
        }),
        change(Change::Unsubscribe {
            stream: session,
            filters: vec!["other".parse().unwrap()],
        }),
        change(Change::EndSession {
            stream: StreamId(404),
        }),
        change(Change::DeleteStream {
            stream: StreamId(404),
            only_if: Some(vec![Offset(7)]),
        }),
    ]
}

fn payload() -> Bytes {
    let mut builder = PayloadBuilder::default();
    for (sequence, record) in records() {
        let mark = Mark {
            lane: Lane(5 << 16),
            sequence: Sequence(sequence),
        };
        match record {
            Record::Change(change) => builder.change(mark, &change),
            Record::Publish {
                streams,
                by_topic,
                extra: _,
                message,
            } => {
                builder.publish(mark, &streams, by_topic, None, &message);
            }
        }
    }
    builder.take()
}

fn shard() -> Shard<Position> {
    Shard::new(ShardSetup {
        id: ShardId(1),
        incarnation: 6,
        workers: 1,
        limits: ShardLimits::default(),
        fabric: Arc::new(Fabric::default()),
        authority: Arc::new(AllowAll),
        codecs: Codecs::default(),
    })
}

/// Writes a sample anew when that is asked for; says whether.
fn renewed(made: &[u8], file: &str) -> bool {
    let asked = std::env::var_os("WRITE_SAMPLES").is_some();
    if asked {
        let path = format!("{}/tests/samples/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, made).unwrap();
    }
    asked
}

fn check(sample: &[u8], made: &[u8], file: &str) {
    if !renewed(made, file) {
        assert_eq!(
            sample, made,
            "{file}: what is written now differs from the sample"
        );
    }
}

#[test]
fn a_payload_of_version_1_reads_as_it_was_written() {
    check(PAYLOAD, &payload(), "payload-1.bin");
    let read = Records::new(&Bytes::from_static(PAYLOAD), Position(0), false).unwrap();
    let read: Vec<(u64, Record)> = read
        .map(|record| {
            record
                .map(|(_, mark, record)| (mark.sequence.0, record))
                .unwrap()
        })
        .collect();
    assert_eq!(read, records());
}

/// What earlier forms did not keep: bytes of bodies, and with them what a message costs exactly.
fn seen_then(shard: &mut Shard<Position>) -> String {
    let journal = Journal {
        bytes: BytesMut::from(&payload()[..]),
        ..Journal::default()
    };
    let seen = seen(shard, &journal);
    let lines = seen.lines().map(|line| match line.split_once("bytes: ") {
        Some((before, after)) => {
            let rest = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
            format!("{before}bytes{rest}")
        }
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn applied() -> Shard<Position> {
    let mut shard = shard();
    let clock = UnixMs(1_700_000_000_000);
    shard.apply(clock, Position(0), &payload(), false).unwrap();
    shard
}

/// Whole checkpoints come back, are pairs from the next one on, and their one pair goes.
#[test]
fn whole_checkpoints_restore_the_state_they_were_made_of() {
    for (version, sample) in [(1, WHOLE_1), (2, WHOLE_2)] {
        let mut kept = Kept::default();
        let whole = (Bytes::new(), Bytes::from_static(sample));
        kept.begin_with([whole].into_iter().collect());
        let mut after = shard();
        kept.restore(&mut after);
        let expected = seen_then(&mut applied());
        assert_eq!(seen_then(&mut after), expected, "version {version}");
        kept.save(&mut after);
        assert!(!kept.pairs().contains_key(&b""[..]));
        let mut again = shard();
        kept.restore(&mut again);
        assert_eq!(seen_then(&mut again), expected, "version {version}");
    }
}

/// Pairs and blocks as one file: key, value, ... by length and bytes.
fn listed(kept: &Kept) -> Vec<u8> {
    let blocks = kept.all_blocks();
    postcard::to_allocvec(&(kept.pairs(), blocks)).unwrap()
}

/// A queue with full, wide, short and half consumed chunks.
fn chunks() -> Shard<Position> {
    let mut shard = applied();
    let (queue, other) = (StreamId::of_registry(1), StreamId::of_registry(2));
    let mut frame = PayloadBuilder::default();
    let mark = |sequence| Mark {
        lane: Lane(5 << 16),
        sequence: Sequence(sequence),
    };
    let create = Change::CreateStream {
        stream: other,
        vhost: VhostId(1),
        limits: FirstLimits { auto_delete: false },
    };
    frame.change(mark(0), &create);
    for number in 10..600 {
        let message = Message {
            expires: (number == 300).then_some(UnixMs(1_800_000_000_000)),
            ..message()
        };
        frame.publish(mark(number), &[queue, other], None, None, &message);
    }
    let ranges = vec![(Offset(20), Offset(30)), (Offset(255), Offset(509))];
    frame.change(
        mark(0),
        &Change::Settled {
            stream: other,
            ranges,
        },
    );
    let base = Position(payload().len() as u64);
    shard
        .apply(UnixMs(1_700_000_001_000), base, &frame.take(), false)
        .unwrap();
    shard
}

/// The same with messages that stay until their letters have arrived.
fn pinned() -> Shard<Position> {
    let mut shard = chunks();
    let mut frame = PayloadBuilder::default();
    let (until, reason) = (Offset(520), DeathReason::Rejected);
    let stream = StreamId::of_registry(2);
    frame.change(Mark::default(), &Change::Delivered { stream, until });
    let runs = vec![
        (Offset(1), Offset(4), reason),
        (Offset(515), Offset(515), reason),
    ];
    frame.change(Mark::default(), &Change::Pinned { stream, runs });
    let base = Position(1 << 20);
    shard
        .apply(UnixMs(1_700_000_002_000), base, &frame.take(), false)
        .unwrap();
    shard
}

/// Limits may have got further fields since: what counts is that these pairs are still read as what they were.
fn read(sample: &'static [u8], made: &mut Shard<Position>) -> Kept {
    let (pairs, blocks) = postcard::from_bytes(sample).unwrap();
    let before = Kept::of(pairs, blocks);
    let mut after = shard();
    before.restore(&mut after);
    let journal = Journal::default();
    assert_eq!(stats(&mut after, &journal), stats(made, &journal));
    assert_eq!(after.damaged(), None);
    before
}

#[test]
fn pairs_of_version_3_read_as_they_were_written() {
    read(PAIRS_3, &mut chunks());
}

#[test]
fn pairs_of_version_4_read_as_they_were_written() {
    let mut kept = Kept::default();
    kept.save(&mut pinned());
    renewed(&listed(&kept), "checkpoint-4.bin");
    let kept = read(PAIRS_4, &mut pinned());
    assert!(kept.pairs().keys().any(|key| key[0] == 6));
}
