//! One connection as a state machine: frames in, commands out, answers in, frames out.
//!
//! Owns what the connection remembers, its inputs and its clock. Its modules: `frames` (which frame is
//! heard when), `handshake` (start to open), `topology` (exchange and queue methods), `publish`,
//! `consume` (consumers), `reply_to` (answers without a queue), `deliver` (deliveries, acknowledgements),
//! `transactions`, `answers` (what core said), `outcomes` (of publishes) and `closing`. No socket.
//!
//! Methods of a channel are done one at a time: while core answers one, later frames of that channel
//! wait, except publishes and acknowledgements, which core keeps in order with what was asked before.

mod answers;
mod closing;
mod consume;
mod deliver;
mod frames;
mod handshake;
mod outcomes;
mod publish;
mod reply_to;
mod topology;
mod transactions;

use std::sync::Arc;

use anabranch_core::gateway::{
    ClosedBy, Command, Connection, ConnectionView, Input, Outputs, Seat,
};
use anabranch_core::id::{ConsumerTag, MonotonicMs, Now, Token};
use anabranch_core::properties::Codecs;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::address::KeyCache;
use crate::channel::{Ask, Channel, Consumer, State, Then};
use crate::config::AmqpConfig;
use crate::error::AmqpError;
use crate::names::NameMaker;
use crate::token::{self, ChannelLife};
use crate::unacked::SettleRun;
use crate::unfinished::Unfinished;
use crate::wire::batch::Batch;
use crate::wire::frame::{FRAME_MAX_LOWEST_BYTES, FrameReader};

/// How long we wait for `connection.close-ok` before we close anyway, in milliseconds.
const CLOSE_WAIT_MS: u64 = 10_000;
/// How long we wait for a client to close its socket after `close-ok`, in milliseconds.
const SOCKET_WAIT_MS: u64 = 3_000;
/// How long a failed login is left without an answer when the client cannot be told, in milliseconds.
const SILENCE_MS: u64 = 3_000;
/// How many bytes of frames may wait on a connection's channels for methods to be answered.
const BACKLOG_BYTES_MAX: usize = 32 << 20;
/// Queues a connection remembers to have declared with a count of returns.
const QUORUM_QUEUES_MAX: usize = 1024;
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
    /// We sent `close-ok`: the client closes the socket, and may send what it had queued until then.
    Closed(MonotonicMs),
    /// We sent `connection.close`: everything but `close-ok` is ignored.
    ClosedByUs(MonotonicMs),
    /// The login failed and the client cannot be told: silence, then the end.
    Silent(MonotonicMs),
    /// Over.
    Over,
}

impl Phase {
    /// Whether the last word was said: nothing is told to the peer any more.
    fn is_ending(self) -> bool {
        matches!(
            self,
            Phase::Closed(_) | Phase::ClosedByUs(_) | Phase::Silent(_) | Phase::Over
        )
    }
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
    unfinished: Arc<Unfinished>,
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
    /// Queues of type `quorum` that this connection declared.
    quorum: FxHashSet<Arc<str>>,
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
    pub(crate) fn new(
        seat: Seat,
        config: Arc<AmqpConfig>,
        codecs: Codecs,
        unfinished: Arc<Unfinished>,
    ) -> Self {
        Self {
            seat,
            config,
            codecs,
            unfinished,
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
            quorum: FxHashSet::default(),
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
            && !matches!(ask.then, Then::Detached { .. } | Then::GaveBack { .. })
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

    fn heartbeat_s_ms(&self) -> u64 {
        u64::from(self.heartbeat_s) * 1000
    }

    fn timeout(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now.monotonic;
        match self.phase {
            Phase::ClosedByUs(end) if end <= now => {
                self.end(cx, ClosedBy::PeerFault, "closed after an error")
            }
            Phase::Closed(end) if end <= now => {
                self.end(cx, ClosedBy::Peer, "closed by the client")
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

/// The error with the method that caused it, unless it names one already.
fn at(error: AmqpError, id: (u16, u16)) -> AmqpError {
    if error.class_id == 0 {
        error.by(id)
    } else {
        error
    }
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
            Phase::Closed(end) | Phase::ClosedByUs(end) | Phase::Silent(end) => Some(end),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections are mostly idle and many: what each holds by being there is kept in sight.
    #[test]
    fn an_idle_connection_with_a_channel_is_small() {
        let bytes = size_of::<AmqpConnection>() + size_of::<Channel>();
        assert!(bytes <= 1536, "{bytes} bytes");
    }
}
