//! The load generator's loop: one thread, one epoll instance, many connections.
//!
//! Owns connections and the turns of the loop. Never starts a broker or decides what a row is.
//! Next: `lane.rs`, then `setup.rs` and `flow.rs`, which set it up.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::failure::EngineError;
use crate::lane::{Inbox, Lane, Role, Score};
use crate::link::LinkError;
use crate::receiver::Receiver;
use crate::sequence::Faults;
use crate::setup::PREFETCH;
use crate::wire::Wire;
use crate::{amqp, mqtt};

/// A publisher stops filling its buffer above this, whatever its window says.
const OUT_MAX_BYTES: usize = 256 << 10;
/// Events taken from epoll at once.
const EVENTS_MAX: usize = 1024;
/// How long one wait for events may last.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// How long a broker may take to close a connection after the goodbye.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);
/// Marks events of the pace's timer; no connection has this number.
const TIMER: u64 = u64::MAX;

/// A connection's protocol.
pub enum Client {
    /// MQTT.
    Mqtt(mqtt::client::Client),
    /// AMQP.
    Amqp(amqp::client::Client),
}

impl Client {
    fn is_ready(&self) -> bool {
        match self {
            Client::Mqtt(client) => client.is_ready(),
            Client::Amqp(client) => client.is_ready(),
        }
    }
}

struct Link {
    wire: Wire,
    client: Client,
    role: Role,
}

/// All connections of one run.
pub struct Engine {
    epoll: OwnedFd,
    /// Wakes the loop of a paced run.
    timer: Option<OwnedFd>,
    events: Vec<epoll::Event>,
    scratch: Vec<u8>,
    began: Instant,
    run: u32,
    links: Vec<Link>,
    unready: usize,
    lanes: Vec<Lane>,
    receivers: Vec<Receiver>,
    sending: bool,
    /// Counts and latencies.
    pub score: Score,
}

impl Engine {
    /// An engine without connections; `run` marks its messages.
    ///
    /// # Errors
    /// When the system refuses epoll.
    pub fn new(run: u32) -> Result<Self, EngineError> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            timer: None,
            events: Vec::with_capacity(EVENTS_MAX),
            scratch: Vec::new(),
            began: Instant::now(),
            run,
            links: Vec::new(),
            unready: 0,
            lanes: Vec::new(),
            receivers: Vec::new(),
            sending: false,
            score: Score::default(),
        })
    }

    /// Starts a connection whose client `open` makes, and gives its number.
    ///
    /// # Errors
    /// When the connection is refused.
    pub fn connect(
        &mut self,
        address: SocketAddr,
        role: Role,
        open: impl FnOnce(&mut Vec<u8>) -> Client,
    ) -> Result<usize, EngineError> {
        let number = self.links.len();
        let wire = Wire::connect(&self.epoll, address, number as u64);
        let mut wire = wire.map_err(|source| EngineError::link(role, source))?;
        let client = open(wire.out());
        self.links.push(Link { wire, client, role });
        self.unready += 1;
        Ok(number)
    }

    /// Adds a publisher; its number is the count of those added before.
    pub fn add_lane(&mut self, lane: Lane) {
        self.lanes.push(lane);
    }

    /// Adds a receiver; its number is the count of those added before.
    pub fn add_receiver(&mut self, receiver: Receiver) {
        self.receivers.push(receiver);
    }

    /// Has the loop wake up at least once each `interval`, for lanes with a pace.
    ///
    /// # Errors
    /// When the system refuses the timer.
    pub fn wake_each(&mut self, interval: Duration) -> Result<(), EngineError> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let interval = Timespec {
            tv_sec: interval.as_secs() as i64,
            tv_nsec: interval.subsec_nanos().into(),
        };
        let spec = Itimerspec {
            it_interval: interval,
            it_value: interval,
        };
        rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &spec)?;
        epoll::add(
            &self.epoll,
            &timer,
            epoll::EventData::new_u64(TIMER),
            epoll::EventFlags::IN,
        )?;
        self.timer = Some(timer);
        Ok(())
    }

    /// Lets lane `number` send more messages than its quota was.
    pub fn extend(&mut self, number: usize, messages: u64) {
        self.lanes[number].extend(messages);
    }

    /// Messages that receiver `number` has.
    pub fn arrived(&self, number: usize) -> u64 {
        self.receivers[number].arrived()
    }

    /// Connections that are not set up yet.
    pub fn unready(&self) -> usize {
        self.unready
    }

    /// Handles events until `done` and gives true, or false when messages neither arrive nor are
    /// confirmed for `stall`.
    ///
    /// # Errors
    /// As [`Engine::until`].
    pub fn until_or_stalled(
        &mut self,
        what: &'static str,
        limit: Duration,
        stall: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<bool, EngineError> {
        let mut last = (0, Instant::now());
        let mut stalled = false;
        self.until(what, limit, |engine| {
            let progress = engine.score.delivered + engine.score.confirmed;
            if progress != last.0 {
                last = (progress, Instant::now());
            }
            stalled = last.1.elapsed() > stall;
            done(engine) || stalled
        })?;
        Ok(done(self))
    }

    /// Handles events until `done`, or fails after `limit`.
    ///
    /// # Errors
    /// When a connection fails or `limit` is over; `what` then says what was waited for.
    pub fn until(
        &mut self,
        what: &'static str,
        limit: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), EngineError> {
        let deadline = Instant::now() + limit;
        while !done(self) {
            if Instant::now() > deadline {
                return Err(EngineError::Late { what, limit });
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Lets publishers send, or stops them.
    pub fn send(&mut self, sending: bool) {
        self.sending = sending;
    }

    /// Whether all that is to be sent has been sent, received everywhere and confirmed.
    pub fn is_done(&self) -> bool {
        self.lanes.iter().all(|lane| lane.is_done(&self.receivers))
    }

    /// Whether all that was sent has been received everywhere and confirmed.
    pub fn is_drained(&self) -> bool {
        self.lanes
            .iter()
            .all(|lane| lane.is_drained(&self.receivers))
    }

    /// The faults of all receivers so far.
    pub fn faults(&self) -> Faults {
        let mut faults = Faults::default();
        for receiver in &self.receivers {
            faults.add(&receiver.faults(|lane| self.lanes[lane].sent()));
        }
        faults
    }

    /// Runs a script of AMQP methods on a connection; [`Engine::unready`] says when it is done.
    /// Does nothing on an MQTT connection.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn run_script(
        &mut self,
        number: usize,
        script: impl IntoIterator<Item = amqp::script::Step>,
    ) -> Result<(), EngineError> {
        self.ask(number, |client, out| match client {
            Client::Amqp(client) => client.run(script, out),
            Client::Mqtt(_) => {}
        })
    }

    /// Asks on a connection for an answer that comes after all that was sent there before, so
    /// that acknowledgements have been read; [`Engine::unready`] says when it is there.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn fence(&mut self, number: usize) -> Result<(), EngineError> {
        self.ask(number, |client, out| match client {
            Client::Amqp(client) => client.run([amqp::script::prefetch(PREFETCH)], out),
            Client::Mqtt(client) => client.ping(out),
        })
    }

    fn ask(
        &mut self,
        number: usize,
        ask: impl FnOnce(&mut Client, &mut Vec<u8>),
    ) -> Result<(), EngineError> {
        let Link { wire, client, role } = &mut self.links[number];
        let was_ready = client.is_ready();
        ask(client, wire.out());
        self.unready += usize::from(was_ready && !client.is_ready());
        let flushed = wire.flush(&self.epoll);
        flushed.map_err(|source| EngineError::link(*role, source))
    }

    /// Says goodbye and waits until the broker has closed a connection, which it must do
    /// [MQTT-3.14.4-3 of MQTT 3.1.1], so that it knows this client to be away.
    pub fn leave(mut self) {
        self.say_goodbye();
        // An error is what is waited for; without one the client is away when this returns.
        let _ = self.until("leaving", LEAVE_LIMIT, |_| false);
    }

    /// Says goodbye on MQTT connections, so that the broker logs no lost client.
    pub fn disconnect(mut self) {
        self.say_goodbye();
    }

    fn say_goodbye(&mut self) {
        for Link { wire, client, .. } in &mut self.links {
            if let Client::Mqtt(_) = client {
                mqtt::encode::disconnect(wire.out());
                // The run is over: a connection that fails now changes nothing.
                let _ = wire.flush(&self.epoll);
            }
        }
    }

    /// One wait for events, their handling, and then whatever publishers may send.
    fn turn(&mut self) -> Result<(), EngineError> {
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: WAIT_MAX.as_nanos() as i64,
        };
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            if event.data.u64() == TIMER {
                // Only a timer that was read expires again. There is nothing to do but wake up.
                if let Some(timer) = &self.timer {
                    let _ = rustix::io::read(timer, &mut [0; 8]);
                }
                continue;
            }
            let number = event.data.u64() as usize;
            self.handle(number)
                .map_err(|source| EngineError::link(self.links[number].role, source))?;
        }
        self.events = events;
        if self.sending {
            self.fill()?;
        }
        Ok(())
    }

    fn handle(&mut self, number: usize) -> Result<(), LinkError> {
        let Link { wire, client, role } = &mut self.links[number];
        let was_ready = client.is_ready();
        let mut inbox = Inbox {
            role: *role,
            run: self.run,
            now_ns: self.began.elapsed().as_nanos() as u64,
            lanes: &mut self.lanes,
            receivers: &mut self.receivers,
            score: &mut self.score,
        };
        wire.read(&mut self.scratch, |bytes, out| match client {
            Client::Mqtt(client) => client.feed(bytes, out, &mut inbox),
            Client::Amqp(client) => client.feed(bytes, out, &mut inbox),
        })?;
        self.unready -= usize::from(!was_ready && client.is_ready());
        wire.flush(&self.epoll)
    }

    /// Writes as many messages as each publisher's window has room for, in one write each.
    fn fill(&mut self) -> Result<(), EngineError> {
        let now_ns = self.began.elapsed().as_nanos() as u64;
        for lane in &mut self.lanes {
            let Link { wire, client, role } = &mut self.links[lane.link];
            let unconfirmed_max = match client {
                Client::Mqtt(client) => u64::from(client.receive_max()),
                Client::Amqp(_) => u64::MAX,
            };
            let room = lane.room(&self.receivers, unconfirmed_max, now_ns);
            if room == 0 || wire.pending_bytes() > OUT_MAX_BYTES {
                continue;
            }
            for _ in 0..room {
                if !lane.append(wire.out(), self.run, now_ns) {
                    break;
                }
            }
            wire.flush(&self.epoll)
                .map_err(|source| EngineError::link(*role, source))?;
        }
        Ok(())
    }
}
