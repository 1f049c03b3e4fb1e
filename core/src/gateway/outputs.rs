//! Where a connection puts what it wants done: bytes, commands, an end.
//!
//! Owns: [`Outputs`] and its buffer. Never: writes to a socket.

use super::Command;
use bytes::{Bytes, BytesMut};
use std::borrow::Cow;
use std::collections::VecDeque;

/// Where a connection puts what it wants done. Owned and reused by the driver.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Bytes for the peer.
    pub send: SendBuffer,
    /// What it asks of the broker, in order.
    pub commands: Vec<Command>,
    /// Set to end the connection after what is in `send` was written.
    pub close: Option<Close>,
}

/// The end of a connection, for the log: once, with who and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    /// Who ended it.
    pub by: ClosedBy,
    /// One sentence.
    pub why: Cow<'static, str>,
}

/// Who ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedBy {
    /// The peer, in the protocol's orderly way.
    Peer,
    /// The peer broke the protocol; it was told so where the protocol can.
    PeerFault,
    /// We refused it.
    Refused,
    /// We broke or shut down.
    Us,
}

/// Bytes to send: small parts gathered in one buffer, large ones kept as they are.
#[derive(Debug, Default)]
pub struct SendBuffer {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
}

impl SendBuffer {
    /// Payloads of at most this many bytes are cheaper to copy than to send as a piece of their own.
    pub const COPY_BYTES_MAX: usize = 1024;

    /// The buffer that small parts are appended to.
    pub fn tail(&mut self) -> &mut BytesMut {
        &mut self.tail
    }

    /// Appends a payload: copied when small, else by reference.
    pub fn put_payload(&mut self, payload: &Bytes) {
        if payload.len() <= Self::COPY_BYTES_MAX {
            self.tail.extend_from_slice(payload);
        } else {
            if !self.tail.is_empty() {
                self.chunks.push_back(self.tail.split().freeze());
            }
            self.chunks.push_back(payload.clone());
        }
    }

    /// Takes all pieces, in order, appending them to `to`.
    pub fn drain_into(&mut self, to: &mut VecDeque<Bytes>) {
        to.append(&mut self.chunks);
        if !self.tail.is_empty() {
            to.push_back(self.tail.split().freeze());
        }
    }

    /// The only piece, when everything is in one small buffer: for a driver that writes it in place and
    /// then calls [`SendBuffer::consume_tail`]. `None` when there are other pieces.
    pub fn single(&self) -> Option<&[u8]> {
        self.chunks.is_empty().then_some(&self.tail[..])
    }

    /// Drops the first `count` bytes of the tail after a write of [`SendBuffer::single`].
    pub fn consume_tail(&mut self, count: usize) {
        if count >= self.tail.len() {
            self.tail.clear();
        } else {
            let _ = self.tail.split_to(count);
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.tail.is_empty()
    }

    /// All bytes in one piece: for tests.
    pub fn take_all(&mut self) -> Vec<u8> {
        let mut pieces = VecDeque::new();
        self.drain_into(&mut pieces);
        pieces
            .iter()
            .flat_map(|piece| piece.iter().copied())
            .collect()
    }
}
