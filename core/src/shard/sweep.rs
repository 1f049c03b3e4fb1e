//! Messages that have ended behind others that have not.
//!
//! At the head of a stream what has ended is dropped at once (`limit.rs`), and where messages end in their order that is
//! all there is to do. Only where one ends before another that came before it, the stream is gone through once that has
//! come: some entries at a time, so that a long queue costs no more than a share of a tick. Where nothing of a chunk ever
//! ends none of its entries is looked at, so that its block is not read either.
//!
//! Owns: which streams are gone through, and how far. Never: what becomes of what has ended (`limit.rs`).

use super::deliver::ended;
use super::{Place, Shard};
use crate::death::DeathReason;
use crate::id::{Now, StreamId, UnixMs};
use crate::stream::{Bounds, Early, Stream};
use std::collections::BTreeSet;

/// Entries that are looked at in one tick.
const LOOK_MAX: usize = 10_000;

/// What a shard remembers of streams that are to be gone through.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    times: BTreeSet<(UnixMs, StreamId)>,
    current: Option<Sweep>,
}

#[derive(Debug)]
struct Sweep {
    stream: StreamId,
    from: u64,
    early: Early,
}

impl Sweeps {
    /// What of a stream ends early may have changed.
    pub(super) fn arm(&mut self, id: StreamId, bounds: &mut Bounds) {
        let at = bounds.early.first();
        if bounds.swept_at != at {
            self.times.remove(&(bounds.swept_at, id));
            bounds.swept_at = at;
            if at.0 != 0 {
                self.times.insert((at, id));
            }
        }
    }

    /// A stream is gone.
    pub(super) fn forget(&mut self, id: StreamId, bounds: &Bounds) {
        self.times.remove(&(bounds.swept_at, id));
        self.current.take_if(|current| current.stream == id);
    }
}

impl<B: Place> Shard<B> {
    /// Goes on with what is to be gone through.
    pub(super) fn sweep(&mut self, now: Now) {
        let mut left = LOOK_MAX;
        while left > 0 {
            let Some(mut sweep) = self.sweeps.current.take().or_else(|| self.next_sweep(now))
            else {
                break;
            };
            let mut done = true;
            self.with_stream(sweep.stream, |shard, stream| {
                let (looked, next) = shard.sweep_part(now.unix, stream, &mut sweep, left);
                left = left.saturating_sub(looked);
                match next {
                    Some(next) => (sweep.from, done) = (next, false),
                    None => {
                        stream.bounds.early.add(sweep.early);
                        shard.sweeps.arm(stream.id, &mut stream.bounds);
                    }
                }
            });
            if !done {
                self.sweeps.current = Some(sweep);
            }
        }
    }

    fn next_sweep(&mut self, now: Now) -> Option<Sweep> {
        while let Some(&(time, id)) = self.sweeps.times.first()
            && time <= now.unix
        {
            self.sweeps.times.pop_first();
            if let Some(stream) = self.stream_mut(id) {
                stream.bounds.swept_at = UnixMs(0);
                // What comes from now on is noted anew.
                stream.bounds.early.settle();
                return Some(Sweep {
                    stream: id,
                    from: 0,
                    early: Early::default(),
                });
            }
        }
        None
    }

    /// Looks at some entries; says at how many, and where to go on.
    fn sweep_part(
        &mut self,
        now: UnixMs,
        stream: &mut Stream<B>,
        sweep: &mut Sweep,
        most: usize,
    ) -> (usize, Option<u64>) {
        let mut over = Vec::new();
        let looked = stream.look(sweep.from, most, |offset, entry| match entry {
            Some(entry) if ended(&entry, now) && stream.is_ready(offset) => over.push(offset),
            entry => {
                let end = entry.map(|entry| entry.expires);
                sweep.early.note(end.unwrap_or_default());
            }
        });
        for offset in over {
            self.bury(stream, offset, DeathReason::Expired);
        }
        looked
    }
}
