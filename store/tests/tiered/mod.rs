//! A data shard whose sealed segments move to an object store, and what is asked of it in tests.
#![allow(dead_code, reason = "not every test file uses all of it")]

use crate::worker::{WORKER, Worker};
use anabranch_core::dispatch::travel_units;
use anabranch_core::gateway::{Delivery, PublishOutcome, Replay, SeekTo};
use anabranch_core::id::{ConnectionId, ConsumerTag, StreamId, VhostId};
use anabranch_core::limits::StreamLimits;
use anabranch_core::port::{Attach, ConsumerKey, Question, ShardEvent, ShardReply, ShardRequest};
use anabranch_store::disk::Disk;
use anabranch_store::disk::sim::SimDisk;
use anabranch_store::journal::TierCounts;
use anabranch_store::tier::{Tier, TierOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const BODY: usize = 1000;

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(2));
    let looked = async {
        while !is_so() {
            looks.tick().await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(20), looked).await;
    assert!(in_time.is_ok(), "{what}");
}

pub fn body(number: u32) -> Vec<u8> {
    let mut body = number.to_le_bytes().to_vec();
    body.resize(BODY, number as u8);
    body
}

pub fn folder(dir: &Path) -> TierOptions {
    TierOptions {
        url: format!("file://{}", dir.display()),
        local_bytes: 0,
        ..TierOptions::default()
    }
}

pub async fn start(disk: &SimDisk, life: u64, tier: &Tier) -> Worker {
    Worker::start_with(disk, life, |setup| {
        setup.options.tier = Some(tier.clone());
        setup.checkpoint_bytes = 16 * 1024;
    })
    .await
}

pub async fn create(worker: &mut Worker, stream: StreamId, limits: StreamLimits) {
    let question = Question::CreateStream {
        stream,
        vhost: VhostId(1),
        name: Arc::from("s"),
        limits,
    };
    assert!(matches!(worker.ask(question).await, Ok(ShardReply::Done)));
}

/// Publishes these, one after the other.
pub async fn fill(worker: &mut Worker, stream: StreamId, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let sequence = worker.publish_to(stream, body(number));
        assert_eq!(worker.published(sequence).await, PublishOutcome::Routed);
    }
}

pub fn counts(worker: &Worker) -> TierCounts {
    worker.shard.stats().tier
}

/// Waits until so many segments have moved, and all that are to.
pub async fn moved(worker: &Worker, least: u64) {
    until("segments move", || {
        let counts = counts(worker);
        counts.tiered_segments >= least && counts.waiting == 0
    })
    .await;
}

pub fn key(connection: u64) -> ConsumerKey {
    ConsumerKey {
        connection: ConnectionId::new(WORKER, connection),
        tag: ConsumerTag(1),
    }
}

pub async fn attach(worker: &mut Worker, stream: StreamId, connection: u64, replay: bool) {
    let replay = replay.then(|| {
        Box::new(Replay {
            from: SeekTo::Start,
            only: None,
            subscribes: None,
        })
    });
    let attach = Attach {
        consumer: key(connection),
        principal: Arc::default(),
        vhost: Arc::from("/"),
        stream,
        exclusive: false,
        presettled: false,
        credit: 10_000,
        priority: 0,
        no_local: false,
        replay,
    };
    let reply = worker.ask(Question::Attach(attach)).await;
    assert!(
        matches!(reply, Ok(ShardReply::Done | ShardReply::Replaying)),
        "{reply:?}"
    );
}

/// Reads these in order; what comes with the last of them may go on.
pub async fn expect(worker: &mut Worker, stream: StreamId, numbers: std::ops::Range<u32>) {
    let mut next = numbers.start;
    while next < numbers.end {
        let ShardEvent::Deliver {
            connection,
            deliveries,
            ..
        } = worker.event().await
        else {
            panic!("unexpected event")
        };
        for Delivery { message, .. } in &deliveries {
            assert_eq!(message.body, body(next), "{next}");
            next += 1;
        }
        let units = deliveries.iter();
        let units = units.map(|one| travel_units(one.message.cost_bytes()));
        worker.send(ShardRequest::Drained {
            consumer: ConsumerKey {
                connection,
                tag: ConsumerTag(1),
            },
            stream,
            count: units.sum(),
        });
    }
}

pub fn segment_files(disk: &SimDisk) -> usize {
    let names = disk.list(Path::new("shard")).unwrap();
    names.iter().filter(|name| name.ends_with(".seg")).count()
}

/// Files below a folder, by name.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push(path),
        }
    }
    all.sort();
    all
}
