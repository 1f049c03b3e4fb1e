//! One client's connection as a state machine.
//!
//! A CONNECT opens it ([`opening`]): login, vhost and session are asked one after the other, and
//! CONNACK leaves with the last answer. Then packets and answers take turns: publishes of the
//! client ([`publishing`]), deliveries to it ([`delivering`]), what QoS 2 has behind either
//! ([`releasing`]), its subscriptions ([`subscribing`]), streams that it reads again ([`replaying`]). Whatever goes wrong is a [`Fault`], and
//! [`ending`] says it in the words of the client's version; its will is said then, too
//! ([`leaving`]).
//!
//! It never acknowledges what the broker has not finished, and never answers bytes that came
//! before a CONNECT [MQTT-3.1.0-1].

mod client;
mod delivering;
mod ending;
mod leaving;
mod opening;
mod publishing;
mod releasing;
mod replaying;
mod subscribing;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use anabranch_core::error::Refusal;
use anabranch_core::gateway::{
    Answer, ClosedBy, Command, Connection, ConnectionView, Input, Outputs, Reply, Seat, Will,
};
use anabranch_core::id::{ConnectionId, ConsumerTag, MonotonicMs, Now, Token};
use anabranch_core::properties::Codecs;
use bytes::Bytes;

use crate::alias::{Announced, Sent};
use crate::codec::{
    Ack, ConnAck, Connect, DecodeError, Decoder, Disconnect, Packet, Properties, PropertiesBuilder,
    PropertyId, ReasonCode, Version,
};
use crate::config::MqttConfig;
use crate::inbound::Inbound;
use crate::outbound::Outbound;
use crate::reason;

use client::Client;
use delivering::Few;
use ending::Fault;
use releasing::Asked;
use replaying::Part;
use subscribing::Wanted;

/// What the session's own deliveries are called; those of groups have the tags above.
pub(crate) const SESSION: ConsumerTag = ConsumerTag(0);

/// SUBSCRIBEs and UNSUBSCRIBEs that may wait for their answers.
const ASKS_MAX: usize = 256;

/// Tokens of questions never meet those of publishes, which count from 1, nor those of
/// [`releasing`].
const ASK_BASE: u64 = 1 << 62;

/// What all connections of the gateway share.
pub(crate) struct Shared {
    pub(crate) config: MqttConfig,
    pub(crate) codecs: Codecs,
    /// `config.exchange`, ready for every message.
    pub(crate) exchange: Bytes,
    /// `config.vhost`, for clients that do not say another.
    pub(crate) vhost: Arc<str>,
}

/// How far a connection is.
enum Phase {
    /// Nothing but CONNECT is a packet.
    Fresh,
    /// CONNECT came; its answer is not out.
    Opening,
    /// CONNACK said yes.
    Open,
    /// Nothing is handled any more.
    Over,
}

/// A question whose answer is awaited.
enum Ask {
    Login,
    Enter,
    Session,
    Subscribe(Wanted),
    Unsubscribe(Wanted),
    Part(Part),
}

/// See the module. Millions of them are idle, so what few need is behind a pointer.
pub(crate) struct MqttConnection {
    shared: Arc<Shared>,
    id: ConnectionId,
    /// For an identifier of our making.
    seed: u64,
    decoder: Decoder,
    phase: Phase,
    client: Client,
    /// When the client was last heard.
    heard: MonotonicMs,
    asks: VecDeque<(Token, Ask)>,
    last_ask: u64,
    inbound: Inbound,
    /// PUBRELs that wait for the broker, of identifiers held here and of others.
    releasing: u16,
    releasing_unknown: u16,
    outbound: Outbound,
    few: Option<Box<Few>>,
    aliases_in: Option<Box<Announced>>,
    aliases_out: Option<Box<Sent>>,
    /// Until the session is open, and longer where it ends with this connection.
    will: Option<Box<Will>>,
    counts: Counts,
}

/// For the console.
#[derive(Default)]
struct Counts {
    published: u64,
    delivered: u64,
    dropped: u64,
}

impl MqttConnection {
    pub(crate) fn new(shared: Arc<Shared>, seat: Seat) -> MqttConnection {
        MqttConnection {
            decoder: Decoder::new(shared.config.packet_bytes_max as usize),
            id: seat.id,
            seed: seat.seed,
            phase: Phase::Fresh,
            client: Client::nobody(shared.vhost.clone()),
            heard: seat.now.monotonic,
            asks: VecDeque::new(),
            last_ask: ASK_BASE,
            inbound: Inbound::new(),
            releasing: 0,
            releasing_unknown: 0,
            outbound: Outbound::new(),
            few: None,
            aliases_in: None,
            aliases_out: None,
            will: None,
            counts: Counts::default(),
            shared,
        }
    }

    /// Whether the session outlives this connection.
    const fn is_durable(&self) -> bool {
        self.client.session_expiry_s > 0
    }

    const fn is_v5(&self) -> bool {
        self.client.version.is_v5()
    }

    /// The token of a new question.
    fn ask(&mut self, ask: Ask) -> Token {
        self.last_ask += 1;
        let token = Token(self.last_ask);
        self.asks.push_back((token, ask));
        token
    }

    fn on_bytes(&mut self, now: Now, bytes: Bytes, out: &mut Outputs) -> Result<(), Fault> {
        self.heard = now.monotonic;
        self.decoder.feed(bytes);
        self.drain(now, out)?;
        let waiting = matches!(self.phase, Phase::Opening);
        if waiting && self.decoder.held_bytes() > self.decoder.packet_bytes_max() {
            return Err(Fault::refused(
                ReasonCode::QUOTA_EXCEEDED,
                "too many bytes were sent before CONNACK",
            ));
        }
        Ok(())
    }

    /// Handles the packets that are here, until one must wait for an answer.
    fn drain(&mut self, now: Now, out: &mut Outputs) -> Result<(), Fault> {
        while matches!(self.phase, Phase::Fresh | Phase::Open) {
            let packet = match self.decoder.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(error) => return Err(self.broken_packet(error)),
            };
            self.on_packet(now, packet, out)?;
        }
        self.outbound.flush(&mut out.commands);
        Ok(())
    }

    #[inline]
    fn on_packet(&mut self, now: Now, packet: Packet, out: &mut Outputs) -> Result<(), Fault> {
        match packet {
            Packet::Publish(publish) => self.on_publish(now, publish, out),
            Packet::PubAck(ack) => self.on_puback(now, &ack, out),
            Packet::PubRec(ack) => self.on_pubrec(now, &ack, out),
            Packet::PubRel(ack) => self.on_pubrel(&ack, out),
            Packet::PubComp(ack) => self.on_pubcomp(now, &ack, out),
            Packet::Connect(connect) => match self.phase {
                Phase::Fresh => self.on_connect(now, *connect, out),
                // [MQTT-3.1.0-2]
                Phase::Opening | Phase::Open | Phase::Over => {
                    Err(Fault::peer(ReasonCode::PROTOCOL_ERROR, "a second CONNECT"))
                }
            },
            Packet::Subscribe(subscribe) => self.on_subscribe(&subscribe, out),
            Packet::Unsubscribe(unsubscribe) => self.on_unsubscribe(&unsubscribe, out),
            Packet::PingReq => {
                // [MQTT-3.12.4-1]
                self.send(&Packet::PingResp, out);
                Ok(())
            }
            Packet::Disconnect(disconnect) => self.on_disconnect(&disconnect, out),
            Packet::Auth(_) => Err(Fault::peer(
                ReasonCode::PROTOCOL_ERROR,
                "AUTH without an authentication method in CONNECT",
            )),
            Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::PingResp => {
                Err(Fault::peer(
                    ReasonCode::PROTOCOL_ERROR,
                    "a packet that only servers send",
                ))
            }
        }
    }

    fn on_answer(&mut self, now: Now, answer: Answer, out: &mut Outputs) -> Result<(), Fault> {
        match answer {
            Answer::Published {
                first,
                last,
                outcome,
            } => self.on_published(first, last, outcome, out),
            Answer::Done { token, result } => {
                if let Some((asked, packet_id)) = Asked::read(token) {
                    return self.on_noted(asked, packet_id, result, out);
                }
                let Some(at) = self.asks.iter().position(|(asked, _)| *asked == token) else {
                    return Ok(());
                };
                match self.asks.remove(at) {
                    Some((_, ask)) => self.on_done(now, ask, result, out),
                    None => Ok(()),
                }
            }
            // The session is gone, or its right to be here; or a group, of which the client can
            // be told in no other way.
            Answer::Ended { why, .. } => {
                Err(Fault::refused(reason::row(why.kind).disconnect, why.text))
            }
            // Publishes are never mandatory here, and nothing consumes from a queue. Back-pressure is the receive
            // maximum's: PUBACKs wait for the broker, and the driver stops reading.
            Answer::Returned { .. } | Answer::Overdue { .. } | Answer::Blocked(_) => Ok(()),
        }
    }

    fn on_done(
        &mut self,
        now: Now,
        ask: Ask,
        result: Result<Reply, Refusal>,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        match ask {
            Ask::Subscribe(wanted) => self.on_subscribed(wanted, result, out),
            Ask::Unsubscribe(wanted) => self.on_unsubscribed(wanted, result, out),
            Ask::Part(part) => self.on_part(part, result, out),
            Ask::Login | Ask::Enter | Ask::Session => match result {
                Ok(reply) => self.on_opened(now, &ask, reply, out),
                Err(refusal) => Err(Fault::refused(
                    reason::row(refusal.kind).connack,
                    refusal.text,
                )),
            },
        }
    }

    fn on_disconnect(&mut self, packet: &Disconnect, out: &mut Outputs) -> Result<(), Fault> {
        let expiry_s = packet.properties.int(PropertyId::SESSION_EXPIRY);
        if !self.is_durable() && expiry_s.is_some_and(|expiry_s| expiry_s != 0) {
            // Section 3.14.2.2.2.
            return Err(Fault::peer(
                ReasonCode::PROTOCOL_ERROR,
                "DISCONNECT sets an expiry for a session that had none",
            ));
        }
        // [MQTT-3.14.4-3]
        if packet.reason == ReasonCode::SUCCESS {
            self.will = None;
            if self.client.left_will {
                out.commands.push(Command::DropWill);
            }
        }
        if let Some(expiry_s) = expiry_s {
            let expiry_s = expiry_s.min(self.shared.config.session_expiry_s_max);
            out.commands.push(Command::SetSessionExpiry { expiry_s });
        }
        self.end(
            ClosedBy::Peer,
            Cow::Borrowed("the client disconnected"),
            out,
        );
        Ok(())
    }
}

impl Connection for MqttConnection {
    fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Outputs) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        let result = match input {
            Input::Bytes(bytes) => self.on_bytes(now, bytes, out),
            Input::Answers(answers) => {
                let result = answers
                    .drain(..)
                    .try_for_each(|answer| self.on_answer(now, answer, out));
                self.acknowledge(out);
                result
            }
            Input::Deliveries(deliveries) => {
                for delivery in deliveries.drain(..) {
                    self.on_delivery(now, delivery, out);
                }
                self.outbound.flush(&mut out.commands);
                Ok(())
            }
            Input::Timeout => self.on_timeout(now),
            Input::Closed => {
                self.outbound.flush(&mut out.commands);
                self.drop_unarmed_will();
                self.phase = Phase::Over;
                Ok(())
            }
            Input::Stop(stop) => {
                self.on_stop(stop, out);
                Ok(())
            }
        };
        if let Err(fault) = result {
            self.fail(fault, out);
        }
        if self.will.is_some() && matches!(self.phase, Phase::Over) {
            self.publish_will(now, out);
        }
    }

    fn poll_timeout(&self) -> Option<MonotonicMs> {
        let watched = matches!(self.phase, Phase::Open) && self.client.silence_ms_max > 0;
        watched.then(|| self.heard.after(self.client.silence_ms_max))
    }

    fn view(&self) -> ConnectionView {
        self.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an idle connection may take of its own; what it holds behind pointers comes on top.
    const CONNECTION_BYTES_MAX: usize = 424;

    #[test]
    fn an_idle_connection_is_small() {
        let bytes = size_of::<MqttConnection>();
        assert!(bytes <= CONNECTION_BYTES_MAX, "{bytes} bytes");
    }
}
