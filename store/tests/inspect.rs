//! Looking at a shard's folder and mending it: what is sound is called sound at every moment of a life, what was
//! flipped is found where it is, and what is mended opens again. The runtime's clock is `start_paused`: to wait takes no
//! time.

mod folder;
mod worker;

use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::{LogIndex, StreamId, VhostId};
use anabranch_core::limits::StreamLimits;
use anabranch_core::port::Question;
use anabranch_store::disk::sim::SimDisk;
use anabranch_store::finding::FindingKind;
use anabranch_store::inspect::{
    Consent, DumpFrom, Dumped, InspectError, RepairError, Source, StepKind, check, dump, repair,
    stats,
};
use anabranch_store::journal::{Compression, OpenError};
use anabranch_store::seal::{KeyRing, Sealing, SeededRandom};
use folder::{body, checked, files, folder, life, mended, messages, opens, run, source};
use std::ops::{ControlFlow, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use worker::Worker;

#[test]
fn nothing_is_wrong_at_any_moment_of_a_life() {
    run(async {
        for seed in 0..2 {
            let disk = SimDisk::new(seed);
            let mut given_back = 0;
            life(&disk, 1, seed % 2 == 0, |number| {
                if number % 7 > 0 {
                    return;
                }
                let copy = disk.copy();
                let found = checked(&copy);
                given_back = given_back.max(found.given_back_bytes);
                assert_eq!(found.findings.defects, 0, "{number}: {:#?}", found.findings);
            })
            .await;
            let found = checked(&disk);
            assert_eq!(found.findings.defects, 0, "{:#?}", found.findings);
            assert!(found.entries >= 100, "{found:?}");
            assert!(found.checkpoint.is_some() && found.runs > 0, "{found:?}");
            assert!(given_back > 0, "room was given back meanwhile");
            assert!(opens(&disk).await >= 100);
        }
    });
}

#[test]
fn a_dump_and_numbers_tell_of_every_record() {
    run(async {
        let disk = SimDisk::new(5);
        life(&disk, 1, true, |_| {}).await;
        let found = checked(&disk);
        let disk = source(&disk);
        let numbers = stats(&disk, &folder(), &mut |_| {}).unwrap();
        assert_eq!(numbers.streams.len(), 1);
        assert_eq!(numbers.streams[0].entries, found.entries);
        assert_eq!(
            (numbers.last, numbers.checkpoint),
            (found.last, found.checkpoint)
        );
        assert_eq!(
            numbers.records.values().map(|kind| kind.count).sum::<u64>(),
            found.records
        );
        assert!(numbers.records["Publish"].bytes > numbers.records["Publish"].count * 100);
        assert!(numbers.index.used <= numbers.index_blocks);
        assert!(numbers.given_back_bytes > 0 && numbers.oldest < numbers.newest);

        let mut indexes = Vec::new();
        let mut positions = Vec::new();
        dump(&disk, &folder(), DumpFrom::Index(LogIndex(0)), &mut |one| {
            match &one {
                Dumped::Frame {
                    index, position, ..
                } => {
                    indexes.push(*index);
                    positions.push(*position);
                }
                Dumped::Record { bytes, .. } => assert!(*bytes > 8),
                Dumped::Command(_) | Dumped::Damaged { .. } => panic!("{one:?}"),
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(indexes.is_sorted() && indexes.len() as u64 == found.frames);
        // From the middle, by index and by a position inside of a frame.
        let middle = indexes.len() / 2;
        let inside = anabranch_core::id::Position(positions[middle].0 + 1);
        for from in [DumpFrom::Index(indexes[middle]), DumpFrom::Position(inside)] {
            let mut first = None;
            dump(&disk, &folder(), from, &mut |one| {
                if let Dumped::Frame { index, .. } = one {
                    first = Some(index);
                }
                ControlFlow::Break(())
            })
            .unwrap();
            assert_eq!(first, Some(indexes[middle]), "{from:?}");
        }
    });
}

/// A bit of each kind of file: found at its place, and after mending the shard opens, but for what only a copy helps.
#[test]
fn a_flipped_bit_is_found_where_it_is_and_mended() {
    run(async {
        let whole = SimDisk::new(7);
        life(&whole, 1, true, |_| {}).await;
        let all = opens(&whole.copy()).await;
        let newest = |disk: &SimDisk, dir: &str, ends: &str| files(disk, dir, ends).pop().unwrap();
        let cases = [
            ("shard", "meta", 9, FindingKind::MetaCopy),
            ("shard", ".tab", 70, FindingKind::TableCopy),
            ("shard", ".twin", 70, FindingKind::TableCopy),
            ("shard", "released", 20, FindingKind::ReleasedCopy),
            ("shard/checkpoint", "manifest-", 50, FindingKind::Manifest),
            ("shard/checkpoint", "run-", 90, FindingKind::Run),
        ];
        for (dir, ends, byte, kind) in cases {
            let disk = whole.copy();
            let path = newest(&disk, dir, ends);
            disk.flip_bit(&path, byte, 3);
            let found = checked(&disk);
            let one = found.findings.list.iter().find(|one| one.kind == kind);
            let one = one.unwrap_or_else(|| panic!("{kind:?}: {:#?}", found.findings));
            assert_eq!(one.path, path);
            assert!(one.offset.is_none_or(|offset| offset <= byte), "{one:?}");
            // First only said, then done.
            let plan = mended(
                &disk,
                Consent {
                    dry_run: true,
                    ..Consent::default()
                },
            );
            assert_eq!(checked(&disk).findings.list, found.findings.list);
            let done = mended(&disk, Consent::default());
            assert_eq!(plan.steps, done.steps);
            assert!(done.withheld.is_empty(), "{kind:?}: {done:#?}");
            let left = &done.after.findings;
            assert_eq!(left.defects, 0, "{kind:?}: {left:#?}");
            if !matches!(kind, FindingKind::MetaCopy | FindingKind::ReleasedCopy) {
                assert!(!files(&disk, "shard/quarantine", "").is_empty(), "{kind:?}");
            }
            assert_eq!(opens(&disk).await, all, "{kind:?}");
        }
    });
}

#[test]
fn a_frame_that_rotted_is_given_up_only_when_that_is_asked_for() {
    run(async {
        let disk = SimDisk::new(8);
        let mut worker = Worker::start(&disk, 1).await;
        worker.create().await;
        for number in 0..20 {
            let sequence = worker.publish(body(number, 200));
            assert_eq!(worker.published(sequence).await, PublishOutcome::Routed);
        }
        disk.crash();
        worker.fallen().await;
        let path = files(&disk, "shard", ".seg").pop().unwrap();
        let bytes = disk.contents(&path).unwrap();
        let needle = body(12, 200);
        let at = bytes.windows(204).position(|found| found == needle);
        let at = at.unwrap() as u64 + 50;
        disk.flip_bit(&path, at, 1);

        let found = checked(&disk);
        let one = &found.findings.list[0];
        assert_eq!((one.kind, &one.path), (FindingKind::Frame, &path));
        assert!(
            one.offset
                .is_some_and(|offset| at - 400 < offset && offset < at)
        );
        let kept = mended(&disk, Consent::default());
        assert!(kept.steps.is_empty() && kept.withheld[0].kind == StepKind::Cut);
        assert_eq!(disk.contents(&path).unwrap()[at as usize] & 2, (12 ^ 2) & 2);
        let lost = mended(
            &disk,
            Consent {
                lose_corrupt: true,
                ..Consent::default()
            },
        );
        assert_eq!(lost.steps[0].kind, StepKind::Cut);
        assert_eq!(lost.after.findings.defects, 0, "{:#?}", lost.after);
        let aside = files(&disk, "shard/quarantine", ".seg.from-");
        assert_eq!(aside.len(), 1);
        assert!(disk.contents(&aside[0]).unwrap().len() > 8 * 200);
        assert_eq!(opens(&disk).await, 12);
    });
}

#[test]
fn an_index_block_that_rotted_is_found_and_a_torn_tail_is_no_defect() {
    run(async {
        let disk = SimDisk::new(9);
        life(&disk, 1, true, |_| {}).await;
        let copy = disk.copy();
        let index = Path::new("shard/checkpoint/index");
        let len = copy.contents(index).unwrap().len() as u64;
        // Of each block a byte that is in use.
        (1..len / 4096).for_each(|block| copy.flip_bit(index, block * 4096 + 9, 1));
        let found = checked(&copy);
        let one = found.findings.list.iter();
        let mut one = one.filter(|one| one.kind == FindingKind::IndexBlock);
        let one = one.next().unwrap_or_else(|| panic!("{found:#?}"));
        assert_eq!((&*one.path, one.offset.unwrap() % 4096), (index, 0));

        for seed in 0..40 {
            let disk = SimDisk::new(seed);
            let mut worker = Worker::start(&disk, 1).await;
            worker.create().await;
            for number in 0..30 {
                worker.publish(body(number, 300));
                tokio::time::advance(Duration::from_micros(150)).await;
            }
            disk.crash();
            worker.fallen().await;
            let found = checked(&disk);
            assert_eq!(found.findings.defects, 0, "{seed}: {:#?}", found.findings);
            let torn = found.findings.has(FindingKind::TornTail);
            let done = mended(&disk, Consent::default());
            let cut = done.steps.iter().any(|step| step.kind == StepKind::Tail);
            assert_eq!(torn, cut, "{seed}");
            assert_eq!(done.after.last, found.last);
            opens(&disk).await;
        }
    });
}

/// A queue of 600 messages, 30 to a frame, all of them in one checkpoint; and its frames.
async fn backlog(compression: Compression) -> (SimDisk, Vec<FrameSeen>) {
    let disk = SimDisk::new(21);
    let mut worker = Worker::start_with(&disk, 1, |setup| {
        setup.options.segment_bytes = 128 * 1024;
        setup.options.packing.compression = compression;
    })
    .await;
    worker.create().await;
    for batch in 0..20 {
        let sequences = (0..30).map(|one| worker.publish(body(batch * 30 + one, 900)));
        let last = sequences.last().unwrap();
        assert_eq!(worker.published(last).await, PublishOutcome::Routed);
    }
    worker.shard.shutdown_local().await;
    let mut frames: Vec<FrameSeen> = Vec::new();
    dump(
        &source(&disk),
        &folder(),
        DumpFrom::Index(LogIndex(0)),
        &mut |one| {
            match one {
                Dumped::Frame { path, offset, .. } => frames.push(FrameSeen {
                    path,
                    offset,
                    records: 0,
                }),
                _ => frames.last_mut().unwrap().records += 1,
            }
            ControlFlow::Continue(())
        },
    )
    .unwrap();
    (disk, frames)
}

struct FrameSeen {
    path: PathBuf,
    offset: u64,
    records: usize,
}

/// A record has a checksum of its own, and a server reads each by itself where its frame is stored as it is: what a check
/// calls lost is what is not handed out.
#[test]
fn a_check_names_the_messages_that_are_lost_and_no_others() {
    run(async {
        let (plain, frames) = backlog(Compression::None).await;
        let (packed, packed_frames) = backlog(Compression::Zstd).await;
        let many = |frames: &[FrameSeen]| frames.iter().position(|one| one.records >= 20).unwrap();
        let (frame, packed_frame) = (&frames[many(&frames)], &packed_frames[many(&packed_frames)]);
        let flip = |disk: &SimDisk, frame: &FrameSeen, byte: u64| {
            disk.flip_bit(&frame.path, frame.offset + byte, 1);
        };
        type Damage<'a> = &'a dyn Fn(&SimDisk);
        let cases: [(&str, &SimDisk, Damage<'_>, RangeInclusive<usize>); 5] = [
            ("a body", &plain, &|disk| flip(disk, frame, 5000), 1..=1),
            (
                "two bodies",
                &plain,
                &|disk| {
                    [2000, 9000]
                        .into_iter()
                        .for_each(|at| flip(disk, frame, at))
                },
                2..=2,
            ),
            // Nobody reads it again, once a side file says where the frame lies.
            ("a head", &plain, &|disk| flip(disk, frame, 5), 0..=0),
            (
                "a page",
                &plain,
                &|disk| disk.lose_block(&frame.path, frame.offset + 9000),
                4..=10,
            ),
            (
                "a packed frame",
                &packed,
                &|disk| flip(disk, packed_frame, 200),
                packed_frame.records..=packed_frame.records,
            ),
        ];
        for (name, disk, damage, lost) in cases {
            let disk = disk.copy();
            damage(&disk);
            let found = checked(&disk).findings;
            assert!(found.has(FindingKind::Frame), "{name}: {found:#?}");
            let entries = found.list.iter();
            let entries = entries.filter(|one| one.kind == FindingKind::Entry).count();
            assert!(lost.contains(&entries), "{name}: {found:#?}");
            assert_eq!(opens(&disk).await, 600 - entries, "{name}");
        }
    });
}

/// Each block that is damaged is told with the entries that it has, and no others.
#[test]
fn a_damaged_block_is_told_with_its_own_entries() {
    run(async {
        let (disk, _) = backlog(Compression::None).await;
        let index = Path::new("shard/checkpoint/index");
        let blocks = disk.contents(index).unwrap().len() as u64 / 4096;
        (1..blocks).for_each(|block| disk.flip_bit(index, block * 4096 + 20, 1));
        let found = checked(&disk).findings;
        let told: Vec<&str> = found.list.iter().map(|one| &*one.what).collect();
        assert_eq!(told.len(), 3, "{found:#?}");
        for (nth, entries) in [(0, "255 entries"), (1, "255 entries"), (2, "90 entries")] {
            let first = format!("offsets {} to", nth * 255);
            let one = told.iter().find(|what| what.contains(&first));
            assert!(one.is_some_and(|what| what.contains(entries)), "{told:#?}");
        }
        assert_eq!(opens(&disk).await, 0);
    });
}

/// Of a queue whose records are all there the rows are made again as they were; where a record is missing none is guessed.
#[test]
fn a_damaged_block_is_written_again_where_the_journal_tells_all_of_it() {
    run(async {
        let other = StreamId(78);
        let disk = SimDisk::new(22);
        let mut worker = Worker::start_with(&disk, 1, |setup| {
            setup.options.segment_bytes = 64 * 1024;
        })
        .await;
        worker.create().await;
        let question = Question::CreateStream {
            stream: other,
            vhost: VhostId(1),
            name: Arc::from("other"),
            limits: StreamLimits::default(),
        };
        worker.ask(question).await.unwrap();
        let mut last = 0;
        for number in 0..700u32 {
            last = worker.publish(body(number, 30 + number as usize % 90));
            if number % 2 == 1 {
                last = worker.publish_to(other, body(10_000 + number, 200));
            }
            if number % 16 == 0 {
                worker.published(last).await;
            }
        }
        worker.published(last).await;
        let consumer = worker.attach(1).await;
        worker.drained(consumer, 700).await;
        worker.accept(consumer, 5, 5);
        worker.accept(consumer, 300, 340);
        worker.ask(Question::StatAll).await.unwrap();
        worker.shard.shutdown_local().await;
        let all = messages(&disk.copy()).await;
        assert_eq!(all.len(), 700 - 42);

        let index = Path::new("shard/checkpoint/index");
        let count = disk.contents(index).unwrap().len() as u64 / 4096;
        let mut cases: Vec<Vec<u64>> = (1..count).map(|block| vec![block]).collect();
        cases.push((1..count).collect());
        let mut mended_alone = 0;
        for blocks in cases {
            let damaged = disk.copy();
            let at = blocks.iter().map(|block| block * 4096 + 40);
            at.for_each(|at| damaged.flip_bit(index, at, 2));
            let found = checked(&damaged).findings.defects;
            let done = mended(&damaged, Consent::default());
            let told = done.steps.iter();
            let told = told.filter(|step| step.kind == StepKind::Block).count();
            assert_eq!(told as u64, found, "{blocks:?}: {:#?}", done.steps);
            assert_eq!(done.after.findings.defects, 0, "{:#?}", done.after.findings);
            assert_eq!(messages(&damaged).await, all, "{blocks:?}");
            mended_alone += u64::from(found == 1);

            // Without one record nobody knows which of the others are the queue's rows.
            let path = &files(&damaged, "shard", ".seg")[0];
            let needle = body(5, 35);
            let bytes = damaged.contents(path).unwrap();
            let lies = bytes.windows(39).position(|found| found == needle).unwrap();
            damaged.flip_bit(path, lies as u64 + 20, 1);
            (1..count).for_each(|block| damaged.flip_bit(index, block * 4096 + 40, 2));
            let done = mended(&damaged, Consent::default());
            assert!(done.steps.is_empty(), "{blocks:?}: {:#?}", done.steps);
            assert!(done.after.findings.has(FindingKind::IndexBlock));
        }
        assert!(mended_alone >= 3, "{mended_alone}");
    });
}

/// What was given back may have been the queue's, and what is left fits no offset for sure.
#[test]
fn a_damaged_block_stays_where_the_journal_has_holes() {
    run(async {
        let disk = SimDisk::new(23);
        life(&disk, 1, true, |_| {}).await;
        let all = messages(&disk.copy()).await;
        let index = Path::new("shard/checkpoint/index");
        let count = disk.contents(index).unwrap().len() as u64 / 4096;
        (1..count).for_each(|block| disk.flip_bit(index, block * 4096 + 40, 2));
        mended(&disk, Consent::default());
        let left = messages(&disk).await;
        assert!(left.len() < all.len() && left.iter().all(|one| all.contains(one)));
    });
}

#[test]
fn a_shard_in_use_is_looked_at_and_not_mended() {
    run(async {
        let disk = SimDisk::new(3);
        let mut worker = Worker::start(&disk, 1).await;
        worker.create().await;
        assert_eq!(checked(&disk).findings.defects, 0);
        let shared = source(&disk);
        let refused = repair(&shared, &folder(), Consent::default());
        assert!(matches!(
            refused,
            Err(RepairError::Inspect(InspectError::Journal(
                OpenError::Locked { .. }
            )))
        ));
        worker.shard.shutdown_local().await;
    });
}

/// Keys are what is asked for, not a copy of what is whole.
#[test]
fn a_sealed_shard_is_said_to_need_its_keys() {
    let keys = |name: &str, letter: char| {
        let line = format!("{name}:{}A=\n", letter.to_string().repeat(42));
        let ring = KeyRing::parse(&line).unwrap();
        Sealing::new(ring, Arc::new(SeededRandom::new(1)))
    };
    run(async {
        let disk = SimDisk::new(11);
        let mut worker = Worker::start_with(&disk, 1, |setup| {
            setup.options.packing.sealing = keys("k1", 'B');
            setup.checkpoint_bytes = 8 * 1024;
        })
        .await;
        worker.create().await;
        for number in 0..60 {
            let sequence = worker.publish(body(number, 900));
            assert_eq!(worker.published(sequence).await, PublishOutcome::Routed);
        }
        worker.shard.shutdown_local().await;
        let with = |sealing: Sealing| Source {
            sealing,
            ..source(&disk)
        };
        let found = check(&with(keys("k1", 'B')), &folder(), &mut |_| {}).unwrap();
        assert_eq!(found.findings.defects, 0, "{:#?}", found.findings);
        assert!(found.checkpoint.is_some());
        for sealing in [Sealing::default(), keys("k2", 'B'), keys("k1", 'C')] {
            let source = with(sealing);
            let found = check(&source, &folder(), &mut |_| {}).unwrap().findings;
            assert!(found.defects > 0);
            assert_eq!(found.defects_seen(), 0, "{found:#?}");
            assert!(found.list.iter().all(|one| one.what.contains("`k1`")));
            let told = stats(&source, &folder(), &mut |_| {}).unwrap_err();
            assert!(told.to_string().contains("`k1`"), "{told}");
            let mut records = 0;
            let told = dump(
                &source,
                &folder(),
                DumpFrom::Index(LogIndex(0)),
                &mut |one| {
                    records += u32::from(matches!(one, Dumped::Record { .. }));
                    ControlFlow::Continue(())
                },
            );
            let told = told.unwrap_err().to_string();
            assert!(records == 0 && told.contains("`k1`"), "{told}");
        }
    });
}
