//! A journal of random records, and a shard that applies it.

use crate::node::kept;
use crate::node::{Journal, Node};
use anabranch_core::authority::{AllowAll, Authority, Principal};
use anabranch_core::death::DeathReason;
use anabranch_core::gateway::{FilterSpec, OnceKey};
use anabranch_core::id::*;
use anabranch_core::limits::StreamLimits;
use anabranch_core::message::{Message, Quality};
use anabranch_core::port::*;
use anabranch_core::properties::Codecs;
use anabranch_core::record::{
    AsJson, Change, Mark, PayloadBuilder, RECORD_HEADER_BYTES, record_bytes,
};
use anabranch_core::shard::{Shard, ShardLimits, ShardSetup};
use anabranch_core::will::SavedWill;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const VHOST: VhostId = VhostId(1);
const OUTSIDE: WorkerId = WorkerId(0x7FFE);
const CLIENTS: u64 = 5;
const QUEUES: u64 = 4;
/// Of the node whose workers publish.
const LIFE: u64 = 1;
/// Nothing ends by itself.
const FAR: u64 = 1 << 41;

/// Numbers that look random and are the same for the same seed (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % below
    }
}

pub struct World {
    memory: usize,
    pub journal: Journal,
    pub body_bytes: usize,
    /// Some messages stay for their letters, and nobody sees them.
    pub pins: bool,
    clock: u64,
    sequence: u64,
    message: u64,
    queue: u64,
    queues: BTreeSet<u64>,
    number: u64,
    /// Where the record of each message begins and ends.
    records: BTreeMap<String, (u64, u64)>,
}

fn filter(text: &str, identifier: u32) -> FilterSpec {
    FilterSpec {
        filter: text.parse().unwrap(),
        quality: Quality::AtLeastOnce,
        no_local: identifier % 2 == 1,
        retain_as_published: identifier % 3 == 1,
        identifier,
    }
}

fn principal() -> Arc<Principal> {
    Arc::new(Principal::default())
}

impl World {
    pub fn new(memory: usize) -> World {
        World {
            memory,
            journal: Journal::default(),
            body_bytes: 40,
            pins: true,
            clock: 1_000_000,
            sequence: 0,
            message: 0,
            queue: 0,
            queues: BTreeSet::new(),
            number: 0,
            records: BTreeMap::new(),
        }
    }

    pub fn shard(&self) -> Shard<Position> {
        let authority: Arc<dyn Authority> = Arc::new(AllowAll);
        Shard::new(ShardSetup {
            id: ShardId(1),
            incarnation: 77,
            workers: 1,
            limits: ShardLimits {
                index_memory_bytes: self.memory,
                ..ShardLimits::default()
            },
            // It knows the vhost, so that wills that are due wait for a worker.
            fabric: Node::new(1, 1).fabric,
            authority,
            codecs: Codecs::default(),
        })
    }

    pub fn frames(&self) -> usize {
        self.journal.frames.len()
    }

    fn now(&self) -> Now {
        Now {
            monotonic: MonotonicMs(self.clock),
            unix: UnixMs(self.clock),
        }
    }

    pub fn apply_from(&self, frame: usize, shard: &mut Shard<Position>) {
        for at in frame..self.frames() {
            let (base, payload) = &self.journal.frames[at];
            let stamp = self.journal.stamps[at];
            shard.apply(stamp, Position(*base), payload, false).unwrap();
        }
    }

    /// One that never had a checkpoint.
    pub fn replay(&self) -> Shard<Position> {
        let mut shard = self.shard();
        self.apply_from(0, &mut shard);
        shard
    }

    /// A frame of something.
    pub fn step(&mut self, dice: &mut Dice, shard: &mut Shard<Position>) {
        self.clock += dice.roll(400);
        let mut frame = PayloadBuilder::default();
        for _ in 0..=dice.roll(3) {
            self.record(dice, shard, &mut frame);
        }
        let payload = frame.take();
        if payload.is_empty() {
            return;
        }
        let base = self.journal.bytes.len() as u64;
        self.journal.bytes.extend_from_slice(&payload);
        self.journal.frames.push((base, payload.clone()));
        self.journal.stamps.push(UnixMs(self.clock));
        self.note_records(base, &payload);
        shard
            .apply(UnixMs(self.clock), Position(base), &payload, false)
            .unwrap();
    }

    fn note_records(&mut self, base: u64, payload: &Bytes) {
        let mut at = 1;
        while at < payload.len() {
            let length = record_bytes(&payload[at..at + RECORD_HEADER_BYTES]).unwrap();
            if let Ok(message) =
                anabranch_core::record::read_message(payload.slice(at..at + length))
            {
                let name = String::from_utf8_lossy(&message.body)
                    .trim_end_matches('.')
                    .to_owned();
                let begin = base + at as u64;
                self.records.insert(name, (begin, begin + length as u64));
            }
            at += length;
        }
    }

    /// A session, or one that is not there.
    fn session(&self, dice: &mut Dice, shard: &mut Shard<Position>) -> StreamId {
        let stats = self.stats(shard);
        let sessions: Vec<StreamId> = stats
            .iter()
            .filter(|stat| stat.session.is_some())
            .map(|stat| stat.stream)
            .collect();
        let none = StreamId::of_session(ShardId(1), 1 << 40);
        let nth = dice.roll(sessions.len() as u64 + 1) as usize;
        sessions.get(nth).copied().unwrap_or(none)
    }

    fn any_queue(&self, dice: &mut Dice) -> Option<u64> {
        let keys: Vec<u64> = self.queues.iter().copied().collect();
        (!keys.is_empty()).then(|| keys[dice.roll(keys.len() as u64) as usize])
    }

    fn record(&mut self, dice: &mut Dice, shard: &mut Shard<Position>, frame: &mut PayloadBuilder) {
        let change = match dice.roll(34) {
            0..=9 => {
                let count = [1, 3, 20, 300][dice.roll(4) as usize];
                for _ in 0..count {
                    self.publish(dice, shard, frame);
                }
                return;
            }
            10 | 11 if (self.queues.len() as u64) < QUEUES => {
                self.queue += 1;
                self.queues.insert(self.queue);
                Change::CreateStreamWith {
                    stream: StreamId::of_registry(self.queue),
                    vhost: VHOST,
                    name: Arc::from(format!("q{}", self.queue)),
                    limits: AsJson(StreamLimits {
                        message_ttl_ms: self.queue.is_multiple_of(3).then_some(1 << 40),
                        ..StreamLimits::default()
                    }),
                }
            }
            10..=12 if dice.roll(6) == 0 => {
                let Some(queue) = self.any_queue(dice) else {
                    return;
                };
                self.queues.remove(&queue);
                Change::DeleteStream {
                    stream: StreamId::of_registry(queue),
                    only_if: None,
                }
            }
            12 | 13 => {
                let client_id: Arc<str> = Arc::from(format!("client {}", dice.roll(CLIENTS)));
                let clean_start = dice.roll(8) == 0;
                let message = Message {
                    address: "will/x".parse().unwrap(),
                    body: Bytes::from_static(b"gone"),
                    ..Message::default()
                };
                let will = SavedWill {
                    message: Arc::new(message),
                    delay_s: 10,
                    user: None,
                };
                Change::OpenSessionWith {
                    vhost: VHOST,
                    client_id,
                    clean_start,
                    expiry_s: 1000,
                    will,
                }
            }
            14 | 15 => Change::Subscribe {
                stream: self.session(dice, shard),
                filters: vec![filter(
                    ["a/#", "a/+/x", "b/1", "#"][dice.roll(4) as usize],
                    dice.roll(4) as u32,
                )],
            },
            16 => Change::Unsubscribe {
                stream: self.session(dice, shard),
                filters: vec!["a/#".parse().unwrap()],
            },
            17 => Change::CloseSession {
                stream: self.session(dice, shard),
            },
            18 if dice.roll(4) == 0 => Change::EndSession {
                stream: self.session(dice, shard),
            },
            18 => Change::WillDue {
                stream: self.session(dice, shard),
                epoch: Epoch(1 + dice.roll(3)),
            },
            19 => Change::WillDone {
                number: 1 + dice.roll(6),
            },
            20 => Change::DropValue {
                vhost: VHOST,
                address: format!("a/{}/x", dice.roll(6)).parse().unwrap(),
            },
            21 => Change::Taken {
                stream: self.session(dice, shard),
                key: OnceKey(dice.roll(4) as u16),
            },
            22 => Change::Forgotten {
                stream: self.session(dice, shard),
                key: OnceKey(dice.roll(4) as u16),
            },
            23 => {
                let session = self.session(dice, shard);
                let (_, end) = self.extent(shard, session);
                let first = dice.roll(end + 1);
                Change::Received {
                    stream: session,
                    ranges: vec![(Offset(first), Offset(first + dice.roll(3)))],
                }
            }
            24 => Change::JoinGroup {
                group: self.group(dice),
                member: Member::Session(self.session(dice, shard)),
                client_id: Arc::from("member"),
                limits: AsJson(StreamLimits::default()),
            },
            25 if dice.roll(3) == 0 => Change::LeaveGroup {
                group: self.group(dice),
                member: Member::Session(self.session(dice, shard)),
            },
            25 => {
                let spec = filter("a/#", 2);
                Change::Membership {
                    stream: self.session(dice, shard),
                    name: Arc::from("g0"),
                    filter: spec.filter.clone(),
                    spec: (dice.roll(3) > 0).then_some(spec),
                }
            }
            26 => Change::Parted {
                number: 1 + dice.roll(5),
            },
            27 => Change::ValuesExpired {
                before: UnixMs(FAR + self.clock - dice.roll(3_000)),
            },
            28 | 29 => {
                let Some(stream) = self.some_stream(dice, shard) else {
                    return;
                };
                let (base, end) = self.extent(shard, stream);
                Change::Delivered {
                    stream,
                    until: Offset(base + dice.roll(end - base + 1)),
                }
            }
            // They end when they are empty, and come again under the same id.
            30 if dice.roll(2) == 0 => Change::DeleteStream {
                stream: StreamId::of_delayed(ShardId(1), ExchangeId(1 + dice.roll(2) as u32)),
                only_if: (dice.roll(2) == 0).then(Vec::new),
            },
            30 if dice.roll(12) == 0 => Change::Began { incarnation: LIFE },
            31 if self.pins => {
                let Some(stream) = self.some_stream(dice, shard) else {
                    return;
                };
                let (base, end) = self.extent(shard, stream);
                let first = base + dice.roll(end - base + 1);
                let last = (first + dice.roll(3)).min(end);
                let until = Offset(last + 1);
                frame.change(Mark::default(), &Change::Delivered { stream, until });
                let reason = [DeathReason::Rejected, DeathReason::Expired][dice.roll(2) as usize];
                Change::Pinned {
                    stream,
                    runs: vec![(Offset(first), Offset(last), reason)],
                }
            }
            _ => {
                let Some(stream) = self.some_stream(dice, shard) else {
                    return;
                };
                let (base, end) = self.extent(shard, stream);
                let mut ranges = Vec::new();
                let mut from = base;
                // Rarely the front: then what is behind it goes chunk by chunk.
                if dice.roll(3) > 0 {
                    from += dice.roll(20);
                }
                for _ in 0..=dice.roll(4) {
                    let length = [2, 30, 600][dice.roll(3) as usize];
                    let last = from + dice.roll(length);
                    ranges.push((Offset(from), Offset(last)));
                    from = last + 1 + dice.roll(10);
                    if from >= end {
                        break;
                    }
                }
                // As a leader does: what is settled was handed out.
                let until = Offset(from);
                frame.change(Mark::default(), &Change::Delivered { stream, until });
                match dice.roll(2) {
                    0 => Change::Settled { stream, ranges },
                    _ => Change::Purge { stream, ranges },
                }
            }
        };
        let mark = Mark {
            lane: Lane(LIFE << 16 | dice.roll(2)),
            sequence: Sequence(0),
        };
        frame.change(mark, &change);
    }

    fn group(&self, dice: &mut Dice) -> GroupKey {
        GroupKey {
            vhost: VHOST,
            name: Arc::from(format!("g{}", dice.roll(2))),
            filter: "a/#".parse().unwrap(),
        }
    }

    fn publish(
        &mut self,
        dice: &mut Dice,
        shard: &mut Shard<Position>,
        frame: &mut PayloadBuilder,
    ) {
        self.message += 1;
        self.sequence += u64::from(dice.roll(20) > 0);
        let queues = self.queues.iter().filter(|_| dice.roll(2) == 0);
        let streams: Vec<StreamId> = queues.map(|queue| StreamId::of_registry(*queue)).collect();
        let mut body = self.message.to_string();
        let length = match dice.roll(12) {
            0 => self.body_bytes * 20,
            _ => self.body_bytes,
        };
        body.extend(std::iter::repeat_n('.', length.saturating_sub(body.len())));
        let address = ["a/1/x", "a/2/y", "b/1", "c"][dice.roll(4) as usize];
        let message = Message {
            address: address.parse().unwrap(),
            body: body.into(),
            quality: [
                Quality::AtMostOnce,
                Quality::AtLeastOnce,
                Quality::ExactlyOnce,
            ][dice.roll(3) as usize],
            retain: dice.roll(4) == 0,
            published: UnixMs(self.clock),
            expires: (dice.roll(40) == 0).then_some(UnixMs(FAR + self.clock)),
            properties: vec![7; [0, 30, 400][dice.roll(3) as usize]].into(),
            ..Message::default()
        };
        let by_topic = (dice.roll(3) == 0).then_some(VHOST);
        let extra = match dice.roll(12) {
            0 => Some(Extra {
                keep: Some(VHOST),
                ..Extra::default()
            }),
            1 => {
                self.number += dice.roll(2);
                let session = StreamId::of_session(ShardId(9), 1 + dice.roll(3));
                let once = Once::Numbered {
                    session,
                    number: self.number,
                    floor: self.number.saturating_sub(3),
                };
                Some(Extra {
                    once: Some(once),
                    ..Extra::default()
                })
            }
            3 | 4 => Some(Extra {
                later: Some(Later {
                    due: UnixMs(FAR + dice.roll(1000)),
                    vhost: VHOST,
                    exchange: ExchangeId(1 + dice.roll(2) as u32),
                }),
                ..Extra::default()
            }),
            2 => Some(Extra {
                once: Some(Once::Keyed {
                    session: self.session(dice, shard),
                    key: OnceKey(dice.roll(4) as u16),
                }),
                ..Extra::default()
            }),
            _ => None,
        };
        let mark = Mark {
            lane: Lane(LIFE << 16),
            sequence: Sequence(self.sequence),
        };
        frame.publish(mark, &streams, by_topic, extra.as_ref(), &message);
    }

    fn some_stream(&self, dice: &mut Dice, shard: &mut Shard<Position>) -> Option<StreamId> {
        let stats = self.stats(shard);
        let count = stats.len() as u64;
        (count > 0).then(|| stats[dice.roll(count) as usize].stream)
    }

    /// The lowest offset that is not gone, and a place at or behind the end.
    fn extent(&self, shard: &mut Shard<Position>, stream: StreamId) -> (u64, u64) {
        let first = self
            .peek(shard, stream, 1)
            .first()
            .map(|(offset, ..)| offset.0);
        let stats = self.stats(shard);
        let stat = stats.iter().find(|stat| stat.stream == stream);
        let published = stat.map_or(0, |stat| stat.published);
        (first.unwrap_or(published), published)
    }

    fn ask(&self, shard: &mut Shard<Position>, question: Question) -> Option<ShardReply> {
        kept::ask(shard, &self.journal, question)
    }

    fn stats(&self, shard: &mut Shard<Position>) -> Vec<StreamStat> {
        kept::stats(shard, &self.journal)
    }

    fn peek(
        &self,
        shard: &mut Shard<Position>,
        stream: StreamId,
        count: u32,
    ) -> Vec<(Offset, u32, Arc<Message>)> {
        kept::peek(shard, &self.journal, stream, count)
    }

    /// Ready and unsettled messages of each stream.
    pub fn counts(&self, shard: &mut Shard<Position>) -> Vec<(StreamId, u64, u64)> {
        let stats = self.stats(shard).into_iter();
        stats
            .map(|stat| (stat.stream, stat.ready, stat.unsettled))
            .collect()
    }

    /// How many messages can be read.
    pub fn readable(&self, shard: &mut Shard<Position>) -> u64 {
        let streams: Vec<StreamId> = self.stats(shard).iter().map(|stat| stat.stream).collect();
        let read = streams
            .into_iter()
            .map(|stream| self.peek(shard, stream, u32::MAX).len() as u64);
        read.sum()
    }

    /// Where the records are of all messages that are there.
    pub fn needed(&self, shard: &mut Shard<Position>) -> Vec<(u64, u64)> {
        let streams: Vec<StreamId> = self.stats(shard).iter().map(|stat| stat.stream).collect();
        let messages = streams
            .into_iter()
            .flat_map(|stream| self.peek(shard, stream, u32::MAX));
        let names = messages.map(|(_, _, message)| {
            String::from_utf8_lossy(&message.body)
                .trim_end_matches('.')
                .to_owned()
        });
        names.map(|name| self.records[&name]).collect()
    }

    /// A consumer of every queue and group.
    pub fn attach(&self, shard: &mut Shard<Position>) {
        for (nth, stat) in (0..).zip(self.stats(shard)) {
            if stat.session.is_none() {
                let consumer = ConsumerKey {
                    connection: ConnectionId::new(OUTSIDE, 1),
                    tag: ConsumerTag(nth),
                };
                let attach = Attach {
                    replay: None,
                    consumer,
                    principal: principal(),
                    vhost: Arc::from("/"),
                    stream: stat.stream,
                    exclusive: false,
                    presettled: false,
                    credit: 700,
                    priority: 0,
                    no_local: false,
                };
                self.ask(shard, Question::Attach(attach));
            }
        }
    }

    pub fn dispatch(&self, shard: &mut Shard<Position>) {
        shard.dispatch(self.now(), &mut &self.journal);
        shard.events().for_each(drop);
    }

    /// Settles everything of every stream.
    pub fn purge(&mut self, shard: &mut Shard<Position>) {
        let mut frame = PayloadBuilder::default();
        for stat in self.stats(shard) {
            let change = Change::Settled {
                stream: stat.stream,
                ranges: vec![(Offset(0), Offset(u64::MAX - 1))],
            };
            frame.change(Mark::default(), &change);
        }
        let payload = frame.take();
        if payload.is_empty() {
            return;
        }
        let base = self.journal.bytes.len() as u64;
        self.journal.bytes.extend_from_slice(&payload);
        shard
            .apply(UnixMs(self.clock), Position(base), &payload, false)
            .unwrap();
    }
}
