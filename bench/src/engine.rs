//! The load generator's loop: one thread, one epoll instance, many connections.
//!
//! Owns connections, publishers' windows and receivers' checks. Never starts a broker or decides
//! what a row is. Next: `rows.rs` and `flow.rs`, which set it up.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;

use crate::histogram::Histogram;
use crate::link::{Confirmed, LinkError, Sink};
use crate::sequence::{Faults, STAMP_BYTES, Stamp, Track};
use crate::window::Unconfirmed;
use crate::wire::Wire;
use crate::{amqp, mqtt};

/// Bytes of every message's payload.
pub const PAYLOAD_BYTES: usize = 128;
const _: () = assert!(PAYLOAD_BYTES >= STAMP_BYTES);

/// A publisher stops filling its buffer above this, whatever its window says.
const OUT_MAX_BYTES: usize = 256 << 10;
/// Events taken from epoll at once.
const EVENTS_MAX: usize = 1024;
/// How long one wait for events may last.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A connection failed.
    #[error("{who}: {source}")]
    Link {
        /// Which connection, for people.
        who: String,
        /// What happened.
        source: LinkError,
    },
    /// The system refused epoll.
    #[error("epoll: {0}")]
    Epoll(#[from] rustix::io::Errno),
    /// The broker does not listen for what the row needs.
    #[error("{broker} has no listener for {who}")]
    NoListener {
        /// The broker's name.
        broker: String,
        /// What would connect.
        who: String,
    },
    /// Something took longer than it may.
    #[error("{what} took longer than {:.1} s", limit.as_secs_f64())]
    Late {
        /// What was waited for.
        what: &'static str,
        /// How long.
        limit: Duration,
    },
}

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

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// Publishes for the lane of this number.
    Publisher(usize),
    /// Is the receiver of this number.
    Receiver(usize),
    /// Only exists.
    Idle,
}

struct Link {
    wire: Wire,
    client: Client,
    role: Role,
}

/// How a publisher's messages look.
pub enum Template {
    /// MQTT PUBLISH.
    Mqtt(mqtt::codec::PublishTemplate),
    /// AMQP basic.publish.
    Amqp(amqp::codec::PublishTemplate),
}

/// One publisher and those who hear it.
pub struct Lane {
    link: usize,
    template: Template,
    /// Messages that may be sent and not yet both received everywhere and confirmed.
    window: u64,
    sent: u64,
    unconfirmed: Option<Unconfirmed>,
    receivers: Range<usize>,
}

struct Receiver {
    /// Lanes it should hear.
    hears: Range<usize>,
    /// One per lane of the run.
    tracks: Vec<Track>,
    stray: u64,
}

/// What was counted so far.
#[derive(Default)]
pub struct Score {
    /// Messages received, by all receivers together.
    pub delivered: u64,
    /// Whether latencies are recorded now.
    pub recording: bool,
    /// From sending to receiving.
    pub delivery: Histogram,
    /// From sending to the broker's confirmation.
    pub confirmation: Histogram,
}

/// All connections of one run.
pub struct Engine {
    epoll: OwnedFd,
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
        let mut wire = wire.map_err(|source| EngineError::Link {
            who: who(number, role),
            source,
        })?;
        let client = open(wire.out());
        self.links.push(Link { wire, client, role });
        self.unready += 1;
        Ok(number)
    }

    /// Adds a publisher on connection `link`, heard by `receivers`, with at most `window`
    /// messages in flight, confirmed by the broker or not.
    pub fn add_lane(
        &mut self,
        link: usize,
        template: Template,
        window: u64,
        confirmed: bool,
        receivers: Range<usize>,
    ) {
        let unconfirmed = confirmed.then(Unconfirmed::default);
        self.lanes.push(Lane {
            link,
            template,
            window,
            sent: 0,
            unconfirmed,
            receivers,
        });
    }

    /// Adds a receiver that should hear the lanes `hears`, of `lanes` in all.
    pub fn add_receiver(&mut self, hears: Range<usize>, lanes: usize) {
        let tracks = (0..lanes).map(|_| Track::default()).collect();
        self.receivers.push(Receiver {
            hears,
            tracks,
            stray: 0,
        });
    }

    /// Connections that are not set up yet.
    pub fn unready(&self) -> usize {
        self.unready
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

    /// Whether all that was sent has been received everywhere and confirmed.
    pub fn is_drained(&self) -> bool {
        self.lanes.iter().enumerate().all(|(number, lane)| {
            lane.floor(&self.receivers, number) >= lane.sent
                && lane
                    .unconfirmed
                    .as_ref()
                    .is_none_or(|unconfirmed| unconfirmed.count() == 0)
        })
    }

    /// The faults of all receivers so far.
    pub fn faults(&self) -> Faults {
        let mut faults = Faults::default();
        for receiver in &self.receivers {
            faults.stray += receiver.stray;
            for number in receiver.hears.clone() {
                faults.add(&receiver.tracks[number].faults(self.lanes[number].sent));
            }
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
        let Link { wire, client, role } = &mut self.links[number];
        if let Client::Amqp(client) = client {
            let was_ready = client.is_ready();
            client.run(script, wire.out());
            self.unready += usize::from(was_ready && !client.is_ready());
            let flushed = wire.flush(&self.epoll);
            flushed.map_err(|source| EngineError::Link {
                who: who(number, *role),
                source,
            })?;
        }
        Ok(())
    }

    /// Says goodbye on MQTT connections, so that the broker logs no lost client.
    pub fn disconnect(mut self) {
        for Link { wire, client, .. } in &mut self.links {
            if let Client::Mqtt(_) = client {
                mqtt::codec::disconnect(wire.out());
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
            let number = event.data.u64() as usize;
            self.handle(number).map_err(|source| EngineError::Link {
                who: who(number, self.links[number].role),
                source,
            })?;
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
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let Link { wire, client, role } = &mut self.links[lane.link];
            let mut window = lane.window;
            let mut room = window - window.min(lane.sent - lane.floor(&self.receivers, number));
            if let Some(unconfirmed) = &lane.unconfirmed {
                if let Client::Mqtt(client) = client {
                    window = window.min(u64::from(client.receive_max()));
                }
                room = room.min(window.saturating_sub(unconfirmed.count()));
            }
            if room == 0 || wire.pending_bytes() > OUT_MAX_BYTES {
                continue;
            }
            for _ in 0..room {
                if !lane.append(wire.out(), self.run, number as u32, now_ns) {
                    break;
                }
            }
            let flushed = wire.flush(&self.epoll);
            flushed.map_err(|source| EngineError::Link {
                who: who(lane.link, *role),
                source,
            })?;
        }
        Ok(())
    }
}

impl Lane {
    /// How far the slowest receiver has come.
    #[inline]
    fn floor(&self, receivers: &[Receiver], number: usize) -> u64 {
        let heard = receivers[self.receivers.clone()].iter();
        heard
            .map(|receiver| receiver.tracks[number].next())
            .min()
            .unwrap_or(self.sent)
    }

    /// Appends the next message; false when its place is still taken.
    #[inline]
    fn append(&mut self, out: &mut Vec<u8>, run: u32, sender: u32, now_ns: u64) -> bool {
        if let Some(unconfirmed) = &mut self.unconfirmed {
            if !unconfirmed.has_place() {
                return false;
            }
            unconfirmed.sent(now_ns);
        }
        let payload = match &self.template {
            Template::Mqtt(template) => {
                template.append(out, (self.sent % mqtt::client::PLACES) as u16 + 1)
            }
            Template::Amqp(template) => template.append(out),
        };
        Stamp {
            run,
            sender,
            sequence: self.sent,
            sent_ns: now_ns,
        }
        .write(payload);
        self.sent += 1;
        true
    }
}

/// Where the messages of one read go.
struct Inbox<'e> {
    role: Role,
    run: u32,
    now_ns: u64,
    lanes: &'e mut [Lane],
    receivers: &'e mut [Receiver],
    score: &'e mut Score,
}

impl Sink for Inbox<'_> {
    #[inline]
    fn delivered(&mut self, payload: &[u8]) {
        let Role::Receiver(number) = self.role else {
            return;
        };
        let receiver = &mut self.receivers[number];
        match Stamp::read(payload) {
            Some(stamp)
                if stamp.run == self.run
                    && payload.len() == PAYLOAD_BYTES
                    && receiver.hears.contains(&(stamp.sender as usize)) =>
            {
                receiver.tracks[stamp.sender as usize].see(stamp.sequence);
                self.score.delivered += 1;
                if self.score.recording {
                    self.score
                        .delivery
                        .record(self.now_ns.saturating_sub(stamp.sent_ns));
                }
            }
            _ => receiver.stray += 1,
        }
    }

    #[inline]
    fn confirmed(&mut self, what: Confirmed) {
        let Role::Publisher(number) = self.role else {
            return;
        };
        if let Some(unconfirmed) = &mut self.lanes[number].unconfirmed {
            let score = &mut *self.score;
            unconfirmed.confirm(what, |sent_ns| {
                if score.recording {
                    score
                        .confirmation
                        .record(self.now_ns.saturating_sub(sent_ns));
                }
            });
        }
    }
}

fn who(number: usize, role: Role) -> String {
    match role {
        Role::Publisher(lane) => format!("publisher {lane}"),
        Role::Receiver(receiver) => format!("receiver {receiver}"),
        Role::Idle => format!("connection {number}"),
    }
}
