//! Files that rotted, were lost, or belong to another folder.
//!
//! Owns the tests of what is noticed, and what is opened instead. Read next: [`super::power`].

use super::*;

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
