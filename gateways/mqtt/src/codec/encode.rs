//! Packets to bytes, appended to a batch.
//!
//! Each packet is written in its shortest form: a successful acknowledgement without properties
//! is its packet identifier only. PUBLISH has its own module. Nothing here decides what is sent.

use bytes::{BufMut, BytesMut};

use super::framing::REMAINING_LENGTH_MAX;
use super::packet::{
    Ack, ConnAck, Connect, Packet, PacketType, SubAck, Subscribe, UnsubAck, Unsubscribe, Version,
};
use super::property::Properties;
use super::publish::PublishHead;
use super::reason_code::ReasonCode;

/// Why a packet has no form on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A string or binary field of more than 65,535 bytes.
    #[error("a field is over 65,535 bytes")]
    FieldTooLong,
    /// More than the remaining length can say.
    #[error("the packet is over {REMAINING_LENGTH_MAX} bytes")]
    PacketTooLong,
    /// A packet that the version does not have.
    #[error("the version has no such packet")]
    NotInVersion,
}

/// Appends a packet in the given version.
///
/// # Errors
/// When it has no form in that version; nothing is appended then.
pub fn encode(packet: &Packet, version: Version, out: &mut BytesMut) -> Result<(), EncodeError> {
    match packet {
        Packet::Publish(publish) => {
            let head = PublishHead {
                dup: publish.dup,
                qos: publish.qos,
                retain: publish.retain,
                topic: &publish.topic,
                packet_id: publish.packet_id,
                message_expiry_s: None,
                topic_alias: None,
                subscription_id: 0,
                more_subscription_ids: &[],
                properties: publish.properties.block(),
            };
            head.put(version, publish.payload.len(), out)?;
            out.put_slice(&publish.payload);
            Ok(())
        }
        Packet::PubAck(packet) => encode_ack(PacketType::PubAck, packet, version, out),
        Packet::PubRec(packet) => encode_ack(PacketType::PubRec, packet, version, out),
        Packet::PubRel(packet) => encode_ack(PacketType::PubRel, packet, version, out),
        Packet::PubComp(packet) => encode_ack(PacketType::PubComp, packet, version, out),
        Packet::PingReq => finish(PacketType::PingReq, &[], out),
        Packet::PingResp => finish(PacketType::PingResp, &[], out),
        Packet::Disconnect(packet) => reason_only(
            PacketType::Disconnect,
            packet.reason,
            &packet.properties,
            version,
            out,
        ),
        Packet::Auth(packet) if version == Version::V5 => reason_only(
            PacketType::Auth,
            packet.reason,
            &packet.properties,
            version,
            out,
        ),
        Packet::Auth(_) => Err(EncodeError::NotInVersion),
        Packet::Connect(packet) => finish(PacketType::Connect, &connect(packet)?, out),
        Packet::ConnAck(packet) => finish(PacketType::ConnAck, &connack(packet, version), out),
        Packet::Subscribe(packet) => {
            finish(PacketType::Subscribe, &subscribe(packet, version)?, out)
        }
        Packet::SubAck(packet) => finish(PacketType::SubAck, &suback(packet, version), out),
        Packet::Unsubscribe(packet) => {
            finish(PacketType::Unsubscribe, &unsubscribe(packet, version)?, out)
        }
        Packet::UnsubAck(packet) => finish(PacketType::UnsubAck, &unsuback(packet, version), out),
    }
}

/// How many bytes a variable byte integer takes.
pub(super) const fn var_int_bytes(value: usize) -> usize {
    match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        _ => 4,
    }
}

/// Appends a variable byte integer; the caller has checked that it is at most 268,435,455.
#[inline]
pub(super) fn put_var_int(out: &mut BytesMut, value: usize) {
    let mut left = value & REMAINING_LENGTH_MAX;
    loop {
        let byte = (left & 0x7F) as u8;
        left >>= 7;
        if left == 0 {
            out.put_u8(byte);
            return;
        }
        out.put_u8(byte | 0x80);
    }
}

/// Appends a whole packet whose body is ready.
fn finish(packet_type: PacketType, body: &[u8], out: &mut BytesMut) -> Result<(), EncodeError> {
    if body.len() > REMAINING_LENGTH_MAX {
        return Err(EncodeError::PacketTooLong);
    }
    out.reserve(5 + body.len());
    out.put_u8((packet_type as u8) << 4 | packet_type.fixed_flags().unwrap_or(0));
    put_var_int(out, body.len());
    out.put_slice(body);
    Ok(())
}

fn put_properties(body: &mut BytesMut, properties: &Properties, version: Version) {
    if version == Version::V5 {
        put_var_int(body, properties.block().len());
        body.put_slice(properties.block());
    }
}

fn put_binary(body: &mut BytesMut, bytes: &[u8]) -> Result<(), EncodeError> {
    body.put_u16(u16::try_from(bytes.len()).map_err(|_| EncodeError::FieldTooLong)?);
    body.put_slice(bytes);
    Ok(())
}

/// Appends PUBACK, PUBREC, PUBREL or PUBCOMP; the usual one is written without a detour.
///
/// # Errors
/// When the properties are too long; nothing is appended then.
#[inline]
pub fn encode_ack(
    packet_type: PacketType,
    ack: &Ack,
    version: Version,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let plain = ack.reason == ReasonCode::SUCCESS && ack.properties.is_empty();
    let [high, low] = ack.packet_id.to_be_bytes();
    if plain || !version.is_v5() {
        let first = (packet_type as u8) << 4 | packet_type.fixed_flags().unwrap_or(0);
        out.put_slice(&[first, 2, high, low]);
        return Ok(());
    }
    let mut body = BytesMut::with_capacity(8 + ack.properties.block().len());
    body.put_slice(&[high, low, ack.reason.0]);
    if !ack.properties.is_empty() {
        put_properties(&mut body, &ack.properties, version);
    }
    finish(packet_type, &body, out)
}

/// DISCONNECT and AUTH: both fields may be left out.
fn reason_only(
    packet_type: PacketType,
    reason: ReasonCode,
    properties: &Properties,
    version: Version,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    if !version.is_v5() || (reason == ReasonCode::SUCCESS && properties.is_empty()) {
        return finish(packet_type, &[], out);
    }
    let mut body = BytesMut::with_capacity(8 + properties.block().len());
    body.put_u8(reason.0);
    if !properties.is_empty() {
        put_properties(&mut body, properties, version);
    }
    finish(packet_type, &body, out)
}

fn connect(packet: &Connect) -> Result<BytesMut, EncodeError> {
    let version = packet.version;
    let mut body = BytesMut::new();
    put_binary(&mut body, version.protocol_name())?;
    body.put_u8(version.level());
    let mut flags = u8::from(packet.clean_start) << 1;
    if let Some(will) = &packet.will {
        flags |= 1 << 2 | (will.qos as u8) << 3 | u8::from(will.retain) << 5;
    }
    flags |= u8::from(packet.password.is_some()) << 6;
    flags |= u8::from(packet.username.is_some()) << 7;
    body.put_u8(flags);
    body.put_u16(packet.keep_alive_s);
    put_properties(&mut body, &packet.properties, version);
    put_binary(&mut body, packet.client_id.as_bytes())?;
    if let Some(will) = &packet.will {
        put_properties(&mut body, &will.properties, version);
        put_binary(&mut body, &will.topic)?;
        put_binary(&mut body, &will.payload)?;
    }
    if let Some(username) = &packet.username {
        put_binary(&mut body, username.as_bytes())?;
    }
    if let Some(password) = &packet.password {
        put_binary(&mut body, password)?;
    }
    Ok(body)
}

fn connack(packet: &ConnAck, version: Version) -> BytesMut {
    let mut body = BytesMut::with_capacity(6 + packet.properties.block().len());
    body.put_u8(u8::from(packet.session_present));
    body.put_u8(match version {
        Version::V31 | Version::V311 => packet.reason.to_connect_return_code(),
        Version::V5 => packet.reason.0,
    });
    put_properties(&mut body, &packet.properties, version);
    body
}

fn subscribe(packet: &Subscribe, version: Version) -> Result<BytesMut, EncodeError> {
    let mut body = BytesMut::new();
    body.put_u16(packet.packet_id);
    put_properties(&mut body, &packet.properties, version);
    for entry in &packet.filters {
        put_binary(&mut body, entry.filter.as_bytes())?;
        let more = u8::from(entry.no_local) << 2
            | u8::from(entry.retain_as_published) << 3
            | (entry.retain_handling as u8) << 4;
        body.put_u8(match version {
            Version::V31 | Version::V311 => entry.qos as u8,
            Version::V5 => entry.qos as u8 | more,
        });
    }
    Ok(body)
}

fn suback(packet: &SubAck, version: Version) -> BytesMut {
    let mut body = BytesMut::with_capacity(6 + packet.reasons.len());
    body.put_u16(packet.packet_id);
    put_properties(&mut body, &packet.properties, version);
    for reason in &packet.reasons {
        body.put_u8(match version {
            Version::V31 | Version::V311 => reason.to_suback_return_code(),
            Version::V5 => reason.0,
        });
    }
    body
}

fn unsubscribe(packet: &Unsubscribe, version: Version) -> Result<BytesMut, EncodeError> {
    let mut body = BytesMut::new();
    body.put_u16(packet.packet_id);
    put_properties(&mut body, &packet.properties, version);
    for filter in &packet.filters {
        put_binary(&mut body, filter.as_bytes())?;
    }
    Ok(body)
}

fn unsuback(packet: &UnsubAck, version: Version) -> BytesMut {
    let mut body = BytesMut::with_capacity(6 + packet.reasons.len());
    body.put_u16(packet.packet_id);
    put_properties(&mut body, &packet.properties, version);
    // 3.1.1 has no codes here.
    if version == Version::V5 {
        body.extend(packet.reasons.iter().map(|reason| reason.0));
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_acknowledgement_is_four_bytes() {
        let mut out = BytesMut::new();
        let plain = Packet::PubAck(Ack::new(0x1234, ReasonCode::SUCCESS));
        encode(&plain, Version::V5, &mut out).expect("fits");
        assert_eq!(&out[..], [0x40, 2, 0x12, 0x34]);
        out.clear();
        let quota = Packet::PubAck(Ack::new(1, ReasonCode::QUOTA_EXCEEDED));
        encode(&quota, Version::V5, &mut out).expect("fits");
        assert_eq!(&out[..], [0x40, 3, 0, 1, 0x97]);
    }

    #[test]
    fn variable_byte_integers_take_the_bytes_they_say() {
        for value in [
            0,
            127,
            128,
            16_383,
            16_384,
            2_097_151,
            2_097_152,
            REMAINING_LENGTH_MAX,
        ] {
            let mut out = BytesMut::new();
            put_var_int(&mut out, value);
            assert_eq!(out.len(), var_int_bytes(value), "{value}");
        }
    }
}
