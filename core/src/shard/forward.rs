//! Messages on their way to other streams: what a shard hands to a worker to publish, until it is stored there.
//!
//! The message stays where it is, handed to nobody, until a worker says that all its destinations have it; only
//! then its leaving is written. So a crash in between brings it back, or, where its letter has to arrive, sends that again
//! (`pinned.rs`): at least once. All of this is the leader's memory.
//!
//! Owns: what waits to be sent on, what is on its way, trying again.
//! Never: routes (`worker/forward.rs`), why a message leaves (`limit.rs`), what has to arrive (`unsent.rs`).

use super::{Bodies, NotYet, Place, Shard};
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
/// Cost of messages that wait and that no stream keeps, in bytes: further ones go nowhere.
const REFUSED_BYTES_MAX: usize = 16 << 20;

/// What is sent on, and so what is done when it has arrived.
#[derive(Clone, Debug)]
pub(crate) enum Errand {
    /// A message that its stream dropped: it leaves the stream.
    Letter {
        stream: StreamId,
        offset: u64,
        reason: DeathReason,
    },
    /// A message that is due: it leaves the stream where it waited.
    Later { stream: StreamId, offset: u64 },
    /// A will that is due, by its number.
    Will { number: u64 },
    /// A message that its stream did not take: nothing is left to do.
    Refused {
        stream: StreamId,
        message: Arc<Message>,
    },
}

impl Errand {
    /// The same for all whose order counts.
    fn number(&self) -> u64 {
        match self {
            Errand::Letter { stream, .. }
            | Errand::Later { stream, .. }
            | Errand::Refused { stream, .. } => stream.0,
            Errand::Will { number } => *number,
        }
    }
}

/// Everything that waits for workers.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    waiting: VecDeque<Errand>,
    /// What waiting messages cost that no stream keeps.
    waiting_bytes: usize,
    /// Refused: tried again at the next tick.
    again: Vec<Errand>,
    /// Their messages are on their way, or that of one before them: tried again when something has arrived.
    put_off: Vec<Errand>,
    flying: FxHashMap<u64, (Errand, usize)>,
    flying_bytes: usize,
    last_id: u64,
}

impl Forwards {
    pub(crate) fn push(&mut self, errand: Errand) {
        self.waiting.push_back(errand);
    }

    /// A message that its stream did not take; not when too many wait already.
    pub(super) fn refuse(&mut self, stream: StreamId, message: &Arc<Message>) -> bool {
        let room = self.waiting_bytes < REFUSED_BYTES_MAX;
        if room {
            self.waiting_bytes += message.cost_bytes();
            let message = message.clone();
            self.waiting.push_back(Errand::Refused { stream, message });
        }
        room
    }

    /// Whether more can be of use here than is here already.
    pub(super) fn has_room(&self) -> bool {
        let put_off = self.put_off.len();
        self.waiting.len() + self.flying.len() + self.again.len() + put_off < FLYING_MAX
    }

    fn next(&mut self) -> Option<Errand> {
        let room = self.flying.is_empty()
            || (self.flying.len() < FLYING_MAX && self.flying_bytes < FLYING_BYTES_MAX);
        if !room {
            return None;
        }
        let errand = self.waiting.pop_front()?;
        if let Errand::Refused { message, .. } = &errand {
            self.waiting_bytes -= message.cost_bytes();
        }
        Some(errand)
    }

    /// It waits until something has arrived, and with it all behind it whose order counts.
    fn put_off(&mut self, errand: Errand) {
        if let Errand::Refused { message, .. } = &errand {
            self.waiting_bytes += message.cost_bytes();
        }
        self.put_off.push(errand);
    }

    fn is_put_off(&self, number: u64) -> bool {
        self.put_off.iter().any(|errand| errand.number() == number)
    }

    /// What was put off is next, in its order.
    pub(super) fn recall(&mut self) {
        for errand in self.put_off.drain(..).rev() {
            self.waiting.push_front(errand);
        }
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
        for errand in self.again.drain(..) {
            if let Errand::Refused { message, .. } = &errand {
                self.waiting_bytes += message.cost_bytes();
            }
            self.waiting.push_back(errand);
        }
    }
}

impl<B: Place> Shard<B> {
    /// Sends on what waits, as much as may be on its way.
    pub(super) fn send_forwards(&mut self, now: Now, bodies: &mut dyn Bodies<B>) {
        self.look_for_due(now);
        while let Some(errand) = self.forwards.next() {
            let prepared = match self.forwards.is_put_off(errand.number()) {
                true => Err(NotYet),
                false => self.prepare(now.unix, &errand, bodies),
            };
            let Ok(prepared) = prepared else {
                self.forwards.put_off(errand);
                continue;
            };
            let Some(mut forward) = prepared else {
                match errand {
                    // What cannot be read stays, for whoever can mend it.
                    Errand::Later { .. } => {}
                    Errand::Letter { stream, offset, .. } if self.must_stay(stream, offset) => {
                        self.unsent.pass(now.monotonic, stream);
                    }
                    other => self.done_with(other),
                }
                continue;
            };
            let worker = self.worker_for(errand.number());
            forward.id = self.forwards.depart(errand, forward.message.cost_bytes());
            let event = ShardEvent::Forward(Box::new(forward));
            self.outbox.event(worker, event);
        }
    }

    /// The worker that acts for what has this number: always the same, so that order is kept.
    pub(super) fn worker_for(&self, number: u64) -> WorkerId {
        if !self.journalled() {
            return self.id.host();
        }
        WorkerId((number % u64::from(self.worker_count.max(1))) as u16)
    }

    /// What is sent; nothing when there is nowhere to send it any more, or when it cannot be read.
    fn prepare(
        &mut self,
        now: UnixMs,
        errand: &Errand,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<Option<Forward>, NotYet> {
        let (id, message, reason) = match errand {
            Errand::Later { stream, offset } => {
                let due = self.due_message(now, (*stream, *offset), bodies)?;
                return Ok(due.map(|(vhost, message)| Forward {
                    id: 0,
                    vhost,
                    message,
                    once: None,
                    from: None,
                    whole: false,
                }));
            }
            Errand::Will { number } => {
                let due = self.due_will(now, *number);
                return Ok(due.map(|(vhost, message, once)| Forward {
                    id: 0,
                    vhost,
                    message,
                    once: Some(once),
                    from: None,
                    whole: false,
                }));
            }
            Errand::Letter {
                stream,
                offset,
                reason,
            } => {
                let found = self.stream_mut(*stream);
                let Some(entry) = found.and_then(|stream| stream.entry(*offset)) else {
                    return Ok(None);
                };
                let Some(message) = bodies.fetch(&entry.body).here()? else {
                    return Ok(None);
                };
                (*stream, message, *reason)
            }
            Errand::Refused { stream, message } => {
                (*stream, message.clone(), DeathReason::Overflow)
            }
        };
        let stream = self.stream_mut(id);
        Ok(stream.and_then(|stream| {
            let to = stream.limits.dead_letter.as_ref()?;
            let insists = matches!(errand, Errand::Letter { .. }) && stream.limits.insists();
            Some(Forward {
                id: 0,
                vhost: stream.vhost,
                message: Arc::new(letter(now, stream.title(), reason, to, &message)),
                once: None,
                from: Some(id),
                whole: insists,
            })
        }))
    }

    /// A worker's answer.
    pub(super) fn forwarded(&mut self, id: u64, outcome: PublishOutcome) {
        let Some(errand) = self.forwards.arrive(id) else {
            return;
        };
        match (outcome, &errand) {
            (PublishOutcome::Routed, _) => self.done_with(errand),
            (
                PublishOutcome::Unroutable | PublishOutcome::Refused(_),
                Errand::Letter {
                    stream,
                    offset,
                    reason,
                },
            ) if self.must_stay(*stream, *offset) => {
                let now = self.now.monotonic;
                self.unsent.refuse(now, *stream, *offset, *reason);
            }
            // A full stream that refuses has been asked; asking again would repeat it in all others.
            (PublishOutcome::Unroutable | PublishOutcome::Refused(ErrorKind::QuotaExceeded), _) => {
                self.done_with(errand);
            }
            (PublishOutcome::Refused(_), _) => self.forwards.again.push(errand),
        }
    }

    /// Whether a dropped message has to wait until its destinations take it.
    fn must_stay(&mut self, id: StreamId, offset: u64) -> bool {
        let stream = self.stream_mut(id);
        stream.is_some_and(|stream| stream.limits.insists() && stream.is_leaving(offset))
    }

    /// It is stored elsewhere, or need not be: nothing is left to do here.
    fn done_with(&mut self, errand: Errand) {
        match errand {
            Errand::Letter { stream, offset, .. } => {
                self.with_stream(stream, |shard, stream| {
                    shard.letter_over(stream, offset);
                    shard.dismiss(stream, offset);
                });
            }
            Errand::Later { stream, offset } => {
                self.with_stream(stream, |shard, stream| shard.dismiss(stream, offset));
            }
            Errand::Will { number } => self.will_arrived(number),
            Errand::Refused { .. } => {}
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
