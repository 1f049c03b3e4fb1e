//! Messages from the client: PUBLISH in, PUBACK or PUBREC out.
//!
//! A QoS 1 or 2 message is acknowledged when the broker has finished it, never before. A QoS 2 message
//! that comes again is acknowledged again and not published; where the session outlives its
//! connection the broker knows it, too, by its key. A QoS 0 message asks for no answer; it gets one,
//! of no token, only when it is refused, so that the client can be told.
//!
//! What follows PUBREC is in [`super::releasing`].

use std::sync::Arc;

use anabranch_core::address::Address;
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::{Command, OnceKey, Outputs, PublishOutcome};
use anabranch_core::id::{Now, Token, UnixMs};
use anabranch_core::message::{Message, Quality};
use bytes::Bytes;

use super::leaving::quality_of;
use super::{Fault, MqttConnection, Properties, PropertiesBuilder, PropertyId};
use crate::address::to_address;
use crate::codec::{Ack, PacketType, Publish, QoS, ReasonCode};
use crate::delayed;
use crate::inbound::Verdict;
use crate::map::{ORIGIN, STREAM_TOPIC_ROOT, priority, stream_address};
use crate::reason;

/// Publishes of a client before 5.0 that may be unfinished; only 5.0 has a receive maximum.
pub(super) const UNFINISHED_MAX_V3: usize = 65_535;

/// Of a topic that would stand for a queue or a time.
const STANDS_FOR_NOTHING: &str = "the topic names no queue of this vhost, or no time";

impl MqttConnection {
    #[inline]
    pub(super) fn on_publish(
        &mut self,
        now: Now,
        mut publish: Publish,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        self.check_publish(&publish)?;
        let topic = match publish.notes.topic_alias {
            None => std::mem::take(&mut publish.topic),
            Some(alias) => self.topic_of(alias, &publish)?,
        };
        self.counts.published += 1;
        let quality = quality_of(publish.qos);
        let token = match publish.qos {
            QoS::AtMostOnce => Token::NONE,
            QoS::AtLeastOnce => {
                self.check_unfinished()?;
                self.inbound.enter(publish.packet_id)
            }
            QoS::ExactlyOnce if self.inbound.holds(publish.packet_id) => {
                self.on_repeated(publish.packet_id, out);
                return Ok(());
            }
            QoS::ExactlyOnce => {
                self.check_unfinished()?;
                self.inbound.enter_exactly_once(publish.packet_id)
            }
        };
        let Some((exchange, address, later)) = self.destination(topic, now.unix) else {
            return self.refuse_topic(token, out);
        };
        let expiry_s = publish.notes.message_expiry_s;
        let once = publish.qos == QoS::ExactlyOnce && self.is_durable();
        let properties = publish.forwarded_properties();
        let message = Message {
            exchange,
            priority: priority(&properties),
            properties,
            address,
            origin_key: Bytes::new(),
            origin: ORIGIN,
            body: publish.payload,
            quality,
            retain: publish.retain,
            published: now.unix,
            expires: expiry_s.map(|expiry_s| now.unix.after(u64::from(expiry_s) * 1000)),
            publisher: self.id,
            deaths: None,
        };
        out.commands.push(Command::Publish {
            token,
            mandatory: false,
            // 5.0 has a code for "no room now" and QoS 0 may be dropped; an older client that waits
            // for its acknowledgement can only be kept waiting.
            patient: !self.is_v5() && quality != Quality::AtMostOnce,
            once: once.then_some(OnceKey(publish.packet_id)),
            later,
            message: Arc::new(message),
        });
        Ok(())
    }

    /// What a client may not send.
    #[inline]
    fn check_publish(&self, publish: &Publish) -> Result<(), Fault> {
        if publish.retain && !self.shared.config.retained {
            // CONNACK has said Retain Available 0 [MQTT-3.2.2-14].
            return Err(Fault::refused(
                ReasonCode::RETAIN_NOT_SUPPORTED,
                "retained messages are not taken here",
            ));
        }
        if publish.notes.has_subscription_id {
            // [MQTT-3.3.4-6]
            return Err(Fault::peer(
                ReasonCode::PROTOCOL_ERROR,
                "a subscription identifier in a client's PUBLISH",
            ));
        }
        Ok(())
    }

    /// How many QoS 1 and 2 publishes may be unfinished.
    pub(super) fn unfinished_max(&self) -> usize {
        if self.is_v5() {
            usize::from(self.shared.config.receive_max)
        } else {
            UNFINISHED_MAX_V3
        }
    }

    #[inline]
    fn check_unfinished(&self) -> Result<(), Fault> {
        if self.inbound.len() + usize::from(self.releasing) < self.unfinished_max() {
            return Ok(());
        }
        // [MQTT-3.3.4-7]
        Err(Fault::peer(
            ReasonCode::RECEIVE_MAXIMUM_EXCEEDED,
            "more unacknowledged messages than the receive maximum",
        ))
    }

    /// The topic of a PUBLISH with an alias, which may stand for it or be announced by it.
    #[cold]
    fn topic_of(&mut self, alias: u16, publish: &Publish) -> Result<Bytes, Fault> {
        if alias > self.shared.config.topic_alias_max {
            // [MQTT-3.3.2-9]
            return Err(Fault::peer(
                ReasonCode::TOPIC_ALIAS_INVALID,
                "a topic alias over the maximum",
            ));
        }
        if publish.topic.is_empty() {
            let announced = self.aliases_in.as_ref();
            // Section 3.3.4: without a topic there must be one that it stands for.
            return announced
                .and_then(|announced| announced.topic(alias))
                .ok_or(Fault::peer(
                    ReasonCode::PROTOCOL_ERROR,
                    "a topic alias that stands for no topic",
                ));
        }
        self.aliases_in
            .get_or_insert_default()
            .set(alias, &publish.topic);
        Ok(publish.topic.clone())
    }

    /// A QoS 2 message that is here already: PUBREC again, with the one that is owed, if it is
    /// [MQTT-4.3.3-10].
    fn on_repeated(&mut self, packet_id: u16, out: &mut Outputs) {
        if self.inbound.repeat(packet_id) {
            let ack = Ack::new(packet_id, ReasonCode::SUCCESS);
            self.send_ack(PacketType::PubRec, &ack, out);
        }
    }

    /// Exchange and address of a topic, and when it is to be published there if not now; `None` where it would
    /// stand for a queue or a time and names none.
    #[inline]
    pub(super) fn destination(
        &self,
        topic: Bytes,
        now: UnixMs,
    ) -> Option<(Bytes, Address, Option<UnixMs>)> {
        if topic.first() != Some(&b'$') {
            return Some((self.shared.exchange.clone(), to_address(topic), None));
        }
        let (topic, later) = match delayed::topic(topic, now) {
            delayed::Topic::Plain(topic) => (topic, None),
            delayed::Topic::Later(topic, due) => (topic, Some(due)),
            delayed::Topic::Malformed => return None,
        };
        if topic.first() == Some(&b'$') && is_stream_topic(&topic) {
            let address = stream_address(&topic, &self.client.vhost)?;
            // The default exchange, where a queue has its own address.
            return Some((Bytes::new(), address, later));
        }
        Some((self.shared.exchange.clone(), to_address(topic), later))
    }

    #[cold]
    fn refuse_topic(&mut self, token: Token, out: &mut Outputs) -> Result<(), Fault> {
        if self.is_v5() && token != Token::NONE {
            let verdict = Verdict::of(ReasonCode::TOPIC_NAME_INVALID);
            self.inbound.finish(token, token, verdict);
            self.acknowledge(out);
            return Ok(());
        }
        Err(Fault::refused(
            ReasonCode::TOPIC_NAME_INVALID,
            STANDS_FOR_NOTHING,
        ))
    }

    /// Publishes were finished; their acknowledgements leave by [`MqttConnection::acknowledge`].
    #[inline]
    pub(super) fn on_published(
        &mut self,
        first: Token,
        last: Token,
        outcome: PublishOutcome,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        let verdict = match outcome {
            PublishOutcome::Routed => Verdict::of(ReasonCode::SUCCESS),
            PublishOutcome::Unroutable => Verdict::of(ReasonCode::NO_MATCHING_SUBSCRIBERS),
            // One bounded queue of an application does not want it; everybody else has it. There is no word for
            // that before 5.0, and ending the connection would have the message sent again for ever.
            PublishOutcome::Refused(ErrorKind::QuotaExceeded)
                if !self.is_v5() && first != Token::NONE =>
            {
                self.counts.dropped += 1;
                Verdict::of(ReasonCode::SUCCESS)
            }
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
                    Some(reason) if !closes => Verdict {
                        reason,
                        refused: Some(kind),
                    },
                    _ => {
                        // What went before is acknowledged before the connection ends.
                        self.acknowledge(out);
                        let why = format!("a message was refused: {}", row.disconnect.name());
                        return Err(Fault::refused(row.disconnect, why));
                    }
                }
            }
        };
        self.inbound.finish(first, last, verdict);
        Ok(())
    }

    /// Why a publish was refused, for a client that wants to know [MQTT-3.1.2-29].
    #[inline]
    fn words_for(&self, verdict: Verdict) -> Properties {
        if !verdict.reason.is_failure() || !self.is_v5() || !self.client.wants_reasons {
            return Properties::EMPTY;
        }
        let words = verdict.refused.map_or(STANDS_FOR_NOTHING, reason::words);
        PropertiesBuilder::new()
            .text(PropertyId::REASON_STRING, words)
            .build()
    }

    /// Sends the PUBACKs and PUBRECs whose turn it is.
    #[inline]
    pub(super) fn acknowledge(&mut self, out: &mut Outputs) {
        while let Some(finished) = self.inbound.next_finished() {
            let ack = Ack {
                packet_id: finished.packet_id,
                reason: finished.verdict.reason,
                properties: self.words_for(finished.verdict),
            };
            for _ in 0..finished.times {
                self.send_ack(finished.by, &ack, out);
            }
            if finished.freed && self.is_durable() {
                // A part of it may have been taken before another was refused.
                out.commands.push(Command::Forget {
                    token: Token::NONE,
                    once: OnceKey(finished.packet_id),
                });
            }
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
