//! How each kind of shard takes a publish: a volatile one stores it now, a journalled one puts it into its next frame.
//!
//! Owns: that step, and the way in for the worker that hosts a volatile shard.
//! Never: whether a request is taken at all (`shard.rs`), what storing does (`shard/apply/store.rs`).
//! Next: `shard/frame.rs`.

use super::{Place, Shard};
use crate::error::ErrorKind;
use crate::gateway::PublishOutcome;
use crate::id::{Position, Sequence, StreamId, VhostId, WorkerId};
use crate::message::Message;
use crate::port::Extra;
use crate::record::Mark;
use std::sync::Arc;

/// How a kind of shard takes a publish.
pub trait Store<B> {
    /// Takes it: stores it now or puts it into the next frame.
    fn publish(
        &mut self,
        from: WorkerId,
        sequence: Sequence,
        streams: &[StreamId],
        by_topic: Option<VhostId>,
        extra: Option<&Extra>,
        message: &Arc<Message>,
    );
}

impl Store<Arc<Message>> for Shard<Arc<Message>> {
    fn publish(
        &mut self,
        from: WorkerId,
        sequence: Sequence,
        streams: &[StreamId],
        by_topic: Option<VhostId>,
        extra: Option<&Extra>,
        message: &Arc<Message>,
    ) {
        let clock = self.now.unix.max(message.published);
        let outcome = self.store(clock, streams, by_topic, extra, message, (message, 0));
        // 0: nobody waits for the result.
        if sequence.0 != 0 {
            let outcome = self.whole_outcome(from, sequence, outcome);
            self.outbox.published(from, sequence, outcome);
        }
    }
}

impl Shard<Arc<Message>> {
    /// Takes a publish of the worker that hosts this shard, and says at once how it ended.
    pub fn take(
        &mut self,
        streams: &[StreamId],
        by_topic: Option<VhostId>,
        patient: bool,
        extra: Option<&Extra>,
        message: &Arc<Message>,
    ) -> PublishOutcome {
        if self.is_full() {
            self.workers.insert(self.id.host());
            self.block_or_resume();
            if !patient {
                return PublishOutcome::Refused(ErrorKind::Busy);
            }
        }
        if message.retain {
            self.saw_kept(by_topic, streams, extra, message);
        }
        let clock = self.now.unix.max(message.published);
        if self.refuses_whole(streams, extra, message) {
            return PublishOutcome::Refused(ErrorKind::QuotaExceeded);
        }
        if self.limiter.may_refuse()
            && let Some(takers) = self.refuse_where_full(streams, extra, message)
        {
            self.store(clock, &takers, by_topic, extra, message, (message, 0));
            return PublishOutcome::Refused(ErrorKind::QuotaExceeded);
        }
        self.store(clock, streams, by_topic, extra, message, (message, 0))
    }
}

impl Store<Position> for Shard<Position> {
    fn publish(
        &mut self,
        from: WorkerId,
        sequence: Sequence,
        streams: &[StreamId],
        by_topic: Option<VhostId>,
        extra: Option<&Extra>,
        message: &Arc<Message>,
    ) {
        let mark = Mark {
            lane: self.lane(from),
            sequence,
        };
        self.builder
            .publish(mark, streams, by_topic, extra, message);
    }
}

impl<B: Place> Shard<B> {
    /// Why a publish is not taken for what is asked with it.
    #[cold]
    pub(super) fn refuses_extra(&mut self, extra: &Extra, message: &Message) -> Option<ErrorKind> {
        if extra
            .once
            .is_some_and(|once| self.is_overtaken(once, message))
        {
            return Some(ErrorKind::Locked);
        }
        let full = extra.later.is_some() && !self.takes_later();
        full.then_some(ErrorKind::Busy)
    }

    /// Notes for those who read last values that a newer one came in.
    #[cold]
    pub(super) fn saw_kept(
        &mut self,
        by_topic: Option<VhostId>,
        streams: &[StreamId],
        extra: Option<&Extra>,
        message: &Message,
    ) {
        if let Some(vhost) = by_topic.filter(|_| !self.watches.is_idle()) {
            // A repeat does not come to the stream as a message.
            let once = extra.and_then(|extra| extra.once);
            if !once.is_some_and(|once| self.is_repeat(once)) {
                self.watches.saw(vhost, streams, &message.address);
            }
        }
    }
}
