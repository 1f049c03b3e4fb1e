//! The index file: blocks of 4 KiB by number, in one file per group that only ever grows.
//!
//! Owns: where a block lies, growing the file by space that is written before it is used, and handing
//! out blocks that are not in the file yet. Never knows what a block holds: whoever reads it checks it.
//! Which block is free is core's to know. Read next: [`super::write`].
//!
//! Block `n` lies at byte `4096 * (n + 1)`. In front of them a header, little-endian, persisted:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABI1` |
//! | 4 | 4 | version, 1 |
//! | 8 | 8 | identity of the checkpoint folder, stated by each of its files |
//! | 16 | 4 | bytes of a block, 4096 |
//! | 20 | 4 | CRC-32C of bytes 0..20 |
//! | 24 | 4072 | 0 |

use super::manifest::Standing;
use crate::disk::{Disk, DiskFile, write_all_at, zero_range};
use crate::journal::frame::{crc32c, u32_at, u64_at};
use anabranch_core::index::{BLOCK_BYTES, Block, BlockBytes, Blocks};
use rustc_hash::FxHashSet;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

const MAGIC: [u8; 4] = *b"ABI1";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const NAME: &str = "index";
const UNFINISHED: &str = "index.tmp";
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
    file: OnceLock<Opened>,
    /// Blocks of the file, header not counted, that are durable as far as they were written.
    durable_blocks: AtomicU64,
    /// Copied and not known to be durable: newer ones later.
    unwritten: RwLock<Vec<Arc<Unwritten>>>,
    reported: Mutex<FxHashSet<Block>>,
    read: AtomicU64,
    written: AtomicU64,
}

#[derive(Debug)]
struct Opened {
    file: Arc<dyn DiskFile>,
    identity: Identity,
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
    pub(super) fn open(disk: &dyn Disk, dir: &Path) -> Result<IndexFile, IndexError> {
        let index = IndexFile {
            path: dir.join(NAME),
            file: OnceLock::new(),
            durable_blocks: AtomicU64::new(0),
            unwritten: RwLock::default(),
            reported: Mutex::default(),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
        };
        let io = |source| IndexError::Io {
            path: index.path.clone(),
            source,
        };
        let file = match disk.open(&index.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(index),
            Err(error) => return Err(io(error)),
        };
        let damaged = || IndexError::Damaged {
            path: index.path.clone(),
        };
        let len = file.len().map_err(io)?;
        if len < BLOCK {
            return Err(damaged());
        }
        let mut header = [0; HEADER_BYTES];
        file.read_at(&mut header, 0).map_err(io)?;
        if header[..4] != MAGIC || u32_at(&header, 20) != crc32c(&[&header[..20]]) {
            return Err(damaged());
        }
        let version = u32_at(&header, 4);
        if version != VERSION || u32_at(&header, 16) != BLOCK_BYTES as u32 {
            let path = index.path.clone();
            return Err(IndexError::Version { path, version });
        }
        let identity = Identity(u64_at(&header, 8));
        index
            .durable_blocks
            .store(len / BLOCK - 1, Ordering::Relaxed);
        let _ = index.file.set(Opened { file, identity });
        Ok(index)
    }

    /// Where the file lies.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What the header says; `None` before the file is made.
    pub(super) fn identity(&self) -> Option<Identity> {
        self.file.get().map(|opened| opened.identity)
    }

    /// Makes the file, durable on return, unless it is there.
    pub(super) fn make(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        identity: Identity,
    ) -> io::Result<Identity> {
        if let Some(opened) = self.file.get() {
            return Ok(opened.identity);
        }
        let unfinished = dir.join(UNFINISHED);
        match disk.remove(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = disk.create_zeroed(&unfinished, BLOCK)?;
        let mut header = [0; HEADER_BYTES];
        header[0..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&VERSION.to_le_bytes());
        header[8..16].copy_from_slice(&identity.0.to_le_bytes());
        header[16..20].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        let crc = crc32c(&[&header[..20]]);
        header[20..].copy_from_slice(&crc.to_le_bytes());
        write_all_at(&*file, &header, 0)?;
        file.sync()?;
        disk.rename(&unfinished, &self.path)?;
        disk.sync_dir(dir)?;
        let _ = self.file.set(Opened { file, identity });
        Ok(identity)
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
        let opened = self
            .file
            .get()
            .ok_or_else(|| io::Error::other("the index file was not made"))?;
        let highest = layers.iter().filter_map(|layer| {
            let last = *layer.order().last()?;
            Some(layer.blocks[last as usize].0)
        });
        let needed = highest.max().map_or(0, |block| u64::from(block.0) + 1);
        let durable = self.durable_blocks.load(Ordering::Relaxed);
        let mut writing = Writing {
            file: &*opened.file,
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
        opened.file.sync()?;
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
    file: &'a dyn DiskFile,
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
                let mut slices: Vec<IoSlice<'_>> = piece
                    .iter()
                    .map(|at| IoSlice::new(&layer.blocks[*at as usize].1[..]))
                    .collect();
                self.file.write_at(&mut slices, (first + 1) * BLOCK)?;
                self.zeroed = self.zeroed.max(first + piece.len() as u64);
                self.wrote(piece.len() as u64)?;
            }
        }
        Ok(order.len() as u64)
    }

    /// Writes zeros up to the block `end`.
    fn zero(&mut self, end: u64) -> io::Result<()> {
        let blocks = end - self.zeroed;
        zero_range(self.file, (self.zeroed + 1) * BLOCK, blocks * BLOCK)?;
        self.zeroed = end;
        self.wrote(blocks)
    }

    fn wrote(&mut self, blocks: u64) -> io::Result<()> {
        self.unsynced += blocks;
        if self.unsynced >= SYNC_BLOCKS {
            self.file.sync()?;
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
        let mut bytes: BlockBytes = Box::new([0; BLOCK_BYTES]);
        let read = match self.file.get() {
            Some(opened) => opened
                .file
                .read_at(&mut bytes[..], (u64::from(block.0) + 1) * BLOCK),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "there is no index file",
            )),
        };
        match read {
            Ok(()) => Some(bytes),
            Err(error) => {
                self.report(block, &error);
                None
            }
        }
    }
}
