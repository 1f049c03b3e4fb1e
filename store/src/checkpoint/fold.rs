//! Folding: all runs of a checkpoint become one.
//!
//! Owns: when it is worth it, and doing it on a thread of low priority that nobody waits for. The
//! checkpoint stays the same; only its files change. Never runs twice at a time. Read next:
//! [`super::merge`], [`super::write`].

use super::manifest::Manifest;
use super::run::RunError;
use super::{Checkpoints, lock};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Runs of a checkpoint above which they are folded.
const RUNS_MAX: usize = 8;
/// Bytes of all runs but the lowest that are never worth folding by themselves.
const SMALL_BYTES: u64 = 1024 * 1024;
/// Room that folding leaves on the disk, in bytes.
const RESERVE_BYTES: u64 = 64 * 1024 * 1024;
/// How much the thread stands back behind others.
const NICE: i32 = 10;

/// The thread that folds, if any.
#[derive(Debug, Default)]
pub(super) struct Folding {
    running: AtomicBool,
    stop: AtomicBool,
    /// Set when a run proved damaged: what is on the disk cannot be folded.
    given_up: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why the runs were not folded.
#[derive(Debug, thiserror::Error)]
enum FoldError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("writing the folded run: {0}")]
    Io(#[from] io::Error),
    #[error("the group is being closed")]
    Stopped,
}

/// Whether the runs of a checkpoint are to be folded.
fn is_due(manifest: &Manifest) -> bool {
    let Some((base, others)) = manifest.runs.split_first() else {
        return false;
    };
    let above: u64 = others.iter().map(|run| run.bytes).sum();
    manifest.runs.len() > RUNS_MAX || above > (base.bytes / 2).max(SMALL_BYTES)
}

impl Checkpoints {
    /// Begins to fold if that is due and not under way. Returns at once, unless there are no threads
    /// (in a simulation).
    pub(crate) fn fold_when_due(self: &Arc<Self>) {
        let Some(newest) = self.newest().filter(is_due) else {
            return;
        };
        let folding = &self.folding;
        let needed = newest.run_bytes().saturating_add(RESERVE_BYTES);
        let room = self.disk.free_bytes(&self.dir);
        if folding.given_up.load(Ordering::Acquire)
            || room.is_ok_and(|room| room < needed)
            || folding.running.swap(true, Ordering::AcqRel)
        {
            return;
        }
        if !self.background {
            self.fold_and_tell(&newest);
            return;
        }
        let this = self.clone();
        let named = std::thread::Builder::new().name("checkpoint-fold".to_owned());
        let started = named.spawn(move || {
            // Without the right to that it goes on as it is.
            let _ = rustix::process::nice(NICE);
            this.fold_and_tell(&newest);
        });
        match started {
            Ok(thread) => *lock(&folding.thread) = Some(thread),
            Err(error) => {
                folding.running.store(false, Ordering::Release);
                tracing::warn!(%error, "no thread to fold checkpoints");
            }
        }
    }

    /// Ends a folding under way, and waits for that.
    pub(crate) fn stop_folding(&self) {
        self.folding.stop.store(true, Ordering::Release);
        let thread = lock(&self.folding.thread).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(dir = %self.dir.display(), "folding checkpoints panicked");
        }
    }

    fn fold_and_tell(&self, newest: &Manifest) {
        match self.fold(newest) {
            Ok(()) | Err(FoldError::Stopped) => {}
            Err(error) => {
                if matches!(error, FoldError::Run(RunError::Damaged { .. })) {
                    self.folding.given_up.store(true, Ordering::Release);
                }
                tracing::error!(dir = %self.dir.display(), %error, "the runs of the checkpoint are not folded");
            }
        }
        self.folding.running.store(false, Ordering::Release);
    }

    fn fold(&self, newest: &Manifest) -> Result<(), FoldError> {
        let mut merge = self.merged(newest)?;
        let identity = newest.identity;
        let folded = self.build_run(identity, newest.standing.id, |writer| {
            while let Some((key, value)) = merge.next()? {
                if self.folding.stop.load(Ordering::Acquire) {
                    return Err(FoldError::Stopped);
                }
                // Nothing is left beneath that a key could have gone from.
                if let Some(value) = value {
                    writer.push(&key, Some(&value))?;
                }
            }
            Ok(())
        })?;
        let swapped = self.swap(identity, |now| {
            // Checkpoints written meanwhile lie on top of what was folded.
            let now = now?;
            let above = now.runs.strip_prefix(newest.runs.as_slice())?;
            let runs = std::iter::once(folded).chain(above.iter().copied());
            Some((now.standing.clone(), runs.collect()))
        });
        match swapped {
            Ok(true) => self.counters.folded(folded.bytes),
            Ok(false) => self.drop_run(folded.sequence),
            Err(error) => {
                self.drop_run(folded.sequence);
                return Err(error.into());
            }
        }
        self.clean();
        Ok(())
    }
}
