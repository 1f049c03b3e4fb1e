//! PUBLISH, the hot path: decoded without an allocation, encoded straight into a write batch.
//!
//! Decoding takes the property block as it is; the one walk that checks it also notes the few
//! values every message needs. Encoding writes the head only; the caller puts the payload behind it,
//! as a copy or as a chunk of its own ([`anabranch_core::gateway::SendBuffer::put_payload`]).

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::encode::{EncodeError, put_var_int, var_int_bytes};
use super::error::DecodeError;
use super::framing::REMAINING_LENGTH_MAX;
use super::packet::{PacketType, Publish, QoS, Version, Will};
use super::property::{Place, Properties, PropertyId, skip, walk};
use super::property_write::put_int;
use super::read::Reader;
use super::topic;

/// Where the property block of a PUBLISH stands.
const PLACE: Place = Place::Packet(PacketType::Publish);

/// What the walk over a PUBLISH's properties noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishNotes {
    /// Message expiry interval in seconds, if there is one.
    pub message_expiry_s: Option<u32>,
    /// Topic alias, never 0, if there is one.
    pub topic_alias: Option<u16>,
    /// Payload format indicator: whether the payload is declared UTF-8, if declared.
    pub payload_is_text: Option<bool>,
    /// Whether there is a subscription identifier.
    pub has_subscription_id: bool,
    /// Whether there is a response topic (checked to be a topic name).
    pub has_response_topic: bool,
}

impl PublishNotes {
    /// Whether the block holds a property that is of this connection or this moment only, and so
    /// is never forwarded as it is.
    pub const fn has_own(&self) -> bool {
        self.message_expiry_s.is_some() || self.topic_alias.is_some() || self.has_subscription_id
    }
}

/// Decodes the variable header and payload of a PUBLISH whose flags were checked.
#[inline]
pub(super) fn decode(flags: u8, mut body: Bytes, version: Version) -> Result<Publish, DecodeError> {
    let mut reader = Reader::new(&body);
    let qos = QoS::from_number((flags >> 1) & 0b11).unwrap_or(QoS::ExactlyOnce);
    let topic = reader.binary()?;
    // [MQTT-2.2.1-2]: no packet identifier at QoS 0.
    let packet_id = if qos == QoS::AtMostOnce {
        0
    } else {
        reader.packet_id()?
    };
    let mut notes = PublishNotes::default();
    let properties = match version {
        Version::V31 | Version::V311 => Properties::EMPTY,
        Version::V5 => {
            let count = reader.var_int()? as usize;
            let block = reader.take(count)?;
            walk(block, PLACE, |property| match property.id {
                PropertyId::MESSAGE_EXPIRY => notes.message_expiry_s = Some(property.int()),
                PropertyId::TOPIC_ALIAS => {
                    notes.topic_alias = u16::try_from(property.int()).ok();
                }
                PropertyId::PAYLOAD_FORMAT => notes.payload_is_text = Some(property.int() != 0),
                PropertyId::SUBSCRIPTION_ID => notes.has_subscription_id = true,
                PropertyId::RESPONSE_TOPIC => notes.has_response_topic = true,
                _ => {}
            })?;
            Properties::checked(slice(&body, block))
        }
    };
    // A topic alias may stand for the topic name, which is then empty.
    if !(topic.is_empty() && notes.topic_alias.is_some()) {
        topic::check_name(topic)?;
    }
    let topic = slice(&body, topic);
    // The payload takes the body's own reference, which saves counting one up and one down.
    let payload_bytes = reader.rest().len();
    body.advance(body.len() - payload_bytes);
    Ok(Publish {
        dup: flags & 0b1000 != 0,
        qos,
        retain: flags & 0b0001 != 0,
        topic,
        packet_id,
        properties,
        notes,
        payload: if payload_bytes == 0 {
            Bytes::new()
        } else {
            body
        },
    })
}

/// A zero-copy slice of `body`; an empty one does not hold the buffer.
#[inline]
fn slice(body: &Bytes, part: &[u8]) -> Bytes {
    if part.is_empty() {
        Bytes::new()
    } else {
        body.slice_ref(part)
    }
}

impl Publish {
    /// The properties that travel on with the message: the block without message expiry, topic
    /// alias and subscription identifiers. A block that has none of them is not copied.
    pub fn forwarded_properties(&self) -> Bytes {
        let block = self.properties.block();
        if self.notes.has_own() {
            without_own(block)
        } else {
            block.clone()
        }
    }
}

impl Will {
    /// The properties that travel on with the message: the block without message expiry and will
    /// delay.
    pub fn forwarded_properties(&self) -> Bytes {
        without_own(self.properties.block())
    }
}

/// A copy of a checked block without what is of one connection or one moment only.
fn without_own(block: &[u8]) -> Bytes {
    let mut kept = BytesMut::with_capacity(block.len());
    let mut reader = Reader::new(block);
    while !reader.is_empty() {
        let before = reader.rest();
        let Some(id) = skip(&mut reader) else { break };
        let own = matches!(
            id,
            PropertyId::MESSAGE_EXPIRY
                | PropertyId::TOPIC_ALIAS
                | PropertyId::SUBSCRIPTION_ID
                | PropertyId::WILL_DELAY
        );
        if !own && let Some(bytes) = before.get(..before.len() - reader.rest().len()) {
            kept.put_slice(bytes);
        }
    }
    kept.freeze()
}

/// Everything of an outgoing PUBLISH but its payload.
#[derive(Clone, Copy, Debug)]
pub struct PublishHead<'a> {
    /// Whether it was sent before.
    pub dup: bool,
    /// The promise.
    pub qos: QoS,
    /// The retain flag.
    pub retain: bool,
    /// Topic name, at most 65,535 bytes; empty where `topic_alias` stands for it.
    pub topic: &'a [u8],
    /// Packet identifier; left out at QoS 0.
    pub packet_id: u16,
    /// Message expiry interval in seconds that is left, written in front of `properties`.
    pub message_expiry_s: Option<u32>,
    /// Topic alias, in front of `properties`.
    pub topic_alias: Option<u16>,
    /// Subscription identifier, behind them; 0 is none.
    pub subscription_id: u32,
    /// Further ones.
    pub more_subscription_ids: &'a [u32],
    /// Property block to forward; not looked at. Left out before 5.0, as is all that goes with it.
    pub properties: &'a [u8],
}

impl PublishHead<'_> {
    /// Size of the whole property block.
    fn block_bytes(&self) -> usize {
        let mut bytes = self.properties.len();
        if self.message_expiry_s.is_some() {
            bytes += 5;
        }
        if self.topic_alias.is_some() {
            bytes += 3;
        }
        if self.subscription_id != 0 {
            bytes += subscription_id_bytes(self.subscription_id);
            for id in self.more_subscription_ids {
                bytes += subscription_id_bytes(*id);
            }
        }
        bytes
    }

    /// The remaining length with a payload of so many bytes.
    fn remaining(&self, version: Version, payload_bytes: usize) -> usize {
        let id_bytes = match self.qos {
            QoS::AtMostOnce => 0,
            QoS::AtLeastOnce | QoS::ExactlyOnce => 2,
        };
        let properties_bytes = match version {
            Version::V31 | Version::V311 => 0,
            Version::V5 => var_int_bytes(self.block_bytes()) + self.block_bytes(),
        };
        2 + self.topic.len() + id_bytes + properties_bytes + payload_bytes
    }

    /// Size of the whole packet, fixed header included, with a payload of so many bytes; to hold
    /// against the receiver's maximum packet size.
    pub fn packet_bytes(&self, version: Version, payload_bytes: usize) -> usize {
        let remaining = self.remaining(version, payload_bytes);
        1 + var_int_bytes(remaining) + remaining
    }

    /// Appends everything up to the payload, for a payload of so many bytes.
    ///
    /// # Errors
    /// When topic or packet are too long for their length fields; nothing is appended then.
    #[inline]
    pub fn put(
        &self,
        version: Version,
        payload_bytes: usize,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        let remaining = self.remaining(version, payload_bytes);
        let topic_bytes = u16::try_from(self.topic.len()).map_err(|_| EncodeError::FieldTooLong)?;
        if remaining > REMAINING_LENGTH_MAX {
            return Err(EncodeError::PacketTooLong);
        }
        out.reserve(5 + remaining - payload_bytes);
        let flags = u8::from(self.dup) << 3 | (self.qos as u8) << 1 | u8::from(self.retain);
        out.put_u8((PacketType::Publish as u8) << 4 | flags);
        put_var_int(out, remaining);
        out.put_u16(topic_bytes);
        out.put_slice(self.topic);
        if self.qos != QoS::AtMostOnce {
            out.put_u16(self.packet_id);
        }
        if version == Version::V5 {
            put_var_int(out, self.block_bytes());
            if let Some(expiry_s) = self.message_expiry_s {
                put_int(out, PropertyId::MESSAGE_EXPIRY, expiry_s);
            }
            if let Some(alias) = self.topic_alias {
                put_int(out, PropertyId::TOPIC_ALIAS, u32::from(alias));
            }
            out.put_slice(self.properties);
            if self.subscription_id != 0 {
                put_int(out, PropertyId::SUBSCRIPTION_ID, self.subscription_id);
                for id in self.more_subscription_ids {
                    put_int(out, PropertyId::SUBSCRIPTION_ID, *id);
                }
            }
        }
        Ok(())
    }
}

/// Size of one subscription identifier as a property.
const fn subscription_id_bytes(id: u32) -> usize {
    1 + var_int_bytes(id as usize)
}

#[cfg(test)]
mod tests {
    use super::super::property_write::PropertiesBuilder;
    use super::*;

    fn decoded(bytes: &[u8]) -> Result<Publish, DecodeError> {
        decode(
            bytes[0] & 0x0F,
            Bytes::copy_from_slice(&bytes[2..]),
            Version::V5,
        )
    }

    #[test]
    fn the_walk_notes_what_every_message_needs() {
        let publish = decoded(&[
            0x32, 21, 0, 1, b'a', 0, 9, 13, 0x02, 0, 0, 0, 60, 0x23, 0, 7, 0x01, 1, 0x08, 0, 0,
            b'x',
        ]);
        assert!(publish.is_err(), "an empty response topic is no topic name");
        let publish = decoded(&[
            0x32, 22, 0, 1, b'a', 0, 9, 14, 0x02, 0, 0, 0, 60, 0x23, 0, 7, 0x01, 1, 0x08, 0, 1,
            b'r', b'x',
        ])
        .expect("legal packet");
        assert_eq!(publish.packet_id, 9);
        assert_eq!(
            publish.notes,
            PublishNotes {
                message_expiry_s: Some(60),
                topic_alias: Some(7),
                payload_is_text: Some(true),
                has_subscription_id: false,
                has_response_topic: true,
            }
        );
        assert_eq!(&publish.payload[..], b"x");
        assert_eq!(
            &publish.forwarded_properties()[..],
            &[0x01, 1, 0x08, 0, 1, b'r']
        );
    }

    #[test]
    fn an_empty_topic_needs_an_alias_mqtt_3_3_2() {
        assert!(decoded(&[0x30, 3, 0, 0, 0]).is_err());
        assert!(decoded(&[0x30, 6, 0, 0, 3, 0x23, 0, 1]).is_ok());
    }

    #[test]
    fn a_wildcard_in_a_topic_name_is_refused_mqtt_3_3_2_2() {
        assert_eq!(
            decoded(&[0x30, 4, 0, 1, b'#', 0]),
            Err(DecodeError::TopicName {
                clause: "MQTT-3.3.2-2",
                what: "wildcard"
            })
        );
    }

    #[test]
    fn a_head_says_how_large_its_packet_is() {
        let block = PropertiesBuilder::new().pair("k", "v").build();
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
            let head = PublishHead {
                dup: false,
                qos,
                retain: false,
                topic: b"a",
                packet_id: 1,
                message_expiry_s: Some(5),
                topic_alias: Some(3),
                subscription_id: 1,
                more_subscription_ids: &[200, 268_435_455],
                properties: block.block(),
            };
            for version in [Version::V31, Version::V311, Version::V5] {
                for payload_bytes in [0, 200, 20_000] {
                    let mut out = BytesMut::new();
                    head.put(version, payload_bytes, &mut out).expect("fits");
                    assert_eq!(
                        out.len() + payload_bytes,
                        head.packet_bytes(version, payload_bytes)
                    );
                }
            }
        }
    }
}
