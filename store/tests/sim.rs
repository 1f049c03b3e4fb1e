//! A group of one through many lives on a disk that loses power: what was confirmed is there, in
//! order, and nothing that was never proposed. The disk also fails, fills up and lies. `seeds/mod.rs` says
//! which seeds run.

mod packing;
mod seeds;

use anabranch_core::id::{LogIndex, Position, UnixMs};
use anabranch_core::index::{BLOCK_BYTES, Block, Blocks, Delta};
use anabranch_store::clock::RuntimeClock;
use anabranch_store::disk::sim::{Faults, SimDisk};
use anabranch_store::group::{Group, GroupOpenError, GroupOptions};
use anabranch_store::journal::{OpenError, WriterMode};
use anabranch_store::raft::{Applied, StateMachine};
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Numbers in one page of the book.
const PAGE: usize = 16;

/// A page's checksum: whoever reads a block checks it.
fn check(numbers: &[u64]) -> u32 {
    let mut hash = DefaultHasher::new();
    numbers.hash(&mut hash);
    hash.finish() as u32
}

/// Records as the state machine saw them: each payload is a number and padding. A checkpoint has a pair
/// for each page that changed, and the numbers of a page in a block.
#[derive(Default)]
struct Book {
    numbers: Vec<u64>,
    places: Vec<(Position, Bytes)>,
    clock: UnixMs,
    changed: BTreeSet<usize>,
    /// Pages of a checkpoint that are still to be copied, and what is copied.
    frozen: Vec<(usize, Vec<u64>)>,
    delta: Delta,
    blocks: BTreeMap<usize, Block>,
    end: u32,
    free: Vec<Block>,
    /// Blocks not needed any more: since the last checkpoint, by it, by the one before.
    gone: [Vec<Block>; 2],
}

impl Book {
    fn page(&self, page: usize) -> Vec<u64> {
        let page = self.numbers.chunks(PAGE).nth(page);
        page.unwrap_or_default().to_vec()
    }

    fn copy_page(&mut self, page: usize, numbers: &[u64]) {
        let block = self.free.pop().unwrap_or_else(|| {
            self.end += 1;
            Block(self.end)
        });
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        self.delta.blocks.push((block, bytes));
        let key = (page as u64).to_be_bytes().to_vec();
        let value = [block.0, numbers.len() as u32, check(numbers)].map(u32::to_le_bytes);
        let pair = (Bytes::from(key), Some(Bytes::from(value.concat())));
        self.delta.pairs.push(pair);
        self.gone[0].extend(self.blocks.insert(page, block));
    }
}

impl StateMachine for Book {
    fn apply(
        &mut self,
        _index: LogIndex,
        clock: UnixMs,
        position: Position,
        payload: &Bytes,
    ) -> Result<Applied, String> {
        assert!(clock >= self.clock);
        self.clock = clock;
        let number = payload.first_chunk::<8>().ok_or("too short")?;
        self.changed.insert(self.numbers.len() / PAGE);
        self.numbers.push(u64::from_le_bytes(*number));
        self.places.push((position, payload.clone()));
        Ok(Applied::default())
    }

    fn freeze(&mut self) {
        let pages = std::mem::take(&mut self.changed);
        self.frozen = pages
            .into_iter()
            .map(|page| (page, self.page(page)))
            .collect();
    }

    /// A page at a time.
    fn copy(&mut self, _: usize) -> Option<Delta> {
        match self.frozen.pop() {
            Some((page, numbers)) => {
                self.copy_page(page, &numbers);
                None
            }
            None => Some(std::mem::take(&mut self.delta)),
        }
    }

    fn written(&mut self) {
        let [copied, rested] = &mut self.gone;
        self.free.append(rested);
        rested.append(copied);
    }

    fn restore(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
        blocks: Arc<dyn Blocks>,
    ) -> Result<(), String> {
        let u32_at = |bytes: &[u8], at| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        for (key, value) in pairs {
            let page = u64::from_be_bytes(key[..].try_into().unwrap()) as usize;
            assert_eq!(self.numbers.len(), page * PAGE, "a page is missing");
            let (block, count) = (Block(u32_at(&value, 0)), u32_at(&value, 4) as usize);
            let bytes = blocks.read(block).ok_or("a block cannot be read")?;
            let numbers = bytes.chunks_exact(8).take(count);
            let numbers = numbers.map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
            let numbers: Vec<u64> = numbers.collect();
            if check(&numbers) != u32_at(&value, 8) {
                return Err(format!("block {} is damaged", block.0));
            }
            self.numbers.extend(numbers);
            self.blocks.insert(page, block);
            self.end = self.end.max(block.0);
        }
        // A little more than any block of a checkpoint that was being written.
        self.end += 1000;
        Ok(())
    }
}

/// What a run may differ in.
#[derive(Clone, Copy, PartialEq)]
enum Weather {
    /// Power goes at any moment.
    PowerLoss,
    /// And syncs may fail before it goes.
    FailingSyncs,
    /// And writes may.
    FailingWrites,
    /// And the disk may be full for a while.
    FullDisk,
}

impl Weather {
    fn faults(self, disk: &SimDisk, random: &mut SmallRng) -> Faults {
        let after = Some(random.random_range(0..40));
        let mut faults = Faults::default();
        match self {
            // At any call, whatever is under way.
            Weather::PowerLoss => faults.power_off_after = Some(random.random_range(0..400)),
            Weather::FailingSyncs => faults.fail_sync_after = after,
            Weather::FailingWrites => faults.fail_write_after = after,
            Weather::FullDisk => {
                let more = random.random_range(0..40_000);
                faults.capacity_bytes = Some(disk.occupied_bytes() + more);
            }
        }
        faults
    }
}

fn payload(number: u64, len: usize) -> Bytes {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(8 + len, (number % 251) as u8 | 1);
    bytes.into()
}

/// Runs all lives of one seed; gives a trace that the same seed must repeat.
async fn lives(seed: u64, weather: Weather) -> (u64, Vec<u64>) {
    let mut random = SmallRng::seed_from_u64(seed);
    let disk = SimDisk::new(seed);
    let mut proposed = 0u64;
    let confirmed = Arc::new(Mutex::new(Vec::<u64>::new()));
    let mut trace = Vec::new();
    for life in 0..6u64 {
        let options = GroupOptions {
            segment_bytes: 1 << random.random_range(12..16),
            tail_bytes: random.random_range(0..4096),
            outstanding_bytes: 20_000,
            seed: random.random(),
            packing: packing::of(seed, life),
            writer: WriterMode::Local {
                latency: Duration::from_micros(random.random_range(0..900)),
            },
            ..GroupOptions::new("sim")
        };
        let clock = Arc::new(RuntimeClock::new(random.random_range(0..10_000)));
        let opened = Group::open(
            Path::new("g"),
            Arc::new(disk.clone()),
            clock,
            options,
            Book::default(),
        )
        .await;
        let group = opened.unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));

        let known = confirmed.lock().unwrap().clone();
        let checked = group
            .with_state(|book| (book.numbers.clone(), std::mem::take(&mut book.places)))
            .await
            .unwrap();
        let (numbers, places) = checked;
        let there: BTreeSet<u64> = numbers.iter().copied().collect();
        assert!(
            numbers.is_sorted(),
            "seed {seed}, life {life}: out of order"
        );
        assert_eq!(
            there.len(),
            numbers.len(),
            "seed {seed}, life {life}: something came twice"
        );
        let lost: Vec<_> = known
            .iter()
            .filter(|number| !there.contains(number))
            .collect();
        assert!(
            lost.is_empty(),
            "seed {seed}, life {life}: confirmed and lost: {lost:?}"
        );
        assert!(
            numbers.last().is_none_or(|last| *last < proposed),
            "seed {seed}: never proposed"
        );
        for (position, bytes) in places {
            assert_eq!(
                group.read(position, bytes.len()).unwrap(),
                bytes,
                "seed {seed}"
            );
        }
        trace.push(disk.fingerprint());
        trace.push(numbers.len() as u64);

        if random.random_bool(0.5) {
            disk.set_faults(weather.faults(&disk, &mut random));
        }
        // What waits for room holds up whoever proposes more: some is made after a while.
        let room_after = Duration::from_millis(random.random_range(0..60));
        let makes_room = (weather == Weather::FullDisk).then(|| {
            let disk = disk.clone();
            tokio::spawn(async move {
                tokio::time::sleep(room_after).await;
                disk.set_faults(Faults::default());
            })
        });
        let checkpoint_at = random.random_range(0..120);
        let answers = Arc::new(AtomicU64::new(0));
        for step in 0..random.random_range(1..120) {
            let number = proposed;
            proposed += 1;
            let (confirmed, answers) = (confirmed.clone(), answers.clone());
            let done = move |result: Result<_, _>| {
                answers.fetch_add(1, Ordering::Relaxed);
                if result.is_ok() {
                    confirmed.lock().unwrap().push(number);
                }
            };
            // Now and then one that compresses.
            let len = match random.random_range(0..12) {
                0 if !seed.is_multiple_of(3) => 17_000,
                _ => random.random_range(0..1500),
            };
            group.propose(payload(number, len), done).await;
            if step == checkpoint_at || random.random_bool(0.04) {
                // One that fails leaves the one before.
                let _ = group.checkpoint_now().await;
            }
            if random.random_bool(0.3) {
                tokio::time::sleep(Duration::from_micros(random.random_range(0..2000))).await;
            }
        }
        if random.random_bool(0.2) {
            disk.set_faults(Faults::default());
            group.shutdown().await;
        }
        trace.push(answers.load(Ordering::Relaxed));
        if let Some(task) = makes_room {
            task.abort();
        }
        disk.crash();
        drop(group);
        // The tasks of the life before end at their first touch of the dead disk.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    trace.push(confirmed.lock().unwrap().len() as u64);
    (proposed, trace)
}

/// One seed on a runtime of its own.
fn run(seed: u64, weather: Weather) -> (u64, Vec<u64>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(lives(seed, weather))
}

#[test]
fn what_was_confirmed_survives_every_power_loss_in_order() {
    let (mut proposed, mut confirmed) = (0, 0);
    seeds::each("power-loss", 8, 10.0, |seed| {
        let (all, trace) = run(seed, Weather::PowerLoss);
        proposed += all;
        confirmed += trace.last().unwrap();
    });
    println!("{proposed} proposed, {confirmed} confirmed, 0 lost");
    assert!(confirmed >= proposed / 4);
}

#[test]
fn failing_syncs_lose_nothing_that_was_confirmed() {
    seeds::each("failing-syncs", 8, 7.0, |seed| {
        run(seed, Weather::FailingSyncs);
    });
}

#[test]
fn failing_writes_lose_nothing_that_was_confirmed() {
    seeds::each("failing-writes", 8, 7.0, |seed| {
        run(seed, Weather::FailingWrites);
    });
}

#[test]
fn a_full_disk_loses_nothing_that_was_confirmed() {
    seeds::each("full-disk", 8, 7.0, |seed| {
        run(seed, Weather::FullDisk);
    });
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for seed in [3, 4] {
        assert_eq!(
            run(seed, Weather::FailingSyncs),
            run(seed, Weather::FailingSyncs),
            "seed {seed}"
        );
    }
    assert_ne!(run(3, Weather::PowerLoss).1, run(4, Weather::PowerLoss).1);
}

/// A disk that lies about syncs may lose what was confirmed; the journal must then stop or come back
/// with a prefix, and never with something else.
#[test]
fn a_disk_that_lies_gives_a_prefix_or_a_refusal() {
    let (mut refused, mut opened) = (0, 0);
    seeds::each("lying-disk", 16, 5.0, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let disk = SimDisk::new(seed);
            let options = GroupOptions {
                segment_bytes: 4096,
                writer: WriterMode::Local {
                    latency: Duration::from_micros(100),
                },
                ..GroupOptions::new("sim")
            };
            let open = || {
                let clock = Arc::new(RuntimeClock::new(1));
                Group::open(
                    Path::new("g"),
                    Arc::new(disk.clone()),
                    clock,
                    options.clone(),
                    Book::default(),
                )
            };
            let group = open().await.unwrap();
            disk.set_faults(Faults {
                lose_one_sync_in: random.random_range(2..8),
                ..Faults::default()
            });
            for number in 0..random.random_range(1..90) {
                group.propose_and_wait(payload(number, 100)).await.unwrap();
                if random.random_bool(0.05) {
                    group.checkpoint_now().await.unwrap();
                }
            }
            disk.crash();
            drop(group);
            tokio::time::sleep(Duration::from_secs(1)).await;
            match open().await {
                Ok(group) => {
                    let numbers = group.with_state(|book| book.numbers.clone()).await.unwrap();
                    assert!(
                        numbers.iter().copied().eq(0..numbers.len() as u64),
                        "seed {seed}: {numbers:?}"
                    );
                    opened += 1;
                }
                Err(GroupOpenError::Journal(OpenError::Corrupt { .. }))
                | Err(GroupOpenError::Checkpoint { .. }) => refused += 1,
                Err(GroupOpenError::Start { what, .. }) if what.contains("is corrupt") => {
                    refused += 1;
                }
                Err(other) => panic!("seed {seed}: {other}"),
            }
        });
    });
    println!("{opened} opened with a prefix, {refused} refused as corrupt");
}
