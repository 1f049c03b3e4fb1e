//! Mending checkpoints: what is there twice, what the journal still has, and what is left of damaged runs.
//!
//! Owns: which of these ways is taken: first those that lose nothing. Never removes a file: what goes is put aside. Read
//! next: [`super`] (the other steps), `checkpoint/salvage.rs`.

use super::{RepairError, StepKind, Work};
use crate::checkpoint::survey::{Newest, broken};
use crate::checkpoint::{CheckpointOpenError, Manifest, WHOLE_KEY, salvage};
use crate::finding::Findings;
use crate::inspect::state::{State, empty_shard};
use crate::inspect::{InspectError, ShardKind};
use crate::journal::mend::{forget_purged, move_aside};
use crate::journal::purged;
use crate::journal::survey::Survey;
use bytes::Bytes;
use salvage::Left;
use std::io;
use std::path::{Path, PathBuf};

/// What can be kept of a checkpoint.
struct Kept {
    pairs: Vec<(Bytes, Bytes)>,
    /// What cannot, in words.
    lost: Vec<String>,
}

impl Work<'_> {
    /// Sees to it that there is a checkpoint that can be opened, or none. `false` when that cannot be, or was not agreed
    /// to: nothing can be said of the journal then.
    pub(super) fn checkpoints(&mut self) -> Result<bool, RepairError> {
        let manifests = salvage::manifests(self.source, self.dir).map_err(self.io())?;
        if !self.index(manifests.first())? {
            return Ok(false);
        }
        if let Ok(files) = broken(self.source, self.dir) {
            for path in files {
                let what = "put aside: it belongs to a checkpoint that does not count; the one before is used";
                if self.step(StepKind::Checkpoint, &path, what) {
                    self.aside(&path)?;
                }
            }
        }
        if self.covered.is_some() {
            // What is planned so far makes it usable.
            return Ok(true);
        }
        let opened = Newest::open(self.source, self.dir);
        let opened = opened.and_then(|newest| {
            State::of(self.folder.kind, &newest)?;
            Ok(newest.standing.map(|standing| standing.id.index))
        });
        match opened {
            // What was given up is covered by a checkpoint that is not there.
            Ok(covered) => {
                let purged = purged(&*self.source.disk, self.dir).map_err(self.io())?;
                Ok(covered >= purged)
            }
            Err(error) if error.is_key() => Ok(false),
            Err(error @ CheckpointOpenError::Io { .. }) if manifests.is_empty() => {
                Err(RepairError::Inspect(InspectError::Checkpoint(error)))
            }
            Err(error) => self.damaged(&error, manifests),
        }
    }

    fn aside(&self, path: &Path) -> Result<(), RepairError> {
        match move_aside(&*self.source.disk, self.dir, path) {
            // A run that is missing is why the checkpoint does not count.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.io()(error)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The header of the index file, and the file itself. `false` when it is missing and stays so.
    fn index(&mut self, newest: Option<&Manifest>) -> Result<bool, RepairError> {
        let found = salvage::index(self.source, self.dir).map_err(self.io())?;
        let Some(newest) = newest.filter(|_| !found.is_sound()) else {
            return Ok(true);
        };
        if found == salvage::IndexHeader::Missing && self.journal_is_whole()? {
            return Ok(true);
        }
        let has_blocks = self.folder.kind == ShardKind::Data;
        let (kind, what) = match found {
            salvage::IndexHeader::Missing if !has_blocks => {
                (StepKind::Copy, "made anew: metadata has no blocks")
            }
            salvage::IndexHeader::Missing => (
                StepKind::Index,
                "made anew, without its blocks: the server sets aside the messages whose places were in it",
            ),
            salvage::IndexHeader::Damaged => (
                StepKind::Copy,
                "given its header again, which the manifests tell",
            ),
            salvage::IndexHeader::OneDamaged | salvage::IndexHeader::Sound => {
                (StepKind::Copy, "given its header again from the other copy")
            }
        };
        let path = salvage::index_path(self.dir);
        if self.step(kind, &path, what) {
            salvage::renew_index(self.source, self.dir, newest).map_err(self.io())?;
        } else if kind.loses() && !self.consent.lose_corrupt {
            return Ok(false);
        } else if found != salvage::IndexHeader::OneDamaged {
            self.covered = Some(newest.standing.id.index.0 + 1);
        }
        Ok(true)
    }

    /// Whether all frames from the first on can be read: then no checkpoint is needed.
    fn journal_is_whole(&self) -> Result<bool, RepairError> {
        let mut findings = Findings::default();
        let survey = Survey::of(self.source, self.folder, 0, &mut findings)?;
        Ok(survey.is_whole())
    }

    /// No checkpoint can be opened.
    fn damaged(
        &mut self,
        error: &CheckpointOpenError,
        manifests: Vec<Manifest>,
    ) -> Result<bool, RepairError> {
        if self.journal_is_whole()? {
            let what = format!(
                "put aside: {error}; nothing is lost, since the journal has all from the beginning, and the next start replays it"
            );
            let disk = &*self.source.disk;
            let mut files = salvage::files(disk, self.dir).map_err(self.io())?;
            files.push(salvage::index_path(self.dir));
            self.covered = Some(0);
            if self.step(StepKind::Checkpoint, &salvage::folder(self.dir), what) {
                // A journal that has all and says so is of no harm as long as checkpoints are there, too.
                forget_purged(disk, self.dir).map_err(self.io())?;
                files.iter().try_for_each(|path| self.aside(path))?;
            }
            return Ok(true);
        }
        for manifest in manifests {
            let Ok(left) = Left::of(self.source, self.dir, manifest) else {
                continue;
            };
            if let Some(kept) = self.kept(&left) {
                return self.salvage(error, &left, &kept);
            }
        }
        Ok(false)
    }

    /// What of a checkpoint still makes a state.
    fn kept(&self, left: &Left) -> Option<Kept> {
        let remains = left.remains();
        match self.folder.kind {
            ShardKind::Meta => {
                // Each run has all of it.
                let is_newest = !remains.unsure.contains(WHOLE_KEY);
                let found = remains.pairs.iter().any(|(key, _)| key == WHOLE_KEY);
                (is_newest && found).then(|| Kept {
                    pairs: remains.pairs.clone(),
                    lost: Vec::new(),
                })
            }
            ShardKind::Data => {
                let blocks = salvage::blocks(self.source, self.dir).ok()?;
                let salvaged = empty_shard().salvage_pairs(remains.clone(), blocks).ok()?;
                Some(Kept {
                    pairs: salvaged.pairs,
                    lost: salvaged.lost,
                })
            }
        }
    }

    fn salvage(
        &mut self,
        error: &CheckpointOpenError,
        left: &Left,
        kept: &Kept,
    ) -> Result<bool, RepairError> {
        let damaged: Vec<String> = left.damaged.iter().map(ToString::to_string).collect();
        let damaged = match damaged.is_empty() {
            true => error.to_string(),
            false => damaged.join("; "),
        };
        let (kind, what) = match kept.lost.is_empty() {
            true => (
                StepKind::Checkpoint,
                format!(
                    "written again without what cannot be read ({damaged}): nothing is lost, since other files have it"
                ),
            ),
            false => (
                StepKind::Runs,
                format!(
                    "written again without what cannot be read ({damaged}); lost, as far as it was there: {}",
                    kept.lost.join("; ")
                ),
            ),
        };
        if kind.loses() && !self.consent.lose_corrupt {
            self.step(kind, &salvage::folder(self.dir), what);
            return Ok(false);
        }
        self.covered = Some(left.standing().id.index.0 + 1);
        if self.step(kind, &salvage::folder(self.dir), what) {
            let others: Vec<PathBuf> = left
                .install(self.source, self.dir, &kept.pairs)
                .map_err(self.io())?;
            others.iter().try_for_each(|path| self.aside(path))?;
        }
        Ok(true)
    }
}
