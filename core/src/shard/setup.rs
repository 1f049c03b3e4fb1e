//! What a shard is made with: its limits, what it shares with the node, and where it keeps messages.
//!
//! Owns: [`ShardSetup`], [`ShardLimits`], and [`Bodies`], by which with [`Place`] one code serves both kinds of shard.
//! Never: the journal's side of [`Bodies`] (`store/`).
//! Next: `shard/intake.rs`, where the two kinds differ.

use crate::authority::Authority;
use crate::id::ShardId;
use crate::message::Message;
use crate::properties::Codecs;
use crate::router::Fabric;
pub use crate::stream::Place;
use std::sync::Arc;

/// What came of a look for a message.
#[derive(Clone, Debug)]
pub enum Fetched {
    /// Here it is.
    Here(Arc<Message>),
    /// It lies far away and is on its way: the host says when something has arrived
    /// ([`Shard::arrived`](super::Shard::arrived)), then it is asked for again.
    Later,
    /// It cannot be read (logged by the implementation).
    Lost,
}

impl From<Option<Arc<Message>>> for Fetched {
    fn from(message: Option<Arc<Message>>) -> Self {
        message.map_or(Fetched::Lost, Fetched::Here)
    }
}

/// What is asked for is on its way: the answer has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotYet;

impl Fetched {
    /// The message, if it can be read.
    pub(crate) fn here(self) -> Result<Option<Arc<Message>>, NotYet> {
        match self {
            Fetched::Here(message) => Ok(Some(message)),
            Fetched::Lost => Ok(None),
            Fetched::Later => Err(NotYet),
        }
    }
}

/// Gets a message back from its place. Never waits.
pub trait Bodies<B> {
    /// The message, or why there is none.
    fn fetch(&mut self, place: &B) -> Fetched;
}

/// [`Bodies`] of a volatile shard.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl Bodies<Arc<Message>> for InMemory {
    fn fetch(&mut self, place: &Arc<Message>) -> Fetched {
        Fetched::Here(place.clone())
    }
}

/// Named limits of a shard.
#[derive(Clone, Copy, Debug)]
pub struct ShardLimits {
    /// Cost of all messages in queues of a volatile shard, in bytes: beyond, publishers are held back. Its
    /// sessions have as much again: beyond, those that lag lose newer messages, counted.
    pub volatile_bytes_max: u64,
    /// Entries of all queues, and as many again of all sessions; beyond, as above. In a journalled shard a long queue
    /// takes about a byte of memory for each, beside [`ShardLimits::index_memory_bytes`].
    pub entries_max: u64,
    /// Cost of one session's waiting messages, in bytes; newer ones are dropped and counted beyond.
    pub session_bytes_max: u64,
    /// Bytes handed in and not yet committed; publishers are blocked beyond, until half of it is done.
    pub parked_bytes_max: usize,
    /// Last values; a publish that would add one beyond is refused.
    pub values_max: u64,
    /// What they cost, in bytes; likewise.
    pub values_bytes_max: u64,
    /// Messages that wait until they are due (each takes about 120 bytes of memory); a publish that would add one
    /// beyond is refused with `Busy`.
    pub delayed_max: u64,
    /// Memory for entries of a journalled shard that lie in its index file too, in bytes.
    pub index_memory_bytes: usize,
    /// How long a delivery of a queue may be unsettled that says nothing of it, in milliseconds; 0 is for ever.
    pub ack_timeout_ms: u64,
}

impl Default for ShardLimits {
    fn default() -> Self {
        ShardLimits {
            volatile_bytes_max: 256 << 20,
            entries_max: 400_000_000,
            session_bytes_max: 64 << 20,
            parked_bytes_max: 64 << 20,
            values_max: 10_000_000,
            values_bytes_max: 256 << 20,
            delayed_max: 4_000_000,
            index_memory_bytes: 32 << 20,
            ack_timeout_ms: 30 * 60 * 1000,
        }
    }
}

/// What a shard is made with.
pub struct ShardSetup {
    /// Which.
    pub id: ShardId,
    /// This life of the node; lanes of workers are made of it.
    pub incarnation: u64,
    /// Workers of the node: they publish what the shard sends on.
    pub workers: u16,
    /// Limits.
    pub limits: ShardLimits,
    /// Where it tells its sessions' interest.
    pub fabric: Arc<Fabric>,
    /// Who may receive.
    pub authority: Arc<dyn Authority>,
    /// Read the headers of messages, where a stream asks for them.
    pub codecs: Codecs,
}
