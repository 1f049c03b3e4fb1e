//! Reading a journal: from the bytes in memory, else from the files.
//!
//! Owns: which of the two serves a read, and verification of frames read from disk. Never waits for
//! the writer: what is not in memory was written before; nor for the disk, for who says so. Read next: [`super::tail`],
//! [`super::spot`].

use super::Journal;
use super::error::ReadError;
use super::frame::{ENVELOPE_BYTES, Frame, HEAD_BYTES, LOGICAL_HEADER_BYTES, decode_head};
use super::pack::unpack;
use super::placement::Shared;
use super::segment::FrameSpan;
use super::spot::{Cold, Spot};
use super::walks::CHUNK_BYTES;
use anabranch_core::id::{LogIndex, Position, Term};
use bytes::Bytes;
use std::io;

/// Bytes read from disk before a record's length is known.
pub(super) const GUESS_BYTES: usize = 4096;
/// A record of so many bytes is a slice of the chunk that it lies in; a smaller one is copied, so that a consumer that does
/// not read holds on to its messages and a few times as much, but not to a chunk for each. (Frames are given up soon.)
const SLICE_FROM_BYTES: usize = CHUNK_BYTES as usize / 8;

impl Journal {
    /// The position of the first payload byte of a frame.
    pub fn payload_position(&self, index: LogIndex) -> Option<Position> {
        let shared = self.lock();
        let held = shared.tail.frame(index).map(|(position, _)| position);
        let position = held.or_else(|| Some(shared.segment_of(index)?.frame_at(index)?.0))?;
        Some(Position(position.0 + LOGICAL_HEADER_BYTES as u64))
    }

    /// Reads a frame from memory or disk; one read from disk is verified.
    pub fn frame(&self, index: LogIndex) -> Result<Frame, ReadError> {
        let (mut spot, span) = {
            let mut shared = self.lock();
            if let Some((_, frame)) = shared.tail.frame(index) {
                self.inner.health.read_memory(frame.payload.len());
                return Ok(frame.clone());
            }
            let place = shared.nth_of(index);
            let place = place.and_then(|nth| Some((nth, shared.segments[nth].frame_span(index)?)));
            let (nth, span) = place.ok_or(ReadError::NoFrame(index))?;
            shared.check_there(span.from, span.to)?;
            let spot = shared.spot(nth, &span, span.offset, Cold::Wait);
            (spot.ok_or(ReadError::NoFrame(index))?, span)
        };
        self.look_ahead(&mut spot);
        self.stored_frame(&spot, &span)
    }

    /// A frame as it lies in its file, verified and opened.
    fn stored_frame(&self, spot: &Spot, span: &FrameSpan) -> Result<Frame, ReadError> {
        let corrupt = ReadError::Corrupt(span.index);
        let len = usize::try_from(span.end_offset - span.offset).map_err(io::Error::other)?;
        let stored = self.stored(spot, span.offset, len, 0)?;
        let Ok(head) = decode_head(&stored) else {
            return Err(corrupt);
        };
        let body = HEAD_BYTES..HEAD_BYTES.saturating_add(head.body_len());
        if head.index != span.index || body.end > len {
            return Err(corrupt);
        }
        unpack(&head, stored.slice(body), spot.key()).map_err(|_| corrupt)
    }

    /// The payload of a packed frame, opened as a whole.
    fn opened(&self, spot: &Spot, frame: &FrameSpan) -> Result<Bytes, ReadError> {
        if let Some(payload) = self.inner.opened.get(frame.from) {
            return Ok(payload);
        }
        let payload = self.stored_frame(spot, frame)?.payload;
        self.inner.opened.put(frame.from, payload.clone());
        Ok(payload)
    }

    /// Reads `len` payload bytes at `position` (a record inside a frame). From memory no byte is
    /// copied; from disk the bytes are not verified here: a record carries its own checksum.
    pub fn read(&self, position: Position, len: usize) -> Result<Bytes, ReadError> {
        self.read_sized(position, 0, |_| Some(len))
    }

    /// Reads payload bytes at `position` whose number only their first `prefix` bytes tell: `size`
    /// is given those and says how many bytes to read from `position`, or `None` for nonsense.
    pub fn read_sized(
        &self,
        position: Position,
        prefix: usize,
        size: impl FnOnce(&[u8]) -> Option<usize>,
    ) -> Result<Bytes, ReadError> {
        self.read_record(position, prefix, size, Cold::Wait)
    }

    /// The same for who must not wait for the disk and has said whom to call ([`Journal::on_arrival`]): bytes that
    /// are not in memory are asked for, and the error says that they come later ([`ReadError::is_away`]).
    pub fn fetch_sized(
        &self,
        position: Position,
        prefix: usize,
        size: impl FnOnce(&[u8]) -> Option<usize>,
    ) -> Result<Bytes, ReadError> {
        self.read_record(position, prefix, size, Cold::Later)
    }

    /// Whom to call when something has come that was not at hand: on another thread, or with the object store's.
    pub fn on_arrival(&self, wake: impl Fn() + Send + Sync + Clone + 'static) {
        if let Some(folder) = self.folder() {
            folder.on_arrival(wake.clone());
        }
        self.inner.ahead.on_arrival(wake);
    }

    fn read_record(
        &self,
        position: Position,
        prefix: usize,
        size: impl FnOnce(&[u8]) -> Option<usize>,
        cold: Cold,
    ) -> Result<Bytes, ReadError> {
        let (mut spot, span) = {
            let mut shared = self.lock();
            if let Some(rest) = shared.tail.bytes_from(position) {
                let read = sized(&rest, position, prefix, size)?;
                self.inner.health.read_memory(read.len());
                return Ok(read);
            }
            shared.check_there(position, Position(position.0.saturating_add(1)))?;
            let place = shared.nth_covering(position).and_then(|nth| {
                let span = shared.segments[nth].frame_covering(position)?;
                let in_payload = position.0 - span.from.0 >= LOGICAL_HEADER_BYTES as u64;
                in_payload.then_some((nth, span))
            });
            let (nth, span) = place.ok_or(ReadError::NoBytes(position, prefix))?;
            let at = if span.is_plain() {
                plain_offset(&span, position)
            } else {
                span.offset
            };
            let spot = shared.spot(nth, &span, at, cold);
            (spot.ok_or(ReadError::NoBytes(position, prefix))?, span)
        };
        // First of all: also what is read from no file is a walk's step.
        self.look_ahead(&mut spot);
        if !span.is_plain() {
            let payload = self.opened(&spot, &span)?;
            let inside = usize::try_from(position.0 - span.from.0).map_err(io::Error::other)?;
            let rest = payload.get(inside - LOGICAL_HEADER_BYTES..);
            let rest = rest.map(|rest| payload.slice_ref(rest));
            let rest = rest.ok_or(ReadError::NoBytes(position, prefix))?;
            // Copied, so that a small record does not hold a large frame in memory.
            let record = sized(&rest, position, prefix, size)?;
            return Ok(Bytes::copy_from_slice(&record));
        }
        let offset = plain_offset(&span, position);
        let available = usize::try_from(span.to.0 - position.0).unwrap_or(usize::MAX);
        if available < prefix {
            return Err(ReadError::NoBytes(position, prefix));
        }
        if let Some(head) = spot.peek(offset, prefix) {
            let len = size(head).ok_or(ReadError::NoBytes(position, prefix))?;
            if len > available {
                return Err(ReadError::NoBytes(position, len));
            }
            return self.stored(&spot, offset, len, SLICE_FROM_BYTES);
        }
        // Most records are small: one read serves both their length and their bytes.
        let mut bytes = vec![0; available.min(GUESS_BYTES).max(prefix)];
        self.read_file(&spot, &mut bytes, offset)?;
        let len = size(&bytes[..prefix]).ok_or(ReadError::NoBytes(position, prefix))?;
        if len > available {
            return Err(ReadError::NoBytes(position, len));
        }
        let had = bytes.len();
        bytes.resize(len, 0);
        if len > had {
            self.read_file(&spot, &mut bytes[had..], offset + had as u64)?;
        }
        self.inner.health.read_file(len);
        Ok(bytes.into())
    }

    /// `len` bytes at an offset of a file, from what is held of it (a slice of that from `slice_from` bytes on), or from
    /// itself.
    fn stored(
        &self,
        spot: &Spot,
        offset: u64,
        len: usize,
        slice_from: usize,
    ) -> Result<Bytes, ReadError> {
        if let Some(bytes) = spot.take(offset, len, slice_from) {
            self.inner.health.read_ahead(len);
            return Ok(bytes);
        }
        let mut bytes = vec![0; len];
        self.read_file(spot, &mut bytes, offset)?;
        self.inner.health.read_file(len);
        Ok(bytes.into())
    }

    fn read_file(&self, spot: &Spot, buf: &mut [u8], offset: u64) -> Result<(), ReadError> {
        let end = offset + buf.len() as u64;
        let read = spot.read_at(&self.inner.ahead, buf, offset);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ReadError::CutShort(end),
            _ => error.into(),
        })
    }

    pub(super) fn term_on_disk(&self, shared: &Shared, index: LogIndex) -> Option<Term> {
        let segment = shared.segment_of(index)?;
        let (_, offset) = segment.frame_at(index)?;
        let mut head = [0; HEAD_BYTES];
        segment.file.get()?.read_at(&mut head, offset).ok()?;
        Some(decode_head(&head).ok()?.term)
    }
}

/// The part of `rest` that its first `prefix` bytes tell the length of, shared with it.
fn sized(
    rest: &Bytes,
    position: Position,
    prefix: usize,
    size: impl FnOnce(&[u8]) -> Option<usize>,
) -> Result<Bytes, ReadError> {
    let no_bytes = |len| ReadError::NoBytes(position, len);
    let head = rest.get(..prefix).ok_or(no_bytes(prefix))?;
    let len = size(head).ok_or(no_bytes(prefix))?;
    if len > rest.len() {
        return Err(no_bytes(len));
    }
    Ok(rest.slice(..len))
}

/// Where the byte at a position lies in the file, in a frame that is stored as it is.
fn plain_offset(span: &FrameSpan, position: Position) -> u64 {
    span.offset + ENVELOPE_BYTES as u64 + (position.0 - span.from.0)
}
