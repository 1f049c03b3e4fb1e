//! One worker's thread: wait, take mail, read, let the broker's side take its turn, write.
//!
//! Everything of a connection happens here, on one thread, without a lock and without a task per
//! connection. A turn goes: sleep until something is ready; take the letters of other threads; read
//! every ready socket once and submit what its protocol asks; fire due timers; then, until nothing
//! moves any more, let the worker take its turn, send what it has for shards, and feed answers and
//! deliveries to the connections that have some; at last write each connection's bytes with one system
//! call. So messages that arrive together are handled together, and a receiver is woken once per batch.
//!
//! Owns: the loop and its order.
//! Never: knows a protocol; waits for anything but the poll.
//! Next: `feed.rs` (what happens to one connection), `mailbox.rs` (what others send).

use anabranch_core::gateway::{Gateway, Outputs, Seat, StopReason};
use anabranch_core::id::{ConnectionId, MonotonicMs, Now, ShardId, WorkerId};
use anabranch_core::port::{MetaPort, ShardPort, WorkerPort};
use anabranch_core::worker::{HostAnswer, Mail, Outgoing, Worker};
use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Poll, Token};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::call::Calling;
use crate::clock::Clock;
use crate::driver::Host;
use crate::farewell::Farewell;
use crate::limits::DriverLimits;
use crate::mailbox::{Letter, Mailbox};
use crate::reader::ReadBuffer;
use crate::row::Counters;
use crate::slot::{Slot, Slots};
use crate::timers::Timers;
use crate::transport::Layers;

/// Readiness events taken from one poll.
const EVENTS_MAX: usize = 1024;
/// Times that mail is handed out in one turn, so that two connections that answer each other do not
/// keep everyone else from being read.
const PASSES_MAX: usize = 8;
/// Output buffers kept for reuse, and how large each may have grown.
const POOL_MAX: usize = 64;
const POOLED_BYTES_MAX: usize = 256 * 1024;
/// The poll token of the bell; connections use their index.
pub(crate) const BELL: Token = Token(usize::MAX);

/// What all workers share.
pub(crate) struct Surroundings {
    pub(crate) gateways: Vec<Arc<dyn Gateway>>,
    /// What each listener's connections are, by its number.
    pub(crate) doors: Vec<Door>,
    pub(crate) shards: Vec<(ShardId, Arc<dyn ShardPort>)>,
    pub(crate) outside: Vec<(WorkerId, Arc<dyn WorkerPort>)>,
    pub(crate) mailboxes: Vec<Arc<Mailbox>>,
    pub(crate) meta: Arc<dyn MetaPort>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: DriverLimits,
    /// Seeds of connections are made from it.
    pub(crate) seed: u64,
}

/// What a listener's connections are.
pub(crate) struct Door {
    /// Number of the gateway in the setup.
    pub(crate) gateway: usize,
    pub(crate) layers: Layers,
}

/// A worker and its connections.
pub(crate) struct Desk {
    pub(crate) id: WorkerId,
    pub(crate) worker: Worker,
    pub(crate) around: Arc<Surroundings>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) poll: Poll,
    pub(crate) now: Now,
    pub(crate) slots: Slots,
    pub(crate) timers: Timers,
    pub(crate) reader: ReadBuffer,
    #[expect(clippy::vec_box, reason = "the boxes move between here and the slots")]
    pub(crate) pool: Vec<Box<Outputs>>,
    pub(crate) mail: Mail,
    /// Slots to read in the next turn, because there may be more.
    pub(crate) to_read: VecDeque<usize>,
    /// Slots with something to write.
    pub(crate) to_write: Vec<usize>,
    /// Connections whose held mail may be taken again.
    pub(crate) to_serve: Vec<ConnectionId>,
    /// Connections without a socket, for one command each.
    pub(crate) calls: HashMap<ConnectionId, Calling>,
    pub(crate) farewell: Farewell,
    /// Set at shutdown: when the thread ends at the latest.
    pub(crate) drain_until: Option<MonotonicMs>,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
}

impl Desk {
    /// Runs until shut down.
    ///
    /// # Errors
    /// When the poll itself fails; its connections are lost then.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut letters = Vec::new();
        let mut busy = false;
        loop {
            let patience = self.patience(busy);
            let result = self.poll.poll(&mut events, patience);
            self.mailbox.awake();
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
                other => other?,
            }
            self.now = self.around.clock.now();
            self.mailbox.take(&mut letters);
            for letter in letters.drain(..) {
                self.open(letter);
            }
            self.read_ready(&events);
            self.fire_timers();
            busy = self.hand_out();
            busy |= self.write_all();
            self.count();
            if self
                .drain_until
                .is_some_and(|end| end <= self.now.monotonic || self.slots.is_empty())
            {
                self.send_outgoing();
                return Ok(());
            }
        }
    }

    /// How long the poll may sleep: not at all while there is work.
    fn patience(&self, busy: bool) -> Option<Duration> {
        if busy
            || !self.to_read.is_empty()
            || !self.to_serve.is_empty()
            || !self.mailbox.may_sleep()
        {
            return Some(Duration::ZERO);
        }
        let due = [
            self.timers.next(),
            self.worker.poll_timeout(),
            self.drain_until,
        ];
        let due = due.into_iter().flatten().min()?;
        let now = self.around.clock.now().monotonic;
        Some(Duration::from_millis(due.0.saturating_sub(now.0)))
    }

    fn open(&mut self, letter: Letter) {
        match letter {
            Letter::Events { from, events } => self.worker.shard_events(self.now, from, events),
            Letter::Requests { from, requests } => {
                self.worker.shard_requests(self.now, from, requests);
            }
            Letter::Answer(answer) => self.worker.host_answer(self.now, answer),
            Letter::Accept {
                socket,
                peer,
                listener,
            } => self.accept(socket, peer, listener),
            Letter::Stop {
                connection,
                reason,
                done,
            } => {
                let index = self.slots.find(connection);
                if let Some(index) = index {
                    self.stop(index, reason);
                }
                done(index.is_some());
            }
            Letter::Call(call) => self.call(*call),
            Letter::Rows(done) => done(self.slots.iter().map(Slot::row).collect()),
            Letter::Inspect(look) => look(&self.worker),
            Letter::Shutdown => {
                let end = self.now.monotonic.after(self.around.limits.drain_ms);
                self.drain_until.get_or_insert(end);
                for index in 0..self.slots.places() {
                    self.stop(index, StopReason::Shutdown);
                }
            }
        }
    }

    fn accept(&mut self, socket: TcpStream, peer: SocketAddr, listener: usize) {
        let around = self.around.clone();
        let Some(door) = around.doors.get(listener) else {
            return self.turned_away();
        };
        let number = door.gateway;
        let Some(gateway) = around.gateways.get(number) else {
            return self.turned_away();
        };
        let Some((index, life)) = self.slots.vacancy() else {
            tracing::warn!(%peer, "connection refused: the worker has no place left");
            return self.turned_away();
        };
        let mut transport = match door.layers.around(socket) {
            Ok(transport) => transport,
            Err(error) => {
                tracing::warn!(%peer, %error, "connection refused: TLS cannot begin");
                self.slots.vacate(index);
                return self.turned_away();
            }
        };
        if let Err(error) = transport.register(self.poll.registry(), Token(index)) {
            tracing::warn!(%peer, %error, "connection refused: its socket cannot be waited for");
            self.slots.vacate(index);
            return self.turned_away();
        }
        let id = ConnectionId::new(self.id, life);
        let connection = gateway.accept(Seat {
            id,
            peer,
            now: self.now,
            seed: mix(self.around.seed ^ id.0),
        });
        let gateway_name = gateway.name();
        self.worker.connected(id, gateway_name, peer);
        let slot = Slot {
            id,
            gateway: number,
            gateway_name,
            peer,
            transport,
            transport_kind: door.layers.kind(),
            connection: Some(connection),
            out: None,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            grown_bytes: 0,
            dirty: false,
            reading: false,
            full: false,
            read_closed: false,
            paused: false,
            mail_held: false,
            due: None,
            login_by: Some(self.now.monotonic.after(self.around.limits.login_ms)),
            stall_by: None,
            linger_until: None,
            close: None,
            accepted: self.now.unix,
            received_bytes: 0,
            sent_bytes: 0,
        };
        self.slots.fill(index, slot);
        self.counters.accepted.fetch_add(1, Relaxed);
        self.counters.open_of[number].fetch_add(1, Relaxed);
        if self.drain_until.is_some() {
            self.stop(index, StopReason::Shutdown);
        }
        self.rest(index);
        self.read_later(index);
    }

    /// A connection that got no slot: its socket closes by being dropped.
    fn turned_away(&self) {
        self.counters.open.fetch_sub(1, Relaxed);
    }

    fn read_ready(&mut self, events: &Events) {
        for _ in 0..self.to_read.len() {
            let Some(index) = self.to_read.pop_front() else {
                break;
            };
            if let Some(slot) = self.slots.at(index) {
                slot.reading = false;
                self.read(index);
            }
        }
        for event in events {
            let Token(index) = event.token();
            if event.token() != BELL {
                self.ready(index, event);
            }
        }
    }

    fn ready(&mut self, index: usize, event: &Event) {
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        slot.read_closed |= event.is_read_closed() || event.is_error();
        if event.is_writable() && slot.full {
            slot.full = false;
            self.write_later(index);
        }
        let reading = self.slots.at(index).is_some_and(|slot| slot.reading);
        if (event.is_readable() || event.is_read_closed() || event.is_error()) && !reading {
            self.read(index);
        }
    }

    fn fire_timers(&mut self) {
        let now = self.now.monotonic;
        while let Some(index) = self.timers.pop(now) {
            self.due(index);
        }
        if self.worker.poll_timeout().is_some_and(|due| due <= now) {
            self.worker.timeout(self.now);
        }
    }

    /// Lets the worker take its turns and feeds what it has for connections. True when it was stopped
    /// by the limit of passes, so that there may be more.
    fn hand_out(&mut self) -> bool {
        let mut again = std::mem::take(&mut self.to_serve);
        for id in again.drain(..) {
            self.serve(id);
        }
        for _ in 0..PASSES_MAX {
            self.worker.turn(self.now);
            self.send_outgoing();
            let mut moved = false;
            while let Some(id) = self.worker.next_ready() {
                moved = true;
                self.serve(id);
            }
            if !moved {
                return false;
            }
        }
        true
    }

    fn send_outgoing(&mut self) {
        let mut answers = Vec::new();
        for outgoing in self.worker.outgoing() {
            match outgoing {
                Outgoing::Requests { to, requests } => match self.around.shard(to) {
                    Some(port) => port.send(self.id, requests),
                    None => tracing::error!(shard = %to, "no way to this shard; requests are lost"),
                },
                Outgoing::Events { to, from, events } => match self.around.worker(to) {
                    Some(port) => port.send(from, events),
                    None => tracing::error!(worker = %to, "no way to this worker; events are lost"),
                },
                Outgoing::Verify { ask, login } => {
                    if let Some(calling) = self.calls.get(&login.connection) {
                        answers.push(calling.logged_in(ask));
                        continue;
                    }
                    let mailbox = self.mailbox.clone();
                    let done = move |result| {
                        mailbox.send(Letter::Answer(HostAnswer::Verified { ask, result }));
                    };
                    self.around.host.verify(login, Box::new(done));
                }
                Outgoing::Propose { ask, command } => {
                    let mailbox = self.mailbox.clone();
                    let done = move |result| {
                        mailbox.send(Letter::Answer(HostAnswer::Proposed { ask, result }));
                    };
                    self.around
                        .meta
                        .propose(command, self.now.unix, Box::new(done));
                }
            }
        }
        for answer in answers {
            self.worker.host_answer(self.now, answer);
        }
    }

    /// Writes every connection's bytes of this turn. True when some have more than their share.
    fn write_all(&mut self) -> bool {
        let mut dirty = std::mem::take(&mut self.to_write);
        for index in dirty.drain(..) {
            self.write(index);
        }
        // What `write` listed again keeps its place; the emptied list keeps its allocation.
        dirty.append(&mut self.to_write);
        self.to_write = dirty;
        !self.to_write.is_empty()
    }

    fn count(&mut self) {
        if let Some(withheld) = self.worker.withheld(self.now) {
            tracing::info!(
                user = %withheld.user,
                address = %withheld.address,
                count = withheld.count,
                "messages were withheld: no rule lets this consumer receive their address"
            );
        }
        self.counters
            .received_bytes
            .store(self.received_bytes, Relaxed);
        self.counters.sent_bytes.store(self.sent_bytes, Relaxed);
    }

    /// An output buffer for a connection.
    pub(crate) fn blank(&mut self) -> Box<Outputs> {
        self.pool.pop().unwrap_or_default()
    }

    /// Takes an emptied output buffer back, unless there are plenty or it has grown large.
    pub(crate) fn give_back(&mut self, mut out: Box<Outputs>) {
        if self.pool.len() < POOL_MAX && out.send.tail().capacity() <= POOLED_BYTES_MAX {
            out.commands.clear();
            self.pool.push(out);
        }
    }
}

impl Surroundings {
    fn shard(&self, id: ShardId) -> Option<&dyn ShardPort> {
        if id.is_volatile() {
            let host = self.mailboxes.iter().enumerate().find(|(number, _)| {
                u16::try_from(*number).is_ok_and(|number| ShardId::volatile(WorkerId(number)) == id)
            });
            return host.map(|(_, mailbox)| &**mailbox as &dyn ShardPort);
        }
        let found = self.shards.iter().find(|(shard, _)| *shard == id);
        found.map(|(_, port)| &**port)
    }

    fn worker(&self, id: WorkerId) -> Option<&dyn WorkerPort> {
        if let Some(mailbox) = self.mailboxes.get(usize::from(id.0)) {
            return Some(&**mailbox as &dyn WorkerPort);
        }
        let found = self.outside.iter().find(|(worker, _)| *worker == id);
        found.map(|(_, port)| &**port)
    }
}

/// Spreads a number over all 64 bits (the finaliser of `SplitMix64`), so that seeds of neighbouring
/// connections have nothing in common.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
