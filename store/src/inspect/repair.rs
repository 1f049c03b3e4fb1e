//! Mending a stopped shard: what can be made again, what can be put aside, and what only goes with a loss.
//!
//! Owns: the plan, and that nothing confirmed is given up unless that was asked for. Deletes nothing: see
//! `journal/mend.rs`. Read next: `repair/checkpoints.rs`, [`mod@super::check`].

mod blocks;
mod checkpoints;

use super::{Checked, InspectError, ShardFolder, Source, check};
use crate::checkpoint::survey::Newest;
use crate::finding::{FindingKind, Findings};
use crate::group::take_lock;
use crate::journal::OpenError;
use crate::journal::mend::{
    copy_aside, cut_tail, header_again, move_aside, renew_copies, renew_header, renew_released,
    renew_table,
};
use crate::journal::survey::Survey;
use std::io;
use std::path::{Path, PathBuf};

/// What may be done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Consent {
    /// Nothing: only say what would be.
    pub dry_run: bool,
    /// Give up what was confirmed and is not sound.
    pub lose_corrupt: bool,
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// Writes a rotten copy again from the one that is sound.
    Copy,
    /// Makes a side file again.
    Table,
    /// Writes a block of the index again from the records that the journal has.
    Block,
    /// Puts a checkpoint aside that does not count, or is not needed, or writes one again of which nothing is lost.
    Checkpoint,
    /// Writes a checkpoint again without what of its runs cannot be read: that is lost.
    Runs,
    /// Makes the index file anew: the places of messages that were in it are lost.
    Index,
    /// Cuts a tail that was never synced as a whole.
    Tail,
    /// Takes what is missing between segments for released: what lay there is lost.
    Gaps,
    /// Puts a segment aside whose header is not sound: what lies there is lost.
    Segment,
    /// Cuts the journal before a frame that is not sound: it and all later ones are lost.
    Cut,
}

impl StepKind {
    /// Whether something that was confirmed is given up.
    pub fn loses(self) -> bool {
        match self {
            StepKind::Runs
            | StepKind::Index
            | StepKind::Gaps
            | StepKind::Segment
            | StepKind::Cut => true,
            StepKind::Copy
            | StepKind::Table
            | StepKind::Block
            | StepKind::Checkpoint
            | StepKind::Tail => false,
        }
    }
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What it does.
    pub kind: StepKind,
    /// The file concerned.
    pub path: PathBuf,
    /// In words.
    pub what: String,
}

/// What came of it.
#[derive(Debug, Default, Clone)]
pub struct Mended {
    /// Done, or with [`Consent::dry_run`] to be done.
    pub steps: Vec<Step>,
    /// Would help, and would give up what was confirmed.
    pub withheld: Vec<Step>,
    /// How the shard is now.
    pub after: Checked,
}

/// Why a shard was not mended.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// It cannot be looked at, or a server has it open.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// The disk failed; what was done so far stays done.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The shard's folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl From<OpenError> for RepairError {
    fn from(error: OpenError) -> Self {
        RepairError::Inspect(error.into())
    }
}

/// Mends a shard that no server has open; the lock is held meanwhile.
pub fn repair(
    source: &Source,
    folder: &ShardFolder,
    consent: Consent,
) -> Result<Mended, RepairError> {
    let dir = &folder.dir;
    let _lock = take_lock(&*source.disk, dir)?;
    let mut work = Work {
        source,
        folder,
        dir,
        consent,
        covered: None,
        mended: Mended::default(),
    };
    if work.checkpoints()? && work.headers()? {
        work.segments()?;
        work.journal()?;
        work.blocks()?;
    }
    let mut mended = work.mended;
    mended.after = check(source, folder, &mut |_| {})?;
    Ok(mended)
}

struct Work<'a> {
    source: &'a Source,
    folder: &'a ShardFolder,
    dir: &'a Path,
    consent: Consent,
    /// Frames below it are covered by the checkpoint that there is once all is done, where another one is there now.
    covered: Option<u64>,
    mended: Mended,
}

impl Work<'_> {
    /// Notes a step; says whether to take it.
    fn step(&mut self, kind: StepKind, path: &Path, what: impl Into<String>) -> bool {
        let step = Step {
            kind,
            path: path.to_owned(),
            what: what.into(),
        };
        if kind.loses() && !self.consent.lose_corrupt {
            self.mended.withheld.push(step);
            return false;
        }
        self.mended.steps.push(step);
        !self.consent.dry_run
    }

    fn io(&self) -> impl FnOnce(io::Error) -> RepairError + use<> {
        let path = self.dir.to_owned();
        move |source| RepairError::Io { path, source }
    }

    fn survey(&self) -> Result<(Survey, Findings, u64), RepairError> {
        let newest = Newest::open(self.source, self.dir).ok();
        let standing = newest.and_then(|newest| newest.standing);
        let covered = standing.map_or(0, |standing| standing.id.index.0 + 1);
        let covered = self.covered.unwrap_or(covered);
        let mut findings = Findings::default();
        let survey = Survey::of(self.source, self.folder, covered, &mut findings)?;
        Ok((survey, findings, covered))
    }

    /// Headers of segments that frames and side files tell. `false` when they would be written again, and are not: what
    /// else is to be done shows only then.
    fn headers(&mut self) -> Result<bool, RepairError> {
        let (survey, findings, _) = self.survey()?;
        let mut unwritten = false;
        let bad = findings.list.iter();
        let bad = bad.filter(|finding| finding.kind == FindingKind::SegmentHeader);
        for finding in bad.filter(|finding| !survey.has_file(&finding.path)) {
            let disk = &*self.source.disk;
            let header = header_again(disk, self.dir, &finding.path).map_err(self.io())?;
            let Some(header) = header else { continue };
            let what = "given its header again, which its frames and side files tell";
            if self.step(StepKind::Copy, &finding.path, what) {
                renew_header(disk, &finding.path, &header).map_err(self.io())?;
            } else {
                unwritten = true;
            }
        }
        Ok(!unwritten)
    }

    /// Segments whose headers are not sound, and gaps.
    fn segments(&mut self) -> Result<(), RepairError> {
        let (survey, findings, _) = self.survey()?;
        let last = survey.last_file();
        let bad = findings.list.iter();
        let bad = bad.filter(|finding| finding.kind == FindingKind::SegmentHeader);
        let bad = bad.filter(|finding| !survey.has_file(&finding.path));
        for finding in bad {
            if Some(&finding.path) > last.as_ref() {
                // The newest one is needed: nothing else says where the journal ends.
                continue;
            }
            let what = format!("put aside: {}; its messages are lost", finding.what);
            if self.step(StepKind::Segment, &finding.path, what) {
                move_aside(&*self.source.disk, self.dir, &finding.path).map_err(self.io())?;
            }
        }
        let (survey, findings, _) = self.survey()?;
        let copies = [
            FindingKind::MetaCopy,
            FindingKind::ReleasedCopy,
            FindingKind::TieredCopy,
        ];
        let rotten = findings.list.iter();
        for finding in rotten.filter(|finding| copies.contains(&finding.kind)) {
            let what = "written again from the copy that is sound";
            if self.step(StepKind::Copy, &finding.path, what) {
                renew_copies(&*self.source.disk, self.dir).map_err(self.io())?;
            }
        }
        let unknown = [FindingKind::Released, FindingKind::SegmentMissing];
        let Some(kind) = unknown.into_iter().find(|kind| findings.has(*kind)) else {
            return Ok(());
        };
        if survey.gaps.is_empty() && kind == FindingKind::SegmentMissing {
            return Ok(());
        }
        let gaps = survey.gaps.iter();
        let gaps: Vec<String> = gaps.map(|(from, to)| format!("{from} to {to}")).collect();
        let what = format!(
            "positions that no segment has ({}) are taken for released: messages there are lost, if there were any",
            gaps.join(", ")
        );
        let path = self.dir.join("released");
        if self.step(StepKind::Gaps, &path, what) {
            renew_released(&*self.source.disk, self.dir, &survey.gaps).map_err(self.io())?;
        }
        Ok(())
    }

    /// The end of the journal, then side files.
    fn journal(&mut self) -> Result<(), RepairError> {
        let (survey, findings, covered) = self.survey()?;
        let torn = findings.list.iter();
        let mut torn = torn.filter(|finding| finding.kind == FindingKind::TornTail);
        if survey.has_tier() {
            // A start knows the object store, and cuts a torn tail itself.
        } else if let Some((path, offset, index)) = &survey.broken_at {
            let what = format!(
                "cut at offset {offset}: the frame of log index {index} and all later ones are lost; they are copied aside"
            );
            if covered <= index.0 && self.step(StepKind::Cut, path, what) {
                self.cut(&survey, path, *offset, covered, true)?;
            }
        } else if let Some(finding) = torn.next() {
            let offset = finding.offset.unwrap_or(0);
            let what = format!("cut at offset {offset}: {}; copied aside", finding.what);
            if self.step(StepKind::Tail, &finding.path, what) {
                self.cut(&survey, &finding.path, offset, covered, false)?;
            }
        }
        let (survey, _, _) = self.survey()?;
        for table in &survey.missing_tables {
            let path = survey.table_file(table);
            let what = "made again, with its twin";
            if self.step(StepKind::Table, &path, what) {
                renew_table(&*self.source.disk, self.dir, table).map_err(self.io())?;
            }
        }
        Ok(())
    }

    fn cut(
        &self,
        survey: &Survey,
        path: &Path,
        offset: u64,
        covered: u64,
        lose_synced: bool,
    ) -> Result<(), RepairError> {
        for file in survey.files_from(path) {
            let from = if file == path { offset } else { 0 };
            copy_aside(&*self.source.disk, self.dir, &file, from).map_err(self.io())?;
        }
        Ok(cut_tail(
            &*self.source.disk,
            self.dir,
            covered,
            lose_synced,
            &self.source.sealing,
        )?)
    }
}
