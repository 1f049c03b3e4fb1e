//! What the limits of a stream do: which of its messages are dropped and when, which publishes it refuses, and when
//! it was not used for too long.
//!
//! Only the leader decides, for only it knows what is ready; that a message leaves is then a record like any
//! settlement. What ends when is replicated, for time is the frame's.
//!
//! Owns: dropping for a reason, the list of what becomes due, refusals.
//! Never: how a dropped message is sent on (`forward.rs`).
//! Next: `limits.rs`, which says what can be asked; `stream/bounds.rs`.

use super::deliver::ended;
use super::forward::Errand;
use super::questions::no_stream;
use super::{Place, Shard, Store};
use crate::death::DeathReason;
use crate::error::ErrorKind;
use crate::gateway::PublishOutcome;
use crate::id::{MonotonicMs, Now, Offset, Sequence, StreamId, UnixMs, VhostId, WorkerId};
use crate::limits::{Mode, Overflow, StreamLimits};
use crate::message::Message;
use crate::port::{ConsumerKey, Extra, ShardEvent, ShardReply};
use crate::record::Mark;
use crate::stream::{Bounds, Stream};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is due is looked at no more often than this, in milliseconds.
const DUE_MS: u64 = 20;
/// Whether streams are still used is looked at no more often than this, in milliseconds.
const USES_MS: u64 = 50;

/// What a shard remembers for the limits of all its streams.
#[derive(Debug, Default)]
pub(crate) struct Limiter {
    /// When the first ready message of a stream ends.
    due: BTreeSet<(UnixMs, StreamId)>,
    due_at: Option<MonotonicMs>,
    /// Streams that refuse publishes when they are full.
    refusing: FxHashSet<StreamId>,
    /// Publishes that some stream refused while others took them, until those are stored.
    refused: FxHashSet<(WorkerId, Sequence)>,
    /// Streams that go when they are not used, and when they last were; absent until somebody looks.
    uses: FxHashMap<StreamId, Option<MonotonicMs>>,
    uses_at: Option<MonotonicMs>,
}

impl Limiter {
    /// Whether any stream may refuse a publish.
    pub(super) fn may_refuse(&self) -> bool {
        !self.refusing.is_empty()
    }

    /// When something is to be looked at.
    pub(super) fn wake_at(&self) -> Option<MonotonicMs> {
        match (self.due_at, self.uses_at) {
            (Some(due), Some(uses)) => Some(due.min(uses)),
            (due, uses) => due.or(uses),
        }
    }

    /// A stream came, or its limits changed.
    pub(super) fn watch<B: Place>(&mut self, stream: &Stream<B>) {
        match stream.limits.refuses() {
            true => self.refusing.insert(stream.id),
            false => self.refusing.remove(&stream.id),
        };
        match stream.limits.expires_ms.filter(|_| stream.is_queue()) {
            Some(_) => {
                self.uses.entry(stream.id).or_default();
                self.uses_at = Some(MonotonicMs(0));
            }
            None => {
                self.uses.remove(&stream.id);
            }
        }
    }

    /// A stream is gone.
    pub(super) fn forget(&mut self, id: StreamId, bounds: &Bounds) {
        self.due.remove(&(bounds.due, id));
        self.refusing.remove(&id);
        self.uses.remove(&id);
    }

    pub(super) fn arm(&mut self, id: StreamId, bounds: &mut Bounds, due: UnixMs) {
        if bounds.due != due {
            self.due.remove(&(bounds.due, id));
            bounds.due = due;
            if due.0 != 0 {
                self.due.insert((due, id));
            }
        }
    }
}

/// When a message ends that a stream takes in at `clock`: 0 is never.
pub(super) fn end_of(message: &Message, limits: &StreamLimits, clock: UnixMs) -> UnixMs {
    if limits.mode == Mode::Replay {
        return UnixMs(0);
    }
    let own = message.expires.unwrap_or_default();
    match limits.message_ttl_ms.map(|ms| clock.after(ms)) {
        Some(end) if own.0 == 0 || end < own => end,
        _ => own,
    }
}

impl<B: Place> Shard<B> {
    /// Drops a message of a stream: it goes where the stream's dropped messages go, if anywhere.
    pub(super) fn bury(&mut self, stream: &mut Stream<B>, offset: u64, reason: DeathReason) {
        if stream.limits.dead_letter.is_none() {
            stream.tally.dropped += 1;
            return self.dismiss(stream, offset);
        }
        stream.tally.dead_lettered += 1;
        if stream.limits.insists() {
            let entry = stream.entry(offset);
            let bytes = entry.map_or(0, |entry| u64::from(entry.body_bytes));
            self.pin(stream.id, offset, reason);
            if self.unsent.enter(stream.id, (offset, bytes), reason) {
                return stream.leave(offset);
            }
        }
        stream.leave(offset);
        self.forwards.push(Errand::Letter {
            stream: stream.id,
            offset,
            reason,
        });
    }

    /// A delivery comes back: to its place, unless it did so too often. With `waits` it is tried again as late as the
    /// stream's limits say.
    pub(super) fn give_back(&mut self, stream: &mut Stream<B>, offset: u64, waits: bool) {
        match stream.limits.delivery_limit {
            Some(limit) if stream.attempts(offset) > limit => {
                self.bury(stream, offset, DeathReason::DeliveryLimit);
            }
            _ if waits => self.try_later(stream, offset),
            _ => stream.release(offset),
        }
    }

    /// What a reader holds comes back at its own wish, all but this.
    pub(super) fn take_back(&mut self, id: StreamId, key: ConsumerKey, except: &[Offset]) {
        let mut except = except.to_vec();
        except.sort_unstable();
        self.with_levels(id, |shard, stream| {
            let Some(number) = stream.readers.find(key).map(|reader| reader.number) else {
                return false;
            };
            let mut count = 0;
            for offset in stream.held_by(number) {
                if except.binary_search(&stream.outside(offset)).is_err() {
                    count += 1;
                    shard.give_back(stream, offset, true);
                }
            }
            if let Some(reader) = stream.readers.find(key) {
                reader.silent = false;
                reader.held = reader.held.saturating_sub(count);
            }
            true
        });
        self.settles_since.get_or_insert(self.now.monotonic);
        if let Some(&place) = self.by_id.get(&id) {
            self.list(place);
        }
    }

    /// Everything a reader holds comes back.
    pub(super) fn give_all_back(&mut self, id: StreamId, key: ConsumerKey) {
        self.with_levels(id, |shard, stream| {
            let Some(number) = stream.readers.find(key).map(|reader| reader.number) else {
                return false;
            };
            match stream.limits.delivery_limit {
                None => {
                    stream.release_all(number);
                }
                Some(_) => {
                    for offset in stream.held_by(number) {
                        shard.give_back(stream, offset, false);
                    }
                }
            }
            true
        });
    }

    /// What the limits of a queue or group ask after as much as possible was handed out.
    pub(super) fn enforce(&mut self, now: Now, stream: &mut Stream<B>) {
        self.enforce_times(now, stream);
        if stream.limits.drops_oldest() {
            while stream.is_over(stream.ready_volume())
                && let Some(oldest) = stream.oldest_ready()
            {
                self.bury(stream, oldest, DeathReason::Overflow);
            }
        }
        self.arm(stream);
    }

    /// Drops what has ended and had its chance.
    pub(super) fn enforce_times(&mut self, now: Now, stream: &mut Stream<B>) {
        if stream.bounds.fleeting {
            stream.bounds.fleeting = false;
            for offset in stream.bounds.seen.max(stream.first())..stream.end() {
                if stream.is_ready(offset) {
                    self.bury_ended(now.unix, stream, offset);
                }
            }
        }
        stream.bounds.seen = stream.end();
        self.bury_ended_first(now.unix, stream);
    }

    /// Notes when something of a stream ends next.
    pub(super) fn arm(&mut self, stream: &mut Stream<B>) {
        let first = stream.next().and_then(|offset| stream.entry(offset));
        let due = first.map(|entry| entry.expires).unwrap_or_default();
        self.limiter.arm(stream.id, &mut stream.bounds, due);
        self.sweeps.arm(stream.id, &mut stream.bounds);
    }

    fn bury_ended(&mut self, now: UnixMs, stream: &mut Stream<B>, offset: u64) -> bool {
        let over =
            !stream.id.is_delayed() && stream.entry(offset).is_some_and(|entry| ended(&entry, now));
        if over {
            self.bury(stream, offset, DeathReason::Expired);
        }
        over
    }

    /// Drops what has ended at the head of a stream.
    pub(super) fn bury_ended_first(&mut self, now: UnixMs, stream: &mut Stream<B>) {
        while let Some(offset) = stream.next() {
            if !self.bury_ended(now, stream, offset) {
                break;
            }
        }
    }

    /// At the end of a round: when to look again.
    pub(super) fn plan(&mut self, now: Now) {
        let first = self.limiter.due.first();
        let planned = self.limiter.due_at;
        self.limiter.due_at = first.map(|(end, _)| {
            let left = end.0.saturating_sub(now.unix.0);
            let at = now.monotonic.after(left.max(DUE_MS));
            // Rounds that follow each other closely must not put it off for ever.
            planned.map_or(at, |planned| planned.min(at))
        });
    }

    /// Looks for what has ended and for streams that nobody uses.
    pub(super) fn look_at_limits(&mut self, now: Now) {
        while let Some(&(end, id)) = self.limiter.due.first() {
            if end > now.unix {
                break;
            }
            self.limiter.due.pop_first();
            if let Some(&place) = self.by_id.get(&id) {
                if let Some(stream) = self.streams[place as usize].as_deref_mut() {
                    stream.bounds.due = UnixMs(0);
                }
                self.list(place);
            }
        }
        self.limiter.due_at = None;
        self.plan(now);
        if self.limiter.uses_at.is_some_and(|at| at <= now.monotonic) {
            self.look_at_uses(now.monotonic);
        }
    }

    fn look_at_uses(&mut self, now: MonotonicMs) {
        let mut uses = std::mem::take(&mut self.limiter.uses);
        let mut next: Option<MonotonicMs> = None;
        for (id, used) in &mut uses {
            let Some(stream) = self.stream_mut(*id) else {
                continue;
            };
            let Some(expires_ms) = stream.limits.expires_ms else {
                continue;
            };
            if stream.readers.attached() > 0 {
                *used = Some(now);
            }
            let end = used.get_or_insert(now).after(expires_ms);
            if end <= now {
                // Asked again should the worker not get it done.
                *used = None;
                let worker = self.worker_for(id.0);
                self.outbox
                    .event(worker, ShardEvent::Unused { stream: *id });
            }
            let end = end.max(now.after(USES_MS));
            next = Some(next.map_or(end, |next| next.min(end)));
        }
        self.limiter.uses = uses;
        self.limiter.uses_at = next;
    }

    /// A new life of the node: what is there had its chances in the lives before.
    pub(super) fn begin_limits(&mut self) {
        for place in 0..self.streams.len() {
            if let Some(stream) = self.streams[place].as_deref_mut() {
                // What has ended of a session is dropped at its head only.
                if stream.session().is_some() || stream.kept().entries == 0 {
                    continue;
                }
                stream.bounds.seen = stream.end();
                stream.bounds.early.suspect();
                if stream.has_next() {
                    self.list(place as u32);
                }
            }
        }
    }

    /// Other limits: they count for what is there already, but for the time that messages are given.
    pub(super) fn apply_limits(&mut self, mark: Mark, id: StreamId, limits: StreamLimits) {
        let Some(&place) = self.by_id.get(&id) else {
            return self.answer_result(mark, Err(no_stream()));
        };
        self.set_mode(id, limits.mode);
        if let Some(stream) = self.streams[place as usize].as_deref_mut() {
            stream.touch();
            stream.limits = limits.clone().into();
            self.limiter.watch(stream);
            if stream.replays() {
                // The next look finds when the oldest is too old now.
                self.limiter.arm(id, &mut stream.bounds, UnixMs(0));
            }
            self.list(place);
        }
        self.limit_levels(id, &limits);
        self.answer(mark, ShardReply::Done);
    }

    /// Somebody used a stream.
    pub(super) fn used(&mut self, id: StreamId) {
        if !self.limiter.uses.is_empty()
            && let Some(used) = self.limiter.uses.get_mut(&id)
        {
            *used = Some(self.now.monotonic);
        }
    }

    /// The streams of a publish that take it, when some are full and do not; those count it as refused.
    pub(super) fn refuse_where_full(
        &mut self,
        streams: &[StreamId],
        extra: Option<&Extra>,
        message: &Arc<Message>,
    ) -> Option<SmallVec<[StreamId; 2]>> {
        let at_once = extra.is_some_and(|extra| extra.at_once);
        let bytes = message.body.len() as u64;
        let mut takers: SmallVec<[StreamId; 2]> = SmallVec::new();
        for id in streams {
            if !self.limiter.refusing.contains(id) {
                takers.push(*id);
                continue;
            }
            let (journalled, beside) = (self.journalled(), self.beside(*id));
            let Some(stream) = self.stream_mut(*id) else {
                continue;
            };
            if stream.takes_one_more(bytes, beside) || (stream.limits.holds() && at_once) {
                if journalled {
                    stream.bounds.coming.entries += 1;
                    stream.bounds.coming.bytes += bytes;
                }
                takers.push(*id);
                continue;
            }
            stream.tally.rejected += 1;
            let goes_on = stream.limits.overflow == Overflow::RejectAndDeadLetter
                && stream.limits.dead_letter.is_some();
            if goes_on && self.forwards.refuse(*id, message) {
                self.count_dead_letter(*id);
            }
        }
        (takers.len() < streams.len()).then_some(takers)
    }

    fn count_dead_letter(&mut self, id: StreamId) {
        if let Some(stream) = self.stream_mut(id) {
            stream.tally.dead_lettered += 1;
        }
    }

    /// Whether a publish that goes to all its streams or to none is refused here; those that do not take it count it.
    pub(super) fn refuses_whole(
        &mut self,
        streams: &[StreamId],
        extra: Option<&Extra>,
        message: &Message,
    ) -> bool {
        if !extra.is_some_and(|extra| extra.whole) || !self.limiter.may_refuse() {
            return false;
        }
        let bytes = message.body.len() as u64;
        let mut refused = false;
        for id in streams {
            let beside = self.beside(*id);
            if let Some(stream) = self.stream_mut(*id)
                && stream.limits.refuses()
                && !stream.limits.holds()
                && !stream.takes_one_more(bytes, beside)
            {
                stream.tally.rejected += 1;
                refused = true;
            }
        }
        refused
    }

    /// Takes what is left of a publish that some stream refused: the publisher is told of the refusal when it is
    /// stored in the others.
    pub(super) fn publish_rest(
        &mut self,
        (from, sequence): (WorkerId, Sequence),
        takers: &[StreamId],
        by_topic: Option<VhostId>,
        extra: Option<&Extra>,
        message: &Arc<Message>,
    ) where
        Self: Store<B>,
    {
        let none = takers.is_empty() && by_topic.is_none() && extra.is_none();
        let told = sequence.0 != 0;
        if none && told {
            let outcome = PublishOutcome::Refused(ErrorKind::QuotaExceeded);
            self.outbox.published(from, sequence, outcome);
        }
        if none {
            return;
        }
        if told {
            self.limiter.refused.insert((from, sequence));
        }
        self.publish(from, sequence, takers, by_topic, extra, message);
    }

    /// The whole outcome of a publish that is stored now.
    pub(super) fn whole_outcome(
        &mut self,
        from: WorkerId,
        sequence: Sequence,
        outcome: PublishOutcome,
    ) -> PublishOutcome {
        let refused =
            !self.limiter.refused.is_empty() && self.limiter.refused.remove(&(from, sequence));
        match refused {
            true => PublishOutcome::Refused(ErrorKind::QuotaExceeded),
            false => outcome,
        }
    }

    /// Takes a stream out for as long as `act` needs both it and the shard.
    pub(super) fn with_stream(
        &mut self,
        id: StreamId,
        act: impl FnOnce(&mut Shard<B>, &mut Stream<B>),
    ) {
        let Some(&place) = self.by_id.get(&id) else {
            return;
        };
        if let Some(mut stream) = self.streams[place as usize].take() {
            act(self, &mut stream);
            self.streams[place as usize] = Some(stream);
        }
    }
}
