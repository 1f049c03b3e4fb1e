//! Checkpoints of version 1, read as those of today.
//!
//! Owns: what version 1 looked like. Never: writes it.

use super::CheckpointError;
use super::whole::Saved;
use crate::gateway::FilterSpec;
use crate::id::{Epoch, Lane, Position, Sequence, StreamId, UnixMs, VhostId};
use crate::message::Quality;
use crate::once::Heard;
use crate::record::{AsJson, FirstLimits};
use crate::shard::wills::Due;
use crate::stream::{Entry, SavedStream, Session, Tally};
use serde::Deserialize;
use std::sync::Arc;

/// First byte of such a checkpoint.
pub(super) const VERSION: u8 = 1;

#[derive(Deserialize)]
struct FirstSaved {
    session_counter: u64,
    lanes: Vec<(Lane, Sequence)>,
    streams: Vec<FirstStream>,
}

#[derive(Deserialize)]
struct FirstStream {
    id: StreamId,
    vhost: VhostId,
    session: Option<FirstSession>,
    limits: FirstLimits,
    tally: FirstTally,
    base: u64,
    cursor: u64,
    entries: Vec<FirstEntry>,
    gone: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
struct FirstTally {
    published: u64,
    delivered: u64,
    settled: u64,
    dropped: u64,
}

#[derive(Deserialize)]
struct FirstSession {
    client_id: Arc<str>,
    epoch: Epoch,
    expiry_s: u32,
    closed: Option<UnixMs>,
    filters: Vec<FilterSpec>,
}

#[derive(Deserialize)]
struct FirstEntry {
    body: Position,
    expires: UnixMs,
    cost_bytes: u32,
    identifier: u32,
    quality: Quality,
    retain: bool,
    by_topic: bool,
    no_local: bool,
}

pub(super) fn read(bytes: &[u8]) -> Result<Saved, CheckpointError> {
    let first: FirstSaved = postcard::from_bytes(bytes).map_err(|_| CheckpointError::Malformed)?;
    Ok(Saved {
        session_counter: first.session_counter,
        lanes: first.lanes,
        streams: first.streams.into_iter().map(stream).collect(),
        heard: Heard::default(),
        wills: Due::default(),
        values: Vec::new(),
        partings: Vec::new(),
        last_parting: 0,
    })
}

fn stream(first: FirstStream) -> SavedStream<Position> {
    SavedStream {
        id: first.id,
        vhost: first.vhost,
        name: Arc::default(),
        session: first.session.map(session),
        group: None,
        limits: AsJson(first.limits.into()),
        tally: Tally {
            published: first.tally.published,
            delivered: first.tally.delivered,
            settled: first.tally.settled,
            dropped: first.tally.dropped,
            ..Tally::default()
        },
        base: first.base,
        cursor: first.cursor,
        entries: first.entries.into_iter().map(entry).collect(),
        gone: first.gone,
        received: Vec::new(),
    }
}

fn session(first: FirstSession) -> Session {
    Session {
        client_id: first.client_id,
        epoch: first.epoch,
        expiry_s: first.expiry_s,
        closed: first.closed,
        filters: first.filters.into_iter().collect(),
        will: None,
        keys: None,
        groups: Vec::new(),
        live: None,
    }
}

fn entry(first: FirstEntry) -> Entry<Position> {
    Entry {
        body: first.body,
        expires: first.expires,
        cost_bytes: first.cost_bytes,
        identifier: first.identifier,
        quality: first.quality,
        retain: first.retain,
        by_topic: first.by_topic,
        no_local: first.no_local,
        // Not known: such messages count as empty towards a limit of bytes.
        body_bytes: 0,
        stored: UnixMs(0),
        more_identifiers: None,
    }
}
