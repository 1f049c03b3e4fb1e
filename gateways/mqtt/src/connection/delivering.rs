//! Messages to the client: a delivery in, PUBLISH out, and PUBACK back as a settlement.
//!
//! A message of this protocol is forwarded with the property bytes it came with; of another one
//! the neutral form is written out. Message expiry is what is left at this moment.

use anabranch_core::gateway::{Delivery, Outcome, Outputs};
use anabranch_core::id::Now;
use anabranch_core::message::Quality;

use super::{Ack, MqttConnection, SESSION};
use crate::address::to_topic;
use crate::codec::{PublishHead, QoS};
use crate::map::{ORIGIN, write_block};

impl MqttConnection {
    #[inline]
    pub(super) fn on_delivery(&mut self, now: Now, delivery: &Delivery, out: &mut Outputs) {
        let message = &delivery.message;
        // [MQTT-3.3.2-5]
        if message.expired(now.unix) {
            self.drop_delivery(delivery, out);
            return;
        }
        let foreign = self.is_v5() && message.origin != ORIGIN;
        if foreign {
            self.scratch.clear();
            let neutral = self.shared.codecs.neutral(message);
            write_block(&neutral, &self.shared.vhost, &mut self.scratch);
        }
        let qos = match delivery.quality {
            Quality::AtMostOnce => QoS::AtMostOnce,
            // No more was granted.
            Quality::AtLeastOnce | Quality::ExactlyOnce => QoS::AtLeastOnce,
        };
        let head = PublishHead {
            // [MQTT-3.3.1-1], [MQTT-3.3.1-2]
            dup: qos != QoS::AtMostOnce && delivery.attempt > 1,
            qos,
            retain: delivery.retain,
            topic: to_topic(&message.address),
            packet_id: 0,
            // [MQTT-3.3.2-6], rounded up so that a living message never says 0.
            message_expiry_s: message.remaining_ms(now.unix).map(whole_seconds),
            properties: if foreign {
                &self.scratch
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
        let packet_id = match qos {
            QoS::AtMostOnce => Some(0),
            QoS::AtLeastOnce | QoS::ExactlyOnce => self.outbound.assign(delivery.offset),
        };
        // Without an identifier it stays unsettled and comes again with the next connection.
        let Some(packet_id) = packet_id else { return };
        let head = PublishHead { packet_id, ..head };
        match head.put(version, message.body.len(), out.send.tail()) {
            Ok(()) => {
                out.send.put_payload(&message.body);
                self.counts.delivered += 1;
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
            let taken = Outcome::Accepted;
            self.outbound
                .settle(delivery.offset, taken, SESSION, &mut out.commands);
        }
    }

    /// An identifier that is not in use is none of this connection's, and not worth its end.
    #[inline]
    pub(super) fn on_puback(&mut self, ack: &Ack, out: &mut Outputs) {
        if let Some(offset) = self.outbound.take(ack.packet_id) {
            // A refusal settles too: the message is not sent again [MQTT-4.3.2-4].
            let outcome = if ack.reason.is_failure() {
                Outcome::Rejected
            } else {
                Outcome::Accepted
            };
            self.outbound
                .settle(offset, outcome, SESSION, &mut out.commands);
        }
    }
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
