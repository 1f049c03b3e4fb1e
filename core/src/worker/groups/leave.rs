//! The end of a membership: at the connection's wish, or with a session that was a member.
//!
//! Owns: who is told of it, in which order.
//! Never: what the group does with what the member held (`shard/groups.rs`).
//! Next: `worker/groups/gather.rs`, which is told that it is done.

use super::gather::{Part, Parts};
use super::place_text;
use crate::address::TopicFilter;
use crate::id::{ConnectionId, ConsumerTag, Now, ShardId, Token};
use crate::port::{ConsumerKey, GroupKey, Parting, Question, ShardReply};
use crate::worker::commands::Checked;
use crate::worker::steps::Step;
use crate::worker::{Connected, Worker};
use std::sync::Arc;

impl Worker {
    /// Ends a membership.
    pub(in crate::worker) fn leave(
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

    pub(in crate::worker) fn left(
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
    pub(in crate::worker) fn parting(
        &mut self,
        now: Now,
        from: ShardId,
        number: u64,
        parting: Parting,
    ) {
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

    pub(in crate::worker) fn parted(
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
