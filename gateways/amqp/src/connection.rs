//! One connection as a state machine: frames in, commands out, answers in, frames out.
//!
//! Owns the life of the connection: reading, which frames are heard in which phase, errors and their
//! scope, closing from either side, heartbeats. The rest is in its child modules: `handshake` (start to
//! open), `topology` (exchange and queue methods), `publish`, `consume` (consumers),
//! `deliver` (deliveries, acknowledgements) and `answers` (what core said). No socket, no clock.
//!
//! Methods of a channel are done one at a time: while core answers one, later frames of that channel
//! wait, except publishes and acknowledgements, which core keeps in order with what was asked before.

mod answers;
mod consume;
mod deliver;
mod handshake;
mod publish;
mod topology;

use std::sync::Arc;

use anabranch_core::gateway::{
    Close, ClosedBy, Command, Connection, ConnectionView, Input, Outcome, Outputs, Seat, StopReason,
};
use anabranch_core::id::{ConsumerTag, MonotonicMs, Now, Token};
use anabranch_core::properties::Codecs;
use rustc_hash::FxHashMap;

use crate::address::KeyCache;
use crate::channel::{Ask, Channel, Consumer, State, Then};
use crate::config::AmqpConfig;
use crate::error::{AmqpError, ReplyCode, Scope};
use crate::names::NameMaker;
use crate::token::{self, ChannelLife};
use crate::unacked::SettleRun;
use crate::wire::batch::Batch;
use crate::wire::field::ShortStr;
use crate::wire::frame::{FRAME_MAX_LOWEST_BYTES, Frame, FrameKind, FrameReader, PROTOCOL_HEADER};
use crate::wire::method::{
    ChannelClose, ChannelCloseOk, ChannelOpenOk, ConnectionClose, ConnectionCloseOk, Method,
};

/// How long we wait for `connection.close-ok` before we close anyway, in milliseconds.
const CLOSE_WAIT_MS: u64 = 10_000;
/// How long a failed login is left without an answer when the client cannot be told, in milliseconds.
const SILENCE_MS: u64 = 3_000;
/// How many bytes of frames may wait on a connection's channels for methods to be answered.
const BACKLOG_BYTES_MAX: usize = 32 << 20;
/// How many bytes may wait while login and vhost are checked.
const UNREAD_BYTES_MAX: usize = 256 << 10;

/// Where the connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for the protocol header.
    ProtocolHeader,
    /// Waits for `start-ok`.
    Start,
    /// Core checks the login; nothing is read.
    LoggingIn,
    /// Waits for `tune-ok`.
    Tune,
    /// Waits for `connection.open`.
    Open,
    /// Core enters the vhost; nothing is read.
    Entering,
    /// Open.
    Running,
    /// The client asked to close; its channels finish first.
    ClosedByPeer,
    /// We sent `connection.close`: everything but `close-ok` is ignored.
    ClosedByUs(MonotonicMs),
    /// The login failed and the client cannot be told: silence, then the end.
    Silent(MonotonicMs),
    /// Over.
    Over,
}

/// What a client said of itself in `start-ok`.
#[derive(Debug, Default)]
struct Client {
    name: String,
    product: String,
    /// It can be told that its login failed.
    authentication_failure_close: bool,
    /// It can be told that a consumer ended.
    consumer_cancel_notify: bool,
    /// It can be told that publishing is held back.
    blocked: bool,
}

/// What is at hand while an input is handled.
struct Cx<'o> {
    now: Now,
    out: &'o mut Outputs,
}

/// A connection.
pub(crate) struct AmqpConnection {
    seat: Seat,
    config: Arc<AmqpConfig>,
    codecs: Codecs,
    reader: FrameReader,
    phase: Phase,
    client: Client,
    user: Arc<str>,
    vhost: Arc<str>,
    channel_max: u16,
    frame_bytes_max: u32,
    heartbeat_s: u16,
    heard: MonotonicMs,
    spoke: MonotonicMs,
    channels: Vec<Option<Box<Channel>>>,
    lives: u16,
    consumers: FxHashMap<ConsumerTag, Consumer>,
    last_consumer: u32,
    asks: FxHashMap<u64, Ask>,
    last_ask: u64,
    backlog_bytes: usize,
    keys: KeyCache,
    names: NameMaker,
    settles: SettleRun,
    /// Channels with confirms to tell.
    tell: Vec<ChannelLife>,
    /// Room to write routing keys in.
    key: Vec<u8>,
}

impl AmqpConnection {
    pub(crate) fn new(seat: Seat, config: Arc<AmqpConfig>, codecs: Codecs) -> Self {
        Self {
            seat,
            config,
            codecs,
            reader: FrameReader::new(FRAME_MAX_LOWEST_BYTES),
            phase: Phase::ProtocolHeader,
            client: Client::default(),
            user: "".into(),
            vhost: "".into(),
            channel_max: 0,
            frame_bytes_max: FRAME_MAX_LOWEST_BYTES,
            heartbeat_s: 0,
            heard: seat.now.monotonic,
            spoke: seat.now.monotonic,
            channels: Vec::new(),
            lives: 0,
            consumers: FxHashMap::default(),
            last_consumer: 0,
            asks: FxHashMap::default(),
            last_ask: 0,
            backlog_bytes: 0,
            keys: KeyCache::default(),
            names: NameMaker::new(seat.seed),
            settles: SettleRun::default(),
            tell: Vec::new(),
            key: Vec::new(),
        }
    }

    /// Asks core something for a channel; the channel waits for the answer.
    fn ask(&mut self, cx: &mut Cx<'_>, ask: Ask, command: impl FnOnce(Token) -> Command) {
        if let Some(channel) = self.channel_mut(ask.of.channel)
            && !matches!(ask.then, Then::Detached { .. })
        {
            channel.waiting = true;
        }
        self.last_ask += 1;
        self.settles.flush(&mut cx.out.commands);
        cx.out.commands.push(command(token::ask(self.last_ask)));
        self.asks.insert(self.last_ask, ask);
    }

    fn channel_mut(&mut self, number: u16) -> Option<&mut Channel> {
        channel_at(&mut self.channels, number)
    }

    /// The channel in this very life of its number, if it is open.
    fn open_channel(&mut self, of: ChannelLife) -> Option<&mut Channel> {
        self.channel_mut(of.channel)
            .filter(|channel| channel.life == of && channel.state == State::Open)
    }

    /// Reads frames until there are none, or until they must wait for core.
    fn read(&mut self, cx: &mut Cx<'_>) {
        if self.phase == Phase::ProtocolHeader {
            match self.reader.protocol_header() {
                Ok(true) => self.start(cx),
                Ok(false) => return,
                Err(_) => {
                    // AMQP 0-9-1 section 4.2.2: answer with what is spoken here, and close.
                    cx.out.send.tail().extend_from_slice(&PROTOCOL_HEADER);
                    return self.end(cx, ClosedBy::PeerFault, "no AMQP 0-9-1 protocol header");
                }
            }
        }
        let mut reader = std::mem::replace(&mut self.reader, FrameReader::new(0));
        while !matches!(self.phase, Phase::LoggingIn | Phase::Entering | Phase::Over) {
            match reader.next_frame() {
                Ok(Some(frame)) => {
                    if let Err(error) = self.frame(&frame, cx) {
                        self.fail(frame.channel, error, cx);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    // What follows cannot be told apart any more, so no close-ok is waited for.
                    if !matches!(self.phase, Phase::ClosedByUs(_) | Phase::Silent(_)) {
                        self.send_close(&error, cx);
                    }
                    self.end(cx, ClosedBy::PeerFault, error.to_string());
                }
            }
            reader.set_frame_max(self.frame_bytes_max);
        }
        if matches!(self.phase, Phase::LoggingIn | Phase::Entering)
            && reader.pending_bytes() > UNREAD_BYTES_MAX
        {
            self.end(
                cx,
                ClosedBy::PeerFault,
                "sent too much before its login was answered",
            );
        }
        self.reader = reader;
    }

    fn frame(&mut self, frame: &Frame<'_>, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        match self.phase {
            Phase::Silent(_) | Phase::ClosedByPeer => Ok(()),
            Phase::ClosedByUs(_) => {
                match (frame.kind, frame.channel, Method::decode(frame.payload())) {
                    (FrameKind::Method, 0, Ok(Method::ConnectionCloseOk(_))) => {
                        self.end(cx, ClosedBy::PeerFault, "closed after an error");
                    }
                    (FrameKind::Method, 0, Ok(Method::ConnectionClose(_))) => {
                        cx.out.send.method(0, &ConnectionCloseOk {});
                    }
                    _ => {}
                }
                Ok(())
            }
            _ => match (frame.kind, frame.channel) {
                (FrameKind::Heartbeat, _) => Ok(()),
                (FrameKind::Method, 0) => {
                    let method = Method::decode_from_client(frame.payload())?;
                    self.connection_method(method, cx)
                        .map_err(|error| at(error, method.id()))
                }
                (FrameKind::Header | FrameKind::Body, 0) => Err(AmqpError::connection(
                    ReplyCode::UNEXPECTED_FRAME,
                    "content on channel 0",
                )),
                (_, number) if self.phase != Phase::Running => Err(AmqpError::connection(
                    ReplyCode::CHANNEL_ERROR,
                    format!("frame on channel {number} before the connection is open"),
                )),
                (_, number) => self.channel_frame(number, frame, cx),
            },
        }
    }

    /// A frame on a channel: heard now, later, or not at all.
    fn channel_frame(
        &mut self,
        number: u16,
        frame: &Frame<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let Some(channel) = self.channel_mut(number) else {
            return self.unopened_channel(number, frame, cx);
        };
        match channel.state {
            State::Open if must_wait(channel, frame) => {
                let payload = frame.keep(0);
                let bytes = payload.len();
                channel.backlog.push_back((frame.kind, payload));
                self.backlog_bytes += bytes;
                if self.backlog_bytes > BACKLOG_BYTES_MAX {
                    return Err(AmqpError::connection(
                        ReplyCode::RESOURCE_ERROR,
                        "too many frames wait for a method to be answered",
                    ));
                }
                Ok(())
            }
            State::Open => self.heard_frame(number, frame, cx),
            State::ClosedByUs => {
                match (frame.kind, Method::decode(frame.payload())) {
                    (FrameKind::Method, Ok(Method::ChannelCloseOk(_))) => {
                        self.channels[usize::from(number)] = None
                    }
                    (FrameKind::Method, Ok(Method::ChannelClose(_))) => {
                        cx.out.send.method(number, &ChannelCloseOk {})
                    }
                    _ => {}
                }
                Ok(())
            }
            State::ClosedByPeer { .. } => Ok(()),
        }
    }

    fn unopened_channel(
        &mut self,
        number: u16,
        frame: &Frame<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let id = match frame.kind {
            FrameKind::Method => {
                let method = Method::decode_from_client(frame.payload())?;
                if let Method::ChannelOpen(_) = method {
                    return self
                        .open(number, cx)
                        .map_err(|error| at(error, method.id()));
                }
                method.id()
            }
            _ => (0, 0),
        };
        Err(AmqpError::connection(
            ReplyCode::CHANNEL_ERROR,
            format!("channel {number} is not open"),
        )
        .by(id))
    }

    fn open(&mut self, number: u16, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        if number > self.channel_max {
            return Err(AmqpError::connection(
                ReplyCode::NOT_ALLOWED,
                format!(
                    "channel number {number} is above the negotiated channel_max {}",
                    self.channel_max
                ),
            ));
        }
        let at = usize::from(number);
        if self.channels.len() <= at {
            self.channels.resize_with(at + 1, || None);
        }
        self.lives = self.lives.wrapping_add(1) & 0xFFF;
        self.channels[at] = Some(Box::new(Channel::new(ChannelLife {
            channel: number,
            life: self.lives,
        })));
        cx.out.send.method(
            number,
            &ChannelOpenOk {
                reserved_1: Default::default(),
            },
        );
        Ok(())
    }

    /// A frame of an open channel whose turn it is.
    fn heard_frame(
        &mut self,
        number: u16,
        frame: &Frame<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        match frame.kind {
            FrameKind::Method => {
                let method = Method::decode_from_client(frame.payload())?;
                self.channel_method(number, method, frame, cx)
                    .map_err(|error| at(error, method.id()))
            }
            FrameKind::Header => self.content_header(number, frame, cx),
            FrameKind::Body => self.content_body(number, frame, cx),
            FrameKind::Heartbeat => Ok(()),
        }
    }

    fn channel_method<'f>(
        &mut self,
        number: u16,
        method: Method<'f>,
        frame: &Frame<'f>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        if self
            .channel_mut(number)
            .is_some_and(|channel| channel.content.is_some())
        {
            return Err(AmqpError::connection(
                ReplyCode::UNEXPECTED_FRAME,
                "expected content header or body, got a method instead",
            ));
        }
        match method {
            Method::BasicPublish(publish) => self.publish(number, publish, frame),
            Method::BasicAck(ack) => self.acknowledge(
                number,
                ack.delivery_tag,
                ack.multiple,
                Outcome::Accepted,
                cx,
            ),
            Method::BasicNack(nack) => self.acknowledge(
                number,
                nack.delivery_tag,
                nack.multiple,
                unwanted(nack.requeue),
                cx,
            ),
            Method::BasicReject(reject) => self.acknowledge(
                number,
                reject.delivery_tag,
                false,
                unwanted(reject.requeue),
                cx,
            ),
            Method::ChannelOpen(_) => Err(AmqpError::connection(
                ReplyCode::CHANNEL_ERROR,
                "second 'channel.open' seen",
            )),
            Method::ChannelClose(_) => {
                self.close_channel_for_peer(number, cx);
                Ok(())
            }
            // Answers to what we never asked or no longer wait for.
            Method::ChannelCloseOk(_) | Method::ChannelFlowOk(_) | Method::BasicCancelOk(_) => {
                Ok(())
            }
            method => match method.id().0 {
                10 => Err(AmqpError::connection(
                    ReplyCode::COMMAND_INVALID,
                    format!("connection method on channel {number}"),
                )),
                40 | 50 => self.topology_method(number, method, cx),
                _ => self.consume_method(number, method, cx),
            },
        }
    }

    /// Does what waits on a channel, until something is asked of core again.
    fn drain_backlog(&mut self, of: ChannelLife, cx: &mut Cx<'_>) {
        while let Some(channel) = self.open_channel(of)
            && !channel.waiting
            && let Some((kind, payload)) = channel.backlog.pop_front()
        {
            self.backlog_bytes -= payload.len();
            let frame = Frame::of_kept(kind, of.channel, &payload);
            if let Err(error) = self.heard_frame(of.channel, &frame, cx) {
                self.fail(of.channel, error, cx);
            }
        }
    }

    /// Tells an error to the peer, in its scope.
    fn fail(&mut self, number: u16, error: AmqpError, cx: &mut Cx<'_>) {
        if matches!(
            self.phase,
            Phase::ClosedByUs(_) | Phase::Silent(_) | Phase::Over
        ) {
            return;
        }
        if self.phase == Phase::ClosedByPeer {
            // The client is not interested any more; its other channels still finish.
            self.release_channel(number, cx);
            if let Some(channel) = self.channel_mut(number) {
                channel.state = State::ClosedByUs;
            }
            return;
        }
        if error.scope == Scope::Connection || number == 0 || self.phase != Phase::Running {
            return self.fail_connection(&error, cx);
        }
        let text = error.reply_text();
        let close = ChannelClose {
            reply_code: error.code.0,
            reply_text: ShortStr::cut(text.as_bytes()),
            class_id: error.class_id,
            method_id: error.method_id,
        };
        self.release_channel(number, cx);
        if let Some(channel) = self.channel_mut(number) {
            channel.state = State::ClosedByUs;
            cx.out.send.method(number, &close);
        }
    }

    fn fail_connection(&mut self, error: &AmqpError, cx: &mut Cx<'_>) {
        self.send_close(error, cx);
        for number in 0..self.channels.len() {
            self.release_channel(number as u16, cx);
        }
        self.phase = Phase::ClosedByUs(cx.now.monotonic.after(CLOSE_WAIT_MS));
    }

    fn send_close(&self, error: &AmqpError, cx: &mut Cx<'_>) {
        let text = error.reply_text();
        cx.out.send.method(
            0,
            &ConnectionClose {
                reply_code: error.code.0,
                reply_text: ShortStr::cut(text.as_bytes()),
                class_id: error.class_id,
                method_id: error.method_id,
            },
        );
    }

    /// Detaches the consumers of a channel and gives back what it holds, oldest first; says how many
    /// consumers are being detached.
    fn release_channel(&mut self, number: u16, cx: &mut Cx<'_>) -> u32 {
        let Some(channel) = self.channel_mut(number) else {
            return 0;
        };
        let of = channel.life;
        let consumers = std::mem::take(&mut channel.consumers);
        let mut unacked = std::mem::take(&mut channel.unacked);
        let held = std::mem::take(&mut channel.held);
        let backlog = std::mem::take(&mut channel.backlog);
        channel.content = None;
        self.backlog_bytes -= backlog
            .iter()
            .map(|(_, payload)| payload.len())
            .sum::<usize>();
        let detaching = consumers.len() as u32;
        for (_, consumer) in consumers {
            self.detach(of, consumer, cx);
        }
        // After the consumers are gone, or it would come to them again.
        unacked.take_all(|entry| {
            self.settles.add(
                entry.consumer,
                entry.offset,
                Outcome::Released,
                &mut cx.out.commands,
            );
        });
        for delivery in held {
            self.settles.add(
                delivery.consumer,
                delivery.offset,
                Outcome::Released,
                &mut cx.out.commands,
            );
        }
        detaching
    }

    fn detach(&mut self, of: ChannelLife, consumer: ConsumerTag, cx: &mut Cx<'_>) {
        if let Some(known) = self.consumers.get_mut(&consumer) {
            known.detaching = true;
        }
        let ask = Ask {
            of,
            method: (20, 40),
            then: Then::Detached { consumer },
        };
        self.ask(cx, ask, |token| Command::Cancel { token, consumer });
    }

    fn close_channel_for_peer(&mut self, number: u16, cx: &mut Cx<'_>) {
        let detaching = self.release_channel(number, cx);
        if let Some(channel) = self.channel_mut(number) {
            channel.state = State::ClosedByPeer { detaching };
            self.finish_channel(number, cx);
        }
    }

    /// Sends `channel.close-ok` when the last consumer of a channel the client closed is detached.
    fn finish_channel(&mut self, number: u16, cx: &mut Cx<'_>) {
        if self
            .channel_mut(number)
            .is_some_and(|channel| channel.state == (State::ClosedByPeer { detaching: 0 }))
        {
            self.channels[usize::from(number)] = None;
            if self.phase == Phase::Running {
                cx.out.send.method(number, &ChannelCloseOk {});
            }
        }
    }

    /// The client closes the connection: what its channels still do is finished first.
    fn close_for_peer(&mut self, cx: &mut Cx<'_>) {
        self.phase = Phase::ClosedByPeer;
        self.finish_connection(cx);
    }

    /// Closes each channel that is done, and the connection when all are.
    fn finish_connection(&mut self, cx: &mut Cx<'_>) {
        if self.phase != Phase::ClosedByPeer {
            return;
        }
        for number in 0..self.channels.len() as u16 {
            if self
                .channel_mut(number)
                .is_some_and(|channel| channel.state == State::Open && channel.is_idle())
            {
                self.close_channel_for_peer(number, cx);
            }
        }
        if self
            .channels
            .iter()
            .flatten()
            .all(|channel| channel.is_idle())
        {
            cx.out.send.method(0, &ConnectionCloseOk {});
            self.end(cx, ClosedBy::Peer, "closed by the client");
        }
    }

    fn end(
        &mut self,
        cx: &mut Cx<'_>,
        by: ClosedBy,
        why: impl Into<std::borrow::Cow<'static, str>>,
    ) {
        self.phase = Phase::Over;
        cx.out.close = Some(Close {
            by,
            why: why.into(),
        });
    }

    fn stop(&mut self, reason: StopReason, cx: &mut Cx<'_>) {
        let (code, text, by) = match reason {
            StopReason::Shutdown => (
                ReplyCode::CONNECTION_FORCED,
                "broker is shutting down",
                ClosedBy::Us,
            ),
            StopReason::Kicked => (
                ReplyCode::CONNECTION_FORCED,
                "closed by an operator",
                ClosedBy::Us,
            ),
            StopReason::TakenOver => (
                ReplyCode::CONNECTION_FORCED,
                "session taken over",
                ClosedBy::Us,
            ),
            StopReason::Unauthorised => (
                ReplyCode::ACCESS_REFUSED,
                "user may not connect any more",
                ClosedBy::Refused,
            ),
            StopReason::SlowReader => (
                ReplyCode::RESOURCE_ERROR,
                "does not read what it is sent",
                ClosedBy::Refused,
            ),
            StopReason::LoginTimeout => (
                ReplyCode::CONNECTION_FORCED,
                "did not log in in time",
                ClosedBy::Refused,
            ),
        };
        // Before the protocol header there is nobody to tell.
        if !matches!(
            self.phase,
            Phase::ProtocolHeader | Phase::ClosedByUs(_) | Phase::Silent(_) | Phase::Over
        ) {
            self.send_close(&AmqpError::connection(code, text), cx);
        }
        self.end(cx, by, text);
    }

    fn heartbeat_s_ms(&self) -> u64 {
        u64::from(self.heartbeat_s) * 1000
    }

    fn timeout(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now.monotonic;
        match self.phase {
            Phase::ClosedByUs(end) if end <= now => {
                self.end(cx, ClosedBy::PeerFault, "closed after an error")
            }
            Phase::Silent(end) if end <= now => self.end(cx, ClosedBy::Refused, "login refused"),
            Phase::Running | Phase::Open | Phase::Entering | Phase::ClosedByPeer
                if self.heartbeat_s > 0 =>
            {
                // AMQP 0-9-1 section 4.2.7
                if self.heard.after(2 * self.heartbeat_s_ms()) <= now {
                    self.end(cx, ClosedBy::PeerFault, "missed heartbeats");
                } else if self.spoke.after(self.heartbeat_s_ms() / 2) <= now {
                    cx.out.send.heartbeat();
                }
            }
            _ => {}
        }
    }
}

/// The channel of that number, when only part of the connection can be borrowed.
#[inline]
fn channel_at(channels: &mut [Option<Box<Channel>>], number: u16) -> Option<&mut Channel> {
    channels.get_mut(usize::from(number))?.as_deref_mut()
}

/// What `requeue` of a refused delivery means.
fn unwanted(requeue: bool) -> Outcome {
    if requeue {
        Outcome::Released
    } else {
        Outcome::Rejected
    }
}

/// The error with the method that caused it, unless it names one already.
fn at(error: AmqpError, id: (u16, u16)) -> AmqpError {
    if error.class_id == 0 {
        error.by(id)
    } else {
        error
    }
}

/// Whether a frame waits for its turn. Publishes, their content and acknowledgements need not wait for
/// an answer, only for frames that wait already.
fn must_wait(channel: &Channel, frame: &Frame<'_>) -> bool {
    if !channel.backlog.is_empty() {
        return true;
    }
    let passes = match (frame.kind, frame.payload()) {
        (FrameKind::Method, [0, 60, 0, 40 | 80 | 90 | 120, ..]) => true,
        (FrameKind::Method, _) => false,
        _ => true,
    };
    channel.waiting && !passes
}

impl Connection for AmqpConnection {
    fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Outputs) {
        if self.phase == Phase::Over {
            return;
        }
        let mut cx = Cx { now, out };
        match input {
            Input::Bytes(bytes) => {
                self.heard = now.monotonic;
                self.reader.feed(bytes);
                self.read(&mut cx);
            }
            Input::Answers(answers) => {
                for answer in answers.drain(..) {
                    self.answer(answer, &mut cx);
                }
                self.tell_confirms(&mut cx);
                self.finish_connection(&mut cx);
                if self.reader.pending_bytes() > 0 {
                    self.read(&mut cx);
                }
            }
            Input::Deliveries(deliveries) => {
                for delivery in deliveries.drain(..) {
                    self.deliver(delivery, &mut cx);
                }
            }
            Input::Timeout => self.timeout(&mut cx),
            Input::Closed => self.phase = Phase::Over,
            Input::Stop(reason) => self.stop(reason, &mut cx),
        }
        self.settles.flush(&mut cx.out.commands);
        if !out.send.is_empty() {
            self.spoke = now.monotonic;
        }
    }

    fn poll_timeout(&self) -> Option<MonotonicMs> {
        match self.phase {
            Phase::ClosedByUs(end) | Phase::Silent(end) => Some(end),
            Phase::Running | Phase::Open | Phase::Entering | Phase::ClosedByPeer
                if self.heartbeat_s > 0 =>
            {
                let silent = self.heard.after(2 * self.heartbeat_s_ms());
                Some(silent.min(self.spoke.after(self.heartbeat_s_ms() / 2)))
            }
            _ => None,
        }
    }

    fn view(&self) -> ConnectionView {
        let open = self.channels.iter().flatten();
        let unacked: usize = open.clone().map(|channel| channel.unacked.len()).sum();
        ConnectionView {
            protocol: "AMQP 0-9-1".to_owned(),
            user: self.user.to_string(),
            client: self.client.name.clone(),
            vhost: self.vhost.to_string(),
            facts: vec![
                ("product", self.client.product.clone()),
                ("channels", open.count().to_string()),
                ("consumers", self.consumers.len().to_string()),
                ("unacknowledged", unacked.to_string()),
                ("heartbeat", format!("{} s", self.heartbeat_s)),
            ],
        }
    }
}
