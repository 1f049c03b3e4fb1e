//! The counts of one stream, for people and for clients that declare it.
//!
//! Owns: how [`StreamStat`] is put together.
//! Never: the counters (`stream/counts.rs`).

use crate::limits::Mode;
use crate::port::StreamStat;
use crate::stream::{Place, Stream};

pub(in crate::shard) fn stat<B: Place>(stream: &Stream<B>) -> StreamStat {
    let session = stream.session();
    StreamStat {
        stream: stream.id,
        vhost: stream.vhost,
        session: session.map(|session| session.client_id.clone()),
        group: stream
            .group()
            .map(|group| (group.name.clone(), group.spec.filter.clone())),
        live: session.is_some_and(|session| session.live.is_some()),
        filters: session
            .map(|session| session.filters.to_vec())
            .unwrap_or_default(),
        will: session.is_some_and(|session| session.will.is_some()),
        keys: session
            .and_then(|session| session.keys.as_ref())
            .map_or(0, |keys| keys.len() as u64),
        ready: stream.ready(),
        unsettled: match stream.replays() {
            true => stream
                .readers
                .iter()
                .map(|reader| u64::from(reader.held))
                .sum(),
            false => stream.held(),
        },
        consumers: stream.readers.attached() as u32,
        mode: stream.limits.mode,
        active: match stream.limits.mode {
            Mode::Exclusive | Mode::Failover => stream.readers.lead().map(|reader| reader.key),
            Mode::Shared | Mode::KeyShared | Mode::Replay => None,
        },
        bytes: stream.bytes(),
        published: stream.tally.published,
        delivered: stream.tally.delivered,
        settled: stream.tally.settled,
        dropped: stream.tally.dropped,
        dead_lettered: stream.tally.dead_lettered,
        rejected: stream.tally.rejected,
        limits: stream.limits.clone(),
        kept: match stream.replays() {
            true => stream.kept_range(),
            false => None,
        },
    }
}
