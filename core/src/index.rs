//! What of a shard's state lies outside its memory: blocks of an index file, and pairs of a checkpoint.
//!
//! A checkpoint is a set of pairs, key and value, that grows by [`Delta`]s: each holds only what changed since the
//! one before. The references of a stream (`stream.rs`) lie in blocks of one index file per shard, which a delta's
//! pairs name by number. Blocks and pairs are a replica's own: no other replica has the same.
//!
//! Owns: what core hands to whoever keeps it, and asks back.
//! Never: files (`store/`), the format of a block or of a pair (`stream/`, `shard/checkpoint.rs`).

use bytes::Bytes;

/// Length of a block in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// The bytes of a block.
pub type BlockBytes = Box<[u8; BLOCK_BYTES]>;

/// A place in the index file, counted in blocks. Persisted in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block(pub u32);

/// Reads blocks back.
pub trait Blocks: Send + Sync {
    /// The bytes of a block that some delta wrote, checked by nobody yet; `None` when they cannot be read (logged by
    /// the implementation).
    fn read(&self, block: Block) -> Option<BlockBytes>;
}

/// What changed since the last checkpoint. The blocks are to be durable before the pairs that name them; a delta
/// counts as a whole or not at all.
#[derive(Debug, Default)]
pub struct Delta {
    /// To be written to the index file. None of them is named by either of the two checkpoints before, those of an
    /// earlier life of the node included: when the newest one proves damaged, the one before it is opened.
    pub blocks: Vec<(Block, BlockBytes)>,
    /// Pairs that came or changed (a value), and keys that went (no value); each key once.
    pub pairs: Vec<(Bytes, Option<Bytes>)>,
}

impl Delta {
    /// How much it is, in bytes.
    pub fn bytes(&self) -> usize {
        let pair = |(key, value): &(Bytes, Option<Bytes>)| {
            key.len() + value.as_ref().map_or(0, Bytes::len)
        };
        self.blocks.len() * BLOCK_BYTES + self.pairs.iter().map(pair).sum::<usize>()
    }
}
