//! A checkpoint folder as it lies there, for tools: which checkpoints there are, and what is wrong.
//!
//! Owns: reading every manifest, run and header there. Changes nothing, takes no lock: while a server
//! writes, what vanishes with the checkpoint that named it is no defect. Read next: [`super::open`] (which
//! checkpoint counts), [`crate::inspect`].

use super::index::{IndexError, IndexFile};
use super::manifest::{Manifest, manifest_path, parse_manifest_name};
use super::run::{RunError, RunReader, RunRef, run_path};
use super::whole::{self, parse_whole_name, whole_path};
use super::{CheckpointOpenError, Checkpoints, KEEP, Standing, folder_of, lock};
use crate::disk::Disk;
use crate::finding::{FindingKind, Findings};
use crate::inspect::Source;
use anabranch_core::index::{Block, BlockBytes, Blocks};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How often a folder is looked at again because a server replaced its checkpoint meanwhile.
const LOOKS_MAX: usize = 10;

/// What there is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Surveyed {
    /// Manifests that are sound.
    pub(crate) manifests: u64,
    /// Runs of the newest of them.
    pub(crate) runs: u64,
    /// Bytes of those.
    pub(crate) run_bytes: u64,
    /// Pairs in them, those that went included.
    pub(crate) run_pairs: u64,
    /// Blocks that the index file has room for.
    pub(crate) index_blocks: u64,
}

/// Reads all of the checkpoints of the group in `group_dir`, and tells what is wrong.
pub(crate) fn survey(
    source: &Source,
    group_dir: &Path,
    findings: &mut Findings,
) -> io::Result<Surveyed> {
    let disk = &source.disk;
    let dir = folder_of(group_dir);
    let mut looks = 0;
    loop {
        looks += 1;
        let names = names_in(&**disk, &dir)?;
        let mut found = Findings::default();
        let surveyed = look(source, group_dir, &dir, &names, &mut found)?;
        if found.list.is_empty() || looks == LOOKS_MAX || names_in(&**disk, &dir)? == names {
            findings.append(found);
            return Ok(surveyed);
        }
    }
}

pub(super) fn names_in(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<String>> {
    match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed,
    }
}

fn look(
    source: &Source,
    group_dir: &Path,
    dir: &Path,
    names: &[String],
    findings: &mut Findings,
) -> io::Result<Surveyed> {
    let disk = &source.disk;
    for name in disk.list(group_dir)? {
        if let Some(index) = parse_whole_name(&name)
            && whole::read(&**disk, group_dir, index)?.is_none()
        {
            let what = "its checksum does not match";
            findings.add(FindingKind::Whole, whole_path(group_dir, index), None, what);
        }
    }
    let mut manifests: Vec<u64> = names
        .iter()
        .filter_map(|name| parse_manifest_name(name))
        .collect();
    manifests.sort_unstable();
    let index = match IndexFile::open(&**disk, dir, &source.sealing) {
        Ok(index) => index,
        Err(error) => {
            let (kind, path) = match &error {
                IndexError::Key { path, .. } => (FindingKind::Sealed, path.clone()),
                IndexError::Io { path, .. }
                | IndexError::Damaged { path }
                | IndexError::Version { path, .. } => (FindingKind::Index, path.clone()),
            };
            findings.add(kind, path, Some(0), error.to_string());
            return Ok(Surveyed::default());
        }
    };
    let damaged = IndexFile::damaged_headers(&**disk, dir)?;
    if let Some(at) = damaged.and_then(|(_, damaged)| damaged.first().copied()) {
        let what = "one of the two copies of its header does not match its checksum";
        findings.add(FindingKind::IndexCopy, index.path(), Some(at), what);
    }
    if index.identity().is_none() && !manifests.is_empty() {
        let what = "it is missing";
        findings.add(FindingKind::Index, index.path(), None, what);
    }
    let mut sound = Vec::new();
    for sequence in manifests {
        let path = manifest_path(dir, sequence);
        match Manifest::read(&**disk, dir, sequence) {
            Ok(Some(manifest)) if Some(manifest.identity) != index.identity() => {
                let what = "it belongs to another folder";
                findings.add(FindingKind::Manifest, path, Some(8), what);
            }
            Ok(Some(manifest)) => sound.push(manifest),
            Ok(None) => {
                let what = "its checksum does not match";
                findings.add(FindingKind::Manifest, path, None, what);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => findings.add(FindingKind::Unreadable, path, None, error.to_string()),
        }
    }
    sound.drain(..sound.len().saturating_sub(KEEP));
    let mut verified: Vec<RunRef> = Vec::new();
    for manifest in sound.iter().rev() {
        for run in &manifest.runs {
            if !verified.contains(run) {
                verified.push(*run);
                verify(source, dir, manifest, run, findings);
            }
        }
    }
    let newest = sound.last();
    Ok(Surveyed {
        manifests: sound.len() as u64,
        runs: newest.map_or(0, |newest| newest.runs.len() as u64),
        run_bytes: newest.map_or(0, Manifest::run_bytes),
        run_pairs: newest.map_or(0, |newest| newest.runs.iter().map(|run| run.pairs).sum()),
        index_blocks: index.blocks(),
    })
}

fn verify(source: &Source, dir: &Path, manifest: &Manifest, run: &RunRef, findings: &mut Findings) {
    let mut offset = 0;
    let read = RunReader::open(&*source.disk, dir, manifest.identity, run, &source.sealing)
        .and_then(|mut reader| {
            loop {
                offset = reader.bytes_read();
                if reader.next()?.is_none() {
                    return Ok(());
                }
            }
        });
    let named = format!("named by manifest {}", manifest.sequence);
    match read {
        Ok(()) => {}
        Err(RunError::Damaged { path, what }) => {
            findings.add(
                FindingKind::Run,
                path,
                Some(offset),
                format!("{what}; {named}"),
            );
        }
        Err(RunError::Key { path, source }) => {
            let what = format!("{source}; {named}");
            findings.add(FindingKind::Sealed, path, Some(0), what);
        }
        Err(RunError::Io { path, source }) => {
            let what = format!("{source}; {named}");
            findings.add(FindingKind::Unreadable, path, Some(offset), what);
        }
    }
}

/// The newest checkpoint that can be opened.
pub(crate) struct Newest {
    checkpoints: Checkpoints,
    /// What it is a checkpoint of; `None` when there is none.
    pub(crate) standing: Option<Standing>,
}

impl Newest {
    /// Finds it as a server would.
    pub(crate) fn open(source: &Source, group_dir: &Path) -> Result<Newest, CheckpointOpenError> {
        let checkpoints =
            Checkpoints::open(source.disk.clone(), group_dir, false, &source.sealing)?;
        let standing = checkpoints.standing();
        Ok(Newest {
            checkpoints,
            standing,
        })
    }

    /// Gives its pairs to `into`.
    pub(crate) fn restore(
        &self,
        into: impl FnOnce(
            &mut dyn Iterator<Item = (Bytes, Bytes)>,
            Arc<dyn Blocks>,
        ) -> Result<(), String>,
    ) -> Result<(), CheckpointOpenError> {
        self.checkpoints.restore(into)
    }

    /// Whether its manifest is still there: what it names is, then.
    pub(crate) fn still_counts(&self) -> bool {
        let state = lock(&self.checkpoints.state);
        let Some(newest) = state.kept.last() else {
            return true;
        };
        let path = manifest_path(&self.checkpoints.dir, newest.sequence);
        self.checkpoints.disk.open(&path).is_ok()
    }

    /// Writes a block again that its pairs name; durable on return.
    pub(crate) fn write_block(&self, block: Block, bytes: &BlockBytes) -> io::Result<()> {
        self.checkpoints.index.write_again(block, bytes)
    }

    /// The index file, and the offset of a block in it.
    pub(crate) fn block(&self, block: Block) -> (PathBuf, u64) {
        let index = &self.checkpoints.index;
        (index.path().to_owned(), index.offset_of(block))
    }
}

/// Files of checkpoints that do not count because they are not sound, when another one does.
pub(crate) fn broken(
    source: &Source,
    group_dir: &Path,
) -> Result<Vec<PathBuf>, CheckpointOpenError> {
    let disk = &source.disk;
    let checkpoints = Checkpoints::open(disk.clone(), group_dir, false, &source.sealing)?;
    let dir = folder_of(group_dir);
    let state = lock(&checkpoints.state);
    let kept = |run: &RunRef| {
        state
            .kept
            .iter()
            .any(|manifest| manifest.runs.contains(run))
    };
    let mut files = Vec::new();
    for sequence in &state.doubted {
        let path = manifest_path(&dir, *sequence);
        let manifest = Manifest::read(&**disk, &dir, *sequence);
        let manifest = manifest.map_err(|source| CheckpointOpenError::Io {
            path: path.clone(),
            source,
        })?;
        let runs = manifest.map_or_else(Vec::new, |manifest| manifest.runs);
        let runs = runs.iter().filter(|run| !kept(run));
        files.extend(runs.map(|run| run_path(&dir, run.sequence)));
        files.push(path);
    }
    Ok(files)
}
