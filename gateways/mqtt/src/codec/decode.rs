//! The variable headers and payloads of every packet but PUBLISH, CONNECT and CONNACK.
//!
//! Each function reads one packet's body to its end and refuses what its section forbids.
//! Those three have modules of their own; the fixed header was checked by the framing.

use bytes::Bytes;

use super::decode_connect::{connack, connect};
use super::error::DecodeError;
use super::packet::{
    Ack, Auth, Disconnect, Packet, PacketType, QoS, RetainHandling, SubAck, Subscribe,
    SubscribeFilter, UnsubAck, Unsubscribe, Version,
};
use super::property::{Place, Properties};
use super::publish;
use super::read::Reader;
use super::reason_code::ReasonCode;

/// The most topic filters in one SUBSCRIBE or UNSUBSCRIBE.
pub const FILTERS_PER_PACKET_MAX: usize = 4096;

/// Decodes the body of a packet whose fixed header was checked.
#[inline]
pub(super) fn body(
    packet_type: PacketType,
    flags: u8,
    body: Bytes,
    version: Version,
) -> Result<Packet, DecodeError> {
    Ok(match packet_type {
        PacketType::Publish => Packet::Publish(publish::decode(flags, body, version)?),
        PacketType::PubAck => Packet::PubAck(ack(packet_type, &body, version)?),
        PacketType::PubRec => Packet::PubRec(ack(packet_type, &body, version)?),
        PacketType::PubRel => Packet::PubRel(ack(packet_type, &body, version)?),
        PacketType::PubComp => Packet::PubComp(ack(packet_type, &body, version)?),
        PacketType::Connect => Packet::Connect(Box::new(connect(&body)?)),
        PacketType::ConnAck => Packet::ConnAck(connack(&body, version)?),
        PacketType::Subscribe => Packet::Subscribe(subscribe(&body, version)?),
        PacketType::SubAck => Packet::SubAck(suback(&body, version)?),
        PacketType::Unsubscribe => Packet::Unsubscribe(unsubscribe(&body, version)?),
        PacketType::UnsubAck => Packet::UnsubAck(unsuback(&body, version)?),
        PacketType::PingReq => empty(&body, Packet::PingReq)?,
        PacketType::PingResp => empty(&body, Packet::PingResp)?,
        PacketType::Disconnect => Packet::Disconnect(disconnect(&body, version)?),
        PacketType::Auth => Packet::Auth(auth(&body)?),
    })
}

fn empty(body: &Bytes, packet: Packet) -> Result<Packet, DecodeError> {
    Reader::new(body).finish().map(|()| packet)
}

/// Reads a property block with its length in front.
pub(super) fn properties(
    body: &Bytes,
    reader: &mut Reader<'_>,
    place: Place,
    version: Version,
) -> Result<Properties, DecodeError> {
    if !version.is_v5() {
        return Ok(Properties::EMPTY);
    }
    let count = reader.var_int()? as usize;
    let block = reader.take(count)?;
    if block.is_empty() {
        return Ok(Properties::EMPTY);
    }
    Properties::parse(body.slice_ref(block), place)
}

pub(super) fn checked_reason(
    code: u8,
    packet_type: PacketType,
    clause: &'static str,
) -> Result<ReasonCode, DecodeError> {
    let reason = ReasonCode(code);
    if reason.allowed_in(packet_type) {
        Ok(reason)
    } else {
        Err(DecodeError::malformed(
            clause,
            "a reason code that its packet may not carry",
        ))
    }
}

/// A reason code and properties at the end of a packet: both may be left out, the properties
/// also alone (sections 3.4.2.1, 3.14.2.1, 3.15.2.1).
#[inline]
fn optional_reason(
    packet_type: PacketType,
    clause: &'static str,
    body: &Bytes,
    reader: &mut Reader<'_>,
    version: Version,
) -> Result<(ReasonCode, Properties), DecodeError> {
    if !version.is_v5() || reader.is_empty() {
        reader.finish()?;
        return Ok((ReasonCode::SUCCESS, Properties::EMPTY));
    }
    let reason = checked_reason(reader.u8()?, packet_type, clause)?;
    if reader.is_empty() {
        return Ok((reason, Properties::EMPTY));
    }
    let properties = properties(body, reader, Place::Packet(packet_type), version)?;
    reader.finish()?;
    Ok((reason, properties))
}

/// PUBACK, PUBREC, PUBREL and PUBCOMP, sections 3.4 to 3.7.
#[inline]
fn ack(packet_type: PacketType, body: &Bytes, version: Version) -> Result<Ack, DecodeError> {
    let mut reader = Reader::new(body);
    let packet_id = reader.packet_id()?;
    let clause = match packet_type {
        PacketType::PubRec => "MQTT-3.5.2-1",
        PacketType::PubRel => "MQTT-3.6.2-1",
        PacketType::PubComp => "MQTT-3.7.2-1",
        _ => "MQTT-3.4.2-1",
    };
    let (reason, properties) = optional_reason(packet_type, clause, body, &mut reader, version)?;
    Ok(Ack {
        packet_id,
        reason,
        properties,
    })
}

/// SUBSCRIBE, section 3.8.
fn subscribe(body: &Bytes, version: Version) -> Result<Subscribe, DecodeError> {
    let mut reader = Reader::new(body);
    let packet_id = reader.packet_id()?;
    let properties = properties(
        body,
        &mut reader,
        Place::Packet(PacketType::Subscribe),
        version,
    )?;
    let mut filters = Vec::new();
    while !reader.is_empty() {
        check_count(filters.len())?;
        // [MQTT-3.8.3-1]
        let filter = reader.text()?.to_owned();
        filters.push(subscribe_filter(filter, reader.u8()?, version)?);
    }
    if filters.is_empty() {
        return Err(DecodeError::protocol(
            "MQTT-3.8.3-2",
            "SUBSCRIBE without a topic filter",
        ));
    }
    Ok(Subscribe {
        packet_id,
        properties,
        filters,
    })
}

/// One filter with its options byte (section 3.8.3.1; before 5.0 only the QoS).
fn subscribe_filter(
    filter: String,
    options: u8,
    version: Version,
) -> Result<SubscribeFilter, DecodeError> {
    let reserved = match version {
        Version::V31 | Version::V311 => 0b1111_1100,
        Version::V5 => 0b1100_0000,
    };
    if options & reserved != 0 {
        return Err(DecodeError::malformed(
            "MQTT-3.8.3-5",
            "reserved subscription options",
        ));
    }
    let qos = QoS::from_number(options & 0b11)
        .ok_or(DecodeError::protocol("MQTT-3.8.3.1", "a maximum QoS of 3"))?;
    let no_local = options & 0b100 != 0;
    let retain_handling = match (options >> 4) & 0b11 {
        0 => RetainHandling::Send,
        1 => RetainHandling::SendIfNew,
        2 => RetainHandling::DoNotSend,
        _ => {
            return Err(DecodeError::protocol(
                "MQTT-3.8.3.1",
                "a retain handling of 3",
            ));
        }
    };
    if no_local && filter.starts_with("$share/") {
        return Err(DecodeError::protocol(
            "MQTT-3.8.3-4",
            "no local on a shared subscription",
        ));
    }
    Ok(SubscribeFilter {
        filter,
        qos,
        no_local,
        retain_as_published: options & 0b1000 != 0,
        retain_handling,
    })
}

const fn check_count(filters: usize) -> Result<(), DecodeError> {
    if filters < FILTERS_PER_PACKET_MAX {
        Ok(())
    } else {
        Err(DecodeError::TooMany {
            what: "topic filters",
            limit: FILTERS_PER_PACKET_MAX,
        })
    }
}

/// SUBACK, section 3.9.
fn suback(body: &Bytes, version: Version) -> Result<SubAck, DecodeError> {
    let mut reader = Reader::new(body);
    let packet_id = reader.packet_id()?;
    let properties = properties(
        body,
        &mut reader,
        Place::Packet(PacketType::SubAck),
        version,
    )?;
    let mut reasons = Vec::new();
    while !reader.is_empty() {
        check_count(reasons.len())?;
        let code = reader.u8()?;
        // 3.1.1 [MQTT-3.9.3-2]: 0, 1, 2 and 0x80 only.
        if !version.is_v5() && !matches!(code, 0..=2 | 0x80) {
            return Err(DecodeError::malformed(
                "MQTT-3.9.3-2",
                "a reserved return code",
            ));
        }
        reasons.push(checked_reason(code, PacketType::SubAck, "MQTT-3.9.3-2")?);
    }
    Ok(SubAck {
        packet_id,
        properties,
        reasons,
    })
}

/// UNSUBSCRIBE, section 3.10.
fn unsubscribe(body: &Bytes, version: Version) -> Result<Unsubscribe, DecodeError> {
    let mut reader = Reader::new(body);
    let packet_id = reader.packet_id()?;
    let properties = properties(
        body,
        &mut reader,
        Place::Packet(PacketType::Unsubscribe),
        version,
    )?;
    let mut filters = Vec::new();
    while !reader.is_empty() {
        check_count(filters.len())?;
        // [MQTT-3.10.3-1]
        filters.push(reader.text()?.to_owned());
    }
    if filters.is_empty() {
        return Err(DecodeError::protocol(
            "MQTT-3.10.3-2",
            "UNSUBSCRIBE without a topic filter",
        ));
    }
    Ok(Unsubscribe {
        packet_id,
        properties,
        filters,
    })
}

/// UNSUBACK, section 3.11.
fn unsuback(body: &Bytes, version: Version) -> Result<UnsubAck, DecodeError> {
    let mut reader = Reader::new(body);
    let packet_id = reader.packet_id()?;
    let properties = properties(
        body,
        &mut reader,
        Place::Packet(PacketType::UnsubAck),
        version,
    )?;
    let mut reasons = Vec::new();
    if version == Version::V5 {
        while !reader.is_empty() {
            check_count(reasons.len())?;
            reasons.push(checked_reason(
                reader.u8()?,
                PacketType::UnsubAck,
                "MQTT-3.11.3-2",
            )?);
        }
    }
    reader.finish()?;
    Ok(UnsubAck {
        packet_id,
        properties,
        reasons,
    })
}

/// DISCONNECT, section 3.14.
fn disconnect(body: &Bytes, version: Version) -> Result<Disconnect, DecodeError> {
    let mut reader = Reader::new(body);
    let (reason, properties) = optional_reason(
        PacketType::Disconnect,
        "MQTT-3.14.2-1",
        body,
        &mut reader,
        version,
    )?;
    Ok(Disconnect { reason, properties })
}

/// AUTH, section 3.15.
fn auth(body: &Bytes) -> Result<Auth, DecodeError> {
    let mut reader = Reader::new(body);
    let (reason, properties) = optional_reason(
        PacketType::Auth,
        "MQTT-3.15.2-1",
        body,
        &mut reader,
        Version::V5,
    )?;
    Ok(Auth { reason, properties })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(packet_type: PacketType, bytes: &'static [u8], clause: &str) {
        let error = body(packet_type, 0, Bytes::from_static(bytes), Version::V5)
            .expect_err("must be refused");
        assert!(
            error.to_string().contains(clause),
            "{error} does not cite {clause}"
        );
    }

    #[test]
    fn subscribe_holds_its_rules() {
        refused(PacketType::Subscribe, &[0, 1, 0], "MQTT-3.8.3-2");
        refused(
            PacketType::Subscribe,
            &[0, 0, 0, 0, 1, b'a', 0],
            "MQTT-2.2.1-3",
        );
        refused(
            PacketType::Subscribe,
            &[0, 1, 0, 0, 1, b'a', 0x40],
            "MQTT-3.8.3-5",
        );
        refused(
            PacketType::Subscribe,
            &[0, 1, 0, 0, 1, b'a', 0x03],
            "MQTT-3.8.3.1",
        );
        refused(
            PacketType::Subscribe,
            &[0, 1, 0, 0, 1, b'a', 0x30],
            "MQTT-3.8.3.1",
        );
        refused(
            PacketType::Subscribe,
            b"\0\x01\0\0\x0A$share/g/a\x04",
            "MQTT-3.8.3-4",
        );
        refused(PacketType::Unsubscribe, &[0, 1, 0], "MQTT-3.10.3-2");
    }

    #[test]
    fn a_reserved_reason_code_is_malformed_mqtt_3_14_2_1() {
        refused(PacketType::Disconnect, &[0xFF], "MQTT-3.14.2-1");
        refused(PacketType::PubAck, &[0, 1, 0x93], "MQTT-3.4.2-1");
        refused(PacketType::Auth, &[0x80], "MQTT-3.15.2-1");
    }

    #[test]
    fn too_many_filters_are_refused_by_a_limit() {
        let mut bytes = vec![0, 1, 0];
        for _ in 0..=FILTERS_PER_PACKET_MAX {
            bytes.extend_from_slice(&[0, 1, b'a', 0]);
        }
        let error = body(PacketType::Subscribe, 2, Bytes::from(bytes), Version::V5);
        assert!(matches!(error, Err(DecodeError::TooMany { .. })));
    }
}
