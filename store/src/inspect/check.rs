//! Checking a shard: everything that lies in its folder, and that it fits together.
//!
//! Owns: the order of the look (checkpoint before journal, so that a live server only adds to what is
//! needed), and what is counted. Changes nothing. Read next: `journal/survey.rs`, `checkpoint/survey.rs`.

use super::state::State;
use super::{Away, InspectError, Progress, ShardFolder, ShardKind, Source};
use crate::checkpoint::CheckpointOpenError;
use crate::checkpoint::survey::{Newest, survey as survey_checkpoints};
use crate::finding::{FindingKind, Findings};
use crate::journal::FrameKind;
use crate::journal::survey::{Lives, Room, Seen, Survey};
use crate::shard::meta;
use anabranch_core::id::{LogIndex, Offset, Position, StreamId};
use anabranch_core::index::Block;
use anabranch_core::record::{Records, read_message, record_bytes};
use anabranch_core::shard::Shard;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// How often a shard is looked at again because a server moved on meanwhile.
const LOOKS_MAX: u32 = 4;

/// What a check went through, and what it found.
#[derive(Debug, Default, Clone)]
pub struct Checked {
    /// What it found.
    pub findings: Findings,
    /// Segments on the disk.
    pub segments: u64,
    /// Segments in an object store.
    pub away: Away,
    /// Frames of which something lives, each read.
    pub frames: u64,
    /// Records and commands in them.
    pub records: u64,
    /// Ranges of the segments that live.
    pub extents: u64,
    /// Bytes of their logical frames, what was given back included.
    pub logical_bytes: u64,
    /// Of those, given back.
    pub given_back_bytes: u64,
    /// The last frame that counts.
    pub last: Option<LogIndex>,
    /// What the newest checkpoint is of.
    pub checkpoint: Option<LogIndex>,
    /// Checkpoints that are sound as far as their manifests go.
    pub checkpoints: u64,
    /// Runs of the newest.
    pub runs: u64,
    /// Pairs in them.
    pub pairs: u64,
    /// Streams.
    pub streams: u64,
    /// Their entries, the message of each read.
    pub entries: u64,
}

/// Checks everything in a shard's folder; no lock is taken and nothing is changed. An error when nothing can be
/// said at all.
pub fn check(
    source: &Source,
    folder: &ShardFolder,
    progress: &mut dyn FnMut(Progress),
) -> Result<Checked, InspectError> {
    let mut looks = 0;
    loop {
        looks += 1;
        let mut look = Look {
            source,
            folder,
            progress,
            checked: Checked::default(),
        };
        let settled = look.all()?;
        // Blocks and ranges of a checkpoint are used again once two newer ones are there.
        if settled || looks == LOOKS_MAX {
            return Ok(look.checked);
        }
    }
}

struct Look<'a> {
    source: &'a Source,
    folder: &'a ShardFolder,
    progress: &'a mut dyn FnMut(Progress),
    checked: Checked,
}

impl Look<'_> {
    /// Says whether what was found stands.
    fn all(&mut self) -> Result<bool, InspectError> {
        let dir = &self.folder.dir;
        let newest = match Newest::open(self.source, dir) {
            Ok(newest) => Some(newest),
            // A server put another one in its place meanwhile.
            Err(CheckpointOpenError::Io { path, source })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                return Err(InspectError::Io { path, source });
            }
            // The survey names the files.
            Err(error) if error.is_key() => None,
            Err(error) => {
                self.add(FindingKind::State, dir.clone(), None, error.to_string());
                None
            }
        };
        let standing = newest.as_ref().and_then(|newest| newest.standing.clone());
        let covered = standing.as_ref().map(|standing| standing.id.index);
        self.checked.checkpoint = covered;
        let io = |source| InspectError::Io {
            path: dir.clone(),
            source,
        };
        let surveyed =
            survey_checkpoints(self.source, dir, &mut self.checked.findings).map_err(io)?;
        self.checked.checkpoints = surveyed.manifests;
        (self.checked.runs, self.checked.pairs) = (surveyed.runs, surveyed.run_pairs);
        let state = newest
            .as_ref()
            .map(|newest| State::of(self.folder.kind, newest));
        let state = match state.transpose() {
            Ok(state) => state,
            Err(error) if error.is_key() => None,
            Err(error) => {
                self.add(FindingKind::State, dir.clone(), None, error.to_string());
                None
            }
        };
        let findings = &mut self.checked.findings;
        let covered_end = covered.map_or(0, |index| index.0 + 1);
        let mut survey = Survey::of(self.source, self.folder, covered_end, findings)?;
        if newest.is_some() && survey.purged > covered {
            let purged = survey.purged.unwrap_or_default();
            let path = crate::checkpoint::salvage::folder(dir);
            let what = match covered {
                Some(covered) => format!(
                    "the newest checkpoint is of log index {covered}, but frames up to {purged} were given up, as only a later one allows"
                ),
                None => format!(
                    "no manifest is there, but frames up to log index {purged} were given up, as only a checkpoint allows"
                ),
            };
            self.add(FindingKind::Uncovered, path, None, what);
        }
        let Room {
            segments,
            extents,
            logical_bytes,
            given_back_bytes,
            ..
        } = survey.room().map_err(io)?;
        (self.checked.segments, self.checked.extents) = (segments, extents);
        self.checked.away = survey.away();
        self.checked.logical_bytes = logical_bytes;
        self.checked.given_back_bytes = given_back_bytes;
        self.checked.last = survey.next_index.0.checked_sub(1).map(LogIndex);
        let state = self.frames(&mut survey, covered_end, state)?;
        if let (Some(State::Data(shard)), Some(newest)) = (&state, &newest) {
            self.entries(&mut survey, shard, newest);
        }
        let doubted = [
            FindingKind::State,
            FindingKind::Entry,
            FindingKind::IndexBlock,
            FindingKind::Uncovered,
        ];
        let doubted = doubted.iter().any(|kind| self.checked.findings.has(*kind));
        Ok(!doubted || newest.is_none_or(|newest| newest.still_counts()))
    }

    fn add(&mut self, kind: FindingKind, path: PathBuf, offset: Option<u64>, what: String) {
        self.checked.findings.add(kind, path, offset, what);
    }

    /// Reads every frame, and applies those that the checkpoint does not cover. Gives the state, if it is known.
    fn frames(
        &mut self,
        survey: &mut Survey,
        covered_end: u64,
        mut state: Option<State>,
    ) -> Result<Option<State>, InspectError> {
        let (total, mut done) = (survey.bytes(), 0);
        survey.each_frame(LogIndex(0), &mut |seen| {
            done += seen.end_offset - seen.offset;
            (self.progress)(Progress {
                doing: "frames",
                done,
                total,
            });
            self.checked.frames += 1;
            let payload = match &seen.read {
                Ok((head, payload)) if head.kind == FrameKind::Records => payload.clone(),
                Ok(_) => return ControlFlow::Continue(()),
                Err(what) => {
                    let what = format!("log index {}: {what}", seen.index);
                    let path = seen.path.to_owned();
                    let kind = match seen.is_away {
                        true => FindingKind::Object,
                        false => FindingKind::Frame,
                    };
                    self.add(kind, path, Some(seen.offset), what);
                    if seen.index.0 >= covered_end {
                        state = None;
                    }
                    return ControlFlow::Continue(());
                }
            };
            if seen.lives == Lives::Partly {
                if seen.index.0 >= covered_end {
                    state = None;
                }
                return ControlFlow::Continue(());
            }
            let sound = self.records(&seen, &payload);
            let clock = seen.read.as_ref().map(|(head, _)| head.clock);
            if let (Ok(clock), true) = (clock, seen.index.0 >= covered_end) {
                let applied = match (&mut state, sound) {
                    (Some(state), true) => state.apply(clock, seen.payload_position(), &payload),
                    (_, false) => Err("a record of it is not sound".to_owned()),
                    (None, true) => Ok(()),
                };
                if let Err(what) = applied {
                    state = None;
                    let what = format!("log index {} cannot be applied: {what}", seen.index);
                    let path = seen.path.to_owned();
                    self.add(FindingKind::State, path, Some(seen.offset), what);
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(state)
    }

    /// Parses every record of a frame; says whether all are sound.
    fn records(&mut self, seen: &Seen<'_>, payload: &Bytes) -> bool {
        let first = seen.payload_position();
        let found = match self.folder.kind {
            ShardKind::Meta => match meta::decode(payload) {
                Ok(commands) => {
                    self.checked.records += commands.len() as u64;
                    None
                }
                Err(what) => Some((first, what)),
            },
            ShardKind::Data => match Records::new(payload, first, false) {
                Ok(mut records) => loop {
                    let position = records.position();
                    match records.next() {
                        None => break None,
                        Some(Ok(_)) => self.checked.records += 1,
                        Some(Err(error)) => break Some((position, error.to_string())),
                    }
                },
                Err(error) => Some((first, error.to_string())),
            },
        };
        let Some((position, what)) = found else {
            return true;
        };
        let what = format!("log index {}, position {position}: {what}", seen.index);
        let offset = Some(seen.offset_of(position));
        self.add(FindingKind::Record, seen.path.to_owned(), offset, what);
        false
    }

    /// Reads the message of every entry.
    fn entries(&mut self, survey: &mut Survey, shard: &Shard<Position>, newest: &Newest) {
        let total = shard.stream_facts().map(|facts| facts.entries).sum();
        self.checked.streams = shard.stream_facts().count() as u64;
        let mut lost: BTreeMap<Vec<Block>, Lost> = BTreeMap::new();
        shard.each_entry(&mut |stream, offset, place| {
            self.checked.entries += 1;
            (self.progress)(Progress {
                doing: "entries",
                done: self.checked.entries,
                total,
            });
            let place = match place {
                Ok(place) => place,
                Err(row) => {
                    let one = lost.entry(row.blocks).or_insert(Lost {
                        stream,
                        first: offset,
                        last: offset,
                        count: 0,
                    });
                    (one.last, one.count) = (offset, one.count + 1);
                    return ControlFlow::Continue(());
                }
            };
            if let Err(what) = message_at(survey, place.position) {
                let (path, at) = survey.whereabouts(place.position);
                let what = format!(
                    "stream {stream}, offset {offset} refers to position {}: {what}",
                    place.position
                );
                self.add(FindingKind::Entry, path, at, what);
            }
            ControlFlow::Continue(())
        });
        for (blocks, lost) in lost {
            let Some((first, more)) = blocks.split_first() else {
                // Their blocks were lost in an earlier life.
                let what = format!(
                    "{} entries are set aside since a damaged block had their places, the first: stream {}, offset {}",
                    lost.count, lost.stream, lost.first
                );
                self.add(FindingKind::Entry, self.folder.dir.clone(), None, what);
                continue;
            };
            // Rows that are wide take two blocks under one checksum.
            let second = more.iter().map(|block| format!(", with block {}", block.0));
            let what = format!(
                "block {}{}: it cannot be read, or is not what was written; it has the places of {} entries of stream {}, offsets {} to {}",
                first.0,
                second.collect::<String>(),
                lost.count,
                lost.stream,
                lost.first,
                lost.last
            );
            let (path, offset) = newest.block(*first);
            self.add(FindingKind::IndexBlock, path, Some(offset), what);
        }
    }
}

/// Entries whose rows cannot be read: all that one chunk has, or all that earlier lives lost.
struct Lost {
    stream: StreamId,
    first: Offset,
    last: Offset,
    count: u64,
}

/// Reads the message of a record, unless it lies in the object store.
fn message_at(survey: &mut Survey, position: Position) -> Result<(), String> {
    let Some(bytes) = survey.bytes_at(position)? else {
        return Ok(());
    };
    let len = record_bytes(&bytes).map_err(|error| error.to_string())?;
    if len > bytes.len() {
        return Err("the record is cut short".to_owned());
    }
    let read = read_message(bytes.slice(..len));
    read.map(|_| ()).map_err(|error| error.to_string())
}
