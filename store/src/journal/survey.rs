//! A journal as it lies in its folder, for tools: which frames it has, where each lies, and what is wrong.
//!
//! Owns: the walk over segments that goes on where recovery would stop, and reading a frame or a record
//! by place. Changes nothing, takes no lock: while a server writes, what vanishes was released, and what
//! looks broken is looked at again. Read next: [`super::recovery`] (whose judgement this shares),
//! `survey/walk.rs` (the walk), [`super::manifest`] (what lives), [`crate::inspect`].

mod walk;

use super::error::OpenError;
use super::frame::{
    ENVELOPE_BYTES, FrameFault, HEAD_BYTES, Head, LOGICAL_HEADER_BYTES, decode_head, is_plain,
};
use super::manifest::{FrameAt, Part};
use super::pack::unpack;
use super::reader::GUESS_BYTES;
use super::released::Released;
use super::segment::{Segment, SegmentHeader};
use super::table::{SideTable, read_table, table_path};
use crate::disk::Disk;
use crate::finding::Findings;
use crate::inspect::{Away, ShardFolder, Source};
use crate::tier::{ObjectFile, Unreached, Verdict};
use anabranch_core::id::{LogIndex, Position};
use anabranch_core::record::record_bytes;
use bytes::Bytes;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use walk::Found;

/// Frames kept while records are read by position.
const FRAMES_KEPT: usize = 16;

/// A journal's frames by place.
pub(crate) struct Survey {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segments: Vec<Surveyed>,
    /// First log index after the last frame that counts.
    pub(crate) next_index: LogIndex,
    /// Side files that full segments lack, or whose are of no use, or have no twin; but not where a frame is not
    /// sound.
    pub(crate) missing_tables: Vec<SideTable>,
    /// Positions between segments, and in front of the first, that no segment has.
    pub(crate) gaps: Vec<(Position, Position)>,
    /// Where the journal ends though what was synced goes on: its file, the offset there, and the log index.
    pub(crate) broken_at: Option<(PathBuf, u64, LogIndex)>,
    /// The last frame that was given up on purpose, as one that a checkpoint covers.
    pub(crate) purged: Option<LogIndex>,
    /// Frames read last.
    recent: Vec<(LogIndex, Result<Bytes, String>)>,
}

/// One segment.
struct Surveyed {
    path: PathBuf,
    header: SegmentHeader,
    segment: Segment,
    part: Option<Part>,
    /// When it lies in the object store and is to be read.
    object: Option<Arc<ObjectFile>>,
}

/// What of a frame lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lives {
    /// All of it.
    Whole,
    /// A part: the rest was given back. Or it is sealed and its key is not known. Its records cannot be told.
    Partly,
}

/// A frame that was read.
pub(crate) struct Seen<'a> {
    /// Its segment's file, or its object.
    pub(crate) path: &'a Path,
    /// It lies in the object store.
    pub(crate) is_away: bool,
    /// Offset of its envelope there.
    pub(crate) offset: u64,
    /// First byte after it.
    pub(crate) end_offset: u64,
    /// Its log index.
    pub(crate) index: LogIndex,
    /// Position of its logical header.
    pub(crate) position: Position,
    /// What of it lives.
    pub(crate) lives: Lives,
    /// What lies there; the payload of a part of a frame is verified by nobody.
    pub(crate) read: Result<(Head, Bytes), String>,
}

impl Seen<'_> {
    /// Position of the first payload byte.
    pub(crate) fn payload_position(&self) -> Position {
        Position(self.position.0 + LOGICAL_HEADER_BYTES as u64)
    }

    /// Offset in the file of a position inside the payload.
    pub(crate) fn offset_of(&self, position: Position) -> u64 {
        let inside = position.0.saturating_sub(self.payload_position().0);
        self.offset + HEAD_BYTES as u64 + inside
    }
}

/// How much room a segment takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) segments: u64,
    /// Lengths of the files.
    pub(crate) file_bytes: u64,
    /// Allocated on the disk.
    pub(crate) allocated_bytes: u64,
    /// Logical bytes of the frames.
    pub(crate) logical_bytes: u64,
    /// Of those, given back.
    pub(crate) given_back_bytes: u64,
    pub(crate) frames: u64,
    pub(crate) extents: u64,
}

impl Survey {
    /// Walks the segments in `dir` as recovery would when a checkpoint covers frames below `covered`, and
    /// tells what is wrong. An error when the folder cannot be listed.
    pub(crate) fn of(
        source: &Source,
        folder: &ShardFolder,
        covered: u64,
        findings: &mut Findings,
    ) -> Result<Survey, OpenError> {
        let dir = &folder.dir;
        let Found {
            segments,
            tables,
            gaps,
            broken_at,
            next_index,
            purged,
        } = walk::walk(source, folder, covered, findings)?;
        Ok(Survey {
            disk: source.disk.clone(),
            dir: dir.to_owned(),
            segments,
            next_index,
            missing_tables: tables,
            gaps,
            broken_at,
            purged,
            recent: Vec::new(),
        })
    }

    /// The file of the last segment that could be opened.
    pub(crate) fn last_file(&self) -> Option<PathBuf> {
        self.segments.last().map(|one| one.path.clone())
    }

    /// Whether the segment of a file could be opened.
    pub(crate) fn has_file(&self, path: &Path) -> bool {
        self.segments.iter().any(|one| one.path == path)
    }

    /// Where a side file belongs.
    pub(crate) fn table_file(&self, table: &SideTable) -> PathBuf {
        table_path(&self.dir, table.base)
    }

    /// The files of all segments from one on.
    pub(crate) fn files_from(&self, path: &Path) -> Vec<PathBuf> {
        let paths = self.segments.iter().map(|one| one.path.clone());
        paths.skip_while(|one| one != path).collect()
    }

    /// What all segments take.
    pub(crate) fn room(&self) -> io::Result<Room> {
        let mut room = Room::default();
        for one in &self.segments {
            let Some(part) = &one.part else { continue };
            if one.segment.object().is_none() {
                room.segments += 1;
                room.file_bytes += one.header.capacity_bytes;
                room.allocated_bytes += part.file.allocated_bytes()?;
            }
            room.logical_bytes += one.segment.table().len;
            let given_back = one.segment.given_back().iter();
            room.given_back_bytes += given_back
                .map(|(from, to)| u64::from(to - from))
                .sum::<u64>();
            room.frames += part.frames.len() as u64;
            room.extents += part.extents()?.len() as u64;
        }
        Ok(room)
    }

    /// Bytes of all segments' files up to their last frame, for progress.
    pub(crate) fn bytes(&self) -> u64 {
        let ends = self.segments.iter().map(|one| one.segment.end_offset());
        ends.sum()
    }

    /// What of it lies in the object store.
    pub(crate) fn away(&self) -> Away {
        let mut away = Away::default();
        for one in &self.segments {
            if let Some(object) = one.segment.object() {
                away.segments += 1;
                away.bytes += object.len;
                away.read = one.object.is_some();
            }
        }
        away
    }

    /// Reads every frame from log index `from` on of which something lives, in order. Of an object that is not what was
    /// sent one frame at least is told as unreadable.
    pub(crate) fn each_frame(
        &mut self,
        from: LogIndex,
        visit: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>,
    ) -> Result<(), Unreached> {
        for nth in 0..self.segments.len() {
            let mut rotten = 0;
            let mut counted = |seen: Seen<'_>| {
                rotten += u64::from(seen.read.is_err());
                visit(seen)
            };
            let object = match (
                self.segments[nth].segment.object(),
                self.segments[nth].object.clone(),
            ) {
                (None, _) => None,
                // It was verified when it was sent there.
                (Some(_), None) => continue,
                (Some(_), Some(object)) => Some(object),
            };
            let Some(object) = object else {
                if self.frames_of(nth, from, &mut counted).is_break() {
                    return Ok(());
                }
                continue;
            };
            if self.segments[nth].segment.end_index() <= from {
                continue;
            }
            let verdict = match object.open()? {
                Verdict::Sound => {
                    let broke = self.frames_of(nth, from, &mut counted).is_break();
                    if let Some(failure) = object.failure() {
                        return Err(failure);
                    }
                    if broke {
                        return Ok(());
                    }
                    object.close()?
                }
                rotten => rotten,
            };
            let one = &self.segments[nth];
            let first = one.part.as_ref().and_then(|part| part.frames.first());
            if let (Verdict::Rotten(what), 0, Some(first)) = (verdict, rotten, first) {
                let seen = one.seen(first, Lives::Partly, Err(what));
                if visit(seen).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The same for one segment.
    fn frames_of(
        &mut self,
        nth: usize,
        from: LogIndex,
        visit: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut chain = Some(self.segments[nth].header.prev_crc);
        let count = self.segments[nth]
            .part
            .as_ref()
            .map_or(0, |part| part.frames.len());
        for frame in 0..count {
            let one = &self.segments[nth];
            let Some(part) = &one.part else { break };
            let at = &part.frames[frame];
            if at.index < from {
                chain = None;
                continue;
            }
            let Some(lives) = one.lives(part, at) else {
                chain = None;
                continue;
            };
            let mut read = one.read(at, lives);
            if one
                .object
                .as_ref()
                .is_some_and(|object| object.has_failed())
            {
                return ControlFlow::Break(());
            }
            if let (Ok((head, _)), Some(chain)) = (&read, chain)
                && head.link.prev_crc != chain
            {
                read = Err("it does not link to the frame before".to_owned());
            }
            if read.is_err() && self.look_again(nth) {
                // It was given back, or is whole by now.
                if self.segments[nth].part.is_none() {
                    break;
                }
                chain = None;
                continue;
            }
            chain = read.as_ref().ok().map(|(head, _)| head.crc);
            let one = &self.segments[nth];
            let Some(at) = one.part.as_ref().map(|part| &part.frames[frame]) else {
                break;
            };
            visit(one.seen(at, lives, read))?;
        }
        ControlFlow::Continue(())
    }

    /// Whether a server gave something of a segment back, or released it, since it was looked at; it is known
    /// then.
    fn look_again(&mut self, nth: usize) -> bool {
        let one = &mut self.segments[nth];
        let released = Released::read(&*self.disk, &self.dir).ok().flatten();
        if released.is_some_and(|list| list.contains(one.header.base)) {
            one.part = None;
            return true;
        }
        let fits = |table: &SideTable| table.belongs_to(&one.header);
        let table = read_table(&*self.disk, &self.dir, one.header.base, fits);
        let Some((table, _)) = table else {
            return false;
        };
        if table.given_back == one.segment.given_back() {
            return false;
        }
        one.segment.set_table(table.frames, table.given_back);
        one.part = Part::of(&one.segment, LogIndex(u64::MAX));
        true
    }

    /// The log index of the frame that has a position, or of the first one behind it.
    pub(crate) fn index_from(&self, position: Position) -> LogIndex {
        let parts = self.segments.iter().filter_map(|one| one.part.as_ref());
        let mut frames = parts.flat_map(|part| &part.frames);
        let found = frames.find(|frame| position < frame.to);
        found.map_or(self.next_index, |frame| frame.index)
    }

    /// The segment and the frame that a position lies in.
    fn place(&self, position: Position) -> Option<(usize, usize)> {
        let nth = self
            .segments
            .partition_point(|one| one.header.base <= position);
        let nth = nth.checked_sub(1)?;
        let frames = &self.segments[nth].part.as_ref()?.frames;
        let frame = frames
            .partition_point(|frame| frame.from <= position)
            .checked_sub(1)?;
        (position < frames[frame].to).then_some((nth, frame))
    }

    /// The file and the offset of a position, for messages.
    pub(crate) fn whereabouts(&self, position: Position) -> (PathBuf, Option<u64>) {
        let nth = self
            .segments
            .partition_point(|one| one.header.base <= position);
        let Some(one) = nth.checked_sub(1).map(|nth| &self.segments[nth]) else {
            return (self.dir.clone(), None);
        };
        let covering = one.segment.frame_covering(position);
        let offset = covering.map(|span| match span.is_plain() {
            true => span.offset + ENVELOPE_BYTES as u64 + (position.0 - span.from.0),
            false => span.offset,
        });
        (one.path.clone(), offset)
    }

    /// Whether every frame from the first on is there, as a whole and on the disk.
    pub(crate) fn is_whole(&self) -> bool {
        let mut segments = self.segments.iter();
        let begins = self.segments.first().map(|one| one.header.base) == Some(Position(0));
        let is_here =
            |one: &Surveyed| one.segment.object().is_none() && one.segment.given_back().is_empty();
        begins && self.gaps.is_empty() && self.broken_at.is_none() && segments.all(is_here)
    }

    /// Whether some segments lie in the object store.
    pub(crate) fn has_tier(&self) -> bool {
        let mut segments = self.segments.iter();
        segments.any(|one| one.segment.object().is_some())
    }

    /// Payload bytes from a position on, those of its record at least; nothing when that lies in the object store. They
    /// may be damaged where the frame is stored as it is: a server reads each record by itself then, and asks for its own
    /// checksum only.
    pub(crate) fn bytes_at(&mut self, position: Position) -> Result<Option<Bytes>, String> {
        let nowhere = || "no frame of the journal has this position".to_owned();
        let (nth, frame) = self.place(position).ok_or_else(nowhere)?;
        let one = &self.segments[nth];
        let part = one.part.as_ref().ok_or_else(nowhere)?;
        let at = &part.frames[frame];
        let living = part.living(at);
        let here = |(from, to): &(Position, Position)| *from <= position && position < *to;
        let lives = one.lives(part, at).filter(|_| living.iter().any(here));
        let lives = lives.ok_or("its room was given back")?;
        if one.segment.object().is_some() {
            return Ok(None);
        }
        let inside = position
            .0
            .checked_sub(at.from.0 + LOGICAL_HEADER_BYTES as u64);
        let inside = inside.ok_or("it lies in the head of a frame")? as usize;
        let recent = self.recent.iter().find(|(index, _)| *index == at.index);
        let payload = match recent {
            Some((_, payload)) => payload.clone(),
            None => {
                let payload = one.read(at, lives).map(|(_, payload)| payload);
                if self.recent.len() == FRAMES_KEPT {
                    drop(self.recent.remove(0));
                }
                self.recent.push((at.index, payload.clone()));
                payload
            }
        };
        let payload = match payload {
            // That costs the records that lie where the damage is.
            Err(_) if at.is_plain() => return one.record(at, position).map(Some),
            payload => payload?,
        };
        if inside >= payload.len() {
            return Err("it lies behind the frame's payload".to_owned());
        }
        Ok(Some(payload.slice(inside..)))
    }
}

impl Surveyed {
    fn seen(&self, at: &FrameAt, lives: Lives, read: Result<(Head, Bytes), String>) -> Seen<'_> {
        Seen {
            path: &self.path,
            is_away: self.segment.object().is_some(),
            offset: at.offset,
            end_offset: at.end_offset,
            index: at.index,
            position: at.from,
            lives,
            read,
        }
    }

    /// Whether its frames are sealed and nobody can open them.
    fn is_locked(&self) -> bool {
        let key = self.part.as_ref().and_then(|part| part.file.key());
        self.header.key.is_some() && key.is_none()
    }

    /// What of a frame lives, when something does.
    fn lives(&self, part: &Part, at: &FrameAt) -> Option<Lives> {
        match &part.living(at)[..] {
            [] => None,
            [(from, to)] if (*from, *to) == (at.from, at.to) && !self.is_locked() => {
                Some(Lives::Whole)
            }
            _ => Some(Lives::Partly),
        }
    }

    /// The record at a position in a frame that is stored as it is, read as a server reads it.
    fn record(&self, at: &FrameAt, position: Position) -> Result<Bytes, String> {
        let begun = self.plain_bytes(at, position, GUESS_BYTES as u64)?;
        let len = record_bytes(&begun).map_err(|error| error.to_string())?;
        match len <= begun.len() {
            true => Ok(begun),
            false => self.plain_bytes(at, position, len as u64),
        }
    }

    /// So many bytes of a frame that is stored as it is, at most up to its end.
    fn plain_bytes(&self, at: &FrameAt, from: Position, len: u64) -> Result<Bytes, String> {
        let Some(part) = &self.part else {
            return Err("its segment is gone".to_owned());
        };
        let mut bytes = vec![0; len.min(at.to.0 - from.0) as usize];
        let offset = at.offset + ENVELOPE_BYTES as u64 + (from.0 - at.from.0);
        let read = part.file.read_at(&mut bytes, offset);
        read.map_err(|error| format!("it cannot be read: {error}"))?;
        Ok(bytes.into())
    }

    /// Reads a frame; one that lives as a whole is verified as a whole.
    fn read(&self, at: &FrameAt, lives: Lives) -> Result<(Head, Bytes), String> {
        let told = |fault: FrameFault| fault.to_string();
        let failed = |error: io::Error| format!("it cannot be read: {error}");
        let Some(part) = &self.part else {
            return Err("its segment is gone".to_owned());
        };
        let mut head = [0; HEAD_BYTES];
        part.file.read_at(&mut head, at.offset).map_err(failed)?;
        let plain = is_plain(&head);
        let head = decode_head(&head).map_err(told)?;
        if head.index != at.index
            || head.link.salt != self.header.salt
            || head.stored_len() != at.end_offset - at.offset
            || head.logical_len() != at.to.0 - at.from.0
        {
            return Err("another frame lies there".to_owned());
        }
        let mut body = vec![0; head.body_len()];
        part.file
            .read_at(&mut body, at.offset + HEAD_BYTES as u64)
            .map_err(failed)?;
        if self.is_locked() && !plain {
            head.check_stored(&body).map_err(told)?;
            return Ok((head, Bytes::new()));
        }
        if lives == Lives::Partly && plain {
            return Ok((head, body.into()));
        }
        let key = part.file.key().map(Arc::as_ref);
        let frame = unpack(&head, body.into(), key).map_err(told)?;
        Ok((head, frame.payload))
    }
}
