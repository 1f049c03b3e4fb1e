//! One consumer holds one old message while many times the limit on the data folder flows past: what the folder
//! takes (allocated, as `du` counts) stays below the limit, and the old message is there at the end.
//!
//! `ANABRANCH_FLOW_LIMIT_MIB` (64) and `ANABRANCH_FLOW_TIMES` (20) say how much. With `ANABRANCH_FLOW_DIR` the
//! folder is kept, and a run that was stopped goes on where it was.

mod worker;

use anabranch_core::dispatch::travel_units;
use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::Offset;
use anabranch_core::port::{ConsumerKey, ShardEvent, ShardRequest};
use anabranch_store::clock::SystemClock;
use anabranch_store::disk::Disk;
use anabranch_store::disk::real::RealDisk;
use anabranch_store::disk::sim::SimDisk;
use anabranch_store::group::GroupOptions;
use anabranch_store::shard::{DataShard, DataShardSetup, JournalLimit};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::unbounded_channel;
use worker::{Mailbox, STREAM, Worker, setup};

const BODY_BYTES: usize = 64 * 1024;
/// Publishes under way.
const WINDOW: u64 = 32;
const OLD: &[u8] = b"the old message";
/// What lies there at least once much has passed: a few segments.
const LEFT_BYTES: u64 = 256 << 20;
/// Notes, beside the shard, how many bytes have passed.
const PROGRESS: &str = "passed";

fn number(name: &str, usual: u64) -> u64 {
    let told = std::env::var(name).ok().and_then(|text| text.parse().ok());
    told.unwrap_or(usual)
}

fn start(root: &Path, bytes_max: u64, incarnation: u64) -> Worker {
    let (send, mail) = unbounded_channel();
    let mut setup = setup(&SimDisk::new(0), incarnation, Mailbox(send));
    // The old message may be held for longer than a server usually lets it be.
    setup.shard.limits.ack_timeout_ms = 0;
    let shard = DataShardSetup {
        dir: root.join("shard-1"),
        disk: Arc::new(RealDisk),
        clock: Arc::new(SystemClock),
        options: GroupOptions::new("flow"),
        limit: Some(JournalLimit {
            root: root.to_owned(),
            bytes_max,
            shards: 1,
        }),
        checkpoint_bytes: 64 << 20,
        ..setup
    };
    Worker {
        shard: DataShard::start(shard).unwrap(),
        mail,
        events: VecDeque::new(),
        sequence: 0,
        ticket: 0,
    }
}

struct Flow {
    worker: Worker,
    consumer: ConsumerKey,
    /// Offset of the message that is held; `None` until it came.
    held: Option<Offset>,
    confirmed: u64,
    blocked: bool,
}

impl Flow {
    /// Takes one event: accepts every message but the old one.
    async fn step(&mut self) {
        match self.worker.event().await {
            ShardEvent::Published { last, outcome, .. } => {
                // What was on its way when the folder was full is refused, and that is all.
                let refused = self.blocked && outcome != PublishOutcome::Routed;
                assert!(refused || outcome == PublishOutcome::Routed, "{outcome:?}");
                self.confirmed = last.0;
            }
            ShardEvent::Blocked(blocked) => self.blocked = blocked,
            ShardEvent::Deliver { deliveries, .. } => {
                let mut units = 0;
                for delivery in deliveries {
                    units += travel_units(delivery.message.cost_bytes());
                    if self.held.is_none() {
                        assert_eq!(delivery.message.body, OLD);
                        self.held = Some(delivery.offset);
                        continue;
                    }
                    assert_eq!(delivery.message.body.len(), BODY_BYTES);
                    let offset = delivery.offset.0;
                    self.worker.accept(self.consumer, offset, offset);
                }
                self.worker.send(ShardRequest::Drained {
                    consumer: self.consumer,
                    stream: STREAM,
                    count: units,
                });
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

async fn flow(root: &Path, bytes_max: u64, times: u64) {
    let progress = root.join(PROGRESS);
    let noted = std::fs::read_to_string(&progress).ok();
    let mut passed: u64 = noted.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let mut worker = start(root, bytes_max, passed + 1);
    if passed == 0 {
        worker.create().await;
        let old = worker.publish(OLD.to_vec());
        assert_eq!(worker.published(old).await, PublishOutcome::Routed);
    }
    let consumer = worker.attach(1).await;
    let confirmed = worker.sequence;
    let mut flow = Flow {
        worker,
        consumer,
        held: None,
        confirmed,
        blocked: false,
    };
    while flow.held.is_none() {
        flow.step().await;
    }
    let (begun, mut most, mut said) = (Instant::now(), 0, passed / bytes_max);
    let mut look_at = passed;
    while passed < times * bytes_max {
        if !flow.blocked && flow.worker.sequence - flow.confirmed < WINDOW {
            flow.worker.publish(vec![(passed >> 16) as u8; BODY_BYTES]);
            passed += BODY_BYTES as u64;
        } else {
            flow.step().await;
        }
        if passed >= look_at {
            look_at = passed + bytes_max / 256;
            let used = RealDisk.used_bytes(root).unwrap();
            most = most.max(used);
            assert!(used < bytes_max, "{used} bytes after {passed} have passed");
        }
        if passed / bytes_max > said {
            said = passed / bytes_max;
            std::fs::write(&progress, passed.to_string()).unwrap();
            println!(
                "{said} of {times} times {} MiB in {:.1} s; the folder took {} MiB at most",
                bytes_max >> 20,
                begun.elapsed().as_secs_f64(),
                most >> 20
            );
        }
    }
    while flow.confirmed < flow.worker.sequence {
        flow.step().await;
    }
    // A consumer that keeps up leaves little behind, however high the limit is.
    assert!(
        most > (bytes_max / 8).min(LEFT_BYTES),
        "{most}: what flowed did not lie there"
    );
    flow.worker.shard.shutdown();

    let mut worker = start(root, bytes_max, passed + 2);
    let consumer = worker.attach(2).await;
    let first = worker.first_delivery().await;
    assert_eq!(first.message.body, OLD, "it was held all the time");
    worker.accept(consumer, first.offset.0, first.offset.0);
    worker.shard.shutdown();
}

#[test]
fn one_old_message_does_not_pin_what_flows_past() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let bytes_max = number("ANABRANCH_FLOW_LIMIT_MIB", 64) << 20;
    let times = number("ANABRANCH_FLOW_TIMES", 20);
    let made = tempfile::tempdir().unwrap();
    let named = std::env::var_os("ANABRANCH_FLOW_DIR").map(PathBuf::from);
    let root = named.unwrap_or_else(|| made.path().to_owned());
    std::fs::create_dir_all(&root).unwrap();
    runtime.block_on(flow(&root, bytes_max, times));
}
