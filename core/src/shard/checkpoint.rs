//! The replicated state as bytes, and back.
//!
//! Owns: the format of a checkpoint (a version byte, then postcard) and what of the journal it refers to.
//! Never: the leader's memory; files (`store/`).
//! Next: `stream.rs`, whose part of it is the largest; `checkpoint/first.rs`, the form before.

mod first;

use super::Shard;
use super::wills::Due;
use crate::id::{Lane, Position, Sequence, VhostId};
use crate::index::{Blocks, Delta};
use crate::once::Heard;
use crate::port::Parting;
use crate::record::{message_bytes, message_from};
use crate::stream::{SavedStream, Stream};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Persisted: first byte of a checkpoint.
pub const CHECKPOINT_VERSION: u8 = 2;

/// Key of the only pair of a checkpoint that is not made of pairs.
const WHOLE: &[u8] = b"";

#[derive(Serialize, Deserialize)]
struct Saved<B> {
    session_counter: u64,
    lanes: Vec<(Lane, Sequence)>,
    streams: Vec<SavedStream<B>>,
    heard: Heard,
    wills: Due,
    /// Vhost and message of each last value.
    values: Vec<(VhostId, Bytes)>,
    partings: Vec<(u64, Parting)>,
    last_parting: u64,
}

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Another version of this format.
    #[error("checkpoint version {0} is not known to this build")]
    Version(u8),
    /// Its bytes make no sense.
    #[error("the checkpoint does not parse")]
    Malformed,
}

impl Shard<Position> {
    /// The lowest place in the journal that the state refers to: below it nothing is needed.
    pub fn oldest_position(&self) -> Option<Position> {
        let streams = self.streams.iter().flatten();
        streams.filter_map(|stream| stream.oldest()).min()
    }

    /// Ranges of the journal between two positions that the state refers to no more, ascending: once there is a
    /// checkpoint of this state or a later one, nobody reads them again. What is dead stays dead.
    pub fn dead_ranges(&self, from: Position, to: Position) -> Vec<(Position, Position)> {
        let end = self.oldest_position().map_or(to, |oldest| oldest.min(to));
        Vec::from_iter((from < end).then_some((from, end)))
    }

    /// Begins a checkpoint: what it holds is the state as of now, however long [`Shard::copy`] takes.
    pub fn freeze(&mut self) {
        self.frozen = Some(self.checkpoint());
    }

    /// Copies what changed since the checkpoint before, about `bytes` at a time; nothing while there is more to copy.
    /// What is applied meanwhile is not in it.
    pub fn copy(&mut self, bytes: usize) -> Option<Delta> {
        let _ = bytes;
        let whole = self.frozen.take()?;
        Some(Delta {
            blocks: Vec::new(),
            pairs: vec![(Bytes::from_static(WHOLE), Some(whole.into()))],
        })
    }

    /// The delta copied last is durable: blocks that neither it nor the one durable before it names can be used
    /// again. (Two, because the one before is what is left when the newest proves damaged.) When a delta cannot be
    /// written this is not called for it: it is kept, and becomes durable together with the next one.
    pub fn written(&mut self) {}

    /// Takes the pairs of a checkpoint as the state of a shard just made, whose blocks are in `blocks`.
    ///
    /// # Errors
    /// [`CheckpointError`]: the pairs are not those of a checkpoint that this build knows.
    pub fn restore_pairs(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
        blocks: Arc<dyn Blocks>,
    ) -> Result<(), CheckpointError> {
        let _ = blocks;
        for (key, value) in pairs {
            if key != WHOLE {
                return Err(CheckpointError::Malformed);
            }
            self.restore(&value)?;
        }
        Ok(())
    }

    /// The whole replicated state, for a checkpoint.
    pub fn checkpoint(&self) -> Vec<u8> {
        let mut lanes: Vec<_> = self
            .lanes
            .iter()
            .map(|(lane, last)| (*lane, *last))
            .collect();
        lanes.sort_unstable();
        let mut streams: Vec<_> = self.streams.iter().flatten().collect();
        streams.sort_unstable_by_key(|stream| stream.id);
        let saved = Saved {
            session_counter: self.session_counter,
            lanes,
            streams: streams.into_iter().map(|stream| stream.save()).collect(),
            heard: self.heard.clone(),
            wills: self.save_wills(),
            values: self
                .values
                .all()
                .map(|(vhost, value)| (vhost, message_bytes(value)))
                .collect(),
            partings: self
                .groups
                .partings
                .iter()
                .map(|(number, parting)| (*number, parting.clone()))
                .collect(),
            last_parting: self.groups.last_parting,
        };
        let out = vec![CHECKPOINT_VERSION];
        // Encoding to a growing buffer can only fail for types that `Saved` does not hold.
        postcard::to_extend(&saved, out).unwrap_or_default()
    }

    /// Takes a checkpoint as the state of a shard just made.
    ///
    /// # Errors
    /// [`CheckpointError`]: the bytes are not a checkpoint of this version.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        let saved: Saved<Position> = match bytes.split_first() {
            Some((&first::VERSION, rest)) => first::read(rest)?,
            Some((&CHECKPOINT_VERSION, rest)) => {
                postcard::from_bytes(rest).map_err(|_| CheckpointError::Malformed)?
            }
            Some((other, _)) => return Err(CheckpointError::Version(*other)),
            None => return Err(CheckpointError::Malformed),
        };
        self.session_counter = saved.session_counter;
        self.heard = saved.heard;
        self.restore_wills(saved.wills);
        self.lanes = saved.lanes.into_iter().collect();
        for saved in saved.streams {
            let stream = Stream::restore(saved);
            let specs = stream
                .session()
                .map(|session| session.filters.to_vec())
                .unwrap_or_default();
            let place = self.insert_group(stream);
            for spec in specs {
                self.bind(place, spec);
            }
        }
        self.groups.partings = saved.partings.into_iter().collect();
        self.groups.last_parting = saved.last_parting;
        for (vhost, value) in saved.values {
            let value = message_from(value).map_err(|_| CheckpointError::Malformed)?;
            self.values.put(vhost, Arc::new(value));
        }
        Ok(())
    }
}
