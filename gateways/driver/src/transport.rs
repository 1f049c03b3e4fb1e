//! What carries a connection's bytes: plain TCP today.
//!
//! A transport that wraps TCP (encryption, framing for browsers) becomes a further variant here; the
//! rest of the driver reads and writes through these five calls only.
//!
//! Owns: the socket.
//! Never: blocks; every call answers `WouldBlock` instead.

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;

/// A connection's socket, with whatever is wrapped around it.
#[derive(Debug)]
pub(crate) enum Transport {
    /// TCP as it is.
    Plain(TcpStream),
}

impl Transport {
    /// Registers for both directions, once and for all: readiness is edge-triggered, so a direction
    /// nobody waits for costs nothing.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let Transport::Plain(socket) = self;
        registry.register(socket, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Reads what is there, at most `into.len()` bytes; 0 at the end.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Transport::Plain(socket) = self;
        socket.read(into)
    }

    /// Writes what the socket takes of one piece.
    pub(crate) fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let Transport::Plain(socket) = self;
        socket.write(piece)
    }

    /// Writes what the socket takes of many pieces.
    pub(crate) fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Transport::Plain(socket) = self;
        socket.write_vectored(pieces)
    }

    /// Tells the peer that nothing more follows. A peer that is gone already is no error.
    pub(crate) fn finish(&mut self) {
        let Transport::Plain(socket) = self;
        socket.shutdown(Shutdown::Write).ok();
    }
}
