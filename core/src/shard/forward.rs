//! Messages on their way to other streams: what a shard hands to a worker to publish, until it is stored there.
//!
//! The message stays where it is, handed to nobody, until a worker says that all its destinations have it; only
//! then its leaving is written. So a crash in between brings it back: at least once. All of this is the leader's
//! memory.
//!
//! Owns: what waits to be sent on, what is on its way, trying again.
//! Never: routes (`worker/forward.rs`), why a message leaves (`limit.rs`).

use super::{Bodies, Place, Shard};
use crate::death::{Death, DeathReason, Deaths};
use crate::error::ErrorKind;
use crate::gateway::PublishOutcome;
use crate::id::{Now, StreamId, UnixMs, WorkerId};
use crate::limits::DeadLetterTo;
use crate::message::Message;
use crate::port::{Forward, ShardEvent};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// Messages of one shard on their way at a time.
const FLYING_MAX: usize = 1024;
/// ... and what they may cost together, in bytes; one may always go.
const FLYING_BYTES_MAX: usize = 16 << 20;

/// What is sent on, and so what is done when it has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// A message that its stream dropped: it leaves the stream.
    Letter {
        stream: StreamId,
        offset: u64,
        reason: DeathReason,
    },
    /// A will that is due, by its number.
    Will { number: u64 },
}

/// What became of preparing an errand.
enum Prepared {
    /// It can go.
    Ready(Forward),
    /// There is nothing to send any more, or nowhere to send it.
    Void,
    /// The message cannot be read.
    Unreadable,
}

/// Everything that waits for workers.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    waiting: VecDeque<Errand>,
    /// Refused: tried again at the next tick.
    again: Vec<Errand>,
    flying: FxHashMap<u64, (Errand, usize)>,
    flying_bytes: usize,
    last_id: u64,
}

impl Forwards {
    pub(crate) fn push(&mut self, errand: Errand) {
        self.waiting.push_back(errand);
    }

    fn next(&mut self) -> Option<Errand> {
        let room = self.flying.is_empty()
            || (self.flying.len() < FLYING_MAX && self.flying_bytes < FLYING_BYTES_MAX);
        room.then(|| self.waiting.pop_front()).flatten()
    }

    fn depart(&mut self, errand: Errand, cost_bytes: usize) -> u64 {
        self.last_id += 1;
        self.flying.insert(self.last_id, (errand, cost_bytes));
        self.flying_bytes += cost_bytes;
        self.last_id
    }

    fn arrive(&mut self, id: u64) -> Option<Errand> {
        let (errand, cost_bytes) = self.flying.remove(&id)?;
        self.flying_bytes -= cost_bytes;
        Some(errand)
    }

    /// What was refused waits for its turn again.
    pub(super) fn retry(&mut self) {
        self.waiting.extend(self.again.drain(..));
    }
}

impl<B: Place> Shard<B> {
    /// Sends on what waits, as much as may be on its way.
    pub(super) fn send_forwards(&mut self, now: Now, bodies: &mut dyn Bodies<B>) {
        while let Some(errand) = self.forwards.next() {
            match self.prepare(now.unix, errand, bodies) {
                Prepared::Ready(mut forward) => {
                    forward.id = self.forwards.depart(errand, forward.message.cost_bytes());
                    let worker = self.forwarder(errand);
                    self.outbox
                        .event(worker, ShardEvent::Forward(Box::new(forward)));
                }
                Prepared::Void => self.done_with(errand),
                Prepared::Unreadable => self.keep(errand),
            }
        }
    }

    /// The worker that publishes it: always the same for one stream, so that order is kept.
    fn forwarder(&self, errand: Errand) -> WorkerId {
        if !self.journalled() {
            return self.id.host();
        }
        let number = match errand {
            Errand::Letter { stream, .. } => stream.0,
            Errand::Will { number } => number,
        };
        WorkerId((number % u64::from(self.worker_count.max(1))) as u16)
    }

    fn prepare(&mut self, now: UnixMs, errand: Errand, bodies: &mut dyn Bodies<B>) -> Prepared {
        match errand {
            Errand::Letter {
                stream: id,
                offset,
                reason,
            } => {
                let Some(stream) = self.stream_mut(id) else {
                    return Prepared::Void;
                };
                let (Some(to), Some(entry)) = (&stream.limits.dead_letter, stream.entry(offset))
                else {
                    return Prepared::Void;
                };
                let Some(message) = bodies.fetch(&entry.body) else {
                    return Prepared::Unreadable;
                };
                Prepared::Ready(Forward {
                    id: 0,
                    vhost: stream.vhost,
                    message: Arc::new(letter(now, &stream.name, reason, to, &message)),
                    from: Some(id),
                })
            }
            Errand::Will { number } => match self.due_will(now, number) {
                Some((vhost, message)) => Prepared::Ready(Forward {
                    id: 0,
                    vhost,
                    message,
                    from: None,
                }),
                None => Prepared::Void,
            },
        }
    }

    /// A worker's answer.
    pub(super) fn forwarded(&mut self, id: u64, outcome: PublishOutcome) {
        let Some(errand) = self.forwards.arrive(id) else {
            return;
        };
        match outcome {
            // A full stream that refuses has been asked; asking again would repeat it in all others.
            PublishOutcome::Routed
            | PublishOutcome::Unroutable
            | PublishOutcome::Refused(ErrorKind::QuotaExceeded) => self.done_with(errand),
            PublishOutcome::Refused(_) => self.forwards.again.push(errand),
        }
    }

    /// It is stored elsewhere, or need not be: nothing is left to do here.
    fn done_with(&mut self, errand: Errand) {
        match errand {
            Errand::Letter { stream, offset, .. } => {
                self.with_stream(stream, |shard, stream| shard.dismiss(stream, offset));
            }
            Errand::Will { number } => self.will_arrived(number),
        }
    }

    /// It can neither be sent nor be forgotten: it stays, for whoever can mend it.
    fn keep(&mut self, errand: Errand) {
        if let Errand::Letter { stream, offset, .. } = errand {
            self.with_stream(stream, |_, stream| stream.stay(offset));
        }
    }
}

/// A dropped message as it goes on: with one more death, its own end taken off, under the key asked for.
fn letter(
    now: UnixMs,
    name: &Arc<str>,
    reason: DeathReason,
    to: &DeadLetterTo,
    message: &Message,
) -> Message {
    let lived = |end: UnixMs| end.0.saturating_sub(message.published.0);
    let death = Death {
        stream: name.clone(),
        reason,
        count: 1,
        first: now,
        exchange: message.exchange.clone(),
        address: message.address.0.clone(),
        origin_key: message.origin_key.clone(),
        time_to_live_ms: message.expires.map(lived),
    };
    let (address, origin_key) = match &to.key {
        Some(key) => (key.address.clone(), key.origin_key.clone()),
        None => (message.address.clone(), message.origin_key.clone()),
    };
    Message {
        exchange: bytes::Bytes::copy_from_slice(to.exchange.as_bytes()),
        address,
        origin_key,
        expires: None,
        deaths: Some(Arc::new(Deaths::with(message.deaths.as_deref(), death))),
        ..message.clone()
    }
}
