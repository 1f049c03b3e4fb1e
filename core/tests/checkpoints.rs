//! Random histories of a journalled shard with checkpoints copied bit by bit while it goes on: what is restored is the
//! state at the freeze, whatever was applied meanwhile, and what follows brings it to the state of today.
//!
//! `ANABRANCH_SEED_FROM` and `ANABRANCH_SEEDS` choose the histories.

mod node;

#[path = "checkpoints/world.rs"]
mod world;

use anabranch_core::id::Position;
use anabranch_core::shard::{JOURNAL_PAGE_BYTES, Shard};
use node::kept::{Kept, Pairs, seen};
use world::{Dice, World};

const SEEDS: u64 = 6;
const STEPS: u64 = 60;

/// Says which seed failed.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "fails with ANABRANCH_SEED_FROM={} ANABRANCH_SEEDS=1",
                self.0
            );
        }
    }
}

fn seeds() -> impl Iterator<Item = u64> {
    let number = |name, default| {
        let given = std::env::var(name).ok();
        given.map_or(default, |given| given.parse().expect("a number"))
    };
    let from = number("ANABRANCH_SEED_FROM", 1);
    from..from + number("ANABRANCH_SEEDS", SEEDS)
}

/// A checkpoint that is durable: what it holds, how far the journal was applied, and the state then.
#[derive(Clone)]
struct Durable {
    pairs: Pairs,
    frames: usize,
    state: String,
}

/// Names the first line that differs.
#[track_caller]
fn same(one: &str, other: &str) {
    let mut lines = one.lines().zip(other.lines());
    if let Some((one, other)) = lines.find(|(one, other)| one != other) {
        panic!("{one}\nis not\n{other}");
    }
    assert_eq!(one.len(), other.len());
}

/// Copies until all is copied, with further frames in between.
fn copy(
    world: &mut World,
    dice: &mut Dice,
    shard: &mut Shard<Position>,
    quiet: bool,
) -> anabranch_core::index::Delta {
    let budgets = [1, 100, 5_000, 1 << 20];
    loop {
        let budget = budgets[dice.roll(4) as usize];
        if let Some(delta) = shard.copy(budget) {
            return delta;
        }
        if !quiet && dice.roll(3) == 0 {
            world.step(dice, shard);
        }
    }
}

fn history(seed: u64, memory: usize) -> u64 {
    let mut dice = Dice(seed);
    let mut world = World::new(memory);
    let mut kept = Kept::default();
    let mut shard = world.shard();
    shard.set_blocks(kept.blocks());
    let mut durable: Vec<Durable> = Vec::new();
    let mut copied = 0;
    for _ in 0..STEPS {
        world.step(&mut dice, &mut shard);
        if dice.roll(8) > 0 {
            continue;
        }
        let (frames, state) = (world.frames(), seen(&mut shard, &world.journal));
        shard.freeze();
        let delta = copy(&mut world, &mut dice, &mut shard, false);
        copied += delta.blocks.len() as u64;
        kept.write(delta);
        // Not yet durable: either of the two before can be what is opened.
        let older = durable.len().checked_sub(1 + dice.roll(2) as usize);
        if let Some(older) = older.and_then(|at| durable.get(at)) {
            check(&world, &kept, older);
        }
        if dice.roll(5) == 0 {
            // It could not be made so: the next one will be, with it.
            continue;
        }
        let pairs = kept.fold();
        shard.written();
        durable.push(Durable {
            pairs,
            frames,
            state,
        });
        check(&world, &kept, durable.last().unwrap());
        if dice.roll(4) == 0 {
            shard = restart(&mut world, &mut dice, &mut kept, &mut durable, shard);
        }
    }
    same(
        &seen(&mut shard, &world.journal),
        &seen(&mut world.replay(), &world.journal),
    );
    assert_eq!(shard.damaged(), None, "every block is as it was written");
    copied
}

fn open(world: &World, kept: &Kept, durable: &Durable) -> Shard<Position> {
    let mut shard = world.shard();
    let pairs = durable.pairs.iter();
    let mut pairs = pairs.map(|(key, value)| (key.clone(), value.clone()));
    shard.restore_pairs(&mut pairs, kept.blocks()).unwrap();
    shard
}

/// What is opened is the state at the freeze.
#[track_caller]
fn check(world: &World, kept: &Kept, durable: &Durable) {
    let mut shard = open(world, kept, durable);
    same(&seen(&mut shard, &world.journal), &durable.state);
}

/// The node dies and starts again from its last checkpoint and the frames behind it.
fn restart(
    world: &mut World,
    dice: &mut Dice,
    kept: &mut Kept,
    durable: &mut Vec<Durable>,
    mut before: Shard<Position>,
) -> Shard<Position> {
    // The newest may prove damaged.
    if durable.len() > 2 && dice.roll(2) == 0 {
        durable.pop();
    }
    let Some(last) = durable.last() else {
        return before;
    };
    kept.begin_with(last.pairs.clone());
    let mut shard = open(world, kept, last);
    world.apply_from(last.frames, &mut shard);
    same(
        &seen(&mut shard, &world.journal),
        &seen(&mut before, &world.journal),
    );
    assert_eq!(before.damaged(), None, "every block is as it was written");
    shard
}

#[test]
fn what_is_restored_is_the_state_at_the_freeze() {
    let mut copied = 0;
    for seed in seeds() {
        let _told = Told(seed);
        // Nothing fits into memory, some does, all does.
        let memory = [0, 20_000, 32 << 20][(seed % 3) as usize];
        copied += history(seed, memory);
    }
    assert!(copied > 0, "some chunks lie in blocks");
}

/// A block that cannot be read takes its messages and nothing else.
#[test]
fn damaged_blocks_cost_their_messages_only() {
    let mut damaged = 0;
    for seed in seeds() {
        let _told = Told(seed);
        let mut dice = Dice(seed);
        let mut world = World::new(0);
        let mut kept = Kept::default();
        let mut shard = world.shard();
        shard.set_blocks(kept.blocks());
        for _ in 0..STEPS / 2 {
            world.step(&mut dice, &mut shard);
        }
        shard.freeze();
        kept.write(copy(&mut world, &mut dice, &mut shard, true));
        let durable = Durable {
            pairs: kept.fold(),
            frames: world.frames(),
            state: String::new(),
        };
        let lost = kept.damage(|| dice.roll(3));
        let counts = world.counts(&mut shard);
        let mut again = open(&world, &kept, &durable);
        assert_eq!(world.counts(&mut again), counts, "all are counted");
        let (there, all) = (world.readable(&mut again), world.readable(&mut shard));
        assert!(
            there <= all && (lost == 0) == (there == all),
            "{there} of {all}, {lost} lost"
        );
        assert_eq!(again.damaged().is_some(), lost > 0);
        damaged += lost;
        // What is done with such streams stays countable.
        world.attach(&mut again);
        for _ in 0..STEPS / 2 {
            world.step(&mut dice, &mut again);
            world.dispatch(&mut again);
        }
        world.purge(&mut again);
        let left = world.counts(&mut again);
        assert!(
            left.iter()
                .all(|(_, ready, unsettled)| ready + unsettled == 0),
            "{left:?}"
        );
        again.freeze();
        kept.write(copy(&mut world, &mut dice, &mut again, true));
    }
    assert!(damaged > 0);
}

/// What is dead is what no message of any stream needs.
#[test]
fn dead_ranges_are_those_that_no_message_needs() {
    let mut some = 0;
    for seed in seeds() {
        let _told = Told(seed);
        let mut dice = Dice(seed);
        let mut world = World::new(20_000);
        world.body_bytes = 3_000;
        world.pins = false;
        let mut kept = Kept::default();
        let mut shard = world.shard();
        shard.set_blocks(kept.blocks());
        for _ in 0..STEPS {
            world.step(&mut dice, &mut shard);
            if dice.roll(10) == 0 {
                shard.freeze();
                kept.write(copy(&mut world, &mut dice, &mut shard, true));
                kept.fold();
                shard.written();
            }
        }
        shard.freeze();
        kept.write(copy(&mut world, &mut dice, &mut shard, true));
        let durable = Durable {
            pairs: kept.fold(),
            frames: world.frames(),
            state: String::new(),
        };
        let needed = world.needed(&mut shard);
        let end = world.journal.bytes.len() as u64;
        for shard in [&shard, &open(&world, &kept, &durable)] {
            let ranges = shard.dead_ranges(Position(0), Position(u64::MAX));
            some += ranges.len();
            for (first, last) in &ranges {
                assert!(
                    needed
                        .iter()
                        .all(|(from, to)| *to <= first.0 || *from >= last.0)
                );
                assert!(first.0 % JOURNAL_PAGE_BYTES == 0 && last.0 <= end);
            }
            let dead: u64 = ranges.iter().map(|(first, last)| last.0 - first.0).sum();
            let pages = end / JOURNAL_PAGE_BYTES;
            let touched = (0..pages).filter(|page| {
                let (first, last) = (page * JOURNAL_PAGE_BYTES, (page + 1) * JOURNAL_PAGE_BYTES);
                // An entry's cost covers its record, and up to half a kilobyte more.
                needed
                    .iter()
                    .any(|(from, to)| *from < last && to + 512 > first)
            });
            let kept = touched.count() as u64;
            assert!(
                dead >= (pages - kept) * JOURNAL_PAGE_BYTES,
                "{dead} of {end}, {kept} pages needed"
            );
        }
    }
    assert!(some > 0);
}
