//! Memberships in groups: where each is joined, what the connection calls it, and what waits for it.
//!
//! A membership has a consumer tag of its own, given in order and never twice. A session that outlives its connection
//! first notes the membership in its own shard and then joins in the data shard that the group's name says; when it is
//! resumed it joins again by its notes. A session that ends with its connection asks that shard too, and is sent to
//! the passing group, in the volatile shard that all workers know by the group's name, while there is no lasting one.
//! Told that one was made, it joins that under a new tag; what it holds of the passing one stays under the old.
//! See `shard/groups.rs`.
//!
//! Owns: memberships of live connections.
//! Never: who gets a message.
//! Next: `groups/join.rs`, `groups/leave.rs`, `groups/gather.rs`.

mod gather;
mod join;
mod leave;

pub(super) use gather::{Gatherings, Part, WithGroups};
pub(super) use join::Joining;

use super::{Connected, SessionAt};
use crate::address::TopicFilter;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::FilterSpec;
use crate::id::{ConnectionId, ConsumerTag, ShardId};
use crate::port::{GroupKey, Member};
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

fn gone() -> Refusal {
    Refusal::new(ErrorKind::NotFound, "the session is gone")
}

/// The text that says where a group belongs.
fn place_text(name: &str, filter: &TopicFilter) -> String {
    format!("{name}/{filter}")
}

impl SessionAt {
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

fn key_of(group: &GroupKey) -> (Arc<str>, TopicFilter) {
    (group.name.clone(), group.filter.clone())
}

fn membership<'a>(state: &'a mut Connected, group: &GroupKey) -> Option<&'a mut Membership> {
    state.session.as_mut()?.groups.get_mut(&key_of(group))
}

fn forget(state: &mut Connected, group: &GroupKey) {
    if let Some(session) = &mut state.session {
        session.groups.remove(&key_of(group));
    }
}
