//! Which reason code answers which refusal of the core, and which stop.
//!
//! One table for all versions (the older ones narrow the codes when they write them). Every kind has a
//! row: a new kind does not compile until it has one. What the codec refuses carries its own code,
//! [`crate::codec::DecodeError::reason`].

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::StopReason;

use crate::codec::ReasonCode;

/// The codes that say one refusal in each packet that may have to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// In CONNACK.
    pub connack: ReasonCode,
    /// In PUBACK and PUBREC; `None` where an acknowledgement would tell the client to forget a message that
    /// should be sent again: the connection ends with `disconnect` instead.
    pub puback: Option<ReasonCode>,
    /// In SUBACK.
    pub suback: ReasonCode,
    /// In DISCONNECT.
    pub disconnect: ReasonCode,
}

impl Row {
    const fn new(
        connack: ReasonCode,
        puback: Option<ReasonCode>,
        suback: ReasonCode,
        disconnect: ReasonCode,
    ) -> Row {
        Row {
            connack,
            puback,
            suback,
            disconnect,
        }
    }

    /// The same code wherever it may stand.
    const fn same(code: ReasonCode) -> Row {
        Row::new(code, Some(code), code, code)
    }
}

/// The codes for a kind of refusal.
pub const fn row(kind: ErrorKind) -> Row {
    use ReasonCode as R;
    match kind {
        ErrorKind::AccessRefused => Row::same(R::NOT_AUTHORIZED),
        ErrorKind::BadCredentials => Row::new(
            R::BAD_USER_NAME_OR_PASSWORD,
            Some(R::NOT_AUTHORIZED),
            R::NOT_AUTHORIZED,
            R::NOT_AUTHORIZED,
        ),
        ErrorKind::BadRequest => Row::new(
            R::UNSPECIFIED_ERROR,
            Some(R::TOPIC_NAME_INVALID),
            R::TOPIC_FILTER_INVALID,
            R::TOPIC_NAME_INVALID,
        ),
        ErrorKind::Busy => Row::new(
            R::SERVER_BUSY,
            Some(R::QUOTA_EXCEEDED),
            R::QUOTA_EXCEEDED,
            R::SERVER_BUSY,
        ),
        ErrorKind::Inequivalent
        | ErrorKind::InUse
        | ErrorKind::Locked
        | ErrorKind::NotEmpty
        | ErrorKind::NotSupported
        | ErrorKind::SecondConsumer => Row::same(R::IMPLEMENTATION_SPECIFIC),
        ErrorKind::MessageTooLarge => Row::new(
            R::PACKET_TOO_LARGE,
            Some(R::QUOTA_EXCEEDED),
            R::QUOTA_EXCEEDED,
            R::PACKET_TOO_LARGE,
        ),
        // The vhost or the exchange of the configuration is missing.
        ErrorKind::NotFound => Row::new(
            R::SERVER_UNAVAILABLE,
            Some(R::IMPLEMENTATION_SPECIFIC),
            R::IMPLEMENTATION_SPECIFIC,
            R::IMPLEMENTATION_SPECIFIC,
        ),
        ErrorKind::QuotaExceeded => Row::same(R::QUOTA_EXCEEDED),
        ErrorKind::ShuttingDown => Row::new(
            R::SERVER_UNAVAILABLE,
            None,
            R::UNSPECIFIED_ERROR,
            R::SERVER_SHUTTING_DOWN,
        ),
        ErrorKind::StorageFailed => Row::new(
            R::SERVER_UNAVAILABLE,
            None,
            R::UNSPECIFIED_ERROR,
            R::UNSPECIFIED_ERROR,
        ),
        ErrorKind::Unavailable => Row::new(
            R::SERVER_UNAVAILABLE,
            None,
            R::UNSPECIFIED_ERROR,
            R::SERVER_BUSY,
        ),
    }
}

/// What an acknowledgement says of a refused publish, for people.
pub const fn words(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::AccessRefused | ErrorKind::BadCredentials => {
            "the rules do not allow to publish this here"
        }
        ErrorKind::BadRequest => "the topic is no address that messages can have",
        ErrorKind::Busy => "there is no room now; send it again later",
        ErrorKind::MessageTooLarge => "the message is larger than the broker takes",
        ErrorKind::QuotaExceeded => "a quota is used up",
        ErrorKind::NotFound => "the exchange that it was for is missing",
        ErrorKind::NotSupported => "the broker does not do this",
        ErrorKind::Inequivalent
        | ErrorKind::InUse
        | ErrorKind::Locked
        | ErrorKind::NotEmpty
        | ErrorKind::SecondConsumer => "a destination does not take it",
        ErrorKind::ShuttingDown => "the server shuts down",
        ErrorKind::StorageFailed => "the message could not be stored",
        ErrorKind::Unavailable => "a part of the broker does not answer now",
    }
}

/// The code in DISCONNECT, and a sentence, when the broker ends a connection.
pub const fn of_stop(stop: StopReason) -> (ReasonCode, &'static str) {
    match stop {
        StopReason::Shutdown => (ReasonCode::SERVER_SHUTTING_DOWN, "the server shuts down"),
        StopReason::Kicked => (ReasonCode::ADMINISTRATIVE_ACTION, "closed by an operator"),
        // [MQTT-3.1.4-3]
        StopReason::TakenOver => (
            ReasonCode::SESSION_TAKEN_OVER,
            "another connection took the session over",
        ),
        StopReason::Unauthorised => (
            ReasonCode::NOT_AUTHORIZED,
            "the rules do not allow this connection any more",
        ),
        StopReason::SlowReader => (
            ReasonCode::QUOTA_EXCEEDED,
            "the client does not read what it is sent",
        ),
        StopReason::LoginTimeout => (
            ReasonCode::MAXIMUM_CONNECT_TIME,
            "no login within the time for it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::PacketType;

    const KINDS: [ErrorKind; 16] = [
        ErrorKind::AccessRefused,
        ErrorKind::BadCredentials,
        ErrorKind::BadRequest,
        ErrorKind::Busy,
        ErrorKind::Inequivalent,
        ErrorKind::InUse,
        ErrorKind::Locked,
        ErrorKind::MessageTooLarge,
        ErrorKind::NotEmpty,
        ErrorKind::NotFound,
        ErrorKind::NotSupported,
        ErrorKind::QuotaExceeded,
        ErrorKind::SecondConsumer,
        ErrorKind::ShuttingDown,
        ErrorKind::StorageFailed,
        ErrorKind::Unavailable,
    ];

    #[test]
    fn every_code_may_stand_in_its_packet_and_says_failure() {
        for kind in KINDS {
            let row = row(kind);
            let mut codes = vec![
                (row.connack, PacketType::ConnAck),
                (row.suback, PacketType::SubAck),
                (row.disconnect, PacketType::Disconnect),
            ];
            codes.extend(row.puback.map(|code| (code, PacketType::PubAck)));
            codes.extend(row.puback.map(|code| (code, PacketType::PubRec)));
            for (code, packet) in codes {
                assert!(code.is_failure(), "{kind:?} in {packet:?}");
                assert!(code.allowed_in(packet), "{kind:?}: {code} in {packet:?}");
            }
        }
    }

    #[test]
    fn what_is_ours_to_blame_is_never_acknowledged() {
        for kind in KINDS {
            assert_eq!(row(kind).puback.is_none(), kind.is_ours(), "{kind:?}");
        }
    }
}
