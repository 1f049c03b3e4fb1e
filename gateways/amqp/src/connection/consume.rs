//! Consumers, and the small methods of class basic, channel, confirm, tx and access.
//!
//! Owns consumer tags and prefetch: per consumer by core's credit, per channel by holding back in
//! `deliver`. What is delivered is not its business.

use anabranch_core::gateway::{Command, Consume, Outcome};
use anabranch_core::id::{ConsumerTag, Offset};
use bytes::Bytes;

use super::{AmqpConnection, Cx, channel_at};
use crate::channel::{Ask, Consumer, Then, Told};
use crate::confirm::Confirms;
use crate::error::{AmqpError, ReplyCode};
use crate::token::ChannelLife;
use crate::wire::batch::Batch;
use crate::wire::method::{
    AccessRequestOk, BasicCancel, BasicCancelOk, BasicConsume, BasicGet, BasicQos, BasicQosOk,
    BasicRecover, BasicRecoverOk, ChannelFlowOk, ConfirmSelectOk, Method, Wire,
};
use crate::{arguments, names};

/// Queues whose `basic.get` tags a channel remembers.
const GET_QUEUES_MAX: usize = 256;
/// What core takes for "no limit".
const NO_LIMIT: u32 = u32::MAX;

fn credit_of(prefetch: u16) -> u32 {
    if prefetch == 0 {
        NO_LIMIT
    } else {
        prefetch.into()
    }
}

fn not_implemented(text: &'static str) -> AmqpError {
    AmqpError::connection(ReplyCode::NOT_IMPLEMENTED, text)
}

impl AmqpConnection {
    pub(super) fn consume_method(
        &mut self,
        number: u16,
        method: Method<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        match method {
            Method::BasicQos(qos) => self.qos(number, qos, cx),
            Method::BasicConsume(consume) => self.consume(number, consume, cx),
            Method::BasicCancel(cancel) => self.cancel(number, cancel, cx),
            Method::BasicGet(get) => self.get(number, get, cx),
            Method::BasicRecover(recover) => {
                self.recover(number, recover.requeue, cx)?;
                cx.out.send.method(number, &BasicRecoverOk {});
                Ok(())
            }
            Method::BasicRecoverAsync(recover) => self.recover(number, recover.requeue, cx),
            Method::ConfirmSelect(select) => {
                if let Some(channel) = self.channel_mut(number) {
                    if channel.tx.is_some() {
                        return Err(AmqpError::channel(
                            ReplyCode::PRECONDITION_FAILED,
                            "cannot switch from tx to confirm mode",
                        ));
                    }
                    let published = channel.published;
                    channel
                        .confirms
                        .get_or_insert_with(|| Box::new(Confirms::new(published)));
                }
                if !select.nowait {
                    cx.out.send.method(number, &ConfirmSelectOk {});
                }
                Ok(())
            }
            Method::ChannelFlow(flow) if flow.active => {
                cx.out.send.method(number, &ChannelFlowOk { active: true });
                Ok(())
            }
            Method::ChannelFlow(_) => Err(not_implemented("channel.flow with active=false")),
            Method::AccessRequest(_) => {
                cx.out.send.method(number, &AccessRequestOk { ticket: 1 });
                Ok(())
            }
            Method::TxSelect(_) => self.tx_select(number, cx),
            Method::TxCommit(_) => self.tx_commit(number, cx),
            Method::TxRollback(_) => self.tx_rollback(number, cx),
            _ => Err(AmqpError::connection(
                ReplyCode::COMMAND_INVALID,
                "method is not for this peer to send",
            )),
        }
    }

    fn qos(&mut self, number: u16, qos: BasicQos, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        if qos.prefetch_size != 0 {
            return Err(not_implemented("prefetch_size != 0"));
        }
        let Some(channel) = self.channel_mut(number) else {
            return Ok(());
        };
        if qos.global {
            channel.window = qos.prefetch_count;
            // Nobody may hold more than the window has room for; what several hold together is limited
            // by holding back here.
            let window = credit_of(qos.prefetch_count);
            let consumers: Vec<ConsumerTag> = channel.consumers.values().copied().collect();
            for consumer in consumers {
                let Some(known) = self.consumers.get(&consumer).filter(|known| !known.no_ack)
                else {
                    continue;
                };
                let credit = known.credit.min(window);
                cx.out
                    .commands
                    .push(Command::SetCredit { consumer, credit });
            }
            self.send_held(number, cx);
        } else {
            channel.prefetch = qos.prefetch_count;
        }
        cx.out.send.method(number, &BasicQosOk {});
        Ok(())
    }

    fn consume(
        &mut self,
        number: u16,
        consume: BasicConsume<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let stream = self.queue_name(number, consume.queue)?;
        let asked = arguments::consumer(consume.arguments, cx.now.unix)?;
        let tag = match consume.consumer_tag.as_bytes() {
            b"" => Bytes::copy_from_slice(self.names.make("amq.ctag-").as_bytes()),
            tag => Bytes::copy_from_slice(tag),
        };
        let consumer = self.next_consumer();
        let Some(channel) = self.channel_mut(number) else {
            return Ok(());
        };
        if channel.consumers.contains_key(&tag) {
            return Err(AmqpError::connection(
                ReplyCode::NOT_ALLOWED,
                format!(
                    "attempt to reuse consumer tag '{}'",
                    String::from_utf8_lossy(&tag)
                ),
            ));
        }
        let replies = &*stream == names::DIRECT_REPLY_TO;
        let stream = if replies {
            self.reply_queue(number, consume.no_ack, consumer)?
        } else {
            stream
        };
        let told = match self.quorum.contains(&stream) {
            true => Told::Returns,
            false => Told::Nothing,
        };
        let Some(channel) = self.channel_mut(number) else {
            return Ok(());
        };
        channel.consumers.insert(tag.clone(), consumer);
        let credit = if consume.no_ack {
            NO_LIMIT
        } else {
            credit_of(channel.prefetch)
        };
        let window = if consume.no_ack {
            NO_LIMIT
        } else {
            credit_of(channel.window)
        };
        let of = channel.life;
        let known = Consumer {
            of,
            tag,
            no_ack: consume.no_ack,
            credit,
            detaching: false,
            giving_back: 0,
            told,
        };
        self.consumers.insert(consumer, known);
        let attach = Consume {
            consumer,
            stream,
            private: replies,
            exclusive: consume.exclusive,
            presettled: consume.no_ack,
            credit: credit.min(window),
            priority: asked.priority,
            no_local: consume.no_local,
            replay: asked.replay,
        };
        if replies {
            return self.declare_reply_queue(number, attach, consume.nowait, cx);
        }
        let then = Then::Consuming {
            consumer,
            nowait: consume.nowait,
        };
        self.ask_for(number, BasicConsume::ID, then, cx, |token| {
            Command::Consume {
                token,
                consume: Box::new(attach),
            }
        });
        Ok(())
    }

    fn next_consumer(&mut self) -> ConsumerTag {
        self.last_consumer = self.last_consumer.wrapping_add(1);
        ConsumerTag(self.last_consumer)
    }

    fn cancel(
        &mut self,
        number: u16,
        cancel: BasicCancel<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let Some(channel) = self.channel_mut(number) else {
            return Ok(());
        };
        match channel
            .consumers
            .get_key_value(cancel.consumer_tag.as_bytes())
        {
            Some((tag, &consumer)) => {
                let then = Then::Cancelled {
                    consumer,
                    tag: tag.clone(),
                    nowait: cancel.nowait,
                };
                channel.reply.take_if(|reply| reply.consumer == consumer);
                self.ask_for(number, BasicCancel::ID, then, cx, |token| Command::Cancel {
                    token,
                    consumer,
                });
            }
            // Cancelling what is not there is done already.
            None if !cancel.nowait => {
                cx.out.send.method(
                    number,
                    &BasicCancelOk {
                        consumer_tag: cancel.consumer_tag,
                    },
                );
            }
            None => {}
        }
        Ok(())
    }

    fn get(&mut self, number: u16, get: BasicGet<'_>, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        let stream = self.queue_name(number, get.queue)?;
        let new = self.next_consumer();
        let Some(channel) = self.channel_mut(number) else {
            return Ok(());
        };
        if channel.gets.len() >= GET_QUEUES_MAX {
            channel.gets.clear();
        }
        // A tag stands for one stream, so that offsets of two queues are never joined.
        let consumer = *channel.gets.entry(stream.clone()).or_insert(new);
        let then = Then::Got {
            consumer,
            no_ack: get.no_ack,
        };
        self.ask_for(number, BasicGet::ID, then, cx, |token| Command::Get {
            token,
            stream,
            consumer,
            presettled: get.no_ack,
        });
        Ok(())
    }

    /// Gives back everything unacknowledged on the channel. What is on its way to a consumer goes with it, or it would
    /// come before what comes again.
    fn recover(&mut self, number: u16, requeue: bool, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        if !requeue {
            return Err(not_implemented("basic.recover with requeue=false"));
        }
        let Some(channel) = channel_at(&mut self.channels, number) else {
            return Ok(());
        };
        let of = channel.life;
        let mut unacked = std::mem::take(&mut channel.unacked);
        channel.in_window = channel.tx.as_ref().map_or(0, |tx| tx.in_window());
        let held = std::mem::take(&mut channel.held);
        let mut whole: Vec<ConsumerTag> = Vec::new();
        let (consumers, settles, commands) =
            (&self.consumers, &mut self.settles, &mut cx.out.commands);
        let mut back = |consumer: ConsumerTag, offset: Offset| {
            let known = consumers.get(&consumer);
            if known.is_some_and(|known| known.told != Told::Offset) {
                if !whole.contains(&consumer) {
                    whole.push(consumer);
                }
            } else {
                settles.add(consumer, offset, Outcome::Released, commands);
            }
        };
        unacked.take_all(|entry| back(entry.consumer, entry.offset));
        for delivery in held {
            back(delivery.consumer, delivery.offset);
        }
        for consumer in whole {
            self.give_all_back(of, consumer, cx);
        }
        Ok(())
    }

    /// Gives back all that a consumer has, but for what its transaction settles.
    fn give_all_back(&mut self, of: ChannelLife, consumer: ConsumerTag, cx: &mut Cx<'_>) {
        let tx = channel_at(&mut self.channels, of.channel).and_then(|channel| channel.tx.as_ref());
        let except = tx.map_or(Vec::new(), |tx| tx.settled_of(consumer));
        if let Some(known) = self.consumers.get_mut(&consumer) {
            known.giving_back += 1;
        }
        let ask = Ask {
            of,
            method: BasicRecover::ID,
            then: Then::GaveBack { consumer },
        };
        self.ask(cx, ask, |token| Command::GiveBack {
            token,
            consumer,
            except,
        });
    }
}
