//! What is written for a message: bytes for each byte of its body, and syncs.

use crate::measure::{Arguments, device_bytes};
use crate::worker::{Worker, start};
use anabranch_core::id::StreamId;
use anabranch_store::shard::DataShard;
use bytes::Bytes;
use std::path::Path;

const BODY_BYTES: usize = 1024;
const FANOUT: u64 = 10;

fn case(
    name: &str,
    shard: &DataShard,
    worker: &mut Worker,
    streams: &[StreamId],
    count: u64,
    consumed: bool,
) {
    let body = Bytes::from(vec![7; BODY_BYTES]);
    let (before, device) = (shard.stats(), device_bytes());
    worker.publish_all(streams, &body, count, consumed);
    let (after, device) = (shard.stats(), device_bytes() - device);
    let payload = (count * BODY_BYTES as u64) as f64;
    let journal = (after.journal.bytes - before.journal.bytes) as f64;
    let of_checkpoints = |stats: anabranch_store::group::GroupStats| {
        (stats.checkpoint.bytes + stats.checkpoint.folded_bytes) as f64
    };
    println!(
        "{name:<34} {:>6.3} journal bytes for each byte of payload, {:>6.3} checkpoint bytes, {:>6.3} device bytes; {:.4} syncs/message, {:.1} messages/frame",
        journal / payload,
        (of_checkpoints(after) - of_checkpoints(before)) / payload,
        device as f64 / payload,
        (after.journal.syncs - before.journal.syncs) as f64 / count as f64,
        count as f64 / (after.journal.frames - before.journal.frames).max(1) as f64,
    );
}

pub fn run(dir: &Path, arguments: &Arguments) {
    let count = arguments.number("messages", 200_000.0) as u64;
    let (shard, mut workers) = start(dir, 1);
    let worker = &mut workers[0];
    let all: Vec<StreamId> = (1..=2 + FANOUT).map(StreamId).collect();
    for stream in &all {
        worker.create(*stream, false);
    }
    println!(
        "messages of {BODY_BYTES} B; at most 1.1 for one queue, 1.3 bodies for {FANOUT} queues"
    );
    case("to one queue", &shard, worker, &all[..1], count, false);
    worker.attach(all[1], false);
    case(
        "to one queue, consumed",
        &shard,
        worker,
        &all[1..2],
        count,
        true,
    );
    worker.detach(all[1]);
    case(
        "to 10 queues",
        &shard,
        worker,
        &all[2..],
        count / FANOUT,
        false,
    );
    shard.shutdown();
}
