//! A data shard through many lives on a disk that loses power: every confirmed message is handed
//! out until it was settled, in order, and no message comes twice in one life. Each failure prints
//! its seed; `ANABRANCH_SEED` runs one seed alone, `ANABRANCH_SEEDS` that many.

mod packing;
mod worker;

use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::Offset;
use anabranch_core::port::{ConsumerKey, ShardEvent, ShardRequest};
use anabranch_store::disk::sim::SimDisk;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use worker::{STREAM, Worker};

/// What the world outside knows.
#[derive(Default)]
struct Model {
    /// Publishes ever made.
    made: u32,
    confirmed: BTreeSet<u32>,
    /// Settled at some time: may be gone.
    settled: BTreeSet<u32>,
    received: u64,
}

/// One life of the node.
struct Life<'a> {
    seed: u64,
    worker: Worker,
    model: &'a mut Model,
    consumer: Option<ConsumerKey>,
    /// Publishes of this life by sequence.
    sent: BTreeMap<u64, u32>,
    /// Handed out in this life, not settled: offset and message.
    held: Vec<(Offset, u32)>,
    seen: BTreeSet<u32>,
    last: Option<u32>,
}

impl Life<'_> {
    fn publish(&mut self, random: &mut SmallRng) {
        let number = self.model.made;
        self.model.made += 1;
        let mut body = number.to_le_bytes().to_vec();
        body.resize(4 + random.random_range(0..400), number as u8);
        let sequence = self.worker.publish(body);
        self.sent.insert(sequence, number);
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
                assert_eq!(outcome, PublishOutcome::Routed, "seed {seed}");
                for sequence in first.0..=last.0 {
                    let number = self.sent.remove(&sequence);
                    let number = number.unwrap_or_else(|| panic!("seed {seed}: confirmed twice"));
                    self.model.confirmed.insert(number);
                }
            }
            ShardEvent::Deliver { deliveries, .. } => {
                let count = deliveries.len() as u32;
                for delivery in deliveries {
                    let head = delivery.message.body.first_chunk::<4>().expect("a number");
                    let number = u32::from_le_bytes(*head);
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
            other => panic!("seed {seed}: unexpected {other:?}"),
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
        let setup = |setup: &mut anabranch_store::shard::DataShardSetup| {
            setup.checkpoint_bytes = checkpoint_bytes;
            setup.options.seed = seed;
            setup.options.packing = packing::of(seed, number);
        };
        let mut worker = Worker::start_with(&disk, number, setup).await;
        worker.create().await;
        let mut life = Life {
            seed,
            worker,
            model: &mut model,
            consumer: None,
            sent: BTreeMap::new(),
            held: Vec::new(),
            seen: BTreeSet::new(),
            last: None,
        };
        let attach_at = random.random_range(0..150);
        for step in 0..random.random_range(0..300) {
            if step == attach_at {
                life.attach().await;
            }
            match random.random_range(0..10) {
                0..6 => life.publish(&mut random),
                6..8 => life.settle(random.random_range(0..20)),
                _ => tokio::time::sleep(Duration::from_micros(random.random_range(0..9000))).await,
            }
            life.take_mail();
        }
        if last_life {
            if life.consumer.is_none() {
                life.attach().await;
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            life.take_mail();
            assert!(
                life.sent.is_empty(),
                "seed {seed}: not confirmed after five seconds"
            );
            let there = life.seen.clone();
            let kept = life.model.confirmed.difference(&life.model.settled);
            let lost: Vec<_> = kept.filter(|number| !there.contains(number)).collect();
            assert!(
                lost.is_empty(),
                "seed {seed}: confirmed, not settled and lost: {lost:?}"
            );
        } else if random.random_bool(0.3) {
            life.worker.shard.shutdown_local().await;
            life.take_mail();
            assert!(
                life.sent.is_empty(),
                "seed {seed}: a clean end answers everything"
            );
        }
        disk.crash();
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    model
}

fn run(seed: u64) -> (Model, u64) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let watched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(lives(seed))
    }));
    let model = watched.unwrap_or_else(|panic| {
        eprintln!("ANABRANCH_SEED={seed} repeats this failure");
        std::panic::resume_unwind(panic)
    });
    let received = model.received;
    (model, received)
}

#[test]
fn confirmed_messages_survive_until_settled() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let seeds = match number("ANABRANCH_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ANABRANCH_SEEDS").unwrap_or(10),
    };
    let (mut made, mut confirmed, mut received) = (0, 0, 0);
    for seed in seeds {
        let (model, taken) = run(seed);
        made += u64::from(model.made);
        confirmed += model.confirmed.len() as u64;
        received += taken;
    }
    println!("{made} published, {confirmed} confirmed, {received} handed out, 0 lost");
    assert!(confirmed > made / 4 && received > made / 8);
}
