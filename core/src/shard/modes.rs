//! The modes of a stream where they are more than a choice among readers: who is served of an ordered stream,
//! who takes a single message beside it, and a change of mode.
//!
//! Owns: these three.
//! Never: the order of offsets (`stream.rs`), who comes first (`dispatch.rs`).
//! Next: `keyed.rs`.

use super::{Bodies, NotYet, Place, Shard};
use crate::error::{ErrorKind, Refusal};
use crate::id::{Now, StreamId};
use crate::limits::Mode;
use crate::port::{ConsumerKey, ShardEvent};
use crate::stream::Stream;

impl<B: Place> Shard<B> {
    /// The place of the reader that an ordered stream serves now.
    pub(super) fn elect(&mut self, stream: &mut Stream<B>) -> Option<usize> {
        let (place, other) = stream.readers.elect()?;
        if other {
            // What the one before might not receive, this one may.
            stream.recall_aside();
        }
        Some(place)
    }

    /// The offset that somebody who takes single messages is handed next. It counts as a reader: not of a key that
    /// another holds, and of an ordered stream not while another holds anything.
    pub(super) fn next_single(
        &mut self,
        now: Now,
        stream: &mut Stream<B>,
        taker: ConsumerKey,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<Option<u64>, NotYet> {
        Ok(match stream.limits.mode {
            Mode::Shared => stream.next(),
            Mode::Exclusive | Mode::Failover => match stream.readers.held_beside(taker) {
                true => None,
                false => stream.next(),
            },
            Mode::KeyShared => self.next_free(now, stream, taker, bodies)?,
            Mode::Replay => None,
        })
    }

    /// Gives a stream another mode, for what is handed out next. Readers that the new mode has no place for are
    /// ended, and what they hold goes back.
    pub(super) fn set_mode(&mut self, id: StreamId, mode: Mode) {
        let Some(stream) = self.stream_mut(id) else {
            return;
        };
        let surplus = stream.set_mode(mode);
        self.recall_levels(id);
        for key in surplus {
            self.detach(id, key, true);
            if let Some(live) = self.live.get_mut(&key.connection) {
                live.readers.retain(|held| *held != (id, key));
            }
            self.outbox.settle_order(key.connection);
            let why = Refusal::new(
                ErrorKind::SecondConsumer,
                "the queue takes one consumer only from now on",
            );
            let event = ShardEvent::Ended { consumer: key, why };
            self.outbox.event(key.connection.worker(), event);
        }
        if let Some(&place) = self.by_id.get(&id) {
            self.list(place);
        }
    }
}
