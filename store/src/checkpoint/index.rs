//! The index file: blocks of 4 KiB by number, in one file per group that only ever grows.
//!
//! Owns: where a block lies, growing the file by space that is written before it is used, and handing
//! out blocks that are not in the file yet. Never knows what a block holds: whoever reads it checks it.
//! Which block is free is core's to know. Read next: [`super::slots`] (the form of the file), [`super::write`].

use super::manifest::Standing;
use super::slots::{Slots, damaged_headers, renew_header};
use crate::disk::Disk;
use crate::journal::frame::crc32c;
use crate::seal::{KeyError, Sealing};
use anabranch_core::index::{BLOCK_BYTES, Block, BlockBytes, Blocks};
use rustc_hash::FxHashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

const NAME: &str = "index";
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The file grows by a quarter, but by so many blocks at least and at most: 64 KiB and 64 MiB.
const GROWTH_BLOCKS: (u64, u64) = (16, 16 * 1024);
/// Blocks written between two syncs (2 MiB): one large flush would be in the way of the journal's
/// small ones.
const SYNC_BLOCKS: u64 = 512;
/// Blocks that could not be read and were reported; more are not.
const REPORTED_MAX: usize = 1024;

/// What all files of one checkpoint folder share, so that none is taken for another's. Persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity(pub u64);

impl Identity {
    /// One for a folder that has none yet, from what no two folders have in common.
    pub(super) fn of(standing: &Standing, dir: &Path) -> Identity {
        let place = crc32c(&[dir.as_os_str().as_encoded_bytes()]);
        let mut mixed =
            standing.clock.0 ^ (u64::from(place) << 32) ^ standing.id.index.0.rotate_left(20);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Identity(mixed ^ (mixed >> 31))
    }
}

/// Blocks, each with its bytes, as a delta gave them.
type Layer = Vec<(Block, BlockBytes)>;

/// Why an index file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The disk failed.
    #[error("reading {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// It is encrypted, and the key is not there.
    #[error("{path}: {source}")]
    Key {
        /// The file.
        path: PathBuf,
        /// Why it does not open.
        source: KeyError,
    },
    /// Its header makes no sense.
    #[error("the header of {path} is damaged")]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// Its version is another.
    #[error("{path} is of version {version}, which this server does not know")]
    Version {
        /// The file.
        path: PathBuf,
        /// The version.
        version: u32,
    },
}

/// The index file of one group; made when it is first written.
#[derive(Debug)]
pub(crate) struct IndexFile {
    path: PathBuf,
    sealing: Sealing,
    /// The file as it is read and written. Another takes its place when its blocks come to be sealed, or plain.
    slots: RwLock<Option<Arc<Slots>>>,
    /// Blocks of the file, header not counted, that are durable as far as they were written.
    durable_blocks: AtomicU64,
    /// Copied and not known to be durable: newer ones later.
    unwritten: RwLock<Vec<Arc<Unwritten>>>,
    reported: Mutex<FxHashSet<Block>>,
    read: AtomicU64,
    written: AtomicU64,
}

#[derive(Debug)]
struct Unwritten {
    blocks: Layer,
    /// Places in `blocks` by block number, once somebody had the time to sort them.
    order: OnceLock<Vec<u32>>,
}

impl Unwritten {
    fn order(&self) -> &[u32] {
        self.order.get_or_init(|| {
            let mut order: Vec<u32> = (0..self.blocks.len() as u32).collect();
            order.sort_unstable_by_key(|at| self.blocks[*at as usize].0);
            order
        })
    }

    fn find(&self, block: Block) -> Option<&BlockBytes> {
        let at = match self.order.get() {
            Some(order) => {
                let found = order.binary_search_by_key(&block, |at| self.blocks[*at as usize].0);
                order[found.ok()?] as usize
            }
            // The moment between copying and sorting: rare and short.
            None => self
                .blocks
                .iter()
                .position(|(number, _)| *number == block)?,
        };
        self.blocks.get(at).map(|(_, bytes)| bytes)
    }
}

impl IndexFile {
    /// The file in `dir`, if it is there.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        sealing: &Sealing,
    ) -> Result<IndexFile, IndexError> {
        let path = dir.join(NAME);
        let slots = Slots::open(disk, &path, sealing)?;
        let blocks = slots.as_ref().map_or(Ok(0), Slots::blocks);
        let durable = blocks.map_err(|source| IndexError::Io {
            path: path.clone(),
            source,
        })?;
        Ok(IndexFile {
            path,
            sealing: sealing.clone(),
            slots: RwLock::new(slots.map(Arc::new)),
            durable_blocks: AtomicU64::new(durable),
            unwritten: RwLock::default(),
            reported: Mutex::default(),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
        })
    }

    /// Where it lies in a folder.
    pub(super) fn path_in(dir: &Path) -> PathBuf {
        dir.join(NAME)
    }

    /// Whether a copy of the header is sound, and where one is damaged; `None` when there is no file.
    pub(super) fn damaged_headers(
        disk: &dyn Disk,
        dir: &Path,
    ) -> io::Result<Option<(bool, Vec<u64>)>> {
        damaged_headers(disk, &dir.join(NAME))
    }

    /// Writes its header again, for who knows whose it is, or makes an empty file when there is none.
    pub(super) fn renew(
        disk: &dyn Disk,
        dir: &Path,
        identity: Identity,
        sealing: &Sealing,
    ) -> io::Result<()> {
        let path = dir.join(NAME);
        match renew_header(disk, &path, identity, sealing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let slots = Slots::create(disk, dir, identity, sealing)?;
                slots.install(disk, dir, &path)
            }
            renewed => renewed,
        }
    }

    /// Offset of a block in the file; 0 when there is none.
    pub(super) fn offset_of(&self, block: Block) -> u64 {
        let slots = self.slots();
        slots.map_or(0, |slots| slots.at(u64::from(block.0)))
    }

    /// Writes one block again, durable on return, while nobody else writes.
    pub(super) fn write_again(&self, block: Block, bytes: &BlockBytes) -> io::Result<()> {
        let slots = self.slots().ok_or(io::ErrorKind::NotFound)?;
        slots.write(u64::from(block.0), std::iter::once(bytes))?;
        slots.sync()
    }

    fn slots(&self) -> Option<Arc<Slots>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.clone()
    }

    fn set_slots(&self, slots: Slots) {
        let mut place = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Arc::new(slots));
    }

    /// Where the file lies.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What the header says; `None` before the file is made.
    pub(super) fn identity(&self) -> Option<Identity> {
        self.slots().map(|slots| slots.identity())
    }

    /// Whether its blocks are sealed.
    #[cfg(test)]
    pub(super) fn is_sealed(&self) -> bool {
        self.slots().is_some_and(|slots| slots.is_sealed())
    }

    /// Makes the file, durable on return, unless it is there; one that is there comes to be stored as new files are.
    pub(super) fn make(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        identity: Identity,
    ) -> io::Result<Identity> {
        let Some(slots) = self.slots() else {
            let slots = Slots::create(disk, dir, identity, &self.sealing)?;
            slots.install(disk, dir, &self.path)?;
            self.set_slots(slots);
            return Ok(identity);
        };
        slots.mend_header()?;
        if slots.is_sealed() == self.sealing.current().is_some() {
            slots.rewrap(&self.sealing)?;
        } else {
            match self.convert(disk, dir, &slots) {
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    tracing::warn!(path = %self.path.display(), %error, "no room to write the index again: it stays as it was, sealed or plain");
                }
                converted => converted?,
            }
        }
        Ok(slots.identity())
    }

    /// Writes all blocks into a new file, sealed if they were plain and plain if they were sealed, and lets it take
    /// the place of this one. Until its name is changed nothing has happened.
    fn convert(&self, disk: &dyn Disk, dir: &Path, from: &Slots) -> io::Result<()> {
        let sealed = !from.is_sealed();
        tracing::info!(path = %self.path.display(), sealed, "the index is written again");
        let to = Slots::create(disk, dir, from.identity(), &self.sealing)?;
        let blocks = self.durable_blocks.load(Ordering::Relaxed);
        let mut first = 0;
        while first < blocks {
            let end = blocks.min(first + SYNC_BLOCKS);
            let read = |number: u64| {
                let block = Block(u32::try_from(number).map_err(io::Error::other)?);
                match from.read(block) {
                    // It was never written, or is lost: whoever wants it finds that out again.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        Ok(Box::new([0; BLOCK_BYTES]))
                    }
                    read => read,
                }
            };
            let piece: io::Result<Vec<BlockBytes>> = (first..end).map(read).collect();
            to.write(first, piece?.iter())?;
            to.sync()?;
            first = end;
        }
        to.install(disk, dir, &self.path)?;
        self.set_slots(to);
        Ok(())
    }

    /// Takes blocks that are to be written by [`IndexFile::write`]; they can be read at once.
    pub(super) fn hold(&self, blocks: Layer) {
        if !blocks.is_empty() {
            let order = OnceLock::new();
            let held = Arc::new(Unwritten { blocks, order });
            self.unwritten_mut().push(held);
        }
    }

    fn unwritten_mut(&self) -> std::sync::RwLockWriteGuard<'_, Vec<Arc<Unwritten>>> {
        self.unwritten
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> Vec<Arc<Unwritten>> {
        self.unwritten
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Writes every block that is held, durable on return. After an error nothing of it counts: all are
    /// written again, and what the file grew by is zeroed again, by the next call.
    pub(super) fn write(&self) -> io::Result<u64> {
        let layers = self.held();
        if layers.is_empty() {
            return Ok(0);
        }
        let slots = self.slots();
        let slots = slots.ok_or_else(|| io::Error::other("the index file was not made"))?;
        let highest = layers.iter().filter_map(|layer| {
            let last = *layer.order().last()?;
            Some(layer.blocks[last as usize].0)
        });
        let needed = highest.max().map_or(0, |block| u64::from(block.0) + 1);
        let durable = self.durable_blocks.load(Ordering::Relaxed);
        let mut writing = Writing {
            slots: &slots,
            zeroed: durable,
            unsynced: 0,
        };
        let mut count = 0;
        // Lowest layer first: of a block that two of them hold the later bytes stay.
        for layer in &layers {
            count += writing.layer(layer)?;
        }
        let grown = grown(durable, needed);
        while writing.zeroed < grown {
            writing.zero(grown.min(writing.zeroed + SYNC_BLOCKS))?;
        }
        slots.sync()?;
        self.durable_blocks.store(grown, Ordering::Relaxed);
        self.written.fetch_add(count, Ordering::Relaxed);
        Ok(count * BLOCK)
    }

    /// Forgets what [`IndexFile::write`] wrote, now that a checkpoint names it.
    pub(super) fn settle(&self) {
        let gone = std::mem::take(&mut *self.unwritten_mut());
        // Memory is given back after the lock.
        drop(gone);
    }

    /// Merges what is held after a failure, so that it does not pile up.
    pub(super) fn gather(&self) {
        let layers = self.held();
        if layers.len() < 2 {
            return;
        }
        let mut newest: rustc_hash::FxHashMap<Block, &BlockBytes> =
            rustc_hash::FxHashMap::default();
        for layer in &layers {
            newest.extend(layer.blocks.iter().map(|(block, bytes)| (*block, bytes)));
        }
        let blocks = newest
            .into_iter()
            .map(|(block, bytes)| (block, bytes.clone()))
            .collect();
        let order = OnceLock::new();
        *self.unwritten_mut() = vec![Arc::new(Unwritten { blocks, order })];
    }

    /// Blocks that the file has room for.
    pub(super) fn blocks(&self) -> u64 {
        self.durable_blocks.load(Ordering::Relaxed)
    }

    /// Blocks read, and blocks written, since opening.
    pub(super) fn traffic(&self) -> (u64, u64) {
        (
            self.read.load(Ordering::Relaxed),
            self.written.load(Ordering::Relaxed),
        )
    }

    fn report(&self, block: Block, error: &io::Error) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() < REPORTED_MAX && reported.insert(block) {
            tracing::error!(path = %self.path.display(), block = block.0, %error, "a block of the index cannot be read");
        }
    }
}

/// How many blocks a file of `durable` is to have when `needed` are needed.
fn grown(durable: u64, needed: u64) -> u64 {
    if needed <= durable {
        return durable;
    }
    let step = (durable / 4).clamp(GROWTH_BLOCKS.0, GROWTH_BLOCKS.1);
    needed.next_multiple_of(step)
}

/// One pass of writing.
struct Writing<'a> {
    slots: &'a Slots,
    /// Blocks that the file holds, zeros written in this pass included.
    zeroed: u64,
    /// Blocks written since the last sync.
    unsynced: u64,
}

impl Writing<'_> {
    /// Writes one layer in the order of its blocks, neighbours in one call.
    fn layer(&mut self, layer: &Unwritten) -> io::Result<u64> {
        let order = layer.order();
        let number = |at: u32| u64::from(layer.blocks[at as usize].0.0);
        for neighbours in order.chunk_by(|one, next| number(*one) + 1 == number(*next)) {
            for piece in neighbours.chunks(SYNC_BLOCKS as usize) {
                let first = number(piece[0]);
                // The zeros of a gap; the piece itself needs none.
                while self.zeroed < first {
                    self.zero(first.min(self.zeroed + SYNC_BLOCKS))?;
                }
                let blocks = piece.iter().map(|at| &layer.blocks[*at as usize].1);
                self.slots.write(first, blocks)?;
                self.zeroed = self.zeroed.max(first + piece.len() as u64);
                self.wrote(piece.len() as u64)?;
            }
        }
        Ok(order.len() as u64)
    }

    /// Writes zeros up to the block `end`.
    fn zero(&mut self, end: u64) -> io::Result<()> {
        let blocks = end - self.zeroed;
        self.slots.zero(self.zeroed, end)?;
        self.zeroed = end;
        self.wrote(blocks)
    }

    fn wrote(&mut self, blocks: u64) -> io::Result<()> {
        self.unsynced += blocks;
        if self.unsynced >= SYNC_BLOCKS {
            self.slots.sync()?;
            self.unsynced = 0;
        }
        Ok(())
    }
}

impl Blocks for IndexFile {
    fn read(&self, block: Block) -> Option<BlockBytes> {
        self.read.fetch_add(1, Ordering::Relaxed);
        {
            let held = self
                .unwritten
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(bytes) = held.iter().rev().find_map(|layer| layer.find(block)) {
                return Some(bytes.clone());
            }
        }
        let read = match self.slots() {
            Some(slots) => slots.read(block),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "there is no index file",
            )),
        };
        match read {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.report(block, &error);
                None
            }
        }
    }
}
