//! Cutting a byte stream into frames (AMQP 0-9-1 section 4.2.2 and 4.2.3).
//!
//! | octets | field |
//! |---|---|
//! | 0 | type: 1 method, 2 content header, 3 body, 8 heartbeat |
//! | 1-2 | channel |
//! | 3-6 | size of the payload |
//! | 7.. | payload |
//! | last | frame end, 0xCE |
//!
//! Owns the protocol header, the checks of type, size and end (501), and the order of chunks: a frame
//! that lies whole in one chunk is taken as a slice of it, one that spans chunks is gathered once.
//! Never looks into a payload; `method` and `properties` do.

use bytes::{Bytes, BytesMut};

use crate::error::{AmqpError, ReplyCode};

/// What a client sends first and what a server answers to anything else.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";
/// The octet that ends every frame.
pub const FRAME_END: u8 = 0xCE;
/// Octets around a payload: type, channel, size, end.
pub const FRAME_OVERHEAD_BYTES: usize = 8;
/// Octets in front of a payload.
const FRAME_HEADER_BYTES: usize = 7;
/// The smallest frame size that may be agreed on (the standard's 4096 is too small for some tokens).
pub const FRAME_MAX_LOWEST_BYTES: u32 = 8192;
/// Frame sizes count the overhead, but some clients forget it; so much more is let pass.
const FRAME_SLACK_BYTES: usize = 8;

/// Type octet of a method frame.
pub const TYPE_METHOD: u8 = 1;
/// Type octet of a content header frame.
pub const TYPE_HEADER: u8 = 2;
/// Type octet of a content body frame.
pub const TYPE_BODY: u8 = 3;
/// Type octet of a heartbeat frame.
pub const TYPE_HEARTBEAT: u8 = 8;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A method.
    Method,
    /// A content header.
    Header,
    /// A part of a body.
    Body,
    /// Nothing: a sign of life.
    Heartbeat,
}

/// One frame, borrowed from the bytes it came in.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// What it carries.
    pub kind: FrameKind,
    /// The channel it belongs to, 0 for the connection itself.
    pub channel: u16,
    source: &'a Bytes,
    start: usize,
    end: usize,
}

impl<'a> Frame<'a> {
    /// A frame whose payload was kept before.
    pub fn of_kept(kind: FrameKind, channel: u16, payload: &'a Bytes) -> Self {
        Self {
            kind,
            channel,
            source: payload,
            start: 0,
            end: payload.len(),
        }
    }

    /// The payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.source[self.start..self.end]
    }

    /// The payload from octet `from` on, to be kept: shares the bytes it came in.
    #[inline]
    pub fn keep(&self, from: usize) -> Bytes {
        self.source
            .slice((self.start + from).min(self.end)..self.end)
    }

    /// A part of the payload, to be kept. `part` must come from `payload`.
    #[inline]
    pub fn keep_part(&self, part: &'a [u8]) -> Bytes {
        self.source.slice_ref(part)
    }
}

/// The header in front of a payload.
struct FrameHeader {
    kind: FrameKind,
    channel: u16,
    payload_bytes: usize,
}

/// Cuts chunks of a byte stream into frames.
#[derive(Debug)]
pub struct FrameReader {
    /// What is left of the latest chunk, from `at` on.
    chunk: Bytes,
    at: usize,
    /// The beginning of a frame that spans chunks; empty when `chunk` begins with a frame.
    partial: BytesMut,
    /// The latest frame that spanned chunks, once whole.
    gathered: Bytes,
    frame_max_bytes: usize,
}

impl FrameReader {
    /// A reader that refuses frames above `frame_max_bytes` octets (overhead included).
    pub fn new(frame_max_bytes: u32) -> Self {
        Self {
            chunk: Bytes::new(),
            at: 0,
            partial: BytesMut::new(),
            gathered: Bytes::new(),
            frame_max_bytes: frame_max_bytes as usize,
        }
    }

    /// Sets the largest frame, after tuning.
    pub fn set_frame_max(&mut self, frame_max_bytes: u32) {
        self.frame_max_bytes = frame_max_bytes as usize;
    }

    /// Adds a chunk. The frames of earlier chunks should have been taken by `next_frame` before.
    pub fn feed(&mut self, chunk: Bytes) {
        if self.at < self.chunk.len() {
            // Cold: whoever stopped taking frames early gets the rest again, in order.
            let mut joined = BytesMut::from(&self.chunk[self.at..]);
            joined.extend_from_slice(&chunk);
            self.chunk = joined.freeze();
        } else {
            self.chunk = chunk;
        }
        self.at = 0;
    }

    /// Octets taken in that no frame has been made of yet.
    pub fn pending_bytes(&self) -> usize {
        self.partial.len() + self.chunk.len() - self.at
    }

    /// Takes the 8 octets of the protocol header, once they are all there.
    ///
    /// # Errors
    /// The octets so far, when they cannot become `PROTOCOL_HEADER`: answer with it and close
    /// (AMQP 0-9-1 section 4.2.2).
    pub fn protocol_header(&mut self) -> Result<bool, BadProtocolHeader> {
        let missing = PROTOCOL_HEADER.len() - self.partial.len();
        self.gather(missing);
        if !PROTOCOL_HEADER.starts_with(&self.partial) {
            return Err(BadProtocolHeader);
        }
        let whole = self.partial.len() == PROTOCOL_HEADER.len();
        if whole {
            self.partial = BytesMut::new();
        }
        Ok(whole)
    }

    /// The next whole frame, or `None` until another chunk comes.
    ///
    /// # Errors
    /// 501 for an unknown type, a size above the limit or a wrong end octet, 505 for a heartbeat on a
    /// channel. Nothing can be read after an error.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, AmqpError> {
        if !self.partial.is_empty() {
            return self.next_gathered();
        }
        if self.at == self.chunk.len() {
            self.let_go();
            return Ok(None);
        }
        let rest = &self.chunk[self.at..];
        let Some(header) = self.header_of(rest)? else {
            return self.stash();
        };
        let Some(&end) = rest.get(FRAME_HEADER_BYTES + header.payload_bytes) else {
            return self.stash();
        };
        if end != FRAME_END {
            return Err(bad_end(end));
        }
        let start = self.at + FRAME_HEADER_BYTES;
        let end = start + header.payload_bytes;
        self.at = end + 1;
        Ok(Some(Frame {
            kind: header.kind,
            channel: header.channel,
            source: &self.chunk,
            start,
            end,
        }))
    }

    /// Moves up to `n` octets from the chunk to the partial frame.
    fn gather(&mut self, n: usize) {
        let n = n.min(self.chunk.len() - self.at);
        self.partial
            .extend_from_slice(&self.chunk[self.at..self.at + n]);
        self.at += n;
    }

    /// The frame that spans chunks, when the latest chunk completes it.
    fn next_gathered(&mut self) -> Result<Option<Frame<'_>>, AmqpError> {
        self.gather(FRAME_HEADER_BYTES.saturating_sub(self.partial.len()));
        let Some(header) = self.header_of(&self.partial)? else {
            self.let_go();
            return Ok(None);
        };
        let total = FRAME_HEADER_BYTES + header.payload_bytes + 1;
        let missing = total - self.partial.len();
        self.partial.reserve(missing);
        self.gather(missing);
        if self.partial.len() < total {
            self.let_go();
            return Ok(None);
        }
        self.gathered = std::mem::take(&mut self.partial).freeze();
        let end = total - 1;
        if self.gathered[end] != FRAME_END {
            return Err(bad_end(self.gathered[end]));
        }
        Ok(Some(Frame {
            kind: header.kind,
            channel: header.channel,
            source: &self.gathered,
            start: FRAME_HEADER_BYTES,
            end,
        }))
    }

    /// Keeps the beginning of a frame until the next chunk.
    fn stash(&mut self) -> Result<Option<Frame<'_>>, AmqpError> {
        let all = self.chunk.len() - self.at;
        self.gather(all);
        self.let_go();
        Ok(None)
    }

    /// Lets go of what is used up: while more is waited for, no read buffer is kept alive.
    fn let_go(&mut self) {
        self.chunk = Bytes::new();
        self.at = 0;
        self.gathered = Bytes::new();
    }

    fn header_of(&self, bytes: &[u8]) -> Result<Option<FrameHeader>, AmqpError> {
        let Some(&[kind, c0, c1, s0, s1, s2, s3]) = bytes.first_chunk::<FRAME_HEADER_BYTES>()
        else {
            // A wrong type is known from the first octet on; no need to wait for more.
            return match bytes.first() {
                Some(&kind) => frame_kind(kind).map(|_| None),
                None => Ok(None),
            };
        };
        let kind = frame_kind(kind)?;
        let channel = u16::from_be_bytes([c0, c1]);
        let payload_bytes = u32::from_be_bytes([s0, s1, s2, s3]) as usize;
        if payload_bytes + FRAME_OVERHEAD_BYTES > self.frame_max_bytes + FRAME_SLACK_BYTES {
            return Err(AmqpError::connection(
                ReplyCode::FRAME_ERROR,
                format!(
                    "frame of {payload_bytes} octets, frame_max is {}",
                    self.frame_max_bytes
                ),
            ));
        }
        if kind == FrameKind::Heartbeat {
            // AMQP 0-9-1 section 4.2.7
            if channel != 0 {
                return Err(AmqpError::connection(
                    ReplyCode::UNEXPECTED_FRAME,
                    "heartbeat on a channel other than 0",
                ));
            }
            if payload_bytes != 0 {
                return Err(AmqpError::connection(
                    ReplyCode::FRAME_ERROR,
                    "heartbeat with a payload",
                ));
            }
        }
        Ok(Some(FrameHeader {
            kind,
            channel,
            payload_bytes,
        }))
    }
}

/// The first octets are not those of AMQP 0-9-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the protocol header of AMQP 0-9-1")]
pub struct BadProtocolHeader;

#[inline]
fn frame_kind(octet: u8) -> Result<FrameKind, AmqpError> {
    match octet {
        TYPE_METHOD => Ok(FrameKind::Method),
        TYPE_HEADER => Ok(FrameKind::Header),
        TYPE_BODY => Ok(FrameKind::Body),
        TYPE_HEARTBEAT => Ok(FrameKind::Heartbeat),
        other => Err(AmqpError::connection(
            ReplyCode::FRAME_ERROR,
            format!("unknown frame type {other}"),
        )),
    }
}

#[cold]
fn bad_end(octet: u8) -> AmqpError {
    AmqpError::connection(
        ReplyCode::FRAME_ERROR,
        format!("frame ends with 0x{octet:02x}, not 0xce"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![kind];
        out.extend(channel.to_be_bytes());
        out.extend((payload.len() as u32).to_be_bytes());
        out.extend(payload);
        out.push(FRAME_END);
        out
    }

    fn code(bytes: Vec<u8>) -> ReplyCode {
        let mut reader = FrameReader::new(8192);
        reader.feed(bytes.into());
        reader.next_frame().unwrap_err().code
    }

    #[test]
    fn malformed_frames_4_2_3() {
        assert_eq!(code(vec![4]), ReplyCode::FRAME_ERROR);
        assert_eq!(
            code(vec![1, 0, 1, 0, 0, 0, 1, 9, 0xCD]),
            ReplyCode::FRAME_ERROR
        );
        assert_eq!(
            code(vec![3, 0, 1, 0xff, 0xff, 0xff, 0xff]),
            ReplyCode::FRAME_ERROR
        );
        assert_eq!(
            code(frame(TYPE_BODY, 1, &[0; 8193])),
            ReplyCode::FRAME_ERROR
        );
        assert_eq!(code(frame(TYPE_HEARTBEAT, 0, b"x")), ReplyCode::FRAME_ERROR);
        assert_eq!(
            code(frame(TYPE_HEARTBEAT, 1, b"")),
            ReplyCode::UNEXPECTED_FRAME
        );
    }

    #[test]
    fn a_whole_frame_is_not_copied() {
        let chunk = Bytes::from(frame(TYPE_BODY, 7, b"hello"));
        let at = chunk.as_ptr();
        let mut reader = FrameReader::new(8192);
        reader.feed(chunk);
        let frame = reader.next_frame().unwrap().unwrap();
        assert_eq!((frame.kind, frame.channel), (FrameKind::Body, 7));
        assert_eq!(frame.payload(), b"hello");
        assert_eq!(frame.keep(0).as_ptr(), at.wrapping_add(7));
        assert_eq!(frame.keep_part(&frame.payload()[1..3]), &b"el"[..]);
        assert_eq!(frame.keep(99), &b""[..]);
    }

    #[test]
    fn a_reader_that_waits_keeps_no_chunk() {
        let whole = frame(TYPE_METHOD, 1, b"hello");
        for cut in [whole.len(), 3, whole.len() - 1] {
            let mut reader = FrameReader::new(8192);
            let chunk = Bytes::from(whole.clone());
            for part in [chunk.slice(..cut), chunk.slice(cut..)] {
                reader.feed(part);
                while reader.next_frame().unwrap().is_some() {}
            }
            assert!(chunk.is_unique(), "cut at {cut}");
        }
    }

    #[test]
    fn the_protocol_header_is_known_as_soon_as_it_is_wrong_4_2_2() {
        let mut reader = FrameReader::new(8192);
        for octet in &PROTOCOL_HEADER[..7] {
            reader.feed(Bytes::copy_from_slice(&[*octet]));
            assert_eq!(reader.protocol_header(), Ok(false));
        }
        reader.feed(Bytes::from_static(&[1, 1]));
        assert_eq!(reader.protocol_header(), Ok(true));
        assert_eq!(reader.pending_bytes(), 1);

        let mut reader = FrameReader::new(8192);
        reader.feed(Bytes::from_static(b"GET / HTTP/1.1"));
        assert_eq!(reader.protocol_header(), Err(BadProtocolHeader));
    }

    proptest! {
        #[test]
        fn any_fragmentation_gives_the_same_frames(
            frames in prop::collection::vec((prop_oneof![Just(1u8), Just(2), Just(3)], any::<u16>(), prop::collection::vec(any::<u8>(), 0..40)), 1..8),
            cuts in prop::collection::vec(1usize..30, 1..40),
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(|(k, c, p)| frame(*k, *c, p)).collect();
            let mut reader = FrameReader::new(8192);
            let mut seen = Vec::new();
            let mut rest = &stream[..];
            let mut cut = cuts.iter().cycle();
            while !rest.is_empty() {
                let (head, tail) = rest.split_at((*cut.next().unwrap()).min(rest.len()));
                rest = tail;
                reader.feed(Bytes::copy_from_slice(head));
                while let Some(f) = reader.next_frame().unwrap() {
                    seen.push((f.kind as u8 + 1, f.channel, f.payload().to_vec()));
                }
            }
            prop_assert_eq!(reader.pending_bytes(), 0);
            prop_assert_eq!(seen, frames);
        }

        #[test]
        fn random_bytes_never_panic(chunks in prop::collection::vec(prop::collection::vec(prop_oneof![0u8..9, any::<u8>(), Just(FRAME_END)], 0..40), 0..10)) {
            let mut reader = FrameReader::new(8192);
            for chunk in chunks {
                reader.feed(chunk.into());
                loop {
                    match reader.next_frame() {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => return Ok(()),
                    }
                }
            }
        }
    }
}
