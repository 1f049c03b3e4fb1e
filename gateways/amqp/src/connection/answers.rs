//! What core answered, in AMQP's words.
//!
//! Owns the `-ok` methods, the end of consumers and `connection.blocked`; `outcomes` has what became of
//! publishes. An answer for an earlier life of a channel number is only cleaned up after.

use anabranch_core::error::Refusal;
use anabranch_core::gateway::{Answer, Command, Outcome, Reply};
use anabranch_core::id::{ConsumerTag, Token};

use super::deliver::{hand_out, properties, properties_room, routing_key};
use super::{AmqpConnection, Cx, Phase, channel_at, reply_to};
use crate::channel::{Ask, State, Then, Told};
use crate::error::{AmqpError, ReplyCode};
use crate::reason;
use crate::stamp::Stamp;
use crate::token::{self, ChannelLife, Which};
use crate::wire::batch::Batch;
use crate::wire::field::ShortStr;
use crate::wire::method::{
    BasicCancel, BasicCancelOk, BasicConsumeOk, BasicGetEmpty, BasicGetOk, ConnectionBlocked,
    ConnectionUnblocked, ExchangeBind, ExchangeBindOk, ExchangeDeclare, ExchangeDeclareOk,
    ExchangeDelete, ExchangeDeleteOk, ExchangeUnbind, ExchangeUnbindOk, QueueBind, QueueBindOk,
    QueueDeclareOk, QueueDeleteOk, QueuePurge, QueuePurgeOk, QueueUnbind, QueueUnbindOk, Wire,
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
            Answer::Overdue { consumer, after_ms } => self.overdue(consumer, after_ms, cx),
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

    /// A delivery was not acknowledged in time: its channel is closed, in the words that clients look for.
    fn overdue(&mut self, consumer: ConsumerTag, after_ms: u64, cx: &mut Cx<'_>) {
        let mut channels = (0u16..).zip(self.channels.iter());
        let holds = channels.find_map(|(number, channel)| {
            let channel = channel
                .as_deref()
                .filter(|channel| channel.state == State::Open)?;
            channel.unacked.holds(consumer).then_some(number)
        });
        if let Some(number) = holds {
            let text = format!(
                "delivery acknowledgement on channel {number} timed out. Timeout value used: \
                 {after_ms} ms. This timeout value can be configured, see consumers doc guide to learn more"
            );
            let error = AmqpError::channel(ReplyCode::PRECONDITION_FAILED, text);
            self.fail(number, error, cx);
        }
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
            channel.reply.take_if(|reply| reply.consumer == consumer);
            channel.ended.push(known.tag);
            if !channel.waiting {
                self.tell_ended(known.of, cx);
            }
        }
    }

    /// Tells the client which consumers of a channel ended, if it can be told.
    pub(super) fn tell_ended(&mut self, of: ChannelLife, cx: &mut Cx<'_>) {
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
            Then::LogIn | Then::Enter(_) => Ok(()),
            Then::Detached { consumer } => return self.detached(of, consumer, cx),
            Then::GaveBack { consumer } => {
                if let Some(known) = self.consumers.get_mut(&consumer) {
                    known.giving_back = known.giving_back.saturating_sub(1);
                }
                return;
            }
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
        let result = match then {
            Then::ReplyExists { .. } => reply_to::exists(result),
            _ => result,
        };
        match result {
            Err(refusal) => {
                match then {
                    Then::Consuming { consumer, .. } => self.forget_consumer(of, consumer),
                    Then::ReplyQueue { consume, .. } => self.forget_consumer(of, consume.consumer),
                    _ => {}
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
        match (then, result) {
            (
                Then::Got {
                    consumer,
                    no_ack: false,
                },
                Ok(Reply::Got {
                    delivery: Some(delivery),
                    ..
                }),
            ) => self.settles.add(
                consumer,
                delivery.offset,
                Outcome::Released,
                &mut cx.out.commands,
            ),
            // Its consumer never came, so it would not go with it.
            (Then::ReplyQueue { consume, .. }, Ok(_)) => {
                cx.out.commands.push(Command::DeleteStream {
                    token: Token::NONE,
                    name: consume.stream,
                    if_unused: false,
                    if_empty: false,
                });
            }
            _ => {}
        }
    }

    fn forget_consumer(&mut self, of: ChannelLife, consumer: ConsumerTag) {
        if let Some(known) = self.consumers.remove(&consumer)
            && let Some(channel) = self.open_channel(of)
        {
            channel.consumers.remove(&known.tag);
            channel.reply.take_if(|reply| reply.consumer == consumer);
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
            Then::ReplyExists { queue, nowait } => self.reply_to_exists(of, queue, nowait, cx),
            Then::ReplyQueue { consume, nowait } => {
                self.reply_queue_declared(number, *consume, nowait, cx);
            }
            Then::Counted { nowait } if !nowait && !silent => {
                let message_count = count(if let Reply::Count(n) = reply { n } else { 0 });
                if method == QueuePurge::ID {
                    cx.out.send.method(number, &QueuePurgeOk { message_count });
                } else {
                    cx.out.send.method(number, &QueueDeleteOk { message_count });
                }
            }
            Then::Consuming { consumer, nowait } => {
                if let Some(known) = self.consumers.get_mut(&consumer) {
                    if reply == Reply::Replaying {
                        known.told = Told::Offset;
                    }
                    if nowait || silent {
                        return;
                    }
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

    /// Whether the queue that is got from by this name says how often a message came back.
    fn got_counts(&mut self, number: u16, consumer: ConsumerTag) -> bool {
        let quorum = &self.quorum;
        channel_at(&mut self.channels, number).is_some_and(|channel| {
            let mut gets = channel.gets.iter();
            gets.any(|(stream, known)| *known == consumer && quorum.contains(stream))
        })
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
        let stamp =
            Stamp::returns(delivery.attempt).filter(|_| self.got_counts(number, delivery.consumer));
        let properties = properties(&self.codecs, message, stamp, cx.now.unix, room_bytes);
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
        ExchangeBind::ID => send.method(number, &ExchangeBindOk {}),
        ExchangeUnbind::ID => send.method(number, &ExchangeUnbindOk {}),
        QueueBind::ID => send.method(number, &QueueBindOk {}),
        QueueUnbind::ID => send.method(number, &QueueUnbindOk {}),
        _ => {}
    }
}
