//! The types that the consensus library is configured with.
//!
//! Owns: what one entry is (a frame), what applying it answers, how an answer travels. Never used
//! outside of this module but through [`super`]. Read next: [`super::log`], [`super::machine`].

use anabranch_core::id::{LogIndex, UnixMs};
use bytes::Bytes;
use openraft::raft::responder::Responder;
use openraft::{BasicNode, EntryPayload, RaftTypeConfig};
use openraft_rt::deterministic_rng::DeterministicRng;
use openraft_rt_tokio::TokioRuntime;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Names all types for the library. One leader per term, so a frame is known by term and index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Types;

impl RaftTypeConfig for Types {
    type D = Proposal;
    type R = Applied;
    type NodeId = u64;
    type Node = BasicNode;
    type Term = u64;
    type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = EntryPayload<Self::D, Self::NodeId, Self::Node>;
    type Entry = openraft::Entry<CommittedLeader, Self::Payload>;
    type Responder<T>
        = Answer<T>
    where
        T: Send + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: Send + 'static;
    // Election timeouts are drawn from a seed that the owner gives, so that a simulation repeats.
    type AsyncRuntime = DeterministicRng<TokioRuntime>;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// A leader as a log id names it: its term.
pub(crate) type CommittedLeader = openraft::type_config::alias::CommittedLeaderIdOf<Types>;
/// The identity of an entry.
pub(crate) type LogId = openraft::LogId<CommittedLeader>;
/// One entry of the log.
pub(crate) type Entry = openraft::type_config::alias::EntryOf<Types>;
/// A vote.
pub(crate) type Vote = openraft::type_config::alias::VoteOf<Types>;
/// The members of the group, and the entry that made them so.
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<Types>;
/// What a snapshot covers.
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<Types>;
/// The members of the group.
pub(crate) type Membership = openraft::Membership<u64, BasicNode>;

/// A batch of records on its way into the log, with the leader's stamps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The leader's clock.
    pub clock: UnixMs,
    /// What the leader knew to be committed.
    pub committed: LogIndex,
    /// The records, opaque here.
    #[serde(with = "plain_bytes")]
    pub payload: Bytes,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {} ms", self.payload.len(), self.clock)
    }
}

/// What applying one frame answers to its proposer: bytes whose meaning the state machine knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// May be empty; then nothing was allocated.
    #[serde(with = "plain_bytes")]
    pub reply: Bytes,
}

mod plain_bytes {
    use super::{Bytes, Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        bytes: &Bytes,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Bytes, D::Error> {
        Vec::<u8>::deserialize(deserializer).map(Bytes::from)
    }
}

type Call<T> = Box<dyn FnOnce(Option<T>) + Send>;

/// Carries an answer back to a proposer: called exactly once, with `None` when the library gave the
/// proposal up without an answer.
pub struct Answer<T> {
    call: Option<Call<T>>,
}

impl<T> Answer<T> {
    pub(crate) fn new(call: impl FnOnce(Option<T>) + Send + 'static) -> Self {
        Self {
            call: Some(Box::new(call)),
        }
    }
}

impl<T: Send + 'static> Responder<Types, T> for Answer<T> {
    fn on_complete(mut self, result: T) {
        if let Some(call) = self.call.take() {
            call(Some(result));
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            call(None);
        }
    }
}
