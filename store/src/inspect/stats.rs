//! What a shard consists of, in numbers.
//!
//! Owns: the counts. Changes nothing. Read next: [`mod@super::dump`], [`super::state`].

use super::dump::{DumpFrom, Dumped, dump};
use super::state::State;
use super::{Away, InspectError, Progress, ShardFolder, Source};
use crate::checkpoint::survey::{Newest, survey as survey_checkpoints};
use crate::finding::Findings;
use crate::journal::FrameKind;
use crate::journal::survey::{Lives, Room, Survey};
use anabranch_core::id::{LogIndex, UnixMs, VhostId};
use anabranch_core::shard::{IndexUse, StreamFacts};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Records of one kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct KindCount {
    /// How many.
    pub count: u64,
    /// Bytes that they take in the journal; 0 where commands are not told apart by bytes.
    pub bytes: u64,
}

/// A shard in numbers.
#[derive(Debug, Default, Clone)]
pub struct Stats {
    /// Segments on the disk.
    pub segments: u64,
    /// Segments in an object store.
    pub away: Away,
    /// Lengths of their files, in bytes.
    pub file_bytes: u64,
    /// Bytes allocated for them on the disk.
    pub allocated_bytes: u64,
    /// Bytes of logical frames.
    pub logical_bytes: u64,
    /// Of those, given back.
    pub given_back_bytes: u64,
    /// Bytes allocated for everything in the folder.
    pub folder_bytes: u64,
    /// Frames, those that were given back included.
    pub frames: u64,
    /// Records of what lives, by kind.
    pub records: BTreeMap<String, KindCount>,
    /// Frames and records that cannot be read.
    pub damaged: u64,
    /// The clock of the oldest frame that lives and states it.
    pub oldest: Option<UnixMs>,
    /// The clock of the newest.
    pub newest: Option<UnixMs>,
    /// The last frame.
    pub last: Option<LogIndex>,
    /// What the newest checkpoint is of.
    pub checkpoint: Option<LogIndex>,
    /// Runs of the newest checkpoint.
    pub runs: u64,
    /// Their bytes.
    pub run_bytes: u64,
    /// Blocks that the index file has room for.
    pub index_blocks: u64,
    /// Those that were ever used.
    pub index: IndexUse,
    /// Last values.
    pub values: u64,
    /// Streams, those with most entries first.
    pub streams: Vec<StreamFacts>,
    /// Of a metadata shard: the names of vhosts.
    pub vhosts: BTreeMap<VhostId, Arc<str>>,
}

/// Counts everything in a shard's folder; no lock is taken. The streams are as of the last frame.
pub fn stats(
    source: &Source,
    folder: &ShardFolder,
    progress: &mut dyn FnMut(Progress),
) -> Result<Stats, InspectError> {
    let dir = &folder.dir;
    let io = |source| InspectError::Io {
        path: dir.clone(),
        source,
    };
    let mut stats = Stats::default();
    let newest = Newest::open(source, dir)?;
    let mut state = State::of(folder.kind, &newest)?;
    stats.checkpoint = newest.standing.as_ref().map(|standing| standing.id.index);
    let findings = &mut Findings::default();
    let surveyed = survey_checkpoints(source, dir, findings).map_err(io)?;
    (stats.runs, stats.run_bytes) = (surveyed.runs, surveyed.run_bytes);
    stats.index_blocks = surveyed.index_blocks;
    let covered_end = stats.checkpoint.map_or(0, |index| index.0 + 1);
    let mut survey = Survey::of(source, folder, covered_end, findings)?;
    stats.away = survey.away();
    let room = survey.room().map_err(io)?;
    stats.take_room(room);
    stats.folder_bytes = source.disk.used_bytes(dir).map_err(io)?;
    stats.last = survey.next_index.0.checked_sub(1).map(LogIndex);
    let mut failed = None;
    survey.each_frame(LogIndex(covered_end), &mut |seen| {
        if let (Ok((head, payload)), Lives::Whole) = (&seen.read, seen.lives)
            && head.kind == FrameKind::Records
            && let Err(what) = state.apply(head.clock, seen.payload_position(), payload)
        {
            failed = Some(what);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    if let Some(what) = failed {
        let path = dir.clone();
        return Err(InspectError::State { path, what });
    }
    stats.take_state(&state);
    let (total, mut done) = (room.logical_bytes, 0);
    dump(
        source,
        folder,
        DumpFrom::Index(LogIndex(0)),
        &mut |dumped| {
            if let Dumped::Frame { payload_bytes, .. } = &dumped {
                done += *payload_bytes as u64;
                progress(Progress {
                    doing: "frames",
                    done,
                    total,
                });
            }
            stats.take(&dumped);
            ControlFlow::Continue(())
        },
    )?;
    Ok(stats)
}

impl Stats {
    fn take_room(&mut self, room: Room) {
        self.segments = room.segments;
        self.file_bytes = room.file_bytes;
        self.allocated_bytes = room.allocated_bytes;
        self.logical_bytes = room.logical_bytes;
        self.given_back_bytes = room.given_back_bytes;
        self.frames = room.frames;
    }

    fn take_state(&mut self, state: &State) {
        match state {
            State::Meta(fabric) => {
                let meta = fabric.meta();
                let named = meta.vhosts().map(|vhost| (vhost.id, vhost.name.clone()));
                self.vhosts = named.collect();
            }
            State::Data(shard) => {
                self.index = shard.index_use();
                self.values = shard.last_values();
                self.streams = shard.stream_facts().collect();
                let order = |facts: &StreamFacts| (facts.entries, facts.bytes);
                self.streams
                    .sort_by_key(|facts| std::cmp::Reverse(order(facts)));
            }
        }
    }

    fn take(&mut self, dumped: &Dumped) {
        match dumped {
            Dumped::Frame { clock, .. } if clock.0 > 0 => {
                self.oldest = self.oldest.min(Some(*clock)).or(Some(*clock));
                self.newest = self.newest.max(Some(*clock));
            }
            Dumped::Frame { .. } => {}
            Dumped::Damaged { .. } => self.damaged += 1,
            Dumped::Record { bytes, .. } => self.count(dumped, *bytes),
            Dumped::Command(_) => self.count(dumped, 0),
        }
    }

    fn count(&mut self, dumped: &Dumped, bytes: u64) {
        let name = dumped.kind_name().unwrap_or_default();
        let kind = self.records.entry(name).or_default();
        kind.count += 1;
        kind.bytes += bytes;
    }
}
