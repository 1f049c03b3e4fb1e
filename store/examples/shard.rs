//! Publishes through a data shard on its own thread, synced before every confirm, with a consumer
//! that takes everything. Prints one line per case.
//!
//! `cargo run --release -p anabranch-store --example shard [DIR] [SECONDS]`

use anabranch_core::address::Address;
use anabranch_core::authority::{AllowAll, Principal};
use anabranch_core::gateway::{Outcome, PublishOutcome};
use anabranch_core::id::{
    ConnectionId, ConsumerTag, Offset, Sequence, ShardId, StreamId, VhostId, WorkerId,
};
use anabranch_core::limits::StreamLimits;
use anabranch_core::message::{Message, Quality};
use anabranch_core::port::{
    Attach, ConsumerKey, Question, ShardEvent, ShardPort, ShardRequest, WorkerPort,
};
use anabranch_core::properties::Codecs;
use anabranch_core::shard::{ShardLimits, ShardSetup};
use anabranch_store::clock::SystemClock;
use anabranch_store::disk::real::RealDisk;
use anabranch_store::group::GroupOptions;
use anabranch_store::shard::{DataShard, DataShardSetup};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const WORKER: WorkerId = WorkerId(0);
const STREAM: StreamId = StreamId(1);
const CONSUMER: ConsumerKey = ConsumerKey {
    connection: ConnectionId(1),
    tag: ConsumerTag(1),
};
/// Messages in one batch of the worker.
const BATCH: u64 = 64;
/// Messages not yet confirmed.
const UNDER_WAY: u64 = 4096;

struct Mailbox(Sender<Vec<ShardEvent>>);

impl WorkerPort for Mailbox {
    fn send(&self, _: ShardId, events: Vec<ShardEvent>) {
        let _ = self.0.send(events);
    }
}

/// Processor time of this process, all threads, in microseconds (ticks of 10 ms).
fn cpu_us() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|field| field.parse::<u64>().ok())
            .unwrap_or(0)
    };
    (ticks(11) + ticks(12)) * 10_000
}

fn open(dir: &Path) -> (DataShard, Receiver<Vec<ShardEvent>>) {
    let (send, receive) = channel();
    let setup = DataShardSetup {
        dir: dir.to_owned(),
        disk: Arc::new(RealDisk),
        clock: Arc::new(SystemClock),
        options: GroupOptions::new("bench"),
        shard: ShardSetup {
            id: ShardId(1),
            incarnation: 1,
            workers: 1,
            limits: ShardLimits::default(),
            fabric: Arc::default(),
            authority: Arc::new(AllowAll),
            codecs: Codecs::default(),
        },
        workers: vec![(WORKER, Arc::new(Mailbox(send)))],
        low_water_bytes: 0,
        limit: None,
        checkpoint_bytes: 256 << 20,
    };
    (DataShard::start(setup).expect("open"), receive)
}

fn ask(shard: &DataShard, receive: &Receiver<Vec<ShardEvent>>, question: Question) {
    shard.send(
        WORKER,
        vec![ShardRequest::Ask {
            ticket: 1,
            question,
        }],
    );
    let answered = receive.recv().expect("an answer");
    assert!(matches!(
        answered.last(),
        Some(ShardEvent::Reply { result: Ok(_), .. })
    ));
}

struct Figures {
    sent: u64,
    frames: u64,
    syncs: u64,
}

/// One worker and one shard.
fn run(dir: &Path, body_bytes: usize, consume: bool, run: Duration) -> Figures {
    let (shard, receive) = open(dir);
    let limits = StreamLimits::default();
    ask(
        &shard,
        &receive,
        Question::CreateStream {
            stream: STREAM,
            vhost: VhostId(1),
            name: Arc::from("q"),
            limits,
        },
    );
    if consume {
        let attach = Attach {
            consumer: CONSUMER,
            principal: Arc::new(Principal::default()),
            vhost: Arc::from("/"),
            stream: STREAM,
            exclusive: false,
            presettled: false,
            credit: 10_000,
            priority: 0,
            no_local: false,
            replay: None,
        };
        ask(&shard, &receive, Question::Attach(attach));
    }
    let body = Bytes::from(vec![7; body_bytes]);
    let start = Instant::now();
    let (mut sent, mut confirmed, mut delivered) = (0, 0, 0u64);
    let mut requests = Vec::new();
    while start.elapsed() < run || confirmed < sent || (consume && delivered < sent) {
        while start.elapsed() < run && sent + BATCH <= confirmed + UNDER_WAY {
            for _ in 0..BATCH {
                sent += 1;
                let message = Message {
                    address: Address(Bytes::from_static(b"plant\x004\x00temperature")),
                    body: body.clone(),
                    quality: Quality::AtLeastOnce,
                    ..Message::default()
                };
                requests.push(ShardRequest::Publish {
                    sequence: Sequence(sent),
                    streams: [STREAM].into_iter().collect(),
                    by_topic: None,
                    patient: true,
                    extra: None,
                    message: Arc::new(message),
                });
            }
            shard.send(WORKER, std::mem::take(&mut requests));
        }
        for event in receive.recv().expect("events") {
            match event {
                ShardEvent::Published { last, outcome, .. } => {
                    assert_eq!(outcome, PublishOutcome::Routed);
                    confirmed = last.0;
                }
                ShardEvent::Deliver { deliveries, .. } => {
                    delivered += deliveries.len() as u64;
                    let first = deliveries
                        .first()
                        .map_or(Offset(0), |delivery| delivery.offset);
                    let last = deliveries
                        .last()
                        .map_or(Offset(0), |delivery| delivery.offset);
                    let count = deliveries.len() as u32;
                    requests.push(ShardRequest::Drained {
                        consumer: CONSUMER,
                        stream: STREAM,
                        count,
                    });
                    requests.push(ShardRequest::Settle {
                        consumer: CONSUMER,
                        stream: STREAM,
                        first,
                        last,
                        outcome: Outcome::Accepted,
                    });
                }
                _ => {}
            }
        }
        if !requests.is_empty() {
            shard.send(WORKER, std::mem::take(&mut requests));
        }
    }
    let stats = shard.stats().journal;
    shard.shutdown();
    Figures {
        sent,
        frames: stats.frames,
        syncs: stats.syncs,
    }
}

/// `shards` of them at a time, on one disk.
fn case(root: &Path, shards: usize, body_bytes: usize, consume: bool, time: Duration) {
    let (start, cpu) = (Instant::now(), cpu_us());
    let all: Vec<Figures> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..shards)
            .map(|nth| {
                let dir = root.join(format!("anabranch-shard-{}-{nth}", std::process::id()));
                scope.spawn(move || {
                    let figures = run(&dir, body_bytes, consume, time);
                    let _ = std::fs::remove_dir_all(&dir);
                    figures
                })
            })
            .collect();
        started
            .into_iter()
            .filter_map(|one| one.join().ok())
            .collect()
    });
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_us() - cpu);
    let total = |of: fn(&Figures) -> u64| all.iter().map(of).sum::<u64>() as f64;
    let sent = total(|figures| figures.sent);
    println!(
        "{shards} shards  {body_bytes:>5} B  consume {consume:<5}  {:>9.0} msg/s  {:>5.2} CPU us/msg  {:>6.1} msg/frame  {:>6.0} syncs/s",
        sent / seconds,
        cpu as f64 / sent,
        sent / total(|figures| figures.frames),
        total(|figures| figures.syncs) / seconds,
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let root = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds = arguments
        .next()
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    for (body_bytes, consume) in [(128, false), (128, true), (1024, false), (1024, true)] {
        for shards in [1, 2, 4] {
            case(&root, shards, body_bytes, consume, time);
        }
    }
}
