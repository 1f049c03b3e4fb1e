//! A shard's folder for tests that look at it: a life that fills one, and what a server makes of it.
//!
//! The runtime's clock is `start_paused`: to wait takes no time.

use crate::worker::{STREAM, Worker};
use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::Offset;
use anabranch_core::port::{ShardEvent, ShardRequest};
use anabranch_store::disk::Disk;
use anabranch_store::disk::sim::SimDisk;
use anabranch_store::inspect::{
    Checked, Consent, Mended, ShardFolder, ShardKind, Source, check, repair,
};
use anabranch_store::seal::Sealing;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(test)
}

pub fn folder() -> ShardFolder {
    ShardFolder {
        name: "shard-1".to_owned(),
        dir: PathBuf::from("shard"),
        kind: ShardKind::Data,
    }
}

pub fn source(disk: &SimDisk) -> Source {
    Source {
        disk: Arc::new(disk.clone()),
        sealing: Sealing::default(),
        tier: None,
    }
}

pub fn checked(disk: &SimDisk) -> Checked {
    check(&source(disk), &folder(), &mut |_| {}).unwrap()
}

pub fn mended(disk: &SimDisk, consent: Consent) -> Mended {
    repair(&source(disk), &folder(), consent).unwrap()
}

pub fn body(number: u32, len: usize) -> Vec<u8> {
    let mut body = number.to_le_bytes().to_vec();
    body.resize(4 + len, number as u8);
    body
}

/// A life in which the first message stays, most of the others leave, checkpoints are made and room is given back.
/// `look` is called now and then. Ends as `clean` says.
pub async fn life(disk: &SimDisk, incarnation: u64, clean: bool, mut look: impl FnMut(u32)) {
    let mut worker = Worker::start_with(disk, incarnation, |setup| {
        setup.checkpoint_bytes = 24 * 1024;
        setup.shard.limits.index_memory_bytes = 16 * 1024;
    })
    .await;
    worker.create().await;
    let first = worker.publish(body(0, 100));
    assert_eq!(worker.published(first).await, PublishOutcome::Routed);
    let consumer = worker.attach(1).await;
    let mut settled = BTreeSet::new();
    for number in 1..400u32 {
        let sequence = worker.publish(body(number, 900));
        // Confirmed and handed out, in either order.
        let (mut confirmed, mut came) = (false, false);
        while !(confirmed && came) {
            let deliveries = match worker.event().await {
                ShardEvent::Published { last, .. } => {
                    confirmed = last.0 >= sequence;
                    continue;
                }
                ShardEvent::Deliver { deliveries, .. } => deliveries,
                other => panic!("unexpected {other:?}"),
            };
            let count = deliveries.len() as u32;
            for delivery in deliveries {
                let Offset(offset) = delivery.offset;
                came |= offset >= u64::from(number);
                // The first and one in 97 stay; the last hundred are left too.
                if offset > 0 && offset % 97 != 0 && offset < 300 && settled.insert(offset) {
                    worker.accept(consumer, offset, offset);
                }
            }
            worker.send(ShardRequest::Drained {
                consumer,
                stream: STREAM,
                count,
            });
        }
        look(number);
    }
    if clean {
        worker.shard.shutdown_local().await;
    } else {
        disk.crash();
        worker.fallen().await;
    }
}

/// How many messages a server which opens the folder hands out.
pub async fn opens(disk: &SimDisk) -> usize {
    messages(disk).await.len()
}

/// The messages of the queue that such a server hands out: their offsets and numbers.
pub async fn messages(disk: &SimDisk) -> Vec<(u64, u32)> {
    let mut worker = Worker::start(disk, 9).await;
    let consumer = worker.attach(1).await;
    let mut all = Vec::new();
    loop {
        let next = tokio::time::timeout(Duration::from_secs(5), worker.event()).await;
        let Ok(ShardEvent::Deliver { deliveries, .. }) = next else {
            break;
        };
        all.extend(deliveries.iter().map(|one| {
            let number = one.message.body.first_chunk().expect("a number");
            (one.offset.0, u32::from_le_bytes(*number))
        }));
        worker.send(ShardRequest::Drained {
            consumer,
            stream: STREAM,
            count: deliveries.len() as u32,
        });
    }
    worker.shard.shutdown_local().await;
    all
}

pub fn files(disk: &SimDisk, dir: &str, ends: &str) -> Vec<PathBuf> {
    let names = disk.list(Path::new(dir)).unwrap();
    let named = names.iter().filter(|name| name.contains(ends));
    named.map(|name| Path::new(dir).join(name)).collect()
}
