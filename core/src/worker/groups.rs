//! Memberships in groups: where each is joined, what the connection calls it, and what waits for it.
//!
//! A membership has a consumer tag of its own, given in order and never twice. A session that outlives its connection
//! first notes the membership in its own shard and then joins in the data shard that the group's name says; when it is
//! resumed it joins again by its notes. A session that ends with its connection asks that shard too, and is sent to
//! the passing group, in the volatile shard that all workers know by the group's name, while there is no lasting one.
//! Told that one was made, it joins that under a new tag; what it holds of the passing one stays under the old.
//! See `shard/groups.rs`.
//!
//! Owns: memberships of live connections; commands whose answer has several parts.
//! Never: who gets a message.

use super::commands::{Checked, Here};
use super::steps::Step;
use super::values::Reading;
use super::{Connected, ReaderAt, Worker};
use crate::address::TopicFilter;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::{FilterName, FilterSpec, Reply};
use crate::id::{ConnectionId, ConsumerTag, Now, ShardId, StreamId, Token, WorkerId};
use crate::message::Quality;
use crate::meta::placement::slot;
use crate::port::{ConsumerKey, GroupKey, JoinGroup, Member, Parting, Question, ShardReply};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A connection's membership.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    tag: ConsumerTag,
    /// Where it is joined, or asked to be.
    shard: ShardId,
    spec: FilterSpec,
    /// Its tag in a passing group that was retired.
    before: Option<ConsumerTag>,
}

/// A connection's memberships, by name and filter.
pub(super) type Memberships = FxHashMap<(Arc<str>, TopicFilter), Membership>;

/// A membership on its way.
#[derive(Clone, Debug)]
pub(super) struct Joining {
    group: GroupKey,
    spec: FilterSpec,
    tag: ConsumerTag,
    /// Which part of which answer it is.
    part: Option<Part>,
}

/// A part of an answer: of this gathering, at this place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    gathering: u64,
    place: usize,
}

/// Answers that are put together.
#[derive(Default)]
pub(super) struct Gatherings {
    open: FxHashMap<u64, Gathering>,
    last: u64,
}

struct Gathering {
    connection: ConnectionId,
    token: Token,
    parts: Parts,
    left: usize,
    readings: Vec<Reading>,
}

enum Parts {
    Granted(Vec<Option<Result<Quality, Refusal>>>),
    Existed(Vec<bool>),
}

/// What is asked of a session beside its own filters.
pub(super) struct WithGroups {
    /// Per filter, where it is known already.
    pub(super) results: Vec<Option<Result<Quality, Refusal>>>,
    /// The places of the session's own filters.
    pub(super) plain: Vec<usize>,
    /// The others, with their places.
    pub(super) groups: Vec<(usize, Arc<str>, FilterSpec)>,
    pub(super) readings: Vec<Reading>,
}

impl WithGroups {
    /// Of what was refused already, in the order of the filters, and what is asked of groups.
    pub(super) fn new(
        refused: Vec<Option<Refusal>>,
        groups: Vec<(usize, Arc<str>, FilterSpec)>,
        readings: Vec<Reading>,
    ) -> WithGroups {
        let results: Vec<_> = refused.into_iter().map(|why| why.map(Err)).collect();
        let of_group = |place: &usize| groups.iter().any(|(of, ..)| of == place);
        let open = results.iter().enumerate();
        let open = open.filter(|(_, result)| result.is_none());
        let plain = open
            .map(|(place, _)| place)
            .filter(|place| !of_group(place));
        WithGroups {
            plain: plain.collect(),
            results,
            groups,
            readings,
        }
    }
}

fn gone() -> Refusal {
    Refusal::new(ErrorKind::NotFound, "the session is gone")
}

/// The text that says where a group belongs.
fn place_text(name: &str, filter: &TopicFilter) -> String {
    format!("{name}/{filter}")
}

impl Worker {
    fn gather(&mut self, connection: ConnectionId, token: Token, parts: Parts, left: usize) -> u64 {
        self.gatherings.last += 1;
        let gathering = Gathering {
            connection,
            token,
            parts,
            left,
            readings: Vec::new(),
        };
        self.gatherings.open.insert(self.gatherings.last, gathering);
        self.gatherings.last
    }

    /// Some parts are known; with the last one the command is answered.
    fn gathered(&mut self, now: Now, number: u64, fill: impl FnOnce(&mut Gathering)) {
        let Some(gathering) = self.gatherings.open.get_mut(&number) else {
            return;
        };
        fill(gathering);
        gathering.left = gathering.left.saturating_sub(1);
        if gathering.left > 0 {
            return;
        }
        let Some(gathering) = self.gatherings.open.remove(&number) else {
            return;
        };
        let reply = match gathering.parts {
            Parts::Granted(parts) => {
                let parts = parts
                    .into_iter()
                    .map(|part| part.unwrap_or_else(|| Err(gone())));
                Reply::Subscribed(parts.collect())
            }
            Parts::Existed(parts) => Reply::Unsubscribed(parts),
        };
        self.done(gathering.connection, gathering.token, Ok(reply));
        if self.connections.contains_key(&gathering.connection) {
            self.begin_readings(now, gathering.readings);
        }
    }

    fn granted(&mut self, now: Now, part: Option<Part>, result: Result<Quality, Refusal>) {
        let Some(Part { gathering, place }) = part else {
            return;
        };
        self.gathered(now, gathering, |gathering| {
            if let Parts::Granted(parts) = &mut gathering.parts
                && let Some(part) = parts.get_mut(place)
            {
                *part = Some(result);
            }
        });
    }

    /// Subscribes, also as a member of groups. Gives the step of the session's own part, if there is one.
    pub(super) fn subscribe_with_groups(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        (token, here): (Token, &Here),
        asked: WithGroups,
    ) -> Option<Step> {
        let own = usize::from(!asked.plain.is_empty());
        let left = own + asked.groups.len();
        let parts = Parts::Granted(asked.results);
        let gathering = self.gather(connection, token, parts, left);
        for (place, name, spec) in asked.groups {
            let group = GroupKey {
                vhost: here.vhost,
                name,
                filter: spec.filter.clone(),
            };
            let part = Some(Part { gathering, place });
            self.join(now, connection, state, &here.name, (group, spec, part));
        }
        (own > 0).then_some(Step::SubscribedPart {
            gathering,
            places: asked.plain,
            readings: asked.readings,
        })
    }

    pub(super) fn subscribed_part(
        &mut self,
        now: Now,
        gathering: u64,
        places: &[usize],
        readings: Vec<Reading>,
        result: Checked<ShardReply>,
    ) {
        let all = match result {
            Ok(ShardReply::Subscribed(all)) => all,
            Ok(_) => Vec::new(),
            Err(why) => places.iter().map(|_| Err(why.clone())).collect(),
        };
        self.gathered(now, gathering, |gathering| {
            gathering.readings = readings;
            if let Parts::Granted(parts) = &mut gathering.parts {
                for (place, result) in places.iter().zip(all) {
                    parts[*place] = Some(result);
                }
            }
        });
    }

    /// Begins a membership, or changes what it asks.
    fn join(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        vhost_name: &str,
        (group, spec, part): (GroupKey, FilterSpec, Option<Part>),
    ) {
        let text = place_text(&group.name, &group.filter);
        let home = self.fabric.meta().place(vhost_name, &text);
        let (Some(home), Some(session)) = (home, &mut state.session) else {
            return self.granted(now, part, Err(gone()));
        };
        let key = (group.name.clone(), group.filter.clone());
        let (tag, shard) = match session.groups.get_mut(&key) {
            Some(known) => {
                known.spec = spec.clone();
                (known.tag, known.shard)
            }
            None => {
                let tag = session.next_tag();
                let membership = Membership {
                    tag,
                    shard: home,
                    spec: spec.clone(),
                    before: None,
                };
                session.groups.insert(key, membership);
                (tag, home)
            }
        };
        let joining = Joining {
            group,
            spec,
            tag,
            part,
        };
        // A resumed session has its notes.
        if session.lasts() && part.is_some() {
            let question = Question::Membership {
                connection,
                name: joining.group.name.clone(),
                filter: joining.group.filter.clone(),
                spec: Some(joining.spec.clone()),
            };
            let at = session.shard;
            let step = Step::Enlisted {
                joining: Box::new(joining),
                shard,
            };
            return self.ask_shard(now, at, connection, step, question);
        }
        self.ask_join(now, connection, state, joining, shard);
    }

    /// A resumed session joins what it is a member of.
    pub(super) fn rejoin(
        &mut self,
        now: Now,
        connection: ConnectionId,
        groups: Vec<(Arc<str>, FilterSpec)>,
    ) {
        let Some(mut state) = self.connections.remove(&connection) else {
            return;
        };
        if let Some((vhost, vhost_name)) = state.vhost.clone() {
            for (name, spec) in groups {
                let group = GroupKey {
                    vhost,
                    name,
                    filter: spec.filter.clone(),
                };
                self.join(
                    now,
                    connection,
                    &mut state,
                    &vhost_name,
                    (group, spec, None),
                );
            }
        }
        self.put_back(connection, state);
    }

    fn ask_join(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        joining: Joining,
        shard: ShardId,
    ) {
        state.touch(shard);
        let (Some(session), Some(principal), Some((_, vhost_name))) =
            (&state.session, &state.principal, &state.vhost)
        else {
            return self.granted(now, joining.part, Err(gone()));
        };
        let tag = joining.tag;
        let join = JoinGroup {
            group: joining.group.clone(),
            member: session.member(connection),
            client_id: session.client_id.clone(),
            spec: joining.spec.clone(),
            limits: (self.fabric.meta()).group_limits(joining.group.vhost, &joining.group.name),
            consumer: ConsumerKey { connection, tag },
            principal: principal.clone(),
            vhost_name: vhost_name.clone(),
            credit: session.credit,
        };
        let step = Step::Joined {
            joining: Box::new(joining),
        };
        let question = Question::JoinGroup(Box::new(join));
        self.ask_shard(now, shard, connection, step, question);
    }

    /// The session's shard has noted a membership.
    pub(super) fn enlisted(
        &mut self,
        now: Now,
        connection: ConnectionId,
        joining: Joining,
        shard: ShardId,
        result: Checked<ShardReply>,
    ) {
        let Some(mut state) = self.connections.remove(&connection) else {
            return;
        };
        match result {
            Ok(_) => self.ask_join(now, connection, &mut state, joining, shard),
            Err(why) => {
                forget(&mut state, &joining.group);
                self.put_back(connection, state);
                return self.granted(now, joining.part, Err(why));
            }
        }
        self.put_back(connection, state);
    }

    /// A shard has answered a member.
    pub(super) fn joined(
        &mut self,
        now: Now,
        connection: ConnectionId,
        shard: ShardId,
        joining: Joining,
        result: Checked<ShardReply>,
    ) {
        let Some(mut state) = self.connections.remove(&connection) else {
            return;
        };
        let quality = joining.spec.quality;
        let part = joining.part;
        let mut answer = Some(Ok(quality));
        match result {
            Ok(ShardReply::Joined(stream)) => attach(&mut state, shard, stream, &joining),
            Ok(ShardReply::Elsewhere) => {
                let text = place_text(&joining.group.name, &joining.group.filter);
                let name = state.vhost.as_ref().map(|(_, name)| name.clone());
                let place = slot(&name.unwrap_or_default(), &text) % self.workers.max(1);
                let passing = ShardId::volatile(WorkerId(place));
                if let Some(membership) = membership(&mut state, &joining.group) {
                    membership.shard = passing;
                }
                self.ask_join(now, connection, &mut state, joining, passing);
                answer = None;
            }
            Ok(_) => answer = Some(Err(gone())),
            Err(why) => {
                forget(&mut state, &joining.group);
                answer = Some(Err(why));
            }
        }
        self.put_back(connection, state);
        if let Some(answer) = answer {
            self.granted(now, part, answer);
        }
    }

    /// A lasting group was made where this connection had been sent to the passing one.
    pub(super) fn group_made(
        &mut self,
        now: Now,
        home: ShardId,
        connection: ConnectionId,
        group: GroupKey,
    ) {
        let Some(mut state) = self.connections.remove(&connection) else {
            return;
        };
        let tag = state.session.as_mut().map(super::SessionAt::next_tag);
        if let (Some(tag), Some(membership)) = (tag, membership(&mut state, &group))
            && membership.shard.is_volatile()
        {
            let passing = std::mem::replace(&mut membership.shard, home);
            membership.before = Some(std::mem::replace(&mut membership.tag, tag));
            let joining = Joining {
                group: group.clone(),
                spec: membership.spec.clone(),
                tag,
                part: None,
            };
            let question = Question::RetireGroup { group };
            self.ask_shard(now, passing, connection, Step::Nothing, question);
            self.ask_join(now, connection, &mut state, joining, home);
        }
        self.put_back(connection, state);
    }

    /// Unsubscribes, also from groups. Gives the session's own filters and the step of that part.
    pub(super) fn unsubscribe_with_groups(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        names: Vec<FilterName>,
    ) -> (Vec<TopicFilter>, Step) {
        let groups = names.iter().filter(|name| name.group.is_some()).count();
        let parts = Parts::Existed(vec![false; names.len()]);
        let gathering = self.gather(connection, token, parts, 1 + groups);
        let (mut places, mut filters) = (Vec::new(), Vec::new());
        for (place, FilterName { group, filter }) in names.into_iter().enumerate() {
            match group {
                Some(name) => {
                    let part = Some(Part { gathering, place });
                    self.leave(now, connection, state, (name, filter), part);
                }
                None => {
                    places.push(place);
                    filters.push(filter);
                }
            }
        }
        (filters, Step::UnsubscribedPart { gathering, places })
    }

    pub(super) fn unsubscribed_part(
        &mut self,
        now: Now,
        gathering: u64,
        places: &[usize],
        result: Checked<ShardReply>,
    ) {
        let all = match result {
            Ok(ShardReply::Unsubscribed(all)) => all,
            _ => Vec::new(),
        };
        self.gathered(now, gathering, |gathering| {
            if let Parts::Existed(parts) = &mut gathering.parts {
                for (place, existed) in places.iter().zip(all) {
                    parts[*place] = existed;
                }
            }
        });
    }

    /// Ends a membership.
    pub(super) fn leave(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        (name, filter): (Arc<str>, TopicFilter),
        part: Option<Part>,
    ) {
        let key = (name.clone(), filter.clone());
        let found = state.session.as_mut().and_then(|session| {
            let membership = session.groups.remove(&key)?;
            let noted = session.lasts().then_some(session.shard);
            Some((membership, session.member(connection), noted))
        });
        let (Some((membership, member, noted)), Some((vhost, vhost_name))) =
            (found, state.vhost.clone())
        else {
            if let Some(part) = part {
                self.gathered(now, part.gathering, |_| {});
            }
            return;
        };
        if let Some(shard) = noted {
            let question = Question::Membership {
                connection,
                name: name.clone(),
                filter: filter.clone(),
                spec: None,
            };
            self.ask_shard(now, shard, connection, Step::Nothing, question);
        }
        if let Some(before) = membership.before
            && let Some(reader) = state.readers.get(&before)
        {
            let consumer = ConsumerKey {
                connection,
                tag: before,
            };
            let stream = reader.stream;
            let step = Step::Cancelled {
                token: Token::NONE,
                tag: before,
            };
            let question = Question::Detach { consumer, stream };
            self.ask_shard(now, reader.shard, connection, step, question);
        }
        let text = place_text(&name, &filter);
        let group = GroupKey {
            vhost,
            name,
            filter,
        };
        let home = self.fabric.meta().place(&vhost_name, &text);
        // The data shard remembers whom it sent to a passing group.
        if let Some(home) = home.filter(|home| *home != membership.shard) {
            let question = Question::LeaveGroup {
                group: group.clone(),
                member,
                connection: Some(connection),
            };
            self.ask_shard(now, home, connection, Step::Nothing, question);
        }
        let question = Question::LeaveGroup {
            group,
            member,
            connection: Some(connection),
        };
        let step = Step::Left {
            tag: membership.tag,
            part,
        };
        self.ask_shard(now, membership.shard, connection, step, question);
    }

    pub(super) fn left(
        &mut self,
        now: Now,
        connection: ConnectionId,
        tag: ConsumerTag,
        part: Option<Part>,
    ) {
        self.with(connection, |state| drop(state.readers.remove(&tag)));
        if let Some(Part { gathering, place }) = part {
            self.gathered(now, gathering, |gathering| {
                if let Parts::Existed(parts) = &mut gathering.parts
                    && let Some(existed) = parts.get_mut(place)
                {
                    *existed = true;
                }
            });
        }
    }

    /// A session that was a member has ended: the group's shard is told, and then the session's.
    pub(super) fn parting(&mut self, now: Now, from: ShardId, number: u64, parting: Parting) {
        let Parting { group, member } = parting;
        let home = {
            let meta = self.fabric.meta();
            let vhost = meta.vhost_by_id(group.vhost);
            let text = place_text(&group.name, &group.filter);
            vhost.and_then(|vhost| meta.place(&vhost.name, &text))
        };
        let Some(home) = home else {
            // Its vhost is gone, and the group with it.
            return self.parted(now, from, number, Ok(ShardReply::Done));
        };
        let question = Question::LeaveGroup {
            group,
            member,
            connection: None,
        };
        let step = Step::Parted { from, number };
        self.ask_shard(now, home, ConnectionId::NONE, step, question);
    }

    pub(super) fn parted(
        &mut self,
        now: Now,
        from: ShardId,
        number: u64,
        result: Checked<ShardReply>,
    ) {
        // What failed is told again in the next life of the node.
        if result.is_ok() {
            let question = Question::Parted { number };
            self.ask_shard(now, from, ConnectionId::NONE, Step::Nothing, question);
        }
    }
}

impl super::SessionAt {
    /// As groups know it.
    fn member(&self, connection: ConnectionId) -> Member {
        match self.lasts() {
            true => Member::Session(self.stream),
            false => Member::Connection(connection),
        }
    }

    fn next_tag(&mut self) -> ConsumerTag {
        let tag = self.next_group_tag;
        self.next_group_tag = ConsumerTag(tag.0.wrapping_add(1));
        tag
    }
}

fn membership<'a>(state: &'a mut Connected, group: &GroupKey) -> Option<&'a mut Membership> {
    let key = (group.name.clone(), group.filter.clone());
    state.session.as_mut()?.groups.get_mut(&key)
}

fn forget(state: &mut Connected, group: &GroupKey) {
    if let Some(session) = &mut state.session {
        let key = (group.name.clone(), group.filter.clone());
        session.groups.remove(&key);
    }
}

/// Its deliveries come under its tag.
fn attach(state: &mut Connected, shard: ShardId, stream: StreamId, joining: &Joining) {
    let tag = joining.tag;
    let known = membership(state, &joining.group)
        .is_some_and(|known| known.tag == tag || known.before == Some(tag));
    if !known {
        return;
    }
    let presettled = joining.spec.quality == Quality::AtMostOnce;
    let reader = state.readers.entry(tag).or_insert_with(|| ReaderAt {
        shard,
        stream,
        name: Arc::from(""),
        attached: true,
        presettled,
        held: 0,
        member: true,
    });
    reader.presettled = presettled;
}
