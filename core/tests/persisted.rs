//! Yesterday's bytes: payloads and checkpoints of version 1 are read back as what they were.
//!
//! The samples are the bytes an earlier build wrote. When a format changes, its version changes, a new
//! sample is added, and these stay.

use anabranch_core::address::Address;
use anabranch_core::authority::AllowAll;
use anabranch_core::gateway::FilterSpec;
use anabranch_core::id::*;
use anabranch_core::message::{Message, OriginTag, Quality};
use anabranch_core::properties::Codecs;
use anabranch_core::record::{Change, FirstLimits, Mark, PayloadBuilder, Record, Records};
use anabranch_core::router::Fabric;
use anabranch_core::shard::{Shard, ShardLimits, ShardSetup};
use bytes::Bytes;
use std::sync::Arc;

const PAYLOAD: &[u8] = include_bytes!("samples/payload-1.bin");
const CHECKPOINT: &[u8] = include_bytes!("samples/checkpoint-1.bin");

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

fn check(sample: &[u8], made: &[u8], file: &str) {
    if std::env::var_os("WRITE_SAMPLES").is_some() {
        let path = format!("{}/tests/samples/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, made).unwrap();
    } else {
        assert_eq!(
            sample, made,
            "{file}: what is written now differs from version 1"
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

#[test]
fn a_checkpoint_of_version_1_restores_the_state_it_was_made_of() {
    let mut before = shard();
    before
        .apply(UnixMs(1_700_000_000_000), Position(0), &payload(), false)
        .unwrap();
    let mut after = shard();
    after.restore(CHECKPOINT).unwrap();
    let counted = |shard: &Shard<Position>| shard.checkpoint().len();
    // All but the size of bodies, which version 1 did not keep.
    assert_eq!(counted(&after), counted(&before));
    let mut again = shard();
    again.restore(&after.checkpoint()).unwrap();
    assert_eq!(again.checkpoint(), after.checkpoint());
}
