//! Deliveries that nobody settles.
//!
//! A reader that holds a delivery longer than its stream allows is told so (a consumer of a queue: its connection gives
//! back what it holds), or passed by (a member of a group: what it holds goes to other members, and it gets nothing new
//! until it settles something; not while it is the only one). A session's own stream has no such limit: its peer may
//! hold a message for as long as the session lives.
//!
//! Owns: looking, twice a second, at readers that hold something. Never: how long each has (`dispatch/unsettled.rs`).

use super::{Place, Shard};
use crate::id::{MonotonicMs, Offset};
use crate::port::{ConsumerKey, ShardEvent};
use crate::stream::Stream;

impl<B: Place> Shard<B> {
    /// How long a delivery of a stream may be unsettled, in milliseconds; `None` is for ever.
    fn ack_timeout_ms(&self, stream: &Stream<B>) -> Option<u64> {
        let asked = match stream.session() {
            Some(_) => None,
            None if stream.is_queue() => {
                let asked = stream.limits.ack_timeout_ms;
                asked.or(Some(self.limits.ack_timeout_ms))
            }
            None => stream.limits.ack_timeout_ms,
        };
        asked.filter(|ms| *ms > 0)
    }

    /// A reader was handed an offset that it is to settle.
    pub(super) fn note_unsettled(&mut self, stream: &mut Stream<B>, place: usize, offset: u64) {
        if self.ack_timeout_ms(stream).is_none() {
            return;
        }
        if let Some(reader) = stream.readers.at(place)
            && reader
                .unsettled
                .get_or_insert_default()
                .note(Offset::of_level(stream.id.rank(), offset).0)
        {
            self.watched.push((stream.id.whole(), reader.key));
        }
    }

    /// Looks at every reader that holds something.
    pub(super) fn look_at_unsettled(&mut self, now: MonotonicMs) {
        let mut watched = std::mem::take(&mut self.watched);
        watched.retain(|(id, key)| {
            let (mut keep, mut more) = (false, false);
            self.with_stream(*id, |shard, stream| {
                keep = shard.look_at_reader(now, stream, *key);
                more = stream.has_next();
            });
            if let Some(place) = self.by_id.get(id).filter(|_| more) {
                self.list(*place);
            }
            keep
        });
        watched.append(&mut self.watched);
        self.watched = watched;
    }

    /// Says whether it is to be looked at again.
    fn look_at_reader(
        &mut self,
        now: MonotonicMs,
        stream: &mut Stream<B>,
        key: ConsumerKey,
    ) -> bool {
        let limit = self.ack_timeout_ms(stream);
        let Some(reader) = stream.readers.find(key) else {
            return false;
        };
        let number = reader.number;
        let Some(mut unsettled) = reader.unsettled.take() else {
            return false;
        };
        let held = |(first, last)| {
            let first = self.first_held_in(stream, (Offset(first), Offset(last)), number)?;
            Some(first.0)
        };
        let since = unsettled.look(now, held);
        let overdue = match (since, limit) {
            (Some(since), Some(ms)) if since.after(ms) <= now => Some(ms),
            (Some(_), Some(_)) => None,
            _ => {
                unsettled.clear();
                None
            }
        };
        if let (Some(_), true) = (overdue, stream.is_group())
            && self.pass_by(stream, key)
        {
            unsettled.clear();
        }
        let again = unsettled.watched && (overdue.is_none() || stream.is_group());
        if let Some(after_ms) = overdue.filter(|_| !stream.is_group()) {
            let event = ShardEvent::Overdue {
                consumer: key,
                after_ms,
            };
            self.outbox.settle_order(key.connection);
            self.outbox.event(key.connection.worker(), event);
        }
        if let Some(reader) = stream.readers.find(key) {
            reader.unsettled = Some(unsettled);
        }
        again
    }

    /// What a member of a group holds goes to the others, if there are any.
    fn pass_by(&mut self, stream: &mut Stream<B>, key: ConsumerKey) -> bool {
        let others = stream.readers.iter();
        let others = others.filter(|reader| reader.key != key && reader.serves());
        if others.count() == 0 {
            return false;
        }
        let Some(reader) = stream.readers.find(key) else {
            return false;
        };
        reader.silent = true;
        reader.held = 0;
        let number = reader.number;
        for offset in stream.held_by(number) {
            self.give_back(stream, offset, false);
        }
        true
    }
}
