//! Messages through whole shards, each with a thread and a worker of its own, synced before each confirm: how many go,
//! and what one costs. Several at a time share one disk.

use crate::measure::{Arguments, cpu_us};
use crate::worker;
use anabranch_core::id::StreamId;
use bytes::Bytes;
use std::path::Path;
use std::time::{Duration, Instant};

const STREAM: StreamId = StreamId(1);

/// What one shard did.
#[derive(Default)]
struct Done {
    messages: u64,
    frames: u64,
    syncs: u64,
}

fn one_shard(dir: &Path, body: &Bytes, consumed: bool, time: Duration) -> Done {
    let (shard, mut workers) = worker::start(dir, 1);
    let worker = &mut workers[0];
    worker.create(STREAM, false);
    if consumed {
        worker.attach(STREAM, false);
    }
    let messages = worker.publish_for(&[STREAM], body, time, consumed);
    let stats = shard.stats().journal;
    shard.shutdown();
    let _ = std::fs::remove_dir_all(dir);
    Done {
        messages,
        frames: stats.frames,
        syncs: stats.syncs,
    }
}

fn case(dir: &Path, shards: usize, body_bytes: usize, consumed: bool, time: Duration) {
    let body = Bytes::from(vec![7; body_bytes]);
    let (start, cpu) = (Instant::now(), cpu_us());
    let mut all = Done::default();
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..shards)
            .map(|nth| {
                let (dir, body) = (dir.join(nth.to_string()), &body);
                scope.spawn(move || one_shard(&dir, body, consumed, time))
            })
            .collect();
        for one in started {
            let done = one.join().expect("no panic");
            all.messages += done.messages;
            all.frames += done.frames;
            all.syncs += done.syncs;
        }
    });
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_us() - cpu);
    let messages = all.messages as f64;
    println!(
        "{shards} shards  {body_bytes:>5} B  consumed {consumed:<5}  {:>9.0} msg/s  {:>5.2} CPU us/msg  {:>6.1} msg/frame  {:>6.0} syncs/s",
        messages / seconds,
        cpu / messages,
        messages / all.frames as f64,
        all.syncs as f64 / seconds,
    );
}

pub fn run(dir: &Path, arguments: &Arguments) {
    let time = Duration::from_secs_f64(arguments.number("seconds", 2.0));
    for (body_bytes, consumed) in [(128, false), (128, true), (1024, false), (1024, true)] {
        for shards in [1, 2, 4] {
            case(dir, shards, body_bytes, consumed, time);
        }
    }
}
