//! Publishing and looking into queues for the API.
//!
//! Owns: messages that the API makes, and how messages are shown.
//! Never: takes a message from a queue.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_admin::backend::{BackendError, Identity};
use anabranch_admin::model::{BodyEncoding, PeekedMessage, Publish, SeekTo};
use anabranch_core::address::Address;
use anabranch_core::authority::{Action, Resource};
use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{Answer, Command, ExchangeKind, PublishOutcome};
use anabranch_core::id::{Offset, UnixMs, VhostId};
use anabranch_core::message::{Message, OriginTag, Quality};
use anabranch_core::port::{Question, ShardReply};
use anabranch_core::properties::Properties;
use anabranch_core::router::Router;
use anabranch_driver::Call;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::seek::place_of;
use super::value::{table_from_json, table_to_json, text};
use super::{Done, NodeBackend, refused};
use crate::gateways;

impl NodeBackend {
    pub(super) async fn send(&self, who: &Identity, publish: Publish) -> Done<u64> {
        let vhost = self.vhost(&publish.vhost)?;
        let vhost_name = publish.vhost.clone();
        let delay_ms = publish.delay_ms;
        let message = Arc::new(self.message(vhost, publish)?);
        let later = (delay_ms > 0).then(|| message.published.after(delay_ms));
        let wanted = self.destinations(vhost, &message);
        let command = Command::Publish {
            token: Call::TOKEN,
            mandatory: false,
            patient: false,
            once: None,
            later,
            message,
        };
        let answers = self.call(who, &vhost_name, command).await?;
        match answers.into_iter().next_back() {
            Some(Answer::Published { outcome, .. }) => match outcome {
                PublishOutcome::Routed => Ok(wanted.max(1)),
                PublishOutcome::Unroutable => Ok(0),
                PublishOutcome::Refused(kind) => Err(refused(not_taken(kind))),
            },
            Some(Answer::Done {
                result: Err(why), ..
            }) => Err(refused(why)),
            _ => Err(BackendError::Unavailable(
                "the node gave no answer".to_owned(),
            )),
        }
    }

    fn message(&self, vhost: VhostId, publish: Publish) -> Done<Message> {
        let invalid = |what: &str, why: String| BackendError::Invalid(format!("{what}: {why}"));
        let body = match publish.body_encoding {
            BodyEncoding::Utf8 => Bytes::from(publish.body),
            BodyEncoding::Base64 => {
                let decoded = STANDARD.decode(&publish.body);
                Bytes::from(decoded.map_err(|error| invalid("body", error.to_string()))?)
            }
        };
        let (address, origin_key) = self.address(vhost, &publish.exchange, &publish.address)?;
        let quality = if publish.durable {
            Quality::AtLeastOnce
        } else {
            Quality::AtMostOnce
        };
        let properties = Properties {
            content_type: publish
                .content_type
                .filter(|text| !text.is_empty())
                .map(Bytes::from),
            quality: Some(quality),
            headers: table_from_json(&publish.headers),
            ..Properties::default()
        };
        if publish.retain && publish.exchange != gateways::TOPIC_EXCHANGE {
            let exchange = gateways::TOPIC_EXCHANGE;
            let why = format!("retain is for messages published to {exchange}");
            return Err(BackendError::Invalid(why));
        }
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Message {
            exchange: Bytes::from(publish.exchange),
            address,
            origin_key,
            origin: OriginTag::BROKER,
            properties: properties.encode(),
            body,
            quality,
            retain: publish.retain,
            published: UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            ..Message::default()
        })
    }

    /// What a routing key means; of the default exchange it is a queue's name.
    fn address(&self, vhost: VhostId, exchange: &str, key: &str) -> Done<(Address, Bytes)> {
        let meta = self.parts.fabric.meta();
        let Some(found) = meta.exchange(vhost, exchange) else {
            return Err(BackendError::NotFound(format!(
                "there is no exchange {exchange:?}"
            )));
        };
        if found.name.is_empty()
            && found.kind == ExchangeKind::Direct
            && let Some(stream) = meta.stream(vhost, key)
        {
            return Ok((stream.key.clone(), Bytes::new()));
        }
        gateways::key_address(key)
            .map_err(|error| BackendError::Invalid(format!("address: {error}")))
    }

    /// How many streams the message goes to, a shard's matching sessions counted as one.
    fn destinations(&self, vhost: VhostId, message: &Message) -> u64 {
        let mut router = Router::new(self.parts.fabric.clone(), self.parts.codecs.clone());
        let route = router.route(vhost, message);
        let streams = route
            .targets
            .iter()
            .map(|(_, streams)| streams.len().max(1) as u64);
        streams.sum()
    }

    pub(super) async fn look(
        &self,
        who: &Identity,
        vhost: &str,
        name: &str,
        (from, count): (SeekTo, usize),
        body_limit_bytes: usize,
    ) -> Done<Vec<PeekedMessage>> {
        let place = self.place(vhost, name).await?;
        let resource = if place.session {
            Resource::Session(name)
        } else {
            Resource::Queue(name)
        };
        self.allow(who, Action::Peek, vhost, resource)?;
        let question = Question::Peek {
            stream: place.stream,
            from: place_of(from),
            count: u32::try_from(count).unwrap_or(u32::MAX),
        };
        let found = match self
            .parts
            .asker
            .ask(place.shard, question)
            .await
            .map_err(refused)?
        {
            ShardReply::Messages(messages) => messages,
            _ => Vec::new(),
        };
        let shown = found.iter().map(|(offset, attempts, message)| {
            self.show(*offset, *attempts, message, body_limit_bytes)
        });
        Ok(shown.collect())
    }

    pub(super) fn show(
        &self,
        offset: Offset,
        attempts: u32,
        message: &Message,
        limit: usize,
    ) -> PeekedMessage {
        let properties = self.parts.codecs.neutral(message);
        let (body, body_encoding, cut) = show_body(&message.body, limit);
        PeekedMessage {
            offset: offset.0,
            address: message.address.as_str().to_owned(),
            exchange: text(&message.exchange),
            published_at_ms: message.published.0,
            durable: message.quality != Quality::AtMostOnce,
            retain: message.retain,
            attempts,
            content_type: properties.content_type.as_ref().map(text),
            headers: table_to_json(&properties.headers),
            body,
            body_encoding,
            body_bytes: message.body.len() as u64,
            cut,
        }
    }
}

/// A body, or its beginning: text where it is text, never cut inside a character.
pub(super) fn show_body(body: &Bytes, limit: usize) -> (String, BodyEncoding, bool) {
    let cut = body.len() > limit;
    let begin = &body[..body.len().min(limit)];
    match std::str::from_utf8(begin) {
        Ok(text) => (text.to_owned(), BodyEncoding::Utf8, cut),
        // The cut itself may have split the last character.
        Err(error) if cut && error.error_len().is_none() => {
            let whole = &begin[..error.valid_up_to()];
            (
                String::from_utf8_lossy(whole).into_owned(),
                BodyEncoding::Utf8,
                cut,
            )
        }
        Err(_) => (STANDARD.encode(begin), BodyEncoding::Base64, cut),
    }
}

fn not_taken(kind: ErrorKind) -> Refusal {
    let text = match kind {
        ErrorKind::AccessRefused => "the rules do not allow to publish this",
        ErrorKind::NotFound => "there is no such exchange",
        ErrorKind::MessageTooLarge => "the message is larger than the broker takes",
        _ => "the message was not taken; try again later",
    };
    Refusal::new(kind, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_text_when_it_is_and_not_cut_inside_a_character() {
        assert_eq!(
            show_body(&"abc".into(), 10),
            ("abc".into(), BodyEncoding::Utf8, false)
        );
        assert_eq!(
            show_body(&"aäb".into(), 2),
            ("a".into(), BodyEncoding::Utf8, true)
        );
        let binary = Bytes::from_static(&[0xFF, 0xFE, 0xFD]);
        assert_eq!(
            show_body(&binary, 2),
            ("//4=".into(), BodyEncoding::Base64, true)
        );
    }
}
