//! Writing a checkpoint: blocks, then the run, then the manifest.
//!
//! Owns: the order of the steps, what is done after one failed, and removing what no manifest kept
//! names any more. Runs on a thread that may wait for the disk. Read next: [`super`], whose rules these
//! are.

use super::index::Identity;
use super::manifest::{Manifest, Standing, UNFINISHED, manifest_path, parse_manifest_name};
use super::run::{Change, RunRef, RunWriter, parse_run_name, run_path};
use super::whole::whole_path;
use super::{Checkpoints, Held, KEEP, WHOLE_KEY, lock};
use crate::journal::FrameId;
use anabranch_core::id::LogIndex;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

impl Held {
    /// Merges all into one layer of pairs, sorted, each key once with what it came to last.
    fn gather(&mut self) -> &[Change] {
        let mut layers = std::mem::take(&mut self.pairs).into_iter();
        let mut all = layers.next().unwrap_or_default();
        layers.for_each(|layer| all.extend(layer));
        // Stable, so that of one key the newest comes last.
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                std::mem::swap(later, kept);
            }
            same
        });
        self.pairs.push(all);
        self.pairs.last().map_or(&[], Vec::as_slice)
    }
}

impl Checkpoints {
    /// Writes what is held as the newest checkpoint, durable on return; says of which frame it is.
    /// After an error everything is still held, and the checkpoint before counts.
    pub(crate) fn write(&self) -> io::Result<Option<LogIndex>> {
        let mut held = lock(&self.held);
        let Some(standing) = held.standing.clone() else {
            return Ok(None);
        };
        let index = standing.id.index;
        match self.write_held(&mut held, standing) {
            Ok(bytes) => {
                self.index.settle();
                *held = Held::default();
                self.counters.written(bytes);
                Ok(Some(index))
            }
            Err(error) => {
                self.index.gather();
                self.counters.failed();
                Err(error)
            }
        }
    }

    /// How long a checkpoint took from its moment on.
    pub(crate) fn took(&self, time: Duration) {
        self.counters.took(time);
    }

    fn write_held(&self, held: &mut Held, standing: Standing) -> io::Result<u64> {
        self.disk.create_dir(&self.dir)?;
        let wanted = Identity::of(&standing, &self.dir);
        let identity = self.index.make(&*self.disk, &self.dir, wanted)?;
        self.forget_doubted()?;
        let whole = lock(&self.state).whole.clone();
        if let Some(whole) = whole {
            // What an earlier server left lies beneath the first run.
            let state = self.whole_state(&whole).map_err(io::Error::other)?;
            held.pairs
                .insert(0, vec![(Bytes::from_static(WHOLE_KEY), Some(state))]);
        }
        let pairs = held.gather();
        let block_bytes = self.index.write()?;
        let run = if pairs.is_empty() {
            None
        } else {
            Some(self.write_run(identity, standing.id, pairs)?)
        };
        let swapped = self.swap(identity, |newest| {
            let mut runs = newest.map_or_else(Vec::new, |newest| newest.runs.clone());
            runs.extend(run);
            Some((standing, runs))
        });
        if let (Err(_), Some(run)) = (&swapped, run) {
            self.drop_run(run.sequence);
        }
        swapped?;
        self.clean();
        Ok(block_bytes + run.map_or(0, |run| run.bytes))
    }

    fn write_run(&self, identity: Identity, id: FrameId, pairs: &[Change]) -> io::Result<RunRef> {
        let bottom = lock(&self.state).kept.is_empty();
        let mut pairs = pairs.iter();
        self.build_run(identity, id, |writer| {
            for (key, value) in pairs.by_ref() {
                // Nothing lies beneath the lowest run that a key could have gone from.
                if value.is_some() || !bottom {
                    writer.push(key, value.as_deref())?;
                }
            }
            Ok(())
        })
    }

    /// Writes a run under a new name; removed again when that fails.
    pub(super) fn build_run<E: From<io::Error>>(
        &self,
        identity: Identity,
        through: FrameId,
        fill: impl FnOnce(&mut RunWriter) -> Result<(), E>,
    ) -> Result<RunRef, E> {
        let sequence = {
            let mut state = lock(&self.state);
            let sequence = state.take_sequence();
            state.unfinished.insert(sequence);
            sequence
        };
        let build = || {
            let mut writer = RunWriter::create(
                &*self.disk,
                &self.dir,
                identity,
                sequence,
                through,
                &self.sealing,
            )?;
            fill(&mut writer)?;
            Ok(writer.finish()?)
        };
        let built = build();
        if built.is_err() {
            self.drop_run(sequence);
        }
        built
    }

    /// Removes a run that no manifest is to name.
    pub(super) fn drop_run(&self, sequence: u64) {
        // Should it not go now, it goes with the next cleaning.
        let _ = self.disk.remove(&run_path(&self.dir, sequence));
        lock(&self.state).unfinished.remove(&sequence);
    }

    /// Makes what `next` says, given the newest manifest, the newest checkpoint, durable on return.
    /// `None` leaves all as it is; the runs that it added are then its own to remove.
    pub(super) fn swap(
        &self,
        identity: Identity,
        next: impl FnOnce(Option<&Manifest>) -> Option<(Standing, Vec<RunRef>)>,
    ) -> io::Result<bool> {
        let _alone = lock(&self.swapping);
        let (newest, sequence) = {
            let mut state = lock(&self.state);
            (state.kept.last().cloned(), state.take_sequence())
        };
        let Some((standing, runs)) = next(newest.as_ref()) else {
            return Ok(false);
        };
        let manifest = Manifest {
            identity,
            sequence,
            standing,
            runs,
        };
        let written = manifest.write(&*self.disk, &self.dir);
        let mut state = lock(&self.state);
        if let Err(error) = written {
            // It may have got its name: it must be gone, durably, before anything else is written.
            state.doubted.push(sequence);
            let _ = self.disk.remove(&manifest_path(&self.dir, sequence));
            return Err(error);
        }
        state.keep(manifest);
        Ok(true)
    }

    /// Removes manifests that must not count, durably: what is written next may be at odds with them.
    fn forget_doubted(&self) -> io::Result<()> {
        let doubted = lock(&self.state).doubted.clone();
        if doubted.is_empty() {
            return Ok(());
        }
        for sequence in doubted {
            match self.disk.remove(&manifest_path(&self.dir, sequence)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.disk.sync_dir(&self.dir)?;
        lock(&self.state).doubted.clear();
        Ok(())
    }

    /// Removes what no manifest kept names. What cannot be removed now is tried again the next time.
    pub(super) fn clean(&self) {
        if let Err(error) = self.try_clean() {
            tracing::warn!(dir = %self.dir.display(), %error, "old files of checkpoints cannot be removed");
        }
    }

    fn try_clean(&self) -> io::Result<()> {
        let _alone = lock(&self.swapping);
        // Looked at before it is asked what is needed: whatever comes in between is not in the list.
        let names = self.disk.list(&self.dir)?;
        let (manifests, runs, wholes) = {
            let state = lock(&self.state);
            let manifests: BTreeSet<u64> = state.kept.iter().map(|one| one.sequence).collect();
            let named = state.kept.iter().flat_map(|one| &one.runs);
            let mut runs: BTreeSet<u64> = named.map(|run| run.sequence).collect();
            runs.extend(&state.unfinished);
            let past = state.kept.len() >= KEEP;
            let wholes = if past {
                state.wholes.clone()
            } else {
                Vec::new()
            };
            (manifests, runs, wholes)
        };
        // Manifests first: none may be there without its runs.
        for name in &names {
            let old = parse_manifest_name(name).is_some_and(|one| !manifests.contains(&one));
            if old || name == UNFINISHED {
                self.disk.remove(&self.dir.join(name))?;
            }
        }
        for name in &names {
            if parse_run_name(name).is_some_and(|one| !runs.contains(&one)) {
                self.disk.remove(&self.dir.join(name))?;
            }
        }
        for index in &wholes {
            self.disk.remove(&whole_path(&self.group_dir, *index))?;
        }
        if !wholes.is_empty() {
            lock(&self.state).wholes.clear();
        }
        Ok(())
    }
}
