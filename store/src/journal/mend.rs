//! Mending a journal that nobody has open: side files, the list of what was released, the end.
//!
//! Owns: the steps, each of which leaves a journal that opens or one as before. Deletes nothing: what goes is moved
//! or copied into the folder `quarantine` first. Never decides that something may be lost. Read next:
//! [`super::survey`] (what is wrong), [`crate::inspect`] (who decides).

use super::error::OpenError;
use super::frame::{HEAD_BYTES, Head, decode_head};
use super::meta::{META_NAME, MetaFile};
use super::recovery::{Told, recover};
use super::released::{RELEASED_NAME, Released};
use super::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, parse_segment_name, salt_of};
use super::table::{SideTable, look_at_table, read_table, table_paths};
use super::tiered::Catalogue;
use crate::disk::{Disk, DiskFile, write_all_at};
use crate::seal::Sealing;
use anabranch_core::id::{Position, Term};
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

/// The header of a segment whose own is not sound, from the heads of its frames and from side files; nothing where they do
/// not tell it: no frame is found, or frames are sealed, and their key stood in the header.
pub(crate) fn header_again(
    disk: &dyn Disk,
    dir: &Path,
    path: &Path,
) -> io::Result<Option<SegmentHeader>> {
    let Some(base) = parse_segment_name(&name_of(path)) else {
        return Ok(None);
    };
    let file = disk.open(path)?;
    let mut header = [0; SEGMENT_HEADER_BYTES as usize];
    let is_sound = file.read_at(&mut header, 0).is_ok() && SegmentHeader::decode(&header).is_some();
    let table = read_table(disk, dir, base, |table| table.base == base);
    let table = table.map(|(table, _)| table);
    let places = table.iter().flat_map(|table| table.frames.places.iter());
    let offsets = places.map(|place| u64::from(place.offset));
    let mut heads = std::iter::once(SEGMENT_HEADER_BYTES)
        .chain(offsets)
        .filter_map(|offset| Some((offset, head_at(&*file, offset)?)));
    let Some((offset, head)) = heads.find(|(_, head)| !is_sound && !head.is_sealed()) else {
        return Ok(None);
    };
    // A file that was used again may have frames of the life before.
    let mut epochs = 0..=head.link.epoch;
    let is_of_this_life = epochs.any(|epoch| salt_of(base, epoch) == head.link.salt);
    let is_first = offset == SEGMENT_HEADER_BYTES;
    let (prev_crc, prev_term) = match table_before(disk, dir, base)? {
        Some(before) => (before.chain, before.last_term),
        None if is_first => (head.link.prev_crc, head.term),
        // Only who reads the first frame asks what it links to.
        None => (0, Term(0)),
    };
    let first_index = match is_first {
        true => Some(head.index),
        false => table.map(|table| table.first_index),
    };
    let capacity_bytes = file.len()?;
    let told = first_index.filter(|_| is_of_this_life);
    Ok(told.map(|first_index| SegmentHeader {
        salt: head.link.salt,
        prev_crc,
        base,
        first_index,
        prev_term,
        capacity_bytes,
        key: None,
    }))
}

/// The head of a frame, if a sound one begins there.
fn head_at(file: &dyn DiskFile, offset: u64) -> Option<Head> {
    let mut bytes = [0; HEAD_BYTES];
    file.read_at(&mut bytes, offset).ok()?;
    decode_head(&bytes).ok()
}

/// The side file of the segment that ends where another one begins.
fn table_before(disk: &dyn Disk, dir: &Path, base: Position) -> io::Result<Option<SideTable>> {
    let names = disk.list(dir)?;
    let bases = names.iter().filter_map(|name| parse_segment_name(name));
    let Some(before) = bases.filter(|one| *one < base).max() else {
        return Ok(None);
    };
    let table = read_table(disk, dir, before, |table| table.end() == base);
    Ok(table.map(|(table, _)| table))
}

/// Writes a segment's header again.
pub(crate) fn renew_header(disk: &dyn Disk, path: &Path, header: &SegmentHeader) -> io::Result<()> {
    let file = disk.open(path)?;
    write_all_at(&*file, &header.encode(), 0)?;
    file.sync()
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
        segment_bytes: SEGMENT_HEADER_BYTES * 2,
        trusted_end: covered,
        must_reach: covered,
        lose_synced,
        sealing: sealing.clone(),
        tier: None,
    };
    recover(disk, dir, &told).map(drop)
}
