//! Messages to the client: a delivery in, PUBLISH out, and the client's word back as a settlement.
//!
//! A message of this protocol is forwarded with the property bytes it came with; of another one
//! the neutral form is written out. Message expiry is what is left at this moment.
//!
//! The broker never hands out more than the client's receive maximum for the session, nor for one
//! group; what all of them together have over it waits here until the client has finished another
//! [MQTT-3.3.4-9]. So at most one receive maximum for each group that the client is in waits here.

use std::collections::VecDeque;

use anabranch_core::gateway::{Delivery, Outcome, Outputs};
use anabranch_core::id::Now;
use anabranch_core::message::Quality;
use bytes::BytesMut;

use super::replaying::{Replays, is_replayed};
use super::{Ack, Fault, MqttConnection, ReasonCode};
use crate::address::to_topic;
use crate::alias::{Sent, Written};
use crate::codec::{PublishHead, QoS};
use crate::map::{ORIGIN, write_block, write_death};
use crate::outbound::{Step, Unsettled};

/// The QoS of a quality, and what the client owes for such a delivery.
const fn promise(quality: Quality) -> (QoS, Option<Step>) {
    match quality {
        Quality::AtMostOnce => (QoS::AtMostOnce, None),
        Quality::AtLeastOnce => (QoS::AtLeastOnce, Some(Step::Ack)),
        Quality::ExactlyOnce => (QoS::ExactlyOnce, Some(Step::Rec)),
    }
}

impl MqttConnection {
    #[inline]
    pub(super) fn on_delivery(&mut self, now: Now, delivery: Delivery, out: &mut Outputs) {
        if delivery.received {
            self.resume_release(&delivery, out);
            return;
        }
        if is_replayed(delivery.consumer) {
            return self.on_replayed(now, delivery, out);
        }
        self.deliver_or_wait(now, delivery, out);
    }

    #[inline]
    pub(super) fn deliver_or_wait(&mut self, now: Now, delivery: Delivery, out: &mut Outputs) {
        // QoS 0 flows when nothing else may.
        if delivery.quality != Quality::AtMostOnce && (self.something_waits() || !self.has_slot()) {
            self.few.get_or_insert_default().waiting.push_back(delivery);
            return;
        }
        self.deliver(now, &delivery, out);
    }

    /// Whether the client takes another message above QoS 0 [MQTT-4.9.0-1].
    #[inline]
    fn has_slot(&self) -> bool {
        self.outbound.len() < usize::from(self.client.receive_max)
    }

    /// Sends what waits, as far as the client takes it.
    #[cold]
    fn serve_waiting(&mut self, now: Now, out: &mut Outputs) {
        while self.has_slot() {
            let next = self.few.as_mut().and_then(|few| few.waiting.pop_front());
            let Some(delivery) = next else {
                self.few.take_if(|few| few.replays.is_empty());
                return;
            };
            self.deliver(now, &delivery, out);
        }
    }

    /// Whether a delivery waits for the client to finish another.
    #[inline]
    fn something_waits(&self) -> bool {
        self.few.as_ref().is_some_and(|few| !few.waiting.is_empty())
    }

    #[inline]
    pub(super) fn deliver(&mut self, now: Now, delivery: &Delivery, out: &mut Outputs) {
        let message = &delivery.message;
        // [MQTT-3.3.2-5]; a QoS 2 exchange that has begun is not broken off, or the client would
        // take the next message under its identifier for this one.
        let begun = delivery.quality == Quality::ExactlyOnce && delivery.attempt > 1;
        if message.expired(now.unix) && !begun {
            self.drop_delivery(delivery, out);
            return;
        }
        let is_v5 = self.is_v5();
        let replayed = is_replayed(delivery.consumer);
        let rewritten = is_v5 && (message.origin != ORIGIN || message.deaths.is_some() || replayed);
        let mut block = BytesMut::new();
        if rewritten {
            if message.origin == ORIGIN {
                block.extend_from_slice(&message.properties);
            } else {
                let neutral = self.shared.codecs.neutral(message);
                write_block(&neutral, &self.client.vhost, &mut block);
            }
            if let Some(deaths) = &message.deaths {
                write_death(deaths, &mut block);
            }
            if replayed {
                self.write_place(delivery, &mut block);
            }
        }
        let (qos, step) = promise(delivery.quality);
        let topic = to_topic(&message.address);
        let topic: &[u8] = &topic;
        let written = match &self.aliases_out {
            Some(aliases) => aliases.choose(topic),
            None => Written::Plain,
        };
        let head = PublishHead {
            // [MQTT-3.3.1-1], [MQTT-3.3.1-2]
            dup: qos != QoS::AtMostOnce && delivery.attempt > 1,
            qos,
            retain: delivery.retain,
            topic: match written {
                Written::Plain | Written::Announce(_) => topic,
                Written::Alias(_) => &[],
            },
            packet_id: 0,
            // [MQTT-3.3.2-6], rounded up so that a living message never says 0.
            message_expiry_s: message.remaining_ms(now.unix).map(whole_seconds),
            topic_alias: match written {
                Written::Plain => None,
                Written::Announce(alias) | Written::Alias(alias) => Some(alias),
            },
            // [MQTT-3.3.4-3], [MQTT-3.3.4-4]
            subscription_id: delivery.identifier,
            more_subscription_ids: match &delivery.more_identifiers {
                Some(more) => more,
                None => &[],
            },
            properties: if rewritten {
                &block
            } else {
                &message.properties
            },
        };
        let version = self.client.version;
        // [MQTT-3.1.2-24], [MQTT-3.1.2-25]: dropped for this client alone, as if delivered.
        if head.packet_bytes(version, message.body.len()) > self.client.packet_bytes_max {
            self.drop_delivery(delivery, out);
            return;
        }
        let packet_id = match step {
            None => Some(0),
            Some(step) => self.outbound.assign(Unsettled {
                offset: delivery.offset,
                consumer: delivery.consumer,
                step,
            }),
        };
        // Without an identifier it stays unsettled and comes again with the next connection.
        let Some(packet_id) = packet_id else { return };
        let head = PublishHead { packet_id, ..head };
        match head.put(version, message.body.len(), out.send.tail()) {
            Ok(()) => {
                out.send.put_payload(&message.body);
                self.counts.delivered += 1;
                if self.client.topic_alias_max > 0 {
                    let most = self.client.topic_alias_max;
                    self.aliases_out
                        .get_or_insert_with(|| Box::new(Sent::new(most)))
                        .sent(topic, written);
                }
            }
            // Properties of another protocol that have no form here at all.
            Err(_) => {
                let _ = self.outbound.take(packet_id);
                self.drop_delivery(delivery, out);
            }
        }
    }

    /// Settles what this client cannot be handed.
    fn drop_delivery(&mut self, delivery: &Delivery, out: &mut Outputs) {
        self.counts.dropped += 1;
        // QoS 0 was settled by being handed out.
        if delivery.quality != Quality::AtMostOnce {
            let Delivery {
                consumer, offset, ..
            } = *delivery;
            self.outbound
                .settle(consumer, offset, Outcome::Accepted, &mut out.commands);
        }
    }

    /// Settles a delivery that the client has finished, and lets the next one follow.
    #[inline]
    pub(super) fn finish_delivery(
        &mut self,
        now: Now,
        packet_id: u16,
        outcome: Outcome,
        out: &mut Outputs,
    ) {
        let Some(one) = self.outbound.take(packet_id) else {
            return;
        };
        self.outbound
            .settle(one.consumer, one.offset, outcome, &mut out.commands);
        if self.something_waits() {
            self.serve_waiting(now, out);
        }
    }

    /// An identifier that is not in use is none of this connection's, and not worth its end.
    #[inline]
    pub(super) fn on_puback(
        &mut self,
        now: Now,
        ack: &Ack,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        match self.outbound.step(ack.packet_id) {
            None => Ok(()),
            Some(Step::Ack) => {
                // A refusal settles too: the message is not sent again [MQTT-4.3.2-4].
                let outcome = if ack.reason.is_failure() {
                    Outcome::Rejected
                } else {
                    Outcome::Accepted
                };
                self.finish_delivery(now, ack.packet_id, outcome, out);
                Ok(())
            }
            Some(Step::Rec | Step::Noted | Step::Comp) => Err(Fault::peer(
                ReasonCode::PROTOCOL_ERROR,
                "PUBACK for a QoS 2 message",
            )),
        }
    }
}

/// What few connections have: deliveries from more streams than the session's own.
#[derive(Debug, Default)]
pub(super) struct Few {
    /// Deliveries over the client's receive maximum, in the order in which they came.
    waiting: VecDeque<Delivery>,
    /// Streams that it reads again.
    pub(super) replays: Replays,
}

/// Milliseconds as seconds, rounded up.
fn whole_seconds(ms: u64) -> u32 {
    u32::try_from(ms.div_ceil(1000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_lifetime_is_rounded_up() {
        assert_eq!(whole_seconds(1), 1);
        assert_eq!(whole_seconds(1000), 1);
        assert_eq!(whole_seconds(1001), 2);
        assert_eq!(whole_seconds(u64::MAX), u32::MAX);
    }
}
