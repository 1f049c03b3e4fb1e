//! A disk that does not keep what it was given: bits flip, before a shard opens it or while it runs, and syncs
//! pretend. All on copies of a disk that was written well.
//!
//! Nothing else than what was published may be handed out, once and in order. What a flip took must be told: by a shard that does
//! not open, or by one that counts what it set aside, and by whoever checks the folder. What no later write says to
//! have been synced is a torn tail, and may be gone; so may all that a sync lied about. The runtime's clock is
//! `start_paused`: to wait takes no time.

use crate::packing;
use crate::worker::{Mailbox, STREAM, Worker, setup};
use anabranch_core::gateway::Delivery;
use anabranch_core::port::{ConsumerKey, Question, ShardEvent, ShardReply, ShardRequest};
use anabranch_store::disk::Disk;
use anabranch_store::disk::sim::{Faults, SimDisk};
use anabranch_store::inspect::{Checked, ShardFolder, ShardKind, Source, check};
use anabranch_store::shard::{DataShard, ShardStartError};
use rand::RngExt;
use rand::rngs::SmallRng;
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::unbounded_channel;

/// The body of a message.
pub fn body(number: u32, len: usize) -> Vec<u8> {
    let mut body = number.to_le_bytes().to_vec();
    body.resize(4 + len, number as u8);
    body
}

/// The number of a message, which must be as it was published.
pub fn numbered(seed: u64, body: &[u8]) -> u32 {
    let number = u32::from_le_bytes(*body.first_chunk::<4>().expect("a number"));
    let whole = body[4..].iter().all(|byte| *byte == number as u8);
    assert!(whole, "seed {seed}: {number} is not as it was published");
    number
}

/// What is known of the messages on a disk.
pub struct Known<'a> {
    pub seed: u64,
    /// The life that will open it.
    pub life: u64,
    /// Numbers ever given.
    pub made: u32,
    /// Confirmed and not settled, and known to be synced from what was written later.
    pub kept: &'a BTreeSet<u32>,
}

/// What it brought about.
#[derive(Debug, Default, Clone, Copy)]
pub struct Rot {
    pub flips: u64,
    /// A check found them.
    pub found: u64,
    /// The shard did not open.
    pub refused: u64,
    /// Messages set aside.
    pub aside: u64,
    /// Lives on a disk that lies about syncs.
    pub lies: u64,
    /// The shard did not open afterwards.
    pub lies_refused: u64,
}

impl Rot {
    pub fn add(&mut self, other: Rot) {
        self.flips += other.flips;
        self.found += other.found;
        self.refused += other.refused;
        self.aside += other.aside;
        self.lies += other.lies;
        self.lies_refused += other.lies_refused;
    }
}

/// Says whether a check finds something, and what else it saw.
pub fn look(disk: &SimDisk, known: &Known<'_>) -> (bool, Checked) {
    let source = Source {
        disk: Arc::new(disk.clone()),
        sealing: packing::of(known.seed, known.life).sealing,
        tier: None,
    };
    let folder = ShardFolder {
        name: "shard-1".to_owned(),
        dir: PathBuf::from("shard"),
        kind: ShardKind::Data,
    };
    match check(&source, &folder, &mut |_| {}) {
        Ok(checked) => (checked.findings.defects > 0, checked),
        Err(_) => (true, Checked::default()),
    }
}

/// Some file of the shard, and one bit of it.
fn flip(disk: &SimDisk, random: &mut SmallRng) -> String {
    let files = ["shard", "shard/checkpoint"].map(Path::new).map(|dir| {
        let names = disk.list(dir).unwrap().into_iter();
        names.map(move |name| dir.join(name)).collect::<Vec<_>>()
    });
    let mut files = files.concat();
    files.retain(|path| disk.contents(path).is_some_and(|bytes| !bytes.is_empty()));
    let path = &files[random.random_range(0..files.len())];
    let len = disk.contents(path).unwrap().len() as u64;
    let (byte, bit) = (random.random_range(0..len), random.random_range(0..8));
    disk.flip_bit(path, byte, bit);
    format!("bit {bit} of byte {byte} of {}", path.display())
}

/// The shard with an index that hardly stays in memory, and checkpoints all the time.
async fn open(disk: &SimDisk, known: &Known<'_>) -> Result<Worker, ShardStartError> {
    let (send, mail) = unbounded_channel();
    let mut setup = setup(disk, known.life, Mailbox(send));
    setup.options.packing = packing::of(known.seed, known.life);
    setup.shard.limits.index_memory_bytes = 4096;
    setup.checkpoint_bytes = 8 * 1024;
    Ok(Worker {
        shard: DataShard::start_local(setup).await?,
        mail,
        events: VecDeque::new(),
        sequence: 0,
        ticket: 0,
    })
}

/// A life on a copy of the disk that loses some syncs, and one after the power went.
pub async fn lied(disk: &SimDisk, known: &Known<'_>, random: &mut SmallRng) -> Rot {
    let disk = disk.copy();
    let mut rot = Rot {
        lies: 1,
        ..Rot::default()
    };
    let mut worker = open(&disk, known).await.expect("nothing is wrong");
    worker.create().await;
    let consumer = worker.attach(1).await;
    disk.set_faults(Faults {
        lose_one_sync_in: random.random_range(2..9),
        ..Faults::default()
    });
    let more = random.random_range(0..400);
    for number in known.made..known.made + more {
        worker.publish(body(number, random.random_range(0..300)));
        if random.random_bool(0.2) {
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        while let Ok(events) = worker.mail.try_recv() {
            for event in events {
                if let ShardEvent::Deliver { deliveries, .. } = event {
                    taken(&worker, consumer, &deliveries, |_| random.random_bool(0.6));
                }
            }
        }
    }
    disk.crash();
    worker.fallen().await;
    let known = Known {
        life: known.life + 1,
        made: known.made + more,
        ..*known
    };
    match open(&disk, &known).await {
        Ok(mut worker) => {
            worker.create().await;
            all(&mut worker, &known, "a disk that lied").await;
            worker.shard.shutdown_local().await;
        }
        Err(_) => rot.lies_refused = 1,
    }
    rot
}

/// Says that deliveries were taken, and settles those that `settles` says.
fn taken(
    worker: &Worker,
    consumer: ConsumerKey,
    deliveries: &[Delivery],
    mut settles: impl FnMut(&Delivery) -> bool,
) {
    for delivery in deliveries {
        if settles(delivery) {
            worker.accept(consumer, delivery.offset.0, delivery.offset.0);
        }
    }
    worker.send(ShardRequest::Drained {
        consumer,
        stream: STREAM,
        count: deliveries.len() as u32,
    });
}

/// Flips one bit on a copy of the disk, opens it and takes all that it hands out.
pub async fn flipped(disk: &SimDisk, known: &Known<'_>, random: &mut SmallRng) -> Rot {
    let (disk, seed) = (disk.copy(), known.seed);
    let mut rot = Rot {
        flips: 1,
        ..Rot::default()
    };
    let early = random.random_bool(0.5);
    let mut place = String::new();
    if early {
        place = flip(&disk, random);
        rot.found = u64::from(look(&disk, known).0);
    }
    let mut worker = match open(&disk, known).await {
        Ok(worker) => worker,
        Err(error) => {
            assert!(early, "seed {seed}: nothing is wrong: {error}");
            assert!(
                rot.found > 0,
                "seed {seed}, {place}: nothing is found: {error}"
            );
            rot.refused = 1;
            return rot;
        }
    };
    worker.create().await;
    if !early {
        place = flip(&disk, random);
        rot.found = u64::from(look(&disk, known).0);
    }
    let there = all(&mut worker, known, &place).await;
    let missing: Vec<_> = known.kept.difference(&there).collect();
    if !missing.is_empty() {
        assert!(
            rot.found > 0,
            "seed {seed}, {place}: a check does not find why these are gone: {missing:?}"
        );
        let aside = match worker.ask(Question::StatAll).await {
            Ok(ShardReply::Stats(stats)) => stats.iter().map(|stat| stat.ready).sum::<u64>(),
            other => panic!("seed {seed}, {place}: {other:?}"),
        };
        assert!(
            aside >= missing.len() as u64,
            "seed {seed}, {place}: {aside} are set aside, but these are gone: {missing:?}"
        );
        rot.aside = missing.len() as u64;
    }
    worker.shard.shutdown_local().await;
    rot
}

/// Takes and settles everything that a shard hands out.
async fn all(worker: &mut Worker, known: &Known<'_>, place: &str) -> BTreeSet<u32> {
    let seed = known.seed;
    let consumer = worker.attach(1).await;
    let mut there = BTreeSet::new();
    while let Ok(event) = tokio::time::timeout(Duration::from_secs(5), worker.event()).await {
        let ShardEvent::Deliver { deliveries, .. } = event else {
            panic!("seed {seed}, {place}: unexpected {event:?}");
        };
        for delivery in &deliveries {
            let number = numbered(seed, &delivery.message.body);
            assert!(
                number < known.made,
                "seed {seed}, {place}: {number} was never published"
            );
            assert!(
                there.last().is_none_or(|last| *last < number),
                "seed {seed}, {place}: {number} came again, or too late"
            );
            there.insert(number);
        }
        taken(worker, consumer, &deliveries, |_| true);
    }
    there
}
