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
//!
//! A packed frame stands for the same logical frame and has the same envelope, but for the magic `ABF2`. Behind
//! the first 40 bytes of the logical frame, which are as they are:
//!
//! | at | size | field |
//! |---|---|---|
//! | 40 | 4 | CRC-32C of the body |
//! | 44 | 1 | form, added up: 1 compressed by LZ4 (block), 2 by Zstandard, 4 sealed after that, bound to bytes 0..40 and this byte |
//! | 45 | 1 | zeros behind the body |
//! | 46 | 2 | 0 |
//! | 48 | n | body: bytes 40.. of the logical frame, without its padding, packed; then zeros up to a multiple of 8 |

use crate::seal::TRAILER_BYTES;
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
pub(crate) const PACKED_MAGIC: [u8; 4] = *b"ABF2";
const VERSION: u8 = 1;
/// Bytes of the logical frame that are never packed.
pub(crate) const CLEAR_BYTES: usize = 40;
/// Bytes of the logical header that are packed with the payload: its checksum, and zeros.
pub(crate) const PACKED_HEADER_BYTES: usize = LOGICAL_HEADER_BYTES - CLEAR_BYTES;
/// Bytes that sealing adds to a frame in its file.
pub(crate) const SEALED_MORE_BYTES: u64 = (PACKED_HEADER_BYTES + TRAILER_BYTES) as u64;

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
    pub(crate) stored: Stored,
    pub(crate) clear: [u8; CLEAR_BYTES],
}

/// How what follows a head is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// The payload as it is.
    Plain { payload_crc: u32 },
    /// A packed body.
    Packed {
        form: Form,
        body_len: usize,
        body_crc: u32,
    },
}

/// What was done to a body. The numbers are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form(u8);

impl Form {
    pub(crate) const NONE: Form = Form(0);
    pub(crate) const LZ4: Form = Form(1);
    pub(crate) const ZSTD: Form = Form(2);
    const SEALED: u8 = 4;

    pub(crate) fn sealed(self) -> Form {
        Form(self.0 | Self::SEALED)
    }

    pub(crate) fn is_sealed(self) -> bool {
        self.0 & Self::SEALED != 0
    }

    /// What was done before sealing.
    pub(crate) fn compression(self) -> Form {
        Form(self.0 & !Self::SEALED)
    }

    pub(crate) fn to_byte(self) -> u8 {
        self.0
    }

    fn from_byte(byte: u8) -> Option<Form> {
        let form = Form(byte);
        let known = [Form::NONE, Form::LZ4, Form::ZSTD].contains(&form.compression());
        (known && form != Form::NONE).then_some(form)
    }
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
    #[error("the frame is sealed, and its segment names no key")]
    NoKey,
    #[error("the sealed frame does not open: it is not what was sealed")]
    Seal,
    #[error("the compressed frame is not what was compressed")]
    Compressed,
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

/// The bytes of a logical frame that are never packed, and its checksum, which follows them.
pub(crate) fn encode_clear(frame: &Frame) -> ([u8; CLEAR_BYTES], u32) {
    let mut clear = [0u8; CLEAR_BYTES];
    clear[0] = VERSION;
    clear[1] = frame.kind.to_byte();
    clear[4..8].copy_from_slice(&(frame.payload.len() as u32).to_le_bytes());
    clear[8..16].copy_from_slice(&frame.term.0.to_le_bytes());
    clear[16..24].copy_from_slice(&frame.index.0.to_le_bytes());
    clear[24..32].copy_from_slice(&frame.committed.0.to_le_bytes());
    clear[32..40].copy_from_slice(&frame.clock.0.to_le_bytes());
    let payload_crc = crc32c(&[&clear, &frame.payload]);
    (clear, payload_crc)
}

/// Encodes everything in front of the payload; gives the checksum that the next frame links to.
pub(crate) fn encode_head(frame: &Frame, link: Link) -> ([u8; HEAD_BYTES], u32) {
    let mut head = [0u8; HEAD_BYTES];
    let (clear, payload_crc) = encode_clear(frame);
    head[ENVELOPE_BYTES..][..CLEAR_BYTES].copy_from_slice(&clear);
    head[ENVELOPE_BYTES + CLEAR_BYTES..][..4].copy_from_slice(&payload_crc.to_le_bytes());
    let crc = put_envelope(&mut head, MAGIC, link, frame.logical_len() as u32);
    (head, crc)
}

/// Encodes everything in front of a packed body; gives the checksum that the next frame links to.
pub(crate) fn encode_packed_head(
    clear: &[u8; CLEAR_BYTES],
    form: Form,
    body: &[u8],
    link: Link,
) -> ([u8; HEAD_BYTES], u32) {
    let mut head = [0u8; HEAD_BYTES];
    let unpadded = LOGICAL_HEADER_BYTES + body.len();
    let stored = unpadded.next_multiple_of(ALIGN_BYTES);
    let logical = &mut head[ENVELOPE_BYTES..];
    logical[..CLEAR_BYTES].copy_from_slice(clear);
    logical[40..44].copy_from_slice(&crc32c(&[body]).to_le_bytes());
    logical[44] = form.to_byte();
    logical[45] = (stored - unpadded) as u8;
    let crc = put_envelope(&mut head, PACKED_MAGIC, link, stored as u32);
    (head, crc)
}

fn put_envelope(head: &mut [u8; HEAD_BYTES], magic: [u8; 4], link: Link, stored: u32) -> u32 {
    let (envelope, logical) = head.split_at_mut(ENVELOPE_BYTES);
    envelope[0..4].copy_from_slice(&magic);
    envelope[4..8].copy_from_slice(&link.salt.to_le_bytes());
    envelope[8..12].copy_from_slice(&link.epoch.to_le_bytes());
    envelope[12..16].copy_from_slice(&link.prev_crc.to_le_bytes());
    envelope[16..24].copy_from_slice(&link.synced_end.to_le_bytes());
    envelope[24..28].copy_from_slice(&stored.to_le_bytes());
    let crc = crc32c(&[&envelope[..28], logical]);
    envelope[28..32].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Whether a frame that begins with `bytes` has its payload as it is, so that a part of it is of use.
pub(crate) fn is_plain(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Whether a frame of any form may begin with `bytes`.
pub(crate) fn has_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC) || bytes.starts_with(&PACKED_MAGIC)
}

/// Verifies the head of a frame; what follows is verified by [`Head::check_stored`] or [`Head::frame`].
pub(crate) fn decode_head(bytes: &[u8]) -> Result<Head, FrameFault> {
    let Some((envelope, logical)) = bytes
        .get(..HEAD_BYTES)
        .map(|head| head.split_at(ENVELOPE_BYTES))
    else {
        return Err(FrameFault::NoMagic);
    };
    if !has_magic(envelope) {
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
    if payload_len > MAX_PAYLOAD_BYTES {
        return Err(FrameFault::Field);
    }
    let stored_len = u32_at(envelope, 24) as usize;
    let stored = if is_plain(envelope) {
        let payload_crc = u32_at(logical, 40);
        (stored_len == logical_len(payload_len)).then_some(Stored::Plain { payload_crc })
    } else {
        decode_packed(logical, stored_len, payload_len)
    };
    let stored = stored.ok_or(FrameFault::Field)?;
    let mut clear = [0; CLEAR_BYTES];
    clear.copy_from_slice(&logical[..CLEAR_BYTES]);
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
        stored,
        clear,
    })
}

fn decode_packed(logical: &[u8], stored_len: usize, payload_len: usize) -> Option<Stored> {
    let form = Form::from_byte(logical[44])?;
    let padding = usize::from(logical[45]);
    let body_len = stored_len.checked_sub(LOGICAL_HEADER_BYTES + padding)?;
    let most = PACKED_HEADER_BYTES + payload_len + TRAILER_BYTES;
    let sound = padding < ALIGN_BYTES && stored_len.is_multiple_of(ALIGN_BYTES) && body_len <= most;
    sound.then_some(Stored::Packed {
        form,
        body_len,
        body_crc: u32_at(logical, 40),
    })
}

impl Head {
    /// Bytes that follow the head, without padding.
    pub(crate) fn body_len(&self) -> usize {
        match self.stored {
            Stored::Plain { .. } => self.payload_len,
            Stored::Packed { body_len, .. } => body_len,
        }
    }

    /// Verifies what was read behind this head, as it is stored: nothing is opened for that.
    pub(crate) fn check_stored(&self, body: &[u8]) -> Result<(), FrameFault> {
        let sound = body.len() == self.body_len()
            && match self.stored {
                Stored::Plain { payload_crc } => payload_crc == crc32c(&[&self.clear, body]),
                Stored::Packed { body_crc, .. } => body_crc == crc32c(&[body]),
            };
        sound.then_some(()).ok_or(FrameFault::PayloadChecksum)
    }

    /// The frame, once its payload (unpacked, with its checksum) proves right.
    pub(crate) fn frame(&self, payload: Bytes, payload_crc: u32) -> Result<Frame, FrameFault> {
        if payload.len() != self.payload_len || payload_crc != crc32c(&[&self.clear, &payload]) {
            return Err(FrameFault::PayloadChecksum);
        }
        Ok(Frame {
            term: self.term,
            index: self.index,
            committed: self.committed,
            clock: self.clock,
            kind: self.kind,
            payload,
        })
    }

    /// Whether only a key opens what follows it.
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self.stored, Stored::Packed { form, .. } if form.is_sealed())
    }

    /// Bytes of the logical frame, padding included.
    pub(crate) fn logical_len(&self) -> u64 {
        logical_len(self.payload_len) as u64
    }

    /// Bytes that it takes in its file, envelope and padding included.
    pub(crate) fn stored_len(&self) -> u64 {
        (HEAD_BYTES + self.body_len()).next_multiple_of(ALIGN_BYTES) as u64
    }
}

/// Decodes one frame from bytes that nobody vouches for; for fuzzing and for tools. A sealed one is none: its
/// key is not here.
pub fn decode_untrusted(bytes: &[u8]) -> Option<Frame> {
    let head = decode_head(bytes).ok()?;
    let body = bytes.get(HEAD_BYTES..HEAD_BYTES.checked_add(head.body_len())?)?;
    super::pack::unpack(&head, Bytes::copy_from_slice(body), None).ok()
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
