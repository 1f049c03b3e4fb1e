//! A change of a shard's state that is no publish, as its journal keeps it.
//!
//! Owns: [`Change`] and the forms of its parts that may grow.
//! Never: how a record is framed (`record.rs`), what a change does.
//! Next: `shard/apply.rs`.

use crate::address::{Address, TopicFilter};
use crate::death::DeathReason;
use crate::gateway::{FilterSpec, OnceKey};
use crate::id::{Epoch, Offset, StreamId, UnixMs, VhostId};
use crate::limits::StreamLimits;
use crate::port::{GroupKey, Member};
use crate::will::SavedWill;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A change of a shard's state that is no publish. Persisted: variants and fields append only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// The node began a new life: lanes of other incarnations are forgotten, sessions that were live
    /// are closed as of the frame's time.
    Began {
        /// Upper 48 bits of its lanes.
        incarnation: u64,
    },
    /// Make a stream.
    CreateStream {
        /// Its id.
        stream: StreamId,
        /// Its vhost.
        vhost: VhostId,
        /// Its limits, as far as the first form of this record knew any; later ones use `CreateStreamWith`.
        limits: FirstLimits,
    },
    /// Delete a stream.
    DeleteStream {
        /// Which.
        stream: StreamId,
        /// Only when nothing is left but these offsets, which were handed out.
        only_if: Option<Vec<Offset>>,
    },
    /// Remove messages that were ready, at an operator's or client's wish.
    Purge {
        /// Which.
        stream: StreamId,
        /// First and last offset of each range.
        ranges: Vec<(Offset, Offset)>,
    },
    /// Messages that leave.
    Settled {
        /// Which stream.
        stream: StreamId,
        /// First and last offset of each range.
        ranges: Vec<(Offset, Offset)>,
    },
    /// Everything below was handed out at least once.
    Delivered {
        /// Which stream.
        stream: StreamId,
        /// First offset never handed out.
        until: Offset,
    },
    /// Open or resume a session.
    OpenSession {
        /// In.
        vhost: VhostId,
        /// Whose.
        client_id: Arc<str>,
        /// Forget an earlier one.
        clean_start: bool,
        /// Seconds it outlives its connection.
        expiry_s: u32,
    },
    /// A session's connection ended; it expires from now on.
    CloseSession {
        /// Which.
        stream: StreamId,
    },
    /// A session ends for good.
    EndSession {
        /// Which.
        stream: StreamId,
    },
    /// Another expiry.
    SessionExpiry {
        /// Which.
        stream: StreamId,
        /// Seconds it outlives its connection.
        expiry_s: u32,
    },
    /// Bind a session.
    Subscribe {
        /// Which.
        stream: StreamId,
        /// To.
        filters: Vec<FilterSpec>,
    },
    /// Unbind it.
    Unsubscribe {
        /// Which.
        stream: StreamId,
        /// From.
        filters: Vec<TopicFilter>,
    },
    /// Make a stream.
    CreateStreamWith {
        /// Its id.
        stream: StreamId,
        /// Its vhost.
        vhost: VhostId,
        /// Its name.
        name: Arc<str>,
        /// Its limits.
        limits: AsJson<StreamLimits>,
    },
    /// The peer of a session has messages that it has not settled.
    Received {
        /// Which.
        stream: StreamId,
        /// First and last offset of each range.
        ranges: Vec<(Offset, Offset)>,
    },
    /// A session takes a key of its publisher, unless it is held.
    Taken {
        /// Which session.
        stream: StreamId,
        /// The key.
        key: OnceKey,
    },
    /// A session lets go of a key.
    Forgotten {
        /// Which session.
        stream: StreamId,
        /// The key.
        key: OnceKey,
    },
    /// Open or resume a session that leaves a will.
    OpenSessionWith {
        /// In.
        vhost: VhostId,
        /// Whose.
        client_id: Arc<str>,
        /// Forget an earlier one.
        clean_start: bool,
        /// Seconds it outlives its connection.
        expiry_s: u32,
        /// The will; `OpenSession` leaves none.
        will: SavedWill,
    },
    /// A session's will is void.
    DropWill {
        /// Which session.
        stream: StreamId,
    },
    /// The delay of a session's will is over.
    WillDue {
        /// Which session.
        stream: StreamId,
        /// Not if it was opened since.
        epoch: Epoch,
    },
    /// A will is stored wherever it goes.
    WillDone {
        /// Which: wills are numbered as they become due.
        number: u64,
    },
    /// Remove a last value, at an operator's wish.
    DropValue {
        /// In.
        vhost: VhostId,
        /// Whose.
        address: Address,
    },
    /// Remove the last values that had ended by then.
    ValuesExpired {
        /// By the leader's clock.
        before: UnixMs,
    },
    /// A member joins a group, which is made when it is not there.
    JoinGroup {
        /// Which.
        group: GroupKey,
        /// Who.
        member: Member,
        /// For people.
        client_id: Arc<str>,
        /// Its limits, when it is made.
        limits: AsJson<StreamLimits>,
    },
    /// A member leaves a group, which ends with its last one.
    LeaveGroup {
        /// Which.
        group: GroupKey,
        /// Who.
        member: Member,
    },
    /// A session is a member of a group, or no more.
    Membership {
        /// The session.
        stream: StreamId,
        /// The group.
        name: Arc<str>,
        /// Its filter.
        filter: TopicFilter,
        /// What it asks; absent when it is no more.
        spec: Option<FilterSpec>,
    },
    /// A group's shard has let a member go whose session has ended here.
    Parted {
        /// Of the parting.
        number: u64,
    },
    /// Other limits of a stream.
    SetLimits {
        /// Which.
        stream: StreamId,
        /// All of them.
        limits: AsJson<StreamLimits>,
    },
    /// A stream that keeps its messages for a time lets go of the oldest.
    Trim {
        /// Which.
        stream: StreamId,
        /// The first offset that is kept.
        first: Offset,
    },
    /// Messages were dropped, and stay with nobody until their letters have arrived: then they leave.
    Pinned {
        /// Which stream.
        stream: StreamId,
        /// First and last offset of each run, and why.
        runs: Vec<(Offset, Offset, DeathReason)>,
    },
}

/// The limits that the first form of a record had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstLimits {
    /// See [`StreamLimits`].
    pub auto_delete: bool,
}

impl From<FirstLimits> for StreamLimits {
    fn from(first: FirstLimits) -> StreamLimits {
        StreamLimits {
            auto_delete: first.auto_delete,
            ..StreamLimits::default()
        }
    }
}

/// A part of a record or checkpoint that may get further fields: kept as JSON text inside the postcard encoding,
/// which has no names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsJson<T>(pub T);

impl<T: Serialize> Serialize for AsJson<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = serde_json::to_string(&self.0).map_err(serde::ser::Error::custom)?;
        serializer.serialize_str(&text)
    }
}

impl<'de, T: serde::de::DeserializeOwned> Deserialize<'de> for AsJson<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<AsJson<T>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let value = serde_json::from_str(&text).map_err(serde::de::Error::custom)?;
        Ok(AsJson(value))
    }
}
