//! Messages from the client: PUBLISH in, PUBACK out.
//!
//! A QoS 1 message is acknowledged when the broker has finished it, never before. What is not
//! built (QoS 2, retain, topic alias) is refused by its own code. A QoS 0 message asks for no
//! answer; it gets one, of no token, only when it is refused, so that the client can be told.

use std::sync::Arc;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::{Command, Outputs, PublishOutcome};
use anabranch_core::id::{Now, Token};
use anabranch_core::message::{Message, Quality};
use bytes::Bytes;

use super::{Fault, MqttConnection};
use crate::address::to_address;
use crate::codec::{Ack, PacketType, Publish, QoS, ReasonCode};
use crate::map::{ORIGIN, STREAM_TOPIC_ROOT};
use crate::reason;

/// QoS 1 publishes of a 3.1.1 client that may be unfinished; that version has no receive maximum.
const UNFINISHED_MAX_V3: usize = 65_535;

impl MqttConnection {
    #[inline]
    pub(super) fn on_publish(
        &mut self,
        now: Now,
        publish: Publish,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        self.check_publish(&publish)?;
        self.counts.published += 1;
        let (token, quality) = match publish.qos {
            QoS::AtMostOnce => (Token::NONE, Quality::AtMostOnce),
            QoS::AtLeastOnce | QoS::ExactlyOnce => {
                (self.inbound.enter(publish.packet_id), Quality::AtLeastOnce)
            }
        };
        if is_stream_topic(&publish.topic) {
            return self.refuse_stream_topic(token, out);
        }
        let expiry_s = publish.notes.message_expiry_s;
        let message = Message {
            exchange: self.shared.exchange.clone(),
            properties: publish.forwarded_properties(),
            address: to_address(publish.topic),
            origin_key: Bytes::new(),
            origin: ORIGIN,
            body: publish.payload,
            quality,
            retain: publish.retain,
            priority: 0,
            published: now.unix,
            expires: expiry_s.map(|expiry_s| now.unix.after(u64::from(expiry_s) * 1000)),
            publisher: self.seat.id,
            deaths: None,
        };
        out.commands.push(Command::Publish {
            token,
            mandatory: false,
            // 5.0 has a code for "no room now" and QoS 0 may be dropped; a 3.1.1 client that waits for
            // its PUBACK can only be kept waiting.
            patient: !self.is_v5() && quality != Quality::AtMostOnce,
            once: None,
            message: Arc::new(message),
        });
        Ok(())
    }

    /// What a client may not send, and what is not built.
    #[inline]
    fn check_publish(&self, publish: &Publish) -> Result<(), Fault> {
        if publish.qos == QoS::ExactlyOnce {
            // CONNACK has said Maximum QoS 1 [MQTT-3.2.2-11]; 3.1.1 hears only the close.
            return Err(Fault::refused(
                ReasonCode::QOS_NOT_SUPPORTED,
                "QoS 2 is not built yet",
            ));
        }
        if publish.retain {
            // CONNACK has said Retain Available 0 [MQTT-3.2.2-14].
            return Err(Fault::refused(
                ReasonCode::RETAIN_NOT_SUPPORTED,
                "retained messages are not built yet",
            ));
        }
        if publish.notes.has_subscription_id {
            // [MQTT-3.3.4-6]
            return Err(Fault::peer(
                ReasonCode::PROTOCOL_ERROR,
                "a subscription identifier in a client's PUBLISH",
            ));
        }
        if publish.notes.topic_alias.is_some() {
            // CONNACK has said Topic Alias Maximum 0 [MQTT-3.3.2-9].
            return Err(Fault::peer(
                ReasonCode::TOPIC_ALIAS_INVALID,
                "a topic alias, of which none is allowed",
            ));
        }
        let unfinished_max = if self.is_v5() {
            usize::from(self.shared.config.receive_max)
        } else {
            UNFINISHED_MAX_V3
        };
        if publish.qos == QoS::AtLeastOnce && self.inbound.len() >= unfinished_max {
            // [MQTT-3.3.4-7]
            return Err(Fault::peer(
                ReasonCode::RECEIVE_MAXIMUM_EXCEEDED,
                "more unacknowledged messages than the receive maximum",
            ));
        }
        Ok(())
    }

    /// A topic that stands for a stream of the vhost: replies to one are not built.
    fn refuse_stream_topic(&mut self, token: Token, out: &mut Outputs) -> Result<(), Fault> {
        if self.is_v5() && token != Token::NONE {
            self.inbound
                .finish(token, token, ReasonCode::TOPIC_NAME_INVALID);
            self.acknowledge(out);
            return Ok(());
        }
        Err(Fault::refused(
            ReasonCode::TOPIC_NAME_INVALID,
            "publishing to topics of streams is not built yet",
        ))
    }

    /// Publishes were finished; PUBACKs leave by [`MqttConnection::acknowledge`].
    #[inline]
    pub(super) fn on_published(
        &mut self,
        first: Token,
        last: Token,
        outcome: PublishOutcome,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        let reason = match outcome {
            PublishOutcome::Routed => ReasonCode::SUCCESS,
            PublishOutcome::Unroutable => ReasonCode::NO_MATCHING_SUBSCRIBERS,
            PublishOutcome::Refused(kind) => {
                let row = reason::row(kind);
                // A QoS 0 message was refused, perhaps with others behind it. An overloaded broker
                // may drop it.
                let at_most_once = first == Token::NONE;
                if at_most_once && is_overload(kind) {
                    self.counts.dropped += 1;
                    if last == Token::NONE {
                        return Ok(());
                    }
                }
                let closes = !self.is_v5() || (at_most_once && !is_overload(kind));
                match row.puback {
                    Some(reason) if !closes => reason,
                    _ => {
                        // What went before is acknowledged before the connection ends.
                        self.acknowledge(out);
                        let why = format!("a message was refused: {}", row.disconnect.name());
                        return Err(Fault::refused(row.disconnect, why));
                    }
                }
            }
        };
        self.inbound.finish(first, last, reason);
        Ok(())
    }

    /// Sends the PUBACKs whose turn it is.
    #[inline]
    pub(super) fn acknowledge(&mut self, out: &mut Outputs) {
        while let Some((packet_id, reason)) = self.inbound.next_finished() {
            self.send_ack(PacketType::PubAck, &Ack::new(packet_id, reason), out);
        }
    }
}

/// Whether a refusal passes by itself and says nothing about the message.
const fn is_overload(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Busy
            | ErrorKind::QuotaExceeded
            | ErrorKind::ShuttingDown
            | ErrorKind::StorageFailed
            | ErrorKind::Unavailable
    )
}

/// Whether a topic is below [`STREAM_TOPIC_ROOT`].
#[inline]
fn is_stream_topic(topic: &[u8]) -> bool {
    topic
        .strip_prefix(STREAM_TOPIC_ROOT.as_bytes())
        .is_some_and(|rest| rest.first() == Some(&b'/'))
}
