//! Checkpoints through every failure: after each, what is opened is one checkpoint or the next, with
//! all its blocks, never a mix.
//!
//! Owns a state that knows what it wrote, its life on one disk, and that folding runs changes nothing. Read next: [`power`], [`rot`],
//! [`earlier`].

mod earlier;
mod power;
mod rot;

use super::whole::tests::encode as encode_whole;
use super::*;
use crate::disk::sim::{Faults, SimDisk};
use crate::disk::write_all_at;
use crate::journal::FrameId;
use crate::seal::keys::tests::sealing;
use anabranch_core::id::{LogIndex, Term, UnixMs};
use anabranch_core::index::{BLOCK_BYTES, Block, BlockBytes, Blocks};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::io;

const GROUP: &str = "g";

/// Stamp of a key, and its blocks with the stamp that each is filled with.
type Value = (u64, Vec<(Block, u64)>);
type Map = BTreeMap<Bytes, Value>;

/// A state machine that knows what it wrote: keys with a stamp and blocks.
#[derive(Default)]
struct Model {
    now: Map,
    changed: BTreeMap<Bytes, Vec<(Block, u64)>>,
    stamp: u64,
    free: Vec<Block>,
    /// Blocks that no key names any more: since the last copy, by the copy not yet durable, by the last
    /// durable one. Only then are they free.
    gone: [Vec<Block>; 3],
    end: u32,
}

fn bytes_of(block: Block, stamp: u64) -> BlockBytes {
    let mut bytes: BlockBytes = Box::new([0; BLOCK_BYTES]);
    for chunk in bytes.chunks_exact_mut(16) {
        chunk[..8].copy_from_slice(&stamp.to_le_bytes());
        chunk[8..12].copy_from_slice(&block.0.to_le_bytes());
    }
    bytes
}

fn encode(value: &Value) -> Bytes {
    let mut bytes = value.0.to_le_bytes().to_vec();
    for (block, stamp) in &value.1 {
        bytes.extend_from_slice(&block.0.to_le_bytes());
        bytes.extend_from_slice(&stamp.to_le_bytes());
    }
    bytes.into()
}

fn decode(bytes: &[u8]) -> Value {
    let blocks = bytes[8..].chunks_exact(12).map(|one| {
        let block = u32::from_le_bytes(one[..4].try_into().unwrap());
        (
            Block(block),
            u64::from_le_bytes(one[4..].try_into().unwrap()),
        )
    });
    let stamp = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    (stamp, blocks.collect())
}

impl Model {
    fn change(&mut self, random: &mut SmallRng, keys: u32) {
        for _ in 0..random.random_range(1..8) {
            let number = random.random_range(0..keys);
            let key = Bytes::from(format!("key {number}"));
            self.stamp += 1;
            if let Some((_, blocks)) = self.now.remove(&key) {
                self.gone[0].extend(blocks.iter().map(|(block, _)| *block));
            }
            self.changed.insert(key.clone(), Vec::new());
            if random.random_bool(0.3) {
                continue;
            }
            let blocks: Vec<_> = (0..random.random_range(0..3))
                .map(|_| {
                    let block = self.free.pop().unwrap_or_else(|| {
                        self.end += random.random_range(1..40);
                        Block(self.end)
                    });
                    (block, self.stamp)
                })
                .collect();
            self.changed.insert(key.clone(), blocks.clone());
            self.now.insert(key, (self.stamp, blocks));
        }
    }

    fn copy(&mut self) -> Delta {
        let mut delta = Delta::default();
        for (key, blocks) in std::mem::take(&mut self.changed) {
            let written = blocks.iter();
            delta
                .blocks
                .extend(written.map(|(block, stamp)| (*block, bytes_of(*block, *stamp))));
            let value = self.now.get(&key).map(encode);
            delta.pairs.push((key, value));
        }
        // In no order, as core may give them.
        delta.blocks.reverse();
        delta.pairs.reverse();
        let [new, copied, _] = &mut self.gone;
        copied.append(new);
        delta
    }

    fn written(&mut self) {
        let [_, copied, rested] = &mut self.gone;
        self.free.append(rested);
        rested.append(copied);
    }

    /// The model as it would be after a restart with that state.
    fn restored(now: Map, stamp: u64, end: u32) -> Model {
        let named: BTreeSet<Block> = now
            .values()
            .flat_map(|(_, blocks)| blocks.iter().map(|(block, _)| *block))
            .collect();
        // The checkpoint before may name the others: they rest.
        let others = (1..=end).map(Block);
        let others = others.filter(|block| !named.contains(block)).collect();
        Model {
            gone: [Vec::new(), Vec::new(), others],
            now,
            stamp,
            end,
            ..Model::default()
        }
    }
}

fn standing(index: u64) -> Standing {
    Standing {
        id: FrameId {
            term: Term(1),
            index: LogIndex(index),
        },
        clock: UnixMs(index * 10),
        members: Bytes::from_static(b"null"),
    }
}

fn open(disk: &SimDisk) -> Result<Arc<Checkpoints>, CheckpointOpenError> {
    open_with(disk, &Sealing::default())
}

fn open_with(disk: &SimDisk, sealing: &Sealing) -> Result<Arc<Checkpoints>, CheckpointOpenError> {
    let disk = Arc::new(disk.clone());
    Checkpoints::open(disk, Path::new(GROUP), false, sealing).map(Arc::new)
}

/// What a folder is encrypted with, from one opening to the next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    None,
    /// Always, each time with a new key.
    Rotating,
    /// Every second time.
    OnAndOff,
}

impl Keys {
    fn at(self, turn: usize) -> Sealing {
        let names = ["k5", "k4", "k3", "k2", "k1", "k0"];
        let held = &names[5 - turn.min(5)..];
        match self {
            Keys::None => Sealing::default(),
            Keys::OnAndOff if turn.is_multiple_of(2) => sealing(held, turn as u64).opening_only(),
            Keys::Rotating | Keys::OnAndOff => sealing(held, turn as u64),
        }
    }
}

/// What the newest checkpoint there is of, and all of it; every block is looked at.
fn read(opened: &Checkpoints) -> Option<(u64, Map)> {
    let mut map = Map::new();
    opened
        .restore(|pairs, blocks| {
            for (key, value) in pairs {
                let value = decode(&value);
                for (block, stamp) in &value.1 {
                    let there = blocks.read(*block).expect("a block that is named");
                    assert_eq!(there, bytes_of(*block, *stamp), "{block:?}");
                }
                map.insert(key, value);
            }
            Ok(())
        })
        .unwrap();
    let standing = opened.standing()?;
    assert_eq!(standing.clock.0, standing.id.index.0 * 10);
    Some((standing.id.index.0, map))
}

/// A life of a state and its checkpoints on one disk.
struct Life {
    disk: SimDisk,
    opened: Arc<Checkpoints>,
    model: Model,
    random: SmallRng,
    index: u64,
    /// The newest checkpoint known to be durable.
    acknowledged: Option<u64>,
    /// The state at each index.
    history: BTreeMap<u64, Map>,
    keys: Keys,
    /// Openings so far.
    turn: usize,
}

impl Life {
    fn new(seed: u64) -> Life {
        Life::with(seed, Keys::None)
    }

    fn with(seed: u64, keys: Keys) -> Life {
        let disk = SimDisk::new(seed);
        Life {
            keys,
            turn: 0,
            opened: open_with(&disk, &keys.at(0)).unwrap(),
            disk,
            model: Model::default(),
            random: SmallRng::seed_from_u64(seed),
            index: 0,
            acknowledged: None,
            history: BTreeMap::new(),
        }
    }

    fn checkpoint(&mut self) -> io::Result<()> {
        self.model.change(&mut self.random, 30);
        self.index += 1;
        self.history.insert(self.index, self.model.now.clone());
        let delta = self.model.copy();
        self.opened.hold(standing(self.index), delta);
        // Between copying and writing, a block can be read already.
        for (block, stamp) in self.model.now.values().flat_map(|(_, blocks)| blocks) {
            let there = self.opened.index.read(*block).unwrap();
            assert_eq!(there, bytes_of(*block, *stamp));
        }
        assert_eq!(self.opened.write()?, Some(LogIndex(self.index)));
        self.acknowledged = Some(self.index);
        self.model.written();
        self.opened.fold_when_due();
        Ok(())
    }

    /// The power goes; what is there then must be what was acknowledged last, or one tried after it.
    fn crash_and_open(&mut self) {
        self.disk.crash();
        self.reopen(0);
    }

    /// Opens; `back` says how many acknowledged checkpoints may be lost.
    fn reopen(&mut self, back: u64) {
        self.turn += 1;
        self.opened = open_with(&self.disk, &self.keys.at(self.turn)).unwrap();
        let stamp = self.model.stamp;
        let end = self.model.end;
        match read(&self.opened) {
            None => {
                assert_eq!(self.acknowledged, None);
                self.model = Model::restored(Map::new(), stamp, end);
            }
            Some((index, map)) => {
                assert!(
                    self.acknowledged
                        .is_none_or(|acknowledged| index + back >= acknowledged)
                );
                assert_eq!(Some(&map), self.history.get(&index), "checkpoint {index}");
                self.acknowledged = Some(index);
                self.model = Model::restored(map, stamp, end);
            }
        }
    }

    fn newest_path(&self) -> PathBuf {
        let newest = self.opened.newest().unwrap();
        manifest::manifest_path(&self.opened.dir, newest.sequence)
    }

    fn newest_run_path(&self) -> PathBuf {
        let newest = self.opened.newest().unwrap();
        run::run_path(&self.opened.dir, newest.runs.last().unwrap().sequence)
    }
}

proptest::proptest! {
    #[test]
    fn merged_runs_are_what_a_map_would_be(
        layers in proptest::collection::vec(
            proptest::collection::btree_map(0u16..300, proptest::option::of(0usize..2000), 0..120), 1..12),
        fold_at in 0usize..12,
    ) {
        let disk = SimDisk::new(1);
        let opened = open(&disk).unwrap();
        let mut map = BTreeMap::new();
        let key = |number: u16| Bytes::copy_from_slice(&number.to_be_bytes());
        for (nth, layer) in layers.iter().enumerate() {
            let mut delta = Delta::default();
            for (number, len) in layer {
                let value = len.map(|len| Bytes::from(vec![nth as u8; len]));
                match &value {
                    Some(value) => map.insert(key(*number), value.clone()),
                    None => map.remove(&key(*number)),
                };
                delta.pairs.push((key(*number), value));
            }
            opened.hold(standing(nth as u64 + 1), delta);
            opened.write().unwrap();
            if nth == fold_at {
                opened.fold_when_due();
            }
        }
        let mut there = Vec::new();
        open(&disk).unwrap().restore(|pairs, _| { there.extend(pairs); Ok(()) }).unwrap();
        proptest::prop_assert_eq!(there, map.into_iter().collect::<Vec<_>>());
    }
}
