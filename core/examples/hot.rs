//! The path of a message through a shard, without threads, sockets and disks: for a profiler, and for counting
//! instructions where clocks are not to be trusted.
//!
//! `cargo run --release -p anabranch-core --example hot [passing | settled | sessions | journalled] [MESSAGES]`; under
//! `valgrind --tool=cachegrind --cache-sim=no` the instructions are counted.

use anabranch_core::address::Address;
use anabranch_core::authority::{AllowAll, Principal};
use anabranch_core::gateway::{FilterSpec, Outcome};
use anabranch_core::id::*;
use anabranch_core::limits::StreamLimits;
use anabranch_core::message::{Message, Quality};
use anabranch_core::port::{
    Attach, ConsumerKey, OpenSession, Question, ShardEvent, ShardReply, ShardRequest,
};
use anabranch_core::properties::Codecs;
use anabranch_core::record::{RECORD_HEADER_BYTES, read_message, record_bytes};
use anabranch_core::shard::{
    Bodies, Fetched, InMemory, Place, Shard, ShardLimits, ShardSetup, Store,
};
use bytes::{Bytes, BytesMut};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

const WORKER: WorkerId = WorkerId(0);
const STREAM: StreamId = StreamId(1);
const CONSUMER: ConsumerKey = ConsumerKey {
    connection: ConnectionId(1),
    tag: ConsumerTag(1),
};
/// Messages of one round.
const BATCH: u64 = 50;
/// Rounds whose messages are handed out and not settled.
const LAG: usize = 10;
/// How many sessions each message goes to.
const SESSIONS: u64 = 10;

/// A journal of which only the last bytes are kept.
#[derive(Default)]
struct Journal {
    base: u64,
    bytes: BytesMut,
}

impl Bodies<Position> for &Journal {
    fn fetch(&mut self, place: &Position) -> Fetched {
        let rest = &self.bytes[(place.0 - self.base) as usize..];
        let length = record_bytes(&rest[..RECORD_HEADER_BYTES]).ok();
        let read = |length: usize| read_message(Bytes::copy_from_slice(&rest[..length])).ok();
        length.and_then(read).into()
    }
}

fn now(round: u64) -> Now {
    Now {
        monotonic: MonotonicMs(round),
        unix: UnixMs(1_000_000 + round),
    }
}

fn shard<B: Place>(id: ShardId, presettled: bool, bodies: &mut dyn Bodies<B>) -> Shard<B>
where
    Shard<B>: Store<B>,
{
    let mut shard = Shard::new(ShardSetup {
        id,
        incarnation: 1,
        workers: 1,
        limits: ShardLimits::default(),
        fabric: Arc::default(),
        authority: Arc::new(AllowAll),
        codecs: Codecs::default(),
    });
    let create = Question::CreateStream {
        stream: STREAM,
        vhost: VhostId(1),
        name: Arc::from("q"),
        limits: StreamLimits::default(),
    };
    let question = |question| ShardRequest::Ask {
        ticket: 1,
        question: Box::new(question),
    };
    shard.handle(now(0), WORKER, &mut vec![question(create)], bodies);
    let attach = Question::Attach(Attach {
        replay: None,
        consumer: CONSUMER,
        principal: Arc::new(Principal::default()),
        vhost: Arc::from("/"),
        stream: STREAM,
        exclusive: false,
        presettled,
        credit: 10_000,
        priority: 0,
        no_local: false,
    });
    if !id.is_volatile() {
        return shard;
    }
    shard.handle(now(0), WORKER, &mut vec![question(attach)], bodies);
    shard
}

fn message() -> Arc<Message> {
    Arc::new(Message {
        address: Address(Bytes::from_static(b"plant/4/temperature")),
        body: Bytes::from_static(&[7; 128]),
        quality: Quality::AtLeastOnce,
        ..Message::default()
    })
}

/// What was delivered is settled some rounds later.
fn answers(
    events: Vec<ShardEvent>,
    presettled: bool,
    open: &mut Vec<(Offset, Offset)>,
) -> Vec<ShardRequest> {
    let mut requests = Vec::new();
    for event in events {
        let ShardEvent::Deliver { deliveries, .. } = event else {
            continue;
        };
        let (Some(first), Some(last)) = (deliveries.first(), deliveries.last()) else {
            continue;
        };
        open.push((first.offset, last.offset));
        requests.push(ShardRequest::Drained {
            consumer: CONSUMER,
            stream: STREAM,
            count: deliveries.len() as u32,
        });
    }
    while !presettled && open.len() > LAG {
        let (first, last) = open.remove(0);
        requests.push(ShardRequest::Settle {
            consumer: CONSUMER,
            stream: STREAM,
            first,
            last,
            outcome: Outcome::Accepted,
        });
    }
    requests
}

fn volatile(messages: u64, presettled: bool) {
    let id = ShardId::volatile(WORKER);
    let mut shard = shard::<Arc<Message>>(id, presettled, &mut InMemory);
    let mut open = Vec::new();
    for round in 0..messages / BATCH {
        for _ in 0..BATCH {
            shard.take(&[STREAM], None, true, None, &message());
        }
        shard.dispatch(now(round), &mut InMemory);
        let events = shard.events().flat_map(|(_, events)| events).collect();
        let mut requests = answers(events, presettled, &mut open);
        shard.handle(now(round), WORKER, &mut requests, &mut InMemory);
    }
}

/// Every message goes to so many sessions that are bound to its address.
fn sessions(messages: u64) {
    let id = ShardId::volatile(WORKER);
    let mut shard = shard::<Arc<Message>>(id, false, &mut InMemory);
    let mut readers = HashMap::new();
    for number in 0..SESSIONS {
        let consumer = ConsumerKey {
            connection: ConnectionId(2 + number),
            tag: ConsumerTag(0),
        };
        let open = Question::OpenSession(OpenSession {
            consumer,
            principal: Arc::new(Principal::default()),
            vhost: VhostId(1),
            vhost_name: Arc::from("/"),
            client_id: Arc::from(format!("device-{number}")),
            clean_start: true,
            expiry_s: 0,
            credit: 10_000,
            will: None,
            group_consumers: ConsumerTag(1),
            here: true,
        });
        let subscribe = Question::Subscribe {
            connection: consumer.connection,
            filters: vec![FilterSpec {
                filter: "plant/#".parse().expect("a filter"),
                quality: Quality::AtLeastOnce,
                no_local: false,
                retain_as_published: false,
                identifier: 0,
            }],
            readings: Vec::new(),
        };
        // 0 is nobody's.
        let ask = |place, question| ShardRequest::Ask {
            ticket: 2 * number + place,
            question: Box::new(question),
        };
        let mut requests = vec![ask(1, open), ask(2, subscribe)];
        shard.handle(now(0), WORKER, &mut requests, &mut InMemory);
        let events = shard.events().flat_map(|(_, events)| events);
        for event in events {
            if let ShardEvent::Reply {
                result: Ok(ShardReply::Session { stream, .. }),
                ..
            } = event
            {
                readers.insert(consumer.connection, (consumer, stream.expect("it is here")));
            }
        }
    }
    let mut open = VecDeque::new();
    for round in 0..messages / BATCH {
        for _ in 0..BATCH {
            shard.take(&[], Some(VhostId(1)), true, None, &message());
        }
        shard.dispatch(now(round), &mut InMemory);
        let mut requests = Vec::new();
        for event in shard.events().flat_map(|(_, events)| events) {
            let ShardEvent::Deliver {
                connection,
                deliveries,
            } = event
            else {
                continue;
            };
            let (consumer, stream) = readers[&connection];
            let (first, last) = (
                deliveries[0].offset,
                deliveries[deliveries.len() - 1].offset,
            );
            open.push_back(ShardRequest::Settle {
                consumer,
                stream,
                first,
                last,
                outcome: Outcome::Accepted,
            });
            requests.push(ShardRequest::Drained {
                consumer,
                stream,
                count: deliveries.len() as u32,
            });
        }
        while open.len() > LAG * SESSIONS as usize {
            requests.extend(open.pop_front());
        }
        shard.handle(now(round), WORKER, &mut requests, &mut InMemory);
    }
}

fn journalled(messages: u64) {
    let mut journal = Journal::default();
    let mut shard = shard::<Position>(ShardId(1), false, &mut &journal);
    let (mut open, mut sequence, mut attached) = (Vec::new(), 0, false);
    for round in 0..messages / BATCH {
        let mut requests: Vec<ShardRequest> = Vec::new();
        for _ in 0..BATCH {
            sequence += 1;
            requests.push(ShardRequest::Publish {
                sequence: Sequence(sequence),
                streams: [STREAM].into_iter().collect(),
                by_topic: None,
                patient: true,
                extra: None,
                message: message(),
            });
        }
        shard.handle(now(round), WORKER, &mut requests, &mut &journal);
        if let Some(frame) = shard.take_frame(now(round)) {
            let base = journal.base + journal.bytes.len() as u64;
            journal.bytes.extend_from_slice(&frame);
            shard
                .apply(now(round).unix, Position(base), &frame, true)
                .expect("a frame");
        }
        if !std::mem::replace(&mut attached, true) {
            let attach = Question::Attach(Attach {
                replay: None,
                consumer: CONSUMER,
                principal: Arc::new(Principal::default()),
                vhost: Arc::from("/"),
                stream: STREAM,
                exclusive: false,
                presettled: false,
                credit: 10_000,
                priority: 0,
                no_local: false,
            });
            let mut ask = vec![ShardRequest::Ask {
                ticket: 1,
                question: Box::new(attach),
            }];
            shard.handle(now(round), WORKER, &mut ask, &mut &journal);
        }
        shard.dispatch(now(round), &mut &journal);
        let events = shard.events().flat_map(|(_, events)| events).collect();
        let mut requests = answers(events, false, &mut open);
        shard.handle(now(round), WORKER, &mut requests, &mut &journal);
        if journal.bytes.len() > 1 << 20 {
            // All but what is still to be handed out.
            journal.base += journal.bytes.len() as u64;
            journal.bytes.clear();
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let messages = arguments
        .next()
        .and_then(|count| count.parse().ok())
        .unwrap_or(1_000_000);
    match what.as_str() {
        "passing" => volatile(messages, true),
        "settled" => volatile(messages, false),
        "sessions" => sessions(messages),
        _ => journalled(messages),
    }
}
