//! Where connections come from: one thread accepts for all gateways and hands each socket to the
//! worker with the fewest connections, once every worker has a few.
//!
//! Owns: listening sockets, the limit of connections, what to do when the process has no descriptors
//! left.
//! Never: reads a byte.
//! Next: `desk.rs`, which takes the sockets over.

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};
use smallvec::SmallVec;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::desk::BELL;
use crate::mailbox::{Letter, Mailbox};
use crate::row::Counters;

/// Connections that the kernel keeps for us between two rounds of accepting.
const BACKLOG: i32 = 1024;
/// Pause after the kernel refused to give us a socket (no descriptors, no memory).
const PAUSE: Duration = Duration::from_millis(100);
const EVENTS_MAX: usize = 16;

/// A listening socket of a gateway.
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    /// Name of its gateway.
    pub(crate) name: &'static str,
    /// Accepting failed and is to be tried again without a new event.
    pub(crate) behind: bool,
    /// That was reported, and no connection was accepted since.
    pub(crate) failing: bool,
}

/// Binds and listens; port 0 picks a free one. An address that is still in the kernel's memory of
/// ended connections is taken, one that another process listens on is not.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// The accepting thread.
pub(crate) struct Acceptor {
    pub(crate) poll: Poll,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) desks: Vec<(Arc<Mailbox>, Arc<Counters>)>,
    pub(crate) connections_max: usize,
    pub(crate) stopping: Arc<AtomicBool>,
    /// See [`DriverLimits::worker_company`](crate::DriverLimits::worker_company).
    pub(crate) company: usize,
    /// Whose turn it is among workers with equally few connections.
    pub(crate) next: usize,
    /// The limit was reported and not undershot since.
    pub(crate) crowded: bool,
}

impl Acceptor {
    /// Accepts until told to stop; then the listening sockets close.
    ///
    /// # Errors
    /// When the poll itself fails.
    pub(crate) fn run(mut self) -> io::Result<()> {
        for (number, listener) in self.listeners.iter_mut().enumerate() {
            let registry = self.poll.registry();
            registry.register(&mut listener.socket, Token(number), Interest::READABLE)?;
        }
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            let behind = self.listeners.iter().any(|listener| listener.behind);
            match self.poll.poll(&mut events, behind.then_some(PAUSE)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            if self.stopping.load(Ordering::SeqCst) {
                return Ok(());
            }
            for event in &events {
                let Token(number) = event.token();
                if event.token() != BELL
                    && let Some(listener) = self.listeners.get_mut(number)
                {
                    listener.behind = true;
                }
            }
            for number in 0..self.listeners.len() {
                if self.listeners[number].behind {
                    self.accept_all(number);
                }
            }
        }
    }

    fn accept_all(&mut self, number: usize) {
        loop {
            let listener = &mut self.listeners[number];
            match listener.socket.accept() {
                Ok((socket, peer)) => {
                    // Small packets are batched by us; the kernel must not wait for more.
                    socket.set_nodelay(true).ok();
                    listener.failing = false;
                    self.seat(Letter::Accept {
                        socket,
                        peer,
                        listener: number,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    listener.behind = false;
                    return;
                }
                // The peer gave up before we came to it.
                Err(error) if gave_up(&error) => {}
                Err(error) => {
                    if !listener.failing {
                        let gateway = listener.name;
                        tracing::error!(gateway, %error, "cannot accept connections now; trying again");
                    }
                    listener.failing = true;
                    return;
                }
            }
        }
    }

    fn seat(&mut self, accept: Letter) {
        let open: usize = self
            .desks
            .iter()
            .map(|(_, c)| c.open.load(Ordering::Relaxed))
            .sum();
        if open >= self.connections_max {
            if !self.crowded {
                tracing::warn!(open, "connections are refused: the limit is reached");
            }
            self.crowded = true;
            return;
        }
        self.crowded = false;
        let open = self.desks.iter();
        let open = open.map(|(_, counters)| counters.open.load(Ordering::Relaxed));
        let open: SmallVec<[usize; 16]> = open.collect();
        if let Some(desk) = choose(&open, self.next, self.company) {
            self.next = (desk + 1) % open.len();
            let (mailbox, counters) = &self.desks[desk];
            counters.open.fetch_add(1, Ordering::Relaxed);
            mailbox.send(accept);
        }
    }
}

/// The worker for one more connection: one that has some, but not yet its company; else the one with the fewest,
/// beginning with the one whose turn it is.
fn choose(open: &[usize], next: usize, company: usize) -> Option<usize> {
    let lonely = open.iter().position(|open| (1..company).contains(open));
    lonely.or_else(|| {
        let order = (0..open.len()).map(|step| (next + step) % open.len());
        order.min_by_key(|desk| open[*desk])
    })
}

fn gave_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_get_company_first_and_are_filled_evenly_then() {
        let mut open = [0; 3];
        let mut next = 0;
        let mut seated = Vec::new();
        for _ in 0..10 {
            let desk = choose(&open, next, 2).unwrap();
            next = (desk + 1) % open.len();
            open[desk] += 1;
            seated.push(desk);
        }
        assert_eq!(seated, [0, 0, 1, 1, 2, 2, 0, 1, 2, 0]);
        assert_eq!(choose(&[5, 0, 7], 2, 1), Some(1));
        assert_eq!(choose(&[], 0, 4), None);
    }
}
