//! Moving a queue's subscription to another place of its stream.
//!
//! What lies below the place and is ready leaves as if it were settled; what lies above comes back from whoever
//! holds it, so that all of it is handed out again, in order. What was settled is gone: a queue keeps no history.
//!
//! Owns: finding the place, taking back.
//! Never: how leaving is recorded (`apply.rs`).

use super::levels::outside;
use super::questions::no_stream;
use super::{Bodies, NotYet, Place, Shard};
use crate::error::{ErrorKind, Refusal};
use crate::id::{StreamId, UnixMs};
use crate::port::SeekTo;
use crate::stream::{Ranges, Stream};
use std::cmp::Ordering;

impl<B: Place> Shard<B> {
    /// Moves the subscription; what is to leave the stream.
    pub(super) fn seek(
        &mut self,
        id: StreamId,
        to: SeekTo,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<Result<Ranges, Refusal>, NotYet> {
        let place = self.by_id.get(&id).copied();
        let stream = place.and_then(|place| self.streams[place as usize].as_deref());
        let (Some(place), Some(stream)) = (place, stream) else {
            return Ok(Err(no_stream()));
        };
        if stream.session().is_some() {
            let why = "a session's stream has no other place than its own";
            return Ok(Err(Refusal::new(ErrorKind::NotSupported, why)));
        }
        if stream.replays() {
            let why = "each reader of a stream has a place of its own";
            return Ok(Err(Refusal::new(ErrorKind::NotSupported, why)));
        }
        // All places first: one of them may not be known yet.
        let mut targets = Vec::new();
        let mut known = Ok(());
        self.with_levels(id, |_, level| {
            let target = place_in(level, to, bodies);
            known = target.map(|target| targets.push(target));
            known.is_ok()
        });
        known?;
        self.tell_delivered(id);
        let mut targets = targets.into_iter();
        let mut all = Ranges::new();
        self.with_levels(id, |_, level| {
            let target = targets.next().unwrap_or(0);
            for holder in level.take_back(target) {
                level.readers.lighten(holder);
            }
            let before = level.ready();
            let ranges = level.leave_below(target);
            level.tally.settled += before - level.ready();
            all.extend(outside(level, &ranges));
            true
        });
        self.list(place);
        Ok(Ok(all))
    }
}

/// The offset of a place; in a queue with priorities, the one at which it lies in this level.
pub(super) fn place_in<B: Place>(
    stream: &Stream<B>,
    to: SeekTo,
    bodies: &mut dyn Bodies<B>,
) -> Result<u64, NotYet> {
    Ok(match to {
        _ if stream.replays() => stream.place_of(to),
        SeekTo::Start => 0,
        SeekTo::Last => stream.end().saturating_sub(1),
        SeekTo::End => stream.end(),
        SeekTo::Offset(offset) => match offset.rank().cmp(&stream.id.rank()) {
            Ordering::Less => 0,
            Ordering::Equal => offset.place().min(stream.end()),
            Ordering::Greater => stream.end(),
        },
        SeekTo::Time(time) => first_since(stream, time, bodies)?,
    })
}

/// The first message taken in at a time or later. Messages that came in over other streams keep their own times, so
/// that among those the place is only about right.
fn first_since<B: Place>(
    stream: &Stream<B>,
    time: UnixMs,
    bodies: &mut dyn Bodies<B>,
) -> Result<u64, NotYet> {
    let present: Vec<u64> = stream.present_offsets().collect();
    let (mut low, mut high) = (0, present.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let message = match stream.entry(present[middle]) {
            Some(entry) => bodies.fetch(&entry.body).here()?,
            None => None,
        };
        match message.is_some_and(|message| message.published < time) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    Ok(present.get(low).copied().unwrap_or(stream.end()))
}
