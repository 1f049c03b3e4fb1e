//! Property blocks of 5.0: validated once, kept as the bytes that came in, read lazily.
//!
//! A block is checked in one walk: known identifiers, each allowed in its packet, none twice
//! (but user properties, and subscription identifiers in PUBLISH), values in range, strings
//! UTF-8. After that [`Properties`] is a slice and an iterator; no list is built. Order is free
//! and is kept.
//!
//! Blocks are written by [`super::property_write`].
//!
//! It never interprets a property; PUBLISH's hot values are picked up in the same walk by
//! [`super::publish`].

use bytes::Bytes;

use super::error::DecodeError;
use super::packet::PacketType;
use super::read::Reader;

/// The place a property block stands in: a packet type, or the will inside CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The properties of a packet.
    Packet(PacketType),
    /// The will properties of CONNECT.
    Will,
}

impl Place {
    /// Bit 0 stands for the will, since no packet has type 0.
    const fn mask(self) -> u16 {
        match self {
            Place::Packet(packet) => packet.mask(),
            Place::Will => 1,
        }
    }

    const fn is_publish(self) -> bool {
        matches!(self, Place::Packet(PacketType::Publish))
    }
}

/// The identifier of a property (section 2.2.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PropertyId(pub u8);

/// How a property's value is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One byte that is 0 or 1.
    Flag,
    U16,
    /// Two bytes, not 0.
    U16Positive,
    U32,
    /// Four bytes, not 0.
    U32Positive,
    /// A variable byte integer, not 0.
    VarIntPositive,
    Text,
    /// A topic name: text without wildcards.
    Topic,
    Binary,
    Pair,
}

const WILL: u16 = 1;
const CONNECT: u16 = PacketType::Connect.mask();
const CONNACK: u16 = PacketType::ConnAck.mask();
const PUBLISH: u16 = PacketType::Publish.mask();
const SUBSCRIBE: u16 = PacketType::Subscribe.mask();
const DISCONNECT: u16 = PacketType::Disconnect.mask();
const AUTH: u16 = PacketType::Auth.mask();
/// Every packet that answers or ends something, and so may say why.
const REASONS: u16 = CONNACK
    | PacketType::PubAck.mask()
    | PacketType::PubRec.mask()
    | PacketType::PubRel.mask()
    | PacketType::PubComp.mask()
    | PacketType::SubAck.mask()
    | PacketType::UnsubAck.mask()
    | DISCONNECT
    | AUTH;
const EVERYWHERE: u16 =
    WILL | CONNECT | PUBLISH | SUBSCRIBE | PacketType::Unsubscribe.mask() | REASONS;

macro_rules! properties {
    ($($name:ident($id:literal) $text:literal $kind:ident in $places:expr;)*) => {
        impl PropertyId {
            $(
                #[doc = $text]
                pub const $name: PropertyId = PropertyId($id);
            )*

            /// The standard's name, or `Unknown`.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($id => $text,)*
                    _ => "Unknown",
                }
            }

            pub(super) const fn rule(self) -> Option<(Kind, u16)> {
                Some(match self.0 {
                    $($id => (Kind::$kind, $places),)*
                    _ => return None,
                })
            }
        }
    };
}

properties! {
    PAYLOAD_FORMAT(0x01) "Payload Format Indicator" Flag in PUBLISH | WILL;
    MESSAGE_EXPIRY(0x02) "Message Expiry Interval" U32 in PUBLISH | WILL;
    CONTENT_TYPE(0x03) "Content Type" Text in PUBLISH | WILL;
    RESPONSE_TOPIC(0x08) "Response Topic" Topic in PUBLISH | WILL;
    CORRELATION_DATA(0x09) "Correlation Data" Binary in PUBLISH | WILL;
    SUBSCRIPTION_ID(0x0B) "Subscription Identifier" VarIntPositive in PUBLISH | SUBSCRIBE;
    SESSION_EXPIRY(0x11) "Session Expiry Interval" U32 in CONNECT | CONNACK | DISCONNECT;
    ASSIGNED_CLIENT_ID(0x12) "Assigned Client Identifier" Text in CONNACK;
    SERVER_KEEP_ALIVE(0x13) "Server Keep Alive" U16 in CONNACK;
    AUTH_METHOD(0x15) "Authentication Method" Text in CONNECT | CONNACK | AUTH;
    AUTH_DATA(0x16) "Authentication Data" Binary in CONNECT | CONNACK | AUTH;
    REQUEST_PROBLEM_INFO(0x17) "Request Problem Information" Flag in CONNECT;
    WILL_DELAY(0x18) "Will Delay Interval" U32 in WILL;
    REQUEST_RESPONSE_INFO(0x19) "Request Response Information" Flag in CONNECT;
    RESPONSE_INFO(0x1A) "Response Information" Text in CONNACK;
    SERVER_REFERENCE(0x1C) "Server Reference" Text in CONNACK | DISCONNECT;
    REASON_STRING(0x1F) "Reason String" Text in REASONS;
    RECEIVE_MAXIMUM(0x21) "Receive Maximum" U16Positive in CONNECT | CONNACK;
    TOPIC_ALIAS_MAXIMUM(0x22) "Topic Alias Maximum" U16 in CONNECT | CONNACK;
    TOPIC_ALIAS(0x23) "Topic Alias" U16Positive in PUBLISH;
    MAXIMUM_QOS(0x24) "Maximum QoS" Flag in CONNACK;
    RETAIN_AVAILABLE(0x25) "Retain Available" Flag in CONNACK;
    USER_PROPERTY(0x26) "User Property" Pair in EVERYWHERE;
    MAXIMUM_PACKET_SIZE(0x27) "Maximum Packet Size" U32Positive in CONNECT | CONNACK;
    WILDCARD_AVAILABLE(0x28) "Wildcard Subscription Available" Flag in CONNACK;
    SUBSCRIPTION_IDS_AVAILABLE(0x29) "Subscription Identifier Available" Flag in CONNACK;
    SHARED_AVAILABLE(0x2A) "Shared Subscription Available" Flag in CONNACK;
}

/// A property's value as it stands in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A flag, an integer of two or four bytes, or a variable byte integer.
    Int(u32),
    /// A UTF-8 string.
    Text(&'a str),
    /// Binary data.
    Binary(&'a [u8]),
    /// A name and a value.
    Pair(&'a str, &'a str),
}

/// One property of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property<'a> {
    /// Which property.
    pub id: PropertyId,
    /// Its value.
    pub value: Value<'a>,
}

impl Property<'_> {
    /// The value of a numeric property; 0 for any other kind.
    pub const fn int(&self) -> u32 {
        match self.value {
            Value::Int(value) => value,
            Value::Text(_) | Value::Binary(_) | Value::Pair(..) => 0,
        }
    }
}

/// Walks a block, checks every rule of `place`, and shows each property to `visit`.
#[inline]
pub(super) fn walk<'a>(
    block: &'a [u8],
    place: Place,
    mut visit: impl FnMut(Property<'a>),
) -> Result<(), DecodeError> {
    let mut reader = Reader::new(block);
    let mut seen = 0u64;
    while !reader.is_empty() {
        // An identifier is a variable byte integer, but none defined needs a second byte.
        let id = PropertyId(reader.u8()?);
        let (kind, places) = id.rule().ok_or(UNKNOWN)?;
        if places & place.mask() == 0 {
            return Err(MISPLACED);
        }
        let bit = 1u64 << id.0;
        if seen & bit != 0 && !may_repeat(id, place) {
            return Err(DecodeError::protocol(
                "MQTT-2.2.2.2",
                "a property stands twice",
            ));
        }
        seen |= bit;
        let value = value(&mut reader, kind, place)?;
        visit(Property { id, value });
    }
    let has = |id: PropertyId| seen & (1 << id.0) != 0;
    if has(PropertyId::AUTH_DATA) && !has(PropertyId::AUTH_METHOD) {
        return Err(DecodeError::protocol(
            "MQTT-3.1.2.11.10",
            "authentication data without a method",
        ));
    }
    Ok(())
}

const UNKNOWN: DecodeError =
    DecodeError::malformed("MQTT-2.2.2.2", "an unknown property identifier");
const MISPLACED: DecodeError =
    DecodeError::malformed("MQTT-2.2.2.2", "a property that its packet may not carry");
const ZERO: DecodeError = DecodeError::protocol("MQTT-2.2.2.2", "a property must not be 0");

/// Whether a second property of the same kind is legal.
const fn may_repeat(id: PropertyId, place: Place) -> bool {
    match id {
        PropertyId::USER_PROPERTY => true,
        PropertyId::SUBSCRIPTION_ID => place.is_publish(),
        _ => false,
    }
}

#[inline]
fn value<'a>(reader: &mut Reader<'a>, kind: Kind, place: Place) -> Result<Value<'a>, DecodeError> {
    let positive = |value: u32| {
        if value == 0 {
            Err(ZERO)
        } else {
            Ok(Value::Int(value))
        }
    };
    match kind {
        Kind::Flag => match reader.u8()? {
            flag @ 0..=1 => Ok(Value::Int(u32::from(flag))),
            _ => Err(DecodeError::protocol(
                "MQTT-2.2.2.2",
                "a flag is neither 0 nor 1",
            )),
        },
        Kind::U16 => reader.u16().map(|value| Value::Int(u32::from(value))),
        Kind::U16Positive => match reader.u16()? {
            0 if place.is_publish() => Err(DecodeError::TopicAlias {
                clause: "MQTT-3.3.2-8",
            }),
            value => positive(u32::from(value)),
        },
        Kind::U32 => reader.u32().map(Value::Int),
        Kind::U32Positive => positive(reader.u32()?),
        Kind::VarIntPositive => positive(reader.var_int()?),
        Kind::Text => reader.text().map(Value::Text),
        Kind::Topic => {
            let text = reader.text()?;
            if text.is_empty() || text.contains(['+', '#']) {
                // [MQTT-3.3.2-14]
                return Err(DecodeError::protocol(
                    "MQTT-3.3.2-14",
                    "the response topic is not a topic name",
                ));
            }
            Ok(Value::Text(text))
        }
        Kind::Binary => reader.binary().map(Value::Binary),
        // [MQTT-1.5.7-1]
        Kind::Pair => Ok(Value::Pair(reader.text()?, reader.text()?)),
    }
}

/// A property block that was checked for its place: the bytes after its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    block: Bytes,
}

impl Properties {
    /// No properties; also what every 3.1.1 packet has.
    pub const EMPTY: Properties = Properties {
        block: Bytes::new(),
    };

    /// Checks a block (without its length in front) for the place it stands in.
    ///
    /// # Errors
    /// The first rule of section 2.2.2 that it breaks.
    pub fn parse(block: Bytes, place: Place) -> Result<Properties, DecodeError> {
        walk(&block, place, |_| ())?;
        Ok(Properties { block })
    }

    /// A block that a walk has accepted already.
    pub(super) const fn checked(block: Bytes) -> Properties {
        Properties { block }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// The bytes of the block, without its length.
    pub const fn block(&self) -> &Bytes {
        &self.block
    }

    /// The properties in the order in which they came.
    pub fn iter(&self) -> PropertyIter<'_> {
        PropertyIter {
            reader: Reader::new(&self.block),
        }
    }

    fn find(&self, id: PropertyId) -> Option<Value<'_>> {
        self.iter()
            .find(|property| property.id == id)
            .map(|property| property.value)
    }

    /// The value of a numeric property.
    pub fn int(&self, id: PropertyId) -> Option<u32> {
        match self.find(id) {
            Some(Value::Int(value)) => Some(value),
            _ => None,
        }
    }

    /// The value of a string property.
    pub fn text(&self, id: PropertyId) -> Option<&str> {
        match self.find(id) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The value of a binary property.
    pub fn binary(&self, id: PropertyId) -> Option<&[u8]> {
        match self.find(id) {
            Some(Value::Binary(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

/// Iterates over a checked block. It ends early, and never panics, on bytes that are none.
pub struct PropertyIter<'a> {
    reader: Reader<'a>,
}

impl<'a> PropertyIter<'a> {
    /// Iterates over the bytes of a block that was checked when it came in, for PUBLISH.
    pub const fn over(block: &'a [u8]) -> PropertyIter<'a> {
        PropertyIter {
            reader: Reader::new(block),
        }
    }
}

impl<'a> Iterator for PropertyIter<'a> {
    type Item = Property<'a>;

    fn next(&mut self) -> Option<Property<'a>> {
        if self.reader.is_empty() {
            return None;
        }
        let id = PropertyId(self.reader.u8().ok()?);
        let (kind, _) = id.rule()?;
        let value = value(&mut self.reader, kind, Place::Will).ok()?;
        Some(Property { id, value })
    }
}

/// Steps over one property of a checked block and says which it was.
pub(super) fn skip(reader: &mut Reader<'_>) -> Option<PropertyId> {
    let id = PropertyId(reader.u8().ok()?);
    let (kind, _) = id.rule()?;
    value(reader, kind, Place::Will).ok()?;
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::super::property_write::PropertiesBuilder;
    use super::*;

    fn parse(block: &[u8], place: Place) -> Result<Properties, DecodeError> {
        Properties::parse(Bytes::copy_from_slice(block), place)
    }

    const PUBLISH_PLACE: Place = Place::Packet(PacketType::Publish);

    #[test]
    fn order_is_free_and_kept() {
        let block = PropertiesBuilder::new()
            .pair("b", "2")
            .int(PropertyId::MESSAGE_EXPIRY, 60)
            .pair("a", "1")
            .build();
        let parsed = parse(block.block(), PUBLISH_PLACE).expect("legal block");
        let ids: Vec<u8> = parsed.iter().map(|property| property.id.0).collect();
        assert_eq!(ids, [0x26, 0x02, 0x26]);
        assert_eq!(parsed.int(PropertyId::MESSAGE_EXPIRY), Some(60));
    }

    #[test]
    fn a_property_stands_once_and_in_its_packet() {
        let twice = [0x02, 0, 0, 0, 1, 0x02, 0, 0, 0, 1];
        assert!(matches!(
            parse(&twice, PUBLISH_PLACE),
            Err(DecodeError::Protocol { .. })
        ));
        let ids = [0x0B, 1, 0x0B, 2];
        assert!(parse(&ids, PUBLISH_PLACE).is_ok());
        assert!(parse(&ids, Place::Packet(PacketType::Subscribe)).is_err());
        let will_delay = [0x18, 0, 0, 0, 1];
        assert!(parse(&will_delay, Place::Will).is_ok());
        assert!(matches!(
            parse(&will_delay, PUBLISH_PLACE),
            Err(DecodeError::Malformed { .. })
        ));
        assert!(parse(&[0x7E, 0], PUBLISH_PLACE).is_err());
        assert!(parse(&[0xFF, 0], PUBLISH_PLACE).is_err());
    }

    #[test]
    fn values_are_in_range() {
        let connect = Place::Packet(PacketType::Connect);
        assert!(parse(&[0x21, 0, 0], connect).is_err(), "receive maximum 0");
        assert!(
            parse(&[0x27, 0, 0, 0, 0], connect).is_err(),
            "packet size 0"
        );
        assert!(parse(&[0x17, 2], connect).is_err(), "flag 2");
        assert!(
            parse(&[0x16, 0, 0], connect).is_err(),
            "data without method"
        );
        assert_eq!(
            parse(&[0x23, 0, 0], PUBLISH_PLACE),
            Err(DecodeError::TopicAlias {
                clause: "MQTT-3.3.2-8"
            })
        );
        assert!(
            parse(&[0x08, 0, 1, b'#'], PUBLISH_PLACE).is_err(),
            "MQTT-3.3.2-14"
        );
    }
}
