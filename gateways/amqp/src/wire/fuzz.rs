//! One entry point that leads arbitrary bytes through every decoder.
//!
//! Used by the fuzz target in `fuzz/` and by the test that replays its corpus. Owns nothing else.

use bytes::{Bytes, BytesMut};

use super::frame::{FrameKind, FrameReader, PROTOCOL_HEADER};
use super::method::Method;
use super::properties::{CONTENT_HEADER_BYTES, ContentHeader, Properties};

/// Reads `data` as a client's byte stream: an optional protocol header, then frames, their methods,
/// content headers and properties. What decodes is encoded again and must come out the same.
///
/// # Panics
/// Only when encoding what was decoded gives something that decodes to another value.
pub fn fuzz_decode(data: &[u8]) {
    let mut reader = FrameReader::new(131_072);
    let frames = data.strip_prefix(&PROTOCOL_HEADER).unwrap_or(data);
    // Two chunks, so that gathering is walked through as well.
    let (first, second) = frames.split_at(frames.len() / 2);
    for chunk in [first, second] {
        reader.feed(Bytes::copy_from_slice(chunk));
        while let Ok(Some(frame)) = reader.next_frame() {
            match frame.kind {
                FrameKind::Method => check_method(frame.payload()),
                FrameKind::Header => check_header(frame.payload()),
                FrameKind::Body | FrameKind::Heartbeat => {}
            }
        }
    }
    check_method(data);
    check_header(data);
}

fn check_method(payload: &[u8]) {
    let _ = Method::decode_from_client(payload);
    if let Ok(method) = Method::decode(payload) {
        let mut out = BytesMut::with_capacity(payload.len());
        method.write(&mut out);
        // Unused bits of a flag octet may differ; the value may not (compared as text, since a table
        // may hold a number that does not equal itself).
        let again = Method::decode(&out).map(|again| format!("{again:?}"));
        assert_eq!(again, Ok(format!("{method:?}")));
    }
}

fn check_header(payload: &[u8]) {
    if ContentHeader::decode(payload).is_ok() {
        let raw = &payload[CONTENT_HEADER_BYTES..];
        if let Ok(properties) = Properties::walk(raw) {
            assert_eq!(properties.to_bytes(), raw, "a walk loses nothing");
            let _ = (properties.summary(), properties.expiration_ms());
        }
    }
}
