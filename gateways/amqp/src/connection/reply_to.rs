//! Answers without a queue of one's own making: the pseudo-queue `amq.rabbitmq.reply-to`.
//!
//! Who consumes from it gets a queue in memory that only this connection reads and that goes with the
//! consumer; messages published with the pseudo-name as `reply_to` carry that queue's name. Owns this
//! substitution. Never: who may answer; an answer is a publish to the default exchange like any other.

use std::sync::Arc;

use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{Command, Consume, Reply, StreamDeclare};
use anabranch_core::id::ConsumerTag;
use anabranch_core::limits::StreamLimits;
use bytes::Bytes;

use super::topology::queue_address;
use super::{AmqpConnection, Cx, Phase};
use crate::channel::{ReplyQueue, Then};
use crate::error::{AmqpError, ReplyCode};
use crate::names::{DIRECT_REPLY_TO, REPLY_QUEUE_PREFIX};
use crate::published;
use crate::token::ChannelLife;
use crate::wire::batch::Batch;
use crate::wire::field::ShortStr;
use crate::wire::method::{BasicConsume, BasicPublish, QueueDeclare, QueueDeclareOk, Wire};

fn precondition(text: &'static str) -> AmqpError {
    AmqpError::channel(ReplyCode::PRECONDITION_FAILED, text)
}

impl AmqpConnection {
    /// The queue that stands for the pseudo-queue on a channel, made up for a consumer of it.
    pub(super) fn reply_queue(
        &mut self,
        number: u16,
        no_ack: bool,
        consumer: ConsumerTag,
    ) -> Result<Arc<str>, AmqpError> {
        if !no_ack {
            return Err(precondition("reply consumer cannot acknowledge"));
        }
        let name = self.names.make(REPLY_QUEUE_PREFIX);
        if let Some(channel) = self.channel_mut(number) {
            if channel.reply.is_some() {
                return Err(precondition("reply consumer already set"));
            }
            channel.reply = Some(Box::new(ReplyQueue {
                name: name.clone(),
                consumer,
            }));
        }
        Ok(name)
    }

    /// Declares the queue of a reply consumer; the consumer is attached when it is there.
    pub(super) fn declare_reply_queue(
        &mut self,
        number: u16,
        consume: Consume,
        nowait: bool,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let name = consume.stream.clone();
        let declare = StreamDeclare {
            key: queue_address(&name)?,
            name,
            passive: false,
            durable: false,
            exclusive: true,
            auto_delete: true,
            private: true,
            limits: StreamLimits {
                auto_delete: true,
                ..StreamLimits::default()
            },
            arguments: Vec::new(),
        };
        let then = Then::ReplyQueue {
            consume: Box::new(consume),
            nowait,
        };
        self.ask_for(number, BasicConsume::ID, then, cx, |token| {
            Command::DeclareStream {
                token,
                declare: Box::new(declare),
            }
        });
        Ok(())
    }

    /// The queue of a reply consumer is there.
    pub(super) fn reply_queue_declared(
        &mut self,
        number: u16,
        consume: Consume,
        nowait: bool,
        cx: &mut Cx<'_>,
    ) {
        let then = Then::Consuming {
            consumer: consume.consumer,
            nowait,
        };
        self.ask_for(number, BasicConsume::ID, then, cx, |token| {
            Command::Consume {
                token,
                consume: Box::new(consume),
            }
        });
    }

    /// `queue.declare` of the pseudo-queue, or of a channel's own: asks whether it is there, whatever else
    /// the method says. The pseudo-queue always is; a channel's own is there for anybody to ask.
    pub(super) fn declare_reply_to(
        &mut self,
        number: u16,
        name: &str,
        nowait: bool,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let queue: Arc<str> = name.into();
        if name == DIRECT_REPLY_TO {
            if let Some(of) = self.channel_mut(number).map(|channel| channel.life) {
                self.reply_to_exists(of, queue, nowait, cx);
            }
            return Ok(());
        }
        let declare = StreamDeclare {
            name: queue.clone(),
            key: queue_address(name)?,
            passive: true,
            durable: false,
            exclusive: false,
            auto_delete: false,
            private: false,
            limits: StreamLimits::default(),
            arguments: Vec::new(),
        };
        let then = Then::ReplyExists { queue, nowait };
        self.ask_for(number, QueueDeclare::ID, then, cx, |token| {
            Command::DeclareStream {
                token,
                declare: Box::new(declare),
            }
        });
        Ok(())
    }

    /// Answers that a reply queue exists: it holds nothing and has one consumer.
    pub(super) fn reply_to_exists(
        &mut self,
        of: ChannelLife,
        queue: Arc<str>,
        nowait: bool,
        cx: &mut Cx<'_>,
    ) {
        if !nowait && self.phase == Phase::Running {
            cx.out.send.method(
                of.channel,
                &QueueDeclareOk {
                    queue: ShortStr::cut(queue.as_bytes()),
                    message_count: 0,
                    consumer_count: 1,
                },
            );
        }
        if let Some(channel) = self.open_channel(of) {
            channel.last_queue = Some(queue);
        }
    }
}

/// The properties of a publish that wants its answer by the pseudo-queue: `reply_to` names the channel's
/// own queue instead.
pub(super) fn with_reply_queue(
    reply: Option<&ReplyQueue>,
    properties: &Bytes,
) -> Result<Bytes, AmqpError> {
    match reply {
        Some(reply) => Ok(published::with_reply_to(properties, &reply.name)),
        None => Err(precondition("fast reply consumer does not exist").by(BasicPublish::ID)),
    }
}

/// What a passive declare of another channel's reply queue comes to: being locked, it is there.
pub(super) fn exists(result: Result<Reply, Refusal>) -> Result<Reply, Refusal> {
    match result {
        Err(refusal) if refusal.kind == ErrorKind::Locked => Ok(Reply::Done),
        result => result,
    }
}
