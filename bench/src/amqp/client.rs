//! One AMQP conversation: handshake, perhaps a channel and a script of methods, then messages
//! and confirms.
//!
//! Owns the order of frames. Never opens a socket or reads a clock: bytes come in, bytes and
//! events go out. Next: `../engine.rs`.

use std::collections::VecDeque;

use super::codec::{
    self, DecodeError, Fields, Frame, MethodId, PROTOCOL_HEADER, frame_type, method,
    put_long_string, put_method, put_short_string,
};
use super::script::{Step, open_channel};
use crate::link::{Confirmed, LinkError, Sink};

/// Room asked for when the broker leaves the number of channels open.
const CHANNEL_MAX: u16 = 2047;

/// User name and password of a broker's default account, good from loopback only.
pub const DEFAULT_LOGIN: (&str, &str) = ("guest", "guest");

/// What a connection does once it is open.
#[derive(Default)]
pub struct Plan {
    /// Whether to open channel 1; an idle connection has none.
    pub channel: bool,
    /// Methods to send on it, each after the reply to the one before.
    pub script: VecDeque<Step>,
    /// Whether to acknowledge every delivery.
    pub acknowledge: bool,
}

/// The state of one connection.
pub struct Client {
    login: (String, String),
    plan: Plan,
    /// The reply waited for; `None` when ready.
    awaited: Option<MethodId>,
    delivery_tag: u64,
    body_left: usize,
    /// Parts of a body that came in more than one frame.
    body: Vec<u8>,
}

impl Client {
    /// A client that has just written the protocol header to `out`.
    pub fn connect(login: (&str, &str), plan: Plan, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&PROTOCOL_HEADER);
        Self {
            login: (login.0.to_owned(), login.1.to_owned()),
            plan,
            awaited: Some(method::CONNECTION_START),
            delivery_tag: 0,
            body_left: 0,
            body: Vec::new(),
        }
    }

    /// Whether everything of the plan is done.
    pub fn is_ready(&self) -> bool {
        self.awaited.is_none()
    }

    /// Starts another script; the client is ready again when it is done.
    pub fn run(&mut self, script: impl IntoIterator<Item = Step>, out: &mut Vec<u8>) {
        self.plan.script.extend(script);
        if self.is_ready() {
            self.next_step(out);
        }
    }

    fn next_step(&mut self, out: &mut Vec<u8>) {
        self.awaited = self.plan.script.pop_front().map(|step| {
            out.extend_from_slice(&step.bytes);
            step.reply
        });
    }

    /// Handles all whole frames at the head of `bytes`, writes replies to `out`, and gives the
    /// number of bytes used.
    ///
    /// # Errors
    /// See [`LinkError`]; the connection is of no more use.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> Result<usize, LinkError> {
        let mut used = 0;
        while let Some((Frame { kind, payload }, size)) = codec::decode(&bytes[used..])? {
            used += size;
            match kind {
                frame_type::METHOD => self.method(payload, out, sink)?,
                frame_type::HEADER => {
                    let mut fields = Fields(payload.get(4..).ok_or(DecodeError::Short)?);
                    self.body_left = fields.long_long()? as usize;
                    self.body.clear();
                    if self.body_left == 0 {
                        self.delivered(&[], out, sink);
                    }
                }
                frame_type::BODY => self.body(payload, out, sink),
                _ => {}
            }
        }
        Ok(used)
    }

    #[inline]
    fn body(&mut self, part: &[u8], out: &mut Vec<u8>, sink: &mut impl Sink) {
        if self.body.is_empty() && part.len() == self.body_left {
            return self.delivered(part, out, sink);
        }
        self.body.extend_from_slice(part);
        if self.body.len() >= self.body_left {
            let body = std::mem::take(&mut self.body);
            self.delivered(&body, out, sink);
        }
    }

    #[inline]
    fn delivered(&self, payload: &[u8], out: &mut Vec<u8>, sink: &mut impl Sink) {
        sink.delivered(payload);
        if self.plan.acknowledge {
            codec::basic_ack(out, self.delivery_tag);
        }
    }

    #[inline]
    fn method(
        &mut self,
        payload: &[u8],
        out: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> Result<(), LinkError> {
        let mut fields = Fields(payload);
        let id = (fields.short()?, fields.short()?);
        match id {
            method::BASIC_DELIVER => {
                fields.short_string()?;
                self.delivery_tag = fields.long_long()?;
            }
            method::BASIC_ACK => {
                // Tags count from 1, messages from 0.
                let count = fields.long_long()?.wrapping_sub(1);
                let through = fields.octet()? & 1 == 1;
                sink.confirmed(if through {
                    Confirmed::Through(count)
                } else {
                    Confirmed::One(count)
                });
            }
            method::BASIC_NACK => return Err(refused("basic.publish", 0, "basic.nack")),
            method::BASIC_CANCEL => return Err(refused("basic.consume", 0, "basic.cancel")),
            method::BASIC_RETURN => return Err(closed("basic.publish", fields)?),
            method::CONNECTION_CLOSE => return Err(closed("the connection", fields)?),
            method::CHANNEL_CLOSE => return Err(closed("the channel", fields)?),
            // Whatever else is not waited for (connection.blocked, say) is no matter here.
            _ if Some(id) == self.awaited => self.reply(id, fields, out)?,
            _ => {}
        }
        Ok(())
    }

    fn reply(
        &mut self,
        id: MethodId,
        mut fields: Fields<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        match id {
            method::CONNECTION_START => {
                put_method(out, 0, method::CONNECTION_START_OK, |out| {
                    self.start_ok(out)
                });
                self.awaited = Some(method::CONNECTION_TUNE);
            }
            method::CONNECTION_TUNE => {
                let channels = fields.short()?;
                let frame_bytes = fields.long()?;
                put_method(out, 0, method::CONNECTION_TUNE_OK, |out| {
                    let channels = if channels == 0 { CHANNEL_MAX } else { channels };
                    out.extend_from_slice(&channels.to_be_bytes());
                    out.extend_from_slice(&frame_bytes.to_be_bytes());
                    // Heartbeat 0: none, so that an idle row measures idleness.
                    out.extend_from_slice(&[0, 0]);
                });
                put_method(out, 0, method::CONNECTION_OPEN, |out| {
                    put_short_string(out, "/");
                    out.extend_from_slice(&[0, 0]);
                });
                self.awaited = Some(method::CONNECTION_OPEN_OK);
            }
            method::CONNECTION_OPEN_OK if self.plan.channel => {
                let step = open_channel(1);
                out.extend_from_slice(&step.bytes);
                self.awaited = Some(step.reply);
            }
            _ => self.next_step(out),
        }
        Ok(())
    }

    /// Client properties, mechanism, response, locale.
    fn start_ok(&self, out: &mut Vec<u8>) {
        let mut capabilities = Vec::new();
        for name in [
            "publisher_confirms",
            "basic.nack",
            "authentication_failure_close",
        ] {
            put_short_string(&mut capabilities, name);
            capabilities.extend_from_slice(b"t\x01");
        }
        let mut properties = Vec::new();
        put_short_string(&mut properties, "product");
        properties.push(b'S');
        put_long_string(&mut properties, b"anabranch-bench");
        put_short_string(&mut properties, "capabilities");
        properties.push(b'F');
        put_long_string(&mut properties, &capabilities);
        put_long_string(out, &properties);
        put_short_string(out, "PLAIN");
        put_long_string(
            out,
            format!("\0{}\0{}", self.login.0, self.login.1).as_bytes(),
        );
        put_short_string(out, "en_US");
    }
}

/// Reads the reply code and text that open close and return methods.
fn closed(what: &'static str, mut fields: Fields<'_>) -> Result<LinkError, DecodeError> {
    let code = fields.short()?;
    let text = fields.short_string()?;
    Ok(refused(what, code, &String::from_utf8_lossy(text)))
}

fn refused(what: &'static str, code: u16, text: &str) -> LinkError {
    LinkError::Refused {
        what,
        code,
        text: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp::codec::{basic_ack, put_frame};
    use crate::amqp::script::{consume, declare_queue};
    use crate::link::testing::Heard;
    use crate::row::Queue;

    fn from_broker(id: MethodId, arguments: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_method(&mut bytes, 1, id, |out| out.extend_from_slice(arguments));
        bytes
    }

    /// Feeds one method and gives the methods the client answered with.
    fn answers(client: &mut Client, heard: &mut Heard, bytes: &[u8]) -> Vec<MethodId> {
        let mut out = Vec::new();
        assert_eq!(client.feed(bytes, &mut out, heard).unwrap(), bytes.len());
        let mut rest = &out[..];
        let mut ids = Vec::new();
        while let Some((frame, size)) = codec::decode(rest).unwrap() {
            let mut fields = Fields(frame.payload);
            ids.push((fields.short().unwrap(), fields.short().unwrap()));
            rest = &rest[size..];
        }
        ids
    }

    fn consumer(heard: &mut Heard) -> Client {
        let mut out = Vec::new();
        let plan = Plan {
            channel: true,
            script: [declare_queue("q", Queue::Transient), consume("q", true)].into(),
            acknowledge: true,
        };
        let mut client = Client::connect(DEFAULT_LOGIN, plan, &mut out);
        assert_eq!(out, PROTOCOL_HEADER);
        let conversation: [(MethodId, &[u8], &[MethodId]); 6] = [
            (
                method::CONNECTION_START,
                &[],
                &[method::CONNECTION_START_OK],
            ),
            (
                method::CONNECTION_TUNE,
                &[0, 0, 0, 2, 0, 0, 0, 60],
                &[method::CONNECTION_TUNE_OK, method::CONNECTION_OPEN],
            ),
            (method::CONNECTION_OPEN_OK, &[0], &[method::CHANNEL_OPEN]),
            (method::CHANNEL_OPEN_OK, &[0; 4], &[method::QUEUE_DECLARE]),
            (
                method::QUEUE_DECLARE_OK,
                &[1, b'q', 0, 0, 0, 0, 0, 0, 0, 0],
                &[method::BASIC_CONSUME],
            ),
            (method::BASIC_CONSUME_OK, &[0], &[]),
        ];
        for (id, arguments, expected) in conversation {
            assert!(!client.is_ready());
            assert_eq!(
                answers(&mut client, heard, &from_broker(id, arguments)),
                expected
            );
        }
        assert!(client.is_ready());
        client
    }

    #[test]
    fn a_consumer_is_set_up_step_by_step_and_acknowledges() {
        let mut heard = Heard::default();
        let mut client = consumer(&mut heard);
        let deliver = |tag: u8| {
            let mut bytes = from_broker(
                method::BASIC_DELIVER,
                &[1, b'c', 0, 0, 0, 0, 0, 0, 0, tag, 0, 0, 1, b'q'],
            );
            put_frame(&mut bytes, frame_type::HEADER, 1, |out| {
                out.extend_from_slice(&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0]);
            });
            bytes
        };
        let mut bytes = deliver(1);
        put_frame(&mut bytes, frame_type::BODY, 1, |out| {
            out.extend_from_slice(b"abcd")
        });
        // The second body comes in two frames.
        bytes.extend(deliver(2));
        put_frame(&mut bytes, frame_type::BODY, 1, |out| {
            out.extend_from_slice(b"ef")
        });
        put_frame(&mut bytes, frame_type::BODY, 1, |out| {
            out.extend_from_slice(b"gh")
        });
        let mut out = Vec::new();
        client.feed(&bytes, &mut out, &mut heard).unwrap();
        assert_eq!(heard.payloads, [b"abcd", b"efgh"]);
        let mut acks = Vec::new();
        basic_ack(&mut acks, 1);
        basic_ack(&mut acks, 2);
        assert_eq!(out, acks);
    }

    #[test]
    fn confirms_count_from_zero() {
        let mut heard = Heard::default();
        let mut client = consumer(&mut heard);
        let one = from_broker(method::BASIC_ACK, &[0, 0, 0, 0, 0, 0, 0, 1, 0]);
        let through = from_broker(method::BASIC_ACK, &[0, 0, 0, 0, 0, 0, 0, 9, 1]);
        assert!(answers(&mut client, &mut heard, &[one, through].concat()).is_empty());
        assert_eq!(heard.confirmed, [Confirmed::One(0), Confirmed::Through(8)]);
    }

    #[test]
    fn a_closed_channel_is_an_error_with_the_brokers_words() {
        let mut heard = Heard::default();
        let mut client = consumer(&mut heard);
        let bytes = from_broker(method::CHANNEL_CLOSE, b"\x01\x94\x09NOT_FOUND\0\0\0\0");
        let error = client
            .feed(&bytes, &mut Vec::new(), &mut heard)
            .unwrap_err();
        assert!(error.to_string().contains("404 NOT_FOUND"), "{error}");
    }
}
