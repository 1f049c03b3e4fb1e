//! Reading a journal: from the bytes in memory, else from the files.
//!
//! Owns: which of the two serves a read, and verification of frames read from disk. Never waits for
//! the writer: what is not in memory was written before. Read next: [`super::tail`],
//! [`super::placement`].

use super::Journal;
use super::error::ReadError;
use super::frame::{self, Frame, HEAD_BYTES, LOGICAL_HEADER_BYTES, decode_head};
use super::placement::Shared;
use anabranch_core::id::{LogIndex, Position, Term};
use bytes::Bytes;

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
        let mut payload = vec![0; head.payload_len];
        file.read_at(&mut payload, offset + HEAD_BYTES as u64)?;
        head.frame(payload.into())
            .map_err(|_| ReadError::Corrupt(index))
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
        let (file, offset, available) = {
            let shared = self.lock();
            if let Some(rest) = shared.tail.bytes_from(position) {
                let head = rest
                    .get(..prefix)
                    .ok_or(ReadError::NoBytes(position, prefix))?;
                let len = size(head).ok_or(ReadError::NoBytes(position, prefix))?;
                if len > rest.len() {
                    return Err(ReadError::NoBytes(position, len));
                }
                return Ok(rest.slice(..len));
            }
            shared.check_there(position, Position(position.0.saturating_add(1)))?;
            let place = shared.segment_covering(position).and_then(|segment| {
                let (_, start, end, offset) = segment.frame_covering(position)?;
                let inside = position.0 - start.0;
                let at = offset + frame::ENVELOPE_BYTES as u64 + inside;
                let in_payload = inside >= LOGICAL_HEADER_BYTES as u64;
                in_payload.then_some((segment.file.get()?.clone(), at, end.0 - position.0))
            });
            place.ok_or(ReadError::NoBytes(position, prefix))?
        };
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
