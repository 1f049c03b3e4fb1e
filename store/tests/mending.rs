//! A folder of which files are lost or damaged: what is there twice is made good, what is not is named, and the way on
//! loses as little as can be and removes nothing. The runtime's clock is `start_paused`.

mod folder;
mod worker;

use anabranch_core::address::Address;
use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::{Sequence, StreamId, VhostId};
use anabranch_core::message::{Message, Quality};
use anabranch_core::port::{Question, ShardRequest};
use anabranch_store::disk::Disk;
use anabranch_store::disk::sim::SimDisk;
use anabranch_store::finding::FindingKind;
use anabranch_store::inspect::{Checked, Consent, StepKind};
use folder::{body, checked, files, life, mended, opens, run};
use std::path::{Path, PathBuf};
use worker::Worker;

const LOSE: Consent = Consent {
    dry_run: false,
    lose_corrupt: true,
};

/// What was given back of a segment is told by its side file alone: without it the shard did not open and could not be
/// mended.
#[test]
fn a_lost_side_file_of_a_segment_with_holes_is_made_good_by_its_twin() {
    run(async {
        let whole = SimDisk::new(7);
        life(&whole, 1, true, |_| {}).await;
        let all = opens(&whole.copy()).await;
        assert!(checked(&whole).given_back_bytes > 0);
        for ends in [".tab", ".twin"] {
            let (lost, rotten) = (whole.copy(), whole.copy());
            for path in files(&whole, "shard", ends) {
                lost.remove(&path).unwrap();
                rotten.flip_bit(&path, 130, 1);
            }
            for disk in [lost, rotten] {
                // The server opens it as it is, and writes them again.
                let opened = disk.copy();
                assert_eq!(opens(&opened).await, all, "{ends}");
                let found = checked(&opened).findings;
                // A twin that is not needed is not read.
                let is_unread = ends == ".twin" && found.has(FindingKind::TableCopy);
                assert!(is_unread || found.list.is_empty(), "{ends}: {found:#?}");
                // So does who mends it.
                let done = mended(&disk, Consent::default());
                assert!(done.steps.iter().all(|step| step.kind == StepKind::Table));
                assert!(!done.steps.is_empty() && done.withheld.is_empty());
                let left = &done.after.findings;
                assert!(left.list.is_empty(), "{ends}: {left:#?}");
                assert_eq!(opens(&disk).await, all, "{ends}");
            }
        }
    });
}

fn flip(disk: &SimDisk, path: &Path, byte: u64) {
    disk.flip_bit(path, byte, 1);
}

/// Whether a server opens the folder; why not, if not.
async fn refused(disk: &SimDisk) -> String {
    let (send, _mail) = tokio::sync::mpsc::unbounded_channel();
    let setup = worker::setup(disk, 9, worker::Mailbox(send));
    match anabranch_store::shard::DataShard::start_local(setup).await {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_header_of_the_index_file_is_there_twice_and_once_more_in_the_manifests() {
    run(async {
        let whole = SimDisk::new(7);
        life(&whole, 1, true, |_| {}).await;
        let all = opens(&whole.copy()).await;
        let index = Path::new("shard/checkpoint/index");
        for copies in [&[0][..], &[2048], &[0, 2048]] {
            let disk = whole.copy();
            copies.iter().for_each(|at| flip(&disk, index, at + 9));
            let found = checked(&disk).findings;
            let one_left = copies.len() == 1;
            let kind = match one_left {
                true => FindingKind::IndexCopy,
                false => FindingKind::Index,
            };
            assert!(found.has(kind), "{copies:?}: {found:#?}");
            assert_eq!(refused(&disk.copy()).await.is_empty(), one_left);
            let done = mended(&disk, Consent::default());
            let kinds: Vec<StepKind> = done.steps.iter().map(|step| step.kind).collect();
            assert_eq!(kinds, [StepKind::Copy], "{copies:?}");
            let left = &done.after.findings;
            assert_eq!(left.defects, 0, "{copies:?}: {left:#?}");
            assert_eq!(opens(&disk).await, all, "{copies:?}");
        }
        // A server writes it again too, with its next checkpoint.
        let disk = whole.copy();
        flip(&disk, index, 9);
        life(&disk, 3, true, |_| {}).await;
        assert!(!checked(&disk).findings.has(FindingKind::IndexCopy));
    });
}

/// A block that the disk did not give back was no damage that could be mended, but an error that ended the mending.
#[test]
fn what_the_disk_does_not_give_back_is_mended_like_what_is_damaged() {
    run(async {
        let whole = SimDisk::new(7);
        life(&whole, 1, true, |_| {}).await;
        let all = opens(&whole.copy()).await;
        let index = PathBuf::from("shard/checkpoint/index");
        let newest = files(&whole, "shard/checkpoint", "manifest-").pop();
        for path in [index, newest.unwrap()] {
            let disk = whole.copy();
            disk.lose_block(&path, 9);
            assert!(checked(&disk).findings.defects > 0, "{path:?}");
            assert!(!refused(&disk.copy()).await.is_empty(), "{path:?}");
            let done = mended(&disk, Consent::default());
            assert!(!done.steps.is_empty() && done.withheld.is_empty());
            let left = &done.after.findings;
            assert_eq!(left.defects, 0, "{path:?}: {left:#?}");
            assert_eq!(opens(&disk).await, all, "{path:?}");
        }
    });
}

/// A damaged frame kept a shard from starting though the newest checkpoint covers it, and nothing mended that.
#[test]
fn a_damaged_frame_below_the_checkpoint_does_not_keep_a_shard_from_starting() {
    run(async {
        let whole = SimDisk::new(7);
        life(&whole, 1, true, |_| {}).await;
        let all = opens(&whole.copy()).await;
        let segments = files(&whole, "shard", ".seg");
        let mut hit = 0;
        for path in [&segments[0], &segments[segments.len() - 1]] {
            let len = whole.contents(path).unwrap().len() as u64;
            // The first frame of a file begins behind its header.
            for byte in (516..len.min(6000)).step_by(389).chain([len - 1]) {
                let disk = whole.copy();
                flip(&disk, path, byte);
                let found = checked(&disk).findings;
                hit += usize::from(found.has(FindingKind::Frame));
                let left = opens(&disk).await;
                let path = path.display();
                assert!(
                    left == all || left + 1 == all,
                    "byte {byte} of {path}: {left} of {all}"
                );
            }
        }
        assert!(hit > 8, "{hit} frames were hit");
    });
}

/// One byte of a segment's header kept a shard from starting, and to mend it gave the whole segment up.
#[test]
fn a_damaged_header_of_a_segment_is_written_again() {
    run(async {
        let whole = SimDisk::new(7);
        life(&whole, 1, true, |_| {}).await;
        let all = opens(&whole.copy()).await;
        let segments = files(&whole, "shard", ".seg");
        assert!(segments.len() > 2);
        for path in &segments {
            let disk = whole.copy();
            flip(&disk, path, 20);
            let told = refused(&disk).await;
            assert!(told.contains("header"), "{told}");
            let plan = Consent {
                dry_run: true,
                ..Consent::default()
            };
            let planned = mended(&disk, plan).steps;
            let steps = mended(&disk, Consent::default()).steps;
            assert_eq!(steps, planned);
            assert_eq!(steps.len(), 1, "{steps:#?}");
            assert_eq!(steps[0].kind, StepKind::Copy);
            assert_eq!(disk.contents(path), whole.contents(path));
            let found = checked(&disk).findings;
            assert!(found.list.is_empty(), "{found:#?}");
            assert_eq!(opens(&disk).await, all);
            // With the head of the first frame gone, too, the side files tell it. That frame is met by who reads it.
            flip(&disk, path, 20);
            flip(&disk, path, 512 + 20);
            mended(&disk, Consent::default());
            assert_eq!(opens(&disk).await, all, "its records are sound");
        }
    });
}

#[test]
fn a_journal_that_has_all_needs_no_checkpoint() {
    run(async {
        let disk = SimDisk::new(3);
        let mut worker = Worker::start_with(&disk, 1, |setup| {
            setup.checkpoint_bytes = 4 * 1024;
        })
        .await;
        worker.create().await;
        for number in 0..200 {
            let sequence = worker.publish(body(number, 500));
            assert_eq!(worker.published(sequence).await, PublishOutcome::Routed);
        }
        worker.shard.shutdown_local().await;
        let runs = files(&disk, "shard/checkpoint", "run-");
        let [all, one] = [disk.copy(), disk.copy()];
        runs.iter().for_each(|path| flip(&all, path, 90));
        one.remove(&runs[0]).unwrap();
        for disk in [all, one] {
            assert!(!refused(&disk.copy()).await.is_empty());
            let done = mended(&disk, Consent::default());
            assert!(done.withheld.is_empty(), "{done:#?}");
            let step = done.steps.last().unwrap();
            assert_eq!(step.kind, StepKind::Checkpoint);
            assert!(step.what.contains("nothing is lost"), "{}", step.what);
            assert_eq!(done.after.findings.defects, 0, "{:#?}", done.after);
            assert!(!files(&disk, "shard/quarantine", "manifest-").is_empty());
            assert_eq!(opens(&disk).await, 200);
        }
    });
}

#[test]
fn manifests_that_are_gone_are_called_gone() {
    run(async {
        let disk = SimDisk::new(7);
        life(&disk, 1, true, |_| {}).await;
        for path in files(&disk, "shard/checkpoint", "manifest-") {
            disk.remove(&path).unwrap();
        }
        let found = checked(&disk).findings;
        assert!(found.has(FindingKind::Uncovered), "{found:#?}");
        let told = refused(&disk.copy()).await;
        assert!(told.contains("no manifest of a checkpoint"), "{told}");
        let before = disk.fingerprint();
        let done = mended(&disk, LOSE);
        assert!(done.steps.is_empty(), "{done:#?}");
        assert_eq!(disk.fingerprint(), before);
    });
}

const CROWD: u64 = 2000;

/// Many streams with a message each, which the oldest run has, and one in which much comes and goes.
async fn crowd(disk: &SimDisk) {
    let mut worker = Worker::start_with(disk, 1, |setup| {
        setup.checkpoint_bytes = 8 * 1024 * 1024;
    })
    .await;
    let ids: Vec<StreamId> = (0..CROWD).map(|number| StreamId(1000 + number)).collect();
    for id in &ids {
        let question = Question::CreateStream {
            stream: *id,
            vhost: VhostId(1),
            name: format!("crowd-{}", id.0).into(),
            limits: Default::default(),
        };
        worker.ask(question).await.unwrap();
    }
    worker.sequence += 1;
    let message = Message {
        address: Address(bytes::Bytes::from_static(b"a")),
        body: body(0, 100).into(),
        quality: Quality::AtLeastOnce,
        ..Default::default()
    };
    worker.send(ShardRequest::Publish {
        sequence: Sequence(worker.sequence),
        streams: ids.into_iter().collect(),
        by_topic: None,
        patient: false,
        extra: None,
        message: std::sync::Arc::new(message),
    });
    let sequence = worker.sequence;
    assert_eq!(worker.published(sequence).await, PublishOutcome::Routed);
    worker.shard.shutdown_local().await;
    life(disk, 2, true, |_| {}).await;
}

/// Runs that every checkpoint kept names.
fn shared_run(disk: &SimDisk) -> PathBuf {
    files(disk, "shard/checkpoint", "run-").remove(0)
}

#[test]
fn what_a_damaged_run_does_not_hold_is_kept() {
    run(async {
        let whole = SimDisk::new(11);
        crowd(&whole).await;
        let before = checked(&whole);
        assert_eq!(before.findings.defects, 0, "{:#?}", before.findings);
        assert_eq!(before.streams, CROWD + 1);
        let path = shared_run(&whole);
        let len = whole.contents(&path).unwrap().len() as u64;
        assert!(len > 100_000, "several sections: {len}");
        let all = opens(&whole.copy()).await;
        // Of streams, of what waits in them, the last section, and the whole file; or a block that cannot be read.
        for (at, is_lost) in [
            (Some(80_000), false),
            (Some(len - 20_000), false),
            (Some(len - 100), false),
            (Some(10), false),
            (None, false),
            (Some(80_000), true),
            (Some(len - 1), true),
        ] {
            let disk = whole.copy();
            match at {
                Some(at) if is_lost => disk.lose_block(&path, at),
                Some(at) => flip(&disk, &path, at),
                None => disk.remove(&path).unwrap(),
            }
            let found = checked(&disk).findings;
            let kind = match is_lost {
                true => FindingKind::Unreadable,
                false => FindingKind::Run,
            };
            let one = found.list.iter().find(|one| one.kind == kind);
            assert_eq!(one.unwrap().path, path);
            assert!(!refused(&disk.copy()).await.is_empty());

            let untouched = disk.fingerprint();
            let kept = mended(&disk, Consent::default());
            let withheld: Vec<StepKind> = kept.withheld.iter().map(|step| step.kind).collect();
            if kept.steps.is_empty() {
                assert_eq!(withheld, [StepKind::Runs], "{at:?}");
                assert_eq!(disk.fingerprint(), untouched);
            }
            let done = mended(&disk, LOSE);
            let after: &Checked = &done.after;
            assert_eq!(after.findings.defects, 0, "{at:?}: {:#?}", after.findings);
            let aside = files(&disk, "shard/quarantine", "run-");
            assert_eq!(aside.is_empty(), kept.withheld.is_empty() && at.is_none());
            let opened = opens(&disk).await;
            if at == Some(10) {
                // A header says nothing that is not known.
                assert_eq!(
                    (after.streams, after.entries),
                    (before.streams, before.entries)
                );
                assert_eq!(opened, all);
            }
            if at == Some(80_000) {
                let told = &done.steps[0].what;
                assert!(told.contains("streams and sessions numbered"), "{told}");
                assert_eq!(opened, all);
                assert!(
                    (CROWD / 3..CROWD).contains(&after.streams),
                    "{}",
                    after.streams
                );
            }
            if at == Some(80_000) {
                // And goes on.
                life(&disk, 20, true, |_| {}).await;
                assert_eq!(checked(&disk).findings.defects, 0, "{at:?}");
            }
        }
    });
}
