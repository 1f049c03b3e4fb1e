//! The simulated disk behaves as badly as it promises.

use super::*;
use crate::disk::write_all_at;

fn path(name: &str) -> PathBuf {
    Path::new("d").join(name)
}

#[test]
fn synced_bytes_survive_a_crash_and_unsynced_sectors_tear() {
    let mut torn = 0;
    for seed in 0..32 {
        let disk = SimDisk::new(seed);
        let file = disk.create_zeroed(&path("f"), 4096).unwrap();
        disk.sync_dir(Path::new("d")).unwrap();
        write_all_at(&*file, &[1; 2048], 0).unwrap();
        file.sync().unwrap();
        write_all_at(&*file, &[2; 2048], 2048).unwrap();
        disk.crash();
        assert!(file.sync().is_err(), "a file of the life before is dead");
        let bytes = disk.contents(&path("f")).unwrap();
        assert_eq!(bytes[..2048], [1; 2048]);
        let kept = bytes[2048..].iter().filter(|byte| **byte == 2).count();
        assert_eq!(kept % SECTOR_BYTES, 0);
        torn += usize::from(kept > 0 && kept < 2048);
    }
    assert!(torn > 0, "no write tore in 32 seeds");
}

#[test]
fn names_need_a_directory_sync() {
    let survived = (0..32).filter(|seed| {
        let disk = SimDisk::new(*seed);
        disk.create_zeroed(&path("f"), 1).unwrap();
        disk.crash();
        disk.open(&path("f")).is_ok()
    });
    let survived = survived.count();
    assert!(
        survived > 0 && survived < 32,
        "{survived} of 32 names survived"
    );
}

#[test]
fn faults_happen_when_asked() {
    let disk = SimDisk::new(1);
    let file = disk.create_zeroed(&path("f"), 512).unwrap();
    disk.set_faults(Faults {
        fail_sync_after: Some(1),
        fail_write_after: Some(1),
        ..Faults::default()
    });
    write_all_at(&*file, b"x", 0).unwrap();
    assert!(write_all_at(&*file, b"x", 0).is_err());
    file.sync().unwrap();
    assert!(file.sync().is_err());
    disk.set_faults(Faults {
        capacity_bytes: Some(600),
        ..Faults::default()
    });
    let full = disk.create_zeroed(&path("g"), 512).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_lost_sync_keeps_nothing_stable() {
    let disk = SimDisk::new(3);
    let file = disk.create_zeroed(&path("f"), 512 * 64).unwrap();
    disk.sync_dir(Path::new("d")).unwrap();
    disk.set_faults(Faults {
        lose_one_sync_in: 1,
        ..Faults::default()
    });
    write_all_at(&*file, &[7; 512 * 64], 0).unwrap();
    file.sync().unwrap();
    disk.crash();
    let left = disk.contents(&path("f")).unwrap();
    assert!(left.contains(&0));
    assert_eq!(disk.stats().lost_syncs, 1);
}

#[test]
fn a_sync_of_one_folder_makes_no_name_of_another_stable() {
    let survived = (0..32).filter(|seed| {
        let disk = SimDisk::new(*seed);
        disk.create_zeroed(&path("f"), 1).unwrap();
        disk.create_zeroed(Path::new("e/f"), 1).unwrap();
        disk.sync_dir(Path::new("d")).unwrap();
        disk.crash();
        disk.open(&path("f")).unwrap();
        disk.open(Path::new("e/f")).is_ok()
    });
    let survived = survived.count();
    assert!(survived > 0 && survived < 32, "{survived} of 32");
}

#[test]
fn what_a_failed_sync_lost_is_not_tried_again_by_the_next_one() {
    let disk = SimDisk::new(3);
    let file = disk.create_zeroed(&path("f"), 512 * 64).unwrap();
    disk.sync_dir(Path::new("d")).unwrap();
    disk.set_faults(Faults {
        fail_sync_after: Some(0),
        ..Faults::default()
    });
    write_all_at(&*file, &[7; 512 * 64], 0).unwrap();
    assert!(file.sync().is_err());
    disk.set_faults(Faults::default());
    file.sync().unwrap();
    assert_eq!(disk.contents(&path("f")).unwrap(), vec![7; 512 * 64]);
    disk.crash();
    assert!(disk.contents(&path("f")).unwrap().contains(&0));
}

#[test]
fn without_power_nothing_changes_any_more() {
    let disk = SimDisk::new(1);
    let file = disk.create_zeroed(&path("f"), 512).unwrap();
    disk.set_faults(Faults {
        power_off_after: Some(1),
        ..Faults::default()
    });
    write_all_at(&*file, b"x", 0).unwrap();
    assert!(write_all_at(&*file, b"y", 0).is_err());
    assert!(file.sync().is_err());
    assert!(disk.remove(&path("f")).is_err());
    assert!(disk.rename(&path("f"), &path("g")).is_err());
    assert!(disk.sync_dir(Path::new("d")).is_err());
    assert!(disk.create_zeroed(&path("h"), 1).is_err());
    assert_eq!(disk.contents(&path("f")).unwrap()[0], b'x');
}

#[test]
fn a_hole_is_there_after_a_crash_or_is_not() {
    let (mut kept, mut undone) = (0, 0);
    for seed in 0..64 {
        let disk = SimDisk::new(seed);
        let file = disk.create_zeroed(&path("f"), 16 * 1024).unwrap();
        disk.sync_dir(Path::new("d")).unwrap();
        write_all_at(&*file, &[7; 16 * 1024], 0).unwrap();
        file.sync().unwrap();
        file.punch(4096, 4096).unwrap();
        assert_eq!(file.allocated_bytes().unwrap(), 12 * 1024);
        assert_eq!(disk.used_bytes(Path::new("d")).unwrap(), 12 * 1024);
        assert_eq!(disk.contents(&path("f")).unwrap()[4096..8192], [0; 4096]);
        if seed % 2 == 0 {
            file.sync().unwrap();
        }
        disk.crash();
        let bytes = disk.contents(&path("f")).unwrap();
        assert_eq!((bytes[4095], bytes[8192]), (7, 7));
        match disk.occupied_bytes() {
            12_288 => kept += 1,
            16_384 if seed % 2 == 1 => undone += 1,
            other => panic!("seed {seed}: {other} bytes"),
        }
        let file = disk.open(&path("f")).unwrap();
        write_all_at(&*file, &[7], 5000).unwrap();
        assert_eq!(file.allocated_bytes().unwrap(), 16 * 1024);
        disk.set_faults(Faults {
            fail_punch_after: Some(0),
            ..Faults::default()
        });
        let refused = file.punch(0, 4096).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
    }
    assert!(kept >= 32 && undone > 0, "{kept} {undone}");
}
