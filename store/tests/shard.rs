//! Data and metadata shards behind their ports: confirms, deliveries, restarts, a failing disk.

mod worker;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::{StreamId, UnixMs, VhostId};
use anabranch_core::limits::StreamLimits;
use anabranch_core::meta::{ExchangeSpec, MetaCommand, MetaReply};
use anabranch_core::port::{MetaPort, Question, ShardEvent, ShardReply};
use anabranch_core::router::Fabric;
use anabranch_store::clock::{RuntimeClock, SystemClock};
use anabranch_store::disk::real::RealDisk;
use anabranch_store::disk::sim::{Faults, SimDisk};
use anabranch_store::disk::{Disk, write_all_at};
use anabranch_store::group::GroupOptions;
use anabranch_store::journal::WriterMode;
use anabranch_store::shard::{DataShard, DataShardSetup, JournalLimit, MetaShard, MetaShardSetup};
use bytes::Bytes;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::Instant;
use worker::{Mailbox, STREAM, WORKER, Worker, setup};

#[tokio::test(start_paused = true)]
async fn confirmed_messages_are_delivered_after_a_power_loss_and_settled_ones_are_gone() {
    let disk = SimDisk::new(11);
    let mut worker = Worker::start(&disk, 1).await;
    worker.create().await;
    let mut last = 0;
    for number in 0..300u32 {
        last = worker.publish(number.to_le_bytes().repeat(30));
    }
    assert_eq!(worker.published(last).await, PublishOutcome::Routed);
    let consumer = worker.attach(1).await;
    let got = worker.deliveries(300).await;
    assert!(got.is_sorted_by_key(|delivery| delivery.offset));
    worker.accept(consumer, got[0].offset.0, got[99].offset.0);
    worker.accept(consumer, got[199].offset.0, got[199].offset.0);
    // The power goes when the settlements are on the disk: the next confirm says so.
    let last = worker.publish(b"one more".to_vec());
    assert_eq!(worker.published(last).await, PublishOutcome::Routed);
    disk.crash();
    drop(worker);

    let mut worker = Worker::start(&disk, 2).await;
    let consumer = worker.attach(1).await;
    let again = worker.deliveries(200).await;
    let bodies: Vec<Bytes> = again
        .iter()
        .map(|delivery| delivery.message.body.clone())
        .collect();
    let left: Vec<u32> = (100..300).filter(|number| *number != 199).collect();
    let expected = left
        .iter()
        .map(|number| Bytes::from(number.to_le_bytes().repeat(30)));
    let expected: Vec<Bytes> = expected.chain([Bytes::from_static(b"one more")]).collect();
    assert_eq!(bodies, expected);
    assert!(again[0].attempt > 1, "handed out before the power loss");
    worker.accept(consumer, 0, u64::MAX);
    worker.shard.shutdown_local().await;

    let mut worker = Worker::start(&disk, 3).await;
    let stat = worker.ask(Question::Stat { stream: STREAM }).await;
    let Ok(ShardReply::Stat(stat)) = stat else {
        panic!("{stat:?}")
    };
    assert_eq!((stat.ready, stat.unsettled), (0, 0));
    worker.shard.shutdown_local().await;
}

/// Written by a server whose checkpoints were whole files: `orders` with five messages, and a retained one.
#[tokio::test(start_paused = true)]
async fn a_folder_of_an_earlier_server_opens_and_gets_checkpoints_of_today() {
    let orders = StreamId(0xFFFF_0000_0000_0001);
    let disk = SimDisk::new(15);
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/shard-1");
    for entry in std::fs::read_dir(samples).unwrap() {
        let entry = entry.unwrap();
        let path = Path::new("shard").join(entry.file_name());
        let bytes = std::fs::read(entry.path()).unwrap();
        // The segment's zeros at its end are left out of the sample.
        let is_segment = path.extension().is_some();
        let len = if is_segment {
            4 << 20
        } else {
            bytes.len() as u64
        };
        let file = disk.create_zeroed(&path, len).unwrap();
        write_all_at(&*file, &bytes, 0).unwrap();
        file.sync().unwrap();
    }
    disk.sync_dir(Path::new("shard")).unwrap();
    for life in 1..=3 {
        let mut worker = Worker::start(&disk, life).await;
        let old = disk.list(Path::new("shard")).unwrap();
        let old = old.iter().filter(|name| name.starts_with("checkpoint-"));
        assert_eq!(
            old.count(),
            usize::from(life < 3),
            "gone once there are two of today"
        );
        worker.attach_to(orders, 1).await;
        let bodies: Vec<Bytes> = worker
            .deliveries(5)
            .await
            .into_iter()
            .map(|one| one.message.body.clone())
            .collect();
        let expected: Vec<Bytes> = (1..=5)
            .map(|number| Bytes::from(format!("order {number}")))
            .collect();
        assert_eq!(bodies, expected, "life {life}");
        worker.shard.shutdown_local().await;
        let names = disk.list(Path::new("shard/checkpoint")).unwrap();
        assert!(
            names.iter().any(|name| name.starts_with("manifest-")),
            "{names:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_sync_answers_everything_that_is_open() {
    let disk = SimDisk::new(12);
    let mut worker = Worker::start(&disk, 1).await;
    worker.create().await;
    let confirmed = worker.publish(b"kept".to_vec());
    assert_eq!(worker.published(confirmed).await, PublishOutcome::Routed);
    disk.set_faults(Faults {
        fail_sync_after: Some(0),
        ..Faults::default()
    });
    let open = worker.publish(b"lost".to_vec());
    let failed = PublishOutcome::Refused(ErrorKind::StorageFailed);
    assert_eq!(worker.published(open).await, failed);
    assert!(worker.shard.poisoned().is_some());
    let later = worker.publish(b"later".to_vec());
    assert_eq!(worker.published(later).await, failed);
    let limits = StreamLimits::default();
    let question = Question::CreateStream {
        stream: StreamId(1),
        vhost: VhostId(1),
        name: Arc::from("q"),
        limits,
    };
    assert_eq!(
        worker.ask(question).await.unwrap_err(),
        ErrorKind::StorageFailed
    );
    worker.shard.shutdown_local().await;
    let refused = worker.publish(b"too late".to_vec());
    assert_eq!(
        worker.published(refused).await,
        PublishOutcome::Refused(ErrorKind::ShuttingDown)
    );
}

#[tokio::test(start_paused = true)]
async fn a_nearly_full_disk_refuses_publishes_and_still_drains() {
    let disk = SimDisk::new(13);
    let mut worker = Worker::start_with(&disk, 1, |setup| setup.low_water_bytes = 100_000).await;
    worker.create().await;
    let kept = worker.publish(b"kept".to_vec());
    assert_eq!(worker.published(kept).await, PublishOutcome::Routed);
    disk.set_faults(Faults {
        capacity_bytes: Some(100_000),
        ..Faults::default()
    });
    assert!(worker.blocked().await, "publishers are told to wait");
    // What was on its way when the disk filled is refused; nothing else is lost.
    let refused = worker.publish(b"refused".to_vec());
    assert_eq!(
        worker.published(refused).await,
        PublishOutcome::Refused(ErrorKind::Busy)
    );
    let consumer = worker.attach(1).await;
    let got = worker.deliveries(1).await;
    worker.accept(consumer, got[0].offset.0, got[0].offset.0);
    disk.set_faults(Faults::default());
    assert!(!worker.blocked().await, "and to go on");
    let taken = worker.publish(b"taken".to_vec());
    assert_eq!(worker.published(taken).await, PublishOutcome::Routed);
    worker.shard.shutdown_local().await;
}

#[test]
fn a_shard_on_its_own_thread_and_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for incarnation in 1..3 {
        let (send, mail) = unbounded_channel();
        let mut setup = setup_real(dir.path().join("shard"), incarnation);
        setup.workers = vec![(WORKER, Arc::new(Mailbox(send)))];
        let shard = DataShard::start(setup).unwrap();
        let mut worker = Worker {
            shard,
            mail,
            events: VecDeque::new(),
            sequence: 0,
            ticket: 0,
        };
        runtime.block_on(async {
            worker.create().await;
            let mut last = 0;
            for number in 0..2_000u32 {
                last = worker.publish(number.to_le_bytes().to_vec());
            }
            assert_eq!(worker.published(last).await, PublishOutcome::Routed);
            let stat = worker.ask(Question::Stat { stream: STREAM }).await;
            let Ok(ShardReply::Stat(stat)) = stat else {
                panic!("{stat:?}")
            };
            assert_eq!(stat.ready, 2_000 * incarnation);
        });
        let stats = worker.shard.stats();
        assert!(stats.journal.frames < 2_000, "{stats:?}");
        worker.shard.shutdown();
        let names = RealDisk.list(&dir.path().join("shard/checkpoint")).unwrap();
        let written = names.iter().any(|name| name.starts_with("manifest-"));
        assert!(written, "no checkpoint at the end: {names:?}");
    }
}

fn setup_real(dir: PathBuf, incarnation: u64) -> DataShardSetup {
    let (send, _) = unbounded_channel();
    DataShardSetup {
        dir,
        disk: Arc::new(RealDisk),
        clock: Arc::new(SystemClock),
        options: GroupOptions {
            segment_bytes: 1024 * 1024,
            ..GroupOptions::new("data")
        },
        ..setup(&SimDisk::new(0), incarnation, Mailbox(send))
    }
}

fn meta_setup(disk: &SimDisk, fabric: &Arc<Fabric>) -> MetaShardSetup {
    MetaShardSetup {
        dir: PathBuf::from("meta"),
        disk: Arc::new(disk.clone()),
        clock: Arc::new(RuntimeClock::new(1)),
        options: GroupOptions {
            segment_bytes: 16 * 1024,
            writer: WriterMode::Local {
                latency: Duration::from_micros(200),
            },
            ..GroupOptions::new("meta")
        },
        fabric: fabric.clone(),
    }
}

fn vhost(name: &str) -> MetaCommand {
    let topic = ExchangeSpec {
        name: Arc::from("topic"),
        kind: anabranch_core::gateway::ExchangeKind::Topic,
        durable: true,
        auto_delete: false,
        internal: false,
        delays: false,
        alternate: None,
        arguments: Default::default(),
    };
    MetaCommand::CreateVhost {
        name: Arc::from(name),
        exchanges: vec![topic],
        topic_exchange: Arc::from("topic"),
    }
}

#[tokio::test(start_paused = true)]
async fn metadata_is_answered_in_order_and_survives_a_power_loss() {
    let disk = SimDisk::new(14);
    let fabric = Arc::new(Fabric::default());
    let meta = MetaShard::start_local(meta_setup(&disk, &fabric))
        .await
        .unwrap();
    let (send, mut answers) = unbounded_channel();
    for number in 0..50 {
        let send = send.clone();
        let done = Box::new(move |answer| {
            let _ = send.send((number, answer));
        });
        // Every other one refuses: it needs a name.
        let name = if number % 2 == 0 {
            format!("v{number}")
        } else {
            String::new()
        };
        meta.propose(vhost(&name), UnixMs(0), done);
    }
    for expected in 0..50 {
        let (number, answer) = answers.recv().await.unwrap();
        assert_eq!(number, expected);
        assert_eq!(
            matches!(answer, Ok(MetaReply::Vhost(_))),
            number % 2 == 0,
            "{answer:?}"
        );
    }
    let before = fabric.meta().encode();
    disk.crash();
    drop(meta);

    let fabric = Arc::new(Fabric::default());
    let meta = MetaShard::start_local(meta_setup(&disk, &fabric))
        .await
        .unwrap();
    assert_eq!(fabric.meta().encode(), before, "replayed");
    meta.shutdown_local().await;
    let (send, mut answers) = unbounded_channel();
    let done = Box::new(move |answer: Result<MetaReply, _>| {
        let _ = send.send(answer);
    });
    meta.propose(vhost("late"), UnixMs(0), done);
    let late = answers.recv().await.unwrap();
    assert_eq!(late.unwrap_err().kind, ErrorKind::ShuttingDown);

    let fabric = Arc::new(Fabric::default());
    let meta = MetaShard::start_local(meta_setup(&disk, &fabric))
        .await
        .unwrap();
    assert_eq!(fabric.meta().encode(), before, "from the checkpoint");
    meta.shutdown_local().await;
}

#[tokio::test(start_paused = true)]
async fn a_journal_gives_back_what_two_checkpoints_do_not_refer_to() {
    let disk = SimDisk::new(17);
    let mut worker = Worker::start_with(&disk, 1, |setup| {
        setup.options.segment_bytes = 64 * 1024;
        setup.checkpoint_bytes = 128 * 1024;
    })
    .await;
    worker.create().await;
    let consumer = worker.attach(1).await;
    for _ in 0..400 {
        let sequence = worker.publish(vec![7; 4096]);
        assert_eq!(worker.published(sequence).await, PublishOutcome::Routed);
        let got = worker.deliveries(1).await;
        worker.accept(consumer, got[0].offset.0, got[0].offset.0);
    }
    let stats = worker.shard.stats();
    assert!(stats.journal.bytes > 1_600_000);
    disk.set_faults(Faults {
        capacity_bytes: Some(10_000_000),
        ..Faults::default()
    });
    let kept = 10_000_000 - disk.free_bytes(Path::new("/")).unwrap();
    assert!(
        kept < 1_000_000,
        "{kept} bytes are kept of {}",
        stats.journal.bytes
    );
    worker.shard.shutdown_local().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_frees_itself_when_it_is_drained() {
    let disk = SimDisk::new(19);
    let capacity = Faults {
        capacity_bytes: Some(3_000_000),
        ..Faults::default()
    };
    disk.set_faults(capacity);
    let mut worker = Worker::start_with(&disk, 1, |setup| {
        setup.options.segment_bytes = 128 * 1024;
        setup.low_water_bytes = 1_500_000;
        setup.checkpoint_bytes = 1 << 30;
    })
    .await;
    worker.create().await;
    let mut taken = 0;
    loop {
        let sequence = worker.publish(vec![7; 4096]);
        match worker.published_or_blocked(sequence).await {
            Some(PublishOutcome::Routed) => taken += 1,
            Some(other) => panic!("unexpected {other:?}"),
            None => break,
        }
    }
    let consumer = worker.attach(1).await;
    let got = worker.deliveries(taken).await;
    worker.accept(consumer, got[0].offset.0, got[got.len() - 1].offset.0);
    assert!(!worker.blocked().await, "room was given back without help");
    worker.shard.shutdown_local().await;
}

#[tokio::test(start_paused = true)]
async fn a_folder_near_its_limit_stops_publishing_and_goes_on_when_it_is_drained() {
    let disk = SimDisk::new(20);
    let mut worker = Worker::start_with(&disk, 1, |setup| {
        setup.options.segment_bytes = 1 << 30;
        setup.checkpoint_bytes = 1 << 30;
        setup.limit = Some(JournalLimit {
            root: PathBuf::new(),
            bytes_max: 32 << 20,
            shards: 1,
        });
    })
    .await;
    worker.create().await;
    let mut taken = 0;
    loop {
        let sequence = worker.publish(vec![7; 64 * 1024]);
        match worker.published_or_blocked(sequence).await {
            Some(PublishOutcome::Routed) => taken += 1,
            Some(other) => panic!("unexpected {other:?}"),
            None => break,
        }
    }
    let used = disk.occupied_bytes();
    assert!(
        taken > 300 && used > 24 << 20 && used < 32 << 20,
        "{taken}, {used}"
    );
    let why = worker.shard.shortage().unwrap().to_string();
    assert!(why.contains("store.journal_bytes_max"), "{why}");
    let consumer = worker.attach(1).await;
    let last = worker.drained(consumer, taken).await;
    worker.accept(consumer, 0, last.offset.0);
    assert!(!worker.blocked().await, "room was given back without help");
    assert_eq!(worker.shard.shortage(), None);
    let sequence = worker.publish(b"taken".to_vec());
    assert_eq!(worker.published(sequence).await, PublishOutcome::Routed);
    worker.shard.shutdown_local().await;
}

/// It was looked at once a second: until then publishers waited for confirms and were not told why.
#[tokio::test(start_paused = true)]
async fn a_disk_without_room_for_the_next_segment_is_told_at_once() {
    let disk = SimDisk::new(31);
    let mut worker = Worker::start(&disk, 1).await;
    worker.create().await;
    let first = worker.publish(vec![7; 1024]);
    assert_eq!(worker.published(first).await, PublishOutcome::Routed);
    disk.set_faults(Faults {
        capacity_bytes: Some(disk.occupied_bytes()),
        ..Faults::default()
    });
    let mut since = Instant::now();
    loop {
        worker.publish(vec![7; 1024]);
        match worker.event().await {
            ShardEvent::Published { .. } => since = Instant::now(),
            ShardEvent::Blocked(true) => break,
            other => panic!("unexpected {other:?}"),
        }
    }
    assert!(since.elapsed() < Duration::from_millis(50), "{since:?}");
    disk.set_faults(Faults::default());
    let since = Instant::now();
    while !matches!(worker.event().await, ShardEvent::Blocked(false)) {}
    // The journal tries four times a second.
    assert!(since.elapsed() < Duration::from_millis(300), "{since:?}");
    worker.shard.shutdown_local().await;
}

/// The newest segment was deleted: the node opened with half of what it had confirmed, silently.
#[tokio::test(start_paused = true)]
async fn a_missing_newest_segment_is_refused() {
    let disk = SimDisk::new(23);
    let mut worker = Worker::start_with(&disk, 1, |setup| {
        setup.options.segment_bytes = 64 * 1024;
    })
    .await;
    worker.create().await;
    for _ in 0..100 {
        let sequence = worker.publish(vec![7; 4096]);
        assert_eq!(worker.published(sequence).await, PublishOutcome::Routed);
    }
    disk.crash();
    let dir = Path::new("shard");
    let names = disk.list(dir).unwrap();
    let newest = names
        .iter()
        .filter(|name| name.ends_with(".seg"))
        .max()
        .unwrap();
    disk.remove(&dir.join(newest)).unwrap();
    let (send, _mail) = unbounded_channel();
    let again = DataShard::start_local(setup(&disk, 2, Mailbox(send))).await;
    let refused = again
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(
        refused.contains("the newest segment is missing"),
        "{refused}"
    );
}

/// A damaged block of the index file takes its messages with it and no others, and is counted.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_of_the_index_file_is_counted() {
    let disk = SimDisk::new(19);
    let rarely = |setup: &mut DataShardSetup| setup.checkpoint_bytes = 1 << 30;
    let mut worker = Worker::start_with(&disk, 1, rarely).await;
    worker.create().await;
    let mut last = 0;
    for number in 0..600u32 {
        last = worker.publish(number.to_le_bytes().to_vec());
    }
    assert_eq!(worker.published(last).await, PublishOutcome::Routed);
    worker.shard.shutdown_local().await;
    drop(worker);
    // Three chunks of 255, 255 and 90 entries. A header comes first, then block 0, which is never used: the third block of
    // the file is the first, the fourth the middle one's.
    let index = Path::new("shard/checkpoint/index");
    disk.flip_bit(index, 3 * 4096 + 100, 3);

    let mut worker = Worker::start_with(&disk, 2, rarely).await;
    assert_eq!(worker.shard.index().damaged, 0, "nothing is read yet");
    worker.attach(1).await;
    let got = worker.deliveries(345).await;
    let offsets = got.iter().map(|delivery| delivery.offset.0);
    assert!(offsets.eq((0..255).chain(510..600)));
    worker.shard.shutdown_local().await;
    let read = worker.shard.index();
    assert_eq!((read.damaged, read.evicted), (1, 0));
    assert!(read.cached_bytes > 4096, "two chunks are at hand");
}
