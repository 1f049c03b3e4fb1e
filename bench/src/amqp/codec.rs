//! AMQP 0-9-1 frames and methods as bytes, as far as a load generator needs them.
//!
//! Owns encoding and decoding. Never keeps state. Next: `publish.rs`, `script.rs`, `client.rs`.

/// What a client sends first (AMQP 0-9-1 4.2.2).
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";

/// Frame types of AMQP 0-9-1 4.2.3.
pub mod frame_type {
    /// A method.
    pub const METHOD: u8 = 1;
    /// A content header.
    pub const HEADER: u8 = 2;
    /// A part of a content body.
    pub const BODY: u8 = 3;
}

const FRAME_END: u8 = 0xCE;
/// Type, channel and size before a frame's payload.
pub(super) const FRAME_HEAD_BYTES: usize = 7;
/// Frames larger than this are taken for a broken stream.
const FRAME_MAX_BYTES: usize = 1 << 20;

/// A method's class and number in it.
pub type MethodId = (u16, u16);

/// Class and method numbers of AMQP 0-9-1 (and of the confirms extension, class 85).
pub mod method {
    use super::MethodId;

    /// connection.start
    pub const CONNECTION_START: MethodId = (10, 10);
    /// connection.start-ok
    pub const CONNECTION_START_OK: MethodId = (10, 11);
    /// connection.tune
    pub const CONNECTION_TUNE: MethodId = (10, 30);
    /// connection.tune-ok
    pub const CONNECTION_TUNE_OK: MethodId = (10, 31);
    /// connection.open
    pub const CONNECTION_OPEN: MethodId = (10, 40);
    /// connection.open-ok
    pub const CONNECTION_OPEN_OK: MethodId = (10, 41);
    /// connection.close
    pub const CONNECTION_CLOSE: MethodId = (10, 50);
    /// channel.open
    pub const CHANNEL_OPEN: MethodId = (20, 10);
    /// channel.open-ok
    pub const CHANNEL_OPEN_OK: MethodId = (20, 11);
    /// channel.close
    pub const CHANNEL_CLOSE: MethodId = (20, 40);
    /// queue.declare
    pub const QUEUE_DECLARE: MethodId = (50, 10);
    /// queue.declare-ok
    pub const QUEUE_DECLARE_OK: MethodId = (50, 11);
    /// queue.bind
    pub const QUEUE_BIND: MethodId = (50, 20);
    /// queue.bind-ok
    pub const QUEUE_BIND_OK: MethodId = (50, 21);
    /// queue.delete
    pub const QUEUE_DELETE: MethodId = (50, 40);
    /// queue.delete-ok
    pub const QUEUE_DELETE_OK: MethodId = (50, 41);
    /// basic.qos
    pub const BASIC_QOS: MethodId = (60, 10);
    /// basic.qos-ok
    pub const BASIC_QOS_OK: MethodId = (60, 11);
    /// basic.consume
    pub const BASIC_CONSUME: MethodId = (60, 20);
    /// basic.consume-ok
    pub const BASIC_CONSUME_OK: MethodId = (60, 21);
    /// basic.cancel, sent by a broker when the queue is gone
    pub const BASIC_CANCEL: MethodId = (60, 30);
    /// basic.publish
    pub const BASIC_PUBLISH: MethodId = (60, 40);
    /// basic.return
    pub const BASIC_RETURN: MethodId = (60, 50);
    /// basic.deliver
    pub const BASIC_DELIVER: MethodId = (60, 60);
    /// basic.ack
    pub const BASIC_ACK: MethodId = (60, 80);
    /// basic.nack
    pub const BASIC_NACK: MethodId = (60, 120);
    /// confirm.select
    pub const CONFIRM_SELECT: MethodId = (85, 10);
    /// confirm.select-ok
    pub const CONFIRM_SELECT_OK: MethodId = (85, 11);
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame's size is over the limit.
    #[error("frame over {FRAME_MAX_BYTES} bytes")]
    Length,
    /// The octet after the payload is not 0xCE.
    #[error("frame does not end in 0xCE")]
    End,
    /// A field reaches beyond the frame's end.
    #[error("frame ends inside a field")]
    Short,
}

/// One frame; borrows from the read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// One of [`frame_type`], or 8 for a heartbeat.
    pub kind: u8,
    /// What stands between head and end octet.
    pub payload: &'a [u8],
}

/// Reads one frame from the head of `bytes`: the frame and its size, or `None` when more bytes
/// are needed.
///
/// # Errors
/// See [`DecodeError`].
#[inline]
pub fn decode(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, DecodeError> {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEAD_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
    if length > FRAME_MAX_BYTES {
        return Err(DecodeError::Length);
    }
    if rest.len() <= length {
        return Ok(None);
    }
    if rest[length] != FRAME_END {
        return Err(DecodeError::End);
    }
    let frame = Frame {
        kind: head[0],
        payload: &rest[..length],
    };
    Ok(Some((frame, FRAME_HEAD_BYTES + length + 1)))
}

/// Takes fields one after the other from a method or header.
#[derive(Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*head)
    }

    /// An octet.
    #[inline]
    pub fn octet(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take::<1>()?[0])
    }

    /// A 16-bit number.
    #[inline]
    pub fn short(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.take()?))
    }

    /// A 32-bit number.
    #[inline]
    pub fn long(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    /// A 64-bit number.
    #[inline]
    pub fn long_long(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    /// A string of at most 255 bytes.
    #[inline]
    pub fn short_string(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::from(self.octet()?);
        let (text, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(text)
    }
}

/// Appends one frame whose payload `fill` writes.
pub fn put_frame(out: &mut Vec<u8>, kind: u8, channel: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    let size_at = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    let size = (out.len() - size_at - 4) as u32;
    out[size_at..size_at + 4].copy_from_slice(&size.to_be_bytes());
    out.push(FRAME_END);
}

/// Appends a method frame whose arguments `fill` writes.
pub fn put_method(
    out: &mut Vec<u8>,
    channel: u16,
    (class, number): MethodId,
    fill: impl FnOnce(&mut Vec<u8>),
) {
    put_frame(out, frame_type::METHOD, channel, |out| {
        out.extend_from_slice(&class.to_be_bytes());
        out.extend_from_slice(&number.to_be_bytes());
        fill(out);
    });
}

/// Appends a string of at most 255 bytes (longer ones are cut).
pub fn put_short_string(out: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(255)];
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

/// Appends a string with a 32-bit length.
pub fn put_long_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Appends the acknowledgement of one delivery on channel 1.
#[inline]
pub fn basic_ack(out: &mut Vec<u8>, delivery_tag: u64) {
    // Written flat, not through `put_method`: one of these leaves per message.
    let mut frame =
        *b"\x01\x00\x01\x00\x00\x00\x0D\x00\x3C\x00\x50\x00\x00\x00\x00\x00\x00\x00\x00\x00\xCE";
    frame[11..19].copy_from_slice(&delivery_tag.to_be_bytes());
    out.extend_from_slice(&frame);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_flat_ack_is_the_same_as_the_built_one() {
        let mut flat = Vec::new();
        basic_ack(&mut flat, 0x0102_0304_0506_0708);
        let mut built = Vec::new();
        put_method(&mut built, 1, method::BASIC_ACK, |out| {
            out.extend_from_slice(&0x0102_0304_0506_0708u64.to_be_bytes());
            out.push(0);
        });
        assert_eq!(flat, built);
    }

    #[test]
    fn fields_come_out_in_order_and_stop_at_the_end() {
        let mut fields =
            Fields(b"\x07\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x02hi");
        assert_eq!(fields.octet(), Ok(7));
        assert_eq!(fields.short(), Ok(1));
        assert_eq!(fields.long(), Ok(2));
        assert_eq!(fields.long_long(), Ok(3));
        assert_eq!(fields.short_string(), Ok(&b"hi"[..]));
        assert_eq!(fields.octet(), Err(DecodeError::Short));
        assert_eq!(Fields(b"\x03hi").short_string(), Err(DecodeError::Short));
    }

    #[test]
    fn a_wrong_end_octet_is_refused() {
        // AMQP 0-9-1 4.2.3
        assert_eq!(
            decode(b"\x08\x00\x00\x00\x00\x00\x00\xCD"),
            Err(DecodeError::End)
        );
        assert_eq!(
            decode(b"\x01\x00\x00\xFF\x00\x00\x00"),
            Err(DecodeError::Length)
        );
    }

    proptest! {
        #[test]
        fn a_frame_decodes_whole_and_never_in_part(
            kind in 1u8..4, channel in any::<u16>(), body in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut out = Vec::new();
            put_frame(&mut out, kind, channel, |out| out.extend_from_slice(&body));
            prop_assert_eq!(decode(&out), Ok(Some((Frame { kind, payload: &body }, out.len()))));
            for cut in 0..out.len() {
                prop_assert_eq!(decode(&out[..cut]), Ok(None));
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
