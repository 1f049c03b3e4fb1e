//! What committed records do to sessions: opened, closed, bound and unbound.
//!
//! Owns: a session's durable part and its filters in the shard's trie; attaching the connection that asked.
//! Never: who may claim a client id (`shard/questions/session.rs`), when a closed session ends (`shard/frame.rs`).
//! Next: `shard/wills.rs`, `shard/matching.rs`.

use crate::address::TopicFilter;
use crate::dispatch::Reader;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::FilterSpec;
use crate::id::{Epoch, StreamId, UnixMs, VhostId};
use crate::limits::StreamLimits;
use crate::message::Quality;
use crate::port::{OpenSession, ShardReply};
use crate::record::Mark;
use crate::shard::matching::Holders;
use crate::shard::{Match, Place, Shard, wills};
use crate::simple::simple;
use crate::stream::{FilterList, Kind, Session, Stream};
use crate::will::SavedWill;
use std::sync::Arc;

impl<B: Place> Shard<B> {
    pub(super) fn apply_open(
        &mut self,
        clock: UnixMs,
        mark: Mark,
        vhost: VhostId,
        client_id: Arc<str>,
        (clean_start, expiry_s, will): (bool, u32, Option<Box<SavedWill>>),
    ) {
        let mut place = self.session_place(vhost, &client_id);
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
                let filters =
                    session.map(|session| session.filters.iter().map(|spec| spec.filter).collect());
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
            exclusive: true,
            credit: open.credit,
            attached: true,
            receives_all,
            ..Reader::new(open.consumer, open.principal, open.vhost_name)
        });
        if let Some(session) = stream.session_mut() {
            session.live = Some(connection);
        }
        let live = self.live.entry(connection).or_default();
        live.readers.push((id, open.consumer));
        live.session = Some(id);
        self.list(place);
    }

    /// A session's connection ended, unless another has it already.
    pub(super) fn apply_close(&mut self, clock: UnixMs, id: StreamId) {
        let live = self
            .stream_mut(id)
            .and_then(|stream| stream.session())
            .is_some_and(|session| session.live.is_some());
        if !live {
            self.change_session(id, |session| session.closed = Some(clock));
            self.will_of_closed(clock, id);
        }
    }

    pub(super) fn apply_subscribe(
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

    pub(super) fn apply_unsubscribe(
        &mut self,
        id: StreamId,
        filters: Vec<TopicFilter>,
    ) -> Vec<bool> {
        let mut existed = Vec::with_capacity(filters.len());
        for filter in filters {
            let place = self.by_id.get(&id).copied();
            let found = self.stream_mut(id).and_then(|stream| {
                let vhost = stream.vhost;
                let session = stream.session_mut()?;
                Some((vhost, session.filters.remove(&filter)?))
            });
            existed.push(found.is_some());
            if let (Some(place), Some((vhost, spec))) = (place, found) {
                self.unbind(vhost, place, &spec);
            }
        }
        existed
    }

    /// Changes a session and keeps the list of ends right.
    pub(in crate::shard) fn change_session(
        &mut self,
        id: StreamId,
        change: impl FnOnce(&mut Session),
    ) {
        let Some(session) = self.stream_mut(id).and_then(Stream::session_mut) else {
            return;
        };
        let (ended, was_due) = (session.ends(), wills::due(session));
        change(session);
        let (ends, due) = (session.ends(), wills::due(session));
        self.session_ends(id, ends, ended);
        self.will_moves(id, due, was_due);
    }

    pub(super) fn session_ends(
        &mut self,
        id: StreamId,
        now: Option<UnixMs>,
        before: Option<UnixMs>,
    ) {
        if let Some(before) = before {
            self.ends.remove(&(before, id));
        }
        if let Some(now) = now {
            self.ends.insert((now, id));
        }
    }

    pub(in crate::shard) fn bind(&mut self, place: u32, spec: FilterSpec) {
        let Some(vhost) = self.streams[place as usize]
            .as_deref()
            .map(|stream| stream.vhost)
        else {
            return;
        };
        let filters = self.filters.entry(vhost).or_default();
        filters.cache.clear();
        let session = Match::new(place, &spec);
        let filter = spec.filter.clone();
        let shared = filters.trie.values_mut(&filter).next();
        let is_new = match shared.map(|holders| holders.set(session)) {
            Some(is_new) => is_new,
            None => self.bind_first(vhost, session, &spec),
        };
        if is_new {
            self.fabric.begin_interest(vhost, &filter, self.id);
        }
    }

    /// The first binding to a filter, or the second if one session had it alone. Says whether it is new.
    fn bind_first(&mut self, vhost: VhostId, session: Match, spec: &FilterSpec) -> bool {
        let key = simple(vhost, &spec.filter);
        let noted = key.map(|key| self.note_alone(vhost, session.place, (key, spec)));
        if let Some(Ok(is_new)) = noted {
            return is_new;
        }
        let mut holders = Holders::default();
        if let Some(Err(other)) = noted {
            holders.set(other);
        }
        holders.set(session);
        let filters = self.filters.entry(vhost).or_default();
        filters.trie.insert(&spec.filter, true, holders);
        true
    }

    pub(in crate::shard) fn unbind(&mut self, vhost: VhostId, place: u32, spec: &FilterSpec) {
        let Some(filters) = self.filters.get_mut(&vhost) else {
            return;
        };
        filters.cache.clear();
        let holders = filters.trie.values_mut(&spec.filter).next();
        let shared = holders.map(|holders| (holders.remove(place), holders.is_empty()));
        match shared {
            Some((true, true)) => drop(filters.trie.remove(&spec.filter, Holders::is_empty)),
            Some((true, false)) => {}
            _ if !self.forget_alone(vhost, place, spec) => return,
            _ => {}
        }
        self.fabric.end_interest(vhost, &spec.filter, self.id);
    }
}
