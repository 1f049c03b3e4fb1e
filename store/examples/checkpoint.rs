//! Confirms at half load, without and with checkpoints, in turns: what checkpoints add to the slowest.
//! Then how long opening takes. Prints a line per case.
//!
//! `cargo run --release -p anabranch-store --example checkpoint [DIR] [SECONDS] [STREAMS] [MIB BETWEEN CHECKPOINTS]`

use anabranch_core::id::{LogIndex, Position, UnixMs};
use anabranch_core::index::{BLOCK_BYTES, Block, Blocks, Delta};
use anabranch_store::clock::SystemClock;
use anabranch_store::disk::real::RealDisk;
use anabranch_store::group::{Group, GroupOptions};
use anabranch_store::raft::{Applied, StateMachine};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a record, and records of a frame.
const RECORD_BYTES: usize = 1024;
const FRAME_RECORDS: u64 = 16;
/// Bytes of a stream's pair.
const PAIR_BYTES: usize = 200;
/// Records of a stream after which a block of it is written.
const BLOCK_RECORDS: u64 = 64;
/// Frames under way at full load.
const UNDER_WAY: u64 = 16;
/// Turns of each case.
const TURNS: usize = 4;

/// Streams that get records one after the other. Its pairs have the size of real ones.
struct Streams {
    count: u64,
    records: u64,
    changed: BTreeSet<u64>,
    full_blocks: Vec<Block>,
    next_block: u32,
    frozen: Vec<u64>,
    delta: Delta,
    restored: Arc<AtomicU64>,
}

impl Streams {
    fn new(count: u64, restored: Arc<AtomicU64>) -> Self {
        Self {
            count,
            records: 0,
            // All are new.
            changed: (0..count).collect(),
            full_blocks: Vec::new(),
            next_block: 0,
            frozen: Vec::new(),
            delta: Delta::default(),
            restored,
        }
    }
}

impl StateMachine for Streams {
    fn apply(&mut self, _: LogIndex, _: UnixMs, _: Position, _: &Bytes) -> Result<Applied, String> {
        for _ in 0..FRAME_RECORDS {
            self.records += 1;
            // Spread, as devices are.
            let stream = self.records.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.count;
            self.changed.insert(stream);
            if self.records.is_multiple_of(BLOCK_RECORDS) {
                self.next_block = (self.next_block + 1) % 1_000_000;
                self.full_blocks.push(Block(self.next_block));
            }
        }
        Ok(Applied::default())
    }

    fn freeze(&mut self) {
        self.frozen = std::mem::take(&mut self.changed).into_iter().collect();
    }

    fn copy(&mut self, bytes: usize) -> Option<Delta> {
        let mut copied = 0;
        while copied < bytes {
            if let Some(block) = self.full_blocks.pop() {
                let filled = Box::new([block.0 as u8; BLOCK_BYTES]);
                self.delta.blocks.push((block, filled));
                copied += BLOCK_BYTES;
            } else if let Some(stream) = self.frozen.pop() {
                let key = Bytes::copy_from_slice(&stream.to_be_bytes());
                let value = Bytes::from(vec![self.records as u8; PAIR_BYTES]);
                self.delta.pairs.push((key, Some(value)));
                copied += PAIR_BYTES;
            } else {
                return Some(std::mem::take(&mut self.delta));
            }
        }
        None
    }

    fn written(&mut self) {}

    fn restore(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
        _: Arc<dyn Blocks>,
    ) -> Result<(), String> {
        let count = pairs.filter(|(_, value)| value.len() == PAIR_BYTES).count();
        self.restored.store(count as u64, Ordering::Relaxed);
        self.changed.clear();
        Ok(())
    }
}

async fn open(dir: &Path, streams: u64, restored: &Arc<AtomicU64>) -> Group<Streams> {
    let state = Streams::new(streams, restored.clone());
    let opened = Group::open(
        dir,
        Arc::new(RealDisk),
        Arc::new(SystemClock),
        GroupOptions::new("bench"),
        state,
    );
    opened.await.expect("open")
}

/// Proposes frames at `rate` a second (0: as many as go) until `run` is over; gives their latencies.
async fn propose(
    group: &Group<Streams>,
    rate: f64,
    run: Duration,
    checkpoint_bytes: u64,
) -> Vec<u64> {
    let frame = Bytes::from(vec![7; RECORD_BYTES * FRAME_RECORDS as usize]);
    let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
    let start = Instant::now();
    let mut latencies_us = Vec::new();
    let mut sent = 0u64;
    let mut checkpoint_at = group.journal().stats().bytes + checkpoint_bytes / 4;
    let mut checkpoint: Option<tokio::task::JoinHandle<()>> = None;
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    while start.elapsed() < run || (latencies_us.len() as u64) < sent {
        let due = if start.elapsed() >= run {
            0
        } else if rate > 0.0 {
            ((start.elapsed().as_secs_f64() * rate) as u64).saturating_sub(sent)
        } else {
            UNDER_WAY.saturating_sub(sent - latencies_us.len() as u64)
        };
        for _ in 0..due {
            sent += 1;
            let (send, asked) = (send.clone(), Instant::now());
            let done = move |result: Result<_, _>| {
                let _ = send.send((asked.elapsed(), result.is_ok()));
            };
            group.propose(frame.clone(), done).await;
        }
        if group.journal().stats().bytes >= checkpoint_at
            && checkpoint.as_ref().is_none_or(|task| task.is_finished())
        {
            checkpoint_at = group.journal().stats().bytes + checkpoint_bytes;
            let group = group.clone();
            checkpoint = Some(tokio::spawn(async move {
                group.checkpoint_now().await.expect("a checkpoint");
            }));
        }
        tokio::select! {
            answer = receive.recv() => {
                let (latency, confirmed) = answer.expect("an answer");
                assert!(confirmed);
                latencies_us.push(latency.as_micros() as u64);
            }
            _ = ticks.tick() => {}
        }
    }
    if let Some(task) = checkpoint {
        task.await.expect("no panic");
    }
    latencies_us
}

fn print(case: &str, mut latencies_us: Vec<u64>) {
    latencies_us.sort_unstable();
    let last = latencies_us.len().saturating_sub(1);
    let at = |part: f64| latencies_us.get((last as f64 * part) as usize);
    let [half, most, nearly_all, all] = [0.5, 0.99, 0.999, 1.0].map(|part| at(part).copied());
    println!(
        "{case:<22} {:>8} confirms  p50 {:>6} us  p99 {:>6} us  p99.9 {:>6} us  max {:>6} us",
        latencies_us.len(),
        half.unwrap_or(0),
        most.unwrap_or(0),
        nearly_all.unwrap_or(0),
        all.unwrap_or(0),
    );
}

async fn bench(dir: &Path, run: Duration, streams: u64, checkpoint_bytes: u64) {
    let restored = Arc::new(AtomicU64::new(0));
    let group = open(dir, streams, &restored).await;
    let start = Instant::now();
    propose(&group, 0.0, Duration::from_millis(100), u64::MAX / 2).await;
    group.checkpoint_now().await.expect("a checkpoint");
    println!(
        "first checkpoint of {streams} streams: {} ms",
        start.elapsed().as_millis()
    );
    let full = propose(&group, 0.0, run, u64::MAX / 2).await;
    let rate = full.len() as f64 / run.as_secs_f64() / 2.0;
    print("full load", full);
    println!(
        "half load: {rate:.0} frames of {FRAME_RECORDS} records a second; a checkpoint every {} MiB",
        checkpoint_bytes >> 20
    );
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let before = group.stats().checkpoint;
    let mut slowest_us = 0;
    for _ in 0..TURNS {
        without.extend(propose(&group, rate, run, u64::MAX / 2).await);
        with.extend(propose(&group, rate, run, checkpoint_bytes).await);
        slowest_us = slowest_us.max(group.stats().checkpoint.last_us);
    }
    print("without checkpoints", without);
    print("with checkpoints", with);
    let after = group.stats().checkpoint;
    let written = after.written - before.written;
    println!(
        "{written} checkpoints of {:.1} MB on average, the slowest seen {:.0} ms; {} times folded, {:.1} MB each; longest pause of the shard {} us; {} runs of {:.1} MB",
        (after.bytes - before.bytes) as f64 / written.max(1) as f64 / 1e6,
        slowest_us as f64 / 1e3,
        after.folds - before.folds,
        (after.folded_bytes - before.folded_bytes) as f64
            / (after.folds - before.folds).max(1) as f64
            / 1e6,
        after.longest_pause_us,
        after.runs,
        after.run_bytes as f64 / 1e6,
    );
    group.checkpoint_now().await.expect("a checkpoint");
    group.shutdown().await;
    drop(group);
    let start = Instant::now();
    let group = open(dir, streams, &restored).await;
    println!(
        "opened in {} ms, {} pairs",
        start.elapsed().as_millis(),
        restored.load(Ordering::Relaxed)
    );
    group.shutdown().await;
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let root = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let mut number = |otherwise: f64| {
        let given = arguments.next().and_then(|text| text.parse().ok());
        given.unwrap_or(otherwise)
    };
    let run = Duration::from_secs_f64(number(3.0));
    let streams = number(1_000_000.0) as u64;
    let checkpoint_bytes = (number(64.0) as u64) << 20;
    let dir = root.join(format!("anabranch-checkpoint-{}", std::process::id()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    runtime.block_on(bench(&dir, run, streams, checkpoint_bytes));
    let _ = std::fs::remove_dir_all(&dir);
}
