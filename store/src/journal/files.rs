//! Making, naming, wiping and reading files: the steps that recovery, writer and keeper share.
//!
//! Owns: their order, so that a crash between any two of them leaves a journal that opens; files in which the same
//! bytes stand twice. Never knows what is written in a file. Read next: [`super::writer`], [`super::recovery`].

use super::segment::{SegmentHeader, segment_path};
use crate::disk::{Disk, DiskFile, write_all_at, zero_range};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file made ready to become the next segment.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    /// Length in bytes.
    pub(super) len: u64,
}

/// Makes a file of `len` zeros under an unfinished name.
pub(super) fn make_spare(disk: &dyn Disk, path: PathBuf, len: u64) -> io::Result<Spare> {
    let file = disk.create_zeroed(&path, len)?;
    Ok(Spare { path, file, len })
}

/// Why a segment was not installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    /// Its header was not written, or the change of its name may be undone by a crash.
    #[error(transparent)]
    NotDurable(io::Error),
    /// It did not get its name: the prepared file is still there.
    #[error(transparent)]
    NoName(io::Error),
}

impl From<InstallError> for io::Error {
    fn from(error: InstallError) -> Self {
        match error {
            InstallError::NotDurable(error) | InstallError::NoName(error) => error,
        }
    }
}

/// Gives a prepared file its header and its name; durable on return.
pub(crate) fn install_segment(
    disk: &dyn Disk,
    dir: &Path,
    prepared: &Path,
    file: &dyn DiskFile,
    header: &SegmentHeader,
) -> Result<(), InstallError> {
    write_all_at(file, &header.encode(), 0).map_err(InstallError::NotDurable)?;
    file.sync().map_err(InstallError::NotDurable)?;
    disk.rename(prepared, &segment_path(dir, header.base))
        .map_err(InstallError::NoName)?;
    disk.sync_dir(dir).map_err(InstallError::NotDurable)
}

/// Wipes a cut tail: zeros from `end_offset`, later segments removed, newest first.
pub(crate) fn drop_tail(
    disk: &dyn Disk,
    dir: &Path,
    file: &dyn DiskFile,
    end_offset: u64,
    capacity_bytes: u64,
    dropped: &[PathBuf],
) -> io::Result<()> {
    zero_range(file, end_offset, capacity_bytes.saturating_sub(end_offset))?;
    file.sync()?;
    for path in dropped.iter().rev() {
        disk.remove(path)?;
    }
    disk.sync_dir(dir)
}

/// Makes `bytes` the whole of the file `path` in `dir`: durable on return, and the file before is gone, or
/// nothing has changed.
pub(super) fn replace_file(
    disk: &dyn Disk,
    dir: &Path,
    path: &Path,
    bytes: &[u8],
) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let unfinished = PathBuf::from(unfinished);
    remove_if_there(disk, &unfinished)?;
    let file = disk.create_zeroed(&unfinished, bytes.len() as u64)?;
    write_all_at(&*file, bytes, 0)?;
    file.sync()?;
    disk.rename(&unfinished, path)?;
    disk.sync_dir(dir)
}

/// Reads a whole file; `None` when there is none.
pub(super) fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; usize::try_from(file.len()?).map_err(io::Error::other)?];
    file.read_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

/// Makes `copy`, twice, the whole of a file, so that a rotten bit in one copy leaves the other; otherwise like
/// [`replace_file`].
pub(super) fn replace_twins(
    disk: &dyn Disk,
    dir: &Path,
    path: &Path,
    copy: &[u8],
) -> io::Result<()> {
    replace_file(disk, dir, path, &copy.repeat(2))
}

/// Reads a file written by [`replace_twins`] from the first copy that can be decoded; `None` when there is no
/// file, an error of kind `InvalidData` when neither copy is sound.
pub(super) fn read_twins<T>(
    disk: &dyn Disk,
    path: &Path,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<Option<T>> {
    let Some(bytes) = read_file(disk, path)? else {
        return Ok(None);
    };
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let read = decode(first).or_else(|| decode(second));
    read.map(Some).ok_or(io::ErrorKind::InvalidData.into())
}

/// Where in the file the copy that is not sound begins to differ from the other; nothing when they do not differ,
/// or there is no file.
pub(super) fn twins_differ_at<T>(
    disk: &dyn Disk,
    path: &Path,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<Option<u64>> {
    let Some(bytes) = read_file(disk, path)? else {
        return Ok(None);
    };
    let half = bytes.len() / 2;
    let (first, second) = bytes.split_at(half);
    let rotten_from = if decode(first).is_some() { half } else { 0 };
    let mut pairs = first.iter().zip(second);
    let at = pairs.position(|(one, other)| one != other);
    Ok(at.map(|at| (rotten_from + at) as u64))
}

/// Removes a file unless it is not there.
pub(super) fn remove_if_there(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;

    #[test]
    fn the_copy_that_rotted_is_the_one_that_is_named() {
        let (dir, path) = (Path::new("j"), Path::new("j/twins"));
        let sound = |copy: &[u8]| (copy == b"sound").then_some(());
        let disk = SimDisk::new(1);
        assert_eq!(twins_differ_at(&disk, path, sound).unwrap(), None);
        assert_eq!(read_twins(&disk, path, sound).unwrap(), None);
        for rotten in [0, 3, 5, 9] {
            replace_twins(&disk, dir, path, b"sound").unwrap();
            assert_eq!(twins_differ_at(&disk, path, sound).unwrap(), None);
            disk.flip_bit(path, rotten, 2);
            let differs = twins_differ_at(&disk, path, sound).unwrap();
            assert_eq!(differs, Some(rotten));
            assert_eq!(read_twins(&disk, path, sound).unwrap(), Some(()));
        }
    }
}
