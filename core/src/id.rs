//! Identifiers and units: newtypes for everything that would otherwise be a bare number.
//!
//! Owns: the number types that cross module boundaries, each with its unit in its name or its docs.
//! Never: arithmetic rules of a domain (those live with the domain).
//! Next: `address.rs` (names), `message.rs` (the unit that flows).

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A namespace. Persisted.
    VhostId(u32)
);
id!(
    /// An exchange, unique in the whole cluster and never reused. Persisted.
    ExchangeId(u32)
);
id!(
    /// A stream, unique in the whole cluster and never reused. Persisted.
    ///
    /// The upper 16 bits say who numbered it: [`StreamId::REGISTRY`] for streams that metadata
    /// registered, else the shard that opened a session (see [`StreamId::of_session`]).
    StreamId(u64)
);
id!(
    /// A shard: one replicated group, or one volatile shard of a node. Not persisted for volatile ones.
    ShardId(u16)
);
id!(
    /// A place in a stream; dense from 0. Persisted.
    Offset(u64)
);
id!(
    /// A byte place in a shard's journal, the same on every replica. Persisted.
    Position(u64)
);
id!(
    /// The consensus index of a frame. Persisted.
    LogIndex(u64)
);
id!(
    /// The consensus term of a frame. Persisted.
    Term(u64)
);
id!(
    /// A sender of publishes to a shard: one per worker and incarnation. Persisted in records.
    Lane(u64)
);
id!(
    /// The number of a publish in its lane; dense from 1. Persisted in records.
    Sequence(u64)
);
id!(
    /// Fencing counter of a session, bumped at takeover. Persisted.
    Epoch(u64)
);
id!(
    /// A live connection, unique in a node's lifetime. The upper 16 bits are its [`WorkerId`].
    ConnectionId(u64)
);
id!(
    /// A worker thread of this node.
    WorkerId(u16)
);
id!(
    /// What a connection calls one of its own questions; chosen by the connection, never 0 for a
    /// question that wants an answer.
    Token(u64)
);
id!(
    /// What a connection calls one of its own consumers; chosen by the connection.
    ConsumerTag(u32)
);
id!(
    /// Milliseconds since the Unix epoch, UTC. In `apply` it is the leader's stamp, else a node's clock.
    UnixMs(u64)
);
id!(
    /// Milliseconds of a clock that never jumps (keep-alive, heartbeats). Its zero means nothing.
    MonotonicMs(u64)
);

impl StreamId {
    /// No shard opens so many sessions: the bit tells their streams from those of delayed messages. Persisted.
    const DELAYED: u64 = 1 << 47;
    /// Tells what is left of streams that have ended. Persisted.
    const ENDED: u64 = 1 << 46;
    /// Upper 16 bits of streams that metadata numbers.
    pub const REGISTRY: u16 = u16::MAX;
    /// Where the rank of a level stands in streams that metadata numbers; it numbers no more than what lies below.
    /// Persisted.
    const RANK_SHIFT: u32 = 40;
    const RANK: u64 = 0xFF << Self::RANK_SHIFT;

    /// A stream numbered by metadata.
    pub fn of_registry(counter: u64) -> StreamId {
        StreamId((u64::from(Self::REGISTRY) << 48) | (counter & !Self::RANK & 0xFFFF_FFFF_FFFF))
    }

    /// The stream of one level of a queue with priorities: 0 is the highest level, the queue's own stream.
    pub fn level(self, rank: u8) -> StreamId {
        StreamId(self.whole().0 | (u64::from(rank) << Self::RANK_SHIFT))
    }

    /// Which level of a queue it is: 0 is the highest, and what every stream is that has none.
    pub fn rank(self) -> u8 {
        match (self.0 >> 48) as u16 == Self::REGISTRY {
            true => (self.0 >> Self::RANK_SHIFT) as u8,
            false => 0,
        }
    }

    /// The queue that it is a level of; itself when it is none.
    pub fn whole(self) -> StreamId {
        match self.rank() {
            0 => self,
            _ => StreamId(self.0 & !Self::RANK),
        }
    }

    /// The stream of a session that `shard` opened as its `counter`-th.
    pub fn of_session(shard: ShardId, counter: u64) -> StreamId {
        StreamId((u64::from(shard.0) << 48) | (counter & 0xFFFF_FFFF_FFFF))
    }

    /// Where `shard` keeps what an exchange delays.
    pub fn of_delayed(shard: ShardId, exchange: ExchangeId) -> StreamId {
        let session = StreamId::of_session(shard, u64::from(exchange.0));
        StreamId(session.0 | Self::DELAYED)
    }

    /// What is left of a stream that has ended, by the number that checkpoints call it. No shard has number 0.
    pub fn of_ended(serial: u64) -> StreamId {
        StreamId(Self::ENDED | (serial & (Self::ENDED - 1)))
    }

    /// Whether it is what is left of a stream that has ended.
    pub fn is_ended(self) -> bool {
        self.0 & !(Self::ENDED - 1) == Self::ENDED
    }

    /// Whether a shard numbered it for a session, rather than metadata for a name.
    pub fn is_session(self) -> bool {
        (self.0 >> 48) as u16 != Self::REGISTRY && self.0 & Self::DELAYED == 0
    }

    /// The exchange whose delayed messages it keeps, if it is such a stream.
    pub fn delayed_by(self) -> Option<ExchangeId> {
        let of_shard = (self.0 >> 48) as u16 != Self::REGISTRY;
        (of_shard && self.0 & Self::DELAYED != 0).then_some(ExchangeId(self.0 as u32))
    }

    /// Whether it keeps messages until they are due.
    pub fn is_delayed(self) -> bool {
        self.delayed_by().is_some()
    }
}

impl ShardId {
    /// Volatile shards have the upper bit set: one per worker of a node.
    pub fn volatile(worker: WorkerId) -> ShardId {
        ShardId(0x8000 | worker.0)
    }

    /// The worker that hosts this volatile shard.
    pub fn host(self) -> WorkerId {
        WorkerId(self.0 & 0x7FFF)
    }

    /// Whether it keeps its streams in memory only, gone with the node's incarnation.
    pub fn is_volatile(self) -> bool {
        self.0 & 0x8000 != 0
    }
}

impl ConnectionId {
    /// No connection: what the broker does by itself. Workers count theirs from 1.
    pub const NONE: ConnectionId = ConnectionId(0);

    /// The `counter`-th connection of a worker.
    pub fn new(worker: WorkerId, counter: u64) -> ConnectionId {
        ConnectionId((u64::from(worker.0) << 48) | (counter & 0xFFFF_FFFF_FFFF))
    }

    /// The worker it is pinned to.
    pub fn worker(self) -> WorkerId {
        WorkerId((self.0 >> 48) as u16)
    }
}

impl Token {
    /// "No answer wanted."
    pub const NONE: Token = Token(0);
}

/// What the clocks say, handed in with every input: core and gateways never read one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// For intervals: keep-alive, heartbeats, timeouts.
    pub monotonic: MonotonicMs,
    /// For absolute times: expiry, time stamps.
    pub unix: UnixMs,
}

impl MonotonicMs {
    /// This time plus `ms` milliseconds.
    pub fn after(self, ms: u64) -> MonotonicMs {
        MonotonicMs(self.0.saturating_add(ms))
    }
}

impl UnixMs {
    /// This time plus `ms` milliseconds.
    pub fn after(self, ms: u64) -> UnixMs {
        UnixMs(self.0.saturating_add(ms))
    }
}

impl Offset {
    /// Where the rank of a level stands: so that numbers up to the last place of the last level are exact as floating
    /// point too. A level has 35 million million places.
    const RANK_SHIFT: u32 = 45;

    /// The next place.
    pub fn next(self) -> Offset {
        Offset(self.0 + 1)
    }

    /// As a queue with priorities calls a place of one of its levels: in the order in which they go out. Of the highest
    /// level, and of a stream without levels, it is the place itself.
    pub fn of_level(rank: u8, place: u64) -> Offset {
        Offset((u64::from(rank) << Self::RANK_SHIFT) | place)
    }

    /// The level that it is of.
    pub fn rank(self) -> u8 {
        u8::try_from(self.0 >> Self::RANK_SHIFT).unwrap_or(u8::MAX)
    }

    /// Its place there.
    pub fn place(self) -> u64 {
        self.0 & ((1 << Self::RANK_SHIFT) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_id_says_who_numbered_it() {
        assert!(!StreamId::of_registry(7).is_session());
        assert!(StreamId::of_session(ShardId(3), 7).is_session());
        assert!(StreamId::of_session(ShardId::volatile(WorkerId(1)), 7).is_session());
        let delayed = StreamId::of_delayed(ShardId(3), ExchangeId(9));
        assert_eq!(delayed.delayed_by(), Some(ExchangeId(9)));
        assert!(!delayed.is_session());
        for other in [
            StreamId::of_registry(u64::MAX),
            StreamId::of_session(ShardId(3), 9),
            StreamId::of_ended(9),
        ] {
            assert!(!other.is_delayed());
        }
        assert!(StreamId::of_ended(u64::MAX).is_ended());
        for other in [
            StreamId::of_registry(u64::MAX),
            StreamId::of_registry(7).level(255),
            StreamId::of_session(ShardId(1), u64::MAX),
            StreamId::of_delayed(ShardId(3), ExchangeId(9)),
        ] {
            assert!(!other.is_ended());
        }
    }

    #[test]
    fn a_level_knows_its_queue_and_a_place_its_level() {
        let queue = StreamId::of_registry(7);
        let lowest = queue.level(255);
        assert_eq!(
            (queue.rank(), queue.whole(), queue.level(0)),
            (0, queue, queue)
        );
        assert_eq!((lowest.rank(), lowest.whole()), (255, queue));
        assert!(!lowest.is_session() && !lowest.is_delayed());
        assert_eq!(StreamId::of_registry(u64::MAX).rank(), 0);
        for other in [
            StreamId::of_session(ShardId(3), 0xFFFF_FFFF),
            StreamId::of_delayed(ShardId(3), ExchangeId(9)),
        ] {
            assert_eq!((other.rank(), other.whole()), (0, other));
        }
        let at = Offset::of_level(3, 9);
        assert_eq!((at.rank(), at.place()), (3, 9));
        assert!(at > Offset::of_level(2, u64::from(u32::MAX)));
        assert_eq!(Offset::of_level(0, 9), Offset(9));
    }

    #[test]
    fn a_connection_knows_its_worker() {
        assert_eq!(ConnectionId::new(WorkerId(5), 99).worker(), WorkerId(5));
    }
}
