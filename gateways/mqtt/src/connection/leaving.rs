//! What a client leaves to be said when it vanishes: its will.
//!
//! The will of a session that outlives its connection is the broker's to publish (with its delay, at
//! the end of the session at the latest), so it goes along with the session's opening. That of a
//! session that ends with its connection is kept here and published at that end, unless the client
//! leaves by DISCONNECT 0x00 [MQTT-3.14.4-3].

use std::sync::Arc;

use anabranch_core::gateway::{Command, Outputs, Will};
use anabranch_core::id::{Now, Token};
use anabranch_core::message::{Message, Quality};

use super::{Fault, MqttConnection, Phase, PropertyId, ReasonCode};
use crate::codec::{self, QoS};
use crate::map::ORIGIN;

/// The core's word for a QoS.
pub(super) const fn quality_of(qos: QoS) -> Quality {
    match qos {
        QoS::AtMostOnce => Quality::AtMostOnce,
        QoS::AtLeastOnce => Quality::AtLeastOnce,
        QoS::ExactlyOnce => Quality::ExactlyOnce,
    }
}

impl MqttConnection {
    /// The will of a CONNECT as a message.
    pub(super) fn will_of(&self, now: Now, will: codec::Will) -> Result<Box<Will>, Fault> {
        if will.retain && !self.shared.config.retained {
            // [MQTT-3.2.2-13]
            return Err(Fault::refused(
                ReasonCode::RETAIN_NOT_SUPPORTED,
                "retained messages are not taken here",
            ));
        }
        let int = |id| will.properties.int(id);
        let expiry_s = int(PropertyId::MESSAGE_EXPIRY);
        let delay_s = int(PropertyId::WILL_DELAY).unwrap_or(0);
        let properties = will.forwarded_properties();
        let refused = |why| Fault::refused(ReasonCode::TOPIC_NAME_INVALID, why);
        let (exchange, address) = match self.destination(will.topic, now.unix) {
            Some((exchange, address, None)) => (exchange, address),
            // A time after the time of the connection's end, which nobody knows, is the will delay's business.
            Some((_, _, Some(_))) => return Err(refused("a will waits by its will delay")),
            None => return Err(refused("the will's topic names no queue of this vhost")),
        };
        let message = Message {
            exchange,
            address,
            origin: ORIGIN,
            properties,
            body: will.payload,
            quality: quality_of(will.qos),
            retain: will.retain,
            published: now.unix,
            expires: expiry_s.map(|expiry_s| now.unix.after(u64::from(expiry_s) * 1000)),
            publisher: self.id,
            ..Message::default()
        };
        Ok(Box::new(Will {
            message: Arc::new(message.detached()),
            delay_s,
        }))
    }

    /// Drops the will of a connection that never came to stand.
    pub(super) fn drop_unarmed_will(&mut self) {
        if !matches!(self.phase, Phase::Open) {
            self.will = None;
        }
    }

    /// Publishes the will that is kept here, once nothing is handled any more.
    pub(super) fn publish_will(&mut self, now: Now, out: &mut Outputs) {
        let Some(will) = self.will.take() else { return };
        let mut message = Arc::unwrap_or_clone(will.message);
        // It lives from now on, not from when it was left.
        let lives_ms = message
            .expires
            .map(|expires| expires.0.saturating_sub(message.published.0));
        message.published = now.unix;
        message.expires = lives_ms.map(|lives_ms| now.unix.after(lives_ms));
        out.commands.push(Command::Publish {
            token: Token::NONE,
            mandatory: false,
            // There is no one to tell of a refusal.
            patient: message.quality != Quality::AtMostOnce,
            once: None,
            later: None,
            message: Arc::new(message),
        });
    }
}
