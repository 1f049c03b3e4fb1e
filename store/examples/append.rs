//! Appends records through a group of one, synced before every confirm, beside a bare loop of
//! `pwrite` + `fdatasync` on the same disk. Prints one line per case.
//!
//! `cargo run --release -p anabranch-store --example append [DIR] [SECONDS]`

use anabranch_core::id::{LogIndex, Position, UnixMs};
use anabranch_core::index::{Blocks, Delta};
use anabranch_store::checkpoint::whole_delta;
use anabranch_store::clock::SystemClock;
use anabranch_store::disk::real::RealDisk;
use anabranch_store::disk::{Disk, write_all_at};
use anabranch_store::group::{Group, GroupOptions};
use anabranch_store::raft::{Applied, StateMachine};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Frames under way at a time.
const UNDER_WAY: usize = 16;

struct Count {
    bytes: u64,
    frozen: Vec<u8>,
}

impl StateMachine for Count {
    fn apply(
        &mut self,
        _: LogIndex,
        _: UnixMs,
        _: Position,
        payload: &Bytes,
    ) -> Result<Applied, String> {
        self.bytes += payload.len() as u64;
        Ok(Applied::default())
    }

    fn freeze(&mut self) {
        self.frozen = self.bytes.to_le_bytes().to_vec();
    }

    fn copy(&mut self, _: usize) -> Option<Delta> {
        Some(whole_delta(std::mem::take(&mut self.frozen)))
    }

    fn written(&mut self) {}

    fn restore(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
        _: Arc<dyn Blocks>,
    ) -> Result<(), String> {
        for (_, bytes) in pairs {
            self.bytes = u64::from_le_bytes(bytes[..].try_into().map_err(|_| "length".to_owned())?);
        }
        Ok(())
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

struct Figures {
    frames: u64,
    seconds: f64,
    cpu_us: u64,
    latencies_us: Vec<u64>,
    syncs: u64,
}

fn print(case: &str, record_bytes: usize, per_frame: usize, mut figures: Figures) {
    figures.latencies_us.sort_unstable();
    let at = |part: f64| {
        let last = figures.latencies_us.len().saturating_sub(1);
        figures
            .latencies_us
            .get((last as f64 * part) as usize)
            .copied()
            .unwrap_or(0)
    };
    let records = figures.frames * per_frame as u64;
    println!(
        "{case:<8} {record_bytes:>5} B x {per_frame:>4}/frame  {:>9.0} msg/s  {:>7.1} MB/s  {:>6.2} CPU us/msg  p50 {:>6} us  p99 {:>6} us  {:>6.0} syncs/s",
        records as f64 / figures.seconds,
        (records * record_bytes as u64) as f64 / figures.seconds / 1e6,
        figures.cpu_us as f64 / records.max(1) as f64,
        at(0.5),
        at(0.99),
        figures.syncs as f64 / figures.seconds,
    );
}

async fn through_group(
    dir: &Path,
    record_bytes: usize,
    per_frame: usize,
    run: Duration,
) -> Figures {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let options = GroupOptions::new("bench");
    let group = Group::open(
        dir,
        disk,
        Arc::new(SystemClock),
        options,
        Count {
            bytes: 0,
            frozen: Vec::new(),
        },
    )
    .await
    .expect("open");
    let record: Vec<u8> = (0..record_bytes).map(|n| n as u8).collect();
    let (send, mut receive) = mpsc::unbounded_channel();
    let (start, cpu, syncs) = (Instant::now(), cpu_us(), group.stats().journal.syncs);
    let mut under_way = 0;
    let mut latencies_us = Vec::new();
    loop {
        while under_way < UNDER_WAY && start.elapsed() < run {
            let mut payload = Vec::with_capacity(record_bytes * per_frame);
            for _ in 0..per_frame {
                payload.extend_from_slice(&record);
            }
            let (send, asked) = (send.clone(), Instant::now());
            let done = move |result: Result<_, _>| {
                let _ = send.send((asked.elapsed(), result.is_ok()));
            };
            group.propose(payload.into(), done).await;
            under_way += 1;
        }
        if under_way == 0 {
            break;
        }
        let (latency, confirmed) = receive.recv().await.expect("an answer");
        assert!(confirmed);
        latencies_us.push(latency.as_micros() as u64);
        under_way -= 1;
    }
    let figures = Figures {
        frames: latencies_us.len() as u64,
        seconds: start.elapsed().as_secs_f64(),
        cpu_us: cpu_us() - cpu,
        latencies_us,
        syncs: group.stats().journal.syncs - syncs,
    };
    group.shutdown().await;
    figures
}

fn bare(dir: &Path, record_bytes: usize, per_frame: usize, run: Duration) -> Figures {
    const FILE_BYTES: u64 = 64 * 1024 * 1024;
    let file = RealDisk
        .create_zeroed(&dir.join("bare"), FILE_BYTES)
        .expect("create");
    let payload = vec![7; record_bytes * per_frame];
    let (start, cpu) = (Instant::now(), cpu_us());
    let mut offset = 0;
    let mut latencies_us = Vec::new();
    while start.elapsed() < run {
        let asked = Instant::now();
        if offset + payload.len() as u64 > FILE_BYTES {
            offset = 0;
        }
        write_all_at(&*file, &payload, offset).expect("write");
        file.sync().expect("sync");
        offset += payload.len() as u64;
        latencies_us.push(asked.elapsed().as_micros() as u64);
    }
    let frames = latencies_us.len() as u64;
    let (seconds, cpu_us) = (start.elapsed().as_secs_f64(), cpu_us() - cpu);
    Figures {
        frames,
        seconds,
        cpu_us,
        latencies_us,
        syncs: frames,
    }
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
    let run = Duration::from_secs_f64(seconds);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    for (nth, (record_bytes, per_frame)) in [
        (128, 1),
        (128, 64),
        (128, 1024),
        (1024, 1),
        (1024, 64),
        (1024, 256),
    ]
    .into_iter()
    .enumerate()
    {
        let dir = root.join(format!("anabranch-append-{}-{nth}", std::process::id()));
        let group = runtime.block_on(through_group(&dir, record_bytes, per_frame, run));
        print("group", record_bytes, per_frame, group);
        print(
            "bare",
            record_bytes,
            per_frame,
            bare(&dir, record_bytes, per_frame, run),
        );
        let _ = std::fs::remove_dir_all(&dir);
    }
}
