//! Which frame is heard, in which phase, and when.
//!
//! Owns reading, the phases' view of frames, the opening of channels, the order of a channel's methods
//! and who handles which. Never what a method means.

use anabranch_core::gateway::{ClosedBy, Outcome};

use super::{AmqpConnection, BACKLOG_BYTES_MAX, Cx, Phase, UNREAD_BYTES_MAX, at};
use crate::channel::{Channel, State};
use crate::error::{AmqpError, ReplyCode};
use crate::token::ChannelLife;
use crate::wire::batch::Batch;
use crate::wire::frame::{Frame, FrameKind, FrameReader, PROTOCOL_HEADER};
use crate::wire::method::{
    Arguments, BasicAck, BasicPublish, ChannelCloseOk, ChannelOpenOk, ConnectionCloseOk, Method,
    Wire,
};

impl AmqpConnection {
    /// Reads frames until there are none, or until they must wait for core.
    pub(super) fn read(&mut self, cx: &mut Cx<'_>) {
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
                    if !self.phase.is_ending() {
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

    pub(super) fn frame(&mut self, frame: &Frame<'_>, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        match self.phase {
            Phase::Silent(_) | Phase::ClosedByPeer | Phase::Closed(_) => Ok(()),
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
    pub(super) fn channel_frame(
        &mut self,
        number: u16,
        frame: &Frame<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let Some(channel) = self.channel_mut(number) else {
            return self.unopened_channel(number, frame, cx);
        };
        match channel.state {
            State::Open if breaks_commit(channel, frame) => Err(super::transactions::committing()),
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

    pub(super) fn unopened_channel(
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

    pub(super) fn open(&mut self, number: u16, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
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
    pub(super) fn heard_frame(
        &mut self,
        number: u16,
        frame: &Frame<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        match frame.kind {
            FrameKind::Method => {
                if let Some(done) = self.frequent_method(number, frame, cx) {
                    return done;
                }
                let method = Method::decode_from_client(frame.payload())?;
                self.channel_method(number, method, cx)
                    .map_err(|error| at(error, method.id()))
            }
            FrameKind::Header => self.content_header(number, frame, cx),
            FrameKind::Body => self.content_body(number, frame, cx),
            FrameKind::Heartbeat => Ok(()),
        }
    }

    /// `basic.publish` and `basic.ack`, without the detour by way of `Method`; `None` for all others.
    #[inline]
    fn frequent_method(
        &mut self,
        number: u16,
        frame: &Frame<'_>,
        cx: &mut Cx<'_>,
    ) -> Option<Result<(), AmqpError>> {
        let (id, done) = match frame.payload() {
            [0, 60, 0, 40, arguments @ ..] if !self.expects_content(number) => {
                let publish = BasicPublish::decode_arguments(arguments);
                (
                    BasicPublish::ID,
                    publish.and_then(|publish| self.publish(number, publish, frame)),
                )
            }
            [0, 60, 0, 80, arguments @ ..] if !self.expects_content(number) => {
                let ack = BasicAck::decode_arguments(arguments);
                let done = ack.and_then(|ack| {
                    self.acknowledge(
                        number,
                        ack.delivery_tag,
                        ack.multiple,
                        Outcome::Accepted,
                        cx,
                    )
                });
                (BasicAck::ID, done)
            }
            _ => return None,
        };
        Some(done.map_err(|error| at(error, id)))
    }

    /// Whether a content header or body must come next on the channel.
    fn expects_content(&mut self, number: u16) -> bool {
        self.channel_mut(number)
            .is_some_and(|channel| channel.content.is_some())
    }

    fn channel_method(
        &mut self,
        number: u16,
        method: Method<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        if self.expects_content(number) {
            return Err(AmqpError::connection(
                ReplyCode::UNEXPECTED_FRAME,
                "expected content header or body, got a method instead",
            ));
        }
        match method {
            Method::BasicNack(nack) => {
                let outcome = unwanted(nack.requeue);
                self.acknowledge(number, nack.delivery_tag, nack.multiple, outcome, cx)
            }
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
    pub(super) fn drain_backlog(&mut self, of: ChannelLife, cx: &mut Cx<'_>) {
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
}

/// What `requeue` of a refused delivery means.
fn unwanted(requeue: bool) -> Outcome {
    if requeue {
        Outcome::Released
    } else {
        Outcome::Rejected
    }
}

/// Whether a frame is a method that may not come while a commit is being answered; only the end of the
/// channel may.
fn breaks_commit(channel: &Channel, frame: &Frame<'_>) -> bool {
    let commits = channel.tx.as_ref().is_some_and(|tx| tx.is_committing());
    commits
        && frame.kind == FrameKind::Method
        && !matches!(frame.payload(), [0, 20, 0, 40 | 41, ..])
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
