//! An application: AMQP frames out of what it wants, lines out of what it is told.
//!
//! Owns: the client's half of the protocol as far as conversations need it, and expanding coalesced
//! confirms into one line per publish.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_amqp::wire::batch::Batch;
use anabranch_amqp::wire::field::{LongStr, ShortStr};
use anabranch_amqp::wire::frame::{FrameKind, FrameReader, PROTOCOL_HEADER};
use anabranch_amqp::wire::method::*;
use anabranch_amqp::wire::properties::{CONTENT_HEADER_BYTES, ContentHeader, EMPTY, Properties};
use anabranch_amqp::wire::table::{Table, TableWriter, Value};
use anabranch_core::gateway::SendBuffer;
use bytes::Bytes;

use super::Transcript;

/// Largest frame, in bytes.
const FRAME_BYTES_MAX: u32 = 131_072;

/// How deliveries of a channel are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledge {
    /// By the conversation.
    ByHand,
    /// Each at once.
    Each,
    /// Every so many together.
    Every(u64),
}

/// What a content that is coming in belongs to.
struct Incoming {
    stream: String,
    line: String,
    key: String,
    tag: Option<u64>,
    header: Option<(u64, Vec<u8>)>,
    body: Vec<u8>,
}

struct Channel {
    acknowledge: Acknowledge,
    presettled: BTreeSet<String>,
    consumers: BTreeSet<String>,
    confirms: bool,
    published: u64,
    /// Publishes to be confirmed, with their bodies.
    unconfirmed: BTreeMap<u64, String>,
    /// Tag of the latest delivery.
    delivered: u64,
    unacknowledged: u64,
    incoming: Option<Incoming>,
    received: Vec<Received>,
}

/// A delivery.
pub struct Received {
    /// Its tag.
    pub tag: u64,
    /// Routing key.
    pub key: String,
    /// Raw flags and list.
    pub properties: Vec<u8>,
    /// Body.
    pub body: String,
}

/// See the module's text.
pub struct Application {
    /// What it was told.
    pub heard: Transcript,
    reader: FrameReader,
    channels: BTreeMap<u16, Channel>,
}

fn short(text: &str) -> ShortStr<'_> {
    ShortStr::new(text.as_bytes()).expect("at most 255 bytes")
}

impl Application {
    /// An application and everything it says until `channels` channels are open.
    pub fn new(channels: u16) -> (Application, Vec<u8>) {
        let mut capabilities = TableWriter::new();
        for name in ["consumer_cancel_notify", "connection.blocked", "basic.nack"] {
            capabilities.named(name, Value::Bool(true));
        }
        let mut properties = TableWriter::new();
        properties.named("capabilities", Value::Table(capabilities.table()));
        let mut out = SendBuffer::default();
        out.tail().extend_from_slice(&PROTOCOL_HEADER);
        out.method(
            0,
            &ConnectionStartOk {
                client_properties: properties.table(),
                mechanism: short("PLAIN"),
                response: LongStr(b"\0application\0secret"),
                locale: short("en_US"),
            },
        );
        out.method(
            0,
            &ConnectionTuneOk {
                channel_max: 100,
                frame_max: FRAME_BYTES_MAX,
                heartbeat: 0,
            },
        );
        out.method(
            0,
            &ConnectionOpen {
                virtual_host: short("/"),
                reserved_1: short(""),
                reserved_2: false,
            },
        );
        let mut application = Application {
            heard: Transcript::default(),
            reader: FrameReader::new(FRAME_BYTES_MAX),
            channels: BTreeMap::new(),
        };
        let mut bytes = out.take_all();
        for number in 1..=channels {
            bytes.extend(application.on(number).open().bytes());
        }
        (application, bytes)
    }

    /// Begins to say something on a channel.
    pub fn on(&mut self, number: u16) -> Talk<'_> {
        let channel = self.channels.entry(number).or_insert_with(Channel::new);
        Talk {
            number,
            channel,
            out: SendBuffer::default(),
        }
    }

    /// All deliveries of a channel, in order.
    pub fn received(&self, number: u16) -> &[Received] {
        &self.channels[&number].received
    }

    /// Bodies of all deliveries of a channel, in order.
    pub fn bodies(&self, number: u16) -> Vec<&str> {
        let received = self.received(number).iter();
        received.map(|delivery| delivery.body.as_str()).collect()
    }

    /// Tag of the latest delivery of a body on a channel.
    pub fn tag(&self, number: u16, body: &str) -> u64 {
        let mut latest_first = self.received(number).iter().rev();
        let found = latest_first.find(|delivery| delivery.body == body);
        found
            .unwrap_or_else(|| panic!("{body} was not delivered"))
            .tag
    }

    /// Publishes on a channel that are not confirmed yet.
    pub fn unconfirmed(&self, number: u16) -> usize {
        self.channels[&number].unconfirmed.len()
    }

    /// Notes what it is told; answers with acknowledgements.
    pub fn hear(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        let mut reader = std::mem::replace(&mut self.reader, FrameReader::new(0));
        reader.feed(Bytes::from(bytes));
        let mut answers = Vec::new();
        while let Some(frame) = reader.next_frame().expect("legal frames") {
            let number = frame.channel;
            let payload = frame.payload();
            match frame.kind {
                FrameKind::Heartbeat => {}
                FrameKind::Method => {
                    let method = Method::decode(payload).expect("a legal method");
                    if number == 0 {
                        let line = format!("{method:?}");
                        self.heard.note("connection", line);
                    } else {
                        self.method(number, method, &mut answers);
                    }
                }
                FrameKind::Header => {
                    let header = ContentHeader::decode(payload).expect("a legal header");
                    let properties = payload[CONTENT_HEADER_BYTES..].to_vec();
                    let incoming = self.incoming(number);
                    assert!(incoming.header.is_none(), "one header per content");
                    incoming.header = Some((header.body_bytes, properties));
                    self.complete(number, &mut answers);
                }
                FrameKind::Body => {
                    self.incoming(number).body.extend_from_slice(payload);
                    self.complete(number, &mut answers);
                }
            }
        }
        self.reader = reader;
        answers
    }

    fn channel(&mut self, number: u16) -> &mut Channel {
        self.channels
            .get_mut(&number)
            .unwrap_or_else(|| panic!("channel {number} was not opened"))
    }

    fn incoming(&mut self, number: u16) -> &mut Incoming {
        let incoming = self.channel(number).incoming.as_mut();
        incoming.expect("content follows a method that has one")
    }

    fn method(&mut self, number: u16, method: Method<'_>, answers: &mut Vec<u8>) {
        let answer_stream = format!("channel {number} answers");
        let channel = self.channel(number);
        assert!(
            channel.incoming.is_none(),
            "a method interrupts a content: {method:?}"
        );
        let incoming = |stream: String, line: String, key: ShortStr<'_>, tag| Incoming {
            stream,
            line,
            key: String::from_utf8_lossy(key.as_bytes()).into_owned(),
            tag,
            header: None,
            body: Vec::new(),
        };
        match method {
            Method::BasicAck(ack) => self.confirmed(number, ack.delivery_tag, ack.multiple, "ack"),
            Method::BasicNack(nack) => {
                self.confirmed(number, nack.delivery_tag, nack.multiple, "nack");
            }
            Method::BasicReturn(returned) => {
                let line = format!("{returned:?}");
                channel.incoming = Some(incoming(
                    format!("channel {number} returns"),
                    line,
                    returned.routing_key,
                    None,
                ));
            }
            Method::BasicDeliver(deliver) => {
                let tag = String::from_utf8_lossy(deliver.consumer_tag.as_bytes()).into_owned();
                assert!(
                    channel.consumers.contains(&tag),
                    "{tag} gets a delivery outside of its life"
                );
                channel.next_tag(deliver.delivery_tag);
                let line = format!(
                    "redelivered {} {:?} {:?}",
                    deliver.redelivered, deliver.exchange, deliver.routing_key
                );
                let settled = channel.presettled.contains(&tag);
                let stream = format!("channel {number} consumer {tag}");
                let wanted = (!settled).then_some(deliver.delivery_tag);
                channel.incoming = Some(incoming(stream, line, deliver.routing_key, wanted));
            }
            Method::BasicGetOk(got) => {
                channel.next_tag(got.delivery_tag);
                let line = format!(
                    "got redelivered {} {:?} {:?} left {}",
                    got.redelivered, got.exchange, got.routing_key, got.message_count
                );
                channel.incoming = Some(incoming(answer_stream, line, got.routing_key, None));
            }
            Method::BasicConsumeOk(ok) => {
                let tag = String::from_utf8_lossy(ok.consumer_tag.as_bytes()).into_owned();
                channel.consumers.insert(tag);
                self.heard.note(answer_stream, format!("{method:?}"));
            }
            Method::BasicCancelOk(BasicCancelOk { consumer_tag })
            | Method::BasicCancel(BasicCancel { consumer_tag, .. }) => {
                let tag = String::from_utf8_lossy(consumer_tag.as_bytes()).into_owned();
                assert!(channel.consumers.remove(&tag), "{tag} ends once");
                // The broker's own cancel comes when it comes.
                let stream = match method {
                    Method::BasicCancel(_) => format!("channel {number} consumer {tag}"),
                    _ => answer_stream,
                };
                self.heard.note(stream, format!("{method:?}"));
            }
            Method::ChannelClose(_) => {
                *channel = Channel::new();
                self.heard.note(answer_stream, format!("{method:?}"));
                let mut out = SendBuffer::default();
                out.method(number, &ChannelCloseOk {});
                answers.extend(out.take_all());
            }
            other => self.heard.note(answer_stream, format!("{other:?}")),
        }
    }

    /// One line per publish, however many a frame confirms.
    fn confirmed(&mut self, number: u16, tag: u64, multiple: bool, how: &str) {
        let channel = self.channel(number);
        let tags: Vec<u64> = match multiple {
            true => channel
                .unconfirmed
                .range(..=tag)
                .map(|(tag, _)| *tag)
                .collect(),
            false => vec![tag],
        };
        assert!(!tags.is_empty(), "a confirm confirms something");
        for tag in tags {
            let known = self.channel(number).unconfirmed.remove(&tag);
            assert!(known.is_some(), "publish {tag} is confirmed once");
            let stream = format!("channel {number} confirms");
            self.heard.note_any_time(stream, format!("{tag:06} {how}"));
        }
    }

    fn complete(&mut self, number: u16, answers: &mut Vec<u8>) {
        let channel = self.channel(number);
        let incoming = channel.incoming.take().expect("a content");
        let (length, properties) = incoming.header.as_ref().expect("a header comes first");
        if (incoming.body.len() as u64) < *length {
            channel.incoming = Some(incoming);
            return;
        }
        let body = String::from_utf8_lossy(&incoming.body).into_owned();
        let walked = Properties::walk(properties).expect("legal properties");
        let line = format!("{} {body:?} {walked:?}", incoming.line);
        if incoming.line.contains("BasicReturn") {
            assert!(
                !channel.confirms || channel.unconfirmed.values().any(|known| *known == body),
                "a return comes before its confirm: {body}"
            );
        } else {
            channel.received.push(Received {
                tag: channel.delivered,
                key: incoming.key,
                properties: properties.clone(),
                body,
            });
        }
        if let Some(tag) = incoming.tag {
            channel.unacknowledged += 1;
            let (due, multiple) = match channel.acknowledge {
                Acknowledge::ByHand => (false, false),
                Acknowledge::Each => (true, false),
                Acknowledge::Every(count) => (channel.unacknowledged == count, true),
            };
            if due {
                channel.unacknowledged = 0;
                answers.extend(self.on(number).ack(tag, multiple).bytes());
            }
        }
        self.heard.note(incoming.stream, line);
    }
}

impl Channel {
    fn new() -> Channel {
        Channel {
            acknowledge: Acknowledge::ByHand,
            presettled: BTreeSet::new(),
            consumers: BTreeSet::new(),
            confirms: false,
            published: 0,
            unconfirmed: BTreeMap::new(),
            delivered: 0,
            unacknowledged: 0,
            incoming: None,
            received: Vec::new(),
        }
    }

    fn next_tag(&mut self, tag: u64) {
        assert_eq!(tag, self.delivered + 1, "delivery tags are dense");
        self.delivered = tag;
    }
}

/// What an application says on a channel, gathered.
pub struct Talk<'a> {
    number: u16,
    channel: &'a mut Channel,
    out: SendBuffer,
}

impl Talk<'_> {
    /// All of it.
    pub fn bytes(mut self) -> Vec<u8> {
        self.out.take_all()
    }

    fn say<M: Wire>(mut self, method: &M) -> Self {
        self.out.method(self.number, method);
        self
    }

    /// `channel.open`.
    pub fn open(self) -> Self {
        self.say(&ChannelOpen {
            reserved_1: short(""),
        })
    }

    /// `channel.close`; the channel may be opened again.
    pub fn close(self) -> Self {
        *self.channel = Channel::new();
        self.say(&ChannelClose {
            reply_code: 200,
            reply_text: short("done"),
            class_id: 0,
            method_id: 0,
        })
    }

    /// `queue.declare`, durable or not.
    pub fn queue(self, queue: &str, durable: bool) -> Self {
        self.declare(queue, durable, false, false)
    }

    /// `queue.declare` that only looks.
    pub fn look(self, queue: &str) -> Self {
        self.declare(queue, true, false, true)
    }

    /// `queue.declare` of an exclusive queue.
    pub fn exclusive_queue(self, queue: &str) -> Self {
        self.declare(queue, false, true, false)
    }

    fn declare(self, queue: &str, durable: bool, exclusive: bool, passive: bool) -> Self {
        self.say(&QueueDeclare {
            ticket: 0,
            queue: short(queue),
            passive,
            durable,
            exclusive,
            auto_delete: false,
            nowait: false,
            arguments: Table::default(),
        })
    }

    /// `exchange.declare` of a durable exchange.
    pub fn exchange(self, exchange: &str, kind: &str) -> Self {
        self.say(&ExchangeDeclare {
            ticket: 0,
            exchange: short(exchange),
            kind: short(kind),
            passive: false,
            durable: true,
            auto_delete: false,
            internal: false,
            nowait: false,
            arguments: Table::default(),
        })
    }

    /// `exchange.delete`.
    pub fn delete_exchange(self, exchange: &str) -> Self {
        self.say(&ExchangeDelete {
            ticket: 0,
            exchange: short(exchange),
            if_unused: false,
            nowait: false,
        })
    }

    /// `queue.bind`.
    pub fn bind(self, queue: &str, exchange: &str, key: &str) -> Self {
        self.say(&QueueBind {
            ticket: 0,
            queue: short(queue),
            exchange: short(exchange),
            routing_key: short(key),
            nowait: false,
            arguments: Table::default(),
        })
    }

    /// `queue.unbind`.
    pub fn unbind(self, queue: &str, exchange: &str, key: &str) -> Self {
        self.say(&QueueUnbind {
            ticket: 0,
            queue: short(queue),
            exchange: short(exchange),
            routing_key: short(key),
            arguments: Table::default(),
        })
    }

    /// `queue.purge`.
    pub fn purge(self, queue: &str) -> Self {
        self.say(&QueuePurge {
            ticket: 0,
            queue: short(queue),
            nowait: false,
        })
    }

    /// `queue.delete`.
    pub fn delete(self, queue: &str, if_unused: bool, if_empty: bool) -> Self {
        self.say(&QueueDelete {
            ticket: 0,
            queue: short(queue),
            if_unused,
            if_empty,
            nowait: false,
        })
    }

    /// `confirm.select`.
    pub fn confirms(self) -> Self {
        self.channel.confirms = true;
        self.say(&ConfirmSelect { nowait: false })
    }

    /// `basic.publish` with persistent delivery.
    pub fn publish(self, exchange: &str, key: &str, body: &str) -> Self {
        let properties = Properties {
            delivery_mode: Some(2),
            ..Properties::default()
        };
        self.publish_as(exchange, key, body, false, &properties.to_bytes())
    }

    /// `basic.publish` with `mandatory` and no properties.
    pub fn mandatory(self, exchange: &str, key: &str, body: &str) -> Self {
        self.publish_as(exchange, key, body, true, EMPTY)
    }

    /// `basic.publish` with raw properties.
    pub fn publish_as(
        mut self,
        exchange: &str,
        key: &str,
        body: &str,
        mandatory: bool,
        properties: &[u8],
    ) -> Self {
        if self.channel.confirms {
            self.channel.published += 1;
            let tag = self.channel.published;
            self.channel.unconfirmed.insert(tag, body.to_owned());
        }
        let method = BasicPublish {
            ticket: 0,
            exchange: short(exchange),
            routing_key: short(key),
            mandatory,
            immediate: false,
        };
        self.out.method(self.number, &method);
        let body = Bytes::copy_from_slice(body.as_bytes());
        self.out
            .content(self.number, properties, &body, FRAME_BYTES_MAX);
        self
    }

    /// `basic.qos` per consumer.
    pub fn prefetch(self, count: u16) -> Self {
        self.say(&BasicQos {
            prefetch_size: 0,
            prefetch_count: count,
            global: false,
        })
    }

    /// How deliveries of this channel are acknowledged from now on.
    pub fn acknowledge(self, how: Acknowledge) -> Self {
        self.channel.acknowledge = how;
        self
    }

    /// `basic.consume`.
    pub fn consume(self, queue: &str, tag: &str) -> Self {
        self.consume_as(queue, tag, false, false)
    }

    /// `basic.consume` with `no_ack` and `exclusive`.
    pub fn consume_as(self, queue: &str, tag: &str, no_ack: bool, exclusive: bool) -> Self {
        if no_ack {
            self.channel.presettled.insert(tag.to_owned());
        }
        self.say(&BasicConsume {
            ticket: 0,
            queue: short(queue),
            consumer_tag: short(tag),
            no_local: false,
            no_ack,
            exclusive,
            nowait: false,
            arguments: Table::default(),
        })
    }

    /// `basic.cancel`.
    pub fn cancel(self, tag: &str) -> Self {
        self.say(&BasicCancel {
            consumer_tag: short(tag),
            nowait: false,
        })
    }

    /// `basic.get`.
    pub fn get(self, queue: &str, no_ack: bool) -> Self {
        self.say(&BasicGet {
            ticket: 0,
            queue: short(queue),
            no_ack,
        })
    }

    /// `basic.ack`.
    pub fn ack(self, delivery_tag: u64, multiple: bool) -> Self {
        self.say(&BasicAck {
            delivery_tag,
            multiple,
        })
    }

    /// `basic.nack`.
    pub fn nack(self, delivery_tag: u64, multiple: bool, requeue: bool) -> Self {
        self.say(&BasicNack {
            delivery_tag,
            multiple,
            requeue,
        })
    }

    /// `basic.reject`.
    pub fn reject(self, delivery_tag: u64, requeue: bool) -> Self {
        self.say(&BasicReject {
            delivery_tag,
            requeue,
        })
    }

    /// `basic.recover`.
    pub fn recover(self) -> Self {
        self.say(&BasicRecover { requeue: true })
    }
}
