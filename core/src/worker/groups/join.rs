//! A membership on its way: noted by the session, joined where the group is, moved when a lasting group is made.
//!
//! Owns: the steps of joining, and the reader that the connection gets for it.
//! Never: how a group takes a member (`shard/groups.rs`).
//! Next: `worker/groups/gather.rs`, which is told how it went.

use super::gather::Part;
use super::{Membership, forget, gone, key_of, membership, place_text};
use crate::gateway::FilterSpec;
use crate::id::{ConnectionId, ConsumerTag, Now, ShardId, StreamId, WorkerId};
use crate::message::Quality;
use crate::meta::placement::slot;
use crate::port::{ConsumerKey, GroupKey, JoinGroup, Question, ShardReply};
use crate::worker::commands::Checked;
use crate::worker::steps::Step;
use crate::worker::{Connected, ReaderAt, SessionAt, Worker};
use std::sync::Arc;

/// A membership on its way.
#[derive(Clone, Debug)]
pub(in crate::worker) struct Joining {
    group: GroupKey,
    spec: FilterSpec,
    tag: ConsumerTag,
    /// Which part of which answer it is.
    part: Option<Part>,
}

impl Worker {
    /// Begins a membership, or changes what it asks.
    pub(super) fn join(
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
        let key = key_of(&group);
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
    pub(in crate::worker) fn rejoin(
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
    pub(in crate::worker) fn enlisted(
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
    pub(in crate::worker) fn joined(
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
    pub(in crate::worker) fn group_made(
        &mut self,
        now: Now,
        home: ShardId,
        connection: ConnectionId,
        group: GroupKey,
    ) {
        let Some(mut state) = self.connections.remove(&connection) else {
            return;
        };
        let tag = state.session.as_mut().map(SessionAt::next_tag);
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
        giving_back: 0,
    });
    reader.presettled = presettled;
}
