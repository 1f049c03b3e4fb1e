//! The small files beside the segments, each of which has two copies: the vote, what was released, what lies elsewhere.
//!
//! Owns: reading them, and telling of copies that differ. Changes nothing.

use crate::disk::Disk;
use crate::finding::{FindingKind, Findings};
use crate::journal::error::OpenError;
use crate::journal::meta::{META_NAME, Meta, Slots};
use crate::journal::released::{RELEASED_NAME, Released};
use crate::journal::tiered::{Catalogue, TIERED_NAME};
use std::io;
use std::path::{Path, PathBuf};

pub(super) fn look_at_meta(
    disk: &dyn Disk,
    dir: &Path,
    findings: &mut Findings,
) -> Result<Option<Meta>, OpenError> {
    let path = dir.join(META_NAME);
    let look = || Slots::look(disk, dir).map_err(OpenError::io(&path));
    let mut slots = look()?;
    if slots.as_ref().is_some_and(|slots| slots.rotten().is_some()) {
        // It may be written right now.
        slots = look()?;
    }
    let Some(slots) = slots else {
        findings.add(FindingKind::Meta, path, None, "it is missing");
        return Ok(None);
    };
    let meta = slots.meta();
    match (meta, slots.rotten()) {
        (None, at) => findings.add(FindingKind::Meta, path, at, "neither copy is sound"),
        (Some(_), Some(at)) => {
            let what = "one of the two copies is not sound";
            findings.add(FindingKind::MetaCopy, path, Some(at), what);
        }
        (Some(_), None) => {}
    }
    Ok(meta)
}

/// What the list at `path` says, if a copy of it is sound; notes what is not, as one of `both` or `one`.
fn look_at<T>(
    path: PathBuf,
    read: io::Result<Option<T>>,
    differs_at: io::Result<Option<u64>>,
    [both, one]: [FindingKind; 2],
    findings: &mut Findings,
) -> Result<Option<T>, OpenError> {
    let list = match read {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            findings.add(both, path, Some(0), "neither copy is sound");
            return Ok(None);
        }
        read => read.map_err(OpenError::io(&path))?,
    };
    if let Some(at) = differs_at.map_err(OpenError::io(&path))? {
        let what = "one of the two copies is not sound";
        findings.add(one, path, Some(at), what);
    }
    Ok(list)
}

pub(super) fn look_at_released(
    disk: &dyn Disk,
    dir: &Path,
    findings: &mut Findings,
) -> Result<Option<Released>, OpenError> {
    let path = dir.join(RELEASED_NAME);
    let kinds = [FindingKind::Released, FindingKind::ReleasedCopy];
    let (read, differs_at) = (Released::read(disk, dir), Released::differs_at(disk, dir));
    look_at(path, read, differs_at, kinds, findings)
}

pub(super) fn look_at_tiered(
    disk: &dyn Disk,
    dir: &Path,
    findings: &mut Findings,
) -> Result<Option<Catalogue>, OpenError> {
    let path = dir.join(TIERED_NAME);
    let kinds = [FindingKind::Tiered, FindingKind::TieredCopy];
    let (read, differs_at) = (Catalogue::read(disk, dir), Catalogue::differs_at(disk, dir));
    look_at(path, read, differs_at, kinds, findings)
}
