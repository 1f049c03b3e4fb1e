//! The replicated state as pairs, and back.
//!
//! A checkpoint is a map of pairs. Keys begin with a byte that says what follows; numbers in keys are big-endian, so that
//! what belongs together lies together. Values are in postcard encoding but for those of messages. Persisted:
//!
//! | key | value |
//! |---|---|
//! | 0 | the version of the form, one byte: [`CHECKPOINT_VERSION`] |
//! | 1 | [`SavedGlobals`]: what is small |
//! | 2, session 8 | what is heard of a session elsewhere (`once.rs`) |
//! | 3, number 8 | a will that is due: vhost and will |
//! | 4, number 8 | a parting ([`Parting`](crate::port::Parting)) |
//! | 5, vhost 4, address | a last value: the message as a record has it |
//! | 6, stream 8 | messages that stay until their letters have arrived (`pinned.rs`) |
//! | 16, serial 8 | all of a stream but its entries (`stream/saved.rs`) |
//! | 17, serial 8, chunk 8 | some of a stream's entries (`stream/saved.rs`) |
//! | 32, group 8 | how many entries refer to each of 512 pages of the journal (`referred.rs`) |
//!
//! Version 3 had no pairs of kind 6, and no streams that have ended and are not gone yet (`ended.rs`). Versions 1 and 2
//! were whole: one pair under the empty key. They are read, and replaced by the next checkpoint.
//!
//! Owns: these keys, freezing, copying bit by bit, and what of the journal is referred to.
//! Never: the leader's memory; files (`store/`).
//! Next: `stream/index.rs` and `checkpoint/changes.rs` (what is copied when), `checkpoint/restore.rs`,
//! `checkpoint/salvage.rs` (what is left when some pairs are not).

mod changes;
mod first;
pub(crate) mod marks;
#[cfg(test)]
mod noted;
mod restore;
mod salvage;
mod whole;

pub(crate) use changes::Changes;
pub use salvage::{Gap, Remains, Salvaged};

use super::Shard;
use crate::address::Address;
use crate::id::{Lane, Position, Sequence, StreamId, VhostId};
use crate::index::{Blocks, Delta};
use crate::stream::{Misfit, Next, Stream, Who};
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Persisted: the form of a checkpoint.
pub const CHECKPOINT_VERSION: u8 = 4;
/// The first that was made of pairs. Version 4 has pairs that version 3 does not know.
const FIRST_OF_PAIRS: u8 = 3;

/// Key of the only pair of a checkpoint that is not made of pairs.
const WHOLE: &[u8] = b"";
const KEY_FORM: u8 = 0;
const KEY_GLOBALS: u8 = 1;
const KEY_HEARD: u8 = 2;
const KEY_WILL: u8 = 3;
const KEY_PARTING: u8 = 4;
const KEY_VALUE: u8 = 5;
const KEY_PINNED: u8 = 6;
const KEY_REFERRED: u8 = 32;

/// What choosing what to copy next costs, as if it were so many bytes.
const STEP_BYTES: usize = 32;
/// Roughly what a pair that is no stream's takes.
const PAIR_BYTES: usize = 256;

/// What is small enough to be copied each time.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SavedGlobals {
    session_counter: u64,
    lanes: Vec<(Lane, Sequence)>,
    last_will: u64,
    last_parting: u64,
    /// First block of the index file that was never used.
    blocks_end: u32,
    /// The serial number that a stream was given last.
    serial: u64,
    /// Where the last applied frame ends.
    applied: Position,
    /// Below it entries do not cover their records.
    sound_from: Position,
}

/// A checkpoint that is being copied.
#[derive(Debug)]
pub(crate) struct Frozen(SavedGlobals);

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

impl From<Misfit> for CheckpointError {
    fn from(_: Misfit) -> CheckpointError {
        CheckpointError::Malformed
    }
}

/// Entries that cannot be read, for the host's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Chunks of entries that could not be read, of whatever stream.
    pub chunks: u64,
    /// The stream of the first.
    pub stream: StreamId,
    /// What it is called: a queue's or group's name, or a session's client id.
    pub name: Arc<str>,
    /// Its first offset.
    pub offset: u64,
}

/// Entries in memory that lie in blocks of the index file too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// Bytes they take.
    pub bytes: usize,
    /// Chunks of them that went for want of room since the start.
    pub evicted: u64,
}

fn numbered(kind: u8, number: u64) -> Bytes {
    let mut key = BytesMut::with_capacity(9);
    key.put_u8(kind);
    key.put_u64(number);
    key.freeze()
}

fn value_key(vhost: VhostId, address: &Address) -> Bytes {
    let mut key = BytesMut::with_capacity(5 + address.0.len());
    key.put_u8(KEY_VALUE);
    key.put_u32(vhost.0);
    key.extend_from_slice(&address.0);
    key.freeze()
}

fn number(bytes: &[u8]) -> Result<u64, CheckpointError> {
    let bytes = bytes.try_into().map_err(|_| CheckpointError::Malformed)?;
    Ok(u64::from_be_bytes(bytes))
}

fn parsed<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, CheckpointError> {
    postcard::from_bytes(value).map_err(|_| CheckpointError::Malformed)
}

/// A value of a pair. Encoding to a growing buffer can only fail for types that are not in any.
pub(super) fn encoded<T: Serialize>(value: &T) -> Bytes {
    postcard::to_allocvec(value).unwrap_or_default().into()
}

impl Shard<Position> {
    /// A place in the journal below which the state refers to nothing; none when it refers to nothing at all.
    pub fn oldest_position(&self) -> Option<Position> {
        self.referred.oldest()
    }

    /// Ranges of the journal between two positions that the state refers to no more, ascending, in whole pages of
    /// [`JOURNAL_PAGE_BYTES`](super::JOURNAL_PAGE_BYTES); only of what is applied. Once there is a checkpoint of this state or
    /// a later one, nobody reads them again. What is dead stays dead.
    pub fn dead_ranges(&self, from: Position, to: Position) -> Vec<(Position, Position)> {
        self.referred.dead(from, to)
    }

    /// Where the blocks are that this shard's deltas are written to: before the first request. A shard that takes pairs
    /// is told with them.
    pub fn set_blocks(&mut self, blocks: Arc<dyn Blocks>) {
        if let Some(index) = &self.index {
            index.set_blocks(blocks);
        }
    }

    /// Begins a checkpoint: what it holds is the state as of now, however long [`Shard::copy`] takes. Nothing while
    /// another is being copied.
    pub fn freeze(&mut self) {
        let Some(index) = self.index.clone().filter(|_| self.frozen.is_none()) else {
            return;
        };
        let lanes = self.lanes.iter();
        let mut lanes: Vec<_> = lanes.map(|(lane, last)| (*lane, *last)).collect();
        lanes.sort_unstable();
        self.frozen = Some(Frozen(SavedGlobals {
            session_counter: self.session_counter,
            lanes,
            last_will: self.last_will(),
            last_parting: self.groups.last_parting,
            blocks_end: 0,
            serial: index.lock().serial().0,
            applied: self.referred.applied,
            sound_from: self.referred.sound_from,
        }));
        self.referred.freeze();
        index.freeze();
        self.values.marks.freeze();
        self.heard.changes.freeze();
        self.will_changes().freeze();
        self.pinned.changes.freeze();
        self.groups.changes.freeze();
    }

    /// Copies what changed since the checkpoint before, about `bytes` at a time; nothing while there is more to copy.
    /// What is applied meanwhile is not in it.
    pub fn copy(&mut self, bytes: usize) -> Option<Delta> {
        self.frozen.as_ref()?;
        let index = self.index.clone()?;
        let begun = index.lock().copied_bytes();
        let mut steps = 0;
        let mut next = index.lock().next();
        while let Some(part) = next {
            self.copy_part(part);
            steps += STEP_BYTES;
            let mut state = index.lock();
            if state.copied_bytes() - begun + steps >= bytes {
                return None;
            }
            next = state.next();
        }
        while let Some((key, value)) = self.next_pair() {
            steps += STEP_BYTES;
            let mut state = index.lock();
            state.put(key, value);
            if state.copied_bytes() - begun + steps >= bytes {
                return None;
            }
        }
        let Frozen(mut globals) = self.frozen.take()?;
        let mut state = index.lock();
        globals.blocks_end = state.blocks_end();
        let form = Bytes::from_static(&[CHECKPOINT_VERSION]);
        state.put(Bytes::from_static(&[KEY_FORM]), Some(form));
        state.put(Bytes::from_static(&[KEY_GLOBALS]), Some(encoded(&globals)));
        if std::mem::take(&mut self.was_whole) {
            state.put(Bytes::from_static(WHOLE), None);
        }
        Some(state.finish())
    }

    fn copy_part(&mut self, part: Next) {
        let Some(index) = self.index.clone() else {
            return;
        };
        match part {
            Next::Head(who) => {
                if let Some(stream) = self.stream_called(who) {
                    stream.copy_head(&mut index.lock());
                }
            }
            Next::Chunk(who, number) => {
                if let Some(stream) = self.stream_called(who) {
                    stream.copy_chunk(number, &mut index.lock());
                }
            }
            Next::Gone(gone) => index.lock().put_gone(gone),
        }
    }

    /// A stream that was listed, unless it is gone.
    pub(super) fn stream_called(&mut self, who: Who) -> Option<&mut Stream<Position>> {
        let place = self.by_id.get(&who.id).copied();
        let here = place.and_then(|place| self.streams[place as usize].as_deref_mut());
        match here.filter(|stream| stream.serial == who.serial) {
            // It may have ended since.
            None => self.ended.find(who.serial),
            found => found,
        }
    }

    fn next_pair(&mut self) -> Option<(Bytes, Option<Bytes>)> {
        if let Some(((vhost, address), value)) = self.values.next_change() {
            return Some((value_key(vhost, &address), value));
        }
        if let Some((session, value)) = self.heard.next_change() {
            return Some((numbered(KEY_HEARD, session.0), value));
        }
        if let Some((number, value)) = self.next_will_change() {
            return Some((numbered(KEY_WILL, number), value));
        }
        if let Some((number, value)) = self.groups.next_change() {
            return Some((numbered(KEY_PARTING, number), value));
        }
        if let Some((stream, value)) = self.pinned.next_change() {
            return Some((numbered(KEY_PINNED, stream.0), value));
        }
        let (group, value) = self.referred.next_change()?;
        Some((numbered(KEY_REFERRED, group), value))
    }

    /// The delta copied last is durable: blocks that neither it nor the one durable before it names can be used
    /// again. (Two, because the one before is what is left when the newest proves damaged.) When a delta cannot be
    /// written this is not called for it: it is kept, and becomes durable together with the next one.
    pub fn written(&mut self) {
        if let Some(index) = &self.index {
            index.lock().written();
        }
    }

    /// How much changed that no checkpoint has, in bytes, roughly: much of it is a reason for another checkpoint.
    pub fn unsaved_bytes(&self) -> usize {
        let streams = self
            .index
            .as_ref()
            .map_or(0, |index| index.lock().unsaved_bytes());
        let pairs = self.values.marks.len() + self.heard.changes.len();
        streams + pairs * PAIR_BYTES
    }

    /// What entries take in memory that lie in blocks too.
    pub fn cached(&self) -> Cached {
        let cached = self.index.as_ref().map(|index| index.lock().cached());
        let (bytes, evicted) = cached.unwrap_or_default();
        Cached { bytes, evicted }
    }

    /// Entries that could not be read since the last answer: they are set aside, and stay.
    pub fn damaged(&mut self) -> Option<Damaged> {
        let (serial, number, chunks) = self.index.as_ref()?.lock().take_damaged()?;
        let mut streams = self.streams.iter().flatten();
        let stream = streams.find(|stream| stream.serial == serial);
        Some(Damaged {
            chunks,
            stream: stream.map(|stream| stream.id).unwrap_or_default(),
            name: stream.map(|stream| stream.called()).unwrap_or_default(),
            offset: number * crate::stream::CHUNK_OFFSETS as u64,
        })
    }
}
