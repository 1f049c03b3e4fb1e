//! Data and metadata shards behind their ports: confirms, deliveries, restarts, a failing disk.

use anabranch_core::address::Address;
use anabranch_core::authority::{AllowAll, Principal};
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::{Delivery, Outcome, PublishOutcome};
use anabranch_core::id::{
    ConnectionId, ConsumerTag, Offset, Sequence, ShardId, StreamId, UnixMs, VhostId, WorkerId,
};
use anabranch_core::message::{Message, Quality};
use anabranch_core::meta::{ExchangeSpec, MetaCommand, MetaReply};
use anabranch_core::port::{
    Attach, ConsumerKey, MetaPort, Question, ShardEvent, ShardPort, ShardReply, ShardRequest,
    StreamLimits, WorkerPort,
};
use anabranch_core::router::Fabric;
use anabranch_core::shard::{ShardLimits, ShardSetup};
use anabranch_store::clock::{RuntimeClock, SystemClock};
use anabranch_store::disk::real::RealDisk;
use anabranch_store::disk::sim::{Faults, SimDisk};
use anabranch_store::group::GroupOptions;
use anabranch_store::journal::WriterMode;
use anabranch_store::shard::{DataShard, DataShardSetup, MetaShard, MetaShardSetup};
use bytes::Bytes;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

const WORKER: WorkerId = WorkerId(3);
const STREAM: StreamId = StreamId(77);

struct Mailbox(UnboundedSender<Vec<ShardEvent>>);

impl WorkerPort for Mailbox {
    fn send(&self, from: ShardId, events: Vec<ShardEvent>) {
        assert_eq!(from, ShardId(1));
        let _ = self.0.send(events);
    }
}

/// A worker that waits for what it asked.
struct Worker {
    shard: DataShard,
    mail: UnboundedReceiver<Vec<ShardEvent>>,
    events: VecDeque<ShardEvent>,
    sequence: u64,
    ticket: u64,
}

fn setup(disk: &SimDisk, incarnation: u64, mailbox: Mailbox) -> DataShardSetup {
    DataShardSetup {
        dir: PathBuf::from("shard"),
        disk: Arc::new(disk.clone()),
        clock: Arc::new(RuntimeClock::new(1_000_000 * incarnation)),
        options: GroupOptions {
            segment_bytes: 16 * 1024,
            tail_bytes: 1024,
            writer: WriterMode::Local {
                latency: Duration::from_micros(200),
            },
            ..GroupOptions::new("data")
        },
        shard: ShardSetup {
            id: ShardId(1),
            incarnation,
            limits: ShardLimits::default(),
            fabric: Arc::default(),
            authority: Arc::new(AllowAll),
        },
        workers: vec![(WORKER, Arc::new(mailbox))],
        low_water_bytes: 0,
        checkpoint_bytes: 64 * 1024,
    }
}

impl Worker {
    async fn start(disk: &SimDisk, incarnation: u64) -> Worker {
        Worker::start_with(disk, incarnation, |_| {}).await
    }

    async fn start_with(
        disk: &SimDisk,
        incarnation: u64,
        change: impl FnOnce(&mut DataShardSetup),
    ) -> Worker {
        let (send, mail) = unbounded_channel();
        let mut setup = setup(disk, incarnation, Mailbox(send));
        change(&mut setup);
        let shard = DataShard::start_local(setup).await.unwrap();
        Worker {
            shard,
            mail,
            events: VecDeque::new(),
            sequence: 0,
            ticket: 0,
        }
    }

    fn send(&self, request: ShardRequest) {
        self.shard.send(WORKER, vec![request]);
    }

    async fn event(&mut self) -> ShardEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let batch = tokio::time::timeout(Duration::from_secs(30), self.mail.recv()).await;
            self.events
                .extend(batch.expect("an event within 30 s").expect("a live shard"));
        }
    }

    async fn ask(&mut self, question: Question) -> Result<ShardReply, ErrorKind> {
        self.ticket += 1;
        self.send(ShardRequest::Ask {
            ticket: self.ticket,
            question,
        });
        match self.event().await {
            ShardEvent::Reply { ticket, result } if ticket == self.ticket => {
                result.map_err(|why| why.kind)
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    fn publish(&mut self, body: Vec<u8>) -> u64 {
        self.sequence += 1;
        let message = Message {
            address: Address(Bytes::from_static(b"a")),
            body: body.into(),
            quality: Quality::AtLeastOnce,
            ..Message::default()
        };
        self.send(ShardRequest::Publish {
            sequence: Sequence(self.sequence),
            streams: [STREAM].into_iter().collect(),
            by_topic: None,
            message: Arc::new(message),
        });
        self.sequence
    }

    /// Waits until the publish is answered; earlier ones must be, in order, and alike.
    async fn published(&mut self, sequence: u64) -> PublishOutcome {
        loop {
            match self.event().await {
                ShardEvent::Published { last, outcome, .. } if last.0 == sequence => {
                    return outcome;
                }
                ShardEvent::Published { last, .. } if last.0 < sequence => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    async fn create(&mut self) {
        let limits = StreamLimits::default();
        let question = Question::CreateStream {
            stream: STREAM,
            vhost: VhostId(1),
            limits,
        };
        assert!(matches!(self.ask(question).await, Ok(ShardReply::Done)));
    }

    async fn attach(&mut self, connection: u64) -> ConsumerKey {
        let consumer = ConsumerKey {
            connection: ConnectionId::new(WORKER, connection),
            tag: ConsumerTag(1),
        };
        let attach = Attach {
            consumer,
            principal: Arc::new(Principal::default()),
            vhost: Arc::from("/"),
            stream: STREAM,
            exclusive: false,
            presettled: false,
            credit: 1000,
            priority: 0,
            no_local: false,
        };
        assert!(matches!(
            self.ask(Question::Attach(attach)).await,
            Ok(ShardReply::Done)
        ));
        consumer
    }

    async fn deliveries(&mut self, count: usize) -> Vec<Delivery> {
        let mut got = Vec::new();
        while got.len() < count {
            match self.event().await {
                ShardEvent::Deliver { deliveries, .. } => got.extend(deliveries),
                other => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(got.len(), count);
        got
    }

    fn accept(&self, consumer: ConsumerKey, first: u64, last: u64) {
        self.send(ShardRequest::Settle {
            consumer,
            stream: STREAM,
            first: Offset(first),
            last: Offset(last),
            outcome: Outcome::Accepted,
        });
    }
}

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
    tokio::time::sleep(Duration::from_millis(50)).await;
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
    tokio::time::sleep(Duration::from_secs(3)).await;
    let refused = worker.publish(b"refused".to_vec());
    assert_eq!(
        worker.published(refused).await,
        PublishOutcome::Refused(ErrorKind::Busy)
    );
    let consumer = worker.attach(1).await;
    let got = worker.deliveries(1).await;
    worker.accept(consumer, got[0].offset.0, got[0].offset.0);
    disk.set_faults(Faults::default());
    tokio::time::sleep(Duration::from_secs(3)).await;
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
