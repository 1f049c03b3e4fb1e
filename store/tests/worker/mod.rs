//! A worker that waits for what it asked: the other side of a data shard in tests.
#![allow(dead_code, reason = "not every test file uses all of it")]

use anabranch_core::address::Address;
use anabranch_core::authority::{AllowAll, Principal};
use anabranch_core::dispatch::travel_units;
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::{Delivery, Outcome, PublishOutcome};
use anabranch_core::id::{
    ConnectionId, ConsumerTag, Offset, Sequence, ShardId, StreamId, VhostId, WorkerId,
};
use anabranch_core::limits::StreamLimits;
use anabranch_core::message::{Message, Quality};
use anabranch_core::port::{
    Attach, ConsumerKey, Question, ShardEvent, ShardPort, ShardReply, ShardRequest, WorkerPort,
};
use anabranch_core::properties::Codecs;
use anabranch_core::shard::{ShardLimits, ShardSetup};
use anabranch_store::clock::RuntimeClock;
use anabranch_store::disk::sim::SimDisk;
use anabranch_store::group::GroupOptions;
use anabranch_store::journal::WriterMode;
use anabranch_store::shard::{DataShard, DataShardSetup};
use bytes::Bytes;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub const WORKER: WorkerId = WorkerId(3);
pub const STREAM: StreamId = StreamId(77);

pub struct Mailbox(pub UnboundedSender<Vec<ShardEvent>>);

impl WorkerPort for Mailbox {
    fn send(&self, from: ShardId, events: Vec<ShardEvent>) {
        assert_eq!(from, ShardId(1));
        let _ = self.0.send(events);
    }
}

/// A worker that waits for what it asked.
pub struct Worker {
    pub shard: DataShard,
    pub mail: UnboundedReceiver<Vec<ShardEvent>>,
    pub events: VecDeque<ShardEvent>,
    pub sequence: u64,
    pub ticket: u64,
}

pub fn setup(disk: &SimDisk, incarnation: u64, mailbox: Mailbox) -> DataShardSetup {
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
            workers: 1,
            limits: ShardLimits::default(),
            fabric: Arc::default(),
            authority: Arc::new(AllowAll),
            codecs: Codecs::default(),
        },
        workers: vec![(WORKER, Arc::new(mailbox))],
        low_water_bytes: 0,
        limit: None,
        checkpoint_bytes: 64 * 1024,
    }
}

impl Worker {
    pub async fn start(disk: &SimDisk, incarnation: u64) -> Worker {
        Worker::start_with(disk, incarnation, |_| {}).await
    }

    pub async fn start_with(
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

    pub fn send(&self, request: ShardRequest) {
        self.shard.send(WORKER, vec![request]);
    }

    pub async fn event(&mut self) -> ShardEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let batch = tokio::time::timeout(Duration::from_secs(30), self.mail.recv()).await;
            self.events
                .extend(batch.expect("an event within 30 s").expect("a live shard"));
        }
    }

    pub async fn ask(&mut self, question: Question) -> Result<ShardReply, ErrorKind> {
        self.ticket += 1;
        self.send(ShardRequest::Ask {
            ticket: self.ticket,
            question: Box::new(question),
        });
        match self.event().await {
            ShardEvent::Reply { ticket, result } if ticket == self.ticket => {
                result.map_err(|why| why.kind)
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    pub fn publish(&mut self, body: Vec<u8>) -> u64 {
        self.publish_to(STREAM, body)
    }

    pub fn publish_to(&mut self, stream: StreamId, body: Vec<u8>) -> u64 {
        self.sequence += 1;
        let message = Message {
            address: Address(Bytes::from_static(b"a")),
            body: body.into(),
            quality: Quality::AtLeastOnce,
            ..Message::default()
        };
        self.send(ShardRequest::Publish {
            sequence: Sequence(self.sequence),
            streams: [stream].into_iter().collect(),
            by_topic: None,
            patient: false,
            extra: None,
            message: Arc::new(message),
        });
        self.sequence
    }

    /// Waits until the publish is answered; earlier ones must be, in order, and alike.
    pub async fn published(&mut self, sequence: u64) -> PublishOutcome {
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

    /// Waits until the shard has met its crashed disk: what it writes now fails, and it is the last that it says.
    pub async fn fallen(&mut self) {
        let sequence = self.publish(vec![0; 16]);
        loop {
            match self.event().await {
                ShardEvent::Published { last, outcome, .. } if last.0 >= sequence => {
                    let failed = PublishOutcome::Refused(ErrorKind::StorageFailed);
                    return assert_eq!(outcome, failed);
                }
                _ => {}
            }
        }
    }

    /// How the publish ended, or `None` when it was refused because the shard is blocked.
    pub async fn published_or_blocked(&mut self, sequence: u64) -> Option<PublishOutcome> {
        let mut blocked = false;
        loop {
            match self.event().await {
                ShardEvent::Published { last, outcome, .. } if last.0 == sequence => {
                    let refused = outcome == PublishOutcome::Refused(ErrorKind::Busy);
                    return (!(blocked && refused)).then_some(outcome);
                }
                ShardEvent::Blocked(true) => blocked = true,
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Waits to be told whether the shard is blocked.
    pub async fn blocked(&mut self) -> bool {
        match self.event().await {
            ShardEvent::Blocked(blocked) => blocked,
            other => panic!("unexpected {other:?}"),
        }
    }

    pub async fn create(&mut self) {
        let limits = StreamLimits::default();
        let question = Question::CreateStream {
            stream: STREAM,
            vhost: VhostId(1),
            name: Arc::from("q"),
            limits,
        };
        assert!(matches!(self.ask(question).await, Ok(ShardReply::Done)));
    }

    pub async fn attach(&mut self, connection: u64) -> ConsumerKey {
        self.attach_to(STREAM, connection).await
    }

    pub async fn attach_to(&mut self, stream: StreamId, connection: u64) -> ConsumerKey {
        let consumer = ConsumerKey {
            connection: ConnectionId::new(WORKER, connection),
            tag: ConsumerTag(1),
        };
        let attach = Attach {
            consumer,
            principal: Arc::new(Principal::default()),
            vhost: Arc::from("/"),
            stream,
            exclusive: false,
            presettled: false,
            credit: 1000,
            priority: 0,
            no_local: false,
            replay: None,
        };
        assert!(matches!(
            self.ask(Question::Attach(attach)).await,
            Ok(ShardReply::Done)
        ));
        consumer
    }

    pub async fn deliveries(&mut self, count: usize) -> Vec<Delivery> {
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

    /// The first of what is delivered next.
    pub async fn first_delivery(&mut self) -> Delivery {
        match self.event().await {
            ShardEvent::Deliver { deliveries, .. } => deliveries.into_iter().next().expect("one"),
            other => panic!("unexpected {other:?}"),
        }
    }

    /// The same for a consumer that hands them on as they come; gives the last one.
    pub async fn drained(&mut self, consumer: ConsumerKey, count: usize) -> Delivery {
        let mut got = 0;
        loop {
            let ShardEvent::Deliver { mut deliveries, .. } = self.event().await else {
                panic!("unexpected event")
            };
            got += deliveries.len();
            let units = deliveries.iter();
            let units = units.map(|one| travel_units(one.message.cost_bytes()));
            self.send(ShardRequest::Drained {
                consumer,
                stream: STREAM,
                count: units.sum(),
            });
            if got >= count {
                assert_eq!(got, count);
                return deliveries.pop().expect("a delivery");
            }
        }
    }

    pub fn accept(&self, consumer: ConsumerKey, first: u64, last: u64) {
        self.send(ShardRequest::Settle {
            consumer,
            stream: STREAM,
            first: Offset(first),
            last: Offset(last),
            outcome: Outcome::Accepted,
        });
    }
}
