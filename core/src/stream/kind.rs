//! What kind of reader a stream has: consumers of a queue, one session, or the members of a group.
//!
//! Owns: the parts of sessions and groups that all replicas have.
//! Never: messages; what opens, binds or ends one (`shard/apply/session.rs`, `shard/groups.rs`).
//! Next: `stream/saved.rs`, which keeps them in a checkpoint.

use super::{FilterList, Place, Stream};
use crate::gateway::FilterSpec;
use crate::id::{ConnectionId, Epoch, UnixMs};
use crate::once::Keys;
use crate::port::Member;
use crate::will::SavedWill;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What kind of reader a stream has.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Consumers share it.
    Queue,
    /// One session's own.
    Session(Session),
    /// Members of a group share it.
    Group(Group),
}

/// A group's part that all replicas have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// As its members call it.
    pub name: Arc<str>,
    /// Its binding to the vhost's topic exchange.
    pub spec: FilterSpec,
    /// Its members and their client ids.
    pub members: BTreeMap<Member, Arc<str>>,
    /// Another took its place. Only in memory.
    #[serde(skip)]
    pub retired: bool,
}

/// A session's durable part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Unique in its vhost.
    pub client_id: Arc<str>,
    /// Bumped when a connection opens it.
    pub epoch: Epoch,
    /// Seconds it outlives its connection; `u32::MAX` never ends.
    pub expiry_s: u32,
    /// When its connection ended; `None` while there is one.
    pub closed: Option<UnixMs>,
    /// Its bindings to the vhost's topic exchange.
    pub filters: FilterList,
    /// What it leaves behind when its connection ends out of order.
    pub will: Option<Box<SavedWill>>,
    /// Keys of its publisher's messages that are stored once, if it ever took one.
    pub keys: Option<Box<Keys>>,
    /// The groups it is a member of, with what it asks of each.
    pub groups: Vec<(Arc<str>, FilterSpec)>,
    /// Its live connection. Not persisted: the leader's memory.
    #[serde(skip)]
    pub live: Option<ConnectionId>,
}

impl Session {
    /// When it ends, if its connection is gone and it ever does.
    pub fn ends(&self) -> Option<UnixMs> {
        let closed = self.closed?;
        (self.expiry_s != u32::MAX).then(|| closed.after(u64::from(self.expiry_s) * 1000))
    }
}

impl<B: Place> Stream<B> {
    /// Whether it is a queue.
    pub fn is_queue(&self) -> bool {
        matches!(self.kind, Kind::Queue)
    }

    /// Whether members of a group share it.
    pub fn is_group(&self) -> bool {
        matches!(self.kind, Kind::Group(_))
    }

    /// The session, when it is one's.
    pub fn session(&self) -> Option<&Session> {
        match &self.kind {
            Kind::Session(session) => Some(session),
            Kind::Queue | Kind::Group(_) => None,
        }
    }

    /// The session to change, when it is one's.
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        self.touch();
        match &mut self.kind {
            Kind::Session(session) => Some(session),
            Kind::Queue | Kind::Group(_) => None,
        }
    }

    /// The group, when it is one's.
    pub fn group(&self) -> Option<&Group> {
        match &self.kind {
            Kind::Group(group) => Some(group),
            Kind::Queue | Kind::Session(_) => None,
        }
    }

    /// The group to change, when it is one's.
    pub fn group_mut(&mut self) -> Option<&mut Group> {
        self.touch();
        match &mut self.kind {
            Kind::Group(group) => Some(group),
            Kind::Queue | Kind::Session(_) => None,
        }
    }

    /// What a log calls it.
    pub fn called(&self) -> Arc<str> {
        match &self.kind {
            Kind::Queue => self.name.clone(),
            Kind::Session(session) => session.client_id.clone(),
            Kind::Group(group) => group.name.clone(),
        }
    }

    /// What death records call it.
    pub fn title(&self) -> &Arc<str> {
        match &self.kind {
            Kind::Queue | Kind::Session(_) => &self.name,
            Kind::Group(group) => &group.name,
        }
    }
}
