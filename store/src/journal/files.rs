//! Making, naming and wiping segment files: the steps that recovery and writer share.
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

/// Gives a prepared file its header and its name; durable on return.
pub(crate) fn install_segment(
    disk: &dyn Disk,
    dir: &Path,
    prepared: &Path,
    file: &dyn DiskFile,
    header: &SegmentHeader,
) -> io::Result<()> {
    write_all_at(file, &header.encode(), 0)?;
    file.sync()?;
    disk.rename(prepared, &segment_path(dir, header.base))?;
    disk.sync_dir(dir)
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
