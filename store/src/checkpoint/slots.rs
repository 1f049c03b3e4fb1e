//! The form of the index file: its header, and a slot for each block, plain or sealed.
//!
//! Owns: where a block lies and how it is stored; the file's key and wrapping it anew; making the file. Never knows
//! which blocks are of use. Read next: [`super::index`].
//!
//! Slots of 4096 bytes, or of 4128 in a sealed file (a sealed piece, bound to the block's number: u32), lie one after the other
//! from byte 4096 on. In front of them a header, little-endian, persisted:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABI1` |
//! | 4 | 4 | version, 1; 2 when its blocks are sealed |
//! | 8 | 8 | identity of the checkpoint folder, stated by each of its files |
//! | 16 | 4 | bytes of a block, 4096 |
//! | 20 | 4 | CRC-32C of bytes 0..20 |
//! | 24 | 4072 | 0; bytes 0..24 once more at 2048; in version 2 the key lies at 512 and at 1024 |
//!
//! Key, twice; the one with the higher sequence counts:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 8 | sequence of this writing |
//! | 8 | 96 | the wrapped key of the blocks, bound to bytes 0..20 of the header |
//! | 104 | 4 | CRC-32C of bytes 0..104 |

use super::index::{Identity, IndexError};
use crate::disk::{Disk, DiskFile, write_all_at, zero_range};
use crate::journal::frame::{crc32c, u32_at, u64_at};
use crate::seal::{DataKey, Sealer, Sealing, TRAILER_BYTES, WRAPPED_BYTES, WrappedKey};
use anabranch_core::index::{BLOCK_BYTES, Block, BlockBytes};
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MAGIC: [u8; 4] = *b"ABI1";
const VERSION: u32 = 1;
const SEALED_VERSION: u32 = 2;
const FIXED_BYTES: usize = 20;
const HEADER_BYTES: usize = 24;
const HEADERS_AT: [u64; 2] = [0, 2048];
const KEYS_AT: [u64; 2] = [512, 1024];
const KEY_BYTES: usize = 8 + WRAPPED_BYTES + 4;
const UNFINISHED: &str = "index.tmp";
const BLOCK: u64 = BLOCK_BYTES as u64;

/// An open index file.
#[derive(Debug)]
pub(super) struct Slots {
    file: Arc<dyn DiskFile>,
    identity: Identity,
    seal: Option<Seal>,
    /// Not both copies of the header were sound: they are to be written again.
    rotten: Mutex<bool>,
}

/// What seals and opens the blocks of a file.
#[derive(Debug)]
struct Seal {
    key: Arc<DataKey>,
    sealer: Mutex<Sealer>,
    written: Mutex<KeySlot>,
}

/// The key as it lies in the file.
#[derive(Debug, Clone, Copy)]
struct KeySlot {
    sequence: u64,
    wrapped: WrappedKey,
}

impl KeySlot {
    fn write(&self, file: &dyn DiskFile) -> io::Result<()> {
        let mut bytes = [0; KEY_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..KEY_BYTES - 4].copy_from_slice(&self.wrapped.0);
        let crc = crc32c(&[&bytes[..KEY_BYTES - 4]]);
        bytes[KEY_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        let at = KEYS_AT[(self.sequence % 2) as usize];
        write_all_at(file, &bytes, at)
    }

    fn read(file: &dyn DiskFile) -> io::Result<Option<KeySlot>> {
        let mut newest: Option<KeySlot> = None;
        for at in KEYS_AT {
            let mut bytes = [0; KEY_BYTES];
            file.read_at(&mut bytes, at)?;
            let sequence = u64_at(&bytes, 0);
            let sound = u32_at(&bytes, KEY_BYTES - 4) == crc32c(&[&bytes[..KEY_BYTES - 4]]);
            if !sound || newest.is_some_and(|newest| newest.sequence >= sequence) {
                continue;
            }
            let mut wrapped = WrappedKey([0; WRAPPED_BYTES]);
            wrapped.0.copy_from_slice(&bytes[8..KEY_BYTES - 4]);
            newest = Some(KeySlot { sequence, wrapped });
        }
        Ok(newest)
    }
}

/// The header without its checksum: what the key is bound to.
fn fixed(version: u32, identity: Identity) -> [u8; FIXED_BYTES] {
    let mut fixed = [0; FIXED_BYTES];
    fixed[0..4].copy_from_slice(&MAGIC);
    fixed[4..8].copy_from_slice(&version.to_le_bytes());
    fixed[8..16].copy_from_slice(&identity.0.to_le_bytes());
    fixed[16..20].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
    fixed
}

/// The header of a file.
fn header_of(version: u32, identity: Identity) -> Header {
    let mut header = [0; HEADER_BYTES];
    header[..FIXED_BYTES].copy_from_slice(&fixed(version, identity));
    let crc = crc32c(&[&header[..FIXED_BYTES]]);
    header[FIXED_BYTES..].copy_from_slice(&crc.to_le_bytes());
    header
}

type Header = [u8; HEADER_BYTES];

/// The header of a file as it lies there.
struct Headers {
    /// Its two copies, each if it is sound.
    copies: [Option<Header>; 2],
    /// Offsets of those that are damaged, or that the disk does not give back. Earlier servers wrote one: that the second is
    /// not there is no damage.
    damaged: Vec<u64>,
    /// What the disk said.
    failed: Option<io::Error>,
}

impl Headers {
    fn sound(&self) -> Option<Header> {
        self.copies[0].or(self.copies[1])
    }
}

fn headers(file: &dyn DiskFile) -> Headers {
    let mut found = Headers {
        copies: [None; 2],
        damaged: Vec::new(),
        failed: None,
    };
    for (at, copy) in HEADERS_AT.into_iter().zip(&mut found.copies) {
        let mut header = [0; HEADER_BYTES];
        if let Err(error) = file.read_at(&mut header, at) {
            found.failed = Some(error);
            found.damaged.push(at);
        } else if header[..4] == MAGIC && u32_at(&header, 20) == crc32c(&[&header[..FIXED_BYTES]]) {
            *copy = Some(header);
        } else if at == 0 || header != [0; HEADER_BYTES] {
            found.damaged.push(at);
        }
    }
    found
}

/// Whether a copy of the header of the file is sound, and where one is damaged; `None` when there is no file.
pub(super) fn damaged_headers(
    disk: &dyn Disk,
    path: &Path,
) -> io::Result<Option<(bool, Vec<u64>)>> {
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if file.len()? < BLOCK {
        return Ok(Some((false, vec![0])));
    }
    let found = headers(&*file);
    Ok(Some((found.sound().is_some(), found.damaged)))
}

/// Writes the header of the file again, both copies, from the one that is sound or, if none is, for who knows whose it is;
/// durable on return.
pub(super) fn renew_header(
    disk: &dyn Disk,
    path: &Path,
    identity: Identity,
    sealing: &Sealing,
) -> io::Result<()> {
    let file = disk.open(path)?;
    let found = headers(&*file);
    let is_sealed = |header: Header| u32_at(&header, 4) == SEALED_VERSION;
    let may_be_sealed = sealing.has_keys() || found.sound().is_some_and(is_sealed);
    let made_for = |sealed| {
        let version = if sealed { SEALED_VERSION } else { VERSION };
        header_of(version, identity)
    };
    match KeySlot::read(&*file) {
        Ok(key) => {
            let header = found.sound().unwrap_or_else(|| made_for(key.is_some()));
            write_headers(&*file, &header)?;
        }
        // The only key of its blocks may come back yet.
        Err(error) if may_be_sealed => return Err(error),
        Err(_) => {
            let header = found.sound().unwrap_or_else(|| made_for(false));
            // A block that cannot be read is written as a whole, or not at all.
            let mut block = [0; BLOCK_BYTES];
            for at in HEADERS_AT {
                block[at as usize..][..HEADER_BYTES].copy_from_slice(&header);
            }
            write_all_at(&*file, &block, 0)?;
        }
    }
    file.sync()
}

fn write_headers(file: &dyn DiskFile, header: &Header) -> io::Result<()> {
    let mut places = HEADERS_AT.into_iter();
    places.try_for_each(|at| write_all_at(file, header, at))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slots {
    /// Opens the file; `None` when there is none.
    pub(super) fn open(
        disk: &dyn Disk,
        path: &Path,
        sealing: &Sealing,
    ) -> Result<Option<Slots>, IndexError> {
        let path = || path.to_owned();
        let io = |source| IndexError::Io {
            path: path(),
            source,
        };
        let file = match disk.open(&path()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        let damaged = || IndexError::Damaged { path: path() };
        if file.len().map_err(io)? < BLOCK {
            return Err(damaged());
        }
        let found = headers(&*file);
        let rotten = Mutex::new(found.copies[0] != found.copies[1]);
        let header = match (found.sound(), found.failed) {
            (Some(header), _) => header,
            (None, Some(error)) => return Err(io(error)),
            (None, None) => return Err(damaged()),
        };
        let version = u32_at(&header, 4);
        let known = [VERSION, SEALED_VERSION].contains(&version);
        if !known || u32_at(&header, 16) != BLOCK_BYTES as u32 {
            let path = path();
            return Err(IndexError::Version { path, version });
        }
        let identity = Identity(u64_at(&header, 8));
        if version == VERSION {
            let seal = None;
            return Ok(Some(Slots {
                file,
                identity,
                seal,
                rotten,
            }));
        }
        let slot = KeySlot::read(&*file).map_err(io)?.ok_or_else(damaged)?;
        let key = sealing.unwrap(&slot.wrapped, &header[..FIXED_BYTES]);
        let key = key.map_err(|source| IndexError::Key {
            path: path(),
            source,
        })?;
        let seal = Some(Seal::new(sealing, key, slot).map_err(io)?);
        Ok(Some(Slots {
            file,
            identity,
            seal,
            rotten,
        }))
    }

    /// Makes an empty file under an unfinished name.
    pub(super) fn create(
        disk: &dyn Disk,
        dir: &Path,
        identity: Identity,
        sealing: &Sealing,
    ) -> io::Result<Slots> {
        let unfinished = dir.join(UNFINISHED);
        match disk.remove(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = disk.create_zeroed(&unfinished, BLOCK)?;
        let made = sealing.new_key(&fixed(SEALED_VERSION, identity))?;
        let version = made.as_ref().map_or(VERSION, |_| SEALED_VERSION);
        write_headers(&*file, &header_of(version, identity))?;
        let mut seal = None;
        if let Some((key, wrapped)) = made {
            let sequence = 1;
            let slot = KeySlot { sequence, wrapped };
            slot.write(&*file)?;
            seal = Some(Seal::new(sealing, key, slot)?);
        }
        Ok(Slots {
            file,
            identity,
            seal,
            rotten: Mutex::new(false),
        })
    }

    /// Syncs a file that was made and gives it its name, in place of the one before; durable on return.
    pub(super) fn install(&self, disk: &dyn Disk, dir: &Path, path: &Path) -> io::Result<()> {
        self.file.sync()?;
        disk.rename(&dir.join(UNFINISHED), path)?;
        disk.sync_dir(dir)
    }

    /// What the header says.
    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether its blocks are sealed.
    pub(super) fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// Writes both copies of the header again unless both are sound; durable on return.
    pub(super) fn mend_header(&self) -> io::Result<()> {
        let mut rotten = lock(&self.rotten);
        if *rotten {
            let sealed = self.is_sealed();
            let version = if sealed { SEALED_VERSION } else { VERSION };
            write_headers(&*self.file, &header_of(version, self.identity))?;
            self.file.sync()?;
            *rotten = false;
        }
        Ok(())
    }

    /// Wraps the key with the current master key, durable on return, unless that is so. No block is written again.
    pub(super) fn rewrap(&self, sealing: &Sealing) -> io::Result<()> {
        let Some(seal) = &self.seal else {
            return Ok(());
        };
        let mut written = lock(&seal.written);
        if sealing.current().is_none() || sealing.is_current(Some(&written.wrapped)) {
            return Ok(());
        }
        let context = fixed(SEALED_VERSION, self.identity);
        let slot = KeySlot {
            sequence: written.sequence + 1,
            wrapped: sealing.rewrap(&written.wrapped, &context)?,
        };
        slot.write(&*self.file)?;
        self.file.sync()?;
        *written = slot;
        Ok(())
    }

    fn slot_bytes(&self) -> u64 {
        BLOCK
            + if self.is_sealed() {
                TRAILER_BYTES as u64
            } else {
                0
            }
    }

    /// Offset of a block in the file.
    pub(super) fn at(&self, block: u64) -> u64 {
        BLOCK + block * self.slot_bytes()
    }

    /// Blocks that it has slots for.
    pub(super) fn blocks(&self) -> io::Result<u64> {
        Ok(self.file.len()?.saturating_sub(BLOCK) / self.slot_bytes())
    }

    /// Reads a block; who asked for it checks it.
    pub(super) fn read(&self, block: Block) -> io::Result<BlockBytes> {
        let mut bytes: BlockBytes = Box::new([0; BLOCK_BYTES]);
        let at = self.at(u64::from(block.0));
        let Some(seal) = &self.seal else {
            self.file.read_at(&mut bytes[..], at)?;
            return Ok(bytes);
        };
        let mut slot = [0; BLOCK_BYTES + TRAILER_BYTES];
        self.file.read_at(&mut slot, at)?;
        let opened = seal.key.open(&block.0.to_le_bytes(), &mut slot);
        let opened = opened.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the sealed block does not open")
        })?;
        bytes.copy_from_slice(opened);
        Ok(bytes)
    }

    /// Writes neighbours from the block `first` on, without a sync.
    pub(super) fn write<'a>(
        &self,
        first: u64,
        blocks: impl Iterator<Item = &'a BlockBytes>,
    ) -> io::Result<()> {
        let Some(seal) = &self.seal else {
            let mut slices: Vec<_> = blocks.map(|block| IoSlice::new(&block[..])).collect();
            return self.file.write_at(&mut slices, self.at(first));
        };
        let mut bytes = Vec::new();
        let mut sealer = lock(&seal.sealer);
        for (number, block) in (first..).zip(blocks) {
            let from = bytes.len();
            bytes.extend_from_slice(&block[..]);
            sealer.seal(&(number as u32).to_le_bytes(), &mut bytes, from)?;
        }
        drop(sealer);
        write_all_at(&*self.file, &bytes, self.at(first))
    }

    /// Writes zeros into the slots from `from` to `to`, without a sync.
    pub(super) fn zero(&self, from: u64, to: u64) -> io::Result<()> {
        zero_range(&*self.file, self.at(from), self.at(to) - self.at(from))
    }

    /// Makes what was written durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

impl Seal {
    fn new(sealing: &Sealing, key: Arc<DataKey>, slot: KeySlot) -> io::Result<Seal> {
        Ok(Seal {
            sealer: Mutex::new(sealing.sealer(key.clone())?),
            key,
            written: Mutex::new(slot),
        })
    }
}
