//! Packed frames: sealed, compressed, both; keys that come and go; what stands on the disk.

use super::*;
use crate::journal::pack::COMPRESS_FROM_BYTES;
use crate::seal::KeyError;
use crate::seal::keys::tests::sealing;

/// Ways to pack; the first has no keys.
fn packings(seed: u64) -> Vec<Packing> {
    let keys = || sealing(&["k1"], seed);
    let packing = |compression, sealing| Packing {
        compression,
        sealing,
    };
    vec![
        packing(Compression::Zstd, Default::default()),
        packing(Compression::None, keys()),
        packing(Compression::Lz4, keys()),
        packing(Compression::Zstd, keys()),
    ]
}

fn packed(packing: &Packing) -> JournalOptions {
    JournalOptions {
        segment_bytes: 64 * 1024,
        packing: packing.clone(),
        ..options()
    }
}

fn open_packed(disk: &SimDisk, packing: &Packing) -> Result<Journal, OpenError> {
    Journal::open(Arc::new(disk.clone()), Path::new(DIR), packed(packing))
}

/// Frames of which some compress.
fn mixed(indexes: std::ops::Range<u64>, term: u64) -> Vec<Frame> {
    let one = |index: u64| {
        let lens = [0, 100, COMPRESS_FROM_BYTES, 5000, 30_000];
        let mut frame = frame(index, term, lens[(index + term) as usize % lens.len()]);
        if index.is_multiple_of(2) {
            let mut noise = frame.payload.to_vec();
            let random = crate::seal::SeededRandom::new(index + 1);
            crate::seal::Random::fill(&random, &mut noise[..]).unwrap();
            frame.payload = noise.into();
        }
        frame
    };
    indexes.map(one).collect()
}

fn check_reading(journal: &Journal, all: &[Frame]) {
    assert_eq!(frames(journal), all);
    let mut position = 0;
    for one in all {
        let payload = Position(position + 48);
        let len = one.payload.len();
        assert_eq!(journal.payload_position(one.index), Some(payload));
        if len > 0 {
            assert_eq!(journal.read(payload, len).unwrap(), one.payload);
            let inside = Position(payload.0 + 40);
            assert_eq!(journal.read(inside, 50).unwrap(), one.payload.slice(40..90));
            assert!(journal.read(inside, len).is_err(), "beyond the frame");
        }
        position += one.logical_len();
    }
    assert_eq!(
        journal.end(),
        Position(position),
        "positions count plain bytes"
    );
}

#[test]
fn packed_frames_are_read_back_as_if_they_were_plain() {
    run(async {
        for packing in packings(1) {
            let disk = SimDisk::new(1);
            let all = mixed(0..40, 1);
            let journal = open_packed(&disk, &packing).unwrap();
            for batch in all.chunks(7) {
                append(&journal, batch.to_vec()).await.unwrap();
            }
            check_reading(&journal, &all);
            let stats = journal.stats();
            if packing.compression != Compression::None {
                assert!(stats.packed_to < stats.packed_from * 3 / 4, "{stats:?}");
            }
            journal.set_applied(LogIndex(39));
            let manifest = journal.manifest(LogIndex(39)).unwrap();
            assert_eq!(journal.check(&manifest).unwrap().frames, 40);
            drop(journal);
            check_reading(&open_packed(&disk, &packing).unwrap(), &all);
            // Once more with the side files, which stand for what is below a checkpoint.
            let options = JournalOptions {
                checkpoint: Some(LogIndex(39)),
                ..packed(&packing)
            };
            let open = Journal::open(Arc::new(disk.clone()), Path::new(DIR), options).unwrap();
            check_reading(&open, &all);
        }
    });
}

#[test]
fn nothing_of_a_payload_stands_on_the_disk() {
    run(async {
        for packing in &packings(1)[1..] {
            let disk = SimDisk::new(1);
            let journal = open_packed(&disk, packing).unwrap();
            for index in 0..20 {
                let len = if index % 2 == 0 { 200 } else { 20_000 };
                let text = format!("secret {index} ").repeat(len / 9);
                let frame = Frame {
                    payload: text.into(),
                    ..frame(index, 1, 0)
                };
                append(&journal, vec![frame]).await.unwrap();
            }
            close(&journal).await;
            for name in disk.list(Path::new(DIR)).unwrap() {
                let bytes = disk.contents(&Path::new(DIR).join(&name)).unwrap();
                let found = bytes.windows(6).any(|six| six == b"secret");
                assert!(!found, "{name} shows it");
            }
        }
    });
}

#[test]
fn a_flipped_bit_in_a_sealed_frame_is_corruption() {
    run(async {
        let packing = &packings(1)[1];
        let pristine = SimDisk::new(1);
        let journal = open_packed(&pristine, packing).unwrap();
        let all = mixed(0..6, 1);
        for frame in &all {
            append(&journal, vec![frame.clone()]).await.unwrap();
        }
        close(&journal).await;
        let path = segment_files(&pristine).pop().unwrap();
        let used = journal.lock().segments[0].end_offset();
        let mut refused = 0;
        for byte in (0..used).step_by(37) {
            let disk = pristine.copy();
            disk.flip_bit(&path, byte, (byte % 8) as u8);
            match open_packed(&disk, packing) {
                Err(OpenError::Corrupt { .. }) => refused += 1,
                Err(other) => panic!("byte {byte}: {other}"),
                // Padding, and what of the header means nothing.
                Ok(journal) => assert_eq!(frames(&journal), all, "byte {byte}"),
            }
        }
        assert!(refused > used / 40, "{refused}");
        // Without reading it at opening: found when it is read.
        let disk = pristine.copy();
        let checkpoint = Some(LogIndex(5));
        let options = JournalOptions {
            checkpoint,
            ..packed(packing)
        };
        disk.flip_bit(&path, used - 1000, 3);
        let journal = Journal::open(Arc::new(disk), Path::new(DIR), options).unwrap();
        let read = journal.frame(LogIndex(3));
        assert!(matches!(read, Err(ReadError::Corrupt(LogIndex(3)))));
        let at = journal.payload_position(LogIndex(3)).unwrap();
        assert!(matches!(journal.read(at, 10), Err(ReadError::Corrupt(_))));
    });
}

#[test]
fn a_new_key_is_used_from_the_next_frame_on_and_the_old_one_still_opens() {
    run(async {
        let disk = SimDisk::new(1);
        let packing = |sealing| Packing {
            compression: Compression::None,
            sealing,
        };
        let keys = [
            packing(Default::default()),
            packing(sealing(&["k1"], 1)),
            packing(sealing(&["k2", "k1"], 2)),
            packing(sealing(&["k3", "k2", "k1"], 3).opening_only()),
            packing(sealing(&["k3", "k2", "k1"], 4)),
        ];
        let mut all: Vec<Frame> = Vec::new();
        for packing in &keys {
            let journal = open_packed(&disk, packing).unwrap();
            check_reading(&journal, &all);
            let next = all.len() as u64;
            let more = mixed(next..next + 4, 1);
            append(&journal, more.clone()).await.unwrap();
            all.extend(more);
            check_reading(&journal, &all);
        }
        let journal = open_packed(&disk, &keys[4]).unwrap();
        check_reading(&journal, &all);
        let ids: Vec<Option<String>> = segment_files(&disk)
            .iter()
            .map(|path| {
                let header = segment::SegmentHeader::decode(&disk.contents(path).unwrap()).unwrap();
                header.key.and_then(|key| key.id()).map(|id| id.to_string())
            })
            .collect();
        let mut distinct = ids.clone();
        distinct.dedup();
        let id = |name: &str| Some(name.to_owned());
        assert_eq!(distinct, [None, id("k1"), id("k2"), None, id("k3")]);

        let missing = open_packed(&disk, &packing(sealing(&["k3", "k1"], 5))).unwrap_err();
        let OpenError::Key { source, .. } = &missing else {
            panic!("{missing}");
        };
        assert!(matches!(source, KeyError::Missing(id) if id.to_string() == "k2"));
        assert!(
            missing.to_string().contains("store.encryption.key_file"),
            "{missing}"
        );
        let none = open_packed(&disk, &keys[0]).unwrap_err();
        assert!(matches!(none, OpenError::Key { .. }), "{none}");
        // Refusals changed nothing.
        check_reading(&open_packed(&disk, &keys[4]).unwrap(), &all);
    });
}

#[test]
fn cuts_and_crashes_leave_every_frame_where_it_is_looked_for() {
    run(async {
        for seed in 0..8 {
            for packing in packings(seed) {
                let disk = SimDisk::new(seed);
                let mut all: Vec<Frame> = Vec::new();
                for life in 0..4 {
                    let journal = open_packed(&disk, &packing).unwrap();
                    check_reading(&journal, &all);
                    // Nobody waits: cuts meet frames on their way to the disk.
                    for round in 0..6 {
                        let keep = all.len() as u64 * (2 + (seed + round) % 3) / 4;
                        if (seed + round) % 3 == 0 {
                            let id = keep.checked_sub(1).map(LogIndex);
                            let cut = journal.truncate_after(id, Box::new(|_| {}));
                            cut.unwrap();
                            all.truncate(keep as usize);
                        }
                        let next = all.len() as u64;
                        let more = mixed(next..next + 5, 1 + life * 6 + round);
                        journal.append(more.clone(), Box::new(|_| {})).unwrap();
                        all.extend(more);
                        if (seed + round) % 4 == 0 {
                            tokio::task::yield_now().await;
                        }
                    }
                    let next = all.len() as u64;
                    let last = mixed(next..next + 1, 1 + life * 6 + 5);
                    append(&journal, last.clone()).await.unwrap();
                    all.extend(last);
                    // From the disk, not from memory.
                    journal.set_applied(LogIndex(next));
                    let none = mixed(next + 1..next + 2, 100);
                    append(&journal, none.clone()).await.unwrap();
                    all.extend(none);
                    check_reading(&journal, &all);
                    // A batch that is lost or not.
                    disk.set_faults(Faults {
                        fail_sync_after: Some(0),
                        ..Faults::default()
                    });
                    let torn = mixed(next + 2..next + 6, 101);
                    append(&journal, torn).await.unwrap_err();
                    disk.crash();
                    let journal = open_packed(&disk, &packing).unwrap();
                    assert!(frames(&journal).starts_with(&all), "seed {seed}");
                    // Terms must not go down in the next life.
                    let id = Some(LogIndex(next));
                    wait(|done| journal.truncate_after(id, done)).await.unwrap();
                    all.truncate(next as usize + 1);
                }
            }
        }
    });
}

#[test]
fn of_a_packed_frame_nothing_is_punched_while_a_part_lives() {
    run(async {
        for packing in packings(3) {
            let disk = SimDisk::new(1);
            let noise = |index: u64| {
                let mut noise = vec![0; 20_000];
                let random = crate::seal::SeededRandom::new(index * 100);
                crate::seal::Random::fill(&random, &mut noise).unwrap();
                // Half of it compresses.
                noise[10_000..].fill(1);
                Frame {
                    payload: noise.into(),
                    ..frame(index, 1, 0)
                }
            };
            let journal = open_packed(&disk, &packing).unwrap();
            let all: Vec<Frame> = (0..16).map(noise).collect();
            for frame in &all {
                append(&journal, vec![frame.clone()]).await.unwrap();
            }
            journal.set_applied(LogIndex(15));
            append(&journal, vec![noise(16)]).await.unwrap();
            assert!(journal.lock().segments.len() > 2);
            let upto = journal.sealed_through(LogIndex(15)).unwrap();
            let id = FrameId {
                term: Term(1),
                index: upto,
            };
            wait(|done| journal.purge(id, done)).await.unwrap();
            let span = |first: u64, last: u64| (Position(first * 20_048), Position(last * 20_048));
            // All of the first frame, half of the second.
            let half = Position(20_048 + 10_000);
            let before = disk.occupied_bytes();
            let mut given = GivenBack::default();
            wait(|done| {
                given = journal.give_back(&[(Position(0), half)], upto, done)?;
                Ok(())
            })
            .await
            .unwrap();
            assert_eq!(given.bytes, half.0);
            let freed = before - disk.occupied_bytes();
            assert!((4096..24_576).contains(&freed), "{freed} for one frame");
            let second = Position(half.0 + 8);
            let read = journal.read(second, 1000).unwrap();
            assert_eq!(read, all[1].payload.slice(9960..10_960));
            assert!(matches!(
                journal.read(Position(48), 9),
                Err(ReadError::GivenBack(_))
            ));
            // The other half: now it goes.
            let before = disk.occupied_bytes();
            let dead = [span(0, 2)];
            wait(|done| journal.give_back(&dead, upto, done).map(drop))
                .await
                .unwrap();
            assert!(before - disk.occupied_bytes() >= 4096);
            let third = journal.payload_position(LogIndex(2)).unwrap();
            assert_eq!(journal.read(third, 20_000).unwrap(), all[2].payload);
            drop(journal);
            let options = JournalOptions {
                checkpoint: Some(LogIndex(15)),
                ..packed(&packing)
            };
            let journal = Journal::open(Arc::new(disk.clone()), Path::new(DIR), options).unwrap();
            for frame in &all[2..] {
                assert_eq!(journal.frame(frame.index).unwrap(), *frame);
            }
        }
    });
}
