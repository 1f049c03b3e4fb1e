//! Moving a queue's subscription to another place of its stream.
//!
//! What lies below the place and is ready leaves as if it were settled; what lies above comes back from whoever
//! holds it, so that all of it is handed out again, in order. What was settled is gone: a queue keeps no history.
//!
//! Owns: finding the place, taking back.
//! Never: how leaving is recorded (`apply.rs`).

use super::questions::no_stream;
use super::{Bodies, Place, Shard};
use crate::error::{ErrorKind, Refusal};
use crate::id::{StreamId, UnixMs};
use crate::port::SeekTo;
use crate::stream::{Ranges, Stream};

impl<B: Place> Shard<B> {
    /// Moves the subscription; what is to leave the stream.
    pub(super) fn seek(
        &mut self,
        id: StreamId,
        to: SeekTo,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<Ranges, Refusal> {
        let &place = self.by_id.get(&id).ok_or_else(no_stream)?;
        let stream = self.streams[place as usize].as_deref_mut();
        let stream = stream.ok_or_else(no_stream)?;
        if stream.session().is_some() {
            let why = "a session's stream has no other place than its own";
            return Err(Refusal::new(ErrorKind::NotSupported, why));
        }
        if stream.replays() {
            let why = "each reader of a stream has a place of its own";
            return Err(Refusal::new(ErrorKind::NotSupported, why));
        }
        let target = place_in(stream, to, bodies);
        for holder in stream.take_back(target) {
            stream.readers.lighten(holder);
        }
        let before = stream.ready();
        let ranges = stream.leave_below(target);
        stream.tally.settled += before - stream.ready();
        self.list(place);
        Ok(ranges)
    }
}

/// The offset of a place.
pub(super) fn place_in<B: Place>(
    stream: &Stream<B>,
    to: SeekTo,
    bodies: &mut dyn Bodies<B>,
) -> u64 {
    match to {
        _ if stream.replays() => stream.place_of(to),
        SeekTo::Start => 0,
        SeekTo::Last => stream.end().saturating_sub(1),
        SeekTo::End => stream.end(),
        SeekTo::Offset(offset) => offset.0.min(stream.end()),
        SeekTo::Time(time) => first_since(stream, time, bodies),
    }
}

/// The first message taken in at a time or later. Messages that came in over other streams keep their own times, so
/// that among those the place is only about right.
fn first_since<B: Place>(stream: &Stream<B>, time: UnixMs, bodies: &mut dyn Bodies<B>) -> u64 {
    let present: Vec<u64> = stream.present_offsets().collect();
    let at = present.partition_point(|offset| {
        let message = stream
            .entry(*offset)
            .and_then(|entry| bodies.fetch(&entry.body));
        message.is_some_and(|message| message.published < time)
    });
    present.get(at).copied().unwrap_or(stream.end())
}
