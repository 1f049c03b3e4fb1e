//! Opening a checkpoint folder: which checkpoint counts, and its pairs.
//!
//! Owns: the choice. The newest manifest counts if it is whole and so are those of its runs that the
//! one before does not name too (damage to the others would hit both); else the one before, then what
//! earlier servers left. Changes nothing on the disk. Read next: [`super::manifest`], [`super::write`].

use super::fold::Folding;
use super::index::{IndexError, IndexFile};
use super::manifest::{Manifest, Standing, parse_manifest_name};
use super::merge::Merge;
use super::run::{RunError, RunReader, RunRef, parse_run_name};
use super::stats::Counters;
use super::whole::{self, parse_whole_name};
use super::{Checkpoints, Held, KEEP, State, WHOLE_KEY, folder_of, lock};
use crate::disk::Disk;
use crate::seal::Sealing;
use anabranch_core::id::LogIndex;
use anabranch_core::index::Blocks;
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often progress is told while pairs are read, and after how long first.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// Pairs between two looks at the clock.
const PROGRESS_PAIRS: u64 = 4096;

/// Why a checkpoint folder cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointOpenError {
    /// The disk failed.
    #[error("{path}: {source}")]
    Io {
        /// The folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The index file cannot be used.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// A run that is needed cannot be used, and no other checkpoint can do without it.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A file that is needed is not there or not whole.
    #[error("{path} is missing or damaged, and no other checkpoint is left")]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// Manifests are missing.
    #[error(
        "no manifest of a checkpoint of log index {purged} or later is there, but frames up to it were given up, as only \
         such a checkpoint allows"
    )]
    Uncovered {
        /// The last frame given up.
        purged: LogIndex,
    },
    /// The state machine does not take the pairs.
    #[error("the state of the checkpoint cannot be used: {0}")]
    Refused(String),
}

impl CheckpointOpenError {
    /// Whether a key is what it lacks.
    pub(crate) fn is_key(&self) -> bool {
        matches!(
            self,
            CheckpointOpenError::Index(IndexError::Key { .. })
                | CheckpointOpenError::Run(RunError::Key { .. })
        )
    }
}

impl Checkpoints {
    /// Looks at the folder of the group in `group_dir`; it is made when first written.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        group_dir: &Path,
        background: bool,
        sealing: &Sealing,
    ) -> Result<Checkpoints, CheckpointOpenError> {
        let dir = folder_of(group_dir);
        let io = |source| CheckpointOpenError::Io {
            path: dir.clone(),
            source,
        };
        let names = match disk.list(&dir) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(io(error)),
        };
        let index = IndexFile::open(&*disk, &dir, sealing)?;
        let mut state = State::default();
        let mut manifests: Vec<u64> = names
            .iter()
            .filter_map(|name| parse_manifest_name(name))
            .collect();
        manifests.sort_unstable();
        let runs = names.iter().filter_map(|name| parse_run_name(name));
        state.next_sequence = runs.chain(manifests.last().copied()).max().unwrap_or(0);
        let old_names = disk.list(group_dir).map_err(io)?;
        state.wholes = old_names
            .iter()
            .filter_map(|name| parse_whole_name(name))
            .collect();
        state.wholes.sort_unstable();
        let opened = Checkpoints {
            disk,
            sealing: sealing.clone(),
            group_dir: group_dir.to_owned(),
            background,
            index: Arc::new(index),
            held: Mutex::new(Held::default()),
            state: Mutex::new(state),
            swapping: Mutex::default(),
            folding: Folding::default(),
            counters: Counters::default(),
            dir,
        };
        opened.choose(manifests)?;
        Ok(opened)
    }

    /// What the newest checkpoint is of; `None` when there is none.
    pub(crate) fn standing(&self) -> Option<Standing> {
        self.newest().map(|newest| newest.standing)
    }

    /// Finds the checkpoint that counts among the manifests there, ascending.
    fn choose(&self, manifests: Vec<u64>) -> Result<(), CheckpointOpenError> {
        if !manifests.is_empty() && self.index.identity().is_none() {
            let path = self.index.path().to_owned();
            return Err(CheckpointOpenError::Damaged { path });
        }
        let mut state = lock(&self.state);
        let mut whole_ones = Vec::new();
        let mut damaged = None;
        for sequence in manifests.into_iter().rev() {
            match self.read_manifest(sequence)? {
                Some(manifest) if whole_ones.len() < KEEP => whole_ones.push(manifest),
                Some(_) => {}
                None => {
                    let path = super::manifest::manifest_path(&self.dir, sequence);
                    tracing::error!(path = %path.display(), "a manifest is damaged, or not of this folder");
                    state.doubted.push(sequence);
                    damaged = Some(path);
                }
            }
        }
        let older = whole_ones.get(1).map(|older| older.runs.clone());
        if let (Some(newest), true) = (
            whole_ones.first(),
            older.is_some() || !state.wholes.is_empty(),
        ) {
            let both = older.unwrap_or_default();
            let mut alone = newest.runs.iter().filter(|run| !both.contains(run));
            let verified = alone.try_for_each(|run| self.verify(newest, run));
            if let Err(error @ RunError::Key { .. }) = verified {
                // Nothing is wrong with it.
                return Err(error.into());
            }
            if let Err(error) = verified {
                tracing::error!(%error, "the newest checkpoint is damaged; the one before it is used");
                state.doubted.push(newest.sequence);
                damaged = Some(super::manifest::manifest_path(&self.dir, newest.sequence));
                whole_ones.remove(0);
            }
        }
        whole_ones.reverse();
        state.kept = whole_ones;
        if !state.kept.is_empty() {
            return Ok(());
        }
        for index in state.wholes.clone().into_iter().rev() {
            let path = whole::whole_path(&self.group_dir, index);
            let read = whole::read(&*self.disk, &self.group_dir, index).map_err(|source| {
                CheckpointOpenError::Io {
                    path: path.clone(),
                    source,
                }
            })?;
            if let Some((standing, _)) = read {
                state.whole = Some(standing);
                return Ok(());
            }
            tracing::error!(path = %path.display(), "a checkpoint is damaged; an older one is tried");
            damaged = Some(path);
        }
        match damaged {
            Some(path) => Err(CheckpointOpenError::Damaged { path }),
            None => Ok(()),
        }
    }

    /// A manifest of this folder, if it is whole.
    fn read_manifest(&self, sequence: u64) -> Result<Option<Manifest>, CheckpointOpenError> {
        let read = Manifest::read(&*self.disk, &self.dir, sequence);
        let manifest = read.map_err(|source| CheckpointOpenError::Io {
            path: super::manifest::manifest_path(&self.dir, sequence),
            source,
        })?;
        Ok(manifest.filter(|manifest| Some(manifest.identity) == self.index.identity()))
    }

    fn verify(&self, manifest: &Manifest, run: &RunRef) -> Result<(), RunError> {
        let mut reader = self.reader(manifest, run)?;
        while reader.next()?.is_some() {}
        Ok(())
    }

    fn reader(&self, manifest: &Manifest, run: &RunRef) -> Result<RunReader, RunError> {
        RunReader::open(
            &*self.disk,
            &self.dir,
            manifest.identity,
            run,
            &self.sealing,
        )
    }

    /// The runs of a manifest as one.
    pub(super) fn merged(&self, manifest: &Manifest) -> Result<Merge, RunError> {
        let runs = manifest.runs.iter();
        let readers = runs.map(|run| self.reader(manifest, run));
        Merge::new(readers.collect::<Result<_, _>>()?)
    }

    /// Gives the pairs of the newest checkpoint, ascending, to `into`; none when there is none.
    pub(crate) fn restore(
        &self,
        into: impl FnOnce(
            &mut dyn Iterator<Item = (Bytes, Bytes)>,
            Arc<dyn Blocks>,
        ) -> Result<(), String>,
    ) -> Result<(), CheckpointOpenError> {
        let blocks: Arc<dyn Blocks> = self.index.clone();
        let Some(newest) = self.newest() else {
            return into(&mut std::iter::empty(), blocks).map_err(CheckpointOpenError::Refused);
        };
        if newest.sequence == 0 {
            let state = self.whole_state(&newest.standing)?;
            let mut pairs = std::iter::once((Bytes::from_static(WHOLE_KEY), state));
            return into(&mut pairs, blocks).map_err(CheckpointOpenError::Refused);
        }
        let mut pairs = Pairs::new(self.merged(&newest)?, newest.run_bytes(), &self.dir);
        let taken = into(&mut pairs, blocks);
        // What stopped the pairs explains why they were not taken.
        match pairs.error {
            Some(error) => Err(error.into()),
            None => taken.map_err(CheckpointOpenError::Refused),
        }
    }

    /// The state in the file of an earlier server.
    pub(super) fn whole_state(&self, standing: &Standing) -> Result<Bytes, CheckpointOpenError> {
        let index = standing.id.index.0;
        let path = whole::whole_path(&self.group_dir, index);
        let read = whole::read(&*self.disk, &self.group_dir, index);
        match read {
            Ok(Some((_, state))) => Ok(state),
            Ok(None) => Err(CheckpointOpenError::Damaged { path }),
            Err(source) => Err(CheckpointOpenError::Io { path, source }),
        }
    }
}

/// The pairs of a checkpoint as they are read. Ends early at an error, which it keeps.
struct Pairs<'a> {
    merge: Merge,
    error: Option<RunError>,
    total_bytes: u64,
    count: u64,
    dir: &'a Path,
    told: Instant,
}

impl<'a> Pairs<'a> {
    fn new(merge: Merge, total_bytes: u64, dir: &'a Path) -> Self {
        Self {
            merge,
            error: None,
            total_bytes,
            count: 0,
            dir,
            told: Instant::now(),
        }
    }

    fn tell_progress(&mut self) {
        self.count += 1;
        if self.count.is_multiple_of(PROGRESS_PAIRS) && self.told.elapsed() >= PROGRESS_EVERY {
            self.told = Instant::now();
            let percent = self.merge.bytes_read() * 100 / self.total_bytes.max(1);
            tracing::info!(dir = %self.dir.display(), percent, pairs = self.count, "reading the checkpoint");
        }
    }
}

impl Iterator for Pairs<'_> {
    type Item = (Bytes, Bytes);

    fn next(&mut self) -> Option<Self::Item> {
        while self.error.is_none() {
            self.tell_progress();
            match self.merge.next() {
                Ok(Some((key, Some(value)))) => return Some((key, value)),
                // A key that went.
                Ok(Some((_, None))) => {}
                Ok(None) => return None,
                Err(error) => self.error = Some(error),
            }
        }
        None
    }
}
