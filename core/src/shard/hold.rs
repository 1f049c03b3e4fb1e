//! Publishes that wait for room in a stream that holds its publishers.
//!
//! They wait here, in order of arrival per stream, unstored and unanswered, and are taken as soon as readers make room;
//! the workers are told which, so that their publishers are held back. What wants no answer and can be lost is refused
//! instead, and so is all beyond a limit of bytes. What the broker sends on by itself, and what takes effect together with
//! something else, is taken into a full stream: it would hold up others here.
//!
//! Owns: that queue. Never: counts what waits against its publisher (`worker/held_up.rs`).
//! Next: `stream/bounds.rs`, which says whether there is room.

use super::{Place, Shard, Store};
use crate::error::ErrorKind;
use crate::id::{Sequence, StreamId, VhostId, WorkerId};
use crate::message::{Message, Quality};
use crate::port::{Extra, ShardEvent};
use crate::stream::Stream;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// A publish as it came in.
#[derive(Debug)]
pub(super) struct Publish {
    pub(super) from: WorkerId,
    pub(super) sequence: Sequence,
    pub(super) streams: SmallVec<[StreamId; 2]>,
    pub(super) by_topic: Option<VhostId>,
    pub(super) patient: bool,
    pub(super) extra: Option<Box<Extra>>,
    pub(super) message: Arc<Message>,
}

/// Publishes that wait, by the stream that they wait for.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    streams: FxHashMap<StreamId, VecDeque<Publish>>,
    bytes: usize,
}

impl<B: Place> Shard<B> {
    /// The stream for which a publish must wait.
    pub(super) fn must_wait_for(
        &mut self,
        streams: &[StreamId],
        extra: Option<&Extra>,
        message: &Message,
    ) -> Option<StreamId> {
        if extra.is_some_and(|extra| extra.at_once) {
            return None;
        }
        let bytes = message.body.len() as u64;
        streams.iter().copied().find(|id| {
            let beside = self.beside(*id);
            let full = |stream: &mut Stream<B>| {
                stream.limits.holds() && !stream.takes_one_more(bytes, beside)
            };
            self.waits.streams.contains_key(id) || self.stream_mut(*id).is_some_and(full)
        })
    }

    /// Lets a publish wait for a stream, or says why not.
    pub(super) fn let_wait(&mut self, stream: StreamId, publish: Publish) -> Result<(), ErrorKind> {
        let fleeting = !publish.patient && publish.message.quality == Quality::AtMostOnce;
        let cost_bytes = publish.message.cost_bytes();
        if fleeting || self.waits.bytes + cost_bytes > self.limits.parked_bytes_max {
            return Err(ErrorKind::Busy);
        }
        self.waits.bytes += cost_bytes;
        let event = ShardEvent::Waits {
            sequence: publish.sequence,
            cost_bytes,
        };
        self.outbox.event(publish.from, event);
        let waiting = self.waits.streams.entry(stream).or_default();
        waiting.push_back(publish);
        Ok(())
    }

    /// Takes what waits and finds room now.
    pub(super) fn take_waiting(&mut self)
    where
        Self: Store<B>,
    {
        if self.waits.streams.is_empty() {
            return;
        }
        let ids: Vec<StreamId> = self.waits.streams.keys().copied().collect();
        for id in ids {
            // Taken out, so that those behind the first do not wait for it.
            let mut waiting = self.waits.streams.remove(&id).unwrap_or_default();
            while let Some(first) = waiting.front() {
                let extra = first.extra.as_deref();
                let (streams, message) = (first.streams.clone(), first.message.clone());
                if self.must_wait_for(&streams, extra, &message).is_some() {
                    break;
                }
                if let Some(publish) = waiting.pop_front() {
                    self.waits.bytes -= publish.message.cost_bytes();
                    self.take_late(publish);
                }
            }
            if !waiting.is_empty() {
                self.waits.streams.insert(id, waiting);
            }
        }
    }

    /// Takes one that others have overtaken.
    fn take_late(&mut self, publish: Publish)
    where
        Self: Store<B>,
    {
        let Publish {
            from,
            sequence,
            streams,
            by_topic,
            mut extra,
            message,
            ..
        } = publish;
        let once = extra.as_deref().and_then(|extra| extra.once);
        if once.is_some_and(|once| self.is_overtaken(once, &message)) {
            let why = crate::gateway::PublishOutcome::Refused(ErrorKind::Locked);
            return self.outbox.published(from, sequence, why);
        }
        if self.journalled() {
            extra.get_or_insert_default().overtaken = true;
        }
        match self.refuse_where_full(&streams, extra.as_deref(), &message) {
            Some(takers) => {
                let mark = (from, sequence);
                self.publish_rest(mark, &takers, by_topic, extra.as_deref(), &message);
            }
            None => {
                let extra = extra.as_deref();
                self.publish(from, sequence, &streams, by_topic, extra, &message);
            }
        }
    }
}
