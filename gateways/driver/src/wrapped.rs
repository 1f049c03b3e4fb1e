//! A socket with something around it: encryption, WebSocket, or the one in the other.
//!
//! Bytes of the peer come out as its protocol's bytes; what is written is wrapped at once, in pieces of
//! a bounded size, and what the socket does not take of a wrapped piece is kept. Nothing more is taken
//! before that has left, so that back-pressure reaches whoever writes.
//!
//! Owns: the order of the layers, wrapped bytes that the socket did not take.
//! Never: blocks; decides what a fault means for the connection.
//! Next: `secure.rs`, `websocket/mod.rs`, the layers; `feed.rs`, which ends connections.

use mio::net::TcpStream;
use std::borrow::Cow;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;

use crate::secure::{RECORD_BYTES_MAX, Secure};
use crate::websocket::{WebSocket, put_binary_header};

/// Plain bytes that are wrapped at once.
const BATCH_BYTES_MAX: usize = 64 * 1024;
/// What a frame's head takes at most.
const FRAME_HEADER_BYTES: usize = 10;

/// What reading gave.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// So many bytes of the protocol, or none; whether there may be more, which no event will say.
    Bytes { count: usize, more: bool },
    /// The peer's side of the socket has ended.
    End,
    /// The peer has ended in order, and there is an answer to send.
    Goodbye,
    /// The peer broke the rules of what is around the socket; it is told so by what is to be written.
    Fault(Cow<'static, str>),
}

/// A socket with layers around it.
pub(crate) struct Wrapped {
    socket: TcpStream,
    secure: Option<Box<Secure>>,
    web: Option<WebSocket>,
    /// Wrapped bytes, of which the socket has taken the first ones.
    outgoing: Vec<u8>,
    taken: usize,
    /// What the peer sends is no longer looked at.
    deaf: bool,
    /// The layers have said goodbye.
    parted: bool,
}

impl Wrapped {
    pub(crate) fn new(
        socket: TcpStream,
        secure: Option<Box<Secure>>,
        web: Option<WebSocket>,
    ) -> Wrapped {
        Wrapped {
            socket,
            secure,
            web,
            outgoing: Vec::new(),
            taken: 0,
            deaf: false,
            parted: false,
        }
    }

    pub(crate) fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Whether the protocol's bytes can be sent.
    fn is_open(&self) -> bool {
        self.missing().is_none() && self.web.as_ref().is_none_or(WebSocket::is_open)
    }

    /// The handshake that is not complete.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        if self.secure.as_ref().is_some_and(|secure| !secure.is_open()) {
            return Some("TLS handshake");
        }
        let web = self.web.as_ref()?;
        (!web.has_opened()).then_some("WebSocket opening")
    }

    /// Bytes that wait for the socket.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.outgoing.len() - self.taken
    }

    /// Whether there is something to write that nobody gave it.
    pub(crate) fn wants_write(&self) -> bool {
        self.pending_bytes() > 0 || self.web.as_ref().is_some_and(WebSocket::owes)
    }

    /// Reads the socket once. `room` takes the protocol's bytes and has room for a record
    /// besides; `wire` is for those of the socket where they are encrypted.
    ///
    /// # Errors
    /// As reading a socket does.
    pub(crate) fn read(&mut self, room: &mut [u8], wire: &mut [u8]) -> io::Result<Arrived> {
        if self.deaf {
            let count = self.socket.read(room)?;
            let more = count == room.len();
            return Ok(match count {
                0 => Arrived::End,
                _ => Arrived::Bytes { count: 0, more },
            });
        }
        if self.web.as_ref().is_some_and(WebSocket::has_ended) {
            // Its last bytes came together with its goodbye.
            self.deaf = true;
            return Ok(Arrived::Goodbye);
        }
        let before = self.missing();
        let mut answers = Vec::new();
        let (mut count, mut more) = match &mut self.secure {
            None => {
                let count = self.socket.read(room)?;
                if count == 0 {
                    return Ok(Arrived::End);
                }
                (count, count == room.len())
            }
            Some(secure) if secure.has_ended() => return Ok(Arrived::End),
            Some(secure) => {
                // What is decrypted now is no more than what is read now and a record's beginning.
                let most = wire.len().min(room.len().saturating_sub(RECORD_BYTES_MAX));
                let count = self.socket.read(&mut wire[..most])?;
                if count == 0 {
                    return Ok(Arrived::End);
                }
                let received = secure.receive(&mut wire[..count], room, &mut self.outgoing);
                match received {
                    Ok(plain) => (plain, count == most || secure.has_ended()),
                    Err(why) => return Ok(self.fault(before, &why)),
                }
            }
        };
        if let Some(web) = &mut self.web {
            let received = web.receive(&mut room[..count], &mut answers);
            let ended = web.has_ended();
            if let Err(why) = self.wrap(&answers) {
                return Ok(self.fault(before, &why));
            }
            match received {
                Ok(payload) => {
                    count = payload;
                    more |= ended;
                }
                Err(why) => return Ok(self.fault(before, &why)),
            }
        }
        Ok(Arrived::Bytes { count, more })
    }

    fn fault(&mut self, missing: Option<&'static str>, why: &str) -> Arrived {
        self.deaf = true;
        let what = match (missing, &self.web) {
            (Some(handshake), _) => format!("its {handshake} failed: {why}"),
            (None, Some(_)) => format!("its WebSocket failed: {why}"),
            (None, None) => format!("its TLS failed: {why}"),
        };
        Arrived::Fault(Cow::Owned(what))
    }

    /// Encrypts what is to be sent, where it is.
    fn wrap(&mut self, bytes: &[u8]) -> Result<(), Cow<'static, str>> {
        match &mut self.secure {
            _ if bytes.is_empty() => Ok(()),
            Some(secure) => secure.send(bytes, &mut self.outgoing),
            None => {
                self.outgoing.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Writes what waits for the socket; false when it did not take all.
    ///
    /// # Errors
    /// When the socket is broken.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        loop {
            while self.pending_bytes() > 0 {
                match self.socket.write(&self.outgoing[self.taken..]) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => self.taken += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            // Who is idle keeps no buffer.
            self.outgoing = Vec::new();
            self.taken = 0;
            let Some(web) = self.web.as_mut().filter(|web| web.owes()) else {
                return Ok(true);
            };
            let mut pong = Vec::new();
            web.put_owed(&mut pong);
            self.wrap(&pong).map_err(io::Error::other)?;
        }
    }

    /// Takes what it can of these pieces, wraps it and writes it; gives how much it took.
    ///
    /// # Errors
    /// `WouldBlock` when it takes nothing now; else when the socket is broken.
    pub(crate) fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush()? || !self.is_open() || self.parted {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let offered: usize = pieces.iter().map(|piece| piece.len()).sum();
        let count = offered.min(BATCH_BYTES_MAX);
        let first = pieces.first().map(|piece| &**piece).unwrap_or_default();
        let wrapped = match (&self.web, first.get(..count)) {
            (None, Some(single)) => self.wrap(single),
            (web, _) => {
                let mut plain = Vec::with_capacity(count + FRAME_HEADER_BYTES);
                if web.is_some() {
                    put_binary_header(&mut plain, count);
                }
                let mut left = count;
                for piece in pieces {
                    let part = &piece[..piece.len().min(left)];
                    plain.extend_from_slice(part);
                    left -= part.len();
                }
                if self.secure.is_none() {
                    self.outgoing = plain;
                    Ok(())
                } else {
                    self.wrap(&plain)
                }
            }
        };
        wrapped.map_err(io::Error::other)?;
        self.flush()?;
        Ok(count)
    }

    /// Says goodbye in the layers' words, and that nothing more follows; false when the socket has not
    /// taken the words yet, so that this must be called again.
    pub(crate) fn finish(&mut self) -> bool {
        if !std::mem::replace(&mut self.parted, true) {
            let mut goodbye = Vec::new();
            if let Some(web) = &mut self.web {
                web.finish(&mut goodbye);
            }
            // What fails here is the goodbye of a connection that is over.
            self.wrap(&goodbye).ok();
            if let Some(secure) = self.secure.as_mut().filter(|secure| secure.is_open()) {
                secure.finish(&mut self.outgoing).ok();
            }
        }
        if matches!(self.flush(), Ok(false)) {
            return false;
        }
        self.socket.shutdown(Shutdown::Write).ok();
        true
    }
}
