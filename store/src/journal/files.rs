//! Making, naming and wiping files: the steps that recovery, writer and keeper share.
//!
//! Owns: their order, so that a crash between any two of them leaves a journal that opens. Read
//! next: [`super::writer`], [`super::recovery`].

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

/// Removes a file unless it is not there.
pub(super) fn remove_if_there(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
