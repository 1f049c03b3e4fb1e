//! A message as AMQP publishes it: basic.publish, content header and body.
//!
//! Owns their encoding. Never sends. Next: `client.rs`.

use super::codec::{FRAME_HEAD_BYTES, frame_type, method, put_frame, put_method, put_short_string};
use crate::numbers::Numbers;

/// basic.publish, header and body encoded once, of which each message needs its payload and
/// perhaps digits of its routing key patched only.
pub struct PublishTemplate {
    bytes: Vec<u8>,
    payload_at: usize,
    payload_bytes: usize,
    key_end: usize,
    numbers: Option<Numbers>,
}

impl PublishTemplate {
    /// A template that publishes to `exchange` with `routing_key` on channel 1; `payload` (which
    /// must fit one frame) is the filler.
    pub fn new(exchange: &str, routing_key: &str, persistent: bool, payload: &[u8]) -> Self {
        let mut bytes = Vec::new();
        put_method(&mut bytes, 1, method::BASIC_PUBLISH, |out| {
            out.extend_from_slice(&[0, 0]);
            put_short_string(out, exchange);
            put_short_string(out, routing_key);
            out.push(0);
        });
        // The bits and the frame's end follow the key.
        let key_end = bytes.len() - 2;
        put_frame(&mut bytes, frame_type::HEADER, 1, |out| {
            out.extend_from_slice(&[0, 60, 0, 0]);
            out.extend_from_slice(&(payload.len() as u64).to_be_bytes());
            // Property flags: delivery-mode alone.
            out.extend_from_slice(&[0x10, 0x00, if persistent { 2 } else { 1 }]);
        });
        let payload_at = bytes.len() + FRAME_HEAD_BYTES;
        put_frame(&mut bytes, frame_type::BODY, 1, |out| {
            out.extend_from_slice(payload)
        });
        Self {
            bytes,
            payload_at,
            payload_bytes: payload.len(),
            key_end,
            numbers: None,
        }
    }

    /// Spreads the messages over `count` routing keys: the key's last four characters are
    /// replaced.
    pub fn numbered(mut self, first: u64, count: u64) -> Self {
        self.numbers = Some(Numbers::new(self.key_end, first, count));
        self
    }

    /// Appends message `sequence` and gives its payload to be filled in.
    #[inline]
    pub fn append<'o>(&self, out: &'o mut Vec<u8>, sequence: u64) -> &'o mut [u8] {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let message = &mut out[start..];
        if let Some(numbers) = &self.numbers {
            numbers.write(message, sequence);
        }
        &mut message[self.payload_at..][..self.payload_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp::codec::{Frame, decode};

    fn frames(mut bytes: &[u8]) -> Vec<Frame<'_>> {
        let mut found = Vec::new();
        while let Some((frame, size)) = decode(bytes).unwrap() {
            found.push(frame);
            bytes = &bytes[size..];
        }
        assert!(bytes.is_empty());
        found
    }

    #[test]
    fn a_publish_is_method_header_and_body() {
        let template = PublishTemplate::new("amq.topic", "a.b", true, &[0; 5]);
        let mut out = Vec::new();
        template.append(&mut out, 0).copy_from_slice(b"hello");
        let frames = frames(&out);
        assert_eq!(frames[0].kind, frame_type::METHOD);
        assert_eq!(
            frames[0].payload,
            b"\x00\x3C\x00\x28\x00\x00\x09amq.topic\x03a.b\x00"
        );
        // AMQP 0-9-1 4.2.6.1: class, weight, body size, flags, delivery-mode 2
        assert_eq!(
            frames[1].payload,
            b"\x00\x3C\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05\x10\x00\x02"
        );
        assert_eq!(
            frames[2],
            Frame {
                kind: frame_type::BODY,
                payload: b"hello"
            }
        );
    }

    #[test]
    fn the_routing_key_ends_in_the_messages_number() {
        let template = PublishTemplate::new("e", "k.0000", false, b"x").numbered(250, 250);
        let mut out = Vec::new();
        template.append(&mut out, 251);
        assert_eq!(
            frames(&out)[0].payload,
            b"\x00\x3C\x00\x28\x00\x00\x01e\x06k.0251\x00"
        );
    }
}
