//! The pairs of a checkpoint as the state of a shard.
//!
//! Owns: taking them. Never: what a pair holds of a stream (`stream/saved.rs`), forms that were whole (`whole.rs`), pairs
//! of which some are missing (`salvage.rs`).

use super::{
    CHECKPOINT_VERSION, CheckpointError, FIRST_OF_PAIRS, KEY_FORM, KEY_GLOBALS, KEY_HEARD,
    KEY_PARTING, KEY_PINNED, KEY_REFERRED, KEY_VALUE, KEY_WILL, SavedGlobals, WHOLE, number,
    parsed,
};
use crate::id::{Position, StreamId, VhostId};
use crate::index::Blocks;
use crate::port::Parting;
use crate::record::message_from;
use crate::shard::Shard;
use crate::stream::{KEY_CHUNK, KEY_HEAD, Serial, Stream, Who};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::sync::Arc;

impl Shard<Position> {
    /// Takes the pairs of a checkpoint as the state of a shard just made, whose blocks are in `blocks`. Those of one
    /// stream come in the order of their keys.
    ///
    /// # Errors
    /// [`CheckpointError`]: the pairs are not those of a checkpoint that this build knows.
    pub fn restore_pairs(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
        blocks: Arc<dyn Blocks>,
    ) -> Result<(), CheckpointError> {
        self.set_blocks(blocks);
        let mut restored = Restored::default();
        let mut is_empty = true;
        for (key, value) in pairs {
            is_empty = false;
            self.take_pair(&key, value, &mut restored)?;
        }
        if !is_empty && !self.was_whole && !restored.known {
            return Err(CheckpointError::Malformed);
        }
        self.all_taken(restored);
        Ok(())
    }

    /// Takes one pair, or leaves the state as it was.
    pub(super) fn take_pair(
        &mut self,
        key: &[u8],
        value: Bytes,
        restored: &mut Restored,
    ) -> Result<(), CheckpointError> {
        if key != WHOLE {
            return self.restore_pair(key, value, restored);
        }
        self.restore(&value)?;
        self.was_whole = true;
        Ok(())
    }

    /// Does what can be done only once all pairs are there.
    pub(super) fn all_taken(&mut self, mut restored: Restored) {
        for place in 0..self.streams.len() {
            let Some(stream) = self.streams[place].as_deref_mut() else {
                continue;
            };
            if self.was_whole {
                continue;
            }
            let received = restored.received.remove(&stream.serial);
            stream.restored(received.unwrap_or_default());
            self.delays.watch(stream);
            let (is_queue, kept) = (stream.is_queue(), stream.kept());
            self.account(is_queue, Default::default(), kept);
        }
        self.restored_pinned();
        if let Some(index) = &self.index {
            let serial = Serial(restored.serial);
            let mut state = index.lock();
            state.restore(serial, restored.blocks_end, restored.blocks);
        }
    }

    fn restore_pair(
        &mut self,
        key: &[u8],
        value: Bytes,
        restored: &mut Restored,
    ) -> Result<(), CheckpointError> {
        let (kind, rest) = key.split_first().ok_or(CheckpointError::Malformed)?;
        match *kind {
            KEY_FORM => match value.first() {
                Some(FIRST_OF_PAIRS..=CHECKPOINT_VERSION) => restored.known = true,
                Some(other) => return Err(CheckpointError::Version(*other)),
                None => return Err(CheckpointError::Malformed),
            },
            KEY_GLOBALS => {
                let globals: SavedGlobals = parsed(&value)?;
                self.session_counter = globals.session_counter;
                self.lanes = globals.lanes.into_iter().collect();
                self.set_last_will(globals.last_will);
                self.groups.last_parting = globals.last_parting;
                restored.blocks_end = globals.blocks_end;
                restored.serial = globals.serial;
                self.referred.applied = globals.applied;
                self.referred.sound_from = globals.sound_from;
            }
            KEY_HEARD => {
                let session = StreamId(number(rest)?);
                self.heard.restore(session, parsed(&value)?);
            }
            KEY_WILL => {
                let (vhost, will) = parsed(&value)?;
                self.restore_will(number(rest)?, vhost, will);
            }
            KEY_PARTING => {
                let parting: Parting = parsed(&value)?;
                self.groups.partings.insert(number(rest)?, parting);
            }
            KEY_VALUE => {
                let vhost = rest.first_chunk().ok_or(CheckpointError::Malformed)?;
                let vhost = VhostId(u32::from_be_bytes(*vhost));
                let message = message_from(value).map_err(|_| CheckpointError::Malformed)?;
                self.values.restore(vhost, message);
            }
            KEY_PINNED => {
                let stream = StreamId(number(rest)?);
                self.pinned.restore(stream, parsed(&value)?);
            }
            KEY_HEAD => {
                let serial = Serial(number(rest)?);
                let (stream, received) = Stream::restore_head(serial, &value)?;
                if !received.is_empty() {
                    restored.received.insert(serial, received);
                }
                let id = stream.id;
                restored.ids.insert(serial, Who { id, serial });
                self.restore_stream(stream);
            }
            KEY_CHUNK => {
                let (serial, nth) = rest.split_at_checked(8).ok_or(CheckpointError::Malformed)?;
                let who = restored.ids.get(&Serial(number(serial)?));
                let stream = who.and_then(|who| self.stream_called(*who));
                let stream = stream.ok_or(CheckpointError::Malformed)?;
                restored
                    .blocks
                    .extend(stream.restore_chunk(number(nth)?, &value)?);
            }
            KEY_REFERRED => self.referred.restore(number(rest)?, parsed(&value)?),
            _ => return Err(CheckpointError::Malformed),
        }
        Ok(())
    }

    pub(super) fn restore_stream(&mut self, mut stream: Stream<Position>) {
        if stream.id.is_ended() {
            if let Some(index) = &self.index {
                stream.adopt(index);
            }
            return self.ended.push(Box::new(stream));
        }
        let session = stream.session();
        let specs = session
            .map(|session| session.filters.iter().collect::<Vec<_>>())
            .unwrap_or_default();
        let place = self.insert_group(stream);
        for spec in specs {
            self.bind(place, spec);
        }
    }
}

/// What is known while pairs are taken.
#[derive(Default)]
pub(super) struct Restored {
    known: bool,
    blocks_end: u32,
    blocks: Vec<u32>,
    serial: u64,
    received: FxHashMap<Serial, Vec<u64>>,
    ids: FxHashMap<Serial, Who>,
}

impl Restored {
    /// Whether the head of a stream was taken.
    pub(super) fn has_stream(&self, serial: u64) -> bool {
        self.ids.contains_key(&Serial(serial))
    }
}
