//! The file system of the machine.
//!
//! Owns: `pwritev`, `pread`, `fdatasync`, `fallocate`, `fadvise`, `flock`. Never buffers: what returned from
//! `sync` is on stable storage as far as the kernel says. Read next: [`super::block_buf`], `journal/writer.rs`.

use super::{BLOCK_BYTES, Disk, DiskFile, DiskLock, zero_range};
use rustix::fs::{Advice, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::fs::{fadvise, fallocate, fdatasync, flock, statvfs};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Slices given to the kernel in one call; the limit of Linux (`IOV_MAX`) is 1024.
const MAX_SLICES: usize = 1024;

/// Zeros written between two syncs while a file is made.
const ZEROS_PER_SYNC_BYTES: u64 = 2 * 1024 * 1024;

/// Unit of the allocated size that the system tells, whatever the file system's own.
const STAT_BLOCK_BYTES: u64 = 512;

/// Bytes asked for in one call ahead of a reader: the kernel cuts a larger wish down to what it reads ahead by itself,
/// or its queue takes.
const AHEAD_PER_CALL_BYTES: u64 = 128 * 1024;

/// Bytes asked for in one call past the system's cache. A sync waits behind what was asked before it: so little of it is,
/// and a reader is hardly slower for it.
const PAST_CACHE_PER_CALL_BYTES: usize = 512 * 1024;

/// Payloads and password hashes are nobody else's to read.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIR: u32 = 0o700;

/// The real file system.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(
            OpenOptions::new().read(true).write(true).open(path)?,
        )))
    }

    fn create_zeroed(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(PRIVATE_FILE)
            .open(path)?;
        let written = allocate_and_zero(file, len);
        if written.is_err() {
            let _ = fs::remove_file(path);
        }
        written
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut private = DirBuilder::new();
        private.recursive(true).mode(PRIVATE_DIR).create(dir)?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.sync_dir(parent)?;
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(PRIVATE_FILE)
            .open(path)?;
        if let Err(errno) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if errno == Errno::WOULDBLOCK {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let message = format!("held by process {}", holder.trim());
                return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
            }
            return Err(errno.into());
        }
        file.set_len(0)?;
        write!(file, "{}", std::process::id())?;
        Ok(Box::new(RealLock { _file: file }))
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn used_bytes(&self, dir: &Path) -> io::Result<u64> {
        let mut used = 0;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            match entry.metadata() {
                Ok(about) if about.is_dir() => used += self.used_bytes(&entry.path())?,
                Ok(about) => used += about.blocks() * STAT_BLOCK_BYTES,
                // Files come and go meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(used)
    }
}

fn allocate_and_zero(file: File, len: u64) -> io::Result<Arc<dyn DiskFile>> {
    // Reserving first tells a full disk before any byte is written; a file system that cannot
    // reserve is served by the zeros alone. (Nothing cannot be reserved.)
    if len > 0 {
        match fallocate(&file, FallocateFlags::empty(), 0, len) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let file = RealFile(file);
    // Synced in pieces: one large flush would be in the way of everybody else's small ones.
    let mut done = 0;
    while done < len {
        let piece = ZEROS_PER_SYNC_BYTES.min(len - done);
        zero_range(&file, done, piece)?;
        file.0.sync_data()?;
        done += piece;
    }
    file.0.sync_all()?;
    Ok(Arc::new(file))
}

/// Not every file system (overlayfs, NFS, FUSE) can tell what is in the system's cache.
fn cannot_tell(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)
}

#[derive(Debug)]
struct RealFile(File);

impl RealFile {
    /// Reads what of `buf` is in the system's cache; gives its length.
    fn read_cached(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let mut into = [IoSliceMut::new(buf)];
        rustix::io::preadv2(&self.0, &mut into, offset, ReadWriteFlags::NOWAIT)
    }

    /// The same file for reads around the system's cache, where there is such a thing.
    fn around_cache(&self) -> Result<File, Errno> {
        // By its number: under its name may lie another one by now.
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
    }
}

impl DiskFile for RealFile {
    fn write_at(&self, slices: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        let mut rest = slices;
        while !rest.is_empty() {
            let now = rest.len().min(MAX_SLICES);
            let written = match rustix::io::pwritev(&self.0, &rest[..now], offset) {
                Ok(0) if rest[..now].iter().all(|slice| slice.is_empty()) => {
                    rest = &mut rest[now..];
                    continue;
                }
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            offset += written as u64;
            IoSlice::advance_slices(&mut rest, written);
        }
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(fdatasync(&self.0)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.0, hole, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(io::ErrorKind::Unsupported.into()),
            done => Ok(done?),
        }
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.blocks() * STAT_BLOCK_BYTES)
    }

    fn read_now(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        match self.read_cached(buf, offset) {
            // The rest is not there, or the file is too short: who reads it from the disk is told.
            Ok(read) => Ok(read == buf.len()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) if cannot_tell(errno) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// A few pages are asked for, the last first, since what a reader before has left lies at the front.
    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        let quarter = (len / 4).max(BLOCK_BYTES);
        let last = offset + len.saturating_sub(1);
        let pages = (0..4).map_while(|back| last.checked_sub(back * quarter));
        for page in pages.take_while(|page| *page >= offset) {
            match self.read_cached(&mut [0], page) {
                Ok(1) => {}
                Err(errno) if cannot_tell(errno) => return None,
                Ok(_) | Err(_) => return Some(false),
            }
        }
        Some(true)
    }

    fn read_ahead(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset + len;
        let mut from = offset;
        while from < end {
            let piece = AHEAD_PER_CALL_BYTES.min(end - from);
            fadvise(&self.0, from, NonZeroU64::new(piece), Advice::WillNeed)?;
            from += piece;
        }
        Ok(())
    }

    fn read_as_told(&self) -> io::Result<()> {
        Ok(fadvise(&self.0, 0, None, Advice::Random)?)
    }

    fn read_past_cache(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if let Ok(file) = self.around_cache() {
            let pieces = buf.chunks_mut(PAST_CACHE_PER_CALL_BYTES);
            let mut places = (offset..).step_by(PAST_CACHE_PER_CALL_BYTES);
            let mut reads = pieces.zip(&mut places);
            match reads.try_for_each(|(piece, at)| file.read_exact_at(piece, at)) {
                // Not in blocks of this size, or not on this file system.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                done => return done,
            }
        }
        self.read_at(buf, offset)?;
        // What stays there the system takes back by itself.
        let _ = self.uncache(offset, buf.len() as u64);
        Ok(())
    }

    fn uncache(&self, offset: u64, len: u64) -> io::Result<()> {
        let len = NonZeroU64::new(len);
        // A length of nothing would mean everything up to the end.
        len.map_or(Ok(()), |len| {
            Ok(fadvise(&self.0, offset, Some(len), Advice::DontNeed)?)
        })
    }
}

#[derive(Debug)]
struct RealLock {
    _file: File,
}

impl DiskLock for RealLock {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::write_all_at;

    #[test]
    fn files_and_folders_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("shard");
        RealDisk.create_dir(&inside).unwrap();
        RealDisk.create_zeroed(&inside.join("a"), 512).unwrap();
        let mode = |path: &Path| {
            use std::os::unix::fs::PermissionsExt;
            fs::metadata(path).unwrap().permissions().mode() & 0o777
        };
        assert_eq!((mode(&inside), mode(&inside.join("a"))), (0o700, 0o600));
        let empty = RealDisk.create_zeroed(&inside.join("empty"), 0).unwrap();
        assert!(empty.is_empty().unwrap());
    }

    #[test]
    fn a_gathered_write_is_read_back_across_many_slices() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk
            .create_zeroed(&dir.path().join("f"), 64 * 1024)
            .unwrap();
        let parts: Vec<Vec<u8>> = (0..3000u32)
            .map(|n| n.to_le_bytes()[..(n % 5) as usize % 4].to_vec())
            .collect();
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        file.write_at(&mut slices, 17).unwrap();
        file.sync().unwrap();
        let expected = parts.concat();
        let mut read = vec![0; expected.len()];
        file.read_at(&mut read, 17).unwrap();
        assert_eq!(read, expected);
        assert_eq!(file.len().unwrap(), 64 * 1024);
    }

    #[test]
    fn a_second_lock_is_refused_and_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = RealDisk.lock(&path).unwrap();
        let refused = RealDisk.lock(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(
            refused
                .to_string()
                .contains(&std::process::id().to_string())
        );
        drop(held);
        RealDisk.lock(&path).unwrap();
    }

    #[test]
    fn a_hole_reads_as_zeros_and_its_room_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk
            .create_zeroed(&dir.path().join("f"), 256 * 1024)
            .unwrap();
        write_all_at(&*file, &[7; 256 * 1024], 0).unwrap();
        file.sync().unwrap();
        let before = file.allocated_bytes().unwrap();
        assert!(before >= 256 * 1024);
        file.punch(64 * 1024, 128 * 1024).unwrap();
        assert_eq!(file.len().unwrap(), 256 * 1024);
        assert_eq!(before - file.allocated_bytes().unwrap(), 128 * 1024);
        assert_eq!(
            RealDisk.used_bytes(dir.path()).unwrap(),
            before - 128 * 1024
        );
        let mut read = vec![1; 128 * 1024 + 2];
        file.read_at(&mut read, 64 * 1024 - 1).unwrap();
        assert_eq!((read[0], read[1], read[128 * 1024 + 1]), (7, 0, 7));
        assert!(read[1..=128 * 1024].iter().all(|byte| *byte == 0));
    }

    /// Such a read waited for the disk, and what nobody could tell of counted as absent, so it was given up behind a walk.
    #[test]
    fn where_nobody_can_tell_what_is_in_memory_nothing_is_read_at_once_or_called_absent() {
        let told_nothing = RealDisk.open(Path::new("/proc/self/comm")).unwrap();
        assert!(!told_nothing.read_now(&mut [0; 1], 0).unwrap());
        assert_eq!(told_nothing.is_cached(0, 1), None);
        told_nothing.read_at(&mut [0; 1], 0).unwrap();
    }

    #[test]
    fn reading_past_the_end_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk.create_zeroed(&dir.path().join("f"), 8).unwrap();
        write_all_at(&*file, b"12345678", 0).unwrap();
        let error = file.read_at(&mut [0; 4], 6).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
