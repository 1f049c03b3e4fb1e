//! Why bytes were not a packet, and the reason code that says so to the peer.
//!
//! Each error names the clause it enforces. Whether the peer hears the code (5.0, connected) or
//! the connection just closes (3.1.1) is the connection's decision.

use super::reason_code::ReasonCode;

/// Why a decoder stopped. No packet can be read from the connection after one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes cannot be parsed (0x81).
    #[error("malformed packet: {what} [{clause}]")]
    Malformed {
        /// The clause of the standard that forbids it.
        clause: &'static str,
        /// What was wrong.
        what: &'static str,
    },
    /// The bytes parse, but say what the protocol forbids (0x82).
    #[error("protocol error: {what} [{clause}]")]
    Protocol {
        /// The clause of the standard that forbids it.
        clause: &'static str,
        /// What was wrong.
        what: &'static str,
    },
    /// The packet is larger than this side accepts (0x95).
    #[error("packet of {bytes} bytes is over the limit of {limit_bytes} [MQTT-3.2.2-15]")]
    TooLarge {
        /// Size of the whole packet, fixed header included.
        bytes: usize,
        /// The limit it exceeds.
        limit_bytes: usize,
    },
    /// A packet other than CONNECT came first; it is not answered.
    #[error("the first packet is not CONNECT [MQTT-3.1.0-1]")]
    NotConnect,
    /// The protocol name is not that of this protocol, so the peer speaks another one.
    #[error("unknown protocol name [MQTT-3.1.2-1]")]
    ProtocolName,
    /// A version of the protocol that is not spoken here (0x84).
    #[error("unsupported protocol level {level} [MQTT-3.1.2-2]")]
    UnsupportedVersion {
        /// The protocol level that the CONNECT asked for.
        level: u8,
    },
    /// A topic name with a wildcard, or an empty one (0x90).
    #[error("invalid topic name: {what} [{clause}]")]
    TopicName {
        /// The clause of the standard that forbids it.
        clause: &'static str,
        /// What was wrong.
        what: &'static str,
    },
    /// A topic alias of 0 (0x94).
    #[error("invalid topic alias [{clause}]")]
    TopicAlias {
        /// The clause of the standard that forbids it.
        clause: &'static str,
    },
    /// More entries in one packet than this side accepts (0x97).
    #[error("more than {limit} {what} in one packet")]
    TooMany {
        /// What there were too many of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl DecodeError {
    pub(crate) const fn malformed(clause: &'static str, what: &'static str) -> DecodeError {
        DecodeError::Malformed { clause, what }
    }

    pub(crate) const fn protocol(clause: &'static str, what: &'static str) -> DecodeError {
        DecodeError::Protocol { clause, what }
    }

    /// The reason code that tells the peer (CONNACK before the connection stands, else
    /// DISCONNECT).
    pub const fn reason(&self) -> ReasonCode {
        match self {
            DecodeError::Malformed { .. } => ReasonCode::MALFORMED_PACKET,
            DecodeError::Protocol { .. } | DecodeError::NotConnect => ReasonCode::PROTOCOL_ERROR,
            DecodeError::TooLarge { .. } => ReasonCode::PACKET_TOO_LARGE,
            DecodeError::ProtocolName | DecodeError::UnsupportedVersion { .. } => {
                ReasonCode::UNSUPPORTED_PROTOCOL_VERSION
            }
            DecodeError::TopicName { .. } => ReasonCode::TOPIC_NAME_INVALID,
            DecodeError::TopicAlias { .. } => ReasonCode::TOPIC_ALIAS_INVALID,
            DecodeError::TooMany { .. } => ReasonCode::QUOTA_EXCEEDED,
        }
    }
}
