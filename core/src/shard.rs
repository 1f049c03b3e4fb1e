//! A shard: streams, sessions and readers, as one single-threaded value.
//!
//! The same code serves two kinds. A *volatile* shard changes its state at once. A *journalled* shard
//! turns every change into a record of the next frame ([`Shard::take_frame`]) and changes state only
//! when that frame comes back committed ([`Shard::apply`]), identically on every replica; what only the
//! leader knows (readers, credit, who holds what, who owns a client id) never enters a record.
//!
//! One round of its host: any number of [`Shard::handle`] and [`Shard::apply`], then
//! [`Shard::dispatch`], then [`Shard::take_frame`] (journalled) and [`Shard::events`].
//!
//! Owns: the state, and what a request does at once.
//! Never: I/O, clocks, threads; which shard a stream belongs to (`router.rs`, `worker.rs`).
//! Next: `apply.rs` (what a committed record does), `deliver.rs` (handing out), `stream.rs`.

use crate::address::Address;
use crate::authority::Authority;
use crate::dispatch::Reader;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::{Delivery, FilterSpec, Outcome, PublishOutcome};
use crate::id::{
    ConnectionId, Lane, MonotonicMs, Now, Offset, Position, Sequence, ShardId, StreamId, UnixMs,
    VhostId, WorkerId,
};
use crate::message::Message;
use crate::outbox::Outbox;
use crate::port::{
    Attach, ConsumerKey, OpenSession, Question, ShardEvent, ShardReply, ShardRequest, StreamStat,
    Ticket,
};
use crate::record::{Change, Mark, PayloadBuilder};
use crate::router::Fabric;
use crate::stream::{Kind, Stream};
use crate::trie::FilterTrie;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Where a shard keeps messages: itself (`Arc<Message>`) or a place in the journal (`Position`).
pub trait Place: Clone + Send + 'static {
    /// The same for a message that stays a while: without the read buffer it came in.
    fn kept(&self) -> Self;
}

impl Place for Arc<Message> {
    fn kept(&self) -> Self {
        Arc::new(self.detached())
    }
}

impl Place for Position {
    fn kept(&self) -> Self {
        *self
    }
}

/// Gets a message back from its place.
pub trait Bodies<B> {
    /// The message, or `None` when it cannot be read (logged by the implementation).
    fn fetch(&mut self, place: &B) -> Option<Arc<Message>>;
}

/// [`Bodies`] of a volatile shard.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl Bodies<Arc<Message>> for InMemory {
    fn fetch(&mut self, place: &Arc<Message>) -> Option<Arc<Message>> {
        Some(place.clone())
    }
}

/// Named limits of a shard.
#[derive(Clone, Copy, Debug)]
pub struct ShardLimits {
    /// Cost of all messages of a volatile shard, in bytes; publishes are refused beyond.
    pub volatile_bytes_max: u64,
    /// Entries of all streams; publishes are refused beyond (each costs about 60 bytes of memory).
    pub entries_max: u64,
    /// Cost of one session's waiting messages, in bytes; newer ones are dropped and counted beyond.
    pub session_bytes_max: u64,
    /// Bytes handed in and not yet committed; publishers are blocked beyond, until half of it is done.
    pub parked_bytes_max: usize,
}

impl Default for ShardLimits {
    fn default() -> Self {
        ShardLimits {
            volatile_bytes_max: 256 << 20,
            entries_max: 8_000_000,
            session_bytes_max: 64 << 20,
            parked_bytes_max: 64 << 20,
        }
    }
}

/// How long settlements may wait for a frame of their own, in milliseconds.
const SETTLE_LINGER_MS: u64 = 5;
/// How often what becomes due is looked for, in milliseconds.
const TICK_MS: u64 = 500;
/// Remembered match results and verdicts; cleared when full.
pub(crate) const CACHE_ENTRIES_MAX: usize = 65_536;

/// A session's filter that matched.
#[derive(Clone, Debug)]
pub(crate) struct Match {
    pub(crate) place: u32,
    pub(crate) spec: FilterSpec,
}

/// Sessions' filters of one vhost.
#[derive(Default)]
pub(crate) struct Filters {
    pub(crate) trie: FilterTrie<Match>,
    pub(crate) cache: FxHashMap<Address, Arc<[Match]>>,
}

/// Whose client id is in use by which live connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) connection: ConnectionId,
}

/// What the leader remembers of a live connection.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) readers: SmallVec<[(StreamId, ConsumerKey); 1]>,
    pub(crate) owns: Option<(VhostId, Arc<str>)>,
    pub(crate) session: Option<StreamId>,
}

/// What a shard is made with.
pub struct ShardSetup {
    /// Which.
    pub id: ShardId,
    /// This life of the node; lanes of workers are made of it.
    pub incarnation: u64,
    /// Limits.
    pub limits: ShardLimits,
    /// Where it tells its sessions' interest.
    pub fabric: Arc<Fabric>,
    /// Who may receive.
    pub authority: Arc<dyn Authority>,
}

/// See the module's text.
pub struct Shard<B> {
    pub(crate) id: ShardId,
    pub(crate) incarnation: u64,
    pub(crate) limits: ShardLimits,
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) authority: Arc<dyn Authority>,
    // Replicated state.
    pub(crate) streams: Vec<Option<Box<Stream<B>>>>,
    pub(crate) vacant: Vec<u32>,
    pub(crate) by_id: FxHashMap<StreamId, u32>,
    pub(crate) sessions: FxHashMap<(VhostId, Arc<str>), u32>,
    pub(crate) lanes: FxHashMap<Lane, Sequence>,
    pub(crate) session_counter: u64,
    // Derived.
    pub(crate) filters: FxHashMap<VhostId, Filters>,
    pub(crate) ends: BTreeSet<(UnixMs, StreamId)>,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    // The leader's memory.
    pub(crate) owners: FxHashMap<(VhostId, Arc<str>), Owner>,
    pub(crate) live: FxHashMap<ConnectionId, Live>,
    pub(crate) asked: FxHashMap<(WorkerId, Ticket), OpenSession>,
    pub(crate) builder: PayloadBuilder,
    pub(crate) settles: FxHashMap<StreamId, Vec<(Offset, Offset)>>,
    pub(crate) settles_since: Option<MonotonicMs>,
    pub(crate) list: Vec<u32>,
    pub(crate) outbox: Outbox,
    pub(crate) verdicts: FxHashMap<(u64, Address), bool>,
    pub(crate) verdict_generation: u64,
    pub(crate) unapplied_bytes: usize,
    blocked: bool,
    no_room: bool,
    workers: BTreeSet<WorkerId>,
    next_tick: MonotonicMs,
    pub(crate) refused_receives: u64,
}

impl<B: Place> Shard<B> {
    /// An empty shard. A journalled one then applies its journal.
    pub fn new(setup: ShardSetup) -> Shard<B> {
        Shard {
            id: setup.id,
            incarnation: setup.incarnation,
            limits: setup.limits,
            fabric: setup.fabric,
            authority: setup.authority,
            streams: Vec::new(),
            vacant: Vec::new(),
            by_id: FxHashMap::default(),
            sessions: FxHashMap::default(),
            lanes: FxHashMap::default(),
            session_counter: 0,
            filters: FxHashMap::default(),
            ends: BTreeSet::new(),
            entries: 0,
            bytes: 0,
            owners: FxHashMap::default(),
            live: FxHashMap::default(),
            asked: FxHashMap::default(),
            builder: PayloadBuilder::default(),
            settles: FxHashMap::default(),
            settles_since: None,
            list: Vec::new(),
            outbox: Outbox::default(),
            verdicts: FxHashMap::default(),
            verdict_generation: 0,
            unapplied_bytes: 0,
            blocked: false,
            no_room: false,
            workers: BTreeSet::new(),
            next_tick: MonotonicMs(0),
            refused_receives: 0,
        }
    }

    /// Which shard.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// The lane of a worker in this life of the node.
    pub fn lane(&self, worker: WorkerId) -> Lane {
        Lane((self.incarnation << 16) | u64::from(worker.0))
    }

    /// The worker of a lane, when it is of this life of the node.
    pub(crate) fn worker_of(&self, lane: Lane) -> Option<WorkerId> {
        (lane.0 >> 16 == self.incarnation & 0xFFFF_FFFF_FFFF).then_some(WorkerId(lane.0 as u16))
    }

    pub(crate) fn journalled(&self) -> bool {
        !self.id.is_volatile()
    }

    /// To be called once before the first request of a journalled shard: records the new life.
    pub fn begin(&mut self) {
        let change = Change::Began {
            incarnation: self.incarnation,
        };
        self.builder.change(Mark::default(), &change);
    }

    /// Takes a batch of requests of one worker, in order.
    pub fn handle(
        &mut self,
        now: Now,
        from: WorkerId,
        requests: &mut Vec<ShardRequest>,
        bodies: &mut dyn Bodies<B>,
    ) where
        Self: Store<B>,
    {
        if self.workers.insert(from) && self.blocked {
            self.outbox.event(from, ShardEvent::Blocked(true));
        }
        for request in requests.drain(..) {
            match request {
                ShardRequest::Publish {
                    sequence,
                    streams,
                    by_topic,
                    message,
                } => {
                    if self.is_full() {
                        if sequence.0 != 0 {
                            self.outbox.published(
                                from,
                                sequence,
                                PublishOutcome::Refused(ErrorKind::Busy),
                            );
                        }
                        continue;
                    }
                    self.publish(from, sequence, &streams, by_topic, &message);
                }
                ShardRequest::Settle {
                    consumer,
                    stream,
                    first,
                    last,
                    outcome,
                } => {
                    self.settle(now, consumer, stream, first, last, outcome);
                }
                ShardRequest::Credit {
                    consumer,
                    stream,
                    credit,
                } => {
                    self.reader(stream, consumer, |reader| reader.credit = credit);
                }
                ShardRequest::Drained {
                    consumer,
                    stream,
                    count,
                } => {
                    self.reader(stream, consumer, |reader| {
                        reader.travelling = reader.travelling.saturating_sub(count)
                    });
                }
                ShardRequest::Gone { connection } => self.gone(now, connection),
                ShardRequest::Ask { ticket, question } => {
                    self.ask(now, from, ticket, question, bodies)
                }
            }
        }
        self.block_or_resume();
    }

    /// The host says whether there is room to take publishes (a disk that is nearly full has none).
    pub fn set_room(&mut self, room: bool) {
        self.no_room = !room;
        self.block_or_resume();
    }

    fn is_full(&self) -> bool {
        self.no_room
            || self.entries >= self.limits.entries_max
            || (!self.journalled() && self.bytes >= self.limits.volatile_bytes_max)
    }

    /// Whether enough has drained to take publishes again.
    fn has_drained(&self) -> bool {
        let bytes_max = self.limits.volatile_bytes_max;
        !self.no_room
            && self.entries < self.limits.entries_max / 10 * 9
            && (self.journalled() || self.bytes < bytes_max / 10 * 9)
    }

    pub(crate) fn block_or_resume(&mut self) {
        let parked = self.unapplied_bytes + self.builder.len();
        if !self.blocked && (parked > self.limits.parked_bytes_max || self.is_full()) {
            self.tell_blocked(true);
        } else if self.blocked && parked < self.limits.parked_bytes_max / 2 && self.has_drained() {
            self.tell_blocked(false);
        }
    }

    fn tell_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
        for worker in &self.workers {
            self.outbox.event(*worker, ShardEvent::Blocked(blocked));
        }
    }

    pub(crate) fn reply(
        &mut self,
        to: WorkerId,
        ticket: Ticket,
        result: Result<ShardReply, Refusal>,
    ) {
        self.outbox.event(to, ShardEvent::Reply { ticket, result });
    }

    pub(crate) fn list(&mut self, place: u32) {
        if let Some(Some(stream)) = self.streams.get_mut(place as usize)
            && !stream.listed
        {
            stream.listed = true;
            self.list.push(place);
        }
    }

    pub(crate) fn stream_mut(&mut self, id: StreamId) -> Option<&mut Stream<B>> {
        let place = *self.by_id.get(&id)?;
        self.streams[place as usize].as_deref_mut()
    }

    fn reader(&mut self, stream: StreamId, key: ConsumerKey, change: impl FnOnce(&mut Reader)) {
        let Some(&place) = self.by_id.get(&stream) else {
            return;
        };
        if let Some(stream) = self.streams[place as usize].as_deref_mut()
            && let Some(reader) = stream.readers.find(key)
        {
            change(reader);
            if stream.has_next() {
                self.list(place);
            }
        }
    }

    /// One settled offset: at once where nothing is journalled, else by the next frame.
    pub(crate) fn dismiss(&mut self, stream: &mut Stream<B>, offset: u64) {
        let before = stream.bytes();
        if self.journalled() {
            stream.leave(offset);
            let ranges = self.settles.entry(stream.id).or_default();
            match ranges.last_mut() {
                Some((_, last)) if last.0 + 1 == offset => *last = Offset(offset),
                _ => ranges.push((Offset(offset), Offset(offset))),
            }
        } else {
            stream.remove(offset);
            self.entries = self.entries.saturating_sub(1);
        }
        self.bytes -= before - stream.bytes();
    }

    fn settle(
        &mut self,
        now: Now,
        key: ConsumerKey,
        id: StreamId,
        first: Offset,
        last: Offset,
        outcome: Outcome,
    ) {
        let Some(&place) = self.by_id.get(&id) else {
            return;
        };
        let Some(mut stream) = self.streams[place as usize].take() else {
            return;
        };
        if let Some(number) = stream.readers.find(key).map(|reader| reader.number) {
            let mut count = 0;
            let top = last.0.min(stream.end().saturating_sub(1));
            for offset in first.0..=top {
                if !stream.is_held_by(offset, number) {
                    continue;
                }
                count += 1;
                match outcome {
                    Outcome::Released => stream.release(offset),
                    Outcome::Accepted => {
                        stream.tally.settled += 1;
                        self.dismiss(&mut stream, offset);
                    }
                    Outcome::Rejected => {
                        stream.tally.dropped += 1;
                        self.dismiss(&mut stream, offset);
                    }
                }
            }
            let spent = stream.readers.find(key).is_some_and(|reader| {
                reader.held = reader.held.saturating_sub(count);
                !reader.attached && reader.held == 0
            });
            if spent {
                stream.readers.remove(key);
                if let Some(live) = self.live.get_mut(&key.connection) {
                    live.readers.retain(|(_, held)| *held != key);
                }
            }
        }
        self.settles_since.get_or_insert(now.monotonic);
        let more = stream.has_next();
        self.streams[place as usize] = Some(stream);
        if more {
            self.list(place);
        }
    }

    fn gone(&mut self, now: Now, connection: ConnectionId) {
        self.asked
            .retain(|_, open| open.consumer.connection != connection);
        let Some(live) = self.live.remove(&connection) else {
            return;
        };
        for (id, key) in live.readers {
            self.detach(id, key, true);
        }
        if let Some(owned) = live.owns
            && self
                .owners
                .get(&owned)
                .is_some_and(|owner| owner.connection == connection)
        {
            self.owners.remove(&owned);
        }
        if let Some(id) = live.session {
            self.close_session(now.unix, id, Some(connection));
        }
    }

    /// A session's connection ended: it expires from now on, or ends at once.
    /// Not while another connection than this one has it.
    pub(crate) fn close_session(
        &mut self,
        now: UnixMs,
        id: StreamId,
        connection: Option<ConnectionId>,
    ) {
        let Some(session) = self.stream_mut(id).and_then(Stream::session_mut) else {
            return;
        };
        if session.live.is_some() && session.live != connection {
            return;
        }
        session.live = None;
        let change = match session.expiry_s {
            0 => Change::EndSession { stream: id },
            _ => Change::CloseSession { stream: id },
        };
        self.change(now, Mark::default(), change);
    }

    /// Takes a reader off; with `all` what it holds goes back too.
    fn detach(&mut self, id: StreamId, key: ConsumerKey, all: bool) {
        let Some(&place) = self.by_id.get(&id) else {
            return;
        };
        let Some(stream) = self.streams[place as usize].as_deref_mut() else {
            return;
        };
        let Some(reader) = stream.readers.find(key) else {
            return;
        };
        let was_attached = std::mem::replace(&mut reader.attached, false);
        let (number, holds) = (reader.number, reader.held > 0);
        if all {
            stream.release_all(number);
        }
        if all || !holds {
            stream.readers.remove(key);
        }
        let unused = was_attached && stream.limits.auto_delete && stream.readers.attached() == 0;
        let more = stream.has_next();
        if more {
            self.list(place);
        }
        if unused {
            self.outbox
                .event(key.connection.worker(), ShardEvent::Unused { stream: id });
        }
    }

    fn ask(
        &mut self,
        now: Now,
        from: WorkerId,
        ticket: Ticket,
        question: Question,
        bodies: &mut dyn Bodies<B>,
    ) where
        Self: Store<B>,
    {
        let mark = Mark {
            lane: self.lane(from),
            sequence: Sequence(ticket),
        };
        let result = match question {
            Question::CreateStream {
                stream,
                vhost,
                limits,
            } => {
                return self.change(
                    now.unix,
                    mark,
                    Change::CreateStream {
                        stream,
                        vhost,
                        limits,
                    },
                );
            }
            Question::DeleteStream {
                stream,
                if_unused,
                if_empty,
            } => {
                let used = self
                    .stream_mut(stream)
                    .is_some_and(|stream| stream.readers.attached() > 0);
                if !(if_unused && used) {
                    return self.change(now.unix, mark, Change::DeleteStream { stream, if_empty });
                }
                Err(Refusal::new(ErrorKind::InUse, "the queue has consumers"))
            }
            Question::Purge { stream: id } => match self.stream_mut(id) {
                Some(stream) => {
                    let before = stream.bytes();
                    let ranges = stream.leave_ready();
                    let freed = before - stream.bytes();
                    self.bytes -= freed;
                    return self.change(now.unix, mark, Change::Purge { stream: id, ranges });
                }
                None => Err(no_stream()),
            },
            Question::Stat { stream } => {
                self.drop_expired(now.unix, stream);
                match self.stream_mut(stream) {
                    Some(stream) => Ok(ShardReply::Stat(stat(stream))),
                    None => Err(no_stream()),
                }
            }
            Question::StatAll => {
                let all = self
                    .streams
                    .iter()
                    .flatten()
                    .map(|stream| stat(stream))
                    .collect();
                Ok(ShardReply::Stats(all))
            }
            Question::Peek { stream, count } => match self.stream_mut(stream) {
                Some(stream) => {
                    let places: Vec<_> = stream
                        .present()
                        .take(count as usize)
                        .map(|(offset, tries, entry)| (offset, tries, entry.body.clone()))
                        .collect();
                    let read = places.iter().filter_map(|(offset, tries, body)| {
                        Some((Offset(*offset), *tries, bodies.fetch(body)?))
                    });
                    Ok(ShardReply::Messages(read.collect()))
                }
                None => Err(no_stream()),
            },
            Question::Attach(attach) => self.attach(attach).map(|()| ShardReply::Done),
            Question::Detach { consumer, stream } => {
                self.detach(stream, consumer, false);
                self.outbox.settle_order(consumer.connection);
                Ok(ShardReply::Done)
            }
            Question::Get {
                stream,
                consumer,
                principal,
                vhost,
                presettled,
            } => {
                self.drop_expired(now.unix, stream);
                self.get(stream, consumer, principal, vhost, presettled, bodies)
            }
            Question::OpenSession(open) => return self.open_session(now, from, ticket, open),
            Question::SessionExpiry {
                connection,
                expiry_s,
            } => match self.session_of(connection) {
                Some(stream) => {
                    return self.change(now.unix, mark, Change::SessionExpiry { stream, expiry_s });
                }
                None => Err(no_session()),
            },
            Question::Subscribe {
                connection,
                filters,
            } => match self.session_of(connection) {
                Some(stream) => {
                    return self.change(now.unix, mark, Change::Subscribe { stream, filters });
                }
                None => Err(no_session()),
            },
            Question::Unsubscribe {
                connection,
                filters,
            } => match self.session_of(connection) {
                Some(stream) => {
                    return self.change(now.unix, mark, Change::Unsubscribe { stream, filters });
                }
                None => Err(no_session()),
            },
            Question::DeleteSession { vhost, client_id } => {
                let found = self.sessions.get(&(vhost, client_id)).copied();
                match found.and_then(|place| self.streams[place as usize].as_deref()) {
                    Some(stream)
                        if stream
                            .session()
                            .is_some_and(|session| session.live.is_none()) =>
                    {
                        let change = Change::EndSession { stream: stream.id };
                        return self.change(now.unix, mark, change);
                    }
                    Some(_) => Err(Refusal::new(
                        ErrorKind::InUse,
                        "the session has a live connection",
                    )),
                    None => Ok(ShardReply::Count(0)),
                }
            }
        };
        self.reply(from, ticket, result);
    }

    fn session_of(&self, connection: ConnectionId) -> Option<StreamId> {
        self.live.get(&connection).and_then(|live| live.session)
    }

    fn attach(&mut self, attach: Attach) -> Result<(), Refusal> {
        let receives_all = self.receives_all(&attach.principal, &attach.vhost);
        let stream = self.stream_mut(attach.stream).ok_or_else(no_stream)?;
        let others = stream.readers.attached() > 0;
        if stream.readers.exclusive() || (attach.exclusive && others) {
            return Err(Refusal::new(
                ErrorKind::SecondConsumer,
                "the queue has a consumer and one of the two is exclusive",
            ));
        }
        stream.readers.add(Reader {
            number: 0,
            key: attach.consumer,
            principal: attach.principal,
            vhost: attach.vhost,
            presettled: attach.presettled,
            exclusive: attach.exclusive,
            no_local: attach.no_local,
            priority: attach.priority,
            credit: attach.credit,
            held: 0,
            travelling: 0,
            attached: true,
            receives_all,
        });
        stream.recall_aside();
        let live = self.live.entry(attach.consumer.connection).or_default();
        live.readers.push((attach.stream, attach.consumer));
        if let Some(&place) = self.by_id.get(&attach.stream) {
            self.list(place);
        }
        Ok(())
    }

    fn get(
        &mut self,
        id: StreamId,
        key: ConsumerKey,
        principal: Arc<crate::authority::Principal>,
        vhost: Arc<str>,
        presettled: bool,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<ShardReply, Refusal> {
        let receives_all = self.receives_all(&principal, &vhost);
        let place = *self.by_id.get(&id).ok_or_else(no_stream)?;
        let mut stream = self.streams[place as usize].take().ok_or_else(no_stream)?;
        let mut got = None;
        while let Some(offset) = stream.next() {
            let Some(entry) = stream.entry(offset).cloned() else {
                break;
            };
            let Some(message) = bodies.fetch(&entry.body) else {
                break;
            };
            if entry.by_topic
                && !receives_all
                && !self.may_receive(&principal, &vhost, &message.address)
            {
                self.refused_receives += 1;
                stream.set_aside(offset);
                continue;
            }
            let delivery = |attempt| Delivery {
                consumer: key.tag,
                offset: Offset(offset),
                attempt,
                quality: entry.quality,
                retain: entry.retain,
                identifier: entry.identifier,
                message: message.clone(),
            };
            if presettled {
                let attempt = stream.attempts(offset) + 1;
                stream.tally.delivered += 1;
                stream.tally.settled += 1;
                self.dismiss(&mut stream, offset);
                got = Some(delivery(attempt));
            } else {
                if stream.readers.find(key).is_none() {
                    stream.readers.add(holder(key, principal, vhost));
                    self.live
                        .entry(key.connection)
                        .or_default()
                        .readers
                        .push((id, key));
                }
                let number = stream.readers.find(key).map_or(0, |reader| {
                    reader.held += 1;
                    reader.number
                });
                got = Some(delivery(stream.hold(offset, number)));
            }
            break;
        }
        stream.recall_aside();
        let ready = stream.ready();
        self.streams[place as usize] = Some(stream);
        Ok(ShardReply::Got(got, ready))
    }

    fn open_session(&mut self, now: Now, from: WorkerId, ticket: Ticket, open: OpenSession) {
        let connection = open.consumer.connection;
        let name = (open.vhost, open.client_id.clone());
        let before = self.owners.insert(name.clone(), Owner { connection });
        if let Some(before) = before.filter(|before| before.connection != connection) {
            self.outbox.event(
                before.connection.worker(),
                ShardEvent::Displaced {
                    connection: before.connection,
                },
            );
            self.displace(before.connection);
        }
        self.live.entry(connection).or_default().owns = Some(name.clone());
        let exists = self.sessions.contains_key(&name);
        let keep = open.here || open.expiry_s > 0 || (exists && !open.clean_start);
        if !keep && !exists {
            return self.reply(
                from,
                ticket,
                Ok(ShardReply::Session {
                    present: false,
                    stream: None,
                    filters: Vec::new(),
                }),
            );
        }
        let mark = Mark {
            lane: self.lane(from),
            sequence: Sequence(ticket),
        };
        if keep {
            let change = Change::OpenSession {
                vhost: open.vhost,
                client_id: open.client_id.clone(),
                clean_start: open.clean_start,
                expiry_s: open.expiry_s,
            };
            self.asked.insert((from, ticket), open);
            self.change(now.unix, mark, change);
        } else if let Some(stream) = self
            .sessions
            .get(&name)
            .and_then(|place| self.streams[*place as usize].as_deref())
        {
            let id = stream.id;
            self.change(now.unix, Mark::default(), Change::EndSession { stream: id });
            self.reply(
                from,
                ticket,
                Ok(ShardReply::Session {
                    present: false,
                    stream: None,
                    filters: Vec::new(),
                }),
            );
        }
    }

    /// An old connection of a client loses its session: what it holds goes back, it gets nothing more.
    fn displace(&mut self, connection: ConnectionId) {
        self.asked
            .retain(|_, open| open.consumer.connection != connection);
        let Some(live) = self.live.remove(&connection) else {
            return;
        };
        for (id, key) in live.readers {
            self.detach(id, key, true);
        }
        if let Some(session) = live
            .session
            .and_then(|id| self.stream_mut(id))
            .and_then(Stream::session_mut)
        {
            session.live = None;
        }
    }

    /// A change: at once where nothing is journalled, else by the next frame.
    pub(crate) fn change(&mut self, now: UnixMs, mark: Mark, change: Change) {
        if self.journalled() {
            self.builder.change(mark, &change);
        } else {
            self.apply_change(now, mark, change);
        }
    }

    /// Takes the payload of the next frame, if there is something for one. Settlements alone wait up to
    /// [`SETTLE_LINGER_MS`] for company.
    pub fn take_frame(&mut self, now: Now) -> Option<Bytes> {
        let due = self
            .settles_since
            .is_some_and(|since| now.monotonic >= since.after(SETTLE_LINGER_MS));
        if self.builder.is_empty() && !due {
            return None;
        }
        self.settles_since = None;
        for (stream, ranges) in std::mem::take(&mut self.settles) {
            let Some(found) = self.stream_mut(stream) else {
                continue;
            };
            // The cursor first: a settled offset lies below it.
            if found.cursor() > found.cursor_known {
                found.cursor_known = found.cursor();
                let until = Offset(found.cursor());
                let change = Change::Delivered { stream, until };
                self.builder.change(Mark::default(), &change);
            }
            if !ranges.is_empty() {
                let change = Change::Settled { stream, ranges };
                self.builder.change(Mark::default(), &change);
            }
        }
        if self.builder.is_empty() {
            return None;
        }
        let payload = self.builder.take();
        self.unapplied_bytes += payload.len();
        Some(payload)
    }

    /// Bytes waiting for the next frame.
    pub fn pending_bytes(&self) -> usize {
        self.builder.len()
    }

    /// When [`Shard::timeout`] wants to be called.
    pub fn poll_timeout(&self) -> MonotonicMs {
        match self.settles_since {
            Some(since) if self.journalled() => since.after(SETTLE_LINGER_MS).min(self.next_tick),
            _ => self.next_tick,
        }
    }

    /// Looks for what has become due.
    pub fn timeout(&mut self, now: Now) {
        if now.monotonic < self.next_tick {
            return;
        }
        self.next_tick = now.monotonic.after(TICK_MS);
        while let Some(&(end, id)) = self.ends.first() {
            if end > now.unix {
                break;
            }
            self.ends.pop_first();
            let due = self
                .stream_mut(id)
                .and_then(|stream| stream.session()?.ends());
            if due.is_some_and(|due| due <= now.unix) {
                self.change(now.unix, Mark::default(), Change::EndSession { stream: id });
            }
        }
        if self.authority.generation() != self.verdict_generation {
            self.renew_rights();
        }
        if !self.settles.is_empty() {
            self.settles_since.get_or_insert(now.monotonic);
        }
        self.block_or_resume();
    }

    /// The journal failed for good: every open question is answered so, and nothing is taken any more by
    /// the host.
    pub fn fail(&mut self, requests: &mut Vec<ShardRequest>, from: WorkerId) {
        for request in requests.drain(..) {
            match request {
                ShardRequest::Publish { sequence, .. } => {
                    self.outbox.published(
                        from,
                        sequence,
                        PublishOutcome::Refused(ErrorKind::StorageFailed),
                    );
                }
                ShardRequest::Ask { ticket, .. } => {
                    let why = "the journal of this shard failed; restart the node after looking at its disk";
                    self.reply(
                        from,
                        ticket,
                        Err(Refusal::new(ErrorKind::StorageFailed, why)),
                    );
                }
                _ => {}
            }
        }
    }

    /// Takes what there is to tell, a batch per worker.
    pub fn events(&mut self) -> impl Iterator<Item = (WorkerId, Vec<ShardEvent>)> + '_ {
        self.outbox.take()
    }

    /// Deliveries refused to a consumer because it may not receive their address.
    pub fn refused_receives(&self) -> u64 {
        self.refused_receives
    }
}

/// How a kind of shard takes a publish.
pub trait Store<B> {
    /// Takes it: stores it now or puts it into the next frame.
    fn publish(
        &mut self,
        from: WorkerId,
        sequence: Sequence,
        streams: &[StreamId],
        by_topic: Option<VhostId>,
        message: &Arc<Message>,
    );
}

impl Store<Arc<Message>> for Shard<Arc<Message>> {
    fn publish(
        &mut self,
        from: WorkerId,
        sequence: Sequence,
        streams: &[StreamId],
        by_topic: Option<VhostId>,
        message: &Arc<Message>,
    ) {
        let outcome = self.store(streams, by_topic, message, message);
        // 0: nobody waits for the result.
        if sequence.0 != 0 {
            self.outbox.published(from, sequence, outcome);
        }
    }
}

impl Shard<Arc<Message>> {
    /// Takes a publish of the worker that hosts this shard, and says at once how it ended.
    pub fn take(
        &mut self,
        streams: &[StreamId],
        by_topic: Option<VhostId>,
        message: &Arc<Message>,
    ) -> PublishOutcome {
        if self.is_full() {
            self.workers.insert(self.id.host());
            self.block_or_resume();
            return PublishOutcome::Refused(ErrorKind::Busy);
        }
        self.store(streams, by_topic, message, message)
    }
}

impl Store<Position> for Shard<Position> {
    fn publish(
        &mut self,
        from: WorkerId,
        sequence: Sequence,
        streams: &[StreamId],
        by_topic: Option<VhostId>,
        message: &Arc<Message>,
    ) {
        let mark = Mark {
            lane: self.lane(from),
            sequence,
        };
        self.builder.publish(mark, streams, by_topic, message);
    }
}

fn no_stream() -> Refusal {
    Refusal::new(ErrorKind::NotFound, "the queue is gone")
}

fn no_session() -> Refusal {
    Refusal::new(ErrorKind::NotFound, "the connection has no session")
}

fn holder(
    key: ConsumerKey,
    principal: Arc<crate::authority::Principal>,
    vhost: Arc<str>,
) -> Reader {
    Reader {
        number: 0,
        key,
        principal,
        vhost,
        presettled: false,
        exclusive: false,
        no_local: false,
        priority: 0,
        credit: 0,
        held: 0,
        travelling: 0,
        attached: false,
        receives_all: false,
    }
}

fn stat<B: Clone>(stream: &Stream<B>) -> StreamStat {
    let session = stream.session();
    StreamStat {
        stream: stream.id,
        vhost: stream.vhost,
        session: session.map(|session| session.client_id.clone()),
        live: session.is_some_and(|session| session.live.is_some()),
        filters: session
            .map(|session| session.filters.clone())
            .unwrap_or_default(),
        ready: stream.ready(),
        unsettled: stream.held(),
        consumers: stream.readers.attached() as u32,
        bytes: stream.bytes(),
        published: stream.tally.published,
        delivered: stream.tally.delivered,
        settled: stream.tally.settled,
        dropped: stream.tally.dropped,
    }
}

impl<B> Stream<B> {
    /// Whether it is a queue.
    pub fn is_queue(&self) -> bool {
        matches!(self.kind, Kind::Queue)
    }
}
