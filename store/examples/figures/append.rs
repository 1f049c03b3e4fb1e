//! Records of 1 KiB through a group of one, synced before each confirm, beside a bare loop of writes of the same size
//! and `fdatasync` over a file that was written before. Rounds of the two take turns; medians of their ratios count.
//!
//! Frames have a fixed number of records, or, as a shard makes them, all that waits: up to 256 KiB, and no third small one
//! while two are under way.
//!
//! The group is measured in its steady state: a checkpoint and what it frees after each two segments, so that segments
//! are used again and none is zeroed while it is measured.

use crate::measure::{Arguments, cpu_us, cpu_us_by_thread, median, percentile};
use anabranch_core::id::{LogIndex, Position, UnixMs};
use anabranch_core::index::{Blocks, Delta};
use anabranch_store::checkpoint::whole_delta;
use anabranch_store::clock::SystemClock;
use anabranch_store::disk::real::RealDisk;
use anabranch_store::disk::{Disk, DiskFile, write_all_at};
use anabranch_store::group::{Group, GroupOptions};
use anabranch_store::raft::{Applied, StateMachine};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const RECORD_BYTES: usize = 1024;
/// Records of a frame, in turns.
const FRAME_RECORDS: [u64; 4] = [1, 16, 64, 256];
/// Frames under way at full load.
const UNDER_WAY: u64 = 16;
/// Records under way at full load where all that waits becomes a frame, in turns.
const RECORDS_UNDER_WAY: [u64; 3] = [1, 256, 4096];
/// Records of a frame there, at most.
const GATHERED_RECORDS: u64 = 256;
/// Frames of fewer records under way there, at most.
const SMALL_UNDER_WAY: u64 = 2;
/// Length of the bare loop's file.
const BARE_BYTES: u64 = 64 * 1024 * 1024;

/// Counts bytes.
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

/// Makes a checkpoint now and then, and gives back everything that the one before covers.
struct Housekeeping {
    every_bytes: u64,
    at: u64,
    before: Option<LogIndex>,
    task: Option<JoinHandle<Option<LogIndex>>>,
}

impl Housekeeping {
    async fn look(&mut self, group: &Group<Count>) {
        if let Some(task) = self.task.take_if(|task| task.is_finished()) {
            self.before = task.await.expect("no panic");
        }
        let written = group.journal().stats().bytes;
        if self.task.is_some() || written < self.at {
            return;
        }
        self.at = written + self.every_bytes;
        let (group, before) = (group.clone(), self.before);
        self.task = Some(tokio::spawn(async move {
            let covered = group.checkpoint_now().await.expect("a checkpoint");
            if let Some(before) = before {
                let all = [(Position(0), Position(u64::MAX))];
                group.give_back(&all, before).await.expect("room");
            }
            covered.or(before)
        }));
    }
}

/// How frames are made.
#[derive(Clone, Copy)]
struct Framing {
    /// Records of a frame.
    least: u64,
    most: u64,
    /// Records under way at full load.
    under_way: u64,
}

impl Framing {
    fn fixed(records: u64) -> Self {
        Self {
            least: records,
            most: records,
            under_way: UNDER_WAY * records,
        }
    }

    fn gathered(under_way: u64) -> Self {
        Self {
            least: 1,
            most: GATHERED_RECORDS,
            under_way,
        }
    }

    /// Records of the next frame, when so many wait and so many frames are under way.
    fn next(self, waiting: u64, frames: u64) -> Option<u64> {
        let records = waiting.min(self.most);
        let goes = records == self.most || (records >= self.least && frames < SMALL_UNDER_WAY);
        goes.then_some(records)
    }
}

/// One round.
struct Round {
    records: f64,
    seconds: f64,
    cpu_us: f64,
    latencies_us: Vec<u64>,
    /// Bytes of a write, on average.
    write_bytes: f64,
    syncs: u64,
}

impl Round {
    fn bytes_per_second(&self) -> f64 {
        self.records * RECORD_BYTES as f64 / self.seconds
    }
}

/// Proposes records, `rate` of them a second or as many as go, until `enough` says so. Latencies are those of frames,
/// from when as many records were there as the smallest one has.
async fn propose(
    group: &Group<Count>,
    keep: &mut Housekeeping,
    framing: Framing,
    rate: Option<f64>,
    mut enough: impl FnMut(Duration) -> bool,
) -> Round {
    let full = Bytes::from(vec![7; RECORD_BYTES * framing.most as usize]);
    let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
    let (before, cpu, start) = (group.stats().journal, cpu_us(), Instant::now());
    let (mut sent, mut confirmed, mut frames, mut latencies_us) = (0, 0, 0u64, Vec::new());
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    let mut over = false;
    while !over || confirmed < sent {
        over = over || enough(start.elapsed());
        loop {
            let there = match rate {
                _ if over => sent,
                Some(rate) => (start.elapsed().as_secs_f64() * rate) as u64,
                None => confirmed + framing.under_way,
            };
            let under_way = frames - latencies_us.len() as u64;
            let Some(records) = framing.next(there.saturating_sub(sent), under_way) else {
                break;
            };
            let asked = match rate {
                Some(rate) => start + Duration::from_secs_f64((sent + framing.least) as f64 / rate),
                None => Instant::now(),
            };
            (sent, frames) = (sent + records, frames + 1);
            let send = send.clone();
            let done = move |result: Result<_, _>| {
                let _ = send.send((records, asked.elapsed(), result.is_ok()));
            };
            let frame = full.slice(..RECORD_BYTES * records as usize);
            group.propose(frame, done).await;
        }
        keep.look(group).await;
        tokio::select! {
            answer = receive.recv() => {
                let (records, latency, is_confirmed) = answer.expect("an answer");
                assert!(is_confirmed);
                confirmed += records;
                latencies_us.push(latency.as_micros() as u64);
            }
            _ = ticks.tick() => {}
        }
    }
    let after = group.stats().journal;
    Round {
        records: sent as f64,
        seconds: start.elapsed().as_secs_f64(),
        cpu_us: cpu_us() - cpu,
        latencies_us,
        write_bytes: (after.bytes - before.bytes) as f64
            / (after.writes - before.writes).max(1) as f64,
        syncs: after.syncs - before.syncs,
    }
}

/// Writes and syncs pieces of `write_bytes`.
fn bare(file: &dyn DiskFile, write_bytes: f64, run: Duration) -> Round {
    let piece = vec![7; write_bytes as usize];
    let (cpu, start) = (cpu_us(), Instant::now());
    let (mut offset, mut latencies_us) = (0, Vec::new());
    while start.elapsed() < run {
        let asked = Instant::now();
        if offset + piece.len() as u64 > BARE_BYTES {
            offset = 0;
        }
        write_all_at(file, &piece, offset).expect("write");
        file.sync().expect("sync");
        offset += piece.len() as u64;
        latencies_us.push(asked.elapsed().as_micros() as u64);
    }
    let syncs = latencies_us.len() as u64;
    Round {
        records: syncs as f64 * write_bytes / RECORD_BYTES as f64,
        seconds: start.elapsed().as_secs_f64(),
        cpu_us: cpu_us() - cpu,
        latencies_us,
        write_bytes,
        syncs,
    }
}

fn print(case: &str, round: &mut Round) {
    println!(
        "  {case:<5} {:>8.1} MB/s  {:>9.0} records/s  {:>6.2} CPU us/record  {:>8.0} B/write  {:>6.0} syncs/s  p50 {:>6} us  p99 {:>6} us",
        round.bytes_per_second() / 1e6,
        round.records / round.seconds,
        round.cpu_us / round.records.max(1.0),
        round.write_bytes,
        round.syncs as f64 / round.seconds,
        percentile(&mut round.latencies_us, 0.5),
        percentile(&mut round.latencies_us, 0.99),
    );
}

async fn case(dir: &Path, name: &str, framing: Framing, arguments: &Arguments) {
    let run = Duration::from_secs_f64(arguments.number("seconds", 3.0));
    let segment_bytes = arguments.number("segment_mib", 64.0) as u64 * 1024 * 1024;
    let options = GroupOptions {
        segment_bytes,
        ..GroupOptions::new("figures")
    };
    let state = Count {
        bytes: 0,
        frozen: Vec::new(),
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let folder = dir.join("group");
    let group = Group::open(&folder, disk, Arc::new(SystemClock), options, state);
    let group = group.await.expect("open");
    let bare_file = RealDisk.create_zeroed(&dir.join("bare"), BARE_BYTES);
    let bare_file = bare_file.expect("create");
    let mut keep = Housekeeping {
        every_bytes: 2 * segment_bytes,
        at: 0,
        before: None,
        task: None,
    };
    // Until segments are used again.
    let journal = group.journal().clone();
    let warm = move |_| journal.stats().bytes > 8 * segment_bytes;
    propose(&group, &mut keep, Framing::fixed(256), None, warm).await;
    println!(
        "{name} records of {RECORD_BYTES} B, {} records under way",
        framing.under_way
    );
    let threads = cpu_us_by_thread();
    let (mut ratios, mut costs, mut confirms) = (Vec::new(), Vec::new(), Vec::new());
    let mut records = 0.0;
    for _ in 0..arguments.number("rounds", 5.0) as usize {
        let over = |since: Duration| since >= run;
        let mut full = propose(&group, &mut keep, framing, None, over).await;
        print("group", &mut full);
        // On a thread of its own, so that its time is told from the group's.
        let mut bare = std::thread::scope(|scope| {
            let looping = scope.spawn(|| bare(&*bare_file, full.write_bytes, run));
            looping.join().expect("no panic")
        });
        print("bare", &mut bare);
        let rate = full.records / full.seconds / 2.0;
        let mut half = propose(&group, &mut keep, framing, Some(rate), over).await;
        print("half", &mut half);
        ratios.push(full.bytes_per_second() / bare.bytes_per_second());
        costs.push(full.cpu_us / full.records);
        let sync = percentile(&mut bare.latencies_us, 0.99);
        confirms.push(percentile(&mut half.latencies_us, 0.99) as f64 / sync.max(1) as f64);
        records += full.records + half.records;
    }
    println!(
        "  => {:.2} of the bare loop's throughput (at least 0.80), {:.2} CPU us/record (at most 1.2), p99 confirm at half load {:.1} times the bare loop's p99 (at most 3)",
        median(&mut ratios),
        median(&mut costs),
        median(&mut confirms)
    );
    println!(
        "  CPU us/record by thread, user and system, full and half load together, without the bare loop's:"
    );
    for (name, (user, system)) in cpu_us_by_thread() {
        let (user_before, system_before) = threads.get(&name).copied().unwrap_or_default();
        let (user, system) = (user - user_before, system - system_before);
        if user + system > 0.0 {
            println!(
                "     {name:<16} {:>6.3} + {:>6.3}",
                user / records,
                system / records
            );
        }
    }
    if let Some(task) = keep.task {
        let _ = task.await;
    }
    group.shutdown().await;
}

pub fn run(dir: &Path, arguments: &Arguments) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let fixed =
        FRAME_RECORDS.map(|records| (format!("frames of {records}"), Framing::fixed(records)));
    let gathered = RECORDS_UNDER_WAY.map(|under_way| {
        (
            "frames of all waiting".to_owned(),
            Framing::gathered(under_way),
        )
    });
    for (name, framing) in fixed.into_iter().chain(gathered) {
        runtime.block_on(case(dir, &name, framing, arguments));
        let _ = std::fs::remove_dir_all(dir);
    }
}
