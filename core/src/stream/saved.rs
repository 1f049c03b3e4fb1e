//! A stream in a checkpoint.
//!
//! Owns: what of a stream is kept, and how it comes back.
//! Never: encodes it (`shard/checkpoint.rs`).
//! Next: `shard/checkpoint/first.rs`, the form before.

use super::{Entry, Group, Kind, Session, Stream, Tally};
use crate::id::{Offset, StreamId, VhostId};
use crate::limits::StreamLimits;
use crate::record::AsJson;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A stream as a checkpoint keeps it. Persisted (version of the checkpoint).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedStream<B> {
    pub(crate) id: StreamId,
    pub(crate) vhost: VhostId,
    pub(crate) name: Arc<str>,
    pub(crate) session: Option<Session>,
    pub(crate) group: Option<Group>,
    pub(crate) limits: AsJson<StreamLimits>,
    pub(crate) tally: Tally,
    pub(crate) base: u64,
    pub(crate) cursor: u64,
    pub(crate) entries: Vec<Entry<B>>,
    pub(crate) gone: Vec<(u64, u64)>,
    pub(crate) received: Vec<u64>,
}

impl<B: Clone> Stream<B> {
    /// What a checkpoint keeps: all but the leader's memory. `Leaving` counts as present, for its record
    /// may not be in the journal.
    pub fn save(&self) -> SavedStream<B> {
        let mut gone: Vec<(u64, u64)> = Vec::new();
        let mut entries: Vec<Entry<B>> = Vec::new();
        for offset in self.base..self.end {
            match self.entry(offset) {
                Some(entry) => entries.push(entry),
                None => {
                    // Something has to stand in its place.
                    entries.extend(entries.first().cloned());
                    match gone.last_mut() {
                        Some((_, last)) if *last + 1 == offset => *last = offset,
                        _ => gone.push((offset, offset)),
                    }
                }
            }
        }
        SavedStream {
            id: self.id,
            vhost: self.vhost,
            name: self.name.clone(),
            session: self.session().cloned(),
            group: self.group().cloned(),
            limits: AsJson(self.limits.clone()),
            tally: self.tally,
            base: self.base,
            cursor: self.cursor_known.max(self.base),
            entries,
            gone,
            received: self.received(),
        }
    }

    /// The stream that was saved.
    pub fn restore(saved: SavedStream<B>) -> Stream<B> {
        let kind = match (saved.session, saved.group) {
            (Some(session), _) => Kind::Session(session),
            (None, Some(group)) => Kind::Group(group),
            (None, None) => Kind::Queue,
        };
        let mut stream = Stream::new(saved.id, saved.vhost, kind, saved.limits.0);
        stream.name = saved.name;
        (stream.base, stream.cursor, stream.end) = (saved.base, saved.base, saved.base);
        saved
            .entries
            .into_iter()
            .for_each(|entry| stream.push(entry));
        stream.tally = saved.tally;
        stream.reach_delivered(saved.cursor);
        for (first, last) in saved.gone {
            stream.remove_ranges(&[(Offset(first), Offset(last))]);
        }
        for offset in saved.received {
            stream.receive(offset);
        }
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::stream;
    use super::Stream;

    #[test]
    fn a_restored_stream_has_what_had_not_left_and_knows_what_was_handed_out() {
        let mut before = stream(5);
        for offset in 0..3 {
            before.hold(offset, 1);
        }
        before.remove(0);
        before.remove(2);
        before.leave(1);
        before.cursor_known = 3;
        let after = Stream::restore(before.save());
        assert_eq!((after.messages(), after.bytes()), (3, 30));
        assert_eq!(
            (after.next(), after.attempts(1), after.attempts(3)),
            (Some(1), 1, 0)
        );
    }
}
