//! What core answered, in AMQP's words.
//!
//! Owns the `-ok` methods, returns, confirms, the end of consumers and `connection.blocked`. An answer
//! for an earlier life of a channel number is only cleaned up after.

use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{Answer, Outcome, PublishOutcome, Reply};
use anabranch_core::id::{ConsumerTag, Token};
use anabranch_core::message::Message;

use super::deliver::{hand_out, properties, properties_room, properties_too_large, routing_key};
use super::publish::no_exchange;
use super::{AmqpConnection, Cx, Phase, channel_at};
use crate::channel::{Ask, State, Then};
use crate::error::ReplyCode;
use crate::reason;
use crate::token::{self, ChannelLife, Which};
use crate::wire::batch::Batch;
use crate::wire::field::ShortStr;
use crate::wire::method::{
    BasicCancel, BasicCancelOk, BasicConsumeOk, BasicGetEmpty, BasicGetOk, BasicNack, BasicPublish,
    BasicReturn, ConnectionBlocked, ConnectionUnblocked, ExchangeDeclare, ExchangeDeclareOk,
    ExchangeDelete, ExchangeDeleteOk, QueueBind, QueueBindOk, QueueDeclareOk, QueueDeleteOk,
    QueuePurge, QueuePurgeOk, QueueUnbind, QueueUnbindOk, Wire,
};

/// A count as the wire has room for it.
fn count(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl AmqpConnection {
    pub(super) fn answer(&mut self, answer: Answer, cx: &mut Cx<'_>) {
        match answer {
            Answer::Published {
                first,
                last,
                outcome,
            } => self.publish_answered(first, last, outcome, cx),
            Answer::Returned { token, message } => self.returned(token, &message, cx),
            Answer::Done { token, result } => {
                if let Which::Ask(number) = token::which(token)
                    && let Some(ask) = self.asks.remove(&number)
                {
                    self.done(ask, result, cx);
                }
            }
            Answer::Ended { consumer, .. } => self.consumer_ended(consumer, cx),
            Answer::Blocked(reason) => self.blocked(reason, cx),
        }
    }

    fn blocked(&mut self, reason: Option<&'static str>, cx: &mut Cx<'_>) {
        if self.phase != Phase::Running || !self.client.blocked {
            return;
        }
        match reason {
            Some(reason) => {
                let reason = ShortStr::cut(reason.as_bytes());
                cx.out.send.method(0, &ConnectionBlocked { reason });
            }
            None => cx.out.send.method(0, &ConnectionUnblocked {}),
        }
    }

    fn publish_answered(
        &mut self,
        first: Token,
        last: Token,
        outcome: PublishOutcome,
        cx: &mut Cx<'_>,
    ) {
        let (Which::Publish(of, first), Which::Publish(_, last)) =
            (token::which(first), token::which(last))
        else {
            return;
        };
        let Some(channel) = self.open_channel(of) else {
            return;
        };
        let nacked = match outcome {
            PublishOutcome::Routed | PublishOutcome::Unroutable => false,
            PublishOutcome::Refused(kind)
                if channel.confirms.is_some() && reason::is_nacked(kind) =>
            {
                true
            }
            PublishOutcome::Refused(kind) => {
                let known = first >= channel.exchange.1;
                let exchange = channel.exchange.0.clone();
                let error = match kind {
                    ErrorKind::NotFound if known => no_exchange(&exchange, &self.vhost),
                    kind => reason::refused(
                        &Refusal::new(kind, publish_refused(kind)),
                        BasicPublish::ID,
                    ),
                };
                // What was answered before it is told before it.
                self.tell_confirms(cx);
                return self.fail(of.channel, error, cx);
            }
        };
        if let Some(confirms) = &mut channel.confirms {
            confirms.answered(first, last, !nacked);
            self.telling(of);
        }
    }

    /// Notes that a channel has confirms to tell.
    fn telling(&mut self, of: ChannelLife) {
        if self.tell.last() != Some(&of) {
            self.tell.push(of);
        }
    }

    /// Sends the confirms of all channels that have some, after the returns of the same answers.
    pub(super) fn tell_confirms(&mut self, cx: &mut Cx<'_>) {
        let mut tell = std::mem::take(&mut self.tell);
        for of in tell.drain(..) {
            if self.phase != Phase::Running {
                break;
            }
            let Some(confirms) = self
                .open_channel(of)
                .and_then(|channel| channel.confirms.as_mut())
            else {
                continue;
            };
            if !confirms.is_waiting() {
                continue;
            }
            confirms.tell(|confirm| {
                let (delivery_tag, multiple) = (confirm.tag, confirm.multiple);
                if confirm.ack {
                    cx.out.send.ack(of.channel, delivery_tag, multiple);
                } else {
                    cx.out.send.method(
                        of.channel,
                        &BasicNack {
                            delivery_tag,
                            multiple,
                            requeue: false,
                        },
                    );
                }
            });
        }
        self.tell = tell;
    }

    /// A mandatory message that no queue took. Its confirm follows.
    fn returned(&mut self, token: Token, message: &Message, cx: &mut Cx<'_>) {
        let Which::Publish(of, _) = token::which(token) else {
            return;
        };
        if self.phase != Phase::Running || self.open_channel(of).is_none() {
            return;
        }
        routing_key(message, &mut self.key);
        cx.out.send.method(
            of.channel,
            &BasicReturn {
                reply_code: ReplyCode::NO_ROUTE.0,
                reply_text: ShortStr::cut(ReplyCode::NO_ROUTE.name().as_bytes()),
                exchange: ShortStr::cut(&message.exchange),
                routing_key: ShortStr::cut(&self.key),
            },
        );
        // It came in a frame of this connection, so it fits into one.
        let properties = properties(&self.codecs, message, cx.now.unix, usize::MAX);
        cx.out
            .send
            .content(of.channel, &properties, &message.body, self.frame_bytes_max);
    }

    /// The broker detached a consumer.
    fn consumer_ended(&mut self, consumer: ConsumerTag, cx: &mut Cx<'_>) {
        let Some(known) = self.consumers.remove(&consumer) else {
            return;
        };
        self.release_held(known.of.channel, consumer, cx);
        let Some(channel) = self.open_channel(known.of) else {
            return;
        };
        if channel.consumers.get(&known.tag) == Some(&consumer) {
            channel.consumers.remove(&known.tag);
            channel.ended.push(known.tag);
            if !channel.waiting {
                self.tell_ended(known.of, cx);
            }
        }
    }

    /// Tells the client which consumers of a channel ended, if it can be told.
    fn tell_ended(&mut self, of: ChannelLife, cx: &mut Cx<'_>) {
        let notify = self.client.consumer_cancel_notify && self.phase == Phase::Running;
        let Some(channel) = self.open_channel(of) else {
            return;
        };
        for tag in channel.ended.drain(..).filter(|_| notify) {
            let consumer_tag = ShortStr::cut(&tag);
            cx.out.send.method(
                of.channel,
                &BasicCancel {
                    consumer_tag,
                    nowait: true,
                },
            );
        }
    }

    fn done(&mut self, ask: Ask, result: Result<Reply, Refusal>, cx: &mut Cx<'_>) {
        let Ask { of, method, then } = ask;
        let connection = match then {
            Then::LogIn if self.phase == Phase::LoggingIn => self.logged_in(result, cx),
            Then::Enter(vhost) if self.phase == Phase::Entering => self.entered(vhost, result, cx),
            Then::UpdateSecret if self.phase == Phase::Running => self.secret_updated(result, cx),
            Then::LogIn | Then::Enter(_) | Then::UpdateSecret => Ok(()),
            Then::Detached { consumer } => return self.detached(of, consumer, cx),
            then => return self.channel_done(of, method, then, result, cx),
        };
        if let Err(error) = connection {
            self.fail(0, error, cx);
        }
    }

    /// A consumer of a closed channel is gone.
    fn detached(&mut self, of: ChannelLife, consumer: ConsumerTag, cx: &mut Cx<'_>) {
        self.consumers.remove(&consumer);
        if let Some(channel) = self.channel_mut(of.channel)
            && channel.life == of
            && let State::ClosedByPeer { detaching } = &mut channel.state
        {
            *detaching = detaching.saturating_sub(1);
            self.finish_channel(of.channel, cx);
        }
    }

    fn channel_done(
        &mut self,
        of: ChannelLife,
        method: (u16, u16),
        then: Then,
        result: Result<Reply, Refusal>,
        cx: &mut Cx<'_>,
    ) {
        let Some(channel) = self.open_channel(of) else {
            return self.too_late(then, result, cx);
        };
        channel.waiting = false;
        match result {
            Err(refusal) => {
                if let Then::Consuming { consumer, .. } = then {
                    self.forget_consumer(of, consumer);
                }
                self.fail(of.channel, reason::refused(&refusal, method), cx);
            }
            Ok(reply) => {
                self.reply(of, method, then, reply, cx);
                self.tell_ended(of, cx);
                self.drain_backlog(of, cx);
            }
        }
    }

    /// The channel closed before the answer came: whatever it brought goes back.
    fn too_late(&mut self, then: Then, result: Result<Reply, Refusal>, cx: &mut Cx<'_>) {
        if let (
            Then::Got {
                consumer,
                no_ack: false,
            },
            Ok(Reply::Got {
                delivery: Some(delivery),
                ..
            }),
        ) = (then, result)
        {
            self.settles.add(
                consumer,
                delivery.offset,
                Outcome::Released,
                &mut cx.out.commands,
            );
        }
    }

    fn forget_consumer(&mut self, of: ChannelLife, consumer: ConsumerTag) {
        if let Some(known) = self.consumers.remove(&consumer)
            && let Some(channel) = self.open_channel(of)
        {
            channel.consumers.remove(&known.tag);
        }
    }

    fn reply(
        &mut self,
        of: ChannelLife,
        method: (u16, u16),
        then: Then,
        reply: Reply,
        cx: &mut Cx<'_>,
    ) {
        let number = of.channel;
        // While the client closes the connection nothing but close-ok is sent to it.
        let silent = self.phase != Phase::Running;
        match then {
            Then::Ok { nowait } if !nowait && !silent => ok(number, method, cx),
            Then::Declared { queue, nowait } => {
                if let Reply::Stream { ready, consumers } = reply
                    && !nowait
                    && !silent
                {
                    cx.out.send.method(
                        number,
                        &QueueDeclareOk {
                            queue: ShortStr::cut(queue.as_bytes()),
                            message_count: count(ready),
                            consumer_count: consumers,
                        },
                    );
                }
                if let Some(channel) = self.channel_mut(number) {
                    channel.last_queue = Some(queue);
                }
            }
            Then::Counted { nowait } if !nowait && !silent => {
                let message_count = count(if let Reply::Count(n) = reply { n } else { 0 });
                if method == QueuePurge::ID {
                    cx.out.send.method(number, &QueuePurgeOk { message_count });
                } else {
                    cx.out.send.method(number, &QueueDeleteOk { message_count });
                }
            }
            Then::Consuming { consumer, nowait } if !nowait && !silent => {
                if let Some(known) = self.consumers.get(&consumer) {
                    let consumer_tag = ShortStr::cut(&known.tag);
                    cx.out.send.method(number, &BasicConsumeOk { consumer_tag });
                }
            }
            Then::Cancelled {
                consumer,
                tag,
                nowait,
            } => {
                self.release_held(number, consumer, cx);
                if self.consumers.remove(&consumer).is_some()
                    && let Some(channel) = self.channel_mut(number)
                {
                    channel.consumers.remove(&tag);
                }
                if !nowait && !silent {
                    cx.out.send.method(
                        number,
                        &BasicCancelOk {
                            consumer_tag: ShortStr::cut(&tag),
                        },
                    );
                }
            }
            Then::Got { no_ack, .. } if !silent => self.got(number, no_ack, reply, cx),
            Then::Got { .. } => self.too_late(then, Ok(reply), cx),
            _ => {}
        }
    }

    fn got(&mut self, number: u16, no_ack: bool, reply: Reply, cx: &mut Cx<'_>) {
        let Reply::Got { delivery, ready } = reply else {
            return;
        };
        let Some(delivery) = delivery else {
            cx.out.send.method(
                number,
                &BasicGetEmpty {
                    reserved_1: ShortStr::default(),
                },
            );
            return;
        };
        let message = &delivery.message;
        let room_bytes = properties_room(self.frame_bytes_max);
        let properties = properties(&self.codecs, message, cx.now.unix, room_bytes);
        if properties.len() > room_bytes {
            if !no_ack {
                self.give_back(&delivery, cx);
            }
            return self.fail(number, properties_too_large(self.frame_bytes_max), cx);
        }
        routing_key(message, &mut self.key);
        let Some(channel) = channel_at(&mut self.channels, number) else {
            return;
        };
        if no_ack {
            channel.delivered += 1;
        } else {
            hand_out(channel, &delivery, true);
        }
        cx.out.send.method(
            number,
            &BasicGetOk {
                delivery_tag: channel.delivered,
                redelivered: delivery.attempt > 1,
                exchange: ShortStr::cut(&message.exchange),
                routing_key: ShortStr::cut(&self.key),
                message_count: count(ready),
            },
        );
        cx.out
            .send
            .content(number, &properties, &message.body, self.frame_bytes_max);
    }
}

/// The `-ok` without arguments that answers a method.
fn ok(number: u16, method: (u16, u16), cx: &mut Cx<'_>) {
    let send = &mut cx.out.send;
    match method {
        ExchangeDeclare::ID => send.method(number, &ExchangeDeclareOk {}),
        ExchangeDelete::ID => send.method(number, &ExchangeDeleteOk {}),
        QueueBind::ID => send.method(number, &QueueBindOk {}),
        QueueUnbind::ID => send.method(number, &QueueUnbindOk {}),
        _ => {}
    }
}

/// What a publisher is told of a refused publish; core gives the kind alone.
fn publish_refused(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::AccessRefused => {
            "publishing to this exchange with this routing key is not allowed"
        }
        ErrorKind::NotFound => "no exchange of that name",
        ErrorKind::MessageTooLarge => "message is larger than the broker takes",
        _ => "publish was refused",
    }
}
