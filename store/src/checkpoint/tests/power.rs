//! The power goes, or an operation fails, at every step: plain, sealed, and while keys change.
//!
//! Owns the tests of what a crash leaves. Read next: [`super::rot`].

use super::*;

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
