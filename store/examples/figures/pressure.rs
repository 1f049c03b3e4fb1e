//! What consumers at the end notice of a reader that walks through history. To be run in a memory cgroup smaller than the
//! history, so that what the walker reads and what was just written compete.
//!
//! Messages come at a fixed rate, each with the time at which it was due; rounds without and with the walker take turns.
//! A virtual machine that takes more than its share is stopped for tens of milliseconds, and then p99 is that of the stops.
//! So a thread that goes before all others looks for them, and what was under way in one is not counted where that thread
//! may be had (as root). How much that was is printed.

use crate::measure::{Arguments, file_bytes, median, percentile};
use crate::worker::{Worker, start};
use anabranch_core::id::StreamId;
use bytes::Bytes;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thread_priority::unix::{
    RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};
use thread_priority::{ThreadPriority, ThreadPriorityValue};

const HISTORY: StreamId = StreamId(1);
const TAIL: StreamId = StreamId(2);
const BODY_BYTES: usize = 1024;
/// Bodies of the history are larger: fewer of them fill a disk.
const HISTORY_BODY_BYTES: usize = 4096;
/// How often is looked for stops.
const WATCH: Duration = Duration::from_millis(1);
/// What comes so much too late is one.
const STOP: Duration = Duration::from_millis(4);
/// Above that of the journal's writer.
const WATCH_PRIORITY: u8 = 2;

/// From and until when.
type Span = (Instant, Instant);

/// Looks for when the whole machine stood, until told to end; nothing is told of where it may not go before all others.
fn stops(end: &AtomicBool) -> Vec<Span> {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let priority = ThreadPriorityValue::try_from(WATCH_PRIORITY).expect("a priority");
    let wish = ThreadPriority::Crossplatform(priority);
    let first = set_thread_priority_and_policy(thread_native_id(), wish, policy).is_ok();
    let (mut found, mut before) = (Vec::new(), Instant::now());
    while !end.load(Ordering::Relaxed) {
        std::thread::sleep(WATCH);
        let now = Instant::now();
        if first && now - before > WATCH + STOP {
            found.push((before, now));
        }
        before = now;
    }
    found
}

/// What of a round counts, and the share of what does not.
fn counted(samples: Vec<Span>, stops: &[Span]) -> (Vec<u64>, f64) {
    let all = samples.len();
    let met = |(due, came): &Span| stops.iter().any(|(from, until)| due < until && came > from);
    let rest = samples.into_iter().filter(|sample| !met(sample));
    let latencies_us: Vec<u64> = rest
        .map(|(due, came)| came.saturating_duration_since(due).as_micros() as u64)
        .collect();
    let share = 1.0 - latencies_us.len() as f64 / all.max(1) as f64;
    (latencies_us, share)
}

/// Publishes and consumes at `rate`; gives when each message was due, until when it was there.
fn tail(worker: &mut Worker, rate: f64, run: Duration) -> Vec<Span> {
    let (start, mut sent, mut samples) = (Instant::now(), 0u64, Vec::new());
    let gap = Duration::from_secs_f64(1.0 / rate);
    while start.elapsed() < run || (samples.len() as u64) < sent {
        while start.elapsed() < run && start.elapsed() >= gap.mul_f64(sent as f64) {
            let due_us = gap.mul_f64(sent as f64).as_micros() as u64;
            let mut body = vec![0; BODY_BYTES];
            body[..8].copy_from_slice(&due_us.to_le_bytes());
            worker.publish(&[TAIL], Bytes::from(body));
            sent += 1;
        }
        worker.flush();
        let next = gap.mul_f64(sent as f64).saturating_sub(start.elapsed());
        worker.receive(TAIL, next, |delivery| {
            let due = delivery.message.body.first_chunk().copied();
            let due_us = u64::from_le_bytes(due.expect("a stamp"));
            samples.push((start + Duration::from_micros(due_us), Instant::now()));
        });
    }
    while worker.under_way() > 0 {
        worker.receive(TAIL, Duration::MAX, |_| {});
    }
    samples
}

/// Walks through the history, again and again, until told to stop, at so many bytes a second; gives the bytes of bodies.
fn walk(worker: &mut Worker, messages: u64, rate: f64, stop: &AtomicBool) -> u64 {
    let (start, mut bytes) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        worker.attach(HISTORY, true);
        let mut seen = 0;
        while seen < messages && !stop.load(Ordering::Relaxed) {
            worker.receive(HISTORY, Duration::MAX, |delivery| {
                seen += 1;
                bytes += delivery.message.body.len() as u64;
            });
            let due = Duration::from_secs_f64(bytes as f64 / rate);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
        worker.detach(HISTORY);
    }
    bytes
}

pub fn run(dir: &Path, arguments: &Arguments) {
    let messages = (arguments.number("mib", 4096.0) * 1024.0 * 1024.0) as u64;
    let messages = messages / HISTORY_BODY_BYTES as u64;
    let rate = arguments.number("rate", 2000.0);
    let walk_rate = arguments.number("walk_mb", f64::INFINITY) * 1e6;
    let round = Duration::from_secs_f64(arguments.number("seconds", 20.0));
    let (shard, workers) = start(dir, 2);
    let [mut at_end, mut walker]: [Worker; 2] = workers.try_into().ok().expect("two");
    at_end.create(HISTORY, true);
    at_end.create(TAIL, false);
    let body = Bytes::from(vec![7; HISTORY_BODY_BYTES]);
    at_end.publish_all(&[HISTORY], &body, messages, false);
    at_end.attach(TAIL, false);
    println!(
        "history of {} MiB in {messages} messages; {rate} messages of {BODY_BYTES} B a second at the end",
        (messages * HISTORY_BODY_BYTES as u64) >> 20
    );
    tail(&mut at_end, rate, round / 4);
    let mut changes = Vec::new();
    for _ in 0..arguments.number("rounds", 3.0) as usize {
        let (before, start, stop) = (
            shard.stats().journal,
            Instant::now(),
            AtomicBool::new(false),
        );
        let (alone, with, walked, stops) = std::thread::scope(|scope| {
            let watching = scope.spawn(|| stops(&stop));
            let alone = tail(&mut at_end, rate, round);
            let end = AtomicBool::new(false);
            let (with, walked) = std::thread::scope(|scope| {
                let walking = scope.spawn(|| walk(&mut walker, messages, walk_rate, &end));
                let with = tail(&mut at_end, rate, round);
                end.store(true, Ordering::Relaxed);
                (with, walking.join().expect("no panic"))
            });
            stop.store(true, Ordering::Relaxed);
            (alone, with, walked, watching.join().expect("no panic"))
        });
        let ((mut alone, lost_alone), (mut with, lost)) =
            (counted(alone, &stops), counted(with, &stops));
        let (after, seconds) = (shard.stats().journal, start.elapsed().as_secs_f64() / 2.0);
        let [alone_50, with_50] = [&mut alone, &mut with].map(|one| percentile(one, 0.5));
        let [alone_99, with_99] = [&mut alone, &mut with].map(|one| percentile(one, 0.99));
        let change = (with_99 as f64 / alone_99.max(1) as f64 - 1.0) * 100.0;
        changes.push(change);
        println!(
            "  without: p50 {alone_50:>6} us  p99 {alone_99:>6} us   with: p50 {with_50:>6} us  p99 {with_99:>6} us  ({change:+.0} %)   not counted {:.0} % and {:.0} %   walked {:>6.0} MiB at {:>5.0} MB/s: {:.0} MB ahead, {:.0} MB by file; {:.0} MiB of mapped files resident",
            lost_alone * 100.0,
            lost * 100.0,
            walked as f64 / 1048576.0,
            walked as f64 / seconds / 1e6,
            (after.read_ahead_bytes - before.read_ahead_bytes) as f64 / 1e6,
            (after.read_file_bytes - before.read_file_bytes) as f64 / 1e6,
            file_bytes() as f64 / 1048576.0,
        );
    }
    println!(
        "  => p99 at the end changes by {:+.0} % (less than 25)",
        median(&mut changes)
    );
    shard.shutdown();
}
