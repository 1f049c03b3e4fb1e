//! Deliveries to the client and their acknowledgement.
//!
//! Owns delivery tags, the window of a channel and the encoding of what is delivered. A message that came
//! in by AMQP leaves with its original property bytes; any other is converted by `map`.

use std::borrow::Cow;

use anabranch_core::gateway::{Delivery, Outcome};
use anabranch_core::id::{ConsumerTag, UnixMs};
use anabranch_core::message::Message;
use anabranch_core::properties::Codecs;

use super::transactions::too_much;
use super::{AmqpConnection, Cx, Phase, channel_at};
use crate::address;
use crate::channel::{Channel, Consumer, State, Told};
use crate::error::{AmqpError, ReplyCode};
use crate::stamp::Stamp;
use crate::unacked::Unsettled;
use crate::wire::batch::Batch;
use crate::wire::field::ShortStr;
use crate::wire::frame::FRAME_OVERHEAD_BYTES;
use crate::wire::method::BasicDeliver;
use crate::wire::properties::CONTENT_HEADER_BYTES;
use crate::{map, stamp};

impl AmqpConnection {
    /// `basic.ack`, `basic.nack` and `basic.reject`.
    #[inline]
    pub(super) fn acknowledge(
        &mut self,
        number: u16,
        tag: u64,
        multiple: bool,
        outcome: Outcome,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let Some(channel) = channel_at(&mut self.channels, number) else {
            return Ok(());
        };
        let (settles, commands) = (&mut self.settles, &mut cx.out.commands);
        let mut counted = 0;
        let tx = &mut channel.tx;
        let mut settle = |entry: Unsettled| match tx {
            Some(tx) => tx.settle(entry, outcome),
            None => {
                counted += u32::from(!entry.got);
                settles.add(entry.consumer, entry.offset, outcome, commands);
            }
        };
        let found = match (tag, multiple) {
            // AMQP 0-9-1, basic.ack: 0 with multiple is everything, which may be nothing.
            (0, true) => {
                channel.unacked.take_all(settle);
                true
            }
            (tag, true) => channel.unacked.take_up_to(tag, settle),
            (tag, false) => channel.unacked.take(tag).map(&mut settle).is_some(),
        };
        channel.in_window -= counted.min(channel.in_window);
        if !found {
            return Err(AmqpError::channel(
                ReplyCode::PRECONDITION_FAILED,
                format!("unknown delivery tag {tag}"),
            ));
        }
        if let Some(tx) = &channel.tx {
            return tx.check().map_err(too_much);
        }
        if !channel.held.is_empty() {
            self.send_held(number, cx);
        }
        Ok(())
    }

    /// A delivery from core.
    #[inline]
    pub(super) fn deliver(&mut self, delivery: Delivery, cx: &mut Cx<'_>) {
        let Some(consumer) = self.consumers.get(&delivery.consumer) else {
            // It was ended while this was on its way: others are to get it.
            return self.give_back(&delivery, cx);
        };
        if consumer.giving_back > 0 {
            return;
        }
        let wanted = !consumer.detaching && self.phase == Phase::Running;
        let channel = channel_at(&mut self.channels, consumer.of.channel).filter(|channel| {
            wanted && channel.life == consumer.of && channel.state == State::Open
        });
        let Some(channel) = channel else {
            // Sent off before it was detached: nobody will acknowledge it.
            if !consumer.no_ack {
                self.give_back(&delivery, cx);
            }
            return;
        };
        let full = channel.in_window >= channel.window.into() || !channel.held.is_empty();
        if channel.window > 0 && full && !consumer.no_ack {
            channel.held.push_back(delivery);
            return;
        }
        let frame_bytes_max = self.frame_bytes_max;
        let sending = Sending {
            codecs: &self.codecs,
            key: &mut self.key,
            frame_bytes_max,
        };
        sending.send(channel, consumer, &delivery, cx);
    }

    /// Sends what the channel's window held back, as far as it has room now.
    pub(super) fn send_held(&mut self, number: u16, cx: &mut Cx<'_>) {
        let frame_bytes_max = self.frame_bytes_max;
        while let Some(channel) = channel_at(&mut self.channels, number)
            && (channel.window == 0 || channel.in_window < channel.window.into())
            && let Some(delivery) = channel.held.pop_front()
        {
            // What is held for a consumer is given back before the consumer is forgotten.
            let Some(consumer) = self.consumers.get(&delivery.consumer) else {
                continue;
            };
            let sending = Sending {
                codecs: &self.codecs,
                key: &mut self.key,
                frame_bytes_max,
            };
            sending.send(channel, consumer, &delivery, cx);
        }
    }

    /// Gives a delivery back to its stream.
    pub(super) fn give_back(&mut self, delivery: &Delivery, cx: &mut Cx<'_>) {
        let commands = &mut cx.out.commands;
        self.settles.add(
            delivery.consumer,
            delivery.offset,
            Outcome::Released,
            commands,
        );
    }

    /// Gives back what is held back for a consumer that ends.
    pub(super) fn release_held(&mut self, number: u16, consumer: ConsumerTag, cx: &mut Cx<'_>) {
        let Some(channel) = channel_at(&mut self.channels, number) else {
            return;
        };
        let (settles, commands) = (&mut self.settles, &mut cx.out.commands);
        channel.held.retain(|delivery| {
            let stays = delivery.consumer != consumer;
            if !stays {
                settles.add(consumer, delivery.offset, Outcome::Released, commands);
            }
            stays
        });
    }
}

/// Writes the routing key a message is delivered with.
pub(super) fn routing_key(message: &Message, key: &mut Vec<u8>) {
    key.clear();
    if message.origin_key.is_empty() || message.origin != map::ORIGIN {
        address::address_to_key(&message.address.0, key);
        address::cut_key(key);
    } else {
        key.extend_from_slice(&message.origin_key);
    }
}

/// Gives a delivery its tag, and remembers it until it is acknowledged.
pub(super) fn hand_out(channel: &mut Channel, delivery: &Delivery, got: bool) {
    channel.delivered += 1;
    channel.in_window += u32::from(!got);
    channel.unacked.push(Unsettled {
        tag: channel.delivered,
        consumer: delivery.consumer,
        offset: delivery.offset,
        got,
    });
}

/// The room a content header frame has for properties.
pub(super) fn properties_room(frame_bytes_max: u32) -> usize {
    (frame_bytes_max as usize).saturating_sub(FRAME_OVERHEAD_BYTES + CONTENT_HEADER_BYTES)
}

/// Raw properties of a message for this protocol: its own bytes, or what they are converted to, with what
/// the broker has to say. `stamp` is what its queue tells. What does not fit into
/// one frame cannot be sent (AMQP 0-9-1 section 4.2.6.1): the largest headers are left out then, rather
/// than the message lost or its reader cut off.
pub(super) fn properties<'m>(
    codecs: &Codecs,
    message: &'m Message,
    stamp: Option<Stamp>,
    now: UnixMs,
    room_bytes: usize,
) -> Cow<'m, [u8]> {
    let mut raw = if message.origin == map::ORIGIN {
        Cow::Borrowed(&message.properties[..])
    } else {
        let neutral = codecs.neutral(message);
        Cow::Owned(map::from_neutral_within(&neutral, message, now, room_bytes).into())
    };
    if let Some(deaths) = &message.deaths {
        raw = Cow::Owned(stamp::with_deaths(&raw, message, deaths).into());
    }
    if let Some(stamp) = stamp {
        raw = Cow::Owned(stamp.onto(&raw).into());
    }
    if raw.len() > room_bytes {
        raw = Cow::Owned(stamp::cut_to(&raw, room_bytes).into());
    }
    raw
}

/// What sending a delivery borrows of the connection.
struct Sending<'c> {
    codecs: &'c Codecs,
    key: &'c mut Vec<u8>,
    frame_bytes_max: u32,
}

impl Sending<'_> {
    /// Sends a delivery.
    #[inline]
    fn send(
        self,
        channel: &mut Channel,
        consumer: &Consumer,
        delivery: &Delivery,
        cx: &mut Cx<'_>,
    ) {
        let message: &Message = &delivery.message;
        let stamp = match consumer.told {
            Told::Nothing => None,
            Told::Returns => Stamp::returns(delivery.attempt),
            Told::Offset => Some(Stamp::Offset(delivery.offset)),
        };
        let room_bytes = properties_room(self.frame_bytes_max);
        let properties = properties(self.codecs, message, stamp, cx.now.unix, room_bytes);
        if consumer.no_ack {
            channel.delivered += 1;
        } else {
            hand_out(channel, delivery, false);
        }
        routing_key(message, self.key);
        let number = channel.life.channel;
        cx.out.send.method(
            number,
            &BasicDeliver {
                consumer_tag: ShortStr::cut(&consumer.tag),
                delivery_tag: channel.delivered,
                redelivered: delivery.attempt > 1,
                exchange: ShortStr::cut(&message.exchange),
                routing_key: ShortStr::cut(self.key),
            },
        );
        cx.out
            .send
            .content(number, &properties, &message.body, self.frame_bytes_max);
    }
}
