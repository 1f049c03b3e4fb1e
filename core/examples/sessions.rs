//! What a million durable sessions with one waiting message each take of memory, in pairs and to start again; and what
//! a million queued messages take.
//!
//! The sessions are opened, bound and closed by records as a leader writes them; a checkpoint is made whenever enough
//! has changed, as a store does, and its pairs and blocks go to files in a folder.
//!
//! `cargo run --release -p anabranch-core --example sessions [SESSIONS] [MESSAGES] [FOLDER]`
#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "it stands for a store, and says how long it took"
)]

use anabranch_core::authority::AllowAll;
use anabranch_core::gateway::FilterSpec;
use anabranch_core::id::*;
use anabranch_core::index::{BLOCK_BYTES, Block, BlockBytes, Blocks};
use anabranch_core::limits::StreamLimits;
use anabranch_core::message::{Message, Quality};
use anabranch_core::port::{Question, ShardEvent, ShardReply, ShardRequest};
use anabranch_core::properties::Codecs;
use anabranch_core::record::{AsJson, Change, Mark, PayloadBuilder};
use anabranch_core::shard::{Bodies, Fetched, Shard, ShardLimits, ShardSetup};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const VHOST: VhostId = VhostId(1);
/// A checkpoint is made when so much has changed.
const UNSAVED_BYTES: usize = 64 << 20;
/// Records of one frame.
const FRAME: u64 = 500;

struct IndexFile(File);

impl Blocks for IndexFile {
    fn read(&self, block: Block) -> Option<BlockBytes> {
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        let at = u64::from(block.0) * BLOCK_BYTES as u64;
        self.0.read_exact_at(&mut bytes[..], at).ok()?;
        Some(bytes)
    }
}

struct NoBodies;

impl Bodies<Position> for NoBodies {
    fn fetch(&mut self, _: &Position) -> Fetched {
        Fetched::Lost
    }
}

/// Resident memory without mapped files, in MiB.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

fn shard() -> Shard<Position> {
    Shard::new(ShardSetup {
        id: ShardId(1),
        incarnation: 1,
        workers: 1,
        limits: ShardLimits::default(),
        fabric: Arc::default(),
        authority: Arc::new(AllowAll),
        codecs: Codecs::default(),
    })
}

struct Life {
    shard: Shard<Position>,
    index: Arc<IndexFile>,
    /// Runs of pairs, one behind the other.
    runs: BufWriter<File>,
    position: u64,
    sequence: u64,
    clock: u64,
    checkpoints: u64,
    frozen_us: u128,
    copied_us: u128,
    blocks: usize,
    pair_bytes: usize,
}

impl Life {
    fn new(folder: &Path) -> std::io::Result<Life> {
        let index = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(folder.join("index"))?;
        let index = Arc::new(IndexFile(index));
        let mut shard = shard();
        shard.set_blocks(index.clone());
        Ok(Life {
            shard,
            index,
            runs: BufWriter::new(File::create(folder.join("runs"))?),
            position: 0,
            sequence: 0,
            clock: 1_700_000_000_000,
            checkpoints: 0,
            frozen_us: 0,
            copied_us: 0,
            blocks: 0,
            pair_bytes: 0,
        })
    }

    fn apply(&mut self, builder: &mut PayloadBuilder) -> std::io::Result<()> {
        let payload = builder.take();
        self.clock += 1;
        self.shard
            .apply(UnixMs(self.clock), Position(self.position), &payload, true)
            .expect("a frame");
        self.position += payload.len() as u64 + 64;
        self.shard.events().for_each(drop);
        if self.shard.unsaved_bytes() > UNSAVED_BYTES {
            self.checkpoint()?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> std::io::Result<()> {
        let start = Instant::now();
        self.shard.freeze();
        self.frozen_us = self.frozen_us.max(start.elapsed().as_micros());
        let delta = loop {
            let start = Instant::now();
            let delta = self.shard.copy(256 << 10);
            self.copied_us = self.copied_us.max(start.elapsed().as_micros());
            if let Some(delta) = delta {
                break delta;
            }
        };
        for (block, bytes) in &delta.blocks {
            self.index
                .0
                .write_all_at(&bytes[..], u64::from(block.0) * BLOCK_BYTES as u64)?;
        }
        for (key, value) in &delta.pairs {
            let length = value.as_ref().map_or(u32::MAX, |value| value.len() as u32);
            self.runs.write_all(&(key.len() as u32).to_le_bytes())?;
            self.runs.write_all(&length.to_le_bytes())?;
            self.runs.write_all(key)?;
            self.runs
                .write_all(value.as_ref().map_or(&[], |value| &value[..]))?;
        }
        self.checkpoints += 1;
        self.blocks += delta.blocks.len();
        self.pair_bytes += delta.bytes() - delta.blocks.len() * BLOCK_BYTES;
        self.shard.written();
        Ok(())
    }

    fn mark(&mut self) -> Mark {
        self.sequence += 1;
        Mark {
            lane: Lane(1 << 16),
            sequence: Sequence(self.sequence),
        }
    }
}

fn message(address: &str, bytes: usize) -> Message {
    Message {
        exchange: Bytes::from_static(b"amq.topic"),
        address: address.parse().expect("an address"),
        body: vec![7; bytes].into(),
        quality: Quality::AtLeastOnce,
        ..Message::default()
    }
}

fn sessions(life: &mut Life, count: u64) -> std::io::Result<()> {
    let mut builder = PayloadBuilder::default();
    for number in 1..=count {
        let id = StreamId::of_session(ShardId(1), number);
        let open = Change::OpenSession {
            vhost: VHOST,
            client_id: Arc::from(format!("device-{number:08}")),
            clean_start: false,
            expiry_s: 86_400,
        };
        let filter = FilterSpec {
            filter: format!("device/{number:08}/command")
                .parse()
                .expect("a filter"),
            quality: Quality::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            identifier: 0,
        };
        let subscribe = Change::Subscribe {
            stream: id,
            filters: vec![filter],
        };
        for change in [open, subscribe, Change::CloseSession { stream: id }] {
            builder.change(Mark::default(), &change);
        }
        let mark = life.mark();
        let address = format!("device/{number:08}/command");
        builder.publish(mark, &[], Some(VHOST), None, &message(&address, 128));
        if number % FRAME == 0 || number == count {
            life.apply(&mut builder)?;
        }
    }
    Ok(())
}

fn queued(life: &mut Life, count: u64) -> std::io::Result<()> {
    let queue = StreamId::of_registry(1);
    let mut builder = PayloadBuilder::default();
    let create = Change::CreateStreamWith {
        stream: queue,
        vhost: VHOST,
        name: Arc::from("q"),
        limits: AsJson(StreamLimits::default()),
    };
    builder.change(Mark::default(), &create);
    for number in 1..=count {
        let mark = life.mark();
        builder.publish(mark, &[queue], None, None, &message("q", 128));
        if number % FRAME == 0 || number == count {
            life.apply(&mut builder)?;
        }
    }
    Ok(())
}

fn ready(shard: &mut Shard<Position>) -> (usize, u64) {
    let mut ask = vec![ShardRequest::Ask {
        ticket: 1,
        question: Box::new(Question::StatAll),
    }];
    shard.handle(Now::default(), WorkerId(0), &mut ask, &mut NoBodies);
    let mut counted = (0, 0);
    for (_, events) in shard.events() {
        for event in events {
            if let ShardEvent::Reply {
                result: Ok(ShardReply::Stats(stats)),
                ..
            } = event
            {
                counted = (stats.len(), stats.iter().map(|stat| stat.ready).sum());
            }
        }
    }
    counted
}

/// The runs of pairs from the newest to the oldest say what there is; here they are simply folded.
fn folded(folder: &Path) -> std::io::Result<BTreeMap<Bytes, Bytes>> {
    let mut runs = BufReader::new(File::open(folder.join("runs"))?);
    let mut pairs = BTreeMap::new();
    let mut lengths = [0; 8];
    while runs.read_exact(&mut lengths).is_ok() {
        let length = |at: usize| {
            u32::from_le_bytes([
                lengths[at],
                lengths[at + 1],
                lengths[at + 2],
                lengths[at + 3],
            ])
        };
        let mut key = vec![0; length(0) as usize];
        runs.read_exact(&mut key)?;
        if length(4) == u32::MAX {
            pairs.remove(&key[..]);
            continue;
        }
        let mut value = vec![0; length(4) as usize];
        runs.read_exact(&mut value)?;
        pairs.insert(Bytes::from(key), Bytes::from(value));
    }
    Ok(pairs)
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| {
        arguments
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (count, messages): (u64, u64) = (number(1_000_000), number(1_000_000));
    let root = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let folder = root.join(format!("anabranch-sessions-{}", std::process::id()));
    for restart in [false, true] {
        let again = if restart { "restarted" } else { "made" };
        for (what, count) in [("sessions", count), ("messages", messages)] {
            if count == 0 {
                continue;
            }
            let dir = folder.join(what);
            let before = memory();
            let start = Instant::now();
            let mut shard = match restart {
                false => {
                    std::fs::create_dir_all(&dir)?;
                    let mut life = Life::new(&dir)?;
                    match what {
                        "sessions" => sessions(&mut life, count)?,
                        _ => queued(&mut life, count)?,
                    }
                    life.checkpoint()?;
                    life.runs.flush()?;
                    println!(
                        "{} checkpoints: {} blocks, {:.0} MiB of pairs; frozen in {} us, copied in steps of {} us at most",
                        life.checkpoints,
                        life.blocks,
                        life.pair_bytes as f64 / 1048576.0,
                        life.frozen_us,
                        life.copied_us,
                    );
                    life.shard
                }
                true => {
                    let mut shard = shard();
                    // The pairs in memory are not the shard's.
                    let pairs = folded(&dir)?;
                    let read = start.elapsed();
                    let index = Arc::new(IndexFile(File::open(dir.join("index"))?));
                    let begun = Instant::now();
                    shard
                        .restore_pairs(&mut pairs.into_iter(), index)
                        .expect("pairs");
                    println!(
                        "pairs read in {read:.1?}, restored in {:.1?}",
                        begun.elapsed()
                    );
                    shard
                }
            };
            let took = start.elapsed();
            let used = memory() - before;
            let (streams, ready) = ready(&mut shard);
            println!(
                "{count} {what} {again} in {took:.1?}: {used:.0} MiB more, {:.0} bytes each ({:.0} MiB in all); {streams} streams, {ready} ready, {} KiB cached",
                used * 1048576.0 / count as f64,
                memory(),
                shard.cached().bytes >> 10,
            );
        }
    }
    std::fs::remove_dir_all(folder)
}
