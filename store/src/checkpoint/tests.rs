//! Checkpoints through every failure: after each, what is opened is one checkpoint or the next, with
//! all its blocks, never a mix.

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

/// Checkpoints of one life: enough that all runs are folded twice.
const CHECKPOINTS: usize = 18;

#[test]
fn the_power_may_go_at_every_step() {
    the_power_goes(Keys::None);
}

#[test]
fn the_power_may_go_at_every_step_of_sealed_checkpoints() {
    the_power_goes(Keys::Rotating);
}

/// While the index is written again, sealed or plain, or gets its key wrapped anew.
#[test]
fn the_power_may_go_while_keys_change() {
    for (keys, before) in [
        (Keys::OnAndOff, 0),
        (Keys::OnAndOff, 1),
        (Keys::Rotating, 0),
    ] {
        for step in 0.. {
            let mut life = Life::with(step, keys);
            for _ in 0..=before {
                life.checkpoint().unwrap();
                life.checkpoint().unwrap();
                life.reopen(0);
            }
            let sealed = life.opened.index.is_sealed();
            life.disk.set_faults(Faults {
                power_off_after: Some(step),
                ..Faults::default()
            });
            let written = life.checkpoint().is_ok();
            if written {
                let after = life.opened.index.is_sealed();
                assert_eq!(after == sealed, keys == Keys::Rotating);
            }
            life.crash_and_open();
            life.checkpoint().unwrap();
            life.crash_and_open();
            if written {
                break;
            }
            assert!(step < 200);
        }
    }
}

#[test]
fn sealed_checkpoints_show_nothing_and_open_with_their_keys_only() {
    let mut life = Life::with(1, Keys::Rotating);
    for _ in 0..4 {
        life.checkpoint().unwrap();
    }
    let names = life.disk.list(&life.opened.dir).unwrap();
    let mut looked_at = 0;
    for name in names {
        let bytes = life.disk.contents(&life.opened.dir.join(&name)).unwrap();
        let found = bytes.windows(4).any(|four| four == b"key ");
        assert!(!found, "{name}");
        looked_at += 1;
    }
    assert!(looked_at > 4);
    let changes = life.disk.stats().changes;
    let other = sealing(&["other"], 1);
    for keys in [Sealing::default(), other] {
        let refused = open_with(&life.disk, &keys).unwrap_err();
        let CheckpointOpenError::Index(index::IndexError::Key { .. }) = refused else {
            panic!("{refused}");
        };
        assert!(refused.to_string().contains("`k0`"), "{refused}");
    }
    // The index alone was wrapped anew: the newest run still needs the old key, and is not taken for damaged.
    life.reopen(0);
    let identity = life.opened.index.identity().unwrap();
    life.opened
        .index
        .make(&life.disk, &life.opened.dir, identity)
        .unwrap();
    let refused = open_with(&life.disk, &sealing(&["k1"], 1)).unwrap_err();
    let CheckpointOpenError::Run(run::RunError::Key { .. }) = refused else {
        panic!("{refused}");
    };
    assert_eq!(life.disk.stats().changes, changes + 2, "a write and a sync");
    life.reopen(0);
}

fn the_power_goes(keys: Keys) {
    let mut quiet = Life::with(1, keys);
    for _ in 0..CHECKPOINTS {
        quiet.checkpoint().unwrap();
    }
    let steps = quiet.disk.stats().changes;
    assert!(
        quiet.opened.stats().folds >= 2,
        "{:?}",
        quiet.opened.stats()
    );
    let mut tried = 0;
    for step in 0..steps {
        let mut life = Life::with(1, keys);
        life.disk.set_faults(Faults {
            power_off_after: Some(step),
            ..Faults::default()
        });
        while life.checkpoint().is_ok() && life.opened.stats().written < CHECKPOINTS as u64 {}
        life.crash_and_open();
        tried += 1;
        // The folder is as good as before: it goes on, and is opened again.
        for _ in 0..3 {
            life.checkpoint().unwrap();
        }
        life.crash_and_open();
        assert_eq!(life.acknowledged, Some(life.index));
    }
    println!("the power went at each of {tried} steps");
}

#[test]
fn whatever_fails_nothing_is_lost_that_was_copied() {
    let keys = [Keys::None, Keys::Rotating, Keys::OnAndOff];
    for seed in 0..150 {
        let mut life = Life::with(seed, keys[seed as usize % 3]);
        for _ in 0..CHECKPOINTS {
            let some = Some(life.random.random_range(0..20));
            let faults = match life.random.random_range(0..8) {
                0 => Faults {
                    fail_write_after: some,
                    ..Faults::default()
                },
                1 => Faults {
                    fail_sync_after: some,
                    ..Faults::default()
                },
                2 => Faults {
                    power_off_after: some,
                    ..Faults::default()
                },
                3 => Faults {
                    capacity_bytes: Some(life.random.random_range(0..3 << 20)),
                    ..Faults::default()
                },
                _ => Faults::default(),
            };
            let power = faults.power_off_after.is_some();
            life.disk.set_faults(faults);
            let failed = life.checkpoint().is_err();
            if power || life.random.random_bool(0.1) {
                life.crash_and_open();
            } else if failed && life.random.random_bool(0.5) {
                // The next one, on a disk that works again, holds both.
                life.disk.set_faults(Faults::default());
                life.checkpoint()
                    .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
        }
        life.disk.set_faults(Faults::default());
        life.checkpoint().unwrap();
        life.crash_and_open();
        assert_eq!(life.acknowledged, Some(life.index), "seed {seed}");
    }
}

#[test]
fn the_newest_may_rot_and_the_one_before_is_whole() {
    let mut survived = 0;
    for seed in 0..60 {
        let mut life = Life::new(seed);
        for _ in 0..life.random.random_range(2..7) {
            life.checkpoint().unwrap();
        }
        let newest = life.opened.newest();
        let path = if seed % 2 == 0 {
            life.newest_path()
        } else {
            life.newest_run_path()
        };
        // The power goes while the next one is written, and takes a bit of the newest with it.
        life.disk.set_faults(Faults {
            power_off_after: Some(life.random.random_range(0..20)),
            ..Faults::default()
        });
        let _ = life.checkpoint();
        life.disk.crash();
        let still = open(&life.disk).unwrap().newest();
        if still != newest {
            // The next one made it: what both name is not survived.
            continue;
        }
        survived += 1;
        let len = life.disk.contents(&path).unwrap().len() as u64;
        let bit = life.random.random_range(0..8);
        life.disk
            .flip_bit(&path, life.random.random_range(0..len), bit);
        life.reopen(1);
        // Nothing on the disk was changed by opening, and all goes on from there.
        for _ in 0..3 {
            life.checkpoint().unwrap();
        }
        life.crash_and_open();
        assert_eq!(life.acknowledged, Some(life.index), "seed {seed}");
    }
    assert!(survived > 20, "{survived}");
}

#[test]
fn a_base_that_rotted_is_told_and_nothing_is_changed() {
    let mut life = Life::new(5);
    for _ in 0..3 {
        life.checkpoint().unwrap();
    }
    let newest = life.opened.newest().unwrap();
    let base = run::run_path(&life.opened.dir, newest.runs[0].sequence);
    life.disk.flip_bit(&base, 100, 1);
    let before = life.disk.fingerprint();
    let opened = open(&life.disk).unwrap();
    let error = opened.restore(|pairs, _| {
        pairs.for_each(drop);
        Ok(())
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("run-00000000000000000001"), "{error}");
    assert_eq!(life.disk.fingerprint(), before);
    // Without the index file nothing can be opened either.
    let index = life.opened.dir.join("index");
    life.disk.remove(&index).unwrap();
    let error = open(&life.disk).unwrap_err().to_string();
    assert!(error.contains("index"), "{error}");
}

#[test]
fn files_of_another_folder_are_not_taken() {
    let mut one = Life::new(6);
    let mut other = Life::new(7);
    for _ in 0..2 {
        one.checkpoint().unwrap();
        // The clock makes another identity.
        other.index += 1;
        other.checkpoint().unwrap();
    }
    let path = one.newest_run_path();
    let foreign = other.disk.contents(&path).unwrap();
    one.disk.remove(&path).unwrap();
    let file = one.disk.create_zeroed(&path, 0).unwrap();
    write_all_at(&*file, &foreign, 0).unwrap();
    one.reopen(1);
    assert_eq!(one.acknowledged, Some(1));
}

#[test]
fn a_checkpoint_of_an_earlier_server_is_opened_and_replaced() {
    let disk = SimDisk::new(8);
    let put = |index: u64, state: &[u8]| {
        let bytes = encode_whole(&standing(index), state);
        let path = whole::whole_path(Path::new(GROUP), index);
        let file = disk.create_zeroed(&path, bytes.len() as u64).unwrap();
        write_all_at(&*file, &bytes, 0).unwrap();
    };
    put(4, b"four");
    put(9, b"nine");
    let pairs = |opened: &Checkpoints| {
        let mut all = Vec::new();
        opened
            .restore(|pairs, _| {
                all.extend(pairs);
                Ok(())
            })
            .unwrap();
        all
    };
    let whole = |state: &'static [u8]| (Bytes::new(), Bytes::from_static(state));
    let opened = open(&disk).unwrap();
    assert_eq!(opened.standing(), Some(standing(9)));
    assert_eq!(pairs(&opened), [whole(b"nine")]);
    disk.flip_bit(&whole::whole_path(Path::new(GROUP), 9), 57, 0);
    let opened = open(&disk).unwrap();
    assert_eq!(opened.standing(), Some(standing(4)));
    // What the first delta does not touch lies beneath it.
    let one = (Bytes::from_static(b"a"), Bytes::from_static(b"1"));
    let delta = |change: Change| Delta {
        blocks: Vec::new(),
        pairs: vec![change],
    };
    opened.hold(standing(20), delta((one.0.clone(), Some(one.1.clone()))));
    opened.write().unwrap();
    let opened = open(&disk).unwrap();
    assert_eq!(opened.standing(), Some(standing(20)));
    assert_eq!(pairs(&opened), [whole(b"four"), one.clone()]);
    // The file of the earlier server serves as the one before until there are two.
    assert!(
        disk.contents(&whole::whole_path(Path::new(GROUP), 4))
            .is_some()
    );
    opened.hold(standing(21), delta((Bytes::new(), None)));
    opened.write().unwrap();
    assert!(
        disk.contents(&whole::whole_path(Path::new(GROUP), 4))
            .is_none()
    );
    assert_eq!(pairs(&open(&disk).unwrap()), [one]);
}

/// Made from the tables of `docs/format.md` by another program.
#[test]
fn a_run_and_a_manifest_of_the_first_version_are_read() {
    let pairs = run::decode_untrusted(
        include_bytes!("../../fuzz/corpus/run/two-sections"),
        &Sealing::default(),
    );
    let pair = |key: &'static str, value: Option<Vec<u8>>| {
        (Bytes::from_static(key.as_bytes()), value.map(Bytes::from))
    };
    let expected = [
        pair("", Some(b"first".to_vec())),
        pair("a", None),
        pair("b", Some(Vec::new())),
        pair("c", Some(vec![b'x'; 100])),
    ];
    assert_eq!(pairs.unwrap(), expected);
    let bytes = include_bytes!("../../fuzz/corpus/manifest/three-runs");
    let manifest = Manifest::decode(bytes).unwrap();
    assert_eq!((manifest.sequence, manifest.standing.id.index.0), (7, 900));
    assert_eq!(manifest.standing.clock, UnixMs(1_234_567));
    let runs = manifest.runs.iter();
    let runs: Vec<_> = runs
        .map(|run| (run.sequence, run.bytes, run.pairs, run.crc))
        .collect();
    assert_eq!(runs, [(1, 5000, 10, 99), (3, 600, 4, 98), (5, 300, 2, 97)]);
}

#[test]
fn every_flipped_bit_of_a_run_is_noticed() {
    for keys in [Sealing::default(), sealing(&["k"], 1)] {
        flip_bits_of_a_run(&keys);
    }
}

fn flip_bits_of_a_run(keys: &Sealing) {
    let disk = SimDisk::new(1);
    let dir = Path::new("c");
    let id = standing(7).id;
    let mut writer = run::RunWriter::create(&disk, dir, index::Identity(5), 3, id, keys).unwrap();
    let large = vec![7; 70_000];
    writer.push(b"", Some(b"first")).unwrap();
    writer.push(b"gone", None).unwrap();
    writer.push(b"large", Some(&large)).unwrap();
    writer.push(b"last", Some(b"")).unwrap();
    let named = writer.finish().unwrap();
    let bytes = disk.contents(&run::run_path(dir, 3)).unwrap();
    assert_eq!(named.bytes, bytes.len() as u64);
    let pairs = run::decode_untrusted(&bytes, keys).unwrap();
    assert_eq!(pairs.len(), 4);
    assert_eq!(pairs[1], (Bytes::from_static(b"gone"), None));
    assert_eq!(pairs[2].1.as_deref(), Some(&large[..]));
    let mut broken = bytes.clone();
    for at in 0..bytes.len() {
        // All bits of what is not the large value, and some of that.
        let bits = if at > 200 && at + 200 < bytes.len() && at % 97 != 0 {
            0..0
        } else {
            0..8
        };
        for bit in bits {
            broken[at] ^= 1 << bit;
            let opened = run::decode_untrusted(&broken, keys);
            // The identity and the sequence are the manifest's to compare; then the header's checksum tells.
            assert!(opened.is_err(), "byte {at} bit {bit}");
            broken[at] ^= 1 << bit;
        }
    }
    for len in 0..200 {
        assert!(run::decode_untrusted(&bytes[..len], keys).is_err());
        assert!(run::decode_untrusted(&bytes[..bytes.len() - 1 - len], keys).is_err());
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
