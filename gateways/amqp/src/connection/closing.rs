//! The end of channels and of the connection, from either side.
//!
//! Owns the scope of errors: one on a channel never reaches another (AMQP 0-9-1 section 2.2.10). What a
//! closed channel held goes back in order, after its consumers are detached.

use std::borrow::Cow;

use anabranch_core::gateway::{Close, ClosedBy, Command, Outcome, StopReason};
use anabranch_core::id::ConsumerTag;

use super::{AmqpConnection, CLOSE_WAIT_MS, Cx, Phase, SOCKET_WAIT_MS};
use crate::channel::{Ask, State, Then};
use crate::error::{AmqpError, ReplyCode, Scope};
use crate::token::ChannelLife;
use crate::wire::batch::Batch;
use crate::wire::field::ShortStr;
use crate::wire::method::{ChannelClose, ChannelCloseOk, ConnectionClose, ConnectionCloseOk};

impl AmqpConnection {
    /// Tells an error to the peer, in its scope.
    pub(super) fn fail(&mut self, number: u16, error: AmqpError, cx: &mut Cx<'_>) {
        if self.phase.is_ending() {
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

    pub(super) fn fail_connection(&mut self, error: &AmqpError, cx: &mut Cx<'_>) {
        self.send_close(error, cx);
        for number in 0..self.channels.len() {
            self.release_channel(number as u16, cx);
        }
        self.phase = Phase::ClosedByUs(cx.now.monotonic.after(CLOSE_WAIT_MS));
    }

    pub(super) fn send_close(&self, error: &AmqpError, cx: &mut Cx<'_>) {
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
    pub(super) fn release_channel(&mut self, number: u16, cx: &mut Cx<'_>) -> u32 {
        let Some(channel) = self.channel_mut(number) else {
            return 0;
        };
        let of = channel.life;
        let consumers = std::mem::take(&mut channel.consumers);
        let mut unacked = std::mem::take(&mut channel.unacked);
        if let Some(mut tx) = channel.tx.take() {
            // Acknowledged, but never committed.
            unacked.put_back(tx.roll_back());
        }
        channel.reply = None;
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

    pub(super) fn detach(&mut self, of: ChannelLife, consumer: ConsumerTag, cx: &mut Cx<'_>) {
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

    pub(super) fn close_channel_for_peer(&mut self, number: u16, cx: &mut Cx<'_>) {
        let detaching = self.release_channel(number, cx);
        if let Some(channel) = self.channel_mut(number) {
            channel.state = State::ClosedByPeer { detaching };
            self.finish_channel(number, cx);
        }
    }

    /// Sends `channel.close-ok` when the last consumer of a channel the client closed is detached.
    pub(super) fn finish_channel(&mut self, number: u16, cx: &mut Cx<'_>) {
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
    pub(super) fn close_for_peer(&mut self, cx: &mut Cx<'_>) {
        self.phase = Phase::ClosedByPeer;
        self.finish_connection(cx);
    }

    /// Closes each channel that is done, and the connection when all are.
    pub(super) fn finish_connection(&mut self, cx: &mut Cx<'_>) {
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
            // Closing the socket here would cut off a client that still writes what it had queued.
            self.phase = Phase::Closed(cx.now.monotonic.after(SOCKET_WAIT_MS));
        }
    }

    pub(super) fn end(&mut self, cx: &mut Cx<'_>, by: ClosedBy, why: impl Into<Cow<'static, str>>) {
        self.phase = Phase::Over;
        cx.out.close = Some(Close {
            by,
            why: why.into(),
        });
    }

    pub(super) fn stop(&mut self, reason: StopReason, cx: &mut Cx<'_>) {
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
        if self.phase != Phase::ProtocolHeader && !self.phase.is_ending() {
            self.send_close(&AmqpError::connection(code, text), cx);
        }
        self.end(cx, by, text);
    }
}
