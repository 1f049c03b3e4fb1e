//! What committed records do to a shard's state, identically on every replica.
//!
//! Time here is the leader's stamp, handed in; a node's clock never decides. Replies go only to lanes of
//! this life of the node, so that replay after a restart tells nobody anything.
//!
//! Owns: `apply` of frames and changes, storing a message in its streams, matching of sessions.
//! Never: the leader's memory beyond attaching a session's connection.
//! Next: `record.rs` (the format), `deliver.rs` (what follows), `checkpoint.rs`.

use crate::address::Address;
use crate::dispatch::Reader;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::{FilterSpec, PublishOutcome};
use crate::id::{Epoch, Offset, Position, StreamId, UnixMs, VhostId};
use crate::limits::StreamLimits;
use crate::message::{Message, Quality};
use crate::port::{Extra, GroupKey, Member, OpenSession, Parting, ShardReply};
use crate::record::{Change, Mark, Record, RecordError, Records};
use crate::shard::limit::end_of;
use crate::shard::matching::{self, Holders, Wanted};
use crate::shard::wills;
use crate::shard::{CACHE_ENTRIES_MAX, Match, Place, Shard};
use crate::stream::{Entry, FilterList, Kind, Session, Stream, Volume};
use crate::will::SavedWill;
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
        for record in Records::new(payload, base, checked)? {
            let (position, mark, record) = record?;
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
                    self.apply_publish(clock, mark, position, to, &message);
                }
            }
        }
        Ok(())
    }

    fn apply_publish(
        &mut self,
        clock: UnixMs,
        mark: Mark,
        position: Position,
        (streams, by_topic, extra): (&[StreamId], Option<VhostId>, Option<&Extra>),
        message: &Message,
    ) {
        if extra.is_some_and(|extra| extra.handed.is_some()) {
            // By the shard itself: no publisher numbered it.
            self.store(clock, streams, by_topic, extra, message, &position);
            return;
        }
        let last = self.lanes.entry(mark.lane).or_default();
        let repeated = mark.sequence <= *last;
        let outcome = if repeated {
            PublishOutcome::Routed
        } else {
            *last = mark.sequence;
            self.store(clock, streams, by_topic, extra, message, &position)
        };
        if let Some(worker) = self.worker_of(mark.lane) {
            let outcome = self.whole_outcome(worker, mark.sequence, outcome);
            self.outbox.published(worker, mark.sequence, outcome);
        }
    }
}

impl<B: Place> Shard<B> {
    /// Puts a message into its named streams and every matching session's.
    pub(crate) fn store(
        &mut self,
        clock: UnixMs,
        streams: &[StreamId],
        by_topic: Option<VhostId>,
        extra: Option<&Extra>,
        message: &Message,
        place: &B,
    ) -> PublishOutcome {
        if let Some(extra) = extra {
            if let (Some(handed), Some(stream)) = (extra.handed, streams.first()) {
                self.store_value(clock, *stream, handed, message, place);
                return PublishOutcome::Routed;
            }
            if let Some(once) = extra.once {
                return self.store_once(clock, once, (streams, by_topic, extra), message, place);
            }
            if let Some(vhost) = extra.keep {
                self.values.put(vhost, Arc::new(message.detached()));
            }
        }
        let mut kept: Option<B> = None;
        let mut taken = false;
        let mut entry = |stream: &Stream<B>, quality, identifier, retain, no_local| Entry {
            // A message that will not be handed out at once stays a while: without its read buffer.
            body: match stream.readers.room_beyond(stream.ready()) {
                true => place.clone(),
                false => kept.get_or_insert_with(|| place.kept()).clone(),
            },
            expires: message.expires.unwrap_or_default(),
            cost_bytes: u32::try_from(message.cost_bytes()).unwrap_or(u32::MAX),
            identifier,
            quality,
            retain,
            by_topic: by_topic.is_some(),
            no_local,
            more_identifiers: None,
            body_bytes: u32::try_from(message.body.len()).unwrap_or(u32::MAX),
        };
        for id in streams {
            let Some(&at) = self.by_id.get(id) else {
                continue;
            };
            let Some(stream) = self.streams[at as usize].as_deref_mut() else {
                continue;
            };
            let mut entry = entry(stream, message.quality, 0, false, false);
            entry.expires = end_of(message, &stream.limits, clock);
            stream.note_end(entry.expires, clock);
            stream.came(entry.body_bytes);
            self.queues.bytes += u64::from(entry.cost_bytes);
            self.queues.entries += 1;
            stream.push(entry);
            taken = true;
            if !stream.listed {
                stream.listed = true;
                self.list.push(at);
            }
        }
        let Some(vhost) = by_topic else {
            return outcome(taken);
        };
        let matches = self.matching(vhost, &message.address);
        for wanted in matches.iter() {
            let at = &wanted.place;
            let Some(kept) = self.streams[*at as usize].as_deref().map(Stream::kept) else {
                continue;
            };
            let full = self.session_is_full(kept);
            let Some(stream) = self.streams[*at as usize].as_deref_mut() else {
                continue;
            };
            if let Some(deaths) = &message.deaths
                && stream.is_group()
                && deaths.cycles(stream.title())
            {
                continue;
            }
            taken = true;
            if full {
                stream.tally.dropped += 1;
                continue;
            }
            let retain = wanted.retain_as_published && message.retain;
            let mut entry = entry(
                stream,
                message.quality.min(wanted.quality),
                wanted.identifier,
                retain,
                wanted.no_local,
            );
            entry.more_identifiers.clone_from(&wanted.more_identifiers);
            if stream.is_group() {
                entry.expires = end_of(message, &stream.limits, clock);
                stream.note_end(entry.expires, clock);
            }
            self.sessions_hold.bytes += u64::from(entry.cost_bytes);
            self.sessions_hold.entries += 1;
            stream.push(entry);
            if !stream.listed {
                stream.listed = true;
                self.list.push(*at);
            }
        }
        outcome(taken)
    }

    /// The sessions whose filters match, each once.
    fn matching(&mut self, vhost: VhostId, address: &Address) -> Arc<[Wanted]> {
        let Some(filters) = self.filters.get_mut(&vhost) else {
            return Arc::from([]);
        };
        if let Some(known) = filters.cache.get(address) {
            return known.clone();
        }
        let mut found: Vec<Match> = Vec::new();
        filters
            .trie
            .visit(address, |holders| found.extend(holders.iter().cloned()));
        let found = matching::merge(found);
        if filters.cache.len() >= CACHE_ENTRIES_MAX {
            filters.cache.clear();
        }
        // The key must not keep a read buffer alive.
        filters
            .cache
            .insert(Address(Bytes::copy_from_slice(&address.0)), found.clone());
        found
    }

    pub(crate) fn insert(&mut self, stream: Stream<B>) -> u32 {
        let (id, vhost) = (stream.id, stream.vhost);
        self.account(stream.is_queue(), Volume::default(), stream.kept());
        self.limiter.watch(&stream);
        if let Some(session) = stream.session() {
            let (ends, due) = (session.ends(), wills::due(session));
            self.session_ends(id, ends, None);
            self.will_moves(id, due, None);
        }
        let name = stream
            .session()
            .map(|session| (vhost, session.client_id.clone()));
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.streams.push(None);
            (self.streams.len() - 1) as u32
        });
        self.streams[place as usize] = Some(Box::new(stream));
        self.by_id.insert(id, place);
        if let Some(name) = name {
            self.sessions.insert(name, place);
        }
        place
    }

    /// Takes a stream out of everything; returns how many messages were ready.
    pub(super) fn remove(&mut self, id: StreamId) -> Option<u64> {
        let place = self.by_id.remove(&id)?;
        let mut stream = self.streams[place as usize].take()?;
        self.vacant.push(place);
        self.list.retain(|listed| *listed != place);
        self.settles.remove(&id);
        self.heard.forget(id);
        self.limiter.forget(id, stream.bounds);
        self.account(stream.is_queue(), stream.kept(), Volume::default());
        if let Some(session) = stream.session().cloned() {
            self.session_ends(id, None, session.ends());
            self.will_moves(id, None, wills::due(&session));
            if let Some(will) = stream.take_will() {
                self.will_left(stream.vhost, will);
            }
            self.sessions.remove(&(stream.vhost, session.client_id));
            for spec in session.filters.iter() {
                self.unbind(stream.vhost, place, spec);
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
                let event = crate::port::ShardEvent::Ended {
                    consumer: key,
                    why: why.clone(),
                };
                self.outbox.event(key.connection.worker(), event);
            }
        }
        Some(stream.ready())
    }

    fn session_ends(&mut self, id: StreamId, now: Option<UnixMs>, before: Option<UnixMs>) {
        if let Some(before) = before {
            self.ends.remove(&(before, id));
        }
        if let Some(now) = now {
            self.ends.insert((now, id));
        }
    }

    /// Changes a session and keeps the list of ends right.
    pub(super) fn change_session(&mut self, id: StreamId, change: impl FnOnce(&mut Session)) {
        let Some(session) = self.stream_mut(id).and_then(Stream::session_mut) else {
            return;
        };
        let (ended, was_due) = (session.ends(), wills::due(session));
        change(session);
        let (ends, due) = (session.ends(), wills::due(session));
        self.session_ends(id, ends, ended);
        self.will_moves(id, due, was_due);
    }

    pub(super) fn bind(&mut self, place: u32, spec: FilterSpec) {
        let Some(vhost) = self.streams[place as usize]
            .as_deref()
            .map(|stream| stream.vhost)
        else {
            return;
        };
        let filters = self.filters.entry(vhost).or_default();
        filters.cache.clear();
        let filter = spec.filter.clone();
        let session = Match { place, spec };
        let known = filters.trie.values_mut(&filter).next();
        let is_new = match known {
            Some(holders) => holders.set(session),
            None => {
                let mut holders = Holders::default();
                holders.set(session);
                filters.trie.insert(&filter, true, holders);
                true
            }
        };
        if is_new {
            self.fabric.begin_interest(vhost, &filter, self.id);
        }
    }

    pub(super) fn unbind(&mut self, vhost: VhostId, place: u32, spec: &FilterSpec) {
        let Some(filters) = self.filters.get_mut(&vhost) else {
            return;
        };
        let Some(holders) = filters.trie.values_mut(&spec.filter).next() else {
            return;
        };
        if !holders.remove(place) {
            return;
        }
        filters.cache.clear();
        if holders.is_empty() {
            filters.trie.remove(&spec.filter, Holders::is_empty);
        }
        self.fabric.end_interest(vhost, &spec.filter, self.id);
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
                    self.apply_change(clock, Mark::default(), Change::CloseSession { stream: id });
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
                    self.stream_mut(stream).is_some_and(|stream| {
                        let mut kept = stream.kept_offsets();
                        kept.any(|offset| out.binary_search(&Offset(offset)).is_err())
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
                let removed = self.remove_ranges(stream, &ranges);
                self.answer(mark, ShardReply::Count(removed));
            }
            Change::Settled { stream, ranges } => {
                self.remove_ranges(stream, &ranges);
            }
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
            Change::CloseSession { stream } => {
                let live = self
                    .stream_mut(stream)
                    .and_then(|stream| stream.session())
                    .is_some_and(|session| session.live.is_some());
                if !live {
                    self.change_session(stream, |session| session.closed = Some(clock));
                    self.will_of_closed(clock, stream);
                }
            }
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
                let mut existed = Vec::with_capacity(filters.len());
                for filter in filters {
                    let place = self.by_id.get(&stream).copied();
                    let found = self.stream_mut(stream).and_then(|stream| {
                        let vhost = stream.vhost;
                        let session = stream.session_mut()?;
                        Some((vhost, session.filters.remove(&filter)?))
                    });
                    existed.push(found.is_some());
                    if let (Some(place), Some((vhost, spec))) = (place, found) {
                        self.unbind(vhost, place, &spec);
                    }
                }
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

    fn remove_ranges(&mut self, id: StreamId, ranges: &[(Offset, Offset)]) -> u64 {
        let Some(stream) = self.stream_mut(id) else {
            return 0;
        };
        let before = stream.kept();
        let removed = stream.remove_ranges(ranges);
        let (is_queue, after) = (stream.is_queue(), stream.kept());
        self.account(is_queue, before, after);
        removed
    }

    fn apply_open(
        &mut self,
        clock: UnixMs,
        mark: Mark,
        vhost: VhostId,
        client_id: Arc<str>,
        (clean_start, expiry_s, will): (bool, u32, Option<Box<SavedWill>>),
    ) {
        let name = (vhost, client_id.clone());
        let mut place = self.sessions.get(&name).copied();
        if clean_start && let Some(at) = place.take() {
            let id = self.streams[at as usize].as_deref().map(|stream| stream.id);
            id.and_then(|id| self.remove(id));
        }
        let present = place.is_some();
        let id = match place.and_then(|at| self.streams[at as usize].as_deref()) {
            Some(stream) => {
                let id = stream.id;
                self.will_of_resumed(clock, id);
                id
            }
            None => {
                self.session_counter += 1;
                let id = StreamId::of_session(self.id, self.session_counter);
                let session = Session {
                    client_id,
                    epoch: Epoch(0),
                    expiry_s,
                    closed: None,
                    filters: FilterList::default(),
                    will: None,
                    keys: None,
                    groups: Vec::new(),
                    live: None,
                };
                self.insert(Stream::new(
                    id,
                    vhost,
                    Kind::Session(session),
                    StreamLimits::default(),
                ));
                id
            }
        };
        self.change_session(id, |session| {
            session.epoch = Epoch(session.epoch.0 + 1);
            session.expiry_s = expiry_s;
            session.closed = None;
            session.will = will;
        });
        let Some(worker) = self.worker_of(mark.lane) else {
            return;
        };
        match self.asked.remove(&(worker, mark.sequence.0)) {
            Some(open) => {
                self.attach_session(id, open);
                let session = self.stream_mut(id).and_then(|stream| stream.session());
                let filters = session.map(|session| {
                    session
                        .filters
                        .iter()
                        .map(|spec| spec.filter.clone())
                        .collect()
                });
                let filters = filters.unwrap_or_default();
                let groups = session.map(|session| session.groups.clone());
                let groups = groups.unwrap_or_default();
                self.answer(
                    mark,
                    ShardReply::Session {
                        present,
                        stream: Some(id),
                        filters,
                        groups,
                    },
                );
            }
            // Its connection is gone already.
            None => self.close_session(clock, id, None),
        }
    }

    fn attach_session(&mut self, id: StreamId, open: OpenSession) {
        let receives_all = self.receives_all(&open.principal, &open.vhost_name);
        let connection = open.consumer.connection;
        let Some(&place) = self.by_id.get(&id) else {
            return;
        };
        let Some(stream) = self.streams[place as usize].as_deref_mut() else {
            return;
        };
        stream.readers.add(Reader {
            number: 0,
            key: open.consumer,
            principal: open.principal,
            vhost: open.vhost_name,
            presettled: false,
            exclusive: true,
            no_local: false,
            priority: 0,
            credit: open.credit,
            held: 0,
            travelling: 0,
            attached: true,
            receives_all,
            member: None,
        });
        if let Some(session) = stream.session_mut() {
            session.live = Some(connection);
        }
        let live = self.live.entry(connection).or_default();
        live.readers.push((id, open.consumer));
        live.session = Some(id);
        self.list(place);
    }

    fn apply_subscribe(
        &mut self,
        id: StreamId,
        filters: Vec<FilterSpec>,
    ) -> Vec<Result<Quality, Refusal>> {
        let Some(&place) = self.by_id.get(&id) else {
            let gone = || Err(Refusal::new(ErrorKind::NotFound, "the session is gone"));
            return filters.iter().map(|_| gone()).collect();
        };
        let mut granted = Vec::with_capacity(filters.len());
        for spec in filters {
            granted.push(Ok(spec.quality));
            if let Some(session) = self.stream_mut(id).and_then(Stream::session_mut) {
                session.filters.set(spec.clone());
            }
            self.bind(place, spec);
        }
        granted
    }
}

fn outcome(taken: bool) -> PublishOutcome {
    match taken {
        true => PublishOutcome::Routed,
        false => PublishOutcome::Unroutable,
    }
}
