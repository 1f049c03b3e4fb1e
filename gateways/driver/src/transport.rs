//! What carries a connection's bytes: TCP as it is, or with something around it.
//!
//! The rest of the driver reads and writes through these calls only. Plain TCP is read and written
//! without a copy; what others need stands in a box, so that a plain connection has nothing of it.
//!
//! Owns: the socket; which transports there are.
//! Never: blocks; every call answers `WouldBlock` instead.
//! Next: `wrapped.rs`, everything that is not plain.

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use std::fmt;
use std::io::{self, IoSlice, Write};
use std::net::Shutdown;
use std::sync::Arc;

use crate::secure::Secure;
use crate::tls::Tls;
use crate::websocket::{WebSocket, WebSocketSetup};
use crate::wrapped::Wrapped;

/// The ways by which a protocol's bytes may travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportKind {
    /// TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// WebSocket over TCP.
    Ws,
    /// WebSocket over TLS.
    Wss,
}

impl TransportKind {
    /// Its name in configuration and console.
    pub fn name(self) -> &'static str {
        match self {
            TransportKind::Tcp => "tcp",
            TransportKind::Tls => "tls",
            TransportKind::Ws => "ws",
            TransportKind::Wss => "wss",
        }
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a listener puts around its sockets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) websocket: Option<Arc<WebSocketSetup>>,
}

impl Layers {
    pub(crate) fn kind(&self) -> TransportKind {
        match (&self.tls, &self.websocket) {
            (None, None) => TransportKind::Tcp,
            (Some(_), None) => TransportKind::Tls,
            (None, Some(_)) => TransportKind::Ws,
            (Some(_), Some(_)) => TransportKind::Wss,
        }
    }

    /// Puts them around a socket.
    ///
    /// # Errors
    /// When the encryption cannot begin.
    pub(crate) fn around(&self, socket: TcpStream) -> Result<Transport, rustls::Error> {
        if self.tls.is_none() && self.websocket.is_none() {
            return Ok(Transport::Plain(socket));
        }
        let secure = match &self.tls {
            Some(tls) => Some(Box::new(Secure::new(tls.config())?)),
            None => None,
        };
        let web = self.websocket.clone().map(WebSocket::new);
        let wrapped = Wrapped::new(socket, secure, web);
        Ok(Transport::Wrapped(Box::new(wrapped)))
    }
}

/// A connection's socket, with whatever is wrapped around it.
pub(crate) enum Transport {
    /// TCP as it is.
    Plain(TcpStream),
    /// TCP with TLS, WebSocket or both around it.
    Wrapped(Box<Wrapped>),
}

impl Transport {
    /// Registers for both directions, once and for all: readiness is edge-triggered, so a direction
    /// nobody waits for costs nothing.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let socket = match self {
            Transport::Plain(socket) => socket,
            Transport::Wrapped(wrapped) => wrapped.socket_mut(),
        };
        registry.register(socket, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Writes what is taken of one piece.
    pub(crate) fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.write(piece),
            Transport::Wrapped(wrapped) => wrapped.write_vectored(&[IoSlice::new(piece)]),
        }
    }

    /// Writes what is taken of many pieces.
    pub(crate) fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.write_vectored(pieces),
            Transport::Wrapped(wrapped) => wrapped.write_vectored(pieces),
        }
    }

    /// Whether, after a write that took `taken` of `offered` bytes, nothing more is taken now.
    pub(crate) fn is_full(&self, taken: usize, offered: usize) -> bool {
        match self {
            Transport::Plain(_) => taken < offered,
            Transport::Wrapped(wrapped) => wrapped.pending_bytes() > 0,
        }
    }

    /// Writes what was taken and has not left; false when some is left.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match self {
            Transport::Plain(_) => Ok(true),
            Transport::Wrapped(wrapped) => wrapped.flush(),
        }
    }

    /// Bytes that were taken and have not left.
    pub(crate) fn pending_bytes(&self) -> usize {
        match self {
            Transport::Plain(_) => 0,
            Transport::Wrapped(wrapped) => wrapped.pending_bytes(),
        }
    }

    /// Whether something is to be written that nobody gave it.
    pub(crate) fn wants_write(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            Transport::Wrapped(wrapped) => wrapped.wants_write(),
        }
    }

    /// The handshake without which nothing of the protocol can pass.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        match self {
            Transport::Plain(_) => None,
            Transport::Wrapped(wrapped) => wrapped.missing(),
        }
    }

    /// Whether the peer must be told of an end in other words than the socket's.
    pub(crate) fn has_words(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            Transport::Wrapped(_) => true,
        }
    }

    /// Tells the peer that nothing more follows. A peer that is gone already is no error. False when the
    /// words for it wait for the socket.
    pub(crate) fn finish(&mut self) -> bool {
        match self {
            Transport::Plain(socket) => {
                socket.shutdown(Shutdown::Write).ok();
                true
            }
            Transport::Wrapped(wrapped) => wrapped.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_connection_pays_a_pointer_for_the_others() {
        assert!(size_of::<Transport>() <= size_of::<TcpStream>() + 2 * size_of::<usize>());
        assert!(size_of::<Transport>() <= 3 * size_of::<usize>());
    }
}
