//! What is left of a checkpoint whose runs are damaged, for who mends it.
//!
//! Owns: the sound sections of a damaged run, laying runs on top of each other when some of their keys are not known,
//! and writing what is left as a checkpoint of its own. Never knows what a pair means, or whether it may be lost; never
//! removes a file. Read next: [`super::open`] (what a start does), `core/src/shard/checkpoint/salvage.rs` (what the
//! pairs that are left are good for).

use super::index::IndexFile;
use super::manifest::{Manifest, Standing, parse_manifest_name};
use super::run::{RunError, RunRef, RunRemains, RunWriter, parse_run_name, run_path};
use super::survey::names_in;
use super::{CheckpointOpenError, folder_of};
use crate::disk::Disk;
use crate::inspect::Source;
use anabranch_core::index::Blocks;
use anabranch_core::shard::{Gap, Remains};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A run that cannot be read as a whole.
#[derive(Debug)]
pub(crate) struct DamagedRun {
    path: PathBuf,
    /// Its pairs that cannot be read, of so many.
    pairs_lost: u64,
    pairs: u64,
}

impl fmt::Display for DamagedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path.file_name().unwrap_or_default();
        let (lost, all) = (self.pairs_lost, self.pairs);
        write!(f, "{lost} of {all} parts in {}", name.to_string_lossy())
    }
}

/// How the header of an index file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexHeader {
    Sound,
    /// One of its two copies is damaged.
    OneDamaged,
    /// Both are, or the only one that an earlier server wrote.
    Damaged,
    /// There is no file.
    Missing,
}

impl IndexHeader {
    pub(crate) fn is_sound(self) -> bool {
        self == IndexHeader::Sound
    }
}

/// What is left of one checkpoint.
#[derive(Debug)]
pub(crate) struct Left {
    manifest: Manifest,
    remains: Remains,
    pub(crate) damaged: Vec<DamagedRun>,
}

/// Manifests in the folder of the group in `group_dir` that can be read and are sound, newest first.
pub(crate) fn manifests(source: &Source, group_dir: &Path) -> io::Result<Vec<Manifest>> {
    let dir = folder_of(group_dir);
    let names = names_in(&*source.disk, &dir)?;
    let mut sequences: Vec<u64> = names
        .iter()
        .filter_map(|name| parse_manifest_name(name))
        .collect();
    sequences.sort_unstable();
    let mut sound = Vec::new();
    for sequence in sequences.into_iter().rev() {
        let read = Manifest::read(&*source.disk, &dir, sequence);
        sound.extend(read.ok().flatten());
    }
    Ok(sound)
}

/// The folder of the checkpoints of the group in `group_dir`.
pub(crate) fn folder(group_dir: &Path) -> PathBuf {
    folder_of(group_dir)
}

/// Where the index file lies.
pub(crate) fn index_path(group_dir: &Path) -> PathBuf {
    IndexFile::path_in(&folder_of(group_dir))
}

/// How the header of the index file is.
pub(crate) fn index(source: &Source, group_dir: &Path) -> io::Result<IndexHeader> {
    let found = IndexFile::damaged_headers(&*source.disk, &folder_of(group_dir))?;
    Ok(match found {
        None => IndexHeader::Missing,
        Some((_, damaged)) if damaged.is_empty() => IndexHeader::Sound,
        Some((true, _)) => IndexHeader::OneDamaged,
        Some((false, _)) => IndexHeader::Damaged,
    })
}

/// Writes the header of the index file again, of the folder that a manifest belongs to; or makes an empty file.
pub(crate) fn renew_index(
    source: &Source,
    group_dir: &Path,
    manifest: &Manifest,
) -> io::Result<()> {
    let dir = folder_of(group_dir);
    IndexFile::renew(&*source.disk, &dir, manifest.identity, &source.sealing)
}

/// The index file of a group, to read blocks from.
pub(crate) fn blocks(
    source: &Source,
    group_dir: &Path,
) -> Result<Arc<dyn Blocks>, CheckpointOpenError> {
    let index = IndexFile::open(&*source.disk, &folder_of(group_dir), &source.sealing)?;
    Ok(Arc::new(index))
}

impl Left {
    /// Reads what can be read of the runs that a manifest names.
    pub(crate) fn of(
        source: &Source,
        group_dir: &Path,
        manifest: Manifest,
    ) -> Result<Left, RunError> {
        let dir = folder_of(group_dir);
        let mut newest: BTreeMap<Bytes, (Option<Bytes>, usize)> = BTreeMap::new();
        let mut gaps: Vec<(Gap, usize)> = Vec::new();
        let mut damaged = Vec::new();
        for (level, run) in manifest.runs.iter().enumerate() {
            let read =
                RunRemains::read(&*source.disk, &dir, manifest.identity, run, &source.sealing)?;
            if !read.gaps.is_empty() {
                damaged.push(DamagedRun {
                    path: run_path(&dir, run.sequence),
                    pairs: run.pairs,
                    pairs_lost: run.pairs.saturating_sub(read.pairs.len() as u64),
                });
            }
            gaps.extend(read.gaps.into_iter().map(|gap| (gap, level)));
            let pairs = read.pairs.into_iter();
            newest.extend(pairs.map(|(key, value)| (key, (value, level))));
        }
        let mut unsure = BTreeSet::new();
        for (key, (_, level)) in &newest {
            if gaps.iter().any(|(gap, of)| of > level && gap.has(key)) {
                unsure.insert(key.clone());
            }
        }
        let pairs = newest.into_iter();
        let pairs = pairs.filter_map(|(key, (value, _))| Some((key, value?)));
        Ok(Left {
            remains: Remains {
                pairs: pairs.collect(),
                unsure,
                gaps: gaps.into_iter().map(|(gap, _)| gap).collect(),
            },
            manifest,
            damaged,
        })
    }

    /// What can be read.
    pub(crate) fn remains(&self) -> &Remains {
        &self.remains
    }

    /// What it is a checkpoint of.
    pub(crate) fn standing(&self) -> &Standing {
        &self.manifest.standing
    }

    /// Writes pairs as the newest checkpoint, in one run, as of the same moment; durable on return. Gives the files that
    /// are there besides it, manifests first.
    pub(crate) fn install(
        &self,
        source: &Source,
        group_dir: &Path,
        pairs: &[(Bytes, Bytes)],
    ) -> io::Result<Vec<PathBuf>> {
        let dir = folder_of(group_dir);
        let disk = &*source.disk;
        let before = files(disk, group_dir)?;
        let names = names_in(disk, &dir)?;
        let numbers = names
            .iter()
            .filter_map(|name| parse_run_name(name).or_else(|| parse_manifest_name(name)));
        let sequence = numbers.max().unwrap_or(0) + 1;
        let run = self.write_run(source, &dir, sequence, pairs)?;
        let manifest = Manifest {
            identity: self.manifest.identity,
            sequence: sequence + 1,
            standing: self.standing().clone(),
            runs: vec![run],
        };
        manifest.write(disk, &dir)?;
        Ok(before)
    }

    fn write_run(
        &self,
        source: &Source,
        dir: &Path,
        sequence: u64,
        pairs: &[(Bytes, Bytes)],
    ) -> io::Result<RunRef> {
        let Manifest {
            identity, standing, ..
        } = &self.manifest;
        let mut writer = RunWriter::create(
            &*source.disk,
            dir,
            *identity,
            sequence,
            standing.id,
            &source.sealing,
        )?;
        for (key, value) in pairs {
            writer.push(key, Some(value))?;
        }
        writer.finish()
    }
}

/// Manifests and runs in the folder of the group in `group_dir`, in this order: none may be there without its runs.
pub(crate) fn files(disk: &dyn Disk, group_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let dir = folder_of(group_dir);
    let names = names_in(disk, &dir)?;
    let manifests = names
        .iter()
        .filter(|name| parse_manifest_name(name).is_some());
    let runs = names.iter().filter(|name| parse_run_name(name).is_some());
    Ok(manifests.chain(runs).map(|name| dir.join(name)).collect())
}
