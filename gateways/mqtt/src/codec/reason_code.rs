//! Reason codes: one byte with the standard's name and the packets that may carry it.
//!
//! The table is section 2.4 of MQTT 5.0. 3.1.1 has its own few codes in CONNACK and SUBACK; the
//! conversions to and from those stand here too, so that the rest of the crate knows one set.
//! Which code answers which refusal is decided in [`crate::reason`] and [`super::DecodeError`].

use std::fmt;

use super::packet::PacketType;

/// A reason code of MQTT 5.0. 0x80 and above mean failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReasonCode(pub u8);

const CONNACK: u16 = PacketType::ConnAck.mask();
const PUBACK: u16 = PacketType::PubAck.mask();
const PUBREC: u16 = PacketType::PubRec.mask();
const PUBREL: u16 = PacketType::PubRel.mask();
const PUBCOMP: u16 = PacketType::PubComp.mask();
const SUBACK: u16 = PacketType::SubAck.mask();
const UNSUBACK: u16 = PacketType::UnsubAck.mask();
const DISCONNECT: u16 = PacketType::Disconnect.mask();
const AUTH: u16 = PacketType::Auth.mask();
const ACKS: u16 = PUBACK | PUBREC;
const SUBS: u16 = SUBACK | UNSUBACK;
const ENDS: u16 = CONNACK | DISCONNECT;

macro_rules! reason_codes {
    ($($name:ident($value:literal) $text:literal in $packets:expr;)*) => {
        impl ReasonCode {
            $(
                #[doc = $text]
                pub const $name: ReasonCode = ReasonCode($value);
            )*

            /// The standard's name, or `Reserved` for a value the standard does not define.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $text,)*
                    _ => "Reserved",
                }
            }

            /// The packet types that may carry this code, as bits of [`PacketType::mask`].
            const fn packets(self) -> u16 {
                match self.0 {
                    $($value => $packets,)*
                    _ => 0,
                }
            }
        }
    };
}

reason_codes! {
    SUCCESS(0x00) "Success" in
        CONNACK | ACKS | PUBREL | PUBCOMP | SUBS | DISCONNECT | AUTH;
    GRANTED_QOS_1(0x01) "Granted QoS 1" in SUBACK;
    GRANTED_QOS_2(0x02) "Granted QoS 2" in SUBACK;
    DISCONNECT_WITH_WILL(0x04) "Disconnect with Will Message" in DISCONNECT;
    NO_MATCHING_SUBSCRIBERS(0x10) "No matching subscribers" in ACKS;
    NO_SUBSCRIPTION_EXISTED(0x11) "No subscription existed" in UNSUBACK;
    CONTINUE_AUTHENTICATION(0x18) "Continue authentication" in AUTH;
    REAUTHENTICATE(0x19) "Re-authenticate" in AUTH;
    UNSPECIFIED_ERROR(0x80) "Unspecified error" in ENDS | ACKS | SUBS;
    MALFORMED_PACKET(0x81) "Malformed Packet" in ENDS;
    PROTOCOL_ERROR(0x82) "Protocol Error" in ENDS;
    IMPLEMENTATION_SPECIFIC(0x83) "Implementation specific error" in ENDS | ACKS | SUBS;
    UNSUPPORTED_PROTOCOL_VERSION(0x84) "Unsupported Protocol Version" in CONNACK;
    CLIENT_IDENTIFIER_NOT_VALID(0x85) "Client Identifier not valid" in CONNACK;
    BAD_USER_NAME_OR_PASSWORD(0x86) "Bad User Name or Password" in CONNACK;
    NOT_AUTHORIZED(0x87) "Not authorized" in ENDS | ACKS | SUBS;
    SERVER_UNAVAILABLE(0x88) "Server unavailable" in CONNACK;
    SERVER_BUSY(0x89) "Server busy" in ENDS;
    BANNED(0x8A) "Banned" in CONNACK;
    SERVER_SHUTTING_DOWN(0x8B) "Server shutting down" in DISCONNECT;
    BAD_AUTHENTICATION_METHOD(0x8C) "Bad authentication method" in ENDS;
    KEEP_ALIVE_TIMEOUT(0x8D) "Keep Alive timeout" in DISCONNECT;
    SESSION_TAKEN_OVER(0x8E) "Session taken over" in DISCONNECT;
    TOPIC_FILTER_INVALID(0x8F) "Topic Filter invalid" in SUBS | DISCONNECT;
    TOPIC_NAME_INVALID(0x90) "Topic Name invalid" in ENDS | ACKS;
    PACKET_IDENTIFIER_IN_USE(0x91) "Packet Identifier in use" in ACKS | SUBS;
    PACKET_IDENTIFIER_NOT_FOUND(0x92) "Packet Identifier not found" in PUBREL | PUBCOMP;
    RECEIVE_MAXIMUM_EXCEEDED(0x93) "Receive Maximum exceeded" in DISCONNECT;
    TOPIC_ALIAS_INVALID(0x94) "Topic Alias invalid" in DISCONNECT;
    PACKET_TOO_LARGE(0x95) "Packet too large" in ENDS;
    MESSAGE_RATE_TOO_HIGH(0x96) "Message rate too high" in DISCONNECT;
    QUOTA_EXCEEDED(0x97) "Quota exceeded" in ENDS | ACKS | SUBACK;
    ADMINISTRATIVE_ACTION(0x98) "Administrative action" in DISCONNECT;
    PAYLOAD_FORMAT_INVALID(0x99) "Payload format invalid" in ENDS | ACKS;
    RETAIN_NOT_SUPPORTED(0x9A) "Retain not supported" in ENDS;
    QOS_NOT_SUPPORTED(0x9B) "QoS not supported" in ENDS;
    USE_ANOTHER_SERVER(0x9C) "Use another server" in ENDS;
    SERVER_MOVED(0x9D) "Server moved" in ENDS;
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED(0x9E) "Shared Subscriptions not supported" in
        SUBACK | DISCONNECT;
    CONNECTION_RATE_EXCEEDED(0x9F) "Connection rate exceeded" in ENDS;
    MAXIMUM_CONNECT_TIME(0xA0) "Maximum connect time" in DISCONNECT;
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED(0xA1) "Subscription Identifiers not supported" in
        SUBACK | DISCONNECT;
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED(0xA2) "Wildcard Subscriptions not supported" in
        SUBACK | DISCONNECT;
}

impl ReasonCode {
    /// Whether the code says that what was asked did not happen.
    pub const fn is_failure(self) -> bool {
        self.0 >= 0x80
    }

    /// Whether a packet of this type may carry the code.
    pub const fn allowed_in(self, packet: PacketType) -> bool {
        self.packets() & packet.mask() != 0
    }

    /// The CONNACK return code of 3.1.1 that says the same (0 to 5).
    pub const fn to_connect_return_code(self) -> u8 {
        match self {
            ReasonCode::SUCCESS => 0,
            ReasonCode::UNSUPPORTED_PROTOCOL_VERSION => 1,
            ReasonCode::CLIENT_IDENTIFIER_NOT_VALID => 2,
            ReasonCode::BAD_USER_NAME_OR_PASSWORD => 4,
            ReasonCode::NOT_AUTHORIZED | ReasonCode::BANNED => 5,
            // Everything else that 3.1.1 cannot say is "the service is not to be had".
            _ => 3,
        }
    }

    /// The reason code for a CONNACK return code of 3.1.1; `None` for a reserved one.
    pub const fn from_connect_return_code(code: u8) -> Option<ReasonCode> {
        Some(match code {
            0 => ReasonCode::SUCCESS,
            1 => ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
            2 => ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
            3 => ReasonCode::SERVER_UNAVAILABLE,
            4 => ReasonCode::BAD_USER_NAME_OR_PASSWORD,
            5 => ReasonCode::NOT_AUTHORIZED,
            _ => return None,
        })
    }

    /// The SUBACK return code of 3.1.1: the granted QoS, or 0x80 for every failure.
    pub const fn to_suback_return_code(self) -> u8 {
        if self.is_failure() { 0x80 } else { self.0 }
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:02X} {}", self.0, self.name())
    }
}

impl fmt::Debug for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_carry_the_names_of_the_standard() {
        assert_eq!(ReasonCode(0x8E).to_string(), "0x8E Session taken over");
        assert_eq!(ReasonCode(0x03).name(), "Reserved");
        assert_eq!(ReasonCode(0xFF).name(), "Reserved");
    }

    #[test]
    fn codes_are_bound_to_their_packets() {
        assert!(ReasonCode::QUOTA_EXCEEDED.allowed_in(PacketType::PubAck));
        assert!(!ReasonCode::QUOTA_EXCEEDED.allowed_in(PacketType::UnsubAck));
        assert!(!ReasonCode(0xFF).allowed_in(PacketType::Disconnect));
        assert!(!ReasonCode::SERVER_SHUTTING_DOWN.allowed_in(PacketType::ConnAck));
    }

    #[test]
    fn connect_return_codes_of_the_older_version_come_back() {
        for code in 0..=5 {
            let reason = ReasonCode::from_connect_return_code(code).expect("defined code");
            assert_eq!(reason.to_connect_return_code(), code);
        }
        assert_eq!(ReasonCode::from_connect_return_code(6), None);
    }
}
