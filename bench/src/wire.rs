//! One non-blocking TCP connection with what waits to be written and what is only half read.
//!
//! Owns the socket. Never knows a protocol. Next: `engine.rs`.

use std::net::SocketAddr;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};

use crate::link::LinkError;

/// Room made for one read.
pub const READ_BYTES: usize = 256 << 10;

/// Bytes already sent that may stand before those that wait.
const SENT_MAX_BYTES: usize = 1 << 20;

/// A connection registered with one epoll instance.
pub struct Wire {
    socket: OwnedFd,
    token: u64,
    out: Vec<u8>,
    written: usize,
    /// The head of a packet whose rest has not arrived.
    partial: Vec<u8>,
    waits_to_write: bool,
}

impl Wire {
    /// Starts to connect; events of this connection carry `token`.
    ///
    /// # Errors
    /// When the system refuses the socket or the connection.
    pub fn connect(epoll: &OwnedFd, address: SocketAddr, token: u64) -> Result<Self, LinkError> {
        let family = if address.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let interest = EventFlags::IN | EventFlags::OUT;
        epoll::add(epoll, &socket, EventData::new_u64(token), interest)?;
        Ok(Self {
            socket,
            token,
            out: Vec::new(),
            written: 0,
            partial: Vec::new(),
            waits_to_write: true,
        })
    }

    /// Where to put bytes that are to be sent; [`Wire::flush`] sends them.
    #[inline]
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes not yet taken by the system.
    #[inline]
    pub fn pending_bytes(&self) -> usize {
        self.out.len() - self.written
    }

    /// Reads once and gives all that is to be decoded to `decode`, which returns how much it
    /// used; the rest is kept for the next read. `scratch` is a buffer shared by all wires.
    ///
    /// # Errors
    /// When the connection is closed or broken, and what `decode` returns.
    pub fn read(
        &mut self,
        scratch: &mut Vec<u8>,
        decode: impl FnOnce(&[u8], &mut Vec<u8>) -> Result<usize, LinkError>,
    ) -> Result<(), LinkError> {
        scratch.clear();
        scratch.append(&mut self.partial);
        scratch.reserve(READ_BYTES);
        match rustix::io::read(&self.socket, spare_capacity(scratch)) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => {
                self.partial.extend_from_slice(scratch);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        let used = decode(scratch, &mut self.out)?;
        self.partial.extend_from_slice(&scratch[used..]);
        Ok(())
    }

    /// Sends what waits, as far as the system takes it; asks epoll to say when it takes more.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn flush(&mut self, epoll: &OwnedFd) -> Result<(), LinkError> {
        while self.pending_bytes() > 0 {
            match rustix::io::write(&self.socket, &self.out[self.written..]) {
                Ok(count) => self.written += count,
                // NOTCONN: the connection is still being made.
                Err(Errno::AGAIN | Errno::NOTCONN) => {
                    // A wire that is never quite empty would keep all it has ever sent.
                    if self.written > SENT_MAX_BYTES {
                        self.out.drain(..self.written);
                        self.written = 0;
                    }
                    return self.wait_to_write(epoll, true);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.out.clear();
        self.written = 0;
        self.wait_to_write(epoll, false)
    }

    fn wait_to_write(&mut self, epoll: &OwnedFd, waits: bool) -> Result<(), LinkError> {
        if self.waits_to_write != waits {
            let interest = if waits {
                EventFlags::IN | EventFlags::OUT
            } else {
                EventFlags::IN
            };
            epoll::modify(
                epoll,
                self.socket.as_fd(),
                EventData::new_u64(self.token),
                interest,
            )?;
            self.waits_to_write = waits;
        }
        Ok(())
    }
}
