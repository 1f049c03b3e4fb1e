//! The journal on a simulated disk.
//!
//! Owns what its tests share, and those of a disk that keeps what it says: frames read back, cut and given up. Read next:
//! [`broken`], [`sides`], [`room`], [`packed`].

mod broken;
mod packed;
mod room;
mod sides;

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
        assert_eq!(table_files(&disk).len(), 8);
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
            spares(&names) >= 3 && names.len() == before - 6,
            "{names:?}"
        );
        assert_eq!(table_files(&disk).len(), 2, "their side files are gone");
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

/// Side files, each with its twin behind it.
fn table_files(disk: &SimDisk) -> Vec<PathBuf> {
    let names = disk.list(Path::new(DIR)).unwrap();
    let is_table = |name: &&String| name.ends_with(".tab") || name.ends_with(".twin");
    let tables = names.iter().filter(is_table);
    tables.map(|name| Path::new(DIR).join(name)).collect()
}
