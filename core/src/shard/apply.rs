//! What committed records do to a shard's state, identically on every replica.
//!
//! Time here is the leader's stamp, handed in; a node's clock never decides. Replies go only to lanes of
//! this life of the node, so that replay after a restart tells nobody anything.
//!
//! Owns: `apply` of frames and changes; how streams come into the shard and leave it.
//! Never: the leader's memory beyond attaching a session's connection.
//! Next: `apply/store.rs` (a message), `apply/session.rs`; `record.rs` (the format), `deliver.rs` (what follows),
//! `checkpoint.rs`.

mod session;
mod store;

use super::places::hash_of;
use super::{Place, Shard, wills};
use crate::error::{ErrorKind, Refusal};
use crate::gateway::PublishOutcome;
use crate::id::{Offset, Position, StreamId, UnixMs, VhostId};
use crate::limits::StreamLimits;
use crate::message::Message;
use crate::port::{Extra, GroupKey, Member, Parting, ShardEvent, ShardReply};
use crate::record::{Change, Mark, Record, RecordError, Records};
use crate::stream::{Kind, Stream, Volume};
use bytes::Bytes;
use std::sync::Arc;

impl Shard<Position> {
    /// Applies a committed frame whose payload lies at `base`; `checked` as for [`Records::new`].
    ///
    /// # Errors
    /// The payload is damaged or of a newer version: the shard must stop, nothing of it is certain.
    pub fn apply(
        &mut self,
        clock: UnixMs,
        base: Position,
        payload: &Bytes,
        checked: bool,
    ) -> Result<(), RecordError> {
        self.unapplied_bytes = self.unapplied_bytes.saturating_sub(payload.len());
        self.progress.applied();
        let mut records = Records::new(payload, base, checked)?;
        while let Some(record) = records.next() {
            let (position, mark, record) = record?;
            let record_bytes = (records.position().0 - position.0) as usize;
            match record {
                Record::Change(change) => self.apply_change(clock, mark, change),
                Record::Publish {
                    streams,
                    by_topic,
                    extra,
                    message,
                } => {
                    let extra = extra.as_deref();
                    let to = (&streams[..], by_topic, extra);
                    self.apply_publish(clock, mark, (&position, record_bytes), to, &message);
                }
            }
        }
        self.referred.applied = Position(base.0 + payload.len() as u64);
        Ok(())
    }

    fn apply_publish(
        &mut self,
        clock: UnixMs,
        mark: Mark,
        place: (&Position, usize),
        (streams, by_topic, extra): (&[StreamId], Option<VhostId>, Option<&Extra>),
        message: &Message,
    ) {
        if extra.is_some_and(|extra| extra.handed.is_some()) {
            // By the shard itself: no publisher numbered it.
            self.store(clock, streams, by_topic, extra, message, place);
            return;
        }
        let last = self.lanes.entry(mark.lane).or_default();
        let overtaken = extra.is_some_and(|extra| extra.overtaken);
        let repeated = mark.sequence <= *last && !overtaken;
        let outcome = if repeated {
            PublishOutcome::Routed
        } else {
            *last = mark.sequence.max(*last);
            self.store(clock, streams, by_topic, extra, message, place)
        };
        if let Some(worker) = self.worker_of(mark.lane) {
            let outcome = self.whole_outcome(worker, mark.sequence, outcome);
            self.outbox.published(worker, mark.sequence, outcome);
        }
    }
}

impl<B: Place> Shard<B> {
    pub(crate) fn insert(&mut self, mut stream: Stream<B>) -> u32 {
        if let Some(index) = &self.index {
            stream.adopt(index);
        }
        let (id, vhost) = (stream.id, stream.vhost);
        self.account(stream.is_queue(), Volume::default(), stream.kept());
        if id.rank() == 0 {
            self.limiter.watch(&stream);
        }
        self.delays.watch(&stream);
        if let Some(session) = stream.session() {
            let (ends, due) = (session.ends(), wills::due(session));
            self.session_ends(id, ends, None);
            self.will_moves(id, due, None);
        }
        let name = stream
            .session()
            .map(|session| hash_of((vhost, &*session.client_id)));
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.streams.push(None);
            (self.streams.len() - 1) as u32
        });
        self.streams[place as usize] = Some(Box::new(stream));
        self.by_id.insert(id, place);
        self.level_came(id, place);
        if let Some(name) = name {
            self.sessions.insert(name, place);
        }
        place
    }

    /// Takes a stream and its levels out of everything; returns how many messages were ready.
    pub(super) fn remove(&mut self, id: StreamId) -> Option<u64> {
        let below = self.remove_levels(id);
        let place = self.by_id.remove(&id)?;
        let mut stream = self.streams[place as usize].take()?;
        self.vacant.push(place);
        self.list.retain(|listed| *listed != place);
        self.settles.remove(&id);
        self.heard.forget(id);
        self.limiter.forget(id, &stream.bounds);
        self.delays.forget(id);
        self.unsent.forget(id);
        self.pinned.forget(id);
        self.sweeps.forget(id, &stream.bounds);
        self.account(stream.is_queue(), stream.kept(), Volume::default());
        if let Some(session) = stream.session().cloned() {
            self.session_ends(id, None, session.ends());
            self.will_moves(id, None, wills::due(&session));
            if let Some(will) = stream.take_will() {
                self.will_left(stream.vhost, will);
            }
            let name = hash_of((stream.vhost, &*session.client_id));
            self.sessions.remove(name, place);
            for spec in session.filters.iter() {
                self.unbind(stream.vhost, place, &spec);
            }
            self.groups
                .part(session.groups.into_iter().map(|(name, spec)| {
                    let vhost = stream.vhost;
                    let filter = spec.filter;
                    let group = GroupKey {
                        vhost,
                        name,
                        filter,
                    };
                    let member = Member::Session(id);
                    Parting { group, member }
                }));
            if let Some(connection) = session.live
                && let Some(live) = self.live.get_mut(&connection)
            {
                live.session = None;
            }
        }
        self.group_removed(place, &stream);
        let why = Refusal::new(ErrorKind::NotFound, "the queue was deleted");
        let keys: Vec<_> = stream
            .readers
            .iter_mut()
            .map(|reader| (reader.key, reader.attached))
            .collect();
        for (key, attached) in keys {
            if let Some(live) = self.live.get_mut(&key.connection) {
                live.readers
                    .retain(|(stream, held)| (*stream, *held) != (id, key));
            }
            if attached && stream.session().is_none() {
                self.outbox.settle_order(key.connection);
                let event = ShardEvent::Ended {
                    consumer: key,
                    why: why.clone(),
                };
                self.outbox.event(key.connection.worker(), event);
            }
        }
        let ready = stream.ready() + below;
        self.end_stream(stream);
        Some(ready)
    }

    pub(super) fn answer(&mut self, mark: Mark, reply: ShardReply) {
        self.answer_result(mark, Ok(reply));
    }

    pub(super) fn answer_result(&mut self, mark: Mark, result: Result<ShardReply, Refusal>) {
        if mark.sequence.0 != 0
            && let Some(worker) = self.worker_of(mark.lane)
        {
            self.reply(worker, mark.sequence.0, result);
        }
    }

    pub(crate) fn apply_change(&mut self, clock: UnixMs, mark: Mark, change: Change) {
        match change {
            Change::Began { incarnation } => {
                let life = incarnation & 0xFFFF_FFFF_FFFF;
                self.lanes.retain(|lane, _| lane.0 >> 16 == life);
                self.apply_groups_began();
                self.begin_limits();
                let open = self.streams.iter().flatten().filter(|stream| {
                    stream
                        .session()
                        .is_some_and(|session| session.closed.is_none())
                });
                let open: Vec<StreamId> = open.map(|stream| stream.id).collect();
                for id in open {
                    self.apply_close(clock, id);
                }
                if life == self.incarnation & 0xFFFF_FFFF_FFFF {
                    self.resume_pinned();
                }
            }
            Change::CreateStream {
                stream,
                vhost,
                limits,
            } => self.apply_create(mark, stream, vhost, Arc::default(), limits.into()),
            Change::CreateStreamWith {
                stream,
                vhost,
                name,
                limits,
            } => self.apply_create(mark, stream, vhost, name, limits.0),
            Change::DeleteStream { stream, only_if } => {
                let more = only_if.is_some_and(|out| {
                    self.any_level(stream, |level| {
                        let mut kept = level.kept_offsets();
                        kept.any(|offset| out.binary_search(&level.outside(offset)).is_err())
                    })
                });
                if more {
                    let why = Refusal::new(ErrorKind::NotEmpty, "the queue has messages");
                    return self.answer_result(mark, Err(why));
                }
                let messages = self.remove(stream).unwrap_or(0);
                self.answer(mark, ShardReply::Count(messages));
            }
            Change::Purge { stream, ranges } => {
                let removed = self.remove_of_levels(stream, &ranges);
                self.answer(mark, ShardReply::Count(removed));
            }
            Change::Settled { stream, ranges } => {
                self.remove_ranges(stream, &ranges);
            }
            Change::Pinned { stream, runs } => self.apply_pinned(stream, &runs),
            Change::Trim { stream, first } => self.apply_trim(stream, first),
            Change::Taken { stream, key } => self.apply_taken(mark, stream, key),
            Change::Forgotten { stream, key } => self.apply_forgotten(mark, stream, key),
            Change::SetLimits { stream, limits } => self.apply_limits(mark, stream, limits.0),
            Change::Received { stream, ranges } => self.apply_received(mark, stream, &ranges),
            Change::Delivered { stream, until } => {
                if let Some(stream) = self.stream_mut(stream) {
                    stream.reach_delivered(until.0);
                }
            }
            Change::OpenSession {
                vhost,
                client_id,
                clean_start,
                expiry_s,
            } => {
                let how = (clean_start, expiry_s, None);
                self.apply_open(clock, mark, vhost, client_id, how);
            }
            Change::OpenSessionWith {
                vhost,
                client_id,
                clean_start,
                expiry_s,
                will,
            } => {
                let how = (clean_start, expiry_s, Some(Box::new(will)));
                self.apply_open(clock, mark, vhost, client_id, how);
            }
            Change::DropWill { stream } => {
                self.drop_will(stream);
                self.answer(mark, ShardReply::Done);
            }
            Change::WillDue { stream, epoch } => self.apply_will_due(stream, epoch),
            Change::WillDone { number } => self.apply_will_done(number),
            Change::CloseSession { stream } => self.apply_close(clock, stream),
            Change::EndSession { stream } => {
                let removed = self.remove(stream).is_some();
                self.answer(mark, ShardReply::Count(u64::from(removed)));
            }
            Change::SessionExpiry { stream, expiry_s } => {
                self.change_session(stream, |session| session.expiry_s = expiry_s);
                self.answer(mark, ShardReply::Done);
            }
            Change::Subscribe { stream, filters } => {
                let granted = self.apply_subscribe(stream, filters);
                self.answer(mark, ShardReply::Subscribed(granted));
            }
            Change::Unsubscribe { stream, filters } => {
                let existed = self.apply_unsubscribe(stream, filters);
                self.answer(mark, ShardReply::Unsubscribed(existed));
            }
            Change::DropValue { vhost, address } => {
                let reply = self.apply_drop_value(vhost, &address);
                self.answer(mark, reply);
            }
            Change::ValuesExpired { before } => self.apply_values_expired(before),
            Change::JoinGroup {
                group,
                member,
                client_id,
                limits,
            } => self.apply_join(clock, mark, group, (member, client_id), limits.0),
            Change::LeaveGroup { group, member } => self.apply_leave(mark, &group, member),
            Change::Membership {
                stream,
                name,
                filter,
                spec,
            } => {
                let before = self.apply_membership(stream, &name, &filter, spec);
                self.answer(mark, ShardReply::Count(u64::from(before)));
            }
            Change::Parted { number } => {
                self.apply_parted(number);
                self.answer(mark, ShardReply::Done);
            }
        }
    }

    fn apply_create(
        &mut self,
        mark: Mark,
        id: StreamId,
        vhost: VhostId,
        name: Arc<str>,
        limits: StreamLimits,
    ) {
        if !self.by_id.contains_key(&id) {
            let mut stream = Stream::new(id, vhost, Kind::Queue, limits);
            stream.name = name;
            self.insert(stream);
        }
        self.answer(mark, ShardReply::Done);
    }

    pub(super) fn remove_ranges(&mut self, id: StreamId, ranges: &[(Offset, Offset)]) -> u64 {
        if id.is_delayed() {
            self.forget_due(id, ranges);
        }
        self.pinned.gone(id, ranges);
        let place = self.by_id.get(&id);
        let stream = place.and_then(|place| self.streams[*place as usize].as_deref_mut());
        let Some(stream) = stream else {
            return 0;
        };
        let before = stream.kept();
        let removed = stream.remove_ranges(ranges, |weight| self.referred.remove(weight));
        let (is_queue, after) = (stream.is_queue(), stream.kept());
        self.account(is_queue, before, after);
        removed
    }
}
