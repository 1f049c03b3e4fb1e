//! What the streams of one journalled shard share for their checkpoints: what changed, what is being copied, and
//! the blocks of the index file.
//!
//! A checkpoint is copied while the shard goes on, so time is cut into *epochs*, one for each. A stream's head and each
//! chunk know the epoch in which they last came to be listed as changed. When one of them is about to change and is
//! listed in the epoch that is being copied, it is copied first; so what is copied is always the state at the freeze.
//! To freeze is to begin another epoch, whatever has changed.
//!
//! Owns: these lists, the delta that grows, allocation and cache of blocks.
//! Never: what a pair or a block holds (`saved.rs`, `packed.rs`, `block.rs`); what beside streams is in a checkpoint
//! (`shard/checkpoint.rs`).
//! Next: `allocator.rs`, `cache.rs`.

use super::allocator::Allocator;
use super::block;
use super::cache::{Cache, Words};
use crate::id::StreamId;
use crate::index::{Block, Blocks, Delta};
use bytes::Bytes;
use rustc_hash::FxHashSet;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Roughly what the head of a stream takes in a checkpoint, in bytes.
const HEAD_BYTES: usize = 256;
/// Roughly what the pair of a chunk takes.
const CHUNK_BYTES: usize = 96;
/// What the rows of a full chunk take.
const FULL_BYTES: usize = 4096;

/// First byte of the key of a stream's head. Persisted.
pub(crate) const KEY_HEAD: u8 = 16;
/// First byte of the key of a chunk. Persisted.
pub(crate) const KEY_CHUNK: u8 = 17;

/// Numbers a stream in checkpoints. A stream that ends and comes again under its id has another one, so that what is left to be
/// written of the one is never taken for the other. Persisted; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(pub(crate) u64);

/// A stream as it is found, and as checkpoints call it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) id: StreamId,
    pub(crate) serial: Serial,
}

/// The key of a stream's head. Persisted.
pub(super) fn head_key(stream: Serial) -> Bytes {
    let mut key = [KEY_HEAD; 9];
    key[1..].copy_from_slice(&stream.0.to_be_bytes());
    Bytes::copy_from_slice(&key)
}

/// The key of a chunk: its stream, then its number, in their order. Persisted.
pub(super) fn chunk_key(stream: Serial, number: u64) -> Bytes {
    let mut key = [KEY_CHUNK; 17];
    key[1..9].copy_from_slice(&stream.0.to_be_bytes());
    key[9..].copy_from_slice(&number.to_be_bytes());
    Bytes::copy_from_slice(&key)
}

/// A part of a checkpoint that is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gone {
    Stream(Serial),
    Chunk(Serial, u64),
}

/// See the module's text.
pub struct Index {
    /// Of the changes that are made now; 0 is none.
    epoch: AtomicU32,
    state: Mutex<State>,
}

/// What is shared.
#[derive(Default)]
pub struct State {
    blocks: Option<Arc<dyn Blocks>>,
    allocator: Allocator,
    cache: Cache,
    /// Changed in this epoch.
    changed: Lists,
    /// Full chunks that no checkpoint has.
    unsaved: usize,
    /// The epoch that is being copied.
    copying: Option<u32>,
    frozen: Lists,
    out: Delta,
    out_bytes: usize,
    /// Blocks that could not be read: they are not tried again.
    unreadable: FxHashSet<u32>,
    /// The first chunk of those that nobody was told of, and how many they are.
    damaged: Option<(Serial, u64, u64)>,
    /// Given last.
    serial: Serial,
}

#[derive(Debug, Default)]
struct Lists {
    streams: Vec<Who>,
    chunks: Vec<(Who, u64)>,
    gone: Vec<Gone>,
}

/// What is to be copied next.
#[derive(Debug)]
pub(crate) enum Next {
    Head(Who),
    Chunk(Who, u64),
    Gone(Gone),
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl Index {
    /// For a shard whose rows in blocks may take so many bytes of memory.
    pub(crate) fn new(memory_bytes: usize) -> Index {
        let mut state = State::default();
        state.cache.bytes_max = memory_bytes;
        Index {
            epoch: AtomicU32::new(1),
            state: Mutex::new(state),
        }
    }

    /// The epoch of what changes now.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// All that is shared. Only one thread has a shard, so nobody waits here.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_blocks(&self, blocks: Arc<dyn Blocks>) {
        self.lock().blocks = Some(blocks);
    }

    /// Begins a checkpoint. Not while another is being copied.
    pub(crate) fn freeze(&self) {
        let mut state = self.lock();
        state.copying = Some(self.epoch());
        state.frozen = std::mem::take(&mut state.changed);
        state.allocator.freeze();
        // Epochs begin anew after four billion checkpoints; 0 and what is listed now stay apart from them.
        let next = self.epoch().checked_add(1).unwrap_or(1);
        self.epoch.store(next, Ordering::Relaxed);
    }
}

impl State {
    /// Whether what was last listed in this epoch is still to be copied.
    pub(super) fn is_uncopied(&self, marked: u32) -> bool {
        self.copying == Some(marked)
    }

    /// For a stream that is new.
    pub(super) fn next_serial(&mut self) -> Serial {
        self.serial.0 += 1;
        self.serial
    }

    /// Given last: kept in checkpoints.
    pub(crate) fn serial(&self) -> Serial {
        self.serial
    }

    pub(super) fn stream_changed(&mut self, stream: Who) {
        self.changed.streams.push(stream);
    }

    pub(super) fn chunk_changed(&mut self, stream: Who, number: u64) {
        self.changed.chunks.push((stream, number));
    }

    /// A part that the last checkpoint has is gone.
    pub(super) fn gone(&mut self, part: Gone) {
        self.changed.gone.push(part);
    }

    /// A chunk is full that no checkpoint has; or one that was is saved, or gone.
    pub(super) fn count_unsaved(&mut self, is: bool) {
        match is {
            true => self.unsaved += 1,
            false => self.unsaved = self.unsaved.saturating_sub(1),
        }
    }

    /// How much changed that no checkpoint has, in bytes, roughly.
    pub(crate) fn unsaved_bytes(&self) -> usize {
        self.changed.streams.len() * HEAD_BYTES
            + self.changed.chunks.len() * CHUNK_BYTES
            + self.unsaved * FULL_BYTES
    }

    /// Rows in memory that lie in blocks too: their bytes, and how many went for want of room.
    pub(crate) fn cached(&self) -> (usize, u64) {
        (self.cache.bytes(), self.cache.evicted())
    }

    /// The next that is to be copied unless it was copied already.
    pub(crate) fn next(&mut self) -> Option<Next> {
        let frozen = &mut self.frozen;
        if let Some(gone) = frozen.gone.pop() {
            return Some(Next::Gone(gone));
        }
        if let Some(stream) = frozen.streams.pop() {
            return Some(Next::Head(stream));
        }
        let (stream, number) = frozen.chunks.pop()?;
        Some(Next::Chunk(stream, number))
    }

    /// A pair of the delta: absent when it is gone.
    pub(crate) fn put(&mut self, key: Bytes, value: Option<Bytes>) {
        self.out_bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.out.pairs.push((key, value));
    }

    /// Takes note that a part is gone.
    pub(crate) fn put_gone(&mut self, gone: Gone) {
        let key = match gone {
            Gone::Stream(stream) => head_key(stream),
            Gone::Chunk(stream, number) => chunk_key(stream, number),
        };
        self.put(key, None);
    }

    /// Bytes of the delta as far as it has grown.
    pub(crate) fn copied_bytes(&self) -> usize {
        self.out_bytes
    }

    /// All is copied: the delta.
    pub(crate) fn finish(&mut self) -> Delta {
        self.copying = None;
        self.frozen = Lists::default();
        self.out_bytes = 0;
        self.allocator.copied();
        std::mem::take(&mut self.out)
    }

    /// The delta is durable.
    pub(crate) fn written(&mut self) {
        self.allocator.written();
        self.cache.unpin();
    }

    /// First block that was never used.
    pub(crate) fn blocks_end(&self) -> u32 {
        self.allocator.end()
    }

    /// Blocks in use, and blocks that were.
    pub(crate) fn blocks_used_and_free(&self) -> (u64, u64) {
        self.allocator.used_and_free()
    }

    /// Whether rows that begin in a block could not be read.
    pub(super) fn is_unreadable(&self, first: u32) -> bool {
        self.unreadable.contains(&first)
    }

    /// A checkpoint names these blocks.
    pub(crate) fn restore(&mut self, serial: Serial, end: u32, mut named: Vec<u32>) {
        self.serial = self.serial.max(serial);
        named.sort_unstable();
        self.allocator.restore(end, &named);
    }

    /// Puts rows into blocks of their own.
    pub(super) fn write(
        &mut self,
        home: Home<'_>,
        wide: bool,
        (from, base): (u8, u64),
        words: &[u64],
    ) -> Option<[u32; 2]> {
        let first = self.allocator.allocate()?;
        let second = if wide { self.allocator.allocate()? } else { 0 };
        let (bytes, more) = block::write(home.stream, home.number, (wide, from, base), words);
        self.put_block(first, bytes);
        if let Some(more) = more {
            self.put_block(second, more);
        }
        Some([first, second])
    }

    fn put_block(&mut self, block: u32, bytes: crate::index::BlockBytes) {
        self.out_bytes += bytes.len();
        self.unreadable.remove(&block);
        self.out.blocks.push((Block(block), bytes));
    }

    /// The checkpoint that is being copied has another block instead.
    pub(super) fn replace(&mut self, block: u32) {
        self.cache.remove(block);
        self.allocator.replace(block);
    }

    /// A block is not needed any more.
    pub(super) fn release(&mut self, block: u32) {
        self.cache.remove(block);
        self.allocator.release(block);
    }

    /// Keeps rows at hand whose block is still to be written.
    pub(super) fn pin(&mut self, block: u32, words: Words) {
        self.cache.pin(block, words);
    }

    fn load(&mut self, home: Home<'_>, blocks: [u32; 2], shape: (bool, u8, u8)) -> Option<Words> {
        if let Some(words) = self.cache.get(blocks[0]) {
            return Some(words);
        }
        let words = self.read(home, blocks, shape)?;
        self.cache.insert(blocks[0], words.clone());
        Some(words)
    }

    fn read(&mut self, home: Home<'_>, blocks: [u32; 2], shape: (bool, u8, u8)) -> Option<Words> {
        let [first, _] = blocks;
        if self.unreadable.contains(&first) {
            return None;
        }
        let chunk = (home.stream, home.number);
        let file = self.blocks.as_deref();
        let words = file.and_then(|file| block::fetch(file, chunk, blocks, shape));
        let words = words.map(Arc::new);
        if words.is_none() {
            self.unreadable.insert(first);
            let fresh = (home.stream, home.number, 0);
            self.damaged.get_or_insert(fresh).2 += 1;
        }
        words
    }

    /// The first chunk that cannot be read of those that were not asked for yet, and how many they are.
    pub(crate) fn take_damaged(&mut self) -> Option<(Serial, u64, u64)> {
        self.damaged.take()
    }
}

/// Whose rows are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Home<'a> {
    /// Absent where nothing is journalled.
    pub(super) index: Option<&'a Index>,
    pub(super) stream: Serial,
    /// Of the chunk.
    pub(super) number: u64,
}

impl Home<'_> {
    /// Rows that lie in these blocks.
    #[cold]
    pub(super) fn load(self, blocks: [u32; 2], shape: (bool, u8, u8)) -> Option<Words> {
        self.index?.lock().load(self, blocks, shape)
    }

    /// The same for the last time: what is read is not kept at hand.
    pub(super) fn peek(self, blocks: [u32; 2], shape: (bool, u8, u8)) -> Option<Words> {
        let mut state = self.index?.lock();
        let known = state.cache.get(blocks[0]);
        known.or_else(|| state.read(self, blocks, shape))
    }

    /// The same, to be changed.
    pub(super) fn take(self, blocks: [u32; 2], shape: (bool, u8, u8)) -> Option<Vec<u64>> {
        let mut state = self.index?.lock();
        let words = state.load(self, blocks, shape)?;
        state.cache.remove(blocks[0]);
        Some(Arc::try_unwrap(words).unwrap_or_else(|shared| shared.to_vec()))
    }
}
