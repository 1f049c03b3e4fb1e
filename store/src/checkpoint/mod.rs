//! The checkpoint of a group on disk: an index file of blocks, runs of pairs, and manifests that say
//! which runs count.
//!
//! Owns: the folder `checkpoint` of a group, what is kept in it, and that at any moment a crash leaves
//! one checkpoint or the next, never a mix. Never looks into a pair or a block; never writes a
//! checkpoint above the locally synced log (its caller sees to that). Read next: [`manifest`], [`run`],
//! [`index`] (the files), `open`, `write`, `fold` (what is done with them), [`crate::raft`] (who asks).
//!
//! **Writing one.** The blocks of a delta go to the index file and are synced; then its pairs go to a
//! new run, which is synced; then a manifest names that run on top of those before. No block written is
//! named by the two checkpoints before (core's promise), so whatever a crash leaves of these steps, the
//! manifests before still stand for what they stood for.
//!
//! **Two are kept**, so that the newest may rot: then the one before is opened, and the journal, which
//! is kept from there on, does the rest. A run that both name is not kept twice.
//!
//! **After a failure** nothing of the attempt counts. What it was to write is kept in memory and written
//! again together with the next delta: the run under a new name, and every block. A sync that failed is
//! never tried again as if it had not: the bytes are written once more before the next one.

mod fold;
pub mod index;
pub mod manifest;
mod merge;
mod open;
pub mod run;
pub(crate) mod salvage;
mod slots;
mod stats;
pub(crate) mod survey;
#[cfg(test)]
mod tests;
pub mod whole;
mod write;

pub use manifest::{Manifest, Standing};
pub use open::CheckpointOpenError;
pub use stats::CheckpointStats;

use crate::disk::Disk;
use crate::seal::Sealing;
use anabranch_core::index::Delta;
use bytes::Bytes;
use index::IndexFile;
use run::Change;
use stats::Counters;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Name of the folder inside a group's.
const DIR_NAME: &str = "checkpoint";
/// Checkpoints kept: the newest, and one more should the newest rot.
const KEEP: usize = 2;
/// Key of the only pair of a state that is not made of pairs.
pub const WHOLE_KEY: &[u8] = b"";

/// A state that is not made of pairs, as a delta.
pub fn whole_delta(state: impl Into<Bytes>) -> Delta {
    Delta {
        blocks: Vec::new(),
        pairs: vec![(Bytes::from_static(WHOLE_KEY), Some(state.into()))],
    }
}

/// The checkpoints of one group.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    disk: Arc<dyn Disk>,
    sealing: Sealing,
    dir: PathBuf,
    /// The group's own folder, where earlier servers left theirs.
    group_dir: PathBuf,
    /// Whether work is done by threads of its own, so that the shard goes on meanwhile.
    background: bool,
    index: Arc<IndexFile>,
    held: Mutex<Held>,
    state: Mutex<State>,
    /// Held while a manifest is replaced: by who writes a checkpoint, or by who folds.
    swapping: Mutex<()>,
    folding: fold::Folding,
    counters: Counters,
}

/// What was copied and is not known to be durable.
#[derive(Debug, Default)]
struct Held {
    /// What the newest of it is a checkpoint of.
    standing: Option<Standing>,
    /// Newer ones later.
    pairs: Vec<Vec<Change>>,
}

/// What lies in the folder.
#[derive(Debug, Default)]
struct State {
    /// Manifests that count, newest last.
    kept: Vec<Manifest>,
    /// The checkpoint of an earlier server that the state came from, until a manifest holds it.
    whole: Option<Standing>,
    /// Log indexes of files of earlier servers.
    wholes: Vec<u64>,
    /// The next number of a run or a manifest.
    next_sequence: u64,
    /// Manifests that are there and must not count: damaged, or of an attempt that failed.
    doubted: Vec<u64>,
    /// Runs under construction.
    unfinished: BTreeSet<u64>,
}

impl State {
    fn take_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }

    /// Makes a manifest that is durable the newest.
    fn keep(&mut self, manifest: Manifest) {
        for run in &manifest.runs {
            self.unfinished.remove(&run.sequence);
        }
        self.kept.push(manifest);
        let over = self.kept.len().saturating_sub(KEEP);
        self.kept.drain(..over);
        self.whole = None;
    }
}

impl Checkpoints {
    /// Takes what a state copied, as of `standing`, to be written next. From now on it is this folder's
    /// to keep, whatever fails.
    pub(crate) fn hold(&self, standing: Standing, delta: Delta) {
        self.index.hold(delta.blocks);
        let mut held = lock(&self.held);
        held.standing = Some(standing);
        held.pairs.push(delta.pairs);
    }

    /// The newest checkpoint that counts.
    pub(crate) fn newest(&self) -> Option<Manifest> {
        let state = lock(&self.state);
        let whole = || {
            Some(Manifest {
                identity: index::Identity(0),
                sequence: 0,
                standing: state.whole.clone()?,
                runs: Vec::new(),
            })
        };
        state.kept.last().cloned().or_else(whole)
    }

    /// Counters since opening.
    pub(crate) fn stats(&self) -> CheckpointStats {
        let (runs, run_bytes) = {
            let state = lock(&self.state);
            let newest = state.kept.last();
            let runs = newest.map_or(0, |newest| newest.runs.len() as u64);
            (runs, newest.map_or(0, Manifest::run_bytes))
        };
        let (blocks_read, blocks_written) = self.index.traffic();
        CheckpointStats {
            runs,
            run_bytes,
            blocks_read,
            blocks_written,
            index_blocks: self.index.blocks(),
            ..self.counters.read()
        }
    }

    /// Notes how long the shard's thread was kept by one step of copying.
    pub(crate) fn paused(&self, time: std::time::Duration) {
        self.counters.paused(time);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a file name that is `prefix` and 20 digits.
fn parse_numbered(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(())?;
    digits.parse().ok()
}

/// The checkpoint folder of the group in `group_dir`.
fn folder_of(group_dir: &Path) -> PathBuf {
    group_dir.join(DIR_NAME)
}
