//! The journal on a simulated disk: every byte broken, every cut, tails torn and truncated.

mod packed;
mod room;

use super::*;
use crate::disk::sim::{Faults, SimDisk};
use anabranch_core::id::{Term, UnixMs};
use std::future::Future;
use std::time::Duration;

const DIR: &str = "j";

fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

fn options() -> JournalOptions {
    JournalOptions {
        segment_bytes: 2048,
        tail_bytes: 0,
        writer: WriterMode::Local {
            latency: Duration::ZERO,
        },
        ..JournalOptions::default()
    }
}

fn open(disk: &SimDisk) -> Result<Journal, OpenError> {
    Journal::open(Arc::new(disk.clone()), Path::new(DIR), options())
}

fn frame(index: u64, term: u64, len: usize) -> Frame {
    let payload: Vec<u8> = (0..len)
        .map(|at| (at as u64 * 7 + index) as u8 | 1)
        .collect();
    Frame {
        term: Term(term),
        index: LogIndex(index),
        committed: LogIndex(index / 2),
        clock: UnixMs(1000 + index),
        kind: FrameKind::Records,
        payload: payload.into(),
    }
}

async fn wait(ask: impl FnOnce(Completion) -> Result<(), WriteError>) -> Result<(), WriteError> {
    let (send, receive) = tokio::sync::oneshot::channel();
    ask(Box::new(move |result| {
        let _ = send.send(result);
    }))?;
    receive.await.expect("an answer")
}

async fn append(journal: &Journal, frames: Vec<Frame>) -> Result<(), WriteError> {
    wait(|done| journal.append(frames, done)).await
}

async fn close(journal: &Journal) {
    wait(|done| {
        journal.close(done);
        Ok(())
    })
    .await
    .unwrap();
}

/// All frames from the first that is there.
fn frames(journal: &Journal) -> Vec<Frame> {
    let first = journal.lock().segments[0].first_index.0;
    let next = journal.lock().next_index.0;
    (first..next)
        .map(|index| journal.frame(LogIndex(index)).unwrap())
        .collect()
}

/// A journal of four segments whose frames were synced one by one.
async fn sample(disk: &SimDisk) -> Vec<Frame> {
    let journal = open(disk).unwrap();
    let all: Vec<Frame> = (0..12)
        .map(|index| frame(index, 1 + index / 5, 300 + index as usize))
        .collect();
    for frame in &all {
        append(&journal, vec![frame.clone()]).await.unwrap();
    }
    assert_eq!(journal.lock().segments.len(), 4);
    all
}

fn segment_files(disk: &SimDisk) -> Vec<PathBuf> {
    let names = disk.list(Path::new(DIR)).unwrap();
    names
        .iter()
        .filter(|name| name.ends_with(".seg"))
        .map(|name| Path::new(DIR).join(name))
        .collect()
}

#[test]
fn frames_are_read_back_by_index_and_by_position_after_a_restart() {
    run(async {
        let disk = SimDisk::new(1);
        let all = sample(&disk).await;
        let journal = open(&disk).unwrap();
        assert_eq!(frames(&journal), all);
        let mut position = Position(0);
        for one in &all {
            let payload = journal.payload_position(one.index).unwrap();
            assert_eq!(
                payload.0,
                position.0 + 48,
                "a position counts logical bytes only"
            );
            assert_eq!(
                journal.read(payload, one.payload.len()).unwrap(),
                one.payload
            );
            let inside = Position(payload.0 + 10);
            assert_eq!(journal.read(inside, 5).unwrap(), one.payload.slice(10..15));
            assert!(
                journal.read(inside, one.payload.len()).is_err(),
                "beyond the frame"
            );
            assert!(journal.read(position, 1).is_err(), "a header is no payload");
            position.0 += one.logical_len();
        }
        assert_eq!(journal.end(), position);
        assert_eq!(journal.committed(), LogIndex(5));
        assert_eq!(journal.last().unwrap().index, LogIndex(11));
    });
}

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
fn a_truncated_tail_stays_away_after_a_restart() {
    run(async {
        for keep in [
            None,
            Some(0),
            Some(2),
            Some(3),
            Some(4),
            Some(8),
            Some(10),
            Some(11),
            Some(40),
        ] {
            for crash in [false, true] {
                let disk = SimDisk::new(5);
                let all = sample(&disk).await;
                let journal = open(&disk).unwrap();
                wait(|done| journal.truncate_after(keep.map(LogIndex), done))
                    .await
                    .unwrap();
                let kept = keep.map_or(0, |keep| (keep as usize + 1).min(all.len()));
                assert_eq!(frames(&journal), all[..kept]);
                assert_eq!(
                    journal.last().map(|last| last.index.0 + 1),
                    kept.checked_sub(1).map(|at| at as u64 + 1)
                );
                if crash {
                    disk.crash();
                }
                let journal = open(&disk).unwrap();
                assert_eq!(frames(&journal), all[..kept], "keep {keep:?}");
                let next = vec![frame(kept as u64, 9, 333), frame(kept as u64 + 1, 9, 10)];
                append(&journal, next.clone()).await.unwrap();
                let journal = open(&disk).unwrap();
                assert_eq!(
                    frames(&journal),
                    [&all[..kept], &next[..]].concat(),
                    "keep {keep:?}"
                );
            }
        }
    });
}

#[test]
fn a_truncation_cut_short_by_a_crash_is_done_or_not_begun() {
    run(async {
        for seed in 0..60 {
            let disk = SimDisk::new(seed);
            let all = sample(&disk).await;
            let journal = open(&disk).unwrap();
            // Meta slots, zeros, removals: fail after a few of those writes or syncs.
            let after = Some(seed % 5);
            let (fail_sync_after, fail_write_after) = if seed % 2 == 0 {
                (after, None)
            } else {
                (None, after)
            };
            disk.set_faults(Faults {
                fail_sync_after,
                fail_write_after,
                ..Faults::default()
            });
            let cut = wait(|done| journal.truncate_after(Some(LogIndex(6)), done)).await;
            disk.crash();
            let read = frames(&open(&disk).unwrap_or_else(|error| panic!("seed {seed}: {error}")));
            assert!(
                read == all[..7] || (cut.is_err() && read == all),
                "seed {seed}: {}",
                read.len()
            );
        }
    });
}

#[test]
fn votes_and_the_purge_pointer_survive_and_released_segments_are_used_again() {
    run(async {
        let disk = SimDisk::new(6);
        let all = sample(&disk).await;
        let journal = open(&disk).unwrap();
        let vote = VoteRecord {
            term: Term(4),
            node: 2,
            committed: false,
        };
        wait(|done| {
            journal.save_vote(vote, done);
            Ok(())
        })
        .await
        .unwrap();
        let all_dead = [(Position(0), Position(u64::MAX))];
        let refused = wait(|done| journal.give_back(&all_dead, LogIndex(4), done).map(drop)).await;
        assert!(refused.is_err(), "not purged");
        let purged = FrameId {
            term: Term(1),
            index: LogIndex(9),
        };
        wait(|done| journal.purge(purged, done)).await.unwrap();
        let rolled = frame(12, 4, 900);
        append(&journal, vec![rolled.clone()]).await.unwrap();
        let before = disk.list(Path::new(DIR)).unwrap().len();
        assert_eq!(table_files(&disk).len(), 4);
        wait(|done| {
            let given = journal.give_back(&all_dead, LogIndex(9), done)?;
            assert_eq!((given.segments, given.bytes), (3, 0));
            Ok(())
        })
        .await
        .unwrap();
        let names = disk.list(Path::new(DIR)).unwrap();
        let spares = |names: &[String]| names.iter().filter(|name| name.ends_with(".tmp")).count();
        assert!(
            spares(&names) >= 3 && names.len() == before - 2,
            "{names:?}"
        );
        assert_eq!(table_files(&disk).len(), 1, "their side files are gone");
        assert_eq!(journal.frame(LogIndex(11)).unwrap(), all[11]);
        assert!(matches!(
            journal.frame(LogIndex(1)),
            Err(ReadError::NoFrame(_))
        ));
        let more: Vec<Frame> = (13..24).map(|index| frame(index, 4, 250)).collect();
        append(&journal, more.clone()).await.unwrap();
        let left = spares(&disk.list(Path::new(DIR)).unwrap());
        assert!(
            left < spares(&names),
            "released files became segments: {left} are left"
        );
        disk.crash();
        let journal = open(&disk).unwrap();
        assert_eq!(
            (journal.vote(), journal.purged()),
            (Some(vote), Some(purged))
        );
        let read = frames(&journal);
        assert!(
            read.ends_with(&more) && read[0].index.0 > 4,
            "frames of a file's earlier life are gone"
        );
    });
}

#[test]
fn a_frame_larger_than_a_segment_gets_a_file_of_its_own() {
    run(async {
        let disk = SimDisk::new(7);
        let journal = open(&disk).unwrap();
        let all = vec![
            frame(0, 1, 10_000),
            frame(1, 1, 10),
            frame(2, 1, 50_000),
            frame(3, 1, 0),
        ];
        append(&journal, all.clone()).await.unwrap();
        disk.crash();
        assert_eq!(frames(&open(&disk).unwrap()), all);
    });
}

#[test]
fn frames_out_of_order_are_refused_and_change_nothing() {
    run(async {
        let disk = SimDisk::new(8);
        let journal = open(&disk).unwrap();
        append(&journal, vec![frame(0, 3, 5)]).await.unwrap();
        for wrong in [
            vec![frame(2, 3, 5)],
            vec![frame(0, 3, 5)],
            vec![frame(1, 2, 5)],
            vec![frame(1, 3, 5), frame(3, 3, 5)],
        ] {
            let refused = append(&journal, wrong).await.unwrap_err();
            assert!(
                matches!(refused, WriteError::OutOfOrder { .. }),
                "{refused}"
            );
        }
        append(&journal, vec![frame(1, 3, 5)]).await.unwrap();
        assert_eq!(frames(&open(&disk).unwrap()).len(), 2);
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

fn open_covered(disk: &SimDisk, covered: u64) -> Result<Journal, OpenError> {
    let options = JournalOptions {
        checkpoint: Some(LogIndex(covered)),
        ..options()
    };
    Journal::open(Arc::new(disk.clone()), Path::new(DIR), options)
}

fn table_files(disk: &SimDisk) -> Vec<PathBuf> {
    let names = disk.list(Path::new(DIR)).unwrap();
    let tables = names.iter().filter(|name| name.ends_with(".tab"));
    tables.map(|name| Path::new(DIR).join(name)).collect()
}

/// Where the frame's head lies in its segment's file.
fn head_of(journal: &Journal, index: u64) -> (PathBuf, u64) {
    let shared = journal.lock();
    let segment = shared.segment_of(LogIndex(index)).unwrap();
    let (_, offset) = segment.frame_at(LogIndex(index)).unwrap();
    (segment::segment_path(Path::new(DIR), segment.base), offset)
}

#[test]
fn a_sealed_segment_below_the_checkpoint_is_not_read() {
    run(async {
        let disk = SimDisk::new(20);
        let all = sample(&disk).await;
        assert_eq!(table_files(&disk).len(), 3, "one for each sealed segment");
        let journal = open_covered(&disk, 8).unwrap();
        assert_eq!(frames(&journal), all);
        let broken: Vec<(PathBuf, u64)> = [1, 10].map(|at| head_of(&journal, at)).into();
        drop(journal);
        // A broken head below the checkpoint is not looked at, one above it is.
        let (path, offset) = &broken[0];
        disk.flip_bit(path, *offset + 20, 0);
        let journal = open_covered(&disk, 8).unwrap();
        assert_eq!(journal.frame(LogIndex(7)).unwrap(), all[7]);
        let told = journal.frame(LogIndex(1));
        assert!(matches!(told, Err(ReadError::Corrupt(_))), "{told:?}");
        assert!(
            matches!(open(&disk), Err(OpenError::Corrupt { .. })),
            "no checkpoint: all is read"
        );
        let without = disk.copy();
        without.remove(&table_files(&disk)[0]).unwrap();
        assert!(matches!(
            open_covered(&without, 8),
            Err(OpenError::Corrupt { .. })
        ));
        let (path, offset) = &broken[1];
        disk.flip_bit(path, *offset + 20, 0);
        assert!(matches!(
            open_covered(&disk, 11),
            Err(OpenError::Corrupt { .. })
        ));
    });
}

#[test]
fn a_side_file_that_is_missing_or_rotten_is_made_again() {
    run(async {
        let disk = SimDisk::new(21);
        let all = sample(&disk).await;
        let tables = table_files(&disk);
        let sound: Vec<_> = tables.iter().map(|path| disk.contents(path)).collect();
        disk.remove(&tables[0]).unwrap();
        disk.flip_bit(&tables[1], 130, 2);
        let journal = open_covered(&disk, 11).unwrap();
        assert_eq!(frames(&journal), all);
        append(&journal, vec![frame(12, 9, 10)]).await.unwrap();
        for (path, before) in tables.iter().zip(sound) {
            let [after, before] = [disk.contents(path), before]
                .map(|bytes| table::SideTable::decode(&bytes.unwrap()).unwrap());
            assert_eq!((after.frames, after.chain), (before.frames, before.chain));
        }
    });
}

#[test]
fn a_side_file_of_a_life_before_a_cut_is_not_believed() {
    run(async {
        for forget in [false, true] {
            let disk = SimDisk::new(22);
            let all = sample(&disk).await;
            let tables = table_files(&disk);
            let stale: Vec<_> = tables
                .iter()
                .map(|path| disk.contents(path).unwrap())
                .collect();
            let journal = open(&disk).unwrap();
            wait(|done| journal.truncate_after(Some(LogIndex(1)), done))
                .await
                .unwrap();
            append(&journal, vec![frame(2, 9, 10)]).await.unwrap();
            assert!(
                table_files(&disk).is_empty(),
                "gone with the life they told of"
            );
            let next: Vec<Frame> = (3..14).map(|index| frame(index, 9, 301)).collect();
            append(&journal, next.clone()).await.unwrap();
            drop(journal);
            for (path, bytes) in tables.iter().zip(&stale) {
                disk.remove(path).ok();
                if forget {
                    continue;
                }
                let file = disk.create_zeroed(path, bytes.len() as u64).unwrap();
                crate::disk::write_all_at(&*file, bytes, 0).unwrap();
            }
            let journal = open_covered(&disk, 13).unwrap();
            assert_eq!(
                frames(&journal),
                [&all[..2], &[frame(2, 9, 10)], &next[..]].concat()
            );
        }
    });
}
