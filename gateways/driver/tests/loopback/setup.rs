//! A driver with nothing behind it but rules that allow everything, and clients to talk to it.

use anabranch_core::authority::AllowAll;
use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{ExchangeKind, StopReason};
use anabranch_core::id::{ConnectionId, UnixMs};
use anabranch_core::meta::{ExchangeSpec, MetaCommand};
use anabranch_core::port::{MetaDone, MetaPort};
use anabranch_core::properties::Codecs;
use anabranch_core::router::Fabric;
use anabranch_core::worker::{LoginRequest, Verified, WorkerLimits, WorkerSetup};
use anabranch_driver::{
    ConnectionRow, Crew, Driver, DriverLimits, DriverSetup, GatewaySetup, Host, ListenerSetup,
    LoginDone, StartError, SystemClock,
};
use std::io::{BufRead, BufReader, ErrorKind as IoErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::gateway::Words;

pub const LIMIT: Duration = Duration::from_secs(20);

struct Doorman;

impl Host for Doorman {
    fn verify(&self, login: LoginRequest, done: LoginDone) {
        let result = match &login.user {
            Some(user) if &**user == "anna" => Ok(anna()),
            _ => Err(Refusal::new(ErrorKind::BadCredentials, "unknown")),
        };
        // From another thread, as a real host answers.
        std::thread::spawn(move || done(result));
    }
    fn failed(&self, what: String) {
        eprintln!("{what}");
        std::process::abort();
    }
}

struct NoMeta;

impl MetaPort for NoMeta {
    fn propose(&self, _: MetaCommand, _: UnixMs, done: MetaDone) {
        done(Err(Refusal::new(
            ErrorKind::Unavailable,
            "no metadata here",
        )));
    }
}

/// The one user there is.
pub fn anna() -> Verified {
    Verified {
        user: "anna".into(),
        anonymous: false,
        roles: Vec::new(),
    }
}

/// A driver that listens on loopback.
pub struct Node {
    pub driver: Driver,
}

pub fn start_at(
    listeners: Vec<ListenerSetup>,
    workers: usize,
    limits: DriverLimits,
) -> Result<Driver, StartError> {
    let crew = Crew::new(workers)?;
    let fabric = Arc::new(Fabric::default());
    let vhost = MetaCommand::CreateVhost {
        name: "/".into(),
        exchanges: vec![ExchangeSpec {
            name: "topics".into(),
            kind: ExchangeKind::Topic,
            durable: true,
            auto_delete: false,
            internal: false,
            delays: false,
            alternate: None,
            arguments: Default::default(),
        }],
        topic_exchange: "topics".into(),
    };
    fabric.apply(UnixMs(1), &vhost).expect("a vhost");
    let ports = crew.worker_ports();
    let workers = ports.len() as u16;
    let worker = |(id, _)| WorkerSetup {
        id,
        incarnation: 1,
        workers,
        limits: WorkerLimits::default(),
        fabric: fabric.clone(),
        codecs: Codecs::default(),
        authority: Arc::new(AllowAll),
    };
    let workers = ports.into_iter().map(worker).collect();
    crew.start(DriverSetup {
        workers,
        gateways: vec![GatewaySetup {
            gateway: Arc::new(Words),
            listeners,
        }],
        shards: Vec::new(),
        outside: Vec::new(),
        meta: Arc::new(NoMeta),
        host: Arc::new(Doorman),
        clock: Arc::new(SystemClock::default()),
        limits,
        seed: 1,
    })
}

impl Node {
    pub fn start(workers: usize, limits: DriverLimits) -> Node {
        Node::listening(vec![ListenerSetup::plain(any())], workers, limits)
    }

    pub fn listening(listeners: Vec<ListenerSetup>, workers: usize, limits: DriverLimits) -> Node {
        Node {
            driver: start_at(listeners, workers, limits).expect("a free port"),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.driver.listening()[0].address
    }

    pub fn socket(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address()).expect("the driver listens");
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.set_nodelay(true).unwrap();
        socket
    }

    pub fn connect(&self) -> Client {
        Client::over(self.socket())
    }

    pub fn rows(&self) -> Vec<ConnectionRow> {
        let (tell, told) = channel();
        self.driver.rows(move |rows| tell.send(rows).unwrap());
        told.recv_timeout(LIMIT).expect("all workers answer")
    }

    pub fn stop(&self, id: ConnectionId, reason: StopReason) -> bool {
        let (tell, told) = channel();
        self.driver
            .stop(id, reason, move |found| tell.send(found).unwrap());
        told.recv_timeout(LIMIT).expect("the worker answers")
    }

    /// Waits until the rows are as wanted.
    pub fn until(&self, wanted: impl Fn(&[ConnectionRow]) -> bool) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let rows = self.rows();
            if wanted(&rows) {
                return;
            }
            assert!(Instant::now() < deadline, "{rows:?}");
            std::thread::yield_now();
        }
    }

    /// Waits until someone was accepted and nobody is left.
    pub fn until_empty(&self) {
        self.until(|_| self.driver.totals().accepted > 0);
        self.until(<[_]>::is_empty);
        assert_eq!(self.driver.totals().open, 0);
    }
}

/// Any free port of loopback.
pub fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A peer.
pub struct Client<S: Read = TcpStream> {
    reader: BufReader<S>,
}

impl<S: Read + Write> Client<S> {
    pub fn over(stream: S) -> Client<S> {
        Client {
            reader: BufReader::new(stream),
        }
    }

    pub fn socket(&mut self) -> &mut S {
        self.reader.get_mut()
    }

    pub fn say(&mut self, line: &str) {
        self.raw(format!("{line}\n").as_bytes());
    }

    /// Sends bytes; a driver that closed already is no failure here.
    pub fn raw(&mut self, bytes: &[u8]) {
        let sent = self.socket().write_all(bytes);
        sent.and_then(|()| self.socket().flush()).ok();
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("a line in time");
        assert!(line.ends_with('\n'), "the driver closed after {line:?}");
        line.trim_end().to_owned()
    }

    /// Reads so many bytes.
    pub fn bytes(&mut self, count: usize) -> usize {
        let mut bytes = vec![0; count];
        self.reader
            .read_exact(&mut bytes)
            .expect("all bytes in time");
        bytes.len()
    }

    /// Waits for the driver's end of the connection.
    pub fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.reader.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(String::from_utf8_lossy(&rest), ""),
            Err(error) => assert_eq!(error.kind(), IoErrorKind::ConnectionReset, "{error}"),
        }
    }
}
