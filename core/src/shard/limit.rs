//! What the limits of a stream do to its messages: who is dropped, when, and whether it goes on elsewhere.
//!
//! Owns: dropping for a reason.
//! Never: how a dropped message is sent on (`forward.rs`).
//! Next: `limits.rs`, which says what can be asked.

use super::forward::Errand;
use super::{Place, Shard};
use crate::death::DeathReason;
use crate::id::StreamId;
use crate::stream::Stream;

impl<B: Place> Shard<B> {
    /// Drops a message of a stream: it goes where the stream's dropped messages go, if anywhere.
    pub(super) fn bury(&mut self, stream: &mut Stream<B>, offset: u64, reason: DeathReason) {
        if stream.limits.dead_letter.is_none() {
            stream.tally.dropped += 1;
            return self.dismiss(stream, offset);
        }
        stream.tally.dead_lettered += 1;
        stream.leave(offset);
        self.forwards.push(Errand::Letter {
            stream: stream.id,
            offset,
            reason,
        });
    }

    /// Takes a stream out for as long as `act` needs both it and the shard.
    pub(super) fn with_stream(
        &mut self,
        id: StreamId,
        act: impl FnOnce(&mut Shard<B>, &mut Stream<B>),
    ) {
        let Some(&place) = self.by_id.get(&id) else {
            return;
        };
        if let Some(mut stream) = self.streams[place as usize].take() {
            act(self, &mut stream);
            self.streams[place as usize] = Some(stream);
        }
    }
}
