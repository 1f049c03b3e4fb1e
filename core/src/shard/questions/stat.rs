//! The counts of one stream, for people and for clients that declare it.
//!
//! Owns: how [`StreamStat`] and [`StreamTotals`] are put together.
//! Never: the counters (`stream/counts.rs`).

use crate::limits::Mode;
use crate::port::{StreamStat, StreamTotals};
use crate::stream::{Place, Stream};

fn unsettled<B: Place>(stream: &Stream<B>) -> u64 {
    let held = stream.readers.iter().map(|reader| u64::from(reader.held));
    match stream.replays() {
        true => held.sum(),
        false => stream.held(),
    }
}

/// Sums over some streams.
pub(in crate::shard) fn totals<'a, B: Place>(
    streams: impl Iterator<Item = &'a Stream<B>>,
) -> StreamTotals {
    let mut all = StreamTotals::default();
    for stream in streams {
        all.streams += 1;
        all.bytes += stream.bytes();
        if stream.id.is_delayed() {
            all.delayed += stream.ready();
            continue;
        }
        match stream.session() {
            Some(_) => all.sessions += 1,
            None => all.consumers += stream.readers.attached() as u64,
        }
        all.ready += stream.ready();
        all.unsettled += unsettled(stream);
        all.settled += stream.tally.settled;
        all.dropped += stream.tally.dropped;
    }
    all
}

pub(in crate::shard) fn stat<B: Place>(stream: &Stream<B>) -> StreamStat {
    let (session, tally) = (stream.session(), stream.counts());
    StreamStat {
        stream: stream.id,
        vhost: stream.vhost,
        session: session.map(|session| session.client_id.clone()),
        group: stream
            .group()
            .map(|group| (group.name.clone(), group.spec.filter.clone())),
        live: session.is_some_and(|session| session.live.is_some()),
        filters: session
            .map(|session| session.filters.iter().collect())
            .unwrap_or_default(),
        will: session.is_some_and(|session| session.will.is_some()),
        keys: session
            .and_then(|session| session.keys.as_ref())
            .map_or(0, |keys| keys.len() as u64),
        ready: stream.ready(),
        unsettled: unsettled(stream),
        consumers: stream.readers.attached() as u32,
        mode: stream.limits.mode,
        active: match stream.limits.mode {
            Mode::Exclusive | Mode::Failover => stream.readers.lead().map(|reader| reader.key),
            Mode::Shared | Mode::KeyShared | Mode::Replay => None,
        },
        bytes: stream.bytes(),
        published: tally.published,
        delivered: tally.delivered,
        settled: tally.settled,
        dropped: tally.dropped,
        dead_lettered: tally.dead_lettered,
        rejected: tally.rejected,
        dead_letters_waiting: 0,
        limits: (*stream.limits).clone(),
        kept: match stream.replays() {
            true => stream.kept_range(),
            false => None,
        },
    }
}
