//! The files of a journal as they lie in its folder, before any frame is read.
//!
//! Owns: which files there are, the segments' headers, what is left over from an unfinished step.
//! Never reads a frame. Read next: [`super::recovery`].

use super::error::OpenError;
use super::files::remove_if_there;
use super::meta::META_NAME;
use super::released::{RELEASED_NAME, Released};
use super::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, parse_segment_name, segment_path};
use super::table::{parse_table_name, parse_twin_name, table_paths};
use super::tiered::{Catalogue, TIERED_NAME, Tiered};
use super::tiering::TierPlace;
use crate::disk::{Disk, DiskFile};
use crate::seal::{DataKey, Sealing};
use crate::tier::{Folder, Object};
use anabranch_core::id::{LogIndex, Position};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names found in a journal's folder.
pub(super) struct Inventory {
    names: Vec<String>,
    /// Where each segment begins, ascending.
    pub(super) bases: Vec<Position>,
    /// Segments that have a side file, ascending.
    tables: Vec<Position>,
    /// Segments whose side file has a twin, ascending.
    twins: Vec<Position>,
    /// Segments that were released and whose files are still there, ascending.
    leftover: Vec<Position>,
    /// What lies in the object store; `None` where there never was one.
    pub(super) tiered: Option<Catalogue>,
    /// What was released; `None` in a folder that a server made before this file, and released nothing from.
    pub(super) released: Option<Released>,
}

/// A segment file with a sound header.
pub(super) struct SegmentAt {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) header: SegmentHeader,
    /// The key of its frames, if they are sealed.
    pub(super) key: Option<Arc<DataKey>>,
    /// When it lies in the object store: what it is there.
    pub(super) object: Option<Object>,
}

impl SegmentAt {
    /// Opens the segment that begins at `base` and reads its header.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        base: Position,
        sealing: &Sealing,
    ) -> Result<Self, OpenError> {
        Self::open_unkeyed(disk, dir, base)?.open_key(sealing)
    }

    /// One that lies in the object store.
    pub(super) fn away(
        dir: &Path,
        header: SegmentHeader,
        file: Arc<dyn DiskFile>,
        object: Object,
    ) -> Self {
        Self {
            path: segment_path(dir, header.base),
            file,
            header,
            key: None,
            object: Some(object),
        }
    }

    fn open_key(mut self, sealing: &Sealing) -> Result<Self, OpenError> {
        match self.header.open_key(sealing) {
            Ok(key) => self.key = key,
            Err(source) => {
                let path = self.path;
                return Err(OpenError::Key { path, source });
            }
        }
        Ok(self)
    }

    /// The same without its key: what is sealed in it stays so.
    pub(super) fn open_unkeyed(
        disk: &dyn Disk,
        dir: &Path,
        base: Position,
    ) -> Result<Self, OpenError> {
        let path = segment_path(dir, base);
        let file = disk.open(&path).map_err(OpenError::io(&path))?;
        let header = read_header(&*file, &path, base)?;
        Ok(Self {
            path,
            file,
            header,
            key: None,
            object: None,
        })
    }
}

impl Inventory {
    pub(super) fn of(disk: &dyn Disk, dir: &Path) -> Result<Self, OpenError> {
        let names = disk.list(dir).map_err(OpenError::io(dir))?;
        let path = dir.join(RELEASED_NAME);
        let released = match Released::read(disk, dir) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let what = "the list of released segments is not readable";
                return Err(corrupt(path, 0, 0, what));
            }
            read => read.map_err(OpenError::io(path))?,
        };
        let path = dir.join(TIERED_NAME);
        let tiered = match Catalogue::read(disk, dir) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let what = "the list of segments in the object store is not readable";
                return Err(corrupt(path, 0, 0, what));
            }
            read => read.map_err(OpenError::io(path))?,
        };
        Ok(Self::sorted(names, released, tiered))
    }

    /// Of these names, when these segments were released and those lie in the object store.
    pub(super) fn sorted(
        names: Vec<String>,
        released: Option<Released>,
        tiered: Option<Catalogue>,
    ) -> Self {
        let found = |parse: fn(&str) -> Option<Position>| {
            let mut found: Vec<Position> = names.iter().filter_map(|name| parse(name)).collect();
            found.sort_unstable();
            found
        };
        let gone = |base: &Position| released.as_ref().is_some_and(|list| list.contains(*base));
        let is_tiered = |base: Position| {
            let listed = tiered.as_ref().and_then(|list| list.get(base));
            listed.is_some()
        };
        // What is in the object store is there whole, as far as it is listed.
        let (leftover, mut bases): (Vec<Position>, Vec<Position>) = found(parse_segment_name)
            .into_iter()
            .partition(|base| gone(base) || is_tiered(*base));
        let away = tiered.iter().flat_map(Catalogue::bases);
        bases.extend(away.filter(|base| !gone(base)));
        bases.sort_unstable();
        Self {
            bases,
            tables: found(parse_table_name),
            twins: found(parse_twin_name),
            leftover,
            tiered,
            released,
            names,
        }
    }

    pub(super) fn has_meta(&self) -> bool {
        self.names.iter().any(|name| name == META_NAME)
    }

    /// Whether the side file of a segment and its twin are there, sound or not.
    pub(super) fn has_tables(&self, base: Position) -> [bool; 2] {
        [&self.tables, &self.twins].map(|bases| bases.binary_search(&base).is_ok())
    }

    /// This journal's part of the object store, if one is configured; an error when one is needed. What is to go
    /// there is told to it.
    pub(super) fn folder(
        &self,
        place: Option<&TierPlace>,
        dir: &Path,
    ) -> Result<Option<Arc<Folder>>, OpenError> {
        let listed = || self.tiered.iter().flat_map(Catalogue::bases);
        let lives = |base: &Position| self.bases.binary_search(base).is_ok();
        let Some(place) = place else {
            return match listed().any(|base| lives(&base)) {
                true => Err(OpenError::NoTier {
                    path: dir.to_owned(),
                }),
                false => Ok(None),
            };
        };
        let identity = self.tiered.as_ref().map(|list| list.identity);
        let identity = identity.unwrap_or_else(crate::tier::new_identity);
        let folder = place.tier.folder(identity, &place.shard);
        for base in listed().filter(|base| !lives(base)) {
            folder.doom(base);
        }
        Ok(Some(folder))
    }

    /// Opens every segment, reads its header and opens its key.
    pub(super) fn segments(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        sealing: &Sealing,
        folder: Option<&Folder>,
    ) -> Result<Vec<SegmentAt>, OpenError> {
        let open = |base: &Position| {
            let tiered = self.tiered.as_ref().and_then(|list| list.get(*base));
            let Some((folder, Tiered { header, object })) = folder.zip(tiered) else {
                return SegmentAt::open(disk, dir, *base, sealing);
            };
            let file = folder.file(*base, *object, header.capacity_bytes);
            SegmentAt::away(dir, *header, file, *object).open_key(sealing)
        };
        self.bases.iter().map(open).collect()
    }

    /// Removes files that were being made when the last life ended, and files of segments that were
    /// released.
    pub(super) fn remove_leftovers(&self, disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
        let unfinished = self.names.iter().filter(|name| name.ends_with(".tmp"));
        let unfinished = unfinished.map(|name| dir.join(name));
        let orphans = self.tables.iter().chain(&self.twins);
        let orphans = orphans.filter(|base| self.bases.binary_search(base).is_err());
        let orphans = orphans.flat_map(|base| table_paths(dir, *base));
        let gone = self.leftover.iter().map(|base| segment_path(dir, *base));
        for path in unfinished.chain(orphans).chain(gone) {
            remove_if_there(disk, &path).map_err(OpenError::io(path))?;
        }
        Ok(())
    }
}

pub(super) fn corrupt(path: PathBuf, index: u64, position: u64, what: &str) -> OpenError {
    OpenError::Corrupt {
        path,
        index: LogIndex(index),
        position: Position(position),
        what: what.to_owned(),
    }
}

fn read_header(
    file: &dyn DiskFile,
    path: &Path,
    base: Position,
) -> Result<SegmentHeader, OpenError> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    match file.read_at(&mut bytes, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(corrupt(
                path.to_owned(),
                0,
                base.0,
                "the segment is shorter than its header",
            ));
        }
        Err(error) => {
            return Err(OpenError::Io {
                path: path.to_owned(),
                source: error,
            });
        }
    }
    let len = file.len().map_err(OpenError::io(path))?;
    // A segment gets its name only after its header was synced, so a bad header is never torn.
    match SegmentHeader::decode(&bytes) {
        Some(header) if header.base == base && header.capacity_bytes <= len => Ok(header),
        Some(header) if header.base == base => {
            let what = format!(
                "the file was cut short: it has {len} of {} bytes",
                header.capacity_bytes
            );
            Err(corrupt(path.to_owned(), 0, base.0, &what))
        }
        _ => Err(corrupt(
            path.to_owned(),
            0,
            base.0,
            "the segment's header does not match its checksum or its file",
        )),
    }
}
