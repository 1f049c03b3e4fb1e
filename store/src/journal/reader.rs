//! Reading a journal: from the bytes in memory, else from the files.
//!
//! Owns: which of the two serves a read, and verification of frames read from disk. Never waits for
//! the writer: what is not in memory was written before. Read next: [`super::tail`],
//! [`super::placement`].

use super::Journal;
use super::error::ReadError;
use super::frame::{self, Frame, HEAD_BYTES, LOGICAL_HEADER_BYTES, decode_head};
use super::pack::unpack;
use super::placement::Shared;
use super::segment::{FrameSpan, SegmentFile};
use anabranch_core::id::{LogIndex, Position, Term};
use bytes::Bytes;
use std::io;
use std::sync::Arc;

/// Bytes read from disk before a record's length is known.
const GUESS_BYTES: usize = 4096;

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
        let (file, offset) = {
            let shared = self.lock();
            if let Some((_, frame)) = shared.tail.frame(index) {
                return Ok(frame.clone());
            }
            let place = shared.segment_of(index).and_then(|segment| {
                let (position, offset) = segment.frame_at(index)?;
                Some((segment.file.get()?.clone(), position, offset))
            });
            let (file, position, offset) = place.ok_or(ReadError::NoFrame(index))?;
            let end = shared.frame_end(index).unwrap_or(position);
            shared.check_there(position, end)?;
            (file, offset)
        };
        let mut head = [0; HEAD_BYTES];
        file.read_at(&mut head, offset)?;
        let head = decode_head(&head).map_err(|_| ReadError::Corrupt(index))?;
        if head.index != index {
            return Err(ReadError::Corrupt(index));
        }
        let mut body = vec![0; head.body_len()];
        file.read_at(&mut body, offset + HEAD_BYTES as u64)?;
        let key = file.key().map(Arc::as_ref);
        unpack(&head, body, key).map_err(|_| ReadError::Corrupt(index))
    }

    /// The payload of a packed frame, opened as a whole.
    fn opened(&self, file: &SegmentFile, frame: &FrameSpan) -> Result<Bytes, ReadError> {
        if let Some(payload) = self.inner.opened.get(frame.from) {
            return Ok(payload);
        }
        let corrupt = |_| ReadError::Corrupt(frame.index);
        let len = usize::try_from(frame.end_offset - frame.offset).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        file.read_at(&mut bytes, frame.offset)?;
        let head = decode_head(&bytes).map_err(corrupt)?;
        let body = HEAD_BYTES..HEAD_BYTES + head.body_len();
        if head.index != frame.index || body.end > len {
            return Err(ReadError::Corrupt(frame.index));
        }
        bytes.truncate(body.end);
        bytes.drain(..HEAD_BYTES);
        let frame_there = unpack(&head, bytes, file.key().map(Arc::as_ref)).map_err(corrupt)?;
        let payload = frame_there.payload;
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
        let (file, span) = {
            let shared = self.lock();
            if let Some(rest) = shared.tail.bytes_from(position) {
                return sized(&rest, position, prefix, size);
            }
            shared.check_there(position, Position(position.0.saturating_add(1)))?;
            let place = shared.segment_covering(position).and_then(|segment| {
                let span = segment.frame_covering(position)?;
                let in_payload = position.0 - span.from.0 >= LOGICAL_HEADER_BYTES as u64;
                in_payload.then_some((segment.file.get()?.clone(), span))
            });
            place.ok_or(ReadError::NoBytes(position, prefix))?
        };
        let inside = position.0 - span.from.0;
        if !span.is_plain() {
            let payload = self.opened(&file, &span)?;
            let from = usize::try_from(inside).map_err(io::Error::other)? - LOGICAL_HEADER_BYTES;
            let rest = payload.get(from..).map(|rest| payload.slice_ref(rest));
            let rest = rest.ok_or(ReadError::NoBytes(position, prefix))?;
            // Copied, so that a small record does not hold a large frame in memory.
            let record = sized(&rest, position, prefix, size)?;
            return Ok(Bytes::copy_from_slice(&record));
        }
        let offset = span.offset + frame::ENVELOPE_BYTES as u64 + inside;
        let available = span.to.0 - position.0;
        let available = usize::try_from(available).unwrap_or(usize::MAX);
        // Most records are small: one read serves both their length and their bytes.
        let mut bytes = vec![0; available.min(GUESS_BYTES)];
        if bytes.len() < prefix {
            return Err(ReadError::NoBytes(position, prefix));
        }
        file.read_at(&mut bytes, offset)?;
        let len = size(&bytes[..prefix]).ok_or(ReadError::NoBytes(position, prefix))?;
        if len > available {
            return Err(ReadError::NoBytes(position, len));
        }
        let had = bytes.len();
        bytes.resize(len, 0);
        if len > had {
            file.read_at(&mut bytes[had..], offset + had as u64)?;
        }
        Ok(bytes.into())
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
