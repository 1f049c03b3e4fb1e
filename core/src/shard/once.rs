//! Publishes that are stored once, as shards see them: keys of the sessions here, numbers of those elsewhere.
//!
//! A publish to the session's own shard carries its key: taking the key and storing the message are one record. For
//! destinations elsewhere the key is taken first, and its number goes with the message.
//!
//! Owns: taking and forgetting keys, telling repeats.
//! Never: the counting (`once.rs`); what goes where (`worker/once.rs`).

use super::questions::no_session;
use super::{Place, Shard};
use crate::gateway::{OnceKey, PublishOutcome};
use crate::id::{StreamId, UnixMs, VhostId};
use crate::message::Message;
use crate::once::Keys;
use crate::port::{Extra, Once, ShardReply};
use crate::record::Mark;
use crate::stream::Stream;

impl<B: Place> Shard<B> {
    /// Whether a connection that lost its session would publish in it: what it sent may have been sent again, and
    /// its key forgotten, by the connection that has it now.
    #[cold]
    pub(super) fn is_overtaken(&self, once: Once, message: &Message) -> bool {
        match once {
            Once::Keyed { session, .. } => self.session_of(message.publisher) != Some(session),
            Once::Numbered { .. } => false,
        }
    }

    /// Stores a message unless it is a repeat.
    #[cold]
    pub(super) fn store_once(
        &mut self,
        clock: UnixMs,
        once: Once,
        (streams, by_topic, extra): (&[StreamId], Option<VhostId>, &Extra),
        message: &Message,
        place: (&B, usize),
    ) -> PublishOutcome {
        if self.is_repeat(once) {
            return PublishOutcome::Routed;
        }
        let plain = Extra {
            once: None,
            ..extra.clone()
        };
        let outcome = self.store(clock, streams, by_topic, Some(&plain), message, place);
        if matches!(outcome, PublishOutcome::Refused(_)) {
            return outcome;
        }
        match once {
            Once::Keyed { session, key } => {
                if let Some(keys) = self.keys(session) {
                    keys.stored(key);
                }
            }
            Once::Numbered {
                session,
                number,
                floor,
            } => self.heard.note(session, number, floor, message.published),
        }
        outcome
    }

    /// Whether its message was stored here.
    pub(super) fn is_repeat(&mut self, once: Once) -> bool {
        match once {
            // Of a session that ended nothing is known: whoever publishes in it has lost it.
            Once::Keyed { session, key } => {
                let keys = self.keys(session);
                keys.is_some_and(|keys| keys.is_stored(key))
            }
            Once::Numbered {
                session,
                number,
                floor,
            } => self.heard.knows(session, number, floor),
        }
    }

    fn keys(&mut self, session: StreamId) -> Option<&mut Keys> {
        let session = self.stream_mut(session).and_then(Stream::session_mut)?;
        Some(session.keys.get_or_insert_default())
    }

    pub(super) fn apply_taken(&mut self, mark: Mark, session: StreamId, key: OnceKey) {
        let taken = self.keys(session).map(|keys| ShardReply::Taken {
            number: keys.take(key),
            floor: keys.floor(),
        });
        self.answer_result(mark, taken.ok_or_else(no_session));
    }

    pub(super) fn apply_forgotten(&mut self, mark: Mark, session: StreamId, key: OnceKey) {
        if let Some(keys) = self.keys(session) {
            keys.forget(key);
        }
        self.answer_result(mark, Ok(ShardReply::Done));
    }
}
