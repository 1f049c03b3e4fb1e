//! What of the journal a checkpoint needs: a list of the extents that live, and a check of them.
//!
//! Owns: the list (a snapshot is a checkpoint and these extents; a checkpoint without them is of no use) and
//! the proof that each is there and sound. Never copies or repairs anything. Read next: [`super::room`] (what
//! does not live), [`super::segment`].

use super::Journal;
use super::frame::{ENVELOPE_BYTES, HEAD_BYTES, decode_head, is_plain};
use super::segment::{Segment, SegmentFile, is_stored_plain};
use crate::tier::Object;
use anabranch_core::id::{LogIndex, Position};
use std::io;
use std::sync::Arc;

/// A range of positions and where its bytes lie in the file of its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First position.
    pub from: Position,
    /// First position after it.
    pub to: Position,
    /// Offset in the file. A frame that lives as a whole begins with its envelope.
    pub file_from: u64,
    /// Offset after the last byte.
    pub file_to: u64,
}

/// A segment of which something lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentExtents {
    /// Where it begins.
    pub base: Position,
    /// Its first frame.
    pub first_index: LogIndex,
    /// Frames that belong to the manifest.
    pub frames: usize,
    /// CRC-32C of their places, as in a side file.
    pub places_crc: u32,
    /// Bytes and CRC-32C of its object, when it lies in the object store.
    pub object: Option<(u64, u32)>,
    /// What lives, ascending. Of a frame in the object store all does as long as a part of it does.
    pub extents: Vec<Extent>,
}

/// Every extent that lives, up to one frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The last frame.
    pub through: LogIndex,
    /// Segments, ascending. Between them others may have been released.
    pub segments: Vec<SegmentExtents>,
}

/// What a check went through.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// Extents, all of them.
    pub extents: usize,
    /// Frames that live as a whole, each verified.
    pub frames: usize,
    /// Bytes of the extents in their files.
    pub bytes: u64,
    /// Segments in the object store, which were verified when they were sent there and are not read.
    pub tiered: usize,
}

/// Why a manifest does not hold.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A segment is not in the journal any more.
    #[error("the segment at position {0} is not there")]
    NoSegment(Position),
    /// Its frames do not lie where they did.
    #[error("the frames of the segment at position {0} do not lie where the manifest says")]
    Places(Position),
    /// Bytes that should live were given back.
    #[error("position {0} was given back though the manifest names it")]
    GivenBack(Position),
    /// A frame fails its checksums.
    #[error("the frame at log index {0} is corrupt on disk")]
    Corrupt(LogIndex),
    /// The disk failed.
    #[error("reading the segment at position {0}: {1}")]
    Io(Position, io::Error),
}

impl Journal {
    /// Lists what lives up to the frame `through`.
    pub fn manifest(&self, through: LogIndex) -> io::Result<Manifest> {
        let mut segments = Vec::new();
        for part in self.parts(through) {
            segments.push(SegmentExtents {
                base: part.base,
                first_index: part.first_index,
                frames: part.frames.len(),
                places_crc: part.places_crc,
                object: part.object.map(|object| (object.len, object.crc)),
                extents: part.extents()?,
            });
        }
        Ok(Manifest { through, segments })
    }

    /// Checks that every extent of a manifest is there and sound: each frame that lives as a whole is read and
    /// verified, and of one that lives in part the head (its records carry checksums of their own).
    pub fn check(&self, manifest: &Manifest) -> Result<Checked, ManifestError> {
        let mut checked = Checked::default();
        let parts = self.parts(manifest.through);
        for wanted in &manifest.segments {
            let part = parts.iter().find(|part| part.base == wanted.base);
            let part = part.ok_or(ManifestError::NoSegment(wanted.base))?;
            if part.places_crc != wanted.places_crc || part.frames.len() != wanted.frames {
                return Err(ManifestError::Places(wanted.base));
            }
            let object = part.object.map(|object| (object.len, object.crc));
            // One that has moved since was read when it was sent.
            if wanted.object.is_some() && object != wanted.object {
                return Err(ManifestError::Places(wanted.base));
            }
            checked.tiered += usize::from(object.is_some());
            let there = part
                .extents()
                .map_err(|error| ManifestError::Io(part.base, error))?;
            for extent in &wanted.extents {
                let covered = |one: &Extent| one.from <= extent.from && extent.to <= one.to;
                if !there.iter().any(covered) {
                    return Err(ManifestError::GivenBack(extent.from));
                }
                checked.extents += 1;
                checked.bytes += extent.file_to - extent.file_from;
                if object.is_none() {
                    checked.frames += part.check(extent)?;
                }
            }
        }
        Ok(checked)
    }

    fn parts(&self, through: LogIndex) -> Vec<Part> {
        let shared = self.lock();
        let below = shared
            .segments
            .iter()
            .filter(|segment| segment.first_index <= through && !segment.is_empty());
        below
            .filter_map(|segment| Part::of(segment, through))
            .collect()
    }
}

/// A frame of a part.
pub(super) struct FrameAt {
    pub(super) index: LogIndex,
    pub(super) from: Position,
    pub(super) to: Position,
    pub(super) offset: u64,
    pub(super) end_offset: u64,
}

impl FrameAt {
    /// Whether it is stored as it is.
    pub(super) fn is_plain(&self) -> bool {
        is_stored_plain(self.end_offset - self.offset, self.to.0 - self.from.0)
    }
}

/// The frames of a segment up to one, and what of them was given back.
pub(super) struct Part {
    pub(super) base: Position,
    first_index: LogIndex,
    pub(super) file: Arc<SegmentFile>,
    object: Option<Object>,
    pub(super) frames: Vec<FrameAt>,
    places_crc: u32,
    given_back: Vec<(u32, u32)>,
}

impl Part {
    pub(super) fn of(segment: &Segment, through: LogIndex) -> Option<Part> {
        let table = segment.table();
        let count = through.0.saturating_add(1) - segment.first_index.0;
        let count = table.places.len().min(usize::try_from(count).ok()?);
        let end_of = |nth: usize| {
            let next = table.places.get(nth + 1);
            next.map_or((table.len, table.end_offset), |next| {
                (u64::from(next.start), u64::from(next.offset))
            })
        };
        let frame = |nth: usize| {
            let (end, end_offset) = end_of(nth);
            let place = table.places[nth];
            FrameAt {
                index: LogIndex(segment.first_index.0 + nth as u64),
                from: Position(segment.base.0 + u64::from(place.start)),
                to: Position(segment.base.0 + end),
                offset: u64::from(place.offset),
                end_offset,
            }
        };
        Some(Part {
            base: segment.base,
            first_index: segment.first_index,
            file: segment.file.get()?.clone(),
            object: segment.object(),
            frames: (0..count).map(frame).collect(),
            places_crc: super::table::places_crc(&table.places[..count]),
            given_back: segment.given_back().to_vec(),
        })
    }

    /// What lives. Of a packed frame all does as long as a part of it does.
    pub(super) fn extents(&self) -> io::Result<Vec<Extent>> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut add = |next: Extent| match extents.last_mut() {
            Some(last) if last.to == next.from && last.file_to == next.file_from => {
                last.to = next.to;
                last.file_to = next.file_to;
            }
            _ => extents.push(next),
        };
        for frame in &self.frames {
            let lives = self.living(frame);
            let whole = Extent {
                from: frame.from,
                to: frame.to,
                file_from: frame.offset,
                file_to: frame.end_offset,
            };
            if lives.as_slice() == [(frame.from, frame.to)] {
                add(whole);
                continue;
            }
            if lives.is_empty() {
                continue;
            }
            if self.object.is_some() {
                add(whole);
                continue;
            }
            let mut magic = [0; 4];
            self.file.read_at(&mut magic, frame.offset)?;
            if !is_plain(&magic) {
                add(whole);
                continue;
            }
            for (from, to) in lives {
                let at = |position: Position| {
                    let inside = position.0 - frame.from.0;
                    frame.offset
                        + if inside == 0 {
                            0
                        } else {
                            ENVELOPE_BYTES as u64 + inside
                        }
                };
                add(Extent {
                    from,
                    to,
                    file_from: at(from),
                    file_to: at(to),
                });
            }
        }
        Ok(extents)
    }

    /// The parts of a frame that were not given back.
    pub(super) fn living(&self, frame: &FrameAt) -> Vec<(Position, Position)> {
        let mut living = Vec::new();
        let mut from = frame.from;
        let place = |inside: u32| Position(self.base.0 + u64::from(inside));
        let first = self
            .given_back
            .partition_point(|range| place(range.1) <= frame.from);
        for (dead_from, dead_to) in &self.given_back[first..] {
            if place(*dead_from) >= frame.to {
                break;
            }
            if place(*dead_from) > from {
                living.push((from, place(*dead_from)));
            }
            from = place(*dead_to).min(frame.to);
        }
        if from < frame.to {
            living.push((from, frame.to));
        }
        living
    }

    /// Verifies the frames of an extent; says how many lie in it as a whole.
    fn check(&self, extent: &Extent) -> Result<usize, ManifestError> {
        let io = |error| ManifestError::Io(self.base, error);
        let mut whole = 0;
        let touched = self.frames.iter();
        let touched = touched.filter(|one| one.from < extent.to && extent.from < one.to);
        for frame in touched {
            let corrupt = ManifestError::Corrupt(frame.index);
            let mut head = [0; HEAD_BYTES];
            self.file.read_at(&mut head, frame.offset).map_err(io)?;
            let Ok(head) = decode_head(&head) else {
                return Err(corrupt);
            };
            if head.index != frame.index
                || head.stored_len() != frame.end_offset - frame.offset
                || head.logical_len() != frame.to.0 - frame.from.0
            {
                return Err(corrupt);
            }
            if extent.from <= frame.from && frame.to <= extent.to {
                let mut body = vec![0; head.body_len()];
                let at = frame.offset + HEAD_BYTES as u64;
                self.file.read_at(&mut body, at).map_err(io)?;
                head.check_stored(&body).map_err(|_| corrupt)?;
                whole += 1;
            }
        }
        Ok(whole)
    }
}
