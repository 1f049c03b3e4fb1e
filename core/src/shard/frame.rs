//! The next frame of a journalled shard, and what becomes due.
//!
//! Owns: when settlements are written, when sessions end, what is answered when the journal failed.
//! Never: how a record is encoded (`record.rs`).

use super::{Place, Shard};
use crate::error::{ErrorKind, Refusal};
use crate::gateway::PublishOutcome;
use crate::id::{MonotonicMs, Now, Offset, StreamId, WorkerId};
use crate::port::ShardRequest;
use crate::record::{Change, Mark};
use crate::stream::Stream;
use bytes::Bytes;

/// How long settlements may wait for a frame of their own, in milliseconds.
const SETTLE_LINGER_MS: u64 = 5;
/// How often what becomes due is looked for, in milliseconds.
const TICK_MS: u64 = 500;

impl<B: Place> Shard<B> {
    /// Takes the payload of the next frame, if there is something for one. Settlements alone wait up to
    /// `SETTLE_LINGER_MS` for company.
    pub fn take_frame(&mut self, now: Now) -> Option<Bytes> {
        let due = self
            .settles_since
            .is_some_and(|since| now.monotonic >= since.after(SETTLE_LINGER_MS));
        if self.builder.is_empty() && !due && self.receipts.is_empty() {
            return None;
        }
        for stream in self.receipts.streams() {
            self.settles.entry(stream).or_default();
        }
        self.settles_since = None;
        for (stream, ranges) in std::mem::take(&mut self.settles) {
            let Some(found) = self.stream_mut(stream) else {
                self.write_receipts(stream);
                continue;
            };
            // The cursor first: a settled offset lies below it.
            if let Some(change) = delivered(found) {
                self.builder.change(Mark::default(), &change);
            }
            self.write_pins(stream);
            self.write_receipts(stream);
            if !ranges.is_empty() {
                let change = Change::Settled { stream, ranges };
                self.builder.change(Mark::default(), &change);
            }
        }
        if self.builder.is_empty() {
            return None;
        }
        let payload = self.builder.take();
        self.unapplied_bytes += payload.len();
        self.progress.taken();
        Some(payload)
    }

    /// Puts what of a queue was handed out into the next frame, before a change that moves its cursor: what lies below a
    /// cursor that was moved by another change would count as never handed out.
    pub(super) fn tell_delivered(&mut self, id: StreamId) {
        if !self.journalled() {
            return;
        }
        self.with_levels(id, |shard, level| {
            if let Some(change) = delivered(level) {
                shard.builder.change(Mark::default(), &change);
            }
            true
        });
    }

    /// Puts a change that changes nothing into the next frame, so that a checkpoint can stand above the
    /// last one.
    pub fn nudge(&mut self) {
        let change = Change::Settled {
            stream: StreamId(0),
            ranges: Vec::new(),
        };
        self.builder.change(Mark::default(), &change);
    }

    /// Bytes waiting for the next frame.
    pub fn pending_bytes(&self) -> usize {
        self.builder.len()
    }

    /// When [`Shard::timeout`] wants to be called.
    pub fn poll_timeout(&self) -> MonotonicMs {
        if self.unfinished {
            return MonotonicMs(0);
        }
        let wakes = [
            self.away.wake_at(),
            self.limiter.wake_at(),
            self.delays.wake_at(),
            self.retries.wake_at(),
            // Without room there is nothing to wake for.
            self.unsent.wake_at().filter(|_| self.forwards.has_room()),
        ];
        let tick = wakes.into_iter().flatten().fold(self.next_tick, Ord::min);
        match self.settles_since {
            Some(since) if self.journalled() => since.after(SETTLE_LINGER_MS).min(tick),
            _ => tick,
        }
    }

    /// Looks for what has become due.
    pub fn timeout(&mut self, now: Now) {
        self.now = now;
        if self.limiter.wake_at().is_some_and(|at| at <= now.monotonic) {
            self.look_at_limits(now);
        }
        self.look_at_retries(now.monotonic);
        self.send_unsent(now.monotonic);
        if self.away.wake_at().is_some_and(|at| at <= now.monotonic) {
            self.give_up_questions(now.monotonic);
        }
        if now.monotonic < self.next_tick {
            return;
        }
        self.next_tick = now.monotonic.after(TICK_MS);
        self.look_for_wills(now);
        while let Some(&(end, id)) = self.ends.first() {
            if end > now.unix {
                break;
            }
            self.ends.pop_first();
            let due = self.stream_mut(id).and_then(|stream| {
                let session = stream.session()?;
                let due = session.ends()? <= now.unix;
                due.then(|| (stream.vhost, session.client_id.clone()))
            });
            // A connection that has claimed it resumes it with the next frame.
            if due.is_some_and(|name| !self.owners.contains_key(&name)) {
                self.change(now.unix, Mark::default(), Change::EndSession { stream: id });
            }
        }
        self.forwards.retry();
        self.end_values(now.unix);
        self.end_delays(now.unix);
        self.look_at_unsettled(now.monotonic);
        self.sweep(now);
        self.end_retired();
        self.renew_policies(now.unix);
        if self.authority.generation() != self.verdict_generation {
            self.renew_rights();
        }
        if !self.settles.is_empty() {
            self.settles_since.get_or_insert(now.monotonic);
        }
        self.block_or_resume();
    }

    /// The journal failed for good: every open question is answered so, and nothing is taken any more by
    /// the host.
    pub fn fail(&mut self, requests: &mut Vec<ShardRequest>, from: WorkerId) {
        for request in requests.drain(..) {
            match request {
                ShardRequest::Publish { sequence, .. } => {
                    self.outbox.published(
                        from,
                        sequence,
                        PublishOutcome::Refused(ErrorKind::StorageFailed),
                    );
                }
                ShardRequest::Ask { ticket, .. } => {
                    let why = "the journal of this shard failed; restart the node after looking at its disk";
                    self.reply(
                        from,
                        ticket,
                        Err(Refusal::new(ErrorKind::StorageFailed, why)),
                    );
                }
                _ => {}
            }
        }
    }
}

/// How far a stream is handed out, if the journal does not know.
fn delivered<B: Place>(stream: &mut Stream<B>) -> Option<Change> {
    (stream.cursor() > stream.cursor_known).then(|| {
        stream.cursor_known = stream.cursor();
        Change::Delivered {
            stream: stream.id,
            until: Offset(stream.cursor()),
        }
    })
}
