//! The other side of a data shard: workers that publish, read and settle.

use anabranch_core::address::Address;
use anabranch_core::authority::{AllowAll, Principal};
use anabranch_core::dispatch::travel_units;
use anabranch_core::gateway::{Delivery, Outcome, PublishOutcome, Replay, SeekTo};
use anabranch_core::id::{
    ConnectionId, ConsumerTag, Sequence, ShardId, StreamId, VhostId, WorkerId,
};
use anabranch_core::limits::{Mode, StreamLimits};
use anabranch_core::message::{Message, Quality};
use anabranch_core::port::{
    Attach, ConsumerKey, Question, ShardEvent, ShardPort, ShardRequest, WorkerPort,
};
use anabranch_core::properties::Codecs;
use anabranch_core::shard::{ShardLimits, ShardSetup};
use anabranch_store::clock::SystemClock;
use anabranch_store::disk::real::RealDisk;
use anabranch_store::group::GroupOptions;
use anabranch_store::shard::{DataShard, DataShardSetup};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Messages of a batch.
const BATCH: u64 = 64;
/// Messages not yet confirmed, where as many are published as go.
const UNDER_WAY: u64 = 4096;

struct Mailbox(Sender<Vec<ShardEvent>>);

impl WorkerPort for Mailbox {
    fn send(&self, _: ShardId, events: Vec<ShardEvent>) {
        let _ = self.0.send(events);
    }
}

/// One of them, with at most one consumer.
pub struct Worker {
    id: WorkerId,
    shard: Arc<DataShard>,
    mail: Receiver<Vec<ShardEvent>>,
    sent: u64,
    confirmed: u64,
    requests: Vec<ShardRequest>,
    /// Events that came while an answer was waited for.
    kept: Vec<ShardEvent>,
}

/// Starts a shard with `count` workers; checkpoints as a server has them.
pub fn start(dir: &Path, count: u16) -> (Arc<DataShard>, Vec<Worker>) {
    let (mut ports, mut mails) = (Vec::new(), Vec::new());
    for id in (0..count).map(WorkerId) {
        let (send, mail) = channel();
        let port: Arc<dyn WorkerPort> = Arc::new(Mailbox(send));
        ports.push((id, port));
        mails.push((id, mail));
    }
    let setup = DataShardSetup {
        dir: dir.to_owned(),
        disk: Arc::new(RealDisk),
        clock: Arc::new(SystemClock),
        options: GroupOptions::new("figures"),
        shard: ShardSetup {
            id: ShardId(1),
            incarnation: 1,
            workers: count,
            limits: ShardLimits::default(),
            fabric: Arc::default(),
            authority: Arc::new(AllowAll),
            codecs: Codecs::default(),
        },
        workers: ports,
        low_water_bytes: 0,
        limit: None,
        checkpoint_bytes: 64 << 20,
    };
    let shard = Arc::new(DataShard::start(setup).expect("open"));
    let worker = |(id, mail)| Worker {
        id,
        shard: shard.clone(),
        mail,
        sent: 0,
        confirmed: 0,
        requests: Vec::new(),
        kept: Vec::new(),
    };
    let workers = mails.into_iter().map(worker).collect();
    (shard, workers)
}

impl Worker {
    fn consumer(&self) -> ConsumerKey {
        ConsumerKey {
            connection: ConnectionId::new(self.id, 1),
            tag: ConsumerTag(1),
        }
    }

    /// Asks and waits; what comes before and after the answer is kept.
    fn ask(&mut self, question: Question) {
        let ask = ShardRequest::Ask {
            ticket: 1,
            question: Box::new(question),
        };
        self.shard.send(self.id, vec![ask]);
        let mut answered = false;
        while !answered {
            for event in self.mail.recv().expect("events") {
                if let ShardEvent::Reply { result, .. } = event {
                    result.expect("done");
                    answered = true;
                } else {
                    self.kept.push(event);
                }
            }
        }
    }

    /// Makes a stream; `keeps`: what was read stays.
    pub fn create(&mut self, stream: StreamId, keeps: bool) {
        let mode = if keeps { Mode::Replay } else { Mode::Shared };
        self.ask(Question::CreateStream {
            stream,
            vhost: VhostId(1),
            name: Arc::from(stream.0.to_string()),
            limits: StreamLimits {
                mode,
                ..StreamLimits::default()
            },
        });
    }

    /// Reads a stream from its first message on.
    pub fn attach(&mut self, stream: StreamId, keeps: bool) {
        let replay = keeps.then(|| {
            Box::new(Replay {
                from: SeekTo::Start,
                only: None,
                subscribes: None,
            })
        });
        self.ask(Question::Attach(Attach {
            consumer: self.consumer(),
            principal: Arc::new(Principal::default()),
            vhost: Arc::from("/"),
            stream,
            exclusive: false,
            presettled: false,
            credit: 10_000,
            priority: 0,
            no_local: false,
            replay,
        }));
    }

    /// The consumer goes; what was on its way to it is forgotten.
    pub fn detach(&mut self, stream: StreamId) {
        let connection = self.consumer().connection;
        self.shard
            .send(self.id, vec![ShardRequest::Gone { connection }]);
        // Everything that is for it comes before this answer.
        self.ask(Question::Stat { stream });
        self.kept
            .retain(|event| !matches!(event, ShardEvent::Deliver { .. }));
    }

    /// Publishes one message with the next [`Worker::flush`].
    pub fn publish(&mut self, streams: &[StreamId], body: Bytes) {
        self.sent += 1;
        let message = Message {
            address: Address(Bytes::from_static(b"plant\x004\x00temperature")),
            body,
            quality: Quality::AtLeastOnce,
            ..Message::default()
        };
        self.requests.push(ShardRequest::Publish {
            sequence: Sequence(self.sent),
            streams: streams.iter().copied().collect(),
            by_topic: None,
            patient: true,
            extra: None,
            message: Arc::new(message),
        });
    }

    pub fn flush(&mut self) {
        if !self.requests.is_empty() {
            self.shard.send(self.id, std::mem::take(&mut self.requests));
        }
    }

    /// Publishes that are not confirmed.
    pub fn under_way(&self) -> u64 {
        self.sent - self.confirmed
    }

    /// Takes what came or comes within this time, settles deliveries and hands them to `take`.
    pub fn receive(&mut self, stream: StreamId, within: Duration, mut take: impl FnMut(&Delivery)) {
        let consumer = self.consumer();
        let mut events = std::mem::take(&mut self.kept);
        if events.is_empty() {
            events = match self.mail.recv_timeout(within) {
                Ok(events) => events,
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Err(RecvTimeoutError::Disconnected) => panic!("no shard any more"),
            };
        }
        for event in events {
            match event {
                ShardEvent::Published { last, outcome, .. } => {
                    assert_eq!(outcome, PublishOutcome::Routed);
                    self.confirmed = last.0;
                }
                ShardEvent::Deliver { deliveries, .. } => {
                    let Some((first, last)) = deliveries.first().zip(deliveries.last()) else {
                        continue;
                    };
                    let (first, last) = (first.offset, last.offset);
                    let units = deliveries
                        .iter()
                        .map(|delivery| travel_units(delivery.message.cost_bytes()))
                        .sum();
                    deliveries.iter().for_each(&mut take);
                    self.requests.push(ShardRequest::Drained {
                        consumer,
                        stream,
                        count: units,
                    });
                    self.requests.push(ShardRequest::Settle {
                        consumer,
                        stream,
                        first,
                        last,
                        outcome: Outcome::Accepted,
                    });
                }
                _ => {}
            }
        }
        self.flush();
    }

    /// Publishes `count` messages, as fast as they go; `consumed`: this worker's consumer takes them, too.
    pub fn publish_all(&mut self, streams: &[StreamId], body: &Bytes, count: u64, consumed: bool) {
        let mut left = count;
        self.publish_while(streams, body, consumed, || {
            let batch = BATCH.min(left);
            left -= batch;
            batch
        });
    }

    /// The same until `time` is over; says how many.
    pub fn publish_for(
        &mut self,
        streams: &[StreamId],
        body: &Bytes,
        time: Duration,
        consumed: bool,
    ) -> u64 {
        let start = Instant::now();
        let more = || if start.elapsed() < time { BATCH } else { 0 };
        self.publish_while(streams, body, consumed, more)
    }

    /// `next` says how many go next, at most a batch; 0 is the end.
    fn publish_while(
        &mut self,
        streams: &[StreamId],
        body: &Bytes,
        consumed: bool,
        mut next: impl FnMut() -> u64,
    ) -> u64 {
        let (mut count, mut delivered, mut goes_on) = (0, 0, true);
        while goes_on || self.under_way() > 0 || (consumed && delivered < count) {
            while goes_on && self.under_way() + BATCH <= UNDER_WAY {
                let batch = next();
                for _ in 0..batch {
                    self.publish(streams, body.clone());
                }
                count += batch;
                goes_on = batch > 0;
                self.flush();
            }
            if self.under_way() > 0 || (consumed && delivered < count) {
                self.receive(streams[0], Duration::MAX, |_| delivered += 1);
            }
        }
        count
    }
}
