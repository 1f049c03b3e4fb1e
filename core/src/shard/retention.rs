//! How long a stream keeps its messages whose readers take nothing from it: by their age, by the size of their bodies together.
//!
//! The leader looks when messages came in, when its limits change, and when the oldest message is too old, though nobody
//! publishes; it then proposes the first offset that is kept, and every replica lets go of what lies below. The newest
//! message is never too much.
//!
//! Owns: when something leaves such a stream.
//! Never: how it is read (`replay.rs`), which limits there are (`limits.rs`).

use super::{Place, Shard};
use crate::id::{Now, Offset, StreamId, UnixMs};
use crate::record::{Change, Mark};
use crate::stream::{Stream, Volume};

/// For the age of single messages a stream is looked at no more often than this, in milliseconds.
const AGE_MS: u64 = 1000;
/// Messages that one record lets go of; the rest follows.
const TRIM_MAX: u64 = 65_536;

impl<B: Place> Shard<B> {
    /// Lets go of what need not be kept; says whether there is more of it.
    pub(super) fn retain(&mut self, now: Now, stream: &mut Stream<B>) -> bool {
        let age_max_ms = stream.limits.age_max_ms;
        let bytes_max = stream.limits.bytes_max.unwrap_or(u64::MAX);
        // What was proposed and is not applied counts as gone.
        let going = stream.bounds.going;
        let mut bytes = stream.ready_bytes().saturating_sub(going.bytes);
        let aged = age_max_ms.is_some() && stream.bounds.due <= now.unix;
        if !aged && bytes <= bytes_max {
            return false;
        }
        let from = stream.first() + going.entries;
        let last = stream.end().saturating_sub(1);
        let (mut at, mut more, mut due) = (from, false, UnixMs(0));
        while let Some(entry) = stream.entry(at) {
            let end = age_max_ms.map(|ms| entry.stored.after(ms));
            let old = end.is_some_and(|end| end <= now.unix);
            let much = bytes > bytes_max && at < last;
            if !old && !much {
                due = end.map_or(UnixMs(0), |end| end.max(now.unix.after(AGE_MS)));
                break;
            }
            if at - from >= TRIM_MAX {
                (more, due) = (true, now.unix);
                break;
            }
            bytes -= u64::from(entry.body_bytes);
            at += 1;
        }
        // Of nothing that is left: what comes next sets it.
        self.limiter.arm(stream.id, &mut stream.bounds, due);
        if at > from {
            self.let_go(stream, at, bytes);
        }
        more
    }

    /// Lets go of what lies below `first`, so that bodies of so many `bytes` are left: at once where nothing is
    /// journalled.
    fn let_go(&mut self, stream: &mut Stream<B>, first: u64, bytes: u64) {
        if self.journalled() {
            stream.bounds.going = Volume {
                entries: first - stream.first(),
                bytes: stream.ready_bytes() - bytes,
            };
            let change = Change::Trim {
                stream: stream.id,
                first: Offset(first),
            };
            return self.builder.change(Mark::default(), &change);
        }
        let before = stream.kept();
        stream.trim_below(first, |_| {});
        self.account(stream.is_queue(), before, stream.kept());
    }

    pub(super) fn apply_trim(&mut self, id: StreamId, first: Offset) {
        let place = self.by_id.get(&id);
        let stream = place.and_then(|place| self.streams[*place as usize].as_deref_mut());
        let Some(stream) = stream else {
            return;
        };
        let (before, bodies) = (stream.kept(), stream.ready_bytes());
        stream.trim_below(first.0, |weight| self.referred.remove(weight));
        let (is_queue, after) = (stream.is_queue(), stream.kept());
        let gone_bytes = bodies - stream.ready_bytes();
        let going = &mut stream.bounds.going;
        going.entries = going.entries.saturating_sub(before.entries - after.entries);
        going.bytes = going.bytes.saturating_sub(gone_bytes);
        self.account(is_queue, before, after);
    }
}
