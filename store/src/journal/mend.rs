//! Mending a journal that nobody has open: side files, the list of what was released, the end.
//!
//! Owns: the steps, each of which leaves a journal that opens or one as before. Deletes nothing: what goes is moved
//! or copied into the folder `quarantine` first. Never decides that something may be lost. Read next:
//! [`super::survey`] (what is wrong), [`crate::inspect`] (who decides).

use super::error::OpenError;
use super::meta::{META_NAME, MetaFile};
use super::recovery::{Told, recover};
use super::released::{RELEASED_NAME, Released};
use super::table::{SideTable, look_at_table, table_paths};
use super::tiered::Catalogue;
use crate::disk::{Disk, DiskFile, write_all_at};
use crate::seal::Sealing;
use anabranch_core::id::Position;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the folder, inside a shard's, for what was put aside.
const QUARANTINE: &str = "quarantine";
/// Bytes copied at a time.
const COPY_BYTES: u64 = 1024 * 1024;

/// Where the name of something put aside is free.
fn place_aside(disk: &dyn Disk, dir: &Path, name: &str) -> io::Result<PathBuf> {
    let aside = dir.join(QUARANTINE);
    disk.create_dir(&aside)?;
    let taken = disk.list(&aside)?;
    let free = (0..).map(|nth| match nth {
        0 => name.to_owned(),
        _ => format!("{name}.{nth}"),
    });
    let free = free.filter(|name| !taken.contains(name));
    Ok(aside.join(free.take(1).collect::<String>()))
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Moves a file of the shard in `dir` into its quarantine; says where it is.
pub(crate) fn move_aside(disk: &dyn Disk, dir: &Path, path: &Path) -> io::Result<PathBuf> {
    let to = place_aside(disk, dir, &name_of(path))?;
    disk.rename(path, &to)?;
    disk.sync_dir(&dir.join(QUARANTINE))?;
    if let Some(parent) = path.parent() {
        disk.sync_dir(parent)?;
    }
    Ok(to)
}

/// Copies a file from `offset` bytes up to the last one that is not zero; says where the copy is, or nothing when
/// only zeros are there.
pub(crate) fn copy_aside(
    disk: &dyn Disk,
    dir: &Path,
    path: &Path,
    offset: u64,
) -> io::Result<Option<PathBuf>> {
    let file = disk.open(path)?;
    let len = file.len()?;
    let end = last_byte(&*file, offset, len)?;
    if end <= offset {
        return Ok(None);
    }
    let to = place_aside(disk, dir, &format!("{}.from-{offset}", name_of(path)))?;
    let copy = disk.create_zeroed(&to, end - offset)?;
    let mut at = offset;
    while at < end {
        let mut bytes = vec![0; COPY_BYTES.min(end - at) as usize];
        file.read_at(&mut bytes, at)?;
        write_all_at(&*copy, &bytes, at - offset)?;
        at += bytes.len() as u64;
    }
    copy.sync()?;
    disk.sync_dir(&dir.join(QUARANTINE))?;
    Ok(Some(to))
}

/// The end of the last byte between two offsets that is not zero; the first offset when there is none.
fn last_byte(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<u64> {
    let (mut at, mut end) = (from, from);
    while at < to {
        let mut bytes = vec![0; COPY_BYTES.min(to - at) as usize];
        file.read_at(&mut bytes, at)?;
        if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
            end = at + last as u64 + 1;
        }
        at += bytes.len() as u64;
    }
    Ok(end)
}

/// Writes a side file and its twin anew, as far as they do not say this; what is there instead is put aside.
pub(crate) fn renew_table(disk: &dyn Disk, dir: &Path, table: &SideTable) -> io::Result<()> {
    for path in table_paths(dir, table.base) {
        match look_at_table(disk, &path) {
            Ok(None) => {}
            Ok(Some(there)) if there == *table => {}
            Ok(Some(_)) => drop(move_aside(disk, dir, &path)?),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                drop(move_aside(disk, dir, &path)?);
            }
            Err(error) => return Err(error),
        }
    }
    table.write(disk, dir)
}

/// Says that these ranges were released; the list that is there is put aside.
pub(crate) fn renew_released(
    disk: &dyn Disk,
    dir: &Path,
    ranges: &[(Position, Position)],
) -> io::Result<()> {
    let path = dir.join(RELEASED_NAME);
    match disk.open(&path) {
        Ok(_) => drop(move_aside(disk, dir, &path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut released = Released::default();
    ranges
        .iter()
        .for_each(|(from, to)| released.add(*from, *to));
    released.write(disk, dir)
}

/// Writes both copies again of the files that are there twice, from the one that is sound.
pub(crate) fn renew_copies(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    MetaFile::open(disk, dir)?;
    if let Some(released) = Released::read(disk, dir)? {
        released.write(disk, dir)?;
    }
    match Catalogue::read(disk, dir)? {
        Some(catalogue) => catalogue.write(disk, dir),
        None => Ok(()),
    }
}

/// Says that no frame was given up; the file that says otherwise is copied aside. For a journal that has all of them:
/// a start then applies all again.
pub(crate) fn forget_purged(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    let Some((mut file, mut meta)) = MetaFile::open(disk, dir)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if meta.purged.take().is_some() {
        copy_aside(disk, dir, &dir.join(META_NAME), 0)?;
        file.write(&meta)?;
    }
    Ok(())
}

/// Opens the journal as a start does, and closes it: a torn tail is cut then. With `lose_synced` the first frame
/// that is not sound is taken for the end, though it was synced; but never one that a checkpoint covers.
pub(crate) fn cut_tail(
    disk: &dyn Disk,
    dir: &Path,
    covered: u64,
    lose_synced: bool,
    sealing: &Sealing,
) -> Result<(), OpenError> {
    let told = Told {
        segment_bytes: super::segment::SEGMENT_HEADER_BYTES * 2,
        trusted_end: covered,
        must_reach: covered,
        lose_synced,
        sealing: sealing.clone(),
        tier: None,
    };
    recover(disk, dir, &told).map(drop)
}
