//! Groups: streams that several sessions share, each message going to one of them.
//!
//! A group is named by vhost, name and filter. It is a stream bound to that filter as a session is; its members are
//! its readers while they have a connection. It is there from its first member to its last.
//!
//! A *lasting* group lives in a data shard, is journalled, and may have sessions that outlive their connections. While
//! all members end with their connections the group is *passing*: it lives in the volatile shard of one worker, which
//! all workers find by the same rule, and is gone with its members. Whoever joins asks the data shard first. That one
//! remembers whom it sent to the passing group, and tells them when a lasting one is made: they join it, and the
//! passing one is *retired*: unbound, and gone when its members have taken what is left. Between the binding of the
//! one and the unbinding of the other a message may reach both, and so two members; none is lost.
//!
//! A session keeps its memberships. When it ends, each becomes a *parting* that stays in the session's shard until
//! the group's shard has let the member go, also across crashes. Members are named by the session's stream, which is
//! never used again, so that a late parting meets no later session of the same client.
//!
//! Owns: members, the making and ending of groups, partings.
//! Never: who is served (`deliver.rs`), what a connection calls its memberships (`worker/groups.rs`).

use super::checkpoint::{Changes, encoded};
use super::{Place, Shard};
use crate::address::TopicFilter;
use crate::dispatch::Reader;
use crate::gateway::FilterSpec;
use crate::id::{ConnectionId, Now, Sequence, StreamId, UnixMs, WorkerId};
use crate::limits::StreamLimits;
use crate::message::Quality;
use crate::port::{
    GroupKey, GroupStat, JoinGroup, Member, Parting, ShardEvent, ShardReply, Ticket,
};
use crate::record::{AsJson, Change, Mark};
use crate::stream::{Group, Kind, Stream};
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a shard knows of groups beside their streams.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Where each is. Derived.
    pub(super) places: FxHashMap<GroupKey, u32>,
    /// Members of groups, perhaps of other shards, whose sessions have ended. Replicated.
    pub(super) partings: BTreeMap<u64, Parting>,
    pub(super) last_parting: u64,
    /// For checkpoints.
    pub(super) changes: Changes<u64>,
    /// The leader's memory from here on: partings told to a worker.
    told: FxHashSet<u64>,
    joining: FxHashMap<(WorkerId, Ticket), JoinGroup>,
    /// Connections that were sent to a passing group.
    sent_away: FxHashMap<GroupKey, BTreeSet<ConnectionId>>,
    sent_away_of: FxHashMap<ConnectionId, Vec<GroupKey>>,
    /// Retired groups that are not empty yet.
    retired: Vec<StreamId>,
}

impl Groups {
    /// Puts memberships of a session that has ended down.
    pub(super) fn part(&mut self, partings: impl Iterator<Item = Parting>) {
        for parting in partings {
            self.last_parting += 1;
            self.put_parting(self.last_parting, parting);
        }
    }

    pub(super) fn put_parting(&mut self, number: u64, parting: Parting) {
        self.changes.touch(&number, || None);
        self.partings.insert(number, parting);
    }

    /// The next parting that is to be copied into a checkpoint, absent when it is over.
    pub(super) fn next_change(&mut self) -> Option<(u64, Option<Bytes>)> {
        let partings = &self.partings;
        self.changes
            .next(|number| partings.get(number).map(encoded))
    }

    fn send_away(&mut self, group: GroupKey, connection: ConnectionId) {
        let of = self.sent_away_of.entry(connection).or_default();
        if !of.contains(&group) {
            of.push(group.clone());
        }
        self.sent_away.entry(group).or_default().insert(connection);
    }

    fn forget(&mut self, connection: ConnectionId) {
        self.joining
            .retain(|_, join| join.consumer.connection != connection);
        for group in self.sent_away_of.remove(&connection).into_iter().flatten() {
            self.forget_one(&group, connection);
        }
    }

    fn forget_one(&mut self, group: &GroupKey, connection: ConnectionId) {
        if let Some(others) = self.sent_away.get_mut(group) {
            others.remove(&connection);
            if others.is_empty() {
                self.sent_away.remove(group);
            }
        }
        if let Some(of) = self.sent_away_of.get_mut(&connection) {
            of.retain(|known| known != group);
            if of.is_empty() {
                self.sent_away_of.remove(&connection);
            }
        }
    }

    fn take_sent_away(&mut self, group: &GroupKey) -> BTreeSet<ConnectionId> {
        let connections = self.sent_away.get(group).cloned().unwrap_or_default();
        for connection in &connections {
            self.forget_one(group, *connection);
        }
        connections
    }
}

impl<B: Place> Shard<B> {
    /// The first step of joining: to the passing group, or into the journal.
    pub(super) fn join_group(&mut self, now: Now, from: WorkerId, ticket: Ticket, join: JoinGroup) {
        let passes = matches!(join.member, Member::Connection(_));
        if self.journalled() && passes && !self.groups.places.contains_key(&join.group) {
            self.groups.send_away(join.group, join.consumer.connection);
            return self.reply(from, ticket, Ok(ShardReply::Elsewhere));
        }
        let mark = Mark {
            lane: self.lane(from),
            sequence: Sequence(ticket),
        };
        let change = Change::JoinGroup {
            group: join.group.clone(),
            member: join.member,
            client_id: join.client_id.clone(),
            limits: AsJson(join.limits.clone()),
        };
        self.groups.joining.insert((from, ticket), join);
        self.change(now.unix, mark, change);
    }

    pub(super) fn apply_join(
        &mut self,
        clock: UnixMs,
        mark: Mark,
        key: GroupKey,
        (member, client_id): (Member, Arc<str>),
        limits: StreamLimits,
    ) {
        let known = self.groups.places.get(&key).copied();
        let place = known.unwrap_or_else(|| self.make_group(&key, limits));
        let Some(stream) = self.streams[place as usize].as_deref_mut() else {
            return;
        };
        let id = stream.id;
        if let Some(group) = stream.group_mut() {
            group.members.insert(member, client_id);
        }
        if known.is_none() {
            for connection in self.groups.take_sent_away(&key) {
                let group = key.clone();
                let event = ShardEvent::GroupMade { connection, group };
                self.outbox.event(connection.worker(), event);
            }
        }
        let Some(worker) = self.worker_of(mark.lane) else {
            return;
        };
        match self.groups.joining.remove(&(worker, mark.sequence.0)) {
            Some(join) => {
                self.attach_member(id, join);
                self.reply(worker, mark.sequence.0, Ok(ShardReply::Joined(id)));
            }
            // Its connection is gone already; a session stays a member without one.
            None if matches!(member, Member::Connection(_)) => {
                let change = Change::LeaveGroup { group: key, member };
                self.change(clock, Mark::default(), change);
            }
            None => {}
        }
    }

    fn make_group(&mut self, key: &GroupKey, limits: StreamLimits) -> u32 {
        self.session_counter += 1;
        let id = StreamId::of_session(self.id, self.session_counter);
        let group = Group {
            name: key.name.clone(),
            spec: FilterSpec {
                filter: key.filter.clone(),
                quality: Quality::AtLeastOnce,
                no_local: false,
                retain_as_published: false,
                identifier: 0,
            },
            members: BTreeMap::new(),
            retired: false,
        };
        self.insert_group(Stream::new(id, key.vhost, Kind::Group(group), limits))
    }

    /// Takes a group's stream in, also one of a checkpoint.
    pub(super) fn insert_group(&mut self, stream: Stream<B>) -> u32 {
        let found = stream
            .group()
            .map(|group| (stream.vhost, group.name.clone(), group.spec.clone()));
        let place = self.insert(stream);
        if let Some((vhost, name, spec)) = found {
            let filter = spec.filter.clone();
            let key = GroupKey {
                vhost,
                name,
                filter,
            };
            self.groups.places.insert(key, place);
            self.bind(place, spec);
        }
        place
    }

    fn attach_member(&mut self, id: StreamId, join: JoinGroup) {
        let receives_all = self.receives_all(&join.principal, &join.vhost_name);
        let key = join.consumer;
        let Some(&place) = self.by_id.get(&id) else {
            return;
        };
        let Some(stream) = self.streams[place as usize].as_deref_mut() else {
            return;
        };
        if let Some(reader) = stream.readers.find(key) {
            // It joined again, with other wishes.
            reader.presettled = join.spec.quality == Quality::AtMostOnce;
            reader.member = Some(Box::new(join.spec));
        } else {
            stream.readers.add(Reader {
                credit: join.credit,
                attached: true,
                receives_all,
                member: Some(Box::new(join.spec)),
                ..Reader::new(key, join.principal, join.vhost_name)
            });
            let live = self.live.entry(key.connection).or_default();
            live.readers.push((id, key));
        }
        stream.recall_aside();
        self.list(place);
    }

    /// A member leaves: what its connection holds goes to the others at once.
    pub(super) fn leave_group(
        &mut self,
        now: Now,
        mark: Mark,
        group: GroupKey,
        (member, connection): (Member, Option<ConnectionId>),
    ) {
        let place = self.groups.places.get(&group).copied();
        let stream = place.and_then(|place| self.streams[place as usize].as_deref());
        if let (Some(connection), Some(stream)) = (connection, stream) {
            let id = stream.id;
            let of = stream.readers.iter().map(|reader| reader.key);
            let of: Vec<_> = of.filter(|key| key.connection == connection).collect();
            for key in of {
                self.detach(id, key, true);
                if let Some(live) = self.live.get_mut(&connection) {
                    live.readers.retain(|known| *known != (id, key));
                }
            }
            self.outbox.settle_order(connection);
        }
        if let Member::Connection(connection) = member
            && place.is_none()
        {
            // It is a member of the passing group.
            self.groups.forget_one(&group, connection);
            return self.answer(mark, ShardReply::Done);
        }
        self.change(now.unix, mark, Change::LeaveGroup { group, member });
    }

    pub(super) fn apply_leave(&mut self, mark: Mark, key: &GroupKey, member: Member) {
        let place = self.groups.places.get(key).copied();
        let stream = place.and_then(|place| self.streams[place as usize].as_deref_mut());
        if let Some(stream) = stream {
            let id = stream.id;
            let last = stream.group_mut().is_some_and(|group| {
                group.members.remove(&member);
                group.members.is_empty()
            });
            if last {
                self.remove(id);
            }
        }
        self.answer(mark, ShardReply::Done);
    }

    /// A connection is gone, and its memberships with it where they were its own.
    pub(super) fn leave_groups(&mut self, now: UnixMs, connection: ConnectionId, of: &[StreamId]) {
        self.groups.forget(connection);
        let member = Member::Connection(connection);
        for id in of {
            let Some(stream) = self.stream_mut(*id) else {
                continue;
            };
            let vhost = stream.vhost;
            let Some(group) = stream.group_mut() else {
                continue;
            };
            if group.retired || !group.members.contains_key(&member) {
                continue;
            }
            let group = GroupKey {
                vhost,
                name: group.name.clone(),
                filter: group.spec.filter.clone(),
            };
            self.change(now, Mark::default(), Change::LeaveGroup { group, member });
        }
    }

    /// The node began a new life: members that were connections are gone.
    pub(super) fn apply_groups_began(&mut self) {
        let groups = self.groups.places.iter();
        let mut gone: Vec<(GroupKey, Member)> = Vec::new();
        for (key, place) in groups {
            let stream = self.streams[*place as usize].as_deref();
            let members = stream.and_then(|stream| stream.group());
            let members = members.into_iter().flat_map(|group| group.members.keys());
            let passing = members.filter(|member| matches!(member, Member::Connection(_)));
            gone.extend(passing.map(|member| (key.clone(), *member)));
        }
        gone.sort_unstable();
        for (key, member) in gone {
            self.apply_leave(Mark::default(), &key, member);
        }
    }

    /// A lasting group took the place of this passing one: it gets nothing more, and ends when it is empty.
    pub(super) fn retire_group(&mut self, key: &GroupKey) {
        let Some(place) = self.groups.places.remove(key) else {
            return;
        };
        let Some(stream) = self.streams[place as usize].as_deref_mut() else {
            return;
        };
        let id = stream.id;
        let Some(group) = stream.group_mut() else {
            return;
        };
        group.retired = true;
        let spec = group.spec.clone();
        self.unbind(key.vhost, place, &spec);
        self.groups.retired.push(id);
    }

    /// Ends retired groups that are empty or have nobody left.
    pub(super) fn end_retired(&mut self) {
        let retired = std::mem::take(&mut self.groups.retired);
        for id in retired {
            let Some(stream) = self.stream_mut(id) else {
                continue;
            };
            match stream.messages() == 0 || stream.readers.attached() == 0 {
                true => drop(self.remove(id)),
                false => self.groups.retired.push(id),
            }
        }
    }

    /// What is to be undone when a group's stream is removed.
    pub(super) fn group_removed(&mut self, place: u32, stream: &Stream<B>) {
        let Some(group) = stream.group().filter(|group| !group.retired) else {
            return;
        };
        let key = GroupKey {
            vhost: stream.vhost,
            name: group.name.clone(),
            filter: group.spec.filter.clone(),
        };
        self.groups.places.remove(&key);
        self.unbind(stream.vhost, place, &group.spec);
    }

    /// Tells workers of partings that they have not heard of in this life of the node.
    pub(super) fn tell_partings(&mut self) {
        if self.groups.partings.len() == self.groups.told.len() {
            return;
        }
        let partings = self.groups.partings.iter();
        let fresh = partings.filter(|(number, _)| !self.groups.told.contains(number));
        let fresh: Vec<(u64, Parting)> = fresh
            .map(|(number, what)| (*number, what.clone()))
            .collect();
        for (number, parting) in fresh {
            self.groups.told.insert(number);
            // Any of them can do it.
            let worker = WorkerId((number % u64::from(self.worker_count.max(1))) as u16);
            self.outbox
                .event(worker, ShardEvent::Parting { number, parting });
        }
    }

    /// Says whether the session was a member before.
    pub(super) fn apply_membership(
        &mut self,
        id: StreamId,
        name: &Arc<str>,
        filter: &TopicFilter,
        spec: Option<FilterSpec>,
    ) -> bool {
        let Some(session) = self.stream_mut(id).and_then(Stream::session_mut) else {
            return false;
        };
        let mut groups = session.groups.iter();
        let known = groups.position(|(known, spec)| known == name && spec.filter == *filter);
        match (known, spec) {
            (Some(at), Some(spec)) => session.groups[at].1 = spec,
            (Some(at), None) => drop(session.groups.remove(at)),
            (None, Some(spec)) => session.groups.push((name.clone(), spec)),
            (None, None) => {}
        }
        known.is_some()
    }

    pub(super) fn apply_parted(&mut self, number: u64) {
        let partings = &self.groups.partings;
        let now = || partings.get(&number).map(encoded);
        self.groups.changes.touch(&number, now);
        self.groups.partings.remove(&number);
        self.groups.told.remove(&number);
    }

    /// All groups here, with their members.
    pub(super) fn group_stats(&self) -> Vec<GroupStat> {
        let streams = self.streams.iter().flatten();
        let groups = streams.filter_map(|stream| {
            let group = stream.group()?;
            let members = group.members.iter();
            Some(GroupStat {
                members: members
                    .map(|(member, client)| (client.clone(), matches!(member, Member::Session(_))))
                    .collect(),
                stat: super::questions::stat(stream),
            })
        });
        groups.collect()
    }
}
