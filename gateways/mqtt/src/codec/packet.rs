//! The packets of all versions as values.
//!
//! What lives on past its read (client identifier, credentials, will, filters) is owned text;
//! what passes through (topic, payload, property block) is a slice of the read's buffer.

use bytes::Bytes;

use super::property::Properties;
use super::publish::PublishNotes;
use super::reason_code::ReasonCode;

/// A version of the protocol, with its protocol level on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// MQTT 3.1, level 3, with a protocol name of its own.
    V31,
    /// MQTT 3.1.1, level 4.
    V311,
    /// MQTT 5.0, level 5.
    V5,
}

impl Version {
    /// The protocol level in CONNECT.
    pub const fn level(self) -> u8 {
        match self {
            Version::V31 => 3,
            Version::V311 => 4,
            Version::V5 => 5,
        }
    }

    /// The protocol name in CONNECT.
    pub const fn protocol_name(self) -> &'static [u8] {
        match self {
            Version::V31 => b"MQIsdp",
            Version::V311 | Version::V5 => b"MQTT",
        }
    }

    /// Whether packets have properties and reason codes.
    pub const fn is_v5(self) -> bool {
        matches!(self, Version::V5)
    }
}

/// The control packet types, with their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    /// Connection request.
    Connect = 1,
    /// Connect acknowledgement.
    ConnAck = 2,
    /// A message.
    Publish = 3,
    /// QoS 1 acknowledgement.
    PubAck = 4,
    /// QoS 2, second step.
    PubRec = 5,
    /// QoS 2, third step.
    PubRel = 6,
    /// QoS 2, last step.
    PubComp = 7,
    /// Subscribe request.
    Subscribe = 8,
    /// Subscribe acknowledgement.
    SubAck = 9,
    /// Unsubscribe request.
    Unsubscribe = 10,
    /// Unsubscribe acknowledgement.
    UnsubAck = 11,
    /// Ping request.
    PingReq = 12,
    /// Ping response.
    PingResp = 13,
    /// Disconnect notification.
    Disconnect = 14,
    /// Authentication exchange, 5.0 only.
    Auth = 15,
}

impl PacketType {
    /// A bit of its own for tables of packet types.
    pub const fn mask(self) -> u16 {
        1 << (self as u8)
    }

    /// The type with this number.
    pub const fn from_number(number: u8) -> Option<PacketType> {
        Some(match number {
            1 => PacketType::Connect,
            2 => PacketType::ConnAck,
            3 => PacketType::Publish,
            4 => PacketType::PubAck,
            5 => PacketType::PubRec,
            6 => PacketType::PubRel,
            7 => PacketType::PubComp,
            8 => PacketType::Subscribe,
            9 => PacketType::SubAck,
            10 => PacketType::Unsubscribe,
            11 => PacketType::UnsubAck,
            12 => PacketType::PingReq,
            13 => PacketType::PingResp,
            14 => PacketType::Disconnect,
            15 => PacketType::Auth,
            _ => return None,
        })
    }

    /// The flags that the fixed header must have; `None` for PUBLISH, whose flags say something.
    pub const fn fixed_flags(self) -> Option<u8> {
        match self {
            PacketType::Publish => None,
            PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe => Some(0b0010),
            _ => Some(0),
        }
    }
}

/// A delivery promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QoS {
    /// At most once.
    AtMostOnce = 0,
    /// At least once.
    AtLeastOnce = 1,
    /// Exactly once.
    ExactlyOnce = 2,
}

impl QoS {
    /// The QoS with this number, 0 to 2.
    pub const fn from_number(number: u8) -> Option<QoS> {
        Some(match number {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            2 => QoS::ExactlyOnce,
            _ => return None,
        })
    }
}

/// Any packet of either version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Client to server: the first packet.
    Connect(Box<Connect>),
    /// Server to client: the answer to CONNECT.
    ConnAck(ConnAck),
    /// A message, either way.
    Publish(Publish),
    /// Acknowledges a QoS 1 PUBLISH.
    PubAck(Ack),
    /// Acknowledges a QoS 2 PUBLISH.
    PubRec(Ack),
    /// Releases a QoS 2 packet identifier.
    PubRel(Ack),
    /// Completes a QoS 2 exchange.
    PubComp(Ack),
    /// Client to server: asks for subscriptions.
    Subscribe(Subscribe),
    /// Server to client: what was granted.
    SubAck(SubAck),
    /// Client to server: ends subscriptions.
    Unsubscribe(Unsubscribe),
    /// Server to client: what was ended.
    UnsubAck(UnsubAck),
    /// Client to server: is the connection alive.
    PingReq,
    /// Server to client: it is.
    PingResp,
    /// The last packet.
    Disconnect(Disconnect),
    /// A step of an extended authentication, 5.0 only.
    Auth(Auth),
}

impl Packet {
    /// The type of the packet.
    pub const fn packet_type(&self) -> PacketType {
        match self {
            Packet::Connect(_) => PacketType::Connect,
            Packet::ConnAck(_) => PacketType::ConnAck,
            Packet::Publish(_) => PacketType::Publish,
            Packet::PubAck(_) => PacketType::PubAck,
            Packet::PubRec(_) => PacketType::PubRec,
            Packet::PubRel(_) => PacketType::PubRel,
            Packet::PubComp(_) => PacketType::PubComp,
            Packet::Subscribe(_) => PacketType::Subscribe,
            Packet::SubAck(_) => PacketType::SubAck,
            Packet::Unsubscribe(_) => PacketType::Unsubscribe,
            Packet::UnsubAck(_) => PacketType::UnsubAck,
            Packet::PingReq => PacketType::PingReq,
            Packet::PingResp => PacketType::PingResp,
            Packet::Disconnect(_) => PacketType::Disconnect,
            Packet::Auth(_) => PacketType::Auth,
        }
    }
}

/// CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The version asked for.
    pub version: Version,
    /// Clean start (5.0) or clean session (3.1.1).
    pub clean_start: bool,
    /// Longest silence that the client promises, in seconds; 0 is no promise.
    pub keep_alive_s: u16,
    /// Client identifier; empty asks the server for one.
    pub client_id: String,
    /// The will, if the client leaves one.
    pub will: Option<Will>,
    /// User name.
    pub username: Option<String>,
    /// Password: any bytes.
    pub password: Option<Bytes>,
    /// Properties.
    pub properties: Properties,
}

/// The message that a client leaves to be published when it vanishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Where to.
    pub topic: Bytes,
    /// What.
    pub payload: Bytes,
    /// With which promise.
    pub qos: QoS,
    /// Whether as a retained message.
    pub retain: bool,
    /// Will properties.
    pub properties: Properties,
}

/// CONNACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnAck {
    /// Whether the server kept a session for this client.
    pub session_present: bool,
    /// The verdict. In 3.1.1 one of the few that have a return code.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: Properties,
}

/// PUBLISH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Whether this may be a repetition of an earlier PUBLISH.
    pub dup: bool,
    /// The promise.
    pub qos: QoS,
    /// Whether to keep as (or sent as) the topic's retained message.
    pub retain: bool,
    /// Topic name: checked text; empty in 5.0 when a topic alias stands for it.
    pub topic: Bytes,
    /// Packet identifier; 0 at QoS 0.
    pub packet_id: u16,
    /// The property block as it came.
    pub properties: Properties,
    /// What the walk over the properties noted on its way.
    pub notes: PublishNotes,
    /// The message.
    pub payload: Bytes,
}

/// PUBACK, PUBREC, PUBREL and PUBCOMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Which PUBLISH, never 0.
    pub packet_id: u16,
    /// How it went; always success in 3.1.1.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: Properties,
}

impl Ack {
    /// An acknowledgement without properties.
    pub const fn new(packet_id: u16, reason: ReasonCode) -> Ack {
        Ack {
            packet_id,
            reason,
            properties: Properties::EMPTY,
        }
    }
}

/// What to do with retained messages when a subscription is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RetainHandling {
    /// Send them.
    Send = 0,
    /// Send them if the subscription is new.
    SendIfNew = 1,
    /// Do not send them.
    DoNotSend = 2,
}

/// One topic filter of SUBSCRIBE with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeFilter {
    /// The filter: UTF-8, but not checked for wildcards, since a bad one is answered in SUBACK.
    pub filter: String,
    /// The most the subscriber wants.
    pub qos: QoS,
    /// Whether to hold back what this client published itself.
    pub no_local: bool,
    /// Whether to forward the retain flag as published.
    pub retain_as_published: bool,
    /// What to do with retained messages.
    pub retain_handling: RetainHandling,
}

/// SUBSCRIBE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// Packet identifier, never 0.
    pub packet_id: u16,
    /// Properties.
    pub properties: Properties,
    /// At least one filter.
    pub filters: Vec<SubscribeFilter>,
}

/// SUBACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubAck {
    /// That of the SUBSCRIBE.
    pub packet_id: u16,
    /// Properties.
    pub properties: Properties,
    /// One per filter, in its order.
    pub reasons: Vec<ReasonCode>,
}

/// UNSUBSCRIBE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscribe {
    /// Packet identifier, never 0.
    pub packet_id: u16,
    /// Properties.
    pub properties: Properties,
    /// At least one filter.
    pub filters: Vec<String>,
}

/// UNSUBACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsubAck {
    /// That of the UNSUBSCRIBE.
    pub packet_id: u16,
    /// Properties.
    pub properties: Properties,
    /// One per filter, in its order; none in 3.1.1.
    pub reasons: Vec<ReasonCode>,
}

/// DISCONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// Why; always success in 3.1.1.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: Properties,
}

/// AUTH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Success, continue or re-authenticate.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: Properties,
}
