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
//! Next: `shard/setup.rs`, `shard/intake.rs`, `shard/room.rs`; `shard/questions.rs`, `shard/settle.rs`,
//! `shard/receipts.rs`, `shard/once.rs`, `shard/frame.rs`, `shard/apply.rs` (what a committed record does),
//! `shard/deliver.rs` (handing out), `shard/levels.rs` (priorities), `shard/away.rs` (messages that are not at hand); then
//! `stream.rs`.

mod alone;
mod apply;
mod away;
mod checkpoint;
mod delay;
mod deliver;
mod ended;
mod forward;
mod frame;
mod groups;
mod hold;
mod inspect;
mod intake;
mod keyed;
mod levels;
mod limit;
mod matching;
mod modes;
mod once;
mod overdue;
mod pinned;
mod places;
mod policies;
mod questions;
mod receipts;
mod referred;
mod replay;
mod retention;
mod retry;
mod room;
mod seek;
mod settle;
mod setup;
mod sweep;
mod unsent;
mod values;
mod watch;
mod wills;

pub use crate::stream::LostRows;
pub(crate) use checkpoint::Changes;
pub use checkpoint::{
    CHECKPOINT_VERSION, Cached, CheckpointError, Damaged, Gap, Remains, Salvaged,
};
pub use inspect::{EntryPlace, IndexUse, LostRow, StreamFacts, StreamSort};
pub use intake::Store;
pub use referred::JOURNAL_PAGE_BYTES;
pub use replay::FILTER_HEADER;
pub(crate) use setup::NotYet;
pub use setup::{Bodies, Fetched, InMemory, Place, ShardLimits, ShardSetup};

use crate::address::Address;
use crate::authority::Authority;
use crate::dispatch::Reader;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::{FilterSpec, PublishOutcome};
use crate::id::{
    ConnectionId, Lane, MonotonicMs, Now, Offset, Sequence, ShardId, StreamId, UnixMs, VhostId,
    WorkerId,
};
use crate::message::Quality;
use crate::once::Heard;
use crate::outbox::Outbox;
use crate::port::{ConsumerKey, OpenSession, ShardEvent, ShardReply, ShardRequest, Ticket};
use crate::properties::Codecs;
use crate::record::{Change, Mark, PayloadBuilder};
use crate::router::Fabric;
use crate::stream::{Index, Stream, Volume};
use crate::trie::FilterTrie;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How often what was withheld is told, in milliseconds.
const WITHHELD_MS: u64 = 1000;
/// Remembered match results and verdicts; cleared when full.
pub(crate) const CACHE_ENTRIES_MAX: usize = 65_536;

/// A session whose filter matched, and what that asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Match {
    pub(crate) place: u32,
    pub(crate) identifier: u32,
    pub(crate) quality: Quality,
    pub(crate) no_local: bool,
    pub(crate) retain_as_published: bool,
}

impl Match {
    pub(crate) fn new(place: u32, spec: &FilterSpec) -> Match {
        Match {
            place,
            identifier: spec.identifier,
            quality: spec.quality,
            no_local: spec.no_local,
            retain_as_published: spec.retain_as_published,
        }
    }
}

/// Sessions' filters of one vhost, but for those that one session has alone (`shard/alone.rs`).
#[derive(Default)]
pub(crate) struct Filters {
    pub(crate) trie: FilterTrie<matching::Holders>,
    pub(crate) cache: FxHashMap<Address, Arc<[matching::Wanted]>>,
}

/// Messages that rules kept from a consumer at delivery.
#[derive(Clone, Debug)]
pub struct Withheld {
    /// How many, from whomever.
    pub count: u64,
    /// The user of the first.
    pub user: Arc<str>,
    /// The address of the first.
    pub address: Address,
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

/// See the module's text.
pub struct Shard<B: Place> {
    pub(crate) id: ShardId,
    pub(crate) incarnation: u64,
    pub(crate) limits: ShardLimits,
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) authority: Arc<dyn Authority>,
    pub(crate) codecs: Codecs,
    // Replicated state.
    pub(crate) streams: Vec<Option<Box<Stream<B>>>>,
    pub(crate) vacant: Vec<u32>,
    pub(crate) by_id: FxHashMap<StreamId, u32>,
    /// By vhost and client id.
    pub(crate) sessions: places::Places,
    pub(crate) lanes: FxHashMap<Lane, Sequence>,
    pub(crate) session_counter: u64,
    pub(crate) heard: Heard,
    wills: wills::Wills,
    pinned: pinned::Pinned,
    pub(crate) values: values::Values,
    pub(crate) groups: groups::Groups,
    // Derived.
    pub(crate) filters: FxHashMap<VhostId, Filters>,
    alone: alone::Alone,
    pub(crate) ends: BTreeSet<(UnixMs, StreamId)>,
    pub(crate) queues: Volume,
    pub(crate) sessions_hold: Volume,
    pub(crate) referred: referred::Referred,
    ended: ended::Ended<B>,
    levels: levels::Levels,
    // The leader's memory.
    pub(crate) owners: FxHashMap<(VhostId, Arc<str>), Owner>,
    pub(crate) live: FxHashMap<ConnectionId, Live>,
    pub(crate) asked: FxHashMap<(WorkerId, Ticket), OpenSession>,
    pub(crate) progress: values::Progress,
    pub(crate) reads: Vec<values::Read>,
    pub(crate) watches: watch::Watches,
    /// Workers' wishes to hear when everything routed here was sent on.
    flushes: Vec<(WorkerId, Ticket)>,
    pub(crate) builder: PayloadBuilder,
    pub(crate) settles: FxHashMap<StreamId, Vec<(Offset, Offset)>>,
    pub(crate) settles_since: Option<MonotonicMs>,
    pub(crate) receipts: receipts::Receipts,
    pub(crate) list: Vec<u32>,
    /// Something is listed that had its share of the last round.
    unfinished: bool,
    pub(crate) outbox: Outbox,
    pub(crate) verdicts: FxHashMap<(u64, Address), bool>,
    pub(crate) verdict_generation: u64,
    pub(crate) unapplied_bytes: usize,
    /// What a journalled shard's checkpoints need.
    pub(crate) index: Option<Arc<Index>>,
    frozen: Option<checkpoint::Frozen>,
    /// The last checkpoint is of a form that was one value.
    was_whole: bool,
    /// Of the policies that streams were last compared with; none since the start.
    policies_seen: Option<u64>,
    blocked: bool,
    no_room: bool,
    workers: BTreeSet<WorkerId>,
    worker_count: u16,
    forwards: forward::Forwards,
    unsent: unsent::Unsent,
    away: away::Away,
    limiter: limit::Limiter,
    delays: delay::Delays,
    retries: retry::Retries,
    waits: hold::Waits,
    sweeps: sweep::Sweeps,
    /// Readers that hold something they are to settle in time.
    watched: Vec<(StreamId, ConsumerKey)>,
    /// When its host last called.
    now: Now,
    next_tick: MonotonicMs,
    pub(crate) withheld: Option<Withheld>,
    withheld_told: MonotonicMs,
}

impl<B: Place> Shard<B> {
    /// An empty shard. A journalled one then applies its journal.
    pub fn new(setup: ShardSetup) -> Shard<B> {
        let mut shard = Shard {
            id: setup.id,
            incarnation: setup.incarnation,
            limits: setup.limits,
            fabric: setup.fabric,
            authority: setup.authority,
            codecs: setup.codecs,
            streams: Vec::new(),
            vacant: Vec::new(),
            by_id: FxHashMap::default(),
            sessions: places::Places::default(),
            lanes: FxHashMap::default(),
            session_counter: 0,
            heard: Heard::default(),
            wills: wills::Wills::default(),
            pinned: pinned::Pinned::default(),
            values: values::Values::default(),
            groups: groups::Groups::default(),
            filters: FxHashMap::default(),
            alone: alone::Alone::default(),
            ends: BTreeSet::new(),
            queues: Volume::default(),
            sessions_hold: Volume::default(),
            referred: referred::Referred::default(),
            ended: ended::Ended::default(),
            levels: levels::Levels::default(),
            owners: FxHashMap::default(),
            live: FxHashMap::default(),
            asked: FxHashMap::default(),
            progress: values::Progress::default(),
            reads: Vec::new(),
            watches: watch::Watches::default(),
            flushes: Vec::new(),
            builder: PayloadBuilder::default(),
            settles: FxHashMap::default(),
            settles_since: None,
            receipts: receipts::Receipts::default(),
            list: Vec::new(),
            unfinished: false,
            outbox: Outbox::default(),
            verdicts: FxHashMap::default(),
            verdict_generation: 0,
            unapplied_bytes: 0,
            index: (!setup.id.is_volatile())
                .then(|| Arc::new(Index::new(setup.limits.index_memory_bytes))),
            frozen: None,
            was_whole: false,
            policies_seen: None,
            blocked: false,
            no_room: false,
            workers: BTreeSet::new(),
            worker_count: setup.workers,
            forwards: forward::Forwards::default(),
            unsent: unsent::Unsent::default(),
            away: away::Away::default(),
            limiter: limit::Limiter::default(),
            delays: delay::Delays::default(),
            retries: retry::Retries::default(),
            waits: hold::Waits::default(),
            sweeps: sweep::Sweeps::default(),
            watched: Vec::new(),
            now: Now::default(),
            next_tick: MonotonicMs(0),
            withheld: None,
            withheld_told: MonotonicMs(0),
        };
        if shard.journalled() {
            shard.values.marks.begin();
            shard.heard.changes.begin();
            shard.will_changes().begin();
            shard.pinned.changes.begin();
            shard.groups.changes.begin();
            shard.referred.changes.begin();
        }
        shard
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
        self.now = now;
        if self.workers.insert(from) && self.blocked {
            self.outbox.event(from, ShardEvent::Blocked(true));
        }
        for request in requests.drain(..) {
            match request {
                ShardRequest::Publish {
                    sequence,
                    streams,
                    by_topic,
                    patient,
                    extra,
                    message,
                } => {
                    if !patient && self.is_full() {
                        if sequence.0 != 0 {
                            self.outbox.published(
                                from,
                                sequence,
                                PublishOutcome::Refused(ErrorKind::Busy),
                            );
                        }
                        continue;
                    }
                    if let Some(extra) = extra.as_deref()
                        && let Some(kind) = self.refuses_extra(extra, &message)
                    {
                        let why = PublishOutcome::Refused(kind);
                        self.outbox.published(from, sequence, why);
                        continue;
                    }
                    if message.retain {
                        if let Some(vhost) = extra.as_deref().and_then(|extra| extra.keep)
                            && !self.takes_value(vhost, &message)
                        {
                            let why = PublishOutcome::Refused(ErrorKind::QuotaExceeded);
                            self.outbox.published(from, sequence, why);
                            continue;
                        }
                        self.saw_kept(by_topic, &streams, extra.as_deref(), &message);
                    }
                    if self.refuses_whole(&streams, extra.as_deref(), &message) {
                        let why = PublishOutcome::Refused(ErrorKind::QuotaExceeded);
                        self.outbox.published(from, sequence, why);
                        continue;
                    }
                    if self.limiter.may_refuse()
                        && let Some(stream) =
                            self.must_wait_for(&streams, extra.as_deref(), &message)
                    {
                        let publish = hold::Publish {
                            from,
                            sequence,
                            streams,
                            by_topic,
                            patient,
                            extra,
                            message,
                        };
                        if let Err(kind) = self.let_wait(stream, publish) {
                            let why = PublishOutcome::Refused(kind);
                            self.outbox.published(from, sequence, why);
                        }
                        continue;
                    }
                    if self.limiter.may_refuse()
                        && let Some(takers) =
                            self.refuse_where_full(&streams, extra.as_deref(), &message)
                    {
                        let extra = extra.as_deref();
                        let mark = (from, sequence);
                        self.publish_rest(mark, &takers, by_topic, extra, &message);
                        continue;
                    }
                    self.publish(
                        from,
                        sequence,
                        &streams,
                        by_topic,
                        extra.as_deref(),
                        &message,
                    );
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
                    self.reader(stream, consumer, |reader| {
                        reader.credit = replay::credit_for(reader, credit);
                    });
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
                ShardRequest::Forwarded { id, outcome } => self.forwarded(id, outcome),
                ShardRequest::Ask { ticket, question } => {
                    self.ask(now, from, ticket, *question, bodies)
                }
            }
        }
        self.block_or_resume();
    }

    /// How many flushes of the worker that hosts this shard are waited for.
    pub fn flushes(&self) -> usize {
        self.flushes.len()
    }

    /// Everything the hosting worker had routed before the first `count` of them was sent on.
    pub fn flushed(&mut self, count: usize) {
        let done: Vec<_> = self.flushes.drain(..count).collect();
        for (from, ticket) in done {
            self.reply(from, ticket, Ok(ShardReply::Done));
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
            && !stream.id.is_delayed()
        {
            if stream.id.rank() != 0 {
                let id = stream.id;
                return self.list_whole(id);
            }
            stream.listed = true;
            self.list.push(place);
        }
    }

    /// Where the session of a client is.
    pub(crate) fn session_place(&self, vhost: VhostId, client_id: &str) -> Option<u32> {
        let hash = places::hash_of((vhost, client_id));
        self.sessions.find(hash, |place| {
            let stream = self.streams[place as usize].as_deref();
            stream.is_some_and(|stream| {
                let session = stream.session();
                stream.vhost == vhost
                    && session.is_some_and(|session| *session.client_id == *client_id)
            })
        })
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

    /// A change: at once where nothing is journalled, else by the next frame.
    pub(crate) fn change(&mut self, now: UnixMs, mark: Mark, change: Change) {
        if self.journalled() {
            self.builder.change(mark, &change);
        } else {
            self.apply_change(now, mark, change);
        }
    }

    /// Takes what there is to tell, a batch per worker.
    pub fn events(&mut self) -> impl Iterator<Item = (WorkerId, Vec<ShardEvent>)> + '_ {
        self.outbox.take()
    }

    /// What was withheld since the last answer, at most once a second: for the host's log.
    pub fn withheld(&mut self, now: Now) -> Option<Withheld> {
        if self.withheld.is_none() || now.monotonic < self.withheld_told.after(WITHHELD_MS) {
            return None;
        }
        self.withheld_told = now.monotonic;
        self.withheld.take()
    }
}
