//! Readers of a queue: attaching a consumer, and taking one message without one.
//!
//! Owns: who may be attached beside whom, and the right to what is taken singly.
//! Never: how deliveries go out to those that are attached (`shard/deliver.rs`).
//! Next: `dispatch.rs`.

use super::no_stream;
use crate::authority::Principal;
use crate::dispatch::Reader;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::Delivery;
use crate::id::{Now, StreamId};
use crate::limits::Mode;
use crate::port::{Attach, ConsumerKey, ShardReply};
use crate::shard::replay::cursor_for;
use crate::shard::{Bodies, Fetched, NotYet, Place, Shard};
use crate::stream::Stream;
use std::sync::Arc;

impl<B: Place> Shard<B> {
    pub(super) fn attach(&mut self, attach: Attach) -> Result<ShardReply, Refusal> {
        self.used(attach.stream);
        let receives_all = self.receives_all(&attach.principal, &attach.vhost);
        let stream = self.stream_mut(attach.stream).ok_or_else(no_stream)?;
        let others = stream.readers.attached() > 0;
        let alone = attach.exclusive || stream.limits.mode == Mode::Exclusive;
        if stream.readers.exclusive() || (alone && others) {
            return Err(Refusal::new(
                ErrorKind::SecondConsumer,
                "the queue has a consumer, and one of the two or the queue is exclusive",
            ));
        }
        let cursor = cursor_for(stream, &attach)?;
        let reply = match &cursor {
            Some(_) => ShardReply::Replaying,
            None => ShardReply::Done,
        };
        stream.readers.add(Reader {
            presettled: attach.presettled,
            exclusive: attach.exclusive,
            no_local: attach.no_local,
            priority: attach.priority,
            credit: attach.credit,
            attached: true,
            receives_all,
            cursor,
            ..Reader::new(attach.consumer, attach.principal, attach.vhost)
        });
        stream.recall_aside();
        self.recall_levels(attach.stream);
        let live = self.live.entry(attach.consumer.connection).or_default();
        live.readers.push((attach.stream, attach.consumer));
        if let Some(&place) = self.by_id.get(&attach.stream) {
            self.list(place);
        }
        Ok(reply)
    }

    pub(super) fn get(
        &mut self,
        now: Now,
        id: StreamId,
        (key, principal, vhost): (ConsumerKey, Arc<Principal>, Arc<str>),
        presettled: bool,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<Result<ShardReply, Refusal>, NotYet> {
        let receives_all = self.receives_all(&principal, &vhost);
        let Some(stream) = self.stream_mut(id) else {
            return Ok(Err(no_stream()));
        };
        if stream.replays() {
            let why = format!(
                "messages are not taken singly from stream '{}'",
                stream.name
            );
            return Ok(Err(Refusal::new(ErrorKind::NotSupported, why)));
        }
        let mut got = Ok(None);
        self.with_levels(id, |shard, level| {
            let who = (key, &principal, &vhost, receives_all);
            got = shard.get_from(now, level, who, presettled, bodies);
            matches!(got, Ok(None))
        });
        let ready = self.stream_mut(id).map_or(0, |stream| stream.ready());
        let ready = ready + self.ready_below(id).entries;
        Ok(Ok(ShardReply::Got(got?, ready)))
    }

    fn get_from(
        &mut self,
        now: Now,
        stream: &mut Stream<B>,
        (key, principal, vhost, receives_all): (ConsumerKey, &Arc<Principal>, &Arc<str>, bool),
        presettled: bool,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<Option<Delivery>, NotYet> {
        let mut got = Ok(None);
        loop {
            let offset = match self.next_single(now, stream, key, bodies) {
                Ok(Some(offset)) => offset,
                Ok(None) => break,
                Err(later) => {
                    got = Err(later);
                    break;
                }
            };
            let Some(entry) = stream.entry(offset) else {
                stream.set_aside(offset);
                continue;
            };
            let message = match bodies.fetch(&entry.body) {
                Fetched::Here(message) => message,
                Fetched::Later => {
                    got = Err(NotYet);
                    break;
                }
                Fetched::Lost => {
                    stream.set_aside(offset);
                    continue;
                }
            };
            if entry.by_topic
                && !receives_all
                && !self.may_receive(principal, vhost, &message.address)
            {
                self.withhold(principal, &message.address);
                stream.set_aside(offset);
                continue;
            }
            let named = stream.outside(offset);
            let delivery = |attempt| Delivery {
                consumer: key.tag,
                offset: named,
                attempt,
                quality: entry.quality,
                retain: entry.retain,
                identifier: entry.identifier,
                more_identifiers: entry.more_identifiers.clone(),
                received: false,
                message: message.clone(),
            };
            if presettled {
                let attempt = stream.attempts(offset) + 1;
                stream.tally.delivered += 1;
                stream.tally.settled += 1;
                self.dismiss(stream, offset);
                got = Ok(Some(delivery(attempt)));
            } else {
                if stream.readers.find(key).is_none() {
                    stream
                        .readers
                        .add(Reader::new(key, principal.clone(), vhost.clone()));
                    self.live
                        .entry(key.connection)
                        .or_default()
                        .readers
                        .push((stream.id.whole(), key));
                }
                let number = stream.readers.find(key).map_or(0, |reader| {
                    reader.held += 1;
                    reader.number
                });
                got = Ok(Some(delivery(stream.hold(offset, number))));
                if let Some(place) = stream.readers.place_of(key) {
                    self.note_unsettled(stream, place, offset);
                }
            }
            break;
        }
        stream.recall_aside();
        self.note_cursor(stream);
        got
    }
}
