//! Frames appended to what is to be sent.
//!
//! Small frames are gathered in one buffer; a large body is not copied but stands as a piece of its
//! own, so that the driver writes all of it with one `writev` and everyone who receives a body shares
//! it. Owns the layout of frames that go out; never decides what is sent.

use anabranch_core::gateway::SendBuffer;
use bytes::{BufMut, Bytes, BytesMut};

use super::frame::{
    FRAME_END, FRAME_OVERHEAD_BYTES, TYPE_BODY, TYPE_HEADER, TYPE_HEARTBEAT, TYPE_METHOD,
};
use super::method::{BasicAck, Wire};
use super::properties::CLASS_BASIC;

/// Appending frames to a buffer of what is to be sent.
pub trait Batch {
    /// Appends a heartbeat.
    fn heartbeat(&mut self);

    /// Appends a method frame.
    fn method<M: Wire>(&mut self, channel: u16, method: &M);

    /// Appends `basic.ack`.
    fn ack(&mut self, channel: u16, delivery_tag: u64, multiple: bool) {
        self.method(
            channel,
            &BasicAck {
                delivery_tag,
                multiple,
            },
        );
    }

    /// Appends a content header and body frames no larger than `frame_max_bytes` (overhead included).
    /// `properties` are raw flags and list.
    fn content(&mut self, channel: u16, properties: &[u8], body: &Bytes, frame_max_bytes: u32);
}

impl Batch for SendBuffer {
    fn heartbeat(&mut self) {
        self.tail()
            .put_slice(&[TYPE_HEARTBEAT, 0, 0, 0, 0, 0, 0, FRAME_END]);
    }

    #[inline]
    fn method<M: Wire>(&mut self, channel: u16, method: &M) {
        let tail = self.tail();
        let start = begin(tail, TYPE_METHOD, channel);
        method.write(tail);
        end(tail, start);
    }

    #[inline]
    fn content(&mut self, channel: u16, properties: &[u8], body: &Bytes, frame_max_bytes: u32) {
        let tail = self.tail();
        let start = begin(tail, TYPE_HEADER, channel);
        tail.put_u16(CLASS_BASIC);
        tail.put_u16(0);
        tail.put_u64(body.len() as u64);
        tail.put_slice(properties);
        end(tail, start);
        let part_max = (frame_max_bytes as usize)
            .saturating_sub(FRAME_OVERHEAD_BYTES)
            .max(1);
        if body.len() <= part_max {
            if !body.is_empty() {
                body_frame(self, channel, body);
            }
            return;
        }
        let mut at = 0;
        while at < body.len() {
            let end = body.len().min(at + part_max);
            body_frame(self, channel, &body.slice(at..end));
            at = end;
        }
    }
}

#[inline]
fn body_frame(out: &mut SendBuffer, channel: u16, part: &Bytes) {
    let tail = out.tail();
    tail.put_u8(TYPE_BODY);
    tail.put_u16(channel);
    tail.put_u32(part.len() as u32);
    out.put_payload(part);
    out.tail().put_u8(FRAME_END);
}

/// Begins a frame whose size is not known yet; gives where it stands in the buffer.
#[inline]
fn begin(tail: &mut BytesMut, kind: u8, channel: u16) -> usize {
    let start = tail.len();
    tail.put_u8(kind);
    tail.put_u16(channel);
    tail.put_u32(0);
    start
}

/// Ends a frame: fills in its size.
#[inline]
fn end(tail: &mut BytesMut, start: usize) {
    let size = (tail.len() - start - 7) as u32;
    tail[start + 3..start + 7].copy_from_slice(&size.to_be_bytes());
    tail.put_u8(FRAME_END);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::field::ShortStr;
    use crate::wire::frame::{FrameKind, FrameReader};
    use crate::wire::method::{BasicDeliver, Method};
    use crate::wire::properties::{CONTENT_HEADER_BYTES, ContentHeader, EMPTY};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn deliver() -> BasicDeliver<'static> {
        BasicDeliver {
            consumer_tag: ShortStr::cut(b"c"),
            delivery_tag: 7,
            redelivered: true,
            exchange: ShortStr::cut(b"e"),
            routing_key: ShortStr::cut(b"k"),
        }
    }

    fn pieces(mut out: SendBuffer) -> VecDeque<Bytes> {
        let mut to = VecDeque::new();
        out.drain_into(&mut to);
        to
    }

    #[test]
    fn a_large_body_is_a_piece_of_its_own_and_not_copied() {
        let body = Bytes::from(vec![7u8; 4096]);
        let mut out = SendBuffer::default();
        out.method(1, &deliver());
        out.content(1, EMPTY, &body, 131_072);
        let pieces = pieces(out);
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[1].as_ptr(), body.as_ptr());
    }

    #[test]
    fn small_deliveries_share_one_piece() {
        let mut out = SendBuffer::default();
        for _ in 0..10 {
            out.method(1, &deliver());
            out.content(1, EMPTY, &Bytes::from_static(b"hello"), 131_072);
        }
        out.ack(1, 3, true);
        assert_eq!(pieces(out).len(), 1);
    }

    proptest! {
        #[test]
        fn what_is_delivered_is_read_again(len in 0usize..40_000, frame_max in 8192u32..20_000) {
            let body = Bytes::from((0..len).map(|i| i as u8).collect::<Vec<_>>());
            let mut out = SendBuffer::default();
            out.heartbeat();
            out.method(5, &deliver());
            out.content(5, EMPTY, &body, frame_max);
            let mut reader = FrameReader::new(frame_max);
            reader.feed(out.take_all().into());
            prop_assert_eq!(reader.next_frame().unwrap().unwrap().kind, FrameKind::Heartbeat);
            let method = reader.next_frame().unwrap().unwrap();
            prop_assert_eq!(Method::decode(method.payload()), Ok(Method::BasicDeliver(deliver())));
            let header = reader.next_frame().unwrap().unwrap();
            prop_assert_eq!(ContentHeader::decode(header.payload()).unwrap().body_bytes, len as u64);
            prop_assert_eq!(&header.payload()[CONTENT_HEADER_BYTES..], EMPTY);
            let mut got = Vec::new();
            while let Some(part) = reader.next_frame().unwrap() {
                prop_assert_eq!((part.kind, part.channel), (FrameKind::Body, 5));
                prop_assert!(part.payload().len() + FRAME_OVERHEAD_BYTES <= frame_max as usize);
                got.extend_from_slice(part.payload());
            }
            prop_assert_eq!(got, body);
        }
    }
}
