//! Segments in an object store: a folder, and S3. What moves, what is read back, what waits, what goes.

mod s3;
mod tiered;
mod worker;

use anabranch_core::dispatch::travel_units;
use anabranch_core::gateway::{Delivery, PublishOutcome};
use anabranch_core::id::StreamId;
use anabranch_core::limits::{Mode, StreamLimits};
use anabranch_core::port::{ShardEvent, ShardRequest};
use anabranch_store::disk::Disk;
use anabranch_store::disk::sim::{Faults, SimDisk};
use anabranch_store::seal::{KeyRing, Sealing, SeededRandom};
use anabranch_store::shard::DataShard;
use anabranch_store::tier::{Tier, TierOptions};
use s3::{S3, bucket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tiered::{
    attach, body, counts, create, expect, files, fill, folder, key, moved, segment_files, start,
    until,
};
use worker::{STREAM, Worker};

const NEAR: StreamId = StreamId(78);

async fn there_and_back(options: TierOptions) {
    let disk = SimDisk::new(5);
    let tier = Tier::start(&options).unwrap();
    let mut worker = start(&disk, 1, &tier).await;
    worker.create().await;
    fill(&mut worker, STREAM, 0..300).await;
    moved(&worker, 10).await;
    let before = counts(&worker);
    until("their files go", || {
        segment_files(&disk) as u64 == before.local_segments
    })
    .await;
    assert_eq!(tier.stats().uploads, before.tiered_segments);
    attach(&mut worker, STREAM, 1, false).await;
    expect(&mut worker, STREAM, 0..300).await;
    let stats = tier.stats();
    assert!(stats.range_reads > 0 && stats.cache_hits > 0, "{stats:?}");
    assert_eq!((stats.failures, &stats.error), (0, &None));
    worker.shard.shutdown_local().await;
    drop(worker);
    drop(tier);

    // The power goes, and the memory for ranges is empty.
    let tier = Tier::start(&options).unwrap();
    let mut worker = start(&disk, 2, &tier).await;
    fill(&mut worker, STREAM, 300..320).await;
    disk.crash();
    drop(worker);
    drop(tier);
    let tier = Tier::start(&options).unwrap();
    let mut worker = start(&disk, 3, &tier).await;
    assert!(counts(&worker).tiered_segments >= before.tiered_segments);
    attach(&mut worker, STREAM, 1, false).await;
    expect(&mut worker, STREAM, 0..320).await;
    worker.shard.shutdown_local().await;
}

#[tokio::test]
async fn segments_move_to_a_folder_and_are_read_back_before_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    there_and_back(folder(dir.path())).await;
}

#[tokio::test]
async fn segments_move_to_s3_and_are_read_back_before_and_after_a_restart() {
    let s3 = S3::start().await;
    there_and_back(bucket(&s3)).await;
    let keys = s3.keys();
    assert!(
        keys.iter()
            .all(|key| key.starts_with("some/where/") && key.contains("/data/")),
        "{keys:?}"
    );
}

#[tokio::test]
async fn a_large_segment_goes_to_s3_in_parts() {
    let s3 = S3::start().await;
    let tier = Tier::start(&bucket(&s3)).unwrap();
    let disk = SimDisk::new(6);
    let mut worker = Worker::start_with(&disk, 1, |setup| {
        setup.options.tier = Some(tier.clone());
        setup.options.segment_bytes = 24 << 20;
        setup.checkpoint_bytes = 24 << 20;
    })
    .await;
    worker.create().await;
    let large = |number: u8| vec![number; 2 << 20];
    for number in 0..50 {
        let sequence = worker.publish_to(STREAM, large(number));
        assert_eq!(worker.published(sequence).await, PublishOutcome::Routed);
    }
    moved(&worker, 2).await;
    let parts = s3.parts_sent();
    assert!(parts >= 2, "{parts}");
    attach(&mut worker, STREAM, 1, false).await;
    let mut next = 0;
    while next < 50 {
        let ShardEvent::Deliver { deliveries, .. } = worker.event().await else {
            panic!("unexpected event")
        };
        for Delivery { message, .. } in &deliveries {
            assert!(message.body == large(next), "{next}");
            next += 1;
        }
        let units = deliveries.iter();
        let units = units.map(|one| travel_units(one.message.cost_bytes()));
        worker.send(ShardRequest::Drained {
            consumer: key(1),
            stream: STREAM,
            count: units.sum(),
        });
    }
    worker.shard.shutdown_local().await;
}

#[tokio::test]
async fn while_the_folder_is_away_its_readers_wait_and_everybody_else_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (there, away) = (dir.path().join("there"), dir.path().join("away"));
    std::fs::create_dir(&there).unwrap();
    let disk = SimDisk::new(7);
    let tier = Tier::start(&folder(&there)).unwrap();
    let mut worker = start(&disk, 1, &tier).await;
    create(&mut worker, STREAM, StreamLimits::default()).await;
    create(&mut worker, NEAR, StreamLimits::default()).await;
    fill(&mut worker, STREAM, 0..200).await;
    moved(&worker, 10).await;
    worker.shard.shutdown_local().await;
    drop(worker);
    std::fs::rename(&there, &away).unwrap();

    // A start does not need it.
    let mut worker = start(&disk, 2, &tier).await;
    attach(&mut worker, STREAM, 1, false).await;
    until("the failure is told", || tier.stats().error.is_some()).await;
    attach(&mut worker, NEAR, 2, false).await;
    for number in 0..100 {
        let sequence = worker.publish_to(NEAR, body(number));
        let (mut confirmed, mut delivered) = (false, false);
        while !(confirmed && delivered) {
            match worker.event().await {
                ShardEvent::Published { last, outcome, .. } => {
                    assert_eq!((last.0, outcome), (sequence, PublishOutcome::Routed));
                    confirmed = true;
                }
                ShardEvent::Deliver {
                    connection,
                    deliveries,
                    ..
                } => {
                    assert_eq!(connection, key(2).connection, "nothing of the other");
                    assert_eq!(deliveries[0].message.body, body(number));
                    delivered = true;
                    worker.send(ShardRequest::Drained {
                        consumer: key(2),
                        stream: NEAR,
                        count: travel_units(deliveries[0].message.cost_bytes()),
                    });
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }
    let stats = tier.stats();
    assert!(stats.failures > 0);
    let error = stats.error.expect("it is away");
    assert!(!there.exists(), "nobody makes the folder: {error}");
    let tiered = counts(&worker).tiered_segments;

    std::fs::rename(&away, &there).unwrap();
    expect(&mut worker, STREAM, 0..200).await;
    moved(&worker, tiered + 1).await;
    until("all is well", || tier.stats().error.is_none()).await;
    worker.shard.shutdown_local().await;
}

#[tokio::test]
async fn wrong_credentials_are_told_and_nothing_is_lost() {
    let s3 = S3::start().await;
    let disk = SimDisk::new(8);
    let wrong = TierOptions {
        secret_access_key: "another".to_owned(),
        ..bucket(&s3)
    };
    let tier = Tier::start(&wrong).unwrap();
    let mut worker = start(&disk, 1, &tier).await;
    worker.create().await;
    fill(&mut worker, STREAM, 0..100).await;
    until("the refusal is told", || tier.stats().error.is_some()).await;
    let error = tier.stats().error.unwrap();
    assert!(error.contains("SignatureDoesNotMatch"), "{error}");
    assert!(!error.contains("another"), "{error}");
    let before = counts(&worker);
    assert_eq!(before.tiered_segments, 0);
    assert!(before.waiting > 0, "{before:?}");
    assert!(s3.keys().is_empty());
    attach(&mut worker, STREAM, 1, false).await;
    expect(&mut worker, STREAM, 0..100).await;
    worker.shard.shutdown_local().await;
    drop(worker);
    drop(tier);
    let tier = Tier::start(&bucket(&s3)).unwrap();
    let worker = start(&disk, 2, &tier).await;
    moved(&worker, before.waiting).await;
    worker.shard.shutdown_local().await;
}

#[tokio::test]
async fn a_server_that_fails_for_a_while_delays_and_loses_nothing() {
    let s3 = S3::start().await;
    let disk = SimDisk::new(9);
    let tier = Tier::start(&bucket(&s3)).unwrap();
    let mut worker = start(&disk, 1, &tier).await;
    worker.create().await;
    fill(&mut worker, STREAM, 0..100).await;
    moved(&worker, 3).await;
    s3.shared.down.store(true, Ordering::Relaxed);
    attach(&mut worker, STREAM, 1, false).await;
    until("the failure is told", || tier.stats().error.is_some()).await;
    s3.shared.down.store(false, Ordering::Relaxed);
    expect(&mut worker, STREAM, 0..100).await;
    worker.shard.shutdown_local().await;
}

#[tokio::test]
async fn the_power_may_go_at_any_step_of_moving() {
    let sealing = |life: u64| {
        let ring = format!("k1:{}A=\n", "A".repeat(42));
        Sealing::new(
            KeyRing::parse(&ring).unwrap(),
            Arc::new(SeededRandom::new(life)),
        )
    };
    let mut moved_before = 0;
    for step in 0..24 {
        let context = format!("step {step}");
        let dir = tempfile::tempdir().unwrap();
        let disk = SimDisk::new(step);
        let life = async |incarnation: u64| {
            let tier = Tier::start(&folder(dir.path())).unwrap();
            let worker = Worker::start_with(&disk, incarnation, |setup| {
                setup.options.tier = Some(tier.clone());
                setup.checkpoint_bytes = 16 * 1024;
                if step % 2 == 1 {
                    setup.options.packing.sealing = sealing(incarnation);
                }
            })
            .await;
            (tier, worker)
        };
        let (tier, mut worker) = life(1).await;
        worker.create().await;
        fill(&mut worker, STREAM, 0..80).await;
        disk.set_faults(Faults {
            power_off_after: Some(step * 5),
            ..Faults::default()
        });
        let mut confirmed = 80;
        for number in 80..200 {
            let sequence = worker.publish_to(STREAM, body(number));
            if worker.published(sequence).await != PublishOutcome::Routed {
                break;
            }
            confirmed = number + 1;
        }
        assert!(confirmed < 200, "{context}: the power went");
        moved_before += tier.stats().uploads;
        tier.stop();
        drop(worker);
        disk.crash();

        let (tier, mut worker) = life(2).await;
        attach(&mut worker, STREAM, 1, false).await;
        expect(&mut worker, STREAM, 0..confirmed).await;
        // What was half done is done.
        moved(&worker, 1).await;
        until(&context, || {
            let counts = counts(&worker);
            counts.doomed == 0
                && files(dir.path()).len() as u64 == counts.tiered_segments
                && segment_files(&disk) as u64 == counts.local_segments
        })
        .await;
        worker.shard.shutdown_local().await;
        tier.stop();
    }
    assert!(moved_before > 0, "the power went while segments moved");
}

async fn retention(options: TierOptions, objects: impl Fn() -> usize) {
    let disk = SimDisk::new(10);
    let tier = Tier::start(&options).unwrap();
    let mut worker = start(&disk, 1, &tier).await;
    let kept = StreamLimits {
        mode: Mode::Replay,
        bytes_max: Some(100 * 1000),
        ..StreamLimits::default()
    };
    create(&mut worker, STREAM, kept).await;
    fill(&mut worker, STREAM, 0..500).await;
    until("segments move and go", || {
        let (stats, counts) = (tier.stats(), counts(&worker));
        stats.removals >= 5 && counts.tiered_segments > 0 && counts.waiting == 0
    })
    .await;
    until("what is listed is there, and nothing else", || {
        let counts = counts(&worker);
        counts.doomed == 0 && counts.tiered_segments == objects() as u64
    })
    .await;
    assert!(objects() <= 15, "{}", objects());
    attach(&mut worker, STREAM, 1, true).await;
    let ShardEvent::Deliver { deliveries, .. } = worker.event().await else {
        panic!("unexpected event")
    };
    let first = u32::from_le_bytes(deliveries[0].message.body[..4].try_into().unwrap());
    assert!((350..=410).contains(&first), "{first}");
    worker.shard.shutdown_local().await;
}

#[tokio::test]
async fn what_retention_lets_go_is_removed_from_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    retention(folder(dir.path()), || files(dir.path()).len()).await;
}

#[tokio::test]
async fn what_retention_lets_go_is_removed_from_s3() {
    let s3 = S3::start().await;
    retention(bucket(&s3), || s3.keys().len()).await;
}

#[tokio::test]
async fn an_object_that_a_crash_left_without_a_note_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimDisk::new(11);
    let tier = Tier::start(&folder(dir.path())).unwrap();
    let mut worker = start(&disk, 1, &tier).await;
    worker.create().await;
    fill(&mut worker, STREAM, 0..200).await;
    moved(&worker, 5).await;
    worker.shard.shutdown_local().await;
    drop(worker);
    let all = files(dir.path());
    // Sent and not noted: as if the power had gone between.
    let orphan = all[0].with_file_name(format!("{:020}.seg", 7));
    std::fs::copy(&all[0], &orphan).unwrap();
    let foreign = all[0].with_file_name("notes.txt");
    std::fs::write(&foreign, b"mine").unwrap();
    let mut worker = start(&disk, 2, &tier).await;
    until("it is removed", || !orphan.exists()).await;
    assert!(foreign.exists(), "what is not ours stays");
    assert!(all.iter().all(|file| file.exists()));
    attach(&mut worker, STREAM, 1, false).await;
    expect(&mut worker, STREAM, 0..200).await;
    worker.shard.shutdown_local().await;
}

#[tokio::test]
async fn a_folder_with_moved_segments_is_not_opened_without_the_object_store() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimDisk::new(12);
    let tier = Tier::start(&folder(dir.path())).unwrap();
    let mut worker = start(&disk, 1, &tier).await;
    worker.create().await;
    fill(&mut worker, STREAM, 0..100).await;
    moved(&worker, 1).await;
    worker.shard.shutdown_local().await;
    let (send, _mail) = tokio::sync::mpsc::unbounded_channel();
    let setup = worker::setup(&disk, 2, worker::Mailbox(send));
    let told = DataShard::start_local(setup).await.unwrap_err().to_string();
    assert!(told.contains("store.tier.url"), "{told}");
    let mut worker = start(&disk, 3, &tier).await;
    attach(&mut worker, STREAM, 1, false).await;
    expect(&mut worker, STREAM, 0..100).await;
    worker.shard.shutdown_local().await;
}

/// Where the frames of a moved segment lie is told by its side file alone: without it the shard did not open.
#[tokio::test]
async fn a_moved_segment_is_read_when_its_side_file_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimDisk::new(13);
    let tier = Tier::start(&folder(dir.path())).unwrap();
    let mut worker = start(&disk, 1, &tier).await;
    worker.create().await;
    fill(&mut worker, STREAM, 0..100).await;
    moved(&worker, 1).await;
    worker.shard.shutdown_local().await;
    for (life, ends) in [(2, ".tab"), (3, ".twin")] {
        let names = disk.list(Path::new("shard")).unwrap();
        for name in names.iter().filter(|name| name.ends_with(ends)) {
            disk.remove(&Path::new("shard").join(name)).unwrap();
        }
        let mut worker = start(&disk, life, &tier).await;
        attach(&mut worker, STREAM, 1, false).await;
        expect(&mut worker, STREAM, 0..100).await;
        worker.shard.shutdown_local().await;
    }
}

/// Lives that ended before their second checkpoint gave nothing back, and each began anew: nothing ever moved.
#[tokio::test]
async fn segments_of_short_lives_move_too() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimDisk::new(11);
    let tier = Tier::start(&folder(dir.path())).unwrap();
    for life in 1..=3 {
        let mut worker = Worker::start_with(&disk, life, |setup| {
            setup.options.tier = Some(tier.clone());
            // None but that at the end.
            setup.checkpoint_bytes = u64::MAX / 2;
        })
        .await;
        match life {
            1 => worker.create().await,
            2 => assert_eq!(counts(&worker).tiered_segments, 0),
            _ => {
                moved(&worker, 3).await;
                attach(&mut worker, STREAM, 1, false).await;
                expect(&mut worker, STREAM, 0..200).await;
            }
        }
        if life < 3 {
            let from = (life as u32 - 1) * 100;
            fill(&mut worker, STREAM, from..from + 100).await;
        }
        worker.shard.shutdown_local().await;
    }
}

#[test]
fn a_url_of_no_known_kind_is_refused() {
    for url in ["", "/folder", "file://folder", "s3://", "gs://bucket"] {
        let options = TierOptions {
            url: url.to_owned(),
            ..TierOptions::default()
        };
        let told = Tier::start(&options).map(drop).unwrap_err().to_string();
        assert!(told.contains("store.tier.url"), "{url}: {told}");
    }
    for (endpoint, word) in [
        ("host:9000", "https://"),
        ("http://host:9000", "allow_http"),
    ] {
        let options = TierOptions {
            url: "s3://bucket".to_owned(),
            endpoint: endpoint.to_owned(),
            ..TierOptions::default()
        };
        let told = Tier::start(&options).map(drop).unwrap_err().to_string();
        assert!(told.contains(word), "{endpoint}: {told}");
    }
    let shown = format!(
        "{:?}",
        TierOptions {
            secret_access_key: "secret!".to_owned(),
            ..TierOptions::default()
        }
    );
    assert!(!shown.contains("secret!"), "{shown}");
}
