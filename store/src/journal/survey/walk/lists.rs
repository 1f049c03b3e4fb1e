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
use std::path::Path;

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

pub(super) fn look_at_released(
    disk: &dyn Disk,
    dir: &Path,
    findings: &mut Findings,
) -> Result<Option<Released>, OpenError> {
    let path = dir.join(RELEASED_NAME);
    let released = match Released::read(disk, dir) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            findings.add(
                FindingKind::Released,
                path,
                Some(0),
                "neither copy is sound",
            );
            return Ok(None);
        }
        read => read.map_err(OpenError::io(&path))?,
    };
    if let Some(at) = Released::differs_at(disk, dir).map_err(OpenError::io(&path))? {
        let what = "one of the two copies is not sound";
        findings.add(FindingKind::ReleasedCopy, path, Some(at), what);
    }
    Ok(released)
}

pub(super) fn look_at_tiered(
    disk: &dyn Disk,
    dir: &Path,
    findings: &mut Findings,
) -> Result<Option<Catalogue>, OpenError> {
    let path = dir.join(TIERED_NAME);
    let catalogue = match Catalogue::read(disk, dir) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            findings.add(FindingKind::Tiered, path, Some(0), "neither copy is sound");
            return Ok(None);
        }
        read => read.map_err(OpenError::io(&path))?,
    };
    if let Some(at) = Catalogue::differs_at(disk, dir).map_err(OpenError::io(&path))? {
        let what = "one of the two copies is not sound";
        findings.add(FindingKind::TieredCopy, path, Some(at), what);
    }
    Ok(catalogue)
}
