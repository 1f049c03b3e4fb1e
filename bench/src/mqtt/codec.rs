//! MQTT packets a broker sends, as far as a load generator needs them.
//!
//! Owns decoding. Never keeps state. Next: `encode.rs`, then `client.rs`.

/// Which edition of the standard a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// MQTT 3.1.1 (protocol level 4).
    V311,
    /// MQTT 5.0 (protocol level 5).
    V5,
}

/// Packets larger than this are taken for a broken stream.
const PACKET_MAX_BYTES: usize = 1 << 20;

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The remaining length has more than four bytes, or is over the limit.
    #[error("packet length is malformed or over {PACKET_MAX_BYTES} bytes")]
    Length,
    /// A field reaches beyond the packet's end.
    #[error("packet of type {0} ends inside a field")]
    Short(u8),
}

/// A packet from a broker; borrows from the read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// CONNACK with its return or reason code, whether the broker has kept a session, and in
    /// MQTT 5 the receive maximum.
    ConnAck {
        code: u8,
        session_present: bool,
        receive_max: Option<u16>,
    },
    /// PUBLISH; the packet id is 0 for QoS 0.
    Publish {
        qos: u8,
        packet_id: u16,
        payload: &'a [u8],
    },
    /// PUBACK with its reason code (0 in MQTT 3.1.1).
    PubAck { packet_id: u16, code: u8 },
    /// PUBREC with its reason code.
    PubRec { packet_id: u16, code: u8 },
    /// PUBREL.
    PubRel { packet_id: u16 },
    /// PUBCOMP.
    PubComp { packet_id: u16 },
    /// SUBACK; `code` is the highest of its codes, so 0x80 and above means one was refused.
    SubAck { code: u8 },
    /// PINGRESP.
    PingResp,
    /// DISCONNECT, MQTT 5 only from a broker.
    Disconnect { code: u8 },
    /// Anything else, by its type.
    Other(u8),
}

/// Reads one packet from the head of `bytes`: the packet and its size, or `None` when more
/// bytes are needed.
///
/// # Errors
/// See [`DecodeError`].
#[inline]
pub fn decode(version: Version, bytes: &[u8]) -> Result<Option<(Packet<'_>, usize)>, DecodeError> {
    let Some((&first, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let Some((length, digits)) = variable_integer(rest)? else {
        return Ok(None);
    };
    let size = 1 + digits + length;
    if size > PACKET_MAX_BYTES {
        return Err(DecodeError::Length);
    }
    if bytes.len() < size {
        return Ok(None);
    }
    let body = &bytes[1 + digits..size];
    let packet = body_of(version, first, body).ok_or(DecodeError::Short(first >> 4))?;
    Ok(Some((packet, size)))
}

#[inline]
fn body_of(version: Version, first: u8, body: &[u8]) -> Option<Packet<'_>> {
    let v5 = version == Version::V5;
    Some(match first >> 4 {
        3 => {
            let qos = (first >> 1) & 3;
            let (_topic, mut rest) = prefixed(body)?;
            let mut packet_id = 0;
            if qos > 0 {
                let (id, after) = u16_at(rest)?;
                packet_id = id;
                rest = after;
            }
            if v5 {
                rest = properties(rest)?.1;
            }
            Packet::Publish {
                qos,
                packet_id,
                payload: rest,
            }
        }
        4 => {
            let (packet_id, code) = acknowledgement(body)?;
            Packet::PubAck { packet_id, code }
        }
        5 => {
            let (packet_id, code) = acknowledgement(body)?;
            Packet::PubRec { packet_id, code }
        }
        6 => Packet::PubRel {
            packet_id: u16_at(body)?.0,
        },
        7 => Packet::PubComp {
            packet_id: u16_at(body)?.0,
        },
        2 => {
            let receive_max = if v5 && body.len() > 2 {
                receive_max(properties(&body[2..])?.0)?
            } else {
                None
            };
            Packet::ConnAck {
                code: *body.get(1)?,
                session_present: body[0] & 1 == 1,
                receive_max,
            }
        }
        9 => {
            let (_id, mut rest) = u16_at(body)?;
            if v5 {
                rest = properties(rest)?.1;
            }
            Packet::SubAck {
                code: rest.iter().copied().max()?,
            }
        }
        13 => Packet::PingResp,
        14 => Packet::Disconnect {
            code: body.first().copied().unwrap_or(0),
        },
        other => Packet::Other(other),
    })
}

/// The packet id and reason code of a PUBACK or PUBREC; success may be left out.
#[inline]
fn acknowledgement(body: &[u8]) -> Option<(u16, u8)> {
    let (packet_id, rest) = u16_at(body)?;
    Some((packet_id, rest.first().copied().unwrap_or(0)))
}

/// A length in MQTT's variable form (1 to 4 bytes): the value and how many bytes it took.
#[inline]
fn variable_integer(bytes: &[u8]) -> Result<Option<(usize, usize)>, DecodeError> {
    let mut value = 0;
    for (index, byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() >= 4 {
        Err(DecodeError::Length)
    } else {
        Ok(None)
    }
}

#[inline]
fn u16_at(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*head), rest))
}

#[inline]
fn prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = u16_at(bytes)?;
    rest.split_at_checked(usize::from(length))
}

#[inline]
fn properties(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, digits) = variable_integer(bytes).ok()??;
    bytes[digits..].split_at_checked(length)
}

/// Finds the receive maximum (0x21) among CONNACK's properties, MQTT 5 table 2-4.
fn receive_max(mut bytes: &[u8]) -> Option<Option<u16>> {
    let mut found = None;
    while let Some((&id, rest)) = bytes.split_first() {
        bytes = match id {
            0x21 => {
                let (value, after) = u16_at(rest)?;
                found = Some(value);
                after
            }
            0x24 | 0x25 | 0x28 | 0x29 | 0x2A => rest.get(1..)?,
            0x13 | 0x22 => rest.get(2..)?,
            0x11 | 0x27 => rest.get(4..)?,
            0x12 | 0x15 | 0x16 | 0x1A | 0x1C | 0x1F => prefixed(rest)?.1,
            0x26 => prefixed(prefixed(rest)?.1)?.1,
            _ => return None,
        };
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(version: Version, bytes: &[u8], expected: Packet<'_>) {
        assert_eq!(decode(version, bytes), Ok(Some((expected, bytes.len()))));
        for cut in 0..bytes.len() {
            assert_eq!(decode(version, &bytes[..cut]), Ok(None), "cut at {cut}");
        }
    }

    #[test]
    fn broker_packets_decode() {
        check(
            Version::V311,
            &[0x20, 2, 0, 5],
            Packet::ConnAck {
                code: 5,
                session_present: false,
                receive_max: None,
            },
        );
        // MQTT 5 section 3.2.2.3: maximum QoS, receive maximum, assigned client identifier
        check(
            Version::V5,
            &[0x20, 12, 0, 0, 9, 0x24, 1, 0x21, 0, 20, 0x12, 0, 1, b'x'],
            Packet::ConnAck {
                code: 0,
                session_present: false,
                receive_max: Some(20),
            },
        );
        check(
            Version::V311,
            &[0x40, 2, 1, 2],
            Packet::PubAck {
                packet_id: 0x102,
                code: 0,
            },
        );
        check(
            Version::V5,
            &[0x40, 3, 1, 2, 0x10],
            Packet::PubAck {
                packet_id: 0x102,
                code: 0x10,
            },
        );
        check(
            Version::V5,
            &[0x50, 3, 1, 2, 0x97],
            Packet::PubRec {
                packet_id: 0x102,
                code: 0x97,
            },
        );
        check(
            Version::V311,
            &[0x62, 2, 1, 2],
            Packet::PubRel { packet_id: 0x102 },
        );
        check(
            Version::V311,
            &[0x70, 2, 1, 2],
            Packet::PubComp { packet_id: 0x102 },
        );
        check(
            Version::V311,
            &[0x90, 4, 0, 1, 0, 0x80],
            Packet::SubAck { code: 0x80 },
        );
        check(
            Version::V5,
            &[0x90, 4, 0, 1, 0, 1],
            Packet::SubAck { code: 1 },
        );
        check(
            Version::V5,
            &[0xE0, 2, 0x8B, 0],
            Packet::Disconnect { code: 0x8B },
        );
        check(Version::V311, &[0xD0, 0], Packet::PingResp);
        check(Version::V311, &[0xB0, 0], Packet::Other(11));
    }

    #[test]
    fn a_fifth_length_byte_is_malformed() {
        // [MQTT-1.5.5] of MQTT 5: at most four bytes
        assert_eq!(
            decode(Version::V5, &[0x30, 0x80, 0x80, 0x80, 0x80, 1]),
            Err(DecodeError::Length)
        );
    }

    #[test]
    fn a_field_beyond_the_packet_is_refused() {
        assert_eq!(
            decode(Version::V311, &[0x30, 2, 0, 9]),
            Err(DecodeError::Short(3))
        );
        assert_eq!(
            decode(Version::V311, &[0x20, 1, 0]),
            Err(DecodeError::Short(2))
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(v5 in any::<bool>(), bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let version = if v5 { Version::V5 } else { Version::V311 };
            let _ = decode(version, &bytes);
        }
    }
}
