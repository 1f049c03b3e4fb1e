//! How a connection ends, and how packets are sent within the client's limits.
//!
//! A fault has a reason code and a sentence. The client hears them in CONNACK while opening, in
//! DISCONNECT when open and 5.0, and else not at all; the log always does.

use std::borrow::Cow;

use anabranch_core::gateway::{Close, ClosedBy, Connection, Outputs, StopReason};
use anabranch_core::id::Now;

use super::{MqttConnection, Phase};
use crate::codec::{
    Ack, ConnAck, DecodeError, Disconnect, Packet, PacketType, Properties, PropertiesBuilder,
    PropertyId, ReasonCode, SubAck, UnsubAck, encode, encode_ack,
};
use crate::reason;

/// Why a connection ends, for its peer and for the log.
pub(super) struct Fault {
    pub(super) reason: ReasonCode,
    pub(super) why: Cow<'static, str>,
    pub(super) by: ClosedBy,
}

impl Fault {
    /// The peer broke the protocol.
    pub(super) fn peer(reason: ReasonCode, why: &'static str) -> Fault {
        Fault {
            reason,
            why: Cow::Borrowed(why),
            by: ClosedBy::PeerFault,
        }
    }

    /// What was asked is refused, or not built.
    pub(super) fn refused(reason: ReasonCode, why: impl Into<Cow<'static, str>>) -> Fault {
        Fault {
            reason,
            why: why.into(),
            by: ClosedBy::Refused,
        }
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Fault {
        Fault {
            reason: error.reason(),
            why: Cow::Owned(error.to_string()),
            by: ClosedBy::PeerFault,
        }
    }
}

impl MqttConnection {
    pub(super) fn on_timeout(&mut self, now: Now) -> Result<(), Fault> {
        let due = self.poll_timeout().is_some_and(|due| due <= now.monotonic);
        if !due {
            return Ok(());
        }
        // [MQTT-3.1.2-22]
        Err(Fault::peer(
            ReasonCode::KEEP_ALIVE_TIMEOUT,
            "nothing was heard for one and a half times the keep-alive",
        ))
    }

    pub(super) fn on_stop(&mut self, stop: StopReason, out: &mut Outputs) {
        let (reason, why) = reason::of_stop(stop);
        // Before CONNACK there is no word for most of these.
        let reason = match self.phase {
            Phase::Opening => ReasonCode::SERVER_UNAVAILABLE,
            Phase::Fresh | Phase::Open | Phase::Over => reason,
        };
        let by = match stop {
            StopReason::Shutdown | StopReason::Kicked | StopReason::TakenOver => ClosedBy::Us,
            StopReason::Unauthorised => ClosedBy::Refused,
            StopReason::SlowReader | StopReason::LoginTimeout => ClosedBy::PeerFault,
        };
        self.fail(
            Fault {
                reason,
                why: Cow::Borrowed(why),
                by,
            },
            out,
        );
    }

    /// Ends the connection and says why, as far as the version and the moment allow: CONNACK
    /// while opening, DISCONNECT when open and 5.0, else nothing.
    pub(super) fn fail(&mut self, fault: Fault, out: &mut Outputs) {
        let properties = if self.is_v5() && fault.reason != ReasonCode::SUCCESS {
            PropertiesBuilder::new()
                .text(PropertyId::REASON_STRING, &fault.why)
                .build()
        } else {
            Properties::EMPTY
        };
        let reason = fault.reason;
        match self.phase {
            Phase::Opening => {
                // [MQTT-3.2.2-6]
                self.send(
                    &Packet::ConnAck(ConnAck {
                        session_present: false,
                        reason,
                        properties,
                    }),
                    out,
                );
            }
            Phase::Open if self.is_v5() => {
                self.send(&Packet::Disconnect(Disconnect { reason, properties }), out);
            }
            Phase::Fresh | Phase::Open | Phase::Over => {}
        }
        self.end(fault.by, fault.why, out);
    }

    pub(super) fn end(&mut self, by: ClosedBy, why: Cow<'static, str>, out: &mut Outputs) {
        self.outbound.flush(&mut out.commands);
        self.drop_unarmed_will();
        self.phase = Phase::Over;
        out.close = Some(Close { by, why });
    }

    /// Sends a packet, without its reason string when it would be too large for the client
    /// [MQTT-3.1.2-24], and not at all when it still is; says whether it was sent.
    pub(super) fn send(&self, packet: &Packet, out: &mut Outputs) -> bool {
        let fits = |packet: &Packet, out: &mut Outputs| {
            let tail = out.send.tail();
            let before = tail.len();
            let encoded = encode(packet, self.client.version, tail).is_ok();
            let fits = encoded && tail.len() - before <= self.client.packet_bytes_max;
            if !fits {
                tail.truncate(before);
            }
            fits
        };
        let properties = Properties::EMPTY;
        fits(packet, out)
            || match packet {
                Packet::ConnAck(packet) if packet.reason.is_failure() => fits(
                    &Packet::ConnAck(ConnAck {
                        properties,
                        ..packet.clone()
                    }),
                    out,
                ),
                Packet::Disconnect(packet) => fits(
                    &Packet::Disconnect(Disconnect {
                        properties,
                        ..packet.clone()
                    }),
                    out,
                ),
                Packet::SubAck(packet) => fits(
                    &Packet::SubAck(SubAck {
                        properties,
                        ..packet.clone()
                    }),
                    out,
                ),
                Packet::UnsubAck(packet) => fits(
                    &Packet::UnsubAck(UnsubAck {
                        properties,
                        ..packet.clone()
                    }),
                    out,
                ),
                _ => false,
            }
    }

    #[inline]
    pub(super) fn send_ack(&self, packet_type: PacketType, ack: &Ack, out: &mut Outputs) {
        let tail = out.send.tail();
        let before = tail.len();
        // A few bytes of no properties are never too long for a client that took CONNACK.
        let encoded = encode_ack(packet_type, ack, self.client.version, tail);
        let over = tail.len() - before > self.client.packet_bytes_max;
        if !ack.properties.is_empty() && (over || encoded.is_err()) {
            // [MQTT-3.4.2-2], [MQTT-3.5.2-2]
            tail.truncate(before);
            let plain = Ack::new(ack.packet_id, ack.reason);
            let _ = encode_ack(packet_type, &plain, self.client.version, tail);
        }
    }
}
