//! Bytes that broke and files that went: refused, or taken for a torn end when nothing says that they were synced.
//!
//! Owns the tests of what an opening makes of a disk that did not keep what it said. Read next: `journal/recovery.rs`.

use super::*;

#[test]
fn every_broken_byte_is_refused_or_looks_like_a_torn_end() {
    run(async {
        let pristine = SimDisk::new(1);
        let all = sample(&pristine).await;
        let (mut refused, mut harmless, mut torn) = (0, 0, 0);
        for path in segment_files(&pristine) {
            let len = pristine.contents(&path).unwrap().len();
            for byte in 0..len {
                let disk = pristine.copy();
                disk.flip_bit(&path, byte as u64, (byte % 8) as u8);
                match open(&disk) {
                    Err(OpenError::Corrupt { .. }) => refused += 1,
                    Err(other) => panic!("byte {byte} of {}: {other}", path.display()),
                    Ok(journal) => {
                        let read = frames(&journal);
                        // Padding and unused room, or the last frame: nothing says that it was synced.
                        if read == all {
                            harmless += 1
                        } else {
                            torn += 1
                        }
                        assert!(
                            all.starts_with(&read) && read.len() + 1 >= all.len(),
                            "byte {byte}"
                        );
                    }
                }
            }
        }
        assert!(
            refused > 3000 && harmless > 500 && torn > 300,
            "{refused} {harmless} {torn}"
        );
    });
}

#[test]
fn after_a_clean_close_a_broken_last_frame_is_refused_too() {
    run(async {
        let disk = SimDisk::new(1);
        let all = sample(&disk).await;
        let journal = open(&disk).unwrap();
        close(&journal).await;
        let path = segment_files(&disk).pop().unwrap();
        let bytes = disk.contents(&path).unwrap();
        let last = &all.last().unwrap().payload;
        let at = bytes
            .windows(last.len())
            .position(|window| window == last)
            .unwrap();
        disk.flip_bit(&path, at as u64 + 100, 1);
        let refused = open(&disk).unwrap_err();
        assert!(
            matches!(
                refused,
                OpenError::Corrupt {
                    index: LogIndex(11),
                    ..
                }
            ),
            "{refused}"
        );
    });
}

#[test]
fn a_cut_at_every_byte_leaves_a_prefix_that_can_go_on() {
    run(async {
        let pristine = SimDisk::new(1);
        let journal = open(&pristine).unwrap();
        let all: Vec<Frame> = (0..5)
            .map(|index| frame(index, 1, 40 * index as usize))
            .collect();
        // One batch, one sync: no frame says that another was synced.
        append(&journal, all.clone()).await.unwrap();
        let path = segment_files(&pristine).pop().unwrap();
        let mut lengths = std::collections::BTreeSet::new();
        for byte in 512..1600 {
            let disk = pristine.copy();
            let file = disk.open(&path).unwrap();
            crate::disk::zero_range(&*file, byte, 2048 - byte).unwrap();
            let journal = open(&disk).unwrap();
            let read = frames(&journal);
            assert!(all.starts_with(&read), "cut at {byte}");
            lengths.insert(read.len());
            let next = frame(read.len() as u64, 2, 10);
            append(&journal, vec![next.clone()]).await.unwrap();
            let again = frames(&open(&disk).unwrap());
            assert_eq!(again, [&read[..], &[next]].concat(), "cut at {byte}");
        }
        assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn a_torn_batch_is_cut_and_never_taken_for_corruption() {
    run(async {
        let mut lost = 0;
        for seed in 0..200 {
            let disk = SimDisk::new(seed);
            let journal = open(&disk).unwrap();
            let synced: Vec<Frame> = (0..3).map(|index| frame(index, 1, 200)).collect();
            append(&journal, synced.clone()).await.unwrap();
            // The next batch is written but its sync fails; then the power goes.
            disk.set_faults(Faults {
                fail_sync_after: Some(0),
                ..Faults::default()
            });
            let batch: Vec<Frame> = (3..9).map(|index| frame(index, 1, 300)).collect();
            let failed = append(&journal, batch.clone()).await.unwrap_err();
            assert!(matches!(failed, WriteError::Poisoned(_)));
            disk.crash();
            let journal = open(&disk).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let all = [&synced[..], &batch[..]].concat();
            let read = frames(&journal);
            assert!(
                read.len() >= 3 && all.starts_with(&read),
                "seed {seed}: {} frames",
                read.len()
            );
            lost += usize::from(read.len() < 9);
            // What is written over the torn tail comes back, and nothing of the old tail does.
            let next: Vec<Frame> = (read.len() as u64..12)
                .map(|index| frame(index, 2, 150))
                .collect();
            append(&journal, next.clone()).await.unwrap();
            disk.crash();
            let again = frames(&open(&disk).unwrap());
            assert_eq!(again, [&read[..], &next[..]].concat(), "seed {seed}");
        }
        assert!(lost > 100, "only {lost} of 200 batches tore");
    });
}

#[test]
fn a_failed_write_poisons_for_good() {
    run(async {
        let disk = SimDisk::new(9);
        let journal = open(&disk).unwrap();
        append(&journal, vec![frame(0, 1, 5)]).await.unwrap();
        disk.set_faults(Faults {
            fail_write_after: Some(0),
            ..Faults::default()
        });
        assert!(matches!(
            append(&journal, vec![frame(1, 1, 5)]).await,
            Err(WriteError::Poisoned(_))
        ));
        disk.set_faults(Faults::default());
        assert!(matches!(
            append(&journal, vec![frame(2, 1, 5)]).await,
            Err(WriteError::Poisoned(_))
        ));
        assert!(matches!(
            wait(|done| journal.truncate_after(None, done)).await,
            Err(WriteError::Poisoned(_))
        ));
        assert_eq!(frames(&open(&disk).unwrap()), [frame(0, 1, 5)]);
    });
}

#[test]
fn a_missing_segment_or_vote_is_told() {
    run(async {
        let pristine = SimDisk::new(10);
        sample(&pristine).await;
        for path in segment_files(&pristine)
            .into_iter()
            .take(2)
            .chain([Path::new(DIR).join("meta")])
        {
            let disk = pristine.copy();
            disk.remove(&path).unwrap();
            let opened = open(&disk);
            assert!(
                matches!(opened, Err(OpenError::Corrupt { .. })),
                "without {}",
                path.display()
            );
        }
    });
}

/// With frames that were purged it was taken for one that was released: the node started, and said of its messages that they
/// were given back.
#[test]
fn a_first_segment_that_is_missing_is_told_before_anything_was_released() {
    run(async {
        let disk = SimDisk::new(11);
        let all = sample(&disk).await;
        let journal = open(&disk).unwrap();
        let id = FrameId {
            term: all[8].term,
            index: all[8].index,
        };
        wait(|done| journal.purge(id, done)).await.unwrap();
        close(&journal).await;
        disk.remove(&segment_files(&disk)[0]).unwrap();
        let refused = open(&disk).unwrap_err();
        assert!(matches!(refused, OpenError::Corrupt { .. }), "{refused}");
    });
}
