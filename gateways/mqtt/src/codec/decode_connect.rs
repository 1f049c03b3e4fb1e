//! CONNECT and CONNACK: the version is found first, so that even a broken CONNECT can be answered.
//!
//! Whether a client may connect is the connection's; here only what the packet says of itself.

use bytes::Bytes;

use super::decode::{checked_reason, properties};
use super::error::DecodeError;
use super::packet::{ConnAck, Connect, PacketType, QoS, Version, Will};
use super::property::{Place, Properties};
use super::read::Reader;
use super::reason_code::ReasonCode;
use super::topic;

/// The version that a CONNECT asks for.
pub(super) fn connect_version(body: &Bytes) -> Result<Version, DecodeError> {
    read_version(&mut Reader::new(body))
}

fn read_version(reader: &mut Reader<'_>) -> Result<Version, DecodeError> {
    let name = reader.binary()?;
    match (name, reader.u8()?) {
        (b"MQTT", 4) => Ok(Version::V311),
        (b"MQTT", 5) => Ok(Version::V5),
        // [MQTT-3.1.2-2]
        (b"MQTT", level) => Err(DecodeError::UnsupportedVersion { level }),
        (b"MQIsdp", 3) => Ok(Version::V31),
        // [MQTT-3.1.2-1]; the older name never had another level either.
        _ => Err(DecodeError::ProtocolName),
    }
}

/// CONNECT, section 3.1.
pub(super) fn connect(body: &Bytes) -> Result<Connect, DecodeError> {
    let mut reader = Reader::new(body);
    let version = read_version(&mut reader)?;
    let flags = ConnectFlags::parse(reader.u8()?, version)?;
    let keep_alive_s = reader.u16()?;
    let place = Place::Packet(PacketType::Connect);
    let properties_ = properties(body, &mut reader, place, version)?;
    // [MQTT-3.1.3-3], [MQTT-3.1.3-4]
    let client_id = reader.text()?.to_owned();
    let will = match flags.will {
        Some((qos, retain)) => Some(will(body, &mut reader, qos, retain, version)?),
        None => None,
    };
    // [MQTT-3.1.2-17], [MQTT-3.1.3-12]
    let username = if flags.username {
        Some(reader.text()?.to_owned())
    } else {
        None
    };
    // [MQTT-3.1.2-19]
    let password = if flags.password {
        Some(Bytes::copy_from_slice(reader.binary()?))
    } else {
        None
    };
    reader.finish()?;
    Ok(Connect {
        version,
        clean_start: flags.clean_start,
        keep_alive_s,
        client_id,
        will,
        username,
        password,
        // Copied, since it outlives the read that it stands in.
        properties: Properties::checked(Bytes::copy_from_slice(properties_.block())),
    })
}

/// The connect flags, parsed.
struct ConnectFlags {
    username: bool,
    password: bool,
    will: Option<(QoS, bool)>,
    clean_start: bool,
}

impl ConnectFlags {
    fn parse(flags: u8, version: Version) -> Result<ConnectFlags, DecodeError> {
        let set = |bit: u8| flags & (1 << bit) != 0;
        if set(0) {
            return Err(DecodeError::malformed(
                "MQTT-3.1.2-3",
                "the reserved connect flag is set",
            ));
        }
        let qos = QoS::from_number((flags >> 3) & 0b11)
            .ok_or(DecodeError::malformed("MQTT-3.1.2-12", "will QoS 3"))?;
        if !set(2) && qos != QoS::AtMostOnce {
            return Err(DecodeError::malformed(
                "MQTT-3.1.2-11",
                "will QoS without a will",
            ));
        }
        if !set(2) && set(5) {
            return Err(DecodeError::malformed(
                "MQTT-3.1.2-13",
                "will retain without a will",
            ));
        }
        // 3.1.1 [MQTT-3.1.2-22], and so in 3.1; 5.0 allows it.
        if !version.is_v5() && set(6) && !set(7) {
            return Err(DecodeError::malformed(
                "MQTT-3.1.2-22",
                "a password without a user name",
            ));
        }
        Ok(ConnectFlags {
            username: set(7),
            password: set(6),
            will: set(2).then_some((qos, set(5))),
            clean_start: set(1),
        })
    }
}

/// The will in CONNECT's payload [MQTT-3.1.2-9].
fn will(
    body: &Bytes,
    reader: &mut Reader<'_>,
    qos: QoS,
    retain: bool,
    version: Version,
) -> Result<Will, DecodeError> {
    let block = properties(body, reader, Place::Will, version)?;
    let topic = reader.binary()?;
    // [MQTT-3.1.3-11]
    topic::check_name(topic)?;
    Ok(Will {
        topic: Bytes::copy_from_slice(topic),
        payload: Bytes::copy_from_slice(reader.binary()?),
        qos,
        retain,
        properties: Properties::checked(Bytes::copy_from_slice(block.block())),
    })
}

/// CONNACK, section 3.2.
pub(super) fn connack(body: &Bytes, version: Version) -> Result<ConnAck, DecodeError> {
    let mut reader = Reader::new(body);
    let session_present = match reader.u8()? {
        flag @ 0..=1 => flag == 1,
        _ => {
            return Err(DecodeError::malformed(
                "MQTT-3.2.2-1",
                "reserved acknowledge flags",
            ));
        }
    };
    let code = reader.u8()?;
    let reason = match version {
        Version::V5 => checked_reason(code, PacketType::ConnAck, "MQTT-3.2.2-8")?,
        Version::V31 | Version::V311 => ReasonCode::from_connect_return_code(code).ok_or(
            DecodeError::malformed("MQTT-3.2.2-8", "a reserved return code"),
        )?,
    };
    if session_present && reason.is_failure() {
        return Err(DecodeError::protocol(
            "MQTT-3.2.2-6",
            "session present in a refusal",
        ));
    }
    let properties = properties(
        body,
        &mut reader,
        Place::Packet(PacketType::ConnAck),
        version,
    )?;
    reader.finish()?;
    Ok(ConnAck {
        session_present,
        reason,
        properties,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_flags_are_checked() {
        let head = b"\0\x04MQTT\x05";
        for (flags, clause) in [
            (0x01, "MQTT-3.1.2-3"),
            (0x1C, "MQTT-3.1.2-12"),
            (0x08, "MQTT-3.1.2-11"),
            (0x20, "MQTT-3.1.2-13"),
        ] {
            let mut bytes = head.to_vec();
            bytes.extend_from_slice(&[flags, 0, 0, 0, 0, 0]);
            let error = connect(&Bytes::from(bytes)).expect_err("must be refused");
            assert!(
                error.to_string().contains(clause),
                "{error} does not cite {clause}"
            );
        }
        let password_alone = b"\0\x04MQTT\x04\x40\0\0\0\0\0\0";
        assert!(
            connect(&Bytes::from_static(password_alone)).is_err(),
            "3.1.1 MQTT-3.1.2-22"
        );
    }

    #[test]
    fn other_names_and_levels_are_told_apart_mqtt_3_1_2_1() {
        let level = |bytes: &'static [u8]| connect(&Bytes::from_static(bytes));
        assert_eq!(
            level(b"\0\x04MQTT\x06"),
            Err(DecodeError::UnsupportedVersion { level: 6 })
        );
        assert_eq!(level(b"\0\x06MQIsdp\x04"), Err(DecodeError::ProtocolName));
        let older = level(b"\0\x06MQIsdp\x03\x02\0\0\0\x01a").expect("a CONNECT of 3.1");
        assert_eq!(older.version, Version::V31);
        assert_eq!(level(b"\0\x04mqtt\x05"), Err(DecodeError::ProtocolName));
    }
}
