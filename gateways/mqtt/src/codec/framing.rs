//! From reads to packets: the fixed header, and the carry of a packet that a read cut in two.
//!
//! A read's worth of bytes comes in as one [`Bytes`]; whole packets are sliced out of it without
//! a copy. Only the piece of a packet that the read cut off is copied, and only as far as that
//! packet goes. The carry grows with what was really received, never with what a length claims.

use bytes::{Buf, Bytes, BytesMut};

use super::decode;
use super::decode_connect;
use super::error::DecodeError;
use super::packet::{Packet, PacketType, QoS, Version};
use super::read::{VAR_INT_TOO_LONG, VarInt, var_int};

/// The most that the remaining length field can say.
pub const REMAINING_LENGTH_MAX: usize = 268_435_455;

/// How large a packet may be unless configured, in bytes, fixed header included.
pub const PACKET_BYTES_MAX_DEFAULT: usize = 1024 * 1024;

/// Cuts a connection's bytes into packets.
#[derive(Debug)]
pub struct Decoder {
    /// Set by CONNECT; nothing else is a packet before.
    version: Option<Version>,
    packet_bytes_max: usize,
    chunk: Bytes,
    /// The front of a packet whose rest has not come. Empty, or shorter than its packet.
    carry: BytesMut,
}

/// What a fixed header says.
#[derive(Clone, Copy)]
struct FixedHeader {
    packet_type: PacketType,
    flags: u8,
    header_bytes: usize,
    total_bytes: usize,
    minimal: bool,
}

impl Decoder {
    /// A decoder that expects CONNECT and refuses packets over `packet_bytes_max`.
    pub fn new(packet_bytes_max: usize) -> Decoder {
        Decoder {
            version: None,
            packet_bytes_max,
            chunk: Bytes::new(),
            carry: BytesMut::new(),
        }
    }

    /// Reads as of now this version, as a client does that has sent CONNECT itself.
    pub const fn set_version(&mut self, version: Version) {
        self.version = Some(version);
    }

    /// The version that CONNECT asked for, once it came; also when that CONNECT was refused.
    pub const fn version(&self) -> Option<Version> {
        self.version
    }

    /// Takes a read's worth of bytes. Call [`Decoder::next_packet`] until it gives `None` before
    /// the next one; what is left over otherwise is joined by a copy.
    pub fn feed(&mut self, chunk: Bytes) {
        if self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            let mut joined = BytesMut::with_capacity(self.chunk.len() + chunk.len());
            joined.extend_from_slice(&self.chunk);
            joined.extend_from_slice(&chunk);
            self.chunk = joined.freeze();
        }
    }

    /// Largest packet taken, in bytes.
    pub const fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }

    /// Bytes held: of a packet that is not complete, and of packets not yet taken.
    pub fn held_bytes(&self) -> usize {
        self.carry.len() + self.chunk.len()
    }

    /// The next whole packet, or `None` until more bytes come.
    ///
    /// # Errors
    /// The first rule that the bytes break. The decoder must not be used after that.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, DecodeError> {
        if self.carry.is_empty() {
            let Some(header) = self.fixed_header(&self.chunk)? else {
                return Ok(self.carry_rest());
            };
            if header.total_bytes > self.chunk.len() {
                return Ok(self.carry_rest());
            }
            let bytes = self.chunk.split_to(header.total_bytes);
            return self.decode(header, bytes).map(Some);
        }
        // A fixed header is at most 5 bytes, so this goes round at most 5 times.
        loop {
            let Some(header) = self.fixed_header(&self.carry)? else {
                if self.chunk.is_empty() {
                    return Ok(None);
                }
                self.carry.extend_from_slice(&self.chunk.split_to(1));
                continue;
            };
            let missing = header.total_bytes - self.carry.len();
            let piece = self.chunk.split_to(missing.min(self.chunk.len()));
            self.carry.extend_from_slice(&piece);
            if self.carry.len() < header.total_bytes {
                return Ok(None);
            }
            let bytes = self.carry.split().freeze();
            return self.decode(header, bytes).map(Some);
        }
    }

    /// Keeps the cut-off front of a packet, so that the read's buffer is let go.
    fn carry_rest(&mut self) -> Option<Packet> {
        self.carry.extend_from_slice(&self.chunk);
        self.chunk = Bytes::new();
        None
    }

    /// The flags that say something in packets other than PUBLISH. 3.1 has DUP in each packet that
    /// is acknowledged, and leaves undefined what it does not use.
    const fn meant_flags(&self) -> u8 {
        match self.version {
            Some(Version::V31) => 0b0110,
            Some(Version::V311 | Version::V5) | None => 0b1111,
        }
    }

    /// What the front of `bytes` says; `None` if the header is not complete. What can be refused
    /// by the header alone is refused before the rest is waited for.
    #[inline]
    fn fixed_header(&self, bytes: &[u8]) -> Result<Option<FixedHeader>, DecodeError> {
        let Some((&first, rest)) = bytes.split_first() else {
            return Ok(None);
        };
        let flags = first & 0x0F;
        let packet_type = PacketType::from_number(first >> 4).ok_or(DecodeError::malformed(
            "MQTT-2.1.2",
            "packet type 0 is reserved",
        ))?;
        // [MQTT-3.1.0-1]
        if self.version.is_none() && packet_type != PacketType::Connect {
            return Err(DecodeError::NotConnect);
        }
        if self.version.is_some_and(|version| !version.is_v5()) && packet_type == PacketType::Auth {
            // 3.1.1 section 2.2.1: type 15 is reserved.
            return Err(DecodeError::malformed(
                "MQTT-2.1.2",
                "packet type 15 is reserved",
            ));
        }
        match packet_type.fixed_flags() {
            // [MQTT-2.1.3-1]; PUBREL [MQTT-3.6.1-1], SUBSCRIBE [MQTT-3.8.1-1],
            // UNSUBSCRIBE [MQTT-3.10.1-1], DISCONNECT [MQTT-3.14.1-1], AUTH [MQTT-3.15.1-1].
            Some(fixed) if fixed != flags & self.meant_flags() => {
                return Err(DecodeError::malformed(
                    "MQTT-2.1.3-1",
                    "reserved flags are set",
                ));
            }
            Some(_) => {}
            None => check_publish_flags(flags)?,
        }
        let (value, length_bytes, minimal) = match var_int(rest) {
            VarInt::Value {
                value,
                bytes,
                minimal,
            } => (value as usize, bytes, minimal),
            VarInt::Incomplete => return Ok(None),
            VarInt::TooLong => return Err(VAR_INT_TOO_LONG),
        };
        let header_bytes = 1 + length_bytes;
        let total_bytes = header_bytes + value;
        if total_bytes > self.packet_bytes_max {
            return Err(DecodeError::TooLarge {
                bytes: total_bytes,
                limit_bytes: self.packet_bytes_max,
            });
        }
        Ok(Some(FixedHeader {
            packet_type,
            flags,
            header_bytes,
            total_bytes,
            minimal,
        }))
    }

    #[inline]
    fn decode(&mut self, header: FixedHeader, mut bytes: Bytes) -> Result<Packet, DecodeError> {
        bytes.advance(header.header_bytes);
        let version = match self.version {
            Some(version) => version,
            // CONNECT, as the fixed header has shown. Even a broken one is answered in its version.
            None => *self
                .version
                .insert(decode_connect::connect_version(&bytes)?),
        };
        // 3.1.1 does not ask for the shortest form of the length.
        if !header.minimal && version == Version::V5 {
            return Err(LONG_LENGTH);
        }
        decode::body(header.packet_type, header.flags, bytes, version)
    }
}

const LONG_LENGTH: DecodeError =
    DecodeError::malformed("MQTT-1.5.5-1", "the remaining length is longer than needed");

/// The flags of PUBLISH: QoS 3 [MQTT-3.3.1-4] and DUP at QoS 0 [MQTT-3.3.1-2] do not exist.
#[inline]
fn check_publish_flags(flags: u8) -> Result<(), DecodeError> {
    let dup = flags & 0b1000 != 0;
    match QoS::from_number((flags >> 1) & 0b11) {
        None => Err(DecodeError::malformed("MQTT-3.3.1-4", "QoS 3")),
        Some(QoS::AtMostOnce) if dup => Err(DecodeError::protocol(
            "MQTT-3.3.1-2",
            "DUP in a QoS 0 message",
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected(limit_bytes: usize) -> Decoder {
        let mut decoder = Decoder::new(limit_bytes);
        decoder.set_version(Version::V5);
        decoder
    }

    fn first(decoder: &mut Decoder, bytes: &'static [u8]) -> Result<Option<Packet>, DecodeError> {
        decoder.feed(Bytes::from_static(bytes));
        decoder.next_packet()
    }

    #[test]
    fn anything_before_connect_is_refused_by_its_first_byte_mqtt_3_1_0_1() {
        let mut decoder = Decoder::new(100);
        assert_eq!(first(&mut decoder, &[0xC0]), Err(DecodeError::NotConnect));
    }

    #[test]
    fn a_packet_over_the_limit_is_refused_by_its_header() {
        let mut decoder = connected(100);
        assert_eq!(
            first(&mut decoder, &[0x30, 99]),
            Err(DecodeError::TooLarge {
                bytes: 101,
                limit_bytes: 100
            })
        );
    }

    #[test]
    fn reserved_flags_are_malformed_mqtt_2_1_3_1() {
        for bytes in [&[0xC1][..], &[0x80], &[0x36], &[0x00], &[0x60]] {
            let mut decoder = connected(100);
            decoder.feed(Bytes::copy_from_slice(bytes));
            assert!(decoder.next_packet().is_err(), "{bytes:02X?}");
        }
        let mut decoder = connected(100);
        assert!(matches!(
            first(&mut decoder, &[0x38]),
            Err(DecodeError::Protocol { .. })
        ));
    }

    #[test]
    fn packets_of_one_read_share_its_buffer() {
        let read =
            Bytes::from_static(&[0x30, 5, 0, 1, b'a', 0, b'x', 0x30, 5, 0, 1, b'b', 0, b'y']);
        let mut decoder = connected(100);
        decoder.feed(read.clone());
        for index in 0..2 {
            let Ok(Some(Packet::Publish(publish))) = decoder.next_packet() else {
                panic!("a PUBLISH was sent");
            };
            assert_eq!(publish.payload.as_ptr(), read[index * 7 + 6..].as_ptr());
        }
        assert_eq!(decoder.next_packet(), Ok(None));
        assert_eq!(decoder.held_bytes(), 0);
    }

    #[test]
    fn the_remaining_length_has_the_shortest_form_in_5_0_mqtt_1_5_5_1() {
        let ping = [0xC0, 0x80, 0x00];
        let mut decoder = connected(100);
        assert_eq!(first(&mut decoder, &[0xC0, 0x80, 0x00]), Err(LONG_LENGTH));
        let mut older = Decoder::new(100);
        older.set_version(Version::V311);
        older.feed(Bytes::copy_from_slice(&ping));
        assert_eq!(older.next_packet(), Ok(Some(Packet::PingReq)));
    }
}
