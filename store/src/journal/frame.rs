//! One frame on disk: the local envelope and, inside it, the logical frame that replicas share.
//!
//! Owns: the layout, its checksums and their verification. Never touches a file; never looks into
//! a payload. Read next: [`super::segment`] (where frames lie), [`super::recovery`] (which are
//! believed).
//!
//! All numbers are little-endian; the layout is persisted.
//!
//! Envelope, 32 bytes, this replica's own:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABF1` |
//! | 4 | 4 | salt of the segment (kills frames of the file's earlier life) |
//! | 8 | 4 | epoch: how often this journal's tail was cut before (kills frames of a cut tail) |
//! | 12 | 4 | link: the envelope checksum of the frame before (the chain) |
//! | 16 | 8 | first log index not yet synced here when this frame was written: the proof that an earlier broken frame is corruption and not a torn write |
//! | 24 | 4 | stored length of the logical frame, with padding |
//! | 28 | 4 | CRC-32C of bytes 0..28 and of the logical header |
//!
//! Logical frame, the same bytes on every replica:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | kind: 0 blank, 1 records, 2 membership |
//! | 2 | 2 | 0 |
//! | 4 | 4 | payload length in bytes |
//! | 8 | 8 | term |
//! | 16 | 8 | log index |
//! | 24 | 8 | the leader's committed log index when it proposed the frame; 0 = not stated |
//! | 32 | 8 | the leader's clock, milliseconds since the Unix epoch; 0 = not stated |
//! | 40 | 4 | CRC-32C of bytes 0..40 and of the payload |
//! | 44 | 4 | 0 |
//! | 48 | n | payload, then zeros up to a multiple of 8 |

use anabranch_core::id::{LogIndex, Term, UnixMs};
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of the envelope.
pub const ENVELOPE_BYTES: usize = 32;
/// Bytes of the logical frame before its payload.
pub const LOGICAL_HEADER_BYTES: usize = 48;
/// Bytes in front of a payload on disk.
pub const HEAD_BYTES: usize = ENVELOPE_BYTES + LOGICAL_HEADER_BYTES;
/// Frames start at multiples of this many bytes.
pub const ALIGN_BYTES: usize = 8;
/// Largest payload of one frame, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024 * 1024;

pub(crate) const MAGIC: [u8; 4] = *b"ABF1";
const VERSION: u8 = 1;

/// What a frame's payload is. The numbers are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Nothing: a new leader's first frame.
    Blank,
    /// A batch of records, opaque to the store.
    Records,
    /// A change of the group's members.
    Membership,
}

impl FrameKind {
    fn to_byte(self) -> u8 {
        match self {
            FrameKind::Blank => 0,
            FrameKind::Records => 1,
            FrameKind::Membership => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(FrameKind::Blank),
            1 => Some(FrameKind::Records),
            2 => Some(FrameKind::Membership),
            _ => None,
        }
    }
}

/// A logical frame: one entry of the replicated log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Term of the leader that proposed it.
    pub term: Term,
    /// Its place in the log, dense.
    pub index: LogIndex,
    /// What the leader knew to be committed; 0 when it did not say.
    pub committed: LogIndex,
    /// The leader's clock; 0 when it did not say.
    pub clock: UnixMs,
    /// What the payload is.
    pub kind: FrameKind,
    /// The payload, at most [`MAX_PAYLOAD_BYTES`].
    pub payload: Bytes,
}

impl Frame {
    /// Bytes that this frame takes in the logical journal, padding included.
    pub fn logical_len(&self) -> u64 {
        logical_len(self.payload.len()) as u64
    }
}

/// Bytes of a logical frame with a payload of `payload_len` bytes, padding included.
pub(crate) fn logical_len(payload_len: usize) -> usize {
    (LOGICAL_HEADER_BYTES + payload_len).next_multiple_of(ALIGN_BYTES)
}

/// What ties a frame to its place on this replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) salt: u32,
    pub(crate) epoch: u32,
    pub(crate) prev_crc: u32,
    pub(crate) synced_end: u64,
}

/// The verified head of a frame read from disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) link: Link,
    /// The envelope's own checksum: the next frame's `prev_crc`.
    pub(crate) crc: u32,
    pub(crate) kind: FrameKind,
    pub(crate) payload_len: usize,
    pub(crate) term: Term,
    pub(crate) index: LogIndex,
    pub(crate) committed: LogIndex,
    pub(crate) clock: UnixMs,
    payload_crc: u32,
    header: [u8; 40],
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameFault {
    #[error("no frame begins here")]
    NoMagic,
    #[error("the head's checksum does not match")]
    HeadChecksum,
    #[error("frame version {0} is newer than this server")]
    Version(u8),
    #[error("a field of the head is out of range")]
    Field,
    #[error("the payload's checksum does not match")]
    PayloadChecksum,
}

/// CRC-32C over several pieces.
pub(crate) fn crc32c(pieces: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for piece in pieces {
        digest.update(piece);
    }
    digest.finalize() as u32
}

/// Reads the `u32` at `at`; 0 beyond the end (callers check lengths first).
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let slice = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    slice.map_or(0, u32::from_le_bytes)
}

/// Reads the `u64` at `at`; 0 beyond the end (callers check lengths first).
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let slice = bytes
        .get(at..at + 8)
        .and_then(|eight| eight.try_into().ok());
    slice.map_or(0, u64::from_le_bytes)
}

/// Encodes everything in front of the payload; gives the checksum that the next frame links to.
pub(crate) fn encode_head(frame: &Frame, link: Link) -> ([u8; HEAD_BYTES], u32) {
    let mut head = [0u8; HEAD_BYTES];
    let (envelope, logical) = head.split_at_mut(ENVELOPE_BYTES);
    logical[0] = VERSION;
    logical[1] = frame.kind.to_byte();
    logical[4..8].copy_from_slice(&(frame.payload.len() as u32).to_le_bytes());
    logical[8..16].copy_from_slice(&frame.term.0.to_le_bytes());
    logical[16..24].copy_from_slice(&frame.index.0.to_le_bytes());
    logical[24..32].copy_from_slice(&frame.committed.0.to_le_bytes());
    logical[32..40].copy_from_slice(&frame.clock.0.to_le_bytes());
    let payload_crc = crc32c(&[&logical[..40], &frame.payload]);
    logical[40..44].copy_from_slice(&payload_crc.to_le_bytes());

    envelope[0..4].copy_from_slice(&MAGIC);
    envelope[4..8].copy_from_slice(&link.salt.to_le_bytes());
    envelope[8..12].copy_from_slice(&link.epoch.to_le_bytes());
    envelope[12..16].copy_from_slice(&link.prev_crc.to_le_bytes());
    envelope[16..24].copy_from_slice(&link.synced_end.to_le_bytes());
    envelope[24..28].copy_from_slice(&(frame.logical_len() as u32).to_le_bytes());
    let crc = crc32c(&[&envelope[..28], logical]);
    envelope[28..32].copy_from_slice(&crc.to_le_bytes());
    (head, crc)
}

/// Whether a frame that begins with `bytes` has its payload as it is, so that a part of it is of use.
pub(crate) fn is_plain(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Verifies the head of a frame; the payload is verified by [`Head::frame`].
pub(crate) fn decode_head(bytes: &[u8]) -> Result<Head, FrameFault> {
    let Some((envelope, logical)) = bytes
        .get(..HEAD_BYTES)
        .map(|head| head.split_at(ENVELOPE_BYTES))
    else {
        return Err(FrameFault::NoMagic);
    };
    if envelope[..4] != MAGIC {
        return Err(FrameFault::NoMagic);
    }
    let crc = u32_at(envelope, 28);
    if crc != crc32c(&[&envelope[..28], logical]) {
        return Err(FrameFault::HeadChecksum);
    }
    if logical[0] != VERSION {
        return Err(FrameFault::Version(logical[0]));
    }
    let kind = FrameKind::from_byte(logical[1]).ok_or(FrameFault::Field)?;
    let payload_len = u32_at(logical, 4) as usize;
    if payload_len > MAX_PAYLOAD_BYTES || u32_at(envelope, 24) as usize != logical_len(payload_len)
    {
        return Err(FrameFault::Field);
    }
    let mut header = [0; 40];
    header.copy_from_slice(&logical[..40]);
    Ok(Head {
        link: Link {
            salt: u32_at(envelope, 4),
            epoch: u32_at(envelope, 8),
            prev_crc: u32_at(envelope, 12),
            synced_end: u64_at(envelope, 16),
        },
        crc,
        kind,
        payload_len,
        term: Term(u64_at(logical, 8)),
        index: LogIndex(u64_at(logical, 16)),
        committed: LogIndex(u64_at(logical, 24)),
        clock: UnixMs(u64_at(logical, 32)),
        payload_crc: u32_at(logical, 40),
        header,
    })
}

impl Head {
    /// Verifies a payload that was read for this head.
    pub(crate) fn check_payload(&self, payload: &[u8]) -> Result<(), FrameFault> {
        if payload.len() == self.payload_len && self.payload_crc == crc32c(&[&self.header, payload])
        {
            Ok(())
        } else {
            Err(FrameFault::PayloadChecksum)
        }
    }

    /// The frame, once its payload proves right.
    pub(crate) fn frame(&self, payload: Bytes) -> Result<Frame, FrameFault> {
        self.check_payload(&payload)?;
        Ok(Frame {
            term: self.term,
            index: self.index,
            committed: self.committed,
            clock: self.clock,
            kind: self.kind,
            payload,
        })
    }

    /// Bytes of the logical frame, padding included.
    pub(crate) fn logical_len(&self) -> u64 {
        logical_len(self.payload_len) as u64
    }

    /// Bytes that it takes in its file, envelope and padding included.
    pub(crate) fn stored_len(&self) -> u64 {
        ENVELOPE_BYTES as u64 + self.logical_len()
    }
}

/// Decodes one frame from bytes that nobody vouches for; for fuzzing and for tools.
pub fn decode_untrusted(bytes: &[u8]) -> Option<Frame> {
    let head = decode_head(bytes).ok()?;
    let payload = bytes.get(HEAD_BYTES..HEAD_BYTES.checked_add(head.payload_len)?)?;
    head.frame(Bytes::copy_from_slice(payload)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn link() -> Link {
        Link {
            salt: 7,
            epoch: 2,
            prev_crc: 0xDEAD_BEEF,
            synced_end: 41,
        }
    }

    fn encoded(frame: &Frame) -> Vec<u8> {
        let (head, _) = encode_head(frame, link());
        [&head[..], &frame.payload[..]].concat()
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(term in any::<u64>(), index in any::<u64>(), committed in any::<u64>(),
                                      clock in any::<u64>(), payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let frame = Frame { term: Term(term), index: LogIndex(index), committed: LogIndex(committed),
                clock: UnixMs(clock), kind: FrameKind::Records, payload: payload.into() };
            let bytes = encoded(&frame);
            let head = decode_head(&bytes).unwrap();
            prop_assert_eq!(head.link, link());
            prop_assert_eq!(decode_untrusted(&bytes).unwrap(), frame);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_untrusted(&bytes);
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let frame = Frame {
            term: Term(3),
            index: LogIndex(42),
            committed: LogIndex(41),
            clock: UnixMs(1),
            kind: FrameKind::Records,
            payload: Bytes::from_static(b"twelve bytes"),
        };
        let bytes = encoded(&frame);
        for bit in 0..bytes.len() * 8 {
            let mut broken = bytes.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_untrusted(&broken), None, "bit {bit}");
        }
    }
}
