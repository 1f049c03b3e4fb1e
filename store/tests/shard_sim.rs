//! A data shard through many lives on a disk that loses power, fails and fills up: every confirmed message is
//! handed out until it was settled, in order, and no message comes twice in one life but for what a seek takes back.
//! Checkpoints, giving room back and eviction of the index go on meanwhile. After each life copies of the disk rot
//! (`rot/mod.rs`).
//! `seeds/mod.rs` says which seeds run.

mod packing;
mod rot;
mod seeds;
mod worker;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::Offset;
use anabranch_core::port::{ConsumerKey, Question, SeekTo, ShardEvent, ShardReply, ShardRequest};
use anabranch_store::disk::sim::{Faults, SimDisk};
use anabranch_store::shard::DataShardSetup;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rot::{Known, Rot, body, flipped, lied, look, numbered};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use worker::{STREAM, Worker};

/// What the consumer may hold.
const CREDIT: usize = 1000;
/// Copies of the disk that rot after each life.
const COPIES: u32 = 2;

/// What the world outside knows.
#[derive(Default)]
struct Model {
    /// Publishes ever made.
    made: u32,
    confirmed: BTreeSet<u32>,
    /// The same, in the order of their confirmations.
    confirmations: Vec<u32>,
    /// So many of them were confirmed before something was published that is confirmed too: it was written behind
    /// them and tells that they were synced.
    told: usize,
    /// Settled at some time: may be gone.
    settled: BTreeSet<u32>,
    received: u64,
    rot: Rot,
    /// Publishes refused with their reason.
    refused: u64,
    /// Chunks of the index that left memory.
    evicted: u64,
    /// Bytes that were seen to be given back inside of segments.
    given_back: u64,
}

/// What may go wrong in a life, beside the power at its end.
#[derive(Clone, Copy, PartialEq)]
enum Weather {
    Fair,
    PowerLoss,
    FailingSyncs,
    FailingWrites,
    FullDisk,
}

impl Weather {
    fn of(random: &mut SmallRng) -> Weather {
        match random.random_range(0..10) {
            0 => Weather::PowerLoss,
            1 => Weather::FailingSyncs,
            2 => Weather::FailingWrites,
            3 | 4 => Weather::FullDisk,
            _ => Weather::Fair,
        }
    }

    fn faults(self, disk: &SimDisk, random: &mut SmallRng) -> Faults {
        let after = Some(random.random_range(0..60));
        let mut faults = Faults::default();
        match self {
            Weather::Fair => {}
            Weather::PowerLoss => faults.power_off_after = after,
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

/// One life of the node.
struct Life<'a> {
    seed: u64,
    worker: Worker,
    model: &'a mut Model,
    consumer: Option<ConsumerKey>,
    weather: Weather,
    /// The journal stopped.
    failed: bool,
    /// Publishes of this life by sequence, each with how many were confirmed before.
    sent: BTreeMap<u64, (u32, usize)>,
    /// Handed out in this life, not settled: offset and message.
    held: Vec<(Offset, u32)>,
    /// What must not come any more in this life.
    seen: BTreeSet<u32>,
    last: Option<u32>,
}

impl Life<'_> {
    fn publish(&mut self, random: &mut SmallRng) {
        let number = self.model.made;
        self.model.made += 1;
        let body = body(number, random.random_range(0..400));
        let sequence = self.worker.publish(body);
        let before = self.model.confirmations.len();
        self.sent.insert(sequence, (number, before));
    }

    /// Takes what has come so far.
    fn take_mail(&mut self) {
        loop {
            while let Some(event) = self.worker.events.pop_front() {
                self.take(event);
            }
            match self.worker.mail.try_recv() {
                Ok(events) => self.worker.events.extend(events),
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, event: ShardEvent) {
        let seed = self.seed;
        match event {
            ShardEvent::Published {
                first,
                last,
                outcome,
            } => {
                let refused = self.is_refused(outcome);
                for sequence in first.0..=last.0 {
                    let sent = self.sent.remove(&sequence);
                    let (number, before) =
                        sent.unwrap_or_else(|| panic!("seed {seed}: answered twice"));
                    if refused {
                        self.model.refused += 1;
                    } else {
                        self.model.confirmed.insert(number);
                        self.model.confirmations.push(number);
                        self.model.told = self.model.told.max(before);
                    }
                }
            }
            ShardEvent::Deliver { deliveries, .. } => {
                let count = deliveries.len() as u32;
                for delivery in deliveries {
                    let number = numbered(seed, &delivery.message.body);
                    assert!(self.seen.insert(number), "seed {seed}: {number} came twice");
                    assert!(
                        self.last.is_none_or(|last| last < number),
                        "seed {seed}: order"
                    );
                    assert!(
                        number < self.model.made,
                        "seed {seed}: {number} was never published"
                    );
                    self.last = Some(number);
                    self.held.push((delivery.offset, number));
                    self.model.received += 1;
                }
                if let Some(consumer) = self.consumer {
                    self.worker.send(ShardRequest::Drained {
                        consumer,
                        stream: STREAM,
                        count,
                    });
                }
            }
            // No matter why the next segment could not be made.
            ShardEvent::Blocked(_) if self.weather != Weather::Fair => {}
            other => panic!("seed {seed}: unexpected {other:?}"),
        }
    }

    /// Whether a publish was refused, which has to have its reason.
    fn is_refused(&mut self, outcome: PublishOutcome) -> bool {
        let seed = self.seed;
        match (outcome, self.weather) {
            (PublishOutcome::Routed, _) => {
                assert!(!self.failed, "seed {seed}: confirmed after a failure");
                false
            }
            (
                PublishOutcome::Refused(ErrorKind::StorageFailed),
                Weather::PowerLoss | Weather::FailingSyncs | Weather::FailingWrites,
            ) => {
                self.failed = true;
                true
            }
            (PublishOutcome::Refused(ErrorKind::Busy), weather) if weather != Weather::Fair => true,
            (other, _) => panic!("seed {seed}: {other:?}"),
        }
    }

    fn settle(&mut self, count: usize) {
        let Some(consumer) = self.consumer else {
            return;
        };
        for (offset, number) in self.held.drain(..count.min(self.held.len())) {
            self.worker.accept(consumer, offset.0, offset.0);
            self.model.settled.insert(number);
        }
    }

    /// Takes back some of what is held: it comes again, in order. Where nobody reads, all that is there leaves.
    async fn seek(&mut self, random: &mut SmallRng) {
        // Until all that is under way has come.
        tokio::time::sleep(Duration::from_millis(200)).await;
        self.take_mail();
        if !self.sent.is_empty() {
            return;
        }
        let to = match self.consumer {
            Some(_) if self.held.is_empty() => return,
            Some(_) => {
                let (offset, first) = self.held[random.random_range(0..self.held.len())];
                for (_, number) in self.held.extract_if(.., |(held, _)| *held >= offset) {
                    self.seen.remove(&number);
                }
                self.last = first.checked_sub(1);
                SeekTo::Offset(offset)
            }
            None => {
                self.model.settled.extend(&self.model.confirmed);
                self.seen.extend(&self.model.confirmed);
                SeekTo::End
            }
        };
        let stream = STREAM;
        let question = Question::Seek { stream, to };
        // What comes back may come before the answer.
        self.worker.ticket += 1;
        let ticket = self.worker.ticket;
        self.worker.send(ShardRequest::Ask {
            ticket,
            question: Box::new(question),
        });
        loop {
            match self.worker.event().await {
                ShardEvent::Reply { ticket: of, result } if of == ticket => {
                    assert!(matches!(result, Ok(ShardReply::Count(_))), "{result:?}");
                    return;
                }
                other => self.take(other),
            }
        }
    }

    async fn attach(&mut self) {
        // Mail that is under way would be in the way of the answer.
        tokio::time::sleep(Duration::from_millis(200)).await;
        self.take_mail();
        let consumer = self.worker.attach(1).await;
        self.consumer = Some(consumer);
    }
}

async fn lives(seed: u64) -> Model {
    let mut random = SmallRng::seed_from_u64(seed);
    let disk = SimDisk::new(seed);
    let mut model = Model::default();
    for number in 1..=5 {
        let last_life = number == 5;
        let checkpoint_bytes = 1 << random.random_range(12..18);
        // None or a few blocks.
        let index_memory_bytes = random.random_range(0..4) * 4096;
        let segment_bytes = 1 << random.random_range(12..15);
        let setup = |setup: &mut DataShardSetup| {
            setup.checkpoint_bytes = checkpoint_bytes;
            setup.options.segment_bytes = segment_bytes;
            setup.shard.limits.index_memory_bytes = index_memory_bytes;
            setup.options.seed = seed;
            setup.options.packing = packing::of(seed, number);
        };
        let mut worker = Worker::start_with(&disk, number, setup).await;
        worker.create().await;
        let weather = match last_life {
            true => Weather::Fair,
            false => Weather::of(&mut random),
        };
        let mut life = Life {
            seed,
            worker,
            model: &mut model,
            consumer: None,
            sent: BTreeMap::new(),
            held: Vec::new(),
            seen: BTreeSet::new(),
            last: None,
            weather,
            failed: false,
        };
        let attach_at = random.random_range(0..150);
        let faulty_at = attach_at + random.random_range(1..60);
        for step in 0..random.random_range(0..300) {
            if step == attach_at {
                life.attach().await;
            }
            if step == faulty_at {
                disk.set_faults(weather.faults(&disk, &mut random));
            }
            if weather == Weather::FullDisk && step == faulty_at + 60 {
                disk.set_faults(Faults::default());
            }
            let seeks = life.weather == Weather::Fair && random.random_bool(0.003);
            match random.random_range(0..10) {
                _ if seeks => life.seek(&mut random).await,
                0..6 => (0..random.random_range(1..6)).for_each(|_| life.publish(&mut random)),
                6..8 => life.settle(random.random_range(0..20)),
                _ => tokio::time::sleep(Duration::from_micros(random.random_range(0..9000))).await,
            }
            life.take_mail();
        }
        if last_life {
            if life.consumer.is_none() {
                life.attach().await;
            }
            let settled = life.model.settled.clone();
            loop {
                tokio::time::sleep(Duration::from_secs(5)).await;
                life.take_mail();
                if life.held.len() < CREDIT {
                    break;
                }
                life.settle(usize::MAX);
            }
            assert!(
                life.sent.is_empty(),
                "seed {seed}: not confirmed after five seconds"
            );
            let kept = life.model.confirmed.difference(&settled);
            let lost: Vec<_> = kept.filter(|number| !life.seen.contains(number)).collect();
            assert!(
                lost.is_empty(),
                "seed {seed}: confirmed, not settled and lost: {lost:?}"
            );
        } else if weather == Weather::Fair && random.random_bool(0.3) {
            life.worker.shard.shutdown_local().await;
            life.take_mail();
            assert!(
                life.sent.is_empty(),
                "seed {seed}: a clean end answers everything"
            );
        }
        let evicted = life.worker.shard.index().evicted;
        model.evicted += evicted;
        disk.crash();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let told = model.confirmations[..model.told].iter().copied();
        let known = Known {
            seed,
            life: number + 1,
            made: model.made,
            kept: &told
                .filter(|number| !model.settled.contains(number))
                .collect(),
        };
        let (defects, checked) = look(&disk, &known);
        let findings = checked.findings;
        assert!(!defects, "seed {seed}: nothing is wrong: {findings:#?}");
        model.given_back += checked.given_back_bytes;
        for _ in 0..COPIES {
            let rot = match random.random_range(0..3) {
                0 => lied(&disk, &known, &mut random).await,
                _ => flipped(&disk, &known, &mut random).await,
            };
            model.rot.add(rot);
        }
    }
    model
}

fn run(seed: u64) -> Model {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(lives(seed))
}

#[test]
fn confirmed_messages_survive_until_settled() {
    let (mut made, mut confirmed, mut received) = (0, 0, 0);
    let (mut refused, mut evicted, mut given_back) = (0, 0, 0);
    let mut rot = Rot::default();
    seeds::each("shard", 8, 24.0, |seed| {
        let model = run(seed);
        made += u64::from(model.made);
        confirmed += model.confirmed.len() as u64;
        received += model.received;
        evicted += model.evicted;
        given_back += model.given_back;
        refused += model.refused;
        rot.add(model.rot);
    });
    println!(
        "{made} published, {confirmed} confirmed, {refused} refused, {received} handed out, 0 lost"
    );
    println!(
        "{evicted} chunks of the index evicted, {given_back} bytes given back inside of segments"
    );
    println!("{rot:?}");
    assert!(confirmed >= made / 4 && received >= made / 8);
}
