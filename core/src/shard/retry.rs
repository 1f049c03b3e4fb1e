//! Messages that came back too soon to be tried again at once.
//!
//! Where a stream's limits say so, a message that its reader gave back waits, longer each time, and lets the others pass.
//! It counts as ready. All of this is the leader's memory: after a restart it is ready at once.
//!
//! Owns: when each may go out again. Never: who is handed it (`deliver.rs`).
//! Next: `limits.rs` ([`Retry`](crate::limits::Retry)), `stream/postponed.rs`.

use super::{Place, Shard};
use crate::id::{MonotonicMs, StreamId};
use crate::stream::Stream;
use std::collections::BTreeSet;

/// What a shard remembers of messages that wait before they are tried again.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    times: BTreeSet<(MonotonicMs, StreamId, u64)>,
}

impl Retries {
    /// When something is to be looked at.
    pub(super) fn wake_at(&self) -> Option<MonotonicMs> {
        self.times.first().map(|(time, _, _)| *time)
    }
}

impl<B: Place> Shard<B> {
    /// A delivery was given back: it goes out again when the stream's limits say.
    pub(super) fn try_later(&mut self, stream: &mut Stream<B>, offset: u64) {
        let Some(retry) = stream.limits.retry else {
            return stream.release(offset);
        };
        let wait_ms = retry.wait_ms(stream.attempts(offset));
        if stream.postpone(offset) {
            let time = self.now.monotonic.after(wait_ms);
            self.retries.times.insert((time, stream.id, offset));
        }
    }

    /// What has waited long enough can go out.
    pub(super) fn look_at_retries(&mut self, now: MonotonicMs) {
        while let Some(&(time, id, offset)) = self.retries.times.first() {
            if time > now {
                break;
            }
            self.retries.times.pop_first();
            if let Some(&place) = self.by_id.get(&id)
                && let Some(stream) = self.streams[place as usize].as_deref_mut()
                && stream.resume(offset)
            {
                self.list(place);
            }
        }
    }
}
