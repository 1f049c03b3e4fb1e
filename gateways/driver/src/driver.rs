//! The driver from outside: made of workers in two steps, asked and stopped through one handle.
//!
//! Two steps, because shards and workers need each other's ports: a [`Crew`] has the workers' ports
//! before any thread runs; [`Crew::start`] then takes everything else and begins to listen.
//!
//! Owns: threads and their end.
//! Next: `desk.rs` (a worker's loop), `listener.rs` (where sockets come from).

use anabranch_core::error::Refusal;
use anabranch_core::gateway::{Gateway, StopReason};
use anabranch_core::id::{ConnectionId, ShardId, WorkerId};
use anabranch_core::port::{MetaPort, ShardPort, WorkerPort};
use anabranch_core::worker::{LoginRequest, Mail, Verified, Worker, WorkerSetup};
use mio::{Poll, Waker};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::call::Call;
use crate::clock::Clock;
use crate::desk::{BELL, Desk, Door, Surroundings};
use crate::farewell::Farewell;
use crate::limits::DriverLimits;
use crate::listener::{Acceptor, Listener, bind};
use crate::mailbox::{Letter, Mailbox};
use crate::reader::ReadBuffer;
use crate::row::{ConnectionRow, Counters, DriverTotals};
use crate::slot::Slots;
use crate::timers::Timers;
use crate::tls::Tls;
use crate::transport::{Layers, TransportKind};
use crate::websocket::WebSocketSetup;

/// What happens with the answer to a login; called on any thread, exactly once.
pub type LoginDone = Box<dyn FnOnce(Result<Verified, Refusal>) + Send>;

/// What the driver needs of the program around it. Implemented by `server/`.
pub trait Host: Send + Sync {
    /// Checks credentials without blocking the caller, and answers when that is done.
    fn verify(&self, login: LoginRequest, done: LoginDone);
    /// A thread of the driver ended though nobody told it to: the process cannot go on.
    fn failed(&self, what: String);
}

/// Why the driver did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for {gateway} ({transport}): {source}")]
    Bind {
        /// Short name of the gateway.
        gateway: &'static str,
        /// What was to carry its bytes.
        transport: TransportKind,
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// There are more workers than a number of a worker can say, or none.
    #[error("{0} workers: at least 1 and at most {max} are possible", max = WORKERS_MAX)]
    Workers(usize),
    /// The system gave no poll or thread.
    #[error("the system gives no poll or thread: {0}")]
    System(#[from] io::Error),
}

/// More workers than any machine has cores.
pub const WORKERS_MAX: usize = 1024;

/// Workers that do not run yet, with the ports by which shards will reach them.
pub struct Crew {
    polls: Vec<Poll>,
    mailboxes: Vec<Arc<Mailbox>>,
}

/// Everything a crew needs to start.
pub struct DriverSetup {
    /// The workers' own setups, one for each of the crew, in the order of their numbers.
    pub workers: Vec<WorkerSetup>,
    /// Gateways with their listeners.
    pub gateways: Vec<GatewaySetup>,
    /// The data shards.
    pub shards: Vec<(ShardId, Arc<dyn ShardPort>)>,
    /// Askers beside the crew that volatile shards may have to answer.
    pub outside: Vec<(WorkerId, Arc<dyn WorkerPort>)>,
    /// The metadata shard.
    pub meta: Arc<dyn MetaPort>,
    /// The program around.
    pub host: Arc<dyn Host>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// The limits.
    pub limits: DriverLimits,
    /// Random; seeds of connections are made from it.
    pub seed: u64,
}

/// A gateway and where it listens.
pub struct GatewaySetup {
    /// The protocol.
    pub gateway: Arc<dyn Gateway>,
    /// Where it listens, and what is around its bytes there.
    pub listeners: Vec<ListenerSetup>,
}

/// One listener of a gateway.
#[derive(Clone, Debug)]
pub struct ListenerSetup {
    /// Where; port 0 picks a free one.
    pub address: SocketAddr,
    /// The certificates, when its bytes are encrypted.
    pub tls: Option<Arc<Tls>>,
    /// What is asked of a WebSocket, when its bytes travel in one.
    pub websocket: Option<Arc<WebSocketSetup>>,
}

impl ListenerSetup {
    /// Plain TCP.
    pub fn plain(address: SocketAddr) -> ListenerSetup {
        ListenerSetup {
            address,
            tls: None,
            websocket: None,
        }
    }
}

/// A listener of a driver that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Short name of its gateway.
    pub gateway: &'static str,
    /// What carries its connections' bytes.
    pub transport: TransportKind,
    /// Where.
    pub address: SocketAddr,
}

impl Crew {
    /// A crew of `workers`, numbered from 0.
    ///
    /// # Errors
    /// [`StartError::Workers`] and [`StartError::System`].
    pub fn new(workers: usize) -> Result<Crew, StartError> {
        if workers == 0 || workers > WORKERS_MAX {
            return Err(StartError::Workers(workers));
        }
        let mut crew = Crew {
            polls: Vec::new(),
            mailboxes: Vec::new(),
        };
        for _ in 0..workers {
            let poll = Poll::new()?;
            let bell = Waker::new(poll.registry(), BELL)?;
            crew.mailboxes.push(Arc::new(Mailbox::new(bell)));
            crew.polls.push(poll);
        }
        Ok(crew)
    }

    /// The workers with the ports that bring them events.
    pub fn worker_ports(&self) -> Vec<(WorkerId, Arc<dyn WorkerPort>)> {
        let ports = self.mailboxes.iter().zip(0..);
        ports
            .map(|(mailbox, number)| (WorkerId(number), mailbox.clone() as Arc<dyn WorkerPort>))
            .collect()
    }

    /// The volatile shards that the workers host, with the ports that bring them requests.
    pub fn volatile_shards(&self) -> Vec<(ShardId, Arc<dyn ShardPort>)> {
        let ports = self.mailboxes.iter().zip(0..);
        ports
            .map(|(mailbox, number)| {
                let shard = ShardId::volatile(WorkerId(number));
                (shard, mailbox.clone() as Arc<dyn ShardPort>)
            })
            .collect()
    }

    /// Listens and starts all threads.
    ///
    /// # Errors
    /// [`StartError`]; nothing listens then.
    pub fn start(self, setup: DriverSetup) -> Result<Driver, StartError> {
        if setup.workers.len() != self.mailboxes.len() {
            return Err(StartError::Workers(setup.workers.len()));
        }
        let names: Vec<_> = setup.gateways.iter().map(|of| of.gateway.name()).collect();
        let mut listeners = Vec::new();
        let mut listening = Vec::new();
        let mut doors = Vec::new();
        for (gateway, of) in setup.gateways.iter().enumerate() {
            let name = of.gateway.name();
            for asked in &of.listeners {
                let address = asked.address;
                let layers = Layers {
                    tls: asked.tls.clone(),
                    websocket: asked.websocket.clone(),
                };
                let transport = layers.kind();
                let socket = bind(address).map_err(|source| StartError::Bind {
                    gateway: name,
                    transport,
                    address,
                    source,
                })?;
                listening.push(Listening {
                    gateway: name,
                    transport,
                    address: socket.local_addr()?,
                });
                listeners.push(Listener {
                    socket,
                    name,
                    behind: false,
                    failing: false,
                });
                doors.push(Door { gateway, layers });
            }
        }
        let counters: Vec<_> = setup
            .workers
            .iter()
            .map(|_| Arc::new(Counters::new(names.len())))
            .collect();
        let around = Arc::new(Surroundings {
            gateways: setup.gateways.into_iter().map(|of| of.gateway).collect(),
            doors,
            shards: setup.shards,
            outside: setup.outside,
            mailboxes: self.mailboxes.clone(),
            meta: setup.meta,
            host: setup.host,
            clock: setup.clock,
            limits: setup.limits,
            seed: setup.seed,
        });
        let entry = Poll::new()?;
        let bell = Waker::new(entry.registry(), BELL)?;
        let driver = Driver {
            listening,
            names,
            mailboxes: self.mailboxes,
            counters,
            stopping: Arc::new(AtomicBool::new(false)),
            bell,
            threads: Mutex::new(Vec::new()),
            next_call: AtomicUsize::new(0),
        };
        for ((poll, setup), number) in self.polls.into_iter().zip(setup.workers).zip(0..) {
            let mailbox = driver.mailboxes[usize::from(number)].clone();
            let counters = driver.counters[usize::from(number)].clone();
            let surroundings = around.clone();
            driver.spawn(format!("worker-{number}"), &around.host, move || {
                let now = surroundings.clock.now();
                let desk = Desk {
                    id: WorkerId(number),
                    worker: Worker::new(setup),
                    around: surroundings,
                    mailbox,
                    counters,
                    poll,
                    now,
                    slots: Slots::default(),
                    timers: Timers::default(),
                    reader: ReadBuffer::default(),
                    pool: Vec::new(),
                    mail: Mail::default(),
                    to_read: VecDeque::new(),
                    to_write: Vec::new(),
                    to_serve: Vec::new(),
                    calls: HashMap::new(),
                    farewell: Farewell::default(),
                    drain_until: None,
                    received_bytes: 0,
                    sent_bytes: 0,
                };
                desk.run()
            })?;
        }
        let acceptor = Acceptor {
            poll: entry,
            listeners,
            desks: driver
                .mailboxes
                .iter()
                .cloned()
                .zip(driver.counters.iter().cloned())
                .collect(),
            connections_max: around.limits.connections_max.max(1),
            company: around.limits.worker_company,
            stopping: driver.stopping.clone(),
            next: 0,
            crowded: false,
        };
        driver.spawn("accept".to_owned(), &around.host, move || acceptor.run())?;
        Ok(driver)
    }
}

/// The running network side of a node.
pub struct Driver {
    listening: Vec<Listening>,
    /// The gateways' names, in the order of the setup.
    names: Vec<&'static str>,
    mailboxes: Vec<Arc<Mailbox>>,
    counters: Vec<Arc<Counters>>,
    stopping: Arc<AtomicBool>,
    bell: Waker,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Whose turn it is to carry out a call.
    next_call: AtomicUsize,
}

impl Driver {
    /// Where it listens, in the order of the setup.
    pub fn listening(&self) -> &[Listening] {
        &self.listening
    }

    /// Sums over all workers; reads counters only.
    pub fn totals(&self) -> DriverTotals {
        let mut totals = DriverTotals::default();
        for counters in &self.counters {
            totals.open += counters.open.load(Ordering::Relaxed) as u64;
            totals.accepted += counters.accepted.load(Ordering::Relaxed);
            totals.handshakes_failed += counters.handshakes_failed.load(Ordering::Relaxed);
            totals.received_bytes += counters.received_bytes.load(Ordering::Relaxed);
            totals.sent_bytes += counters.sent_bytes.load(Ordering::Relaxed);
        }
        totals
    }

    /// Open connections of each gateway, in the order of the setup; reads counters only.
    pub fn open_by_gateway(&self) -> Vec<(&'static str, u64)> {
        let open = |gateway: usize| {
            let of =
                |counters: &Arc<Counters>| counters.open_of[gateway].load(Ordering::Relaxed) as u64;
            self.counters.iter().map(of).sum()
        };
        let names = self.names.iter().enumerate();
        names
            .map(|(gateway, name)| (*name, open(gateway)))
            .collect()
    }

    /// Describes all connections, in no order. `done` is called on a worker's thread once all have
    /// answered; it is dropped uncalled when the driver ends before.
    pub fn rows(&self, done: impl FnOnce(Vec<ConnectionRow>) + Send + 'static) {
        let gathering = Gathering::new(self.mailboxes.len(), done);
        for mailbox in &self.mailboxes {
            let gathering = gathering.clone();
            mailbox.send(Letter::Rows(Box::new(move |rows| gathering.add(rows))));
        }
    }

    /// Lets `look` see every worker, each on its own thread, and calls `done` with all that it gave.
    /// `look` must not block. As [`Driver::rows`] otherwise.
    pub fn inspect<T: Send + 'static>(
        &self,
        look: impl Fn(&Worker) -> T + Send + Sync + 'static,
        done: impl FnOnce(Vec<T>) + Send + 'static,
    ) {
        let look = Arc::new(look);
        let gathering = Gathering::new(self.mailboxes.len(), done);
        for mailbox in &self.mailboxes {
            let (look, gathering) = (look.clone(), gathering.clone());
            mailbox.send(Letter::Inspect(Box::new(move |worker| {
                gathering.add(vec![look(worker)]);
            })));
        }
    }

    /// Carries out a call on one of the workers.
    pub fn call(&self, call: Call) {
        let turn = self.next_call.fetch_add(1, Ordering::Relaxed);
        self.mailboxes[turn % self.mailboxes.len()].send(Letter::Call(Box::new(call)));
    }

    /// Ends a connection in its protocol's words; `done` is told, on another thread, whether there was
    /// one.
    pub fn stop(
        &self,
        connection: ConnectionId,
        reason: StopReason,
        done: impl FnOnce(bool) + Send + 'static,
    ) {
        match self.mailboxes.get(usize::from(connection.worker().0)) {
            Some(mailbox) => mailbox.send(Letter::Stop {
                connection,
                reason,
                done: Box::new(done),
            }),
            None => done(false),
        }
    }

    /// Stops listening, ends all connections in their protocols' words, and returns when their last
    /// bytes have left or the drain time is over. Blocks; a second call returns at once.
    pub fn shutdown(&self) {
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        self.stopping.store(true, Ordering::SeqCst);
        // A bell that does not ring belongs to a thread that is gone.
        self.bell.wake().ok();
        for mailbox in &self.mailboxes {
            mailbox.send(Letter::Shutdown);
        }
        for handle in threads {
            // A thread that panicked has told the host already.
            handle.join().ok();
        }
    }

    fn spawn(
        &self,
        name: String,
        host: &Arc<dyn Host>,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let host = host.clone();
        let title = name.clone();
        let handle = thread::Builder::new().name(name).spawn(move || {
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => host.failed(format!("thread {title} ended: {error}")),
                Err(_) => host.failed(format!("thread {title} panicked")),
            }
        })?;
        self.threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(handle);
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Answers of several workers on their way to one.
struct Gathering<T> {
    state: Mutex<Gathered<T>>,
}

struct Gathered<T> {
    parts: Vec<T>,
    missing: usize,
    done: Option<Box<dyn FnOnce(Vec<T>) + Send>>,
}

impl<T> Gathering<T> {
    fn new(missing: usize, done: impl FnOnce(Vec<T>) + Send + 'static) -> Arc<Gathering<T>> {
        Arc::new(Gathering {
            state: Mutex::new(Gathered {
                parts: Vec::new(),
                missing,
                done: Some(Box::new(done)),
            }),
        })
    }

    fn add(&self, mut parts: Vec<T>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.parts.append(&mut parts);
        state.missing = state.missing.saturating_sub(1);
        if state.missing == 0
            && let Some(done) = state.done.take()
        {
            done(std::mem::take(&mut state.parts));
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("listening", &self.listening)
            .finish_non_exhaustive()
    }
}
