//! The disk as a trait: what the journal needs of a file system, and nothing more.
//!
//! Owns: the contract of durability ([`DiskFile::sync`], [`Disk::sync_dir`]) that every other
//! module relies on. Never interprets a byte. Read next: [`real`] (the file system of the
//! machine), [`block_buf`] (room for what is read around the cache), [`sim`] (a seeded disk in memory that crashes, tears
//! and fails), [`crate::journal`].

pub mod block_buf;
pub mod real;
pub mod sim;

use std::fmt;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// A file system, or a simulation of one. Names are durable only after [`Disk::sync_dir`].
pub trait Disk: Send + Sync + fmt::Debug + 'static {
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a file of `len` bytes whose blocks are allocated, written with zeros and synced,
    /// so that later writes inside it change no metadata. Fails if the name exists.
    fn create_zeroed(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>>;

    /// Replaces `to` by `from` atomically.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Names of the files directly inside a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Creates a directory and its parents; one that exists already is no error.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Makes creations, renames and removals inside a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes an exclusive lock that ends with the value returned (or the process).
    /// `ErrorKind::WouldBlock` when another holder is alive.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>>;

    /// Bytes that can still be allocated beneath `dir`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;

    /// Bytes allocated for all files beneath `dir`: less than their lengths where there are holes.
    fn used_bytes(&self, dir: &Path) -> io::Result<u64>;
}

/// One open file. Every method works at an explicit offset; there is no cursor.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Writes all slices one after the other, starting at `offset` bytes.
    fn write_at(&self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Fills `buf` from `offset` bytes; `ErrorKind::UnexpectedEof` when the file is shorter.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Returns when all bytes written before are on stable storage (`fdatasync`).
    /// After an error the state of those bytes is unknown: it must never be retried.
    fn sync(&self) -> io::Result<()>;

    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Gives the blocks inside `len` bytes from `offset` back to the disk: they read as zeros, the length stays.
    /// `ErrorKind::Unsupported` where there is no such thing. A crash may undo it, in part or all.
    fn punch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Bytes allocated: less than the length where there are holes.
    fn allocated_bytes(&self) -> io::Result<u64> {
        self.len()
    }

    /// Fills `buf` from `offset` bytes without waiting for the disk: says whether the bytes were in memory, as far as
    /// that can be told.
    fn read_now(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.read_at(buf, offset).map(|()| true)
    }

    /// Whether `len` bytes from `offset` are in the system's cache, as far as a sample tells; `None` where nobody can
    /// tell.
    fn is_cached(&self, _offset: u64, _len: u64) -> Option<bool> {
        Some(true)
    }

    /// Has `len` bytes from `offset` read into the system's cache, without waiting for them.
    fn read_ahead(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Whoever reads it says what is to be read ahead: the system adds nothing by itself.
    fn read_as_told(&self) -> io::Result<()> {
        Ok(())
    }

    /// Fills `buf`, whole blocks of a [`block_buf::BlockBuf`], from `offset` bytes, a multiple of a block, so that
    /// nothing of it stays in the system's cache, as far as the file system can do without. `ErrorKind::UnexpectedEof`
    /// when the file is shorter.
    fn read_past_cache(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buf, offset)
    }

    /// Lets `len` bytes from `offset` leave the system's cache: they are not read again soon.
    fn uncache(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// True when the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Unit in which room is allocated and given back, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Proof that an exclusive lock is held; dropping it gives the lock back.
pub trait DiskLock: Send + fmt::Debug {}

/// Writes one contiguous buffer at `offset` bytes.
pub fn write_all_at(file: &dyn DiskFile, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_at(&mut [IoSlice::new(bytes)], offset)
}

/// Writes zeros over `len` bytes from `offset`.
pub fn zero_range(file: &dyn DiskFile, offset: u64, len: u64) -> io::Result<()> {
    static ZEROS: [u8; ZERO_CHUNK_BYTES] = [0; ZERO_CHUNK_BYTES];
    let mut done = 0;
    while done < len {
        let chunk =
            usize::try_from((len - done).min(ZERO_CHUNK_BYTES as u64)).unwrap_or(ZERO_CHUNK_BYTES);
        write_all_at(file, &ZEROS[..chunk], offset + done)?;
        done += chunk as u64;
    }
    Ok(())
}

/// Bytes written per call while zeros are written.
const ZERO_CHUNK_BYTES: usize = 256 * 1024;
