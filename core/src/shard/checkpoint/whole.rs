//! Checkpoints that were one value: of versions 1 and 2.
//!
//! Owns: what version 2 looked like. Never: writes one.
//! Next: `first.rs`, version 1.

use super::{CheckpointError, first};
use crate::id::{Lane, Position, Sequence, VhostId};
use crate::once::Heard;
use crate::port::Parting;
use crate::record::message_from;
use crate::shard::Shard;
use crate::shard::wills::Due;
use crate::stream::{SavedStream, Stream};
use bytes::Bytes;
use serde::Deserialize;

/// First byte of such a checkpoint.
const VERSION: u8 = 2;

#[derive(Deserialize)]
pub(super) struct Saved {
    pub(super) session_counter: u64,
    pub(super) lanes: Vec<(Lane, Sequence)>,
    pub(super) streams: Vec<SavedStream<Position>>,
    pub(super) heard: Heard,
    pub(super) wills: Due,
    /// Vhost and message of each last value.
    pub(super) values: Vec<(VhostId, Bytes)>,
    pub(super) partings: Vec<(u64, Parting)>,
    pub(super) last_parting: u64,
}

impl Shard<Position> {
    /// Takes a whole checkpoint as the state of a shard just made.
    pub(super) fn restore(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        let saved: Saved = match bytes.split_first() {
            Some((&first::VERSION, rest)) => first::read(rest)?,
            Some((&VERSION, rest)) => {
                postcard::from_bytes(rest).map_err(|_| CheckpointError::Malformed)?
            }
            Some((other, _)) => return Err(CheckpointError::Version(*other)),
            None => return Err(CheckpointError::Malformed),
        };
        self.session_counter = saved.session_counter;
        self.heard.replace(saved.heard);
        self.replace_wills(saved.wills);
        self.lanes = saved.lanes.into_iter().collect();
        for saved in saved.streams {
            let stream = Stream::restore(saved);
            stream.each_weight(|weight| {
                if let Some(position) = weight.position {
                    self.referred.add(position, weight.cost, 1);
                    let end = Position(position.0.saturating_add(weight.cost));
                    // Headers of records and lists of streams did not count.
                    self.referred.sound_from = self.referred.sound_from.max(end);
                }
            });
            self.restore_stream(stream);
        }
        for (number, parting) in saved.partings {
            self.groups.put_parting(number, parting);
        }
        self.groups.last_parting = saved.last_parting;
        for (vhost, value) in saved.values {
            let value = message_from(value).map_err(|_| CheckpointError::Malformed)?;
            self.values.put(vhost, std::sync::Arc::new(value));
        }
        Ok(())
    }
}
