//! `basic.publish` and its content: from three or more frames to one message.
//!
//! Owns the order of method, content header and body (AMQP 0-9-1 section 4.2.6) and the limit on bodies.
//! The hot path copies nothing: properties and a body in one frame are slices of the read buffer.

use std::sync::Arc;

use anabranch_core::address::Address;
use anabranch_core::gateway::Command;
use anabranch_core::message::Message;
use bytes::{Bytes, BytesMut};

use super::reply_to::with_reply_queue;
use super::topology::bad_key;
use super::transactions::too_much;
use super::{AmqpConnection, Cx, channel_at};
use crate::channel::{Content, Header, State};
use crate::error::{AmqpError, ReplyCode};
use crate::token;
use crate::unfinished::Share;
use crate::wire::frame::Frame;
use crate::wire::method::{BasicPublish, Wire};
use crate::wire::properties::{CONTENT_HEADER_BYTES, ContentHeader};
use crate::{address, map, names, published};

/// More than this is not taken for a size at all.
const BODY_BYTES_LARGEST: u64 = 512 << 20;
/// Memory set aside at once for a body in more than one frame, in bytes: a client that only announces
/// a large body costs no more.
const BODY_RESERVE_BYTES_MAX: usize = 1 << 20;

impl AmqpConnection {
    #[inline]
    pub(super) fn publish<'f>(
        &mut self,
        number: u16,
        publish: BasicPublish<'f>,
        frame: &Frame<'f>,
    ) -> Result<(), AmqpError> {
        if publish.immediate {
            return Err(AmqpError::connection(
                ReplyCode::NOT_IMPLEMENTED,
                "immediate=true",
            ));
        }
        let key = publish.routing_key.as_bytes();
        let mut name = publish.exchange.as_bytes();
        // An answer by the `reply_to` of a message from a topic: whoever answers as servers do, to the default
        // exchange, reaches it.
        let answered = name.is_empty().then(|| map::answered_topic(key)).flatten();
        let converted = match answered {
            Some(topic) => {
                name = names::TOPIC_EXCHANGE.as_bytes();
                let address = Address::new(Bytes::copy_from_slice(topic)).map_err(bad_key)?;
                address::Converted {
                    address,
                    origin_key: Bytes::new(),
                }
            }
            None => self
                .keys
                .convert(key, || frame.keep_part(key))
                .map_err(bad_key)?,
        };
        let Some(channel) = self.channel_mut(number) else {
            return Ok(());
        };
        if channel.exchange.0 != name {
            if std::str::from_utf8(name).is_err() {
                return Err(no_exchange(name, &self.vhost));
            }
            channel.exchange = (Bytes::copy_from_slice(name), channel.published + 1);
        }
        channel.content = Some(Content {
            exchange: channel.exchange.0.clone(),
            address: converted.address,
            origin_key: converted.origin_key,
            mandatory: publish.mandatory,
            header: None,
        });
        Ok(())
    }

    pub(super) fn content_header(
        &mut self,
        number: u16,
        frame: &Frame<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let body_bytes_max = self.config.body_bytes_max;
        let Some(channel) = channel_at(&mut self.channels, number) else {
            return Ok(());
        };
        let Some(content) = channel
            .content
            .as_mut()
            .filter(|content| content.header.is_none())
        else {
            return Err(unexpected(
                "content header without a method that has content",
            ));
        };
        let header = ContentHeader::decode(frame.payload())?;
        if header.body_bytes > BODY_BYTES_LARGEST {
            return Err(AmqpError::connection(
                ReplyCode::FRAME_ERROR,
                format!(
                    "message size {} is larger than any can be",
                    header.body_bytes
                ),
            )
            .by(BasicPublish::ID));
        }
        if header.body_bytes > body_bytes_max {
            return Err(AmqpError::channel(
                ReplyCode::PRECONDITION_FAILED,
                format!(
                    "message size {} is larger than the maximum of {body_bytes_max}",
                    header.body_bytes
                ),
            )
            .by(BasicPublish::ID));
        }
        let mut properties = frame.keep(CONTENT_HEADER_BYTES);
        let facts = published::publish_facts(&properties, &self.user)
            .map_err(|error| super::at(error, BasicPublish::ID))?;
        if address::looks_cut(&content.address)
            && let Some(whole) = published::whole_address(&properties, &content.address)
        {
            content.address = whole;
            content.origin_key = Bytes::new();
        }
        if facts.direct_reply {
            properties = with_reply_queue(channel.reply.as_deref(), &properties)?;
        }
        content.header = Some(Header {
            properties,
            facts,
            missing_bytes: header.body_bytes,
            body: BytesMut::new(),
            share: None,
        });
        if header.body_bytes == 0 {
            return self.published(number, Bytes::new(), cx);
        }
        Ok(())
    }

    pub(super) fn content_body(
        &mut self,
        number: u16,
        frame: &Frame<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let unfinished = &self.unfinished;
        let Some(channel) = channel_at(&mut self.channels, number) else {
            return Ok(());
        };
        let Some(header) = channel
            .content
            .as_mut()
            .and_then(|content| content.header.as_mut())
        else {
            return Err(unexpected("body without a content header"));
        };
        let part = frame.payload();
        let Some(missing) = header.missing_bytes.checked_sub(part.len() as u64) else {
            return Err(AmqpError::connection(
                ReplyCode::FRAME_ERROR,
                "body is longer than its content header said",
            )
            .by(BasicPublish::ID));
        };
        if missing == 0 && header.body.is_empty() {
            return self.published(number, frame.keep(0), cx);
        }
        let share = header.share.get_or_insert_with(|| Share::new(unfinished));
        if !share.grow(part.len() as u64) {
            return Err(AmqpError::connection(
                ReplyCode::RESOURCE_ERROR,
                "messages that are not whole yet take all the memory set aside for them",
            )
            .by(BasicPublish::ID));
        }
        if header.body.is_empty() {
            header
                .body
                .reserve((header.missing_bytes as usize).min(BODY_RESERVE_BYTES_MAX));
        }
        header.missing_bytes = missing;
        header.body.extend_from_slice(part);
        if missing == 0 {
            let body = std::mem::take(&mut header.body).freeze();
            return self.published(number, body, cx);
        }
        Ok(())
    }

    /// A message is complete.
    fn published(&mut self, number: u16, body: Bytes, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        let publisher = self.seat.id;
        let Some(channel) = self
            .channel_mut(number)
            .filter(|channel| channel.state == State::Open)
        else {
            return Ok(());
        };
        let Some(Content {
            exchange,
            address,
            origin_key,
            mandatory,
            header: Some(header),
        }) = channel.content.take()
        else {
            return Ok(());
        };
        channel.published += 1;
        let facts = header.facts;
        let message = Message {
            exchange,
            address,
            origin_key,
            origin: map::ORIGIN,
            properties: header.properties,
            body,
            quality: facts.quality,
            retain: facts.retain,
            priority: facts.priority,
            published: cx.now.unix,
            expires: facts.time_to_live_ms.map(|ms| cx.now.unix.after(ms)),
            publisher,
            deaths: None,
        };
        let publish = |message| Command::Publish {
            token: token::publish(channel.life, channel.published),
            mandatory,
            // It is told by connection.blocked.
            patient: true,
            once: None,
            later: None,
            message: Arc::new(message),
        };
        match &mut channel.tx {
            // It stays, so it does not keep a read buffer alive.
            Some(tx) => tx
                .publish(publish(message.detached()), message.cost_bytes() as u64)
                .map_err(|error| too_much(error).by(BasicPublish::ID))?,
            None => cx.out.commands.push(publish(message)),
        }
        Ok(())
    }
}

fn unexpected(text: &'static str) -> AmqpError {
    AmqpError::connection(ReplyCode::UNEXPECTED_FRAME, text)
}

/// The error for publishing to an exchange that is not there.
pub(super) fn no_exchange(name: &[u8], vhost: &str) -> AmqpError {
    let name = String::from_utf8_lossy(name);
    AmqpError::channel(
        ReplyCode::NOT_FOUND,
        format!("no exchange '{name}' in vhost '{vhost}'"),
    )
    .by(BasicPublish::ID)
}
