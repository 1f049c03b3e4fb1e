//! What became of publishes, in AMQP's words: returns, confirms, and the end of those that were refused.
//!
//! Owns which refusal is a nack, which closes a channel and which is told to nobody. Commits are
//! `transactions`' business; which tags a confirm covers is `confirm`'s.

use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::Token;
use anabranch_core::message::Message;

use super::deliver::{properties, properties_room, routing_key};
use super::publish::no_exchange;
use super::{AmqpConnection, Cx, Phase};
use crate::error::ReplyCode;
use crate::reason;
use crate::token::{self, ChannelLife, Which};
use crate::wire::batch::Batch;
use crate::wire::field::ShortStr;
use crate::wire::method::{BasicNack, BasicPublish, BasicReturn, Wire};

impl AmqpConnection {
    pub(super) fn publish_answered(
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
        if channel
            .tx
            .as_ref()
            .is_some_and(|tx| tx.commits(first, last))
        {
            let refused = match outcome {
                PublishOutcome::Refused(kind) => Some(kind),
                PublishOutcome::Routed | PublishOutcome::Unroutable => None,
            };
            return self.commit_answered(of, (first, last), refused, cx);
        }
        let nacked = match outcome {
            PublishOutcome::Routed | PublishOutcome::Unroutable => false,
            // A full queue that refuses: who does not ask for confirms is not told.
            PublishOutcome::Refused(ErrorKind::QuotaExceeded) if channel.confirms.is_none() => {
                false
            }
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
    pub(super) fn returned(&mut self, token: Token, message: &Message, cx: &mut Cx<'_>) {
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
        let room_bytes = properties_room(self.frame_bytes_max);
        let properties = properties(&self.codecs, message, None, cx.now.unix, room_bytes);
        cx.out
            .send
            .content(of.channel, &properties, &message.body, self.frame_bytes_max);
    }
}

/// What a publisher is told of a refused publish; core gives the kind alone.
pub(super) fn publish_refused(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::AccessRefused => {
            "publishing to this exchange with this routing key is not allowed"
        }
        ErrorKind::NotFound => "no exchange of that name",
        ErrorKind::MessageTooLarge => "message is larger than the broker takes",
        _ => "publish was refused",
    }
}
