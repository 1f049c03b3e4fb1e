//! What the peers of sessions have received already, so that it is never sent again.
//!
//! Owns: receipts on their way into the journal, and handing out what is owed after one.
//! Never: which offsets were received (`stream/owed.rs`).
//! Next: `frame.rs`, which writes receipts.

use super::questions::taken_over;
use super::{Place, Shard};
use crate::dispatch::travel_units;
use crate::error::Refusal;
use crate::gateway::Delivery;
use crate::id::{Offset, Sequence, StreamId, WorkerId};
use crate::message::{Message, Quality};
use crate::port::{ConsumerKey, ShardReply, Ticket};
use crate::record::{Change, Mark};
use crate::stream::Stream;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What sessions' peers said they have: one record for each session and frame, all askers told at once.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    /// For the next frame.
    noted: FxHashMap<StreamId, Noted>,
    /// Who is told when the record of this number is applied.
    written: FxHashMap<u64, Vec<(WorkerId, Ticket)>>,
    last: u64,
}

#[derive(Debug, Default)]
struct Noted {
    ranges: Vec<(Offset, Offset)>,
    askers: Vec<(WorkerId, Ticket)>,
}

impl Receipts {
    pub(super) fn is_empty(&self) -> bool {
        self.noted.is_empty()
    }

    /// The streams that have some for the next frame.
    pub(super) fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.noted.keys().copied()
    }

    fn note(&mut self, stream: StreamId, offset: Offset, asker: (WorkerId, Ticket)) {
        let noted = self.noted.entry(stream).or_default();
        noted.askers.push(asker);
        match noted.ranges.last_mut() {
            Some((_, last)) if last.next() == offset => *last = offset,
            _ => noted.ranges.push((offset, offset)),
        }
    }
}

impl<B: Place> Shard<B> {
    /// A peer says that it has a delivery; the answer, unless the next frame brings it.
    pub(super) fn receive(
        &mut self,
        from: WorkerId,
        ticket: Ticket,
        consumer: ConsumerKey,
        id: StreamId,
        offset: Offset,
    ) -> Option<Result<ShardReply, Refusal>> {
        // Who lost its session must not be told that this is kept.
        if self.session_of(consumer.connection) != Some(id) {
            return Some(Err(taken_over()));
        }
        let journalled = self.journalled();
        let Some(stream) = self.stream_mut(id) else {
            return Some(Err(taken_over()));
        };
        let number = stream.readers.find(consumer).map(|reader| reader.number);
        if !number.is_some_and(|number| stream.is_held_by(offset.0, number)) {
            return Some(Ok(ShardReply::Done));
        }
        if !journalled {
            stream.receive(offset.0);
            return Some(Ok(ShardReply::Done));
        }
        self.receipts.note(id, offset, (from, ticket));
        None
    }

    /// Puts what a stream's peer has into the next frame.
    pub(super) fn write_receipts(&mut self, stream: StreamId) {
        let Some(noted) = self.receipts.noted.remove(&stream) else {
            return;
        };
        self.receipts.last += 1;
        let number = self.receipts.last;
        self.receipts.written.insert(number, noted.askers);
        let mark = Mark {
            lane: self.lane(WorkerId(0)),
            sequence: Sequence(number),
        };
        let ranges = noted.ranges;
        self.builder
            .change(mark, &Change::Received { stream, ranges });
    }

    pub(super) fn apply_received(&mut self, mark: Mark, id: StreamId, ranges: &[(Offset, Offset)]) {
        if let Some(stream) = self.stream_mut(id) {
            for (first, last) in ranges {
                let end = stream.end().saturating_sub(1);
                (first.0..=last.0.min(end)).for_each(|offset| stream.receive(offset));
            }
        }
        // The mark is of no worker: it numbers the record for the leader that wrote it.
        if self.worker_of(mark.lane).is_some() {
            let told = self.receipts.written.remove(&mark.sequence.0);
            for (worker, ticket) in told.into_iter().flatten() {
                self.reply(worker, ticket, Ok(ShardReply::Done));
            }
        }
    }

    /// Hands out what was received and released, before anything else; says whether all of it is out. It needs no
    /// credit: it was counted once, and only settling it frees some.
    pub(super) fn hand_out_owed(&mut self, stream: &mut Stream<B>) -> bool {
        while let Some(offset) = stream.next_owed() {
            let message = Arc::new(Message {
                quality: Quality::ExactlyOnce,
                ..Message::default()
            });
            let reader = stream.readers.at(0).filter(|reader| reader.can_travel());
            let Some(reader) = reader else {
                return false;
            };
            reader.travelling += travel_units(message.cost_bytes());
            reader.held += 1;
            let (key, number) = (reader.key, reader.number);
            let attempt = stream.hold(offset, number);
            let delivery = Delivery {
                consumer: key.tag,
                offset: Offset(offset),
                attempt,
                quality: Quality::ExactlyOnce,
                retain: false,
                identifier: 0,
                more_identifiers: None,
                received: true,
                message,
            };
            self.outbox.deliver(key.connection, delivery);
        }
        true
    }
}
