//! Room given back on a disk that loses power at any call, has no holes, or has no room. The clock is paused
//! (`start_paused` in `tests.rs`): waiting takes no time.

use super::*;
use crate::disk::BLOCK_BYTES;
use bytes::Bytes;

const SEGMENT: u64 = 64 * 1024;

fn roomy(checkpoint: Option<u64>) -> JournalOptions {
    JournalOptions {
        segment_bytes: SEGMENT,
        checkpoint: checkpoint.map(LogIndex),
        ..options()
    }
}

fn open_roomy(disk: &SimDisk, checkpoint: Option<u64>) -> Result<Journal, OpenError> {
    Journal::open(Arc::new(disk.clone()), Path::new(DIR), roomy(checkpoint))
}

fn payload(index: u64) -> Frame {
    frame(index, 1, 10_000)
}

/// Waits until something is so.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(2));
    let looked = async {
        while !is_so() {
            looks.tick().await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(20), looked).await;
    assert!(in_time.is_ok(), "{what}");
}

/// Where the frame begins and ends: 10,048 logical bytes each.
fn span(first: u64, last: u64) -> (Position, Position) {
    (Position(first * 10_048), Position((last + 1) * 10_048))
}

/// Four full segments of six frames, and one more that was begun.
async fn full(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let journal = open_roomy(&disk, None).unwrap();
    for index in 0..26 {
        append(&journal, vec![payload(index)]).await.unwrap();
    }
    assert_eq!(journal.lock().segments.len(), 5);
    disk
}

async fn purge(journal: &Journal, index: u64) -> Result<(), WriteError> {
    let id = FrameId {
        term: Term(1),
        index: LogIndex(index),
    };
    wait(|done| journal.purge(id, done)).await
}

async fn give(
    journal: &Journal,
    dead: &[(Position, Position)],
    through: u64,
) -> Result<GivenBack, WriteError> {
    let mut given = GivenBack::default();
    wait(|done| {
        given = journal.give_back(dead, LogIndex(through), done)?;
        Ok(())
    })
    .await?;
    Ok(given)
}

/// The first and the third segment are dead, and of the second three frames, then all but the first.
fn dead(later: bool) -> Vec<(Position, Position)> {
    let in_second = if later { span(7, 11) } else { span(7, 9) };
    vec![span(0, 5), in_second, span(12, 17)]
}

/// What a caller does that must be believed to be interrupted anywhere.
async fn story(journal: &Journal) -> Result<(), WriteError> {
    purge(journal, 20).await?;
    give(journal, &dead(false), 20).await?;
    for index in 26..34 {
        append(journal, vec![payload(index)]).await?;
    }
    give(journal, &dead(true), 20).await?;
    for index in 34..44 {
        append(journal, vec![payload(index)]).await?;
    }
    Ok(())
}

/// Reads the frame's payload by position.
fn read(journal: &Journal, index: u64) -> Result<Bytes, ReadError> {
    journal.read(Position(index * 10_048 + 48), 10_000)
}

fn check(journal: &Journal, confirmed: u64, context: &str) {
    for index in (0..26).chain(26..confirmed) {
        let lives = index == 6 || index >= 18;
        match read(journal, index) {
            Ok(bytes) => assert_eq!(bytes, payload(index).payload, "{context}: frame {index}"),
            Err(ReadError::GivenBack(_)) => assert!(!lives, "{context}: frame {index} is gone"),
            Err(other) => panic!("{context}: frame {index}: {other}"),
        }
    }
    for index in 21..confirmed {
        let read = journal.frame(LogIndex(index));
        assert_eq!(read.unwrap(), payload(index), "{context}");
    }
}

#[test]
fn what_lives_survives_a_power_loss_at_every_step_of_giving_back() {
    run(async {
        let (mut tried, mut undone) = (0, 0);
        for seed in 0..2 {
            let pristine = full(seed).await;
            for power_off_after in 0.. {
                let context = format!("seed {seed}, power off after {power_off_after} calls");
                let disk = pristine.copy();
                let journal = open_roomy(&disk, Some(25)).unwrap();
                disk.set_faults(Faults {
                    power_off_after: Some(power_off_after),
                    ..Faults::default()
                });
                let told = story(&journal).await;
                let confirmed = journal.synced_end().0;
                disk.crash();
                drop(journal);
                let journal = open_roomy(&disk, Some(25));
                let journal = journal.unwrap_or_else(|error| panic!("{context}: {error}"));
                check(&journal, confirmed, &context);
                tried += 1;
                // And what was interrupted is done the next time.
                purge(&journal, 20).await.unwrap();
                let again = give(&journal, &dead(true), 20).await.unwrap();
                undone += usize::from(!again.is_nothing());
                check(&journal, confirmed, &context);
                assert!(
                    matches!(read(&journal, 8), Err(ReadError::GivenBack(_))),
                    "{context}"
                );
                let next = journal.last().unwrap().index.0 + 1;
                append(&journal, vec![payload(next)]).await.unwrap();
                disk.crash();
                let journal = open_roomy(&disk, Some(25)).unwrap();
                check(&journal, confirmed, &context);
                let names = disk.list(Path::new(DIR)).unwrap();
                let second = segment::segment_path(Path::new(DIR), span(6, 6).0);
                let first = segment::segment_path(Path::new(DIR), Position(0));
                assert!(
                    disk.open(&second).is_ok() && disk.open(&first).is_err(),
                    "{context}: {names:?}"
                );
                if told.is_ok() {
                    break;
                }
            }
        }
        assert!(tried > 100 && undone > 20, "{tried} {undone}");
    });
}

#[test]
fn dead_parts_take_no_room_and_dead_segments_in_the_middle_are_gone() {
    run(async {
        let disk = full(1).await;
        let journal = open_roomy(&disk, Some(25)).unwrap();
        assert!(
            give(&journal, &dead(false), 20).await.is_err(),
            "not purged"
        );
        purge(&journal, 20).await.unwrap();
        let before = disk.occupied_bytes();
        let given = give(&journal, &dead(false), 20).await.unwrap();
        assert_eq!((given.segments, given.bytes), (2, 3 * 10_048));
        // Two segments became spares; of the second three frames went, and the room behind the last.
        let holes = before - disk.occupied_bytes();
        assert!(
            holes > 3 * 10_000 - 2 * BLOCK_BYTES && holes < 3 * 10_048 + 5000,
            "{holes}"
        );
        let again = give(&journal, &dead(false), 20).await.unwrap();
        assert!(again.is_nothing());
        let told = journal.frame(LogIndex(7)).unwrap_err();
        assert!(matches!(told, ReadError::GivenBack(_)), "{told}");
        assert_eq!(journal.frame(LogIndex(10)).unwrap(), payload(10));
        // Nothing above the frame that is named, and never the segment being written.
        let all = [(Position(0), Position(u64::MAX))];
        let given = give(&journal, &all, 20).await.unwrap();
        assert_eq!((given.segments, given.bytes), (1, 0));
        assert_eq!(read(&journal, 18).unwrap(), payload(18).payload);
        assert_eq!(journal.sealed_through(LogIndex(20)), None);
        assert_eq!(journal.sealed_through(LogIndex(23)), Some(LogIndex(23)));
    });
}

#[test]
fn a_segment_that_is_missing_without_being_listed_was_lost() {
    run(async {
        let disk = full(2).await;
        let journal = open_roomy(&disk, Some(25)).unwrap();
        purge(&journal, 23).await.unwrap();
        give(&journal, &dead(false), 20).await.unwrap();
        drop(journal);
        open_roomy(&disk, Some(25)).unwrap();
        let segment = |first: u64| segment::segment_path(Path::new(DIR), span(first, first).0);
        let list = Path::new(DIR).join("released");
        for lost in [segment(6), segment(18), list] {
            let disk = disk.copy();
            disk.remove(&lost).unwrap();
            let told = open_roomy(&disk, Some(25)).map(drop);
            assert!(
                matches!(told, Err(OpenError::Corrupt { .. })),
                "{}: {told:?}",
                lost.display()
            );
        }
        for copy in [0, 48] {
            disk.flip_bit(&Path::new(DIR).join("released"), copy, 0);
        }
        let told = open_roomy(&disk, Some(25)).unwrap_err().to_string();
        assert!(
            told.contains("the list of released segments is not readable"),
            "{told}"
        );
    });
}

#[test]
fn readers_are_counted_out_before_a_hole_is_punched_or_a_file_is_used_again() {
    run(async {
        let disk = full(3).await;
        let journal = open_roomy(&disk, Some(25)).unwrap();
        purge(&journal, 20).await.unwrap();
        let handle = |journal: &Journal, nth: usize| {
            let shared = journal.lock();
            shared.segments[nth].file.get().unwrap().clone()
        };
        let (first, second) = (handle(&journal, 0), handle(&journal, 1));
        let mut before = vec![0; 10_000];
        let (_, offset) = journal.lock().segments[1].frame_at(LogIndex(8)).unwrap();
        second.read_at(&mut before, offset).unwrap();
        give(&journal, &dead(false), 20).await.unwrap();
        let mut after = vec![0; 10_000];
        second.read_at(&mut after, offset).unwrap();
        assert!(
            before == after,
            "a reader that was there reads what was there"
        );
        let spares = |disk: &SimDisk| {
            let names = disk.list(Path::new(DIR)).unwrap();
            names
                .iter()
                .filter(|name| name.starts_with("spare"))
                .count()
        };
        assert_eq!(
            spares(&disk),
            2,
            "the next segment, and one that nobody reads"
        );
        let held = disk.occupied_bytes();
        // One that comes later is told, and is in nobody's way.
        let later = handle(&journal, 0);
        assert!(matches!(read(&journal, 8), Err(ReadError::GivenBack(_))));
        drop((first, second));
        give(&journal, &dead(false), 20).await.unwrap();
        assert!(held - disk.occupied_bytes() > 20_000);
        drop(later);
    });
}

#[test]
fn without_holes_only_whole_segments_go() {
    run(async {
        let disk = full(4).await;
        disk.set_faults(Faults {
            fail_punch_after: Some(0),
            ..Faults::default()
        });
        let journal = open_roomy(&disk, Some(25)).unwrap();
        purge(&journal, 20).await.unwrap();
        let before = disk.occupied_bytes();
        give(&journal, &dead(false), 20).await.unwrap();
        assert!(before.abs_diff(disk.occupied_bytes()) < 2000);
        check(&journal, 26, "no holes");
        assert!(journal.poisoned().is_none());
        // A later life on another file system makes up for it.
        disk.crash();
        let journal = open_roomy(&disk, Some(25)).unwrap();
        let second = || {
            let shared = journal.lock();
            shared.segments[0].file.get().unwrap().allocated_bytes()
        };
        assert_eq!(second().unwrap(), SEGMENT);
        append(&journal, vec![payload(26)]).await.unwrap();
        assert!(second().unwrap() < SEGMENT - 20_000);
        check(&journal, 27, "holes");
    });
}

#[test]
fn without_room_for_a_segment_frames_wait_and_go_on_when_there_is_room() {
    run(async {
        let disk = full(5).await;
        let journal = open_roomy(&disk, Some(25)).unwrap();
        append(&journal, vec![payload(26)]).await.unwrap();
        let full = |disk: &SimDisk| Faults {
            capacity_bytes: Some(disk.occupied_bytes() + 20_000),
            ..Faults::default()
        };
        disk.set_faults(full(&disk));
        let answers = Arc::new(Mutex::new(Vec::new()));
        let last = 26 + 50;
        for index in 27..=last {
            let answers = answers.clone();
            let done = Box::new(move |result: Result<(), WriteError>| {
                answers.lock().unwrap().push((index, result.is_ok()));
            });
            journal.append(vec![payload(index)], done).unwrap();
        }
        let answered = || answers.lock().unwrap().len() as u64;
        until("it has no room", || journal.no_space()).await;
        assert!(answered() < 12, "{}: one spare was ready", answered());
        assert!(journal.poisoned().is_none());
        // What frees room passes by what waits for it.
        purge(&journal, 23).await.unwrap();
        let freed = [(Position(0), span(23, 23).1)];
        give(&journal, &freed, 23).await.unwrap();
        until("four files are used again", || {
            answered() > 20 && journal.no_space()
        })
        .await;
        let answered = answered();
        assert!(answered < 40, "{answered}: four files are used again");
        // A power loss while some wait: none of them was confirmed.
        let copy = disk.copy();
        copy.crash();
        let other = open_roomy(&copy, Some(25)).unwrap();
        assert!(other.last().unwrap().index.0 + 1 >= 27 + answered);
        for index in 24..27 + answered {
            assert_eq!(other.frame(LogIndex(index)).unwrap(), payload(index));
        }
        disk.set_faults(Faults::default());
        until("all are answered", || {
            answers.lock().unwrap().len() as u64 == last - 26
        })
        .await;
        assert!(!journal.no_space());
        let expected: Vec<_> = (27..=last).map(|index| (index, true)).collect();
        assert_eq!(*answers.lock().unwrap(), expected);
        close(&journal).await;
        let journal = open_roomy(&disk, Some(25)).unwrap();
        assert_eq!(journal.last().unwrap().index, LogIndex(last));
    });
}

#[test]
fn a_journal_closed_without_room_says_so_to_what_waits() {
    run(async {
        let disk = full(6).await;
        let journal = open_roomy(&disk, Some(25)).unwrap();
        disk.set_faults(Faults {
            capacity_bytes: Some(disk.occupied_bytes()),
            ..Faults::default()
        });
        let frames = (26..60).map(payload).collect();
        let waiting = wait(|done| journal.append(frames, done));
        let told = tokio::select! {
            told = waiting => told,
            () = async {
                until("it has no room", || journal.no_space()).await;
                journal.close(Box::new(|_| {}));
                std::future::pending().await
            } => unreachable!(),
        };
        assert!(matches!(told, Err(WriteError::NoRoom)), "{told:?}");
        drop(journal);
        let journal = open_roomy(&disk, Some(25)).unwrap();
        check(&journal, 26, "closed");
    });
}

#[test]
fn a_manifest_lists_what_lives_and_its_check_finds_what_does_not() {
    run(async {
        let disk = full(7).await;
        let journal = open_roomy(&disk, Some(25)).unwrap();
        let before = journal.manifest(LogIndex(20)).unwrap();
        let all = Checked {
            tiered: 0,
            extents: 4,
            frames: 21,
            bytes: 21 * 10_080,
        };
        assert_eq!(journal.check(&before).unwrap(), all);
        purge(&journal, 20).await.unwrap();
        // Of frame 8 a part is dead.
        let part = (Position(8 * 10_048 + 1000), Position(8 * 10_048 + 6000));
        let dead = [span(0, 5), part, span(9, 10), span(12, 17)];
        give(&journal, &dead, 20).await.unwrap();
        let told = journal.check(&before).unwrap_err();
        assert!(
            matches!(told, ManifestError::NoSegment(Position(0))),
            "{told}"
        );
        let second_only = Manifest {
            segments: before.segments[1..2].to_vec(),
            ..before
        };
        let told = journal.check(&second_only).unwrap_err();
        assert!(matches!(told, ManifestError::GivenBack(_)), "{told}");

        let manifest = journal.manifest(LogIndex(20)).unwrap();
        let extents: Vec<Vec<(u64, u64)>> = manifest
            .segments
            .iter()
            .map(|one| {
                one.extents
                    .iter()
                    .map(|one| (one.from.0, one.to.0))
                    .collect()
            })
            .collect();
        let frames = |first: u64, end: u64| (first * 10_048, end * 10_048);
        let (whole_and_head, rest) = ((6 * 10_048, part.0.0), (part.1.0, 9 * 10_048));
        let second = vec![whole_and_head, rest, frames(11, 12)];
        assert_eq!(extents, [second, vec![frames(18, 21)]]);
        let checked = journal.check(&manifest).unwrap();
        assert_eq!((checked.extents, checked.frames), (4, 6));
        // The bytes of every extent are what they were, and each bit of a frame that lives counts.
        for extent in manifest.segments.iter().flat_map(|one| &one.extents) {
            let whole = extent.from.0.is_multiple_of(10_048);
            let head = if whole { 32 } else { 0 };
            assert_eq!(extent.file_to - extent.file_from - head, {
                let frames = (extent.to.0 - extent.from.0).div_ceil(10_048);
                extent.to.0 - extent.from.0 + if whole { (frames - 1) * 32 } else { 0 }
            });
        }
        let living = &manifest.segments[0].extents[0];
        let path = segment::segment_path(Path::new(DIR), manifest.segments[0].base);
        for at in [
            living.file_from,
            living.file_from + 90,
            living.file_from + 10_080 + 40,
        ] {
            disk.flip_bit(&path, at, 0);
            let told = journal.check(&manifest).unwrap_err();
            assert!(
                matches!(told, ManifestError::Corrupt(LogIndex(6 | 7))),
                "{told}"
            );
            disk.flip_bit(&path, at, 0);
        }
        drop(journal);
        let journal = open_roomy(&disk, Some(25)).unwrap();
        assert_eq!(journal.manifest(LogIndex(20)).unwrap(), manifest);
        journal.check(&manifest).unwrap();
    });
}
