//! Bits that flip on a disk that was written well: on a copy of it, before a shard opens it or while it runs.
//!
//! Nothing else than what was published may be handed out, and what is missing must be told: by a shard that does
//! not open, or by one that counts what it set aside, and by whoever checks the folder. What no later write says to
//! have been synced is a torn tail, and may be gone.

use crate::packing;
use crate::worker::{Mailbox, STREAM, Worker, setup};
use anabranch_core::port::{Question, ShardEvent, ShardReply, ShardRequest};
use anabranch_store::disk::Disk;
use anabranch_store::disk::sim::SimDisk;
use anabranch_store::inspect::{Checked, ShardFolder, ShardKind, Source, check};
use anabranch_store::shard::DataShard;
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

/// What flipped bits brought about.
#[derive(Debug, Default, Clone, Copy)]
pub struct Flips {
    pub made: u64,
    /// A check found them.
    pub found: u64,
    /// The shard did not open.
    pub refused: u64,
    /// Messages set aside.
    pub aside: u64,
}

impl Flips {
    pub fn add(&mut self, other: Flips) {
        self.made += other.made;
        self.found += other.found;
        self.refused += other.refused;
        self.aside += other.aside;
    }
}

/// Says whether a check finds something, and what else it saw.
pub fn look(disk: &SimDisk, known: &Known<'_>) -> (bool, Checked) {
    let source = Source {
        disk: Arc::new(disk.clone()),
        sealing: packing::of(known.seed, known.life).sealing,
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

/// Flips one bit on a copy of the disk, opens it and takes all that it hands out.
pub async fn flipped(disk: &SimDisk, known: &Known<'_>, random: &mut SmallRng) -> Flips {
    let (disk, seed) = (disk.copy(), known.seed);
    let mut flips = Flips {
        made: 1,
        ..Flips::default()
    };
    let early = random.random_bool(0.5);
    let mut place = String::new();
    if early {
        place = flip(&disk, random);
        flips.found = u64::from(look(&disk, known).0);
    }
    let (send, mail) = unbounded_channel();
    let mut setup = setup(&disk, known.life, Mailbox(send));
    setup.options.packing = packing::of(seed, known.life);
    setup.shard.limits.index_memory_bytes = 4096;
    let shard = match DataShard::start_local(setup).await {
        Ok(shard) => shard,
        Err(error) => {
            assert!(early, "seed {seed}: nothing is wrong: {error}");
            assert!(
                flips.found > 0,
                "seed {seed}, {place}: nothing is found: {error}"
            );
            flips.refused = 1;
            return flips;
        }
    };
    let mut worker = Worker {
        shard,
        mail,
        events: VecDeque::new(),
        sequence: 0,
        ticket: 0,
    };
    worker.create().await;
    if !early {
        place = flip(&disk, random);
        flips.found = u64::from(look(&disk, known).0);
    }
    let there = all(&mut worker, known, &place).await;
    let missing: Vec<_> = known.kept.difference(&there).collect();
    if !missing.is_empty() {
        assert!(
            flips.found > 0,
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
        flips.aside = missing.len() as u64;
    }
    worker.shard.shutdown_local().await;
    flips
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
        let count = deliveries.len() as u32;
        for delivery in deliveries {
            let number = numbered(seed, &delivery.message.body);
            assert!(
                number < known.made && there.insert(number),
                "seed {seed}, {place}: {number}"
            );
            worker.accept(consumer, delivery.offset.0, delivery.offset.0);
        }
        worker.send(ShardRequest::Drained {
            consumer,
            stream: STREAM,
            count,
        });
    }
    there
}
