//! Messages that wait until they are due.
//!
//! They lie in a stream of their own per exchange, which nobody reads and metadata does not know; an entry's end is when
//! it is due. What is due goes the way of dropped messages and wills: it stays, handed to a worker, until all its
//! destinations have it, and its leaving is a settlement. So it comes at least once. Among equal times the order of
//! arrival at an exchange is kept.
//!
//! Owns: those streams, what is due next, how many messages may wait.
//! Never: routes (`worker/forward.rs`), says which messages wait (`worker/delaying.rs`).
//! Next: `forward.rs`.

use super::forward::Errand;
use super::{Bodies, NotYet, Place, Shard};
use crate::gateway::PublishOutcome;
use crate::id::{ExchangeId, MonotonicMs, Now, Offset, StreamId, UnixMs, VhostId};
use crate::limits::StreamLimits;
use crate::message::{Message, Quality};
use crate::port::Later;
use crate::record::{Change, Mark};
use crate::stream::{Entry, Kind, Stream, entry_cost};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is due is looked for no more often than this, in milliseconds.
const DUE_MS: u64 = 20;

/// What a shard remembers of all messages that wait.
#[derive(Debug, Default)]
pub(crate) struct Delays {
    /// When which is due: all that are there, but for what was handed on.
    times: BTreeSet<(UnixMs, StreamId, u64)>,
    streams: BTreeSet<StreamId>,
    /// Messages that were let in and are not stored yet.
    coming: u64,
    wake_at: Option<MonotonicMs>,
}

impl Delays {
    /// When something is to be looked at.
    pub(super) fn wake_at(&self) -> Option<MonotonicMs> {
        self.wake_at
    }

    /// A stream came into the shard.
    pub(super) fn watch<B: Place>(&mut self, stream: &Stream<B>) {
        if stream.id.is_delayed() {
            self.streams.insert(stream.id);
            let all = stream.present();
            let times = all.map(|(offset, _, entry)| (entry.expires, stream.id, offset));
            self.times.extend(times);
        }
    }

    /// A stream is gone.
    pub(super) fn forget(&mut self, id: StreamId) {
        self.streams.remove(&id);
    }

    /// At the end of a round: when to look again.
    pub(super) fn plan(&mut self, now: Now) {
        self.wake_at = self.times.first().map(|(due, _, _)| {
            let left = due.0.saturating_sub(now.unix.0);
            now.monotonic.after(left.max(DUE_MS))
        });
    }
}

impl<B: Place> Shard<B> {
    /// Whether one more may wait here.
    pub(super) fn takes_later(&mut self) -> bool {
        let wait = self.delays.times.len() as u64 + self.delays.coming;
        let takes = wait < self.limits.delayed_max;
        self.delays.coming += u64::from(takes);
        takes
    }

    pub(super) fn store_later(
        &mut self,
        clock: UnixMs,
        later: Later,
        message: &Message,
        (place, record_bytes): (&B, usize),
    ) -> PublishOutcome {
        let id = StreamId::of_delayed(self.id, later.exchange);
        if !self.by_id.contains_key(&id) {
            let limits = StreamLimits::default();
            self.insert(Stream::new(id, later.vhost, Kind::Queue, limits));
        }
        self.delays.coming = self.delays.coming.saturating_sub(1);
        let Some(stream) = self.stream_mut(id) else {
            return PublishOutcome::Unroutable;
        };
        let cost_bytes = entry_cost(message, record_bytes);
        let offset = stream.end();
        stream.push(Entry {
            body: place.kept(),
            expires: later.due,
            cost_bytes,
            identifier: 0,
            quality: Quality::AtLeastOnce,
            retain: false,
            by_topic: false,
            no_local: false,
            more_identifiers: None,
            stored: clock,
            body_bytes: u32::try_from(message.body.len()).unwrap_or(u32::MAX),
        });
        self.queues.bytes += u64::from(cost_bytes);
        self.queues.entries += 1;
        self.delays.times.insert((later.due, id, offset));
        self.refer(place, cost_bytes, 1);
        PublishOutcome::Routed
    }

    /// Messages leave such a stream: none of them will be due.
    pub(super) fn forget_due(&mut self, id: StreamId, ranges: &[(Offset, Offset)]) {
        let Some(&place) = self.by_id.get(&id) else {
            return;
        };
        let Some(stream) = self.streams[place as usize].as_deref() else {
            return;
        };
        for (first, last) in ranges {
            for offset in first.0..=last.0.min(stream.end().saturating_sub(1)) {
                if let Some(entry) = stream.entry(offset) {
                    self.delays.times.remove(&(entry.expires, id, offset));
                }
            }
        }
    }

    /// Hands on what is due, as long as there is room on the way.
    pub(super) fn look_for_due(&mut self, now: Now) {
        while self.forwards.has_room()
            && let Some(&(due, stream, offset)) = self.delays.times.first()
            && due <= now.unix
        {
            self.delays.times.pop_first();
            let found = self.stream_mut(stream);
            // An operator may have dropped it, and the journal does not know yet.
            if let Some(found) = found.filter(|found| found.is_ready(offset)) {
                found.leave(offset);
                self.forwards.push(Errand::Later { stream, offset });
            }
        }
    }

    /// A message that was due, as it is published now: its time to live begins now. None when it cannot be read.
    pub(super) fn due_message(
        &mut self,
        now: UnixMs,
        (id, offset): (StreamId, u64),
        bodies: &mut dyn Bodies<B>,
    ) -> Result<Option<(VhostId, Arc<Message>)>, NotYet> {
        let found = self.stream_mut(id);
        let found = found.and_then(|stream| Some((stream.vhost, stream.entry(offset)?)));
        let Some((vhost, entry)) = found else {
            return Ok(None);
        };
        let Some(message) = bodies.fetch(&entry.body).here()? else {
            return Ok(None);
        };
        let lives = |end: UnixMs| now.after(end.0.saturating_sub(message.published.0));
        let properties = self.codecs.waited(&message);
        let message = Message {
            properties: properties.unwrap_or_else(|| message.properties.clone()),
            published: now,
            expires: message.expires.map(lives),
            ..Message::clone(&message)
        };
        Ok(Some((vhost, Arc::new(message))))
    }

    /// What an exchange delays here, by when it is due.
    pub(super) fn delayed(
        &mut self,
        exchange: ExchangeId,
        count: u32,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<Vec<(UnixMs, Offset, Arc<Message>)>, NotYet> {
        let id = StreamId::of_delayed(self.id, exchange);
        let Some(&place) = self.by_id.get(&id) else {
            return Ok(Vec::new());
        };
        let Some(stream) = self.streams[place as usize].as_deref() else {
            return Ok(Vec::new());
        };
        let times = self.delays.times.iter().filter(|(_, of, _)| *of == id);
        let ready = times.filter(|(_, _, offset)| stream.is_ready(*offset));
        let read = ready.take(count as usize).filter_map(|(due, _, offset)| {
            let body = stream.entry(*offset)?.body;
            let message = bodies.fetch(&body).here().transpose()?;
            Some(message.map(|message| (*due, Offset(*offset), message)))
        });
        read.collect()
    }

    /// Streams in which nothing waits any more end, so that exchanges that come and go leave nothing behind.
    pub(super) fn end_delays(&mut self, now: UnixMs) {
        let ids: Vec<StreamId> = self.delays.streams.iter().copied().collect();
        for stream in ids {
            let empty = self.stream_mut(stream).is_some_and(|stream| {
                let kept = stream.kept();
                kept.entries == 0
            });
            if empty {
                let only_if = Some(Vec::new());
                let change = Change::DeleteStream { stream, only_if };
                self.change(now, Mark::default(), change);
            }
        }
    }
}
