//! One connection's place at a worker: its socket, its protocol state machine, what is unsent.
//!
//! Owns: [`Slot`], [`Slots`], and writing what is unsent.
//! Never: talks to the broker's side (that is `desk.rs`).

use anabranch_core::gateway::{Close, Connection, Outputs};
use anabranch_core::id::{ConnectionId, MonotonicMs, Now, UnixMs};
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;

use crate::row::{ConnectionRow, ConnectionState};
use crate::transport::{Transport, TransportKind};

/// Pieces that one system call writes at most.
const PIECES_MAX: usize = 64;
/// System calls for one connection in one turn.
const WRITES_MAX: usize = 4;

/// A connection at its worker.
pub(crate) struct Slot {
    pub(crate) id: ConnectionId,
    /// Number of its gateway in the setup.
    pub(crate) gateway: usize,
    pub(crate) gateway_name: &'static str,
    pub(crate) peer: SocketAddr,
    pub(crate) transport: Transport,
    pub(crate) transport_kind: TransportKind,
    /// Absent once it is closed and only its last bytes are leaving.
    pub(crate) connection: Option<Box<dyn Connection>>,
    /// What it produced in this turn.
    pub(crate) out: Option<Box<Outputs>>,
    /// What its socket did not take, in order.
    pub(crate) unsent: VecDeque<Bytes>,
    pub(crate) unsent_bytes: usize,
    /// How much `unsent` grew while the broker's mail was held back.
    pub(crate) grown_bytes: usize,
    /// Listed for writing in this turn.
    pub(crate) dirty: bool,
    /// Listed for reading in the next turn.
    pub(crate) reading: bool,
    /// The socket takes nothing until it says it is writable.
    pub(crate) full: bool,
    /// The peer will send no more: read on until the end.
    pub(crate) read_closed: bool,
    /// Not read, because the broker cannot take more of it.
    pub(crate) paused: bool,
    /// There is mail for it that was not taken, because too much is unsent.
    pub(crate) mail_held: bool,
    /// What the timers hold for it.
    pub(crate) due: Option<MonotonicMs>,
    /// By when it has to have entered a vhost.
    pub(crate) login_by: Option<MonotonicMs>,
    /// By when the socket has to take something of what is unsent.
    pub(crate) stall_by: Option<MonotonicMs>,
    /// By when the last bytes have to be gone.
    pub(crate) linger_until: Option<MonotonicMs>,
    /// Set once it ends; the peer still gets what is unsent.
    pub(crate) close: Option<Close>,
    pub(crate) accepted: UnixMs,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
}

/// How writing went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Nothing is left.
    All,
    /// The socket is full.
    Full,
    /// The turn's share is used up.
    Share,
}

impl Slot {
    /// When it wants to be looked at.
    pub(crate) fn wanted(&self) -> Option<MonotonicMs> {
        let own = self.connection.as_ref().and_then(|c| c.poll_timeout());
        [own, self.login_by, self.stall_by, self.linger_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Writes what it produced and what is unsent; what the socket does not take is kept.
    ///
    /// # Errors
    /// When the socket is broken.
    pub(crate) fn write(&mut self, stall_by: MonotonicMs) -> io::Result<Written> {
        let (before, pending) = (self.sent_bytes, self.transport.pending_bytes());
        let written = self.write_pieces().and_then(|written| {
            if written == Written::All && !self.transport.flush()? {
                self.full = true;
                return Ok(Written::Full);
            }
            Ok(written)
        });
        let left = self.transport.pending_bytes();
        let moved = self.sent_bytes > before || left < pending;
        if self.unsent_bytes + left == 0 {
            self.stall_by = None;
            // A burst's list of pieces is not kept by a connection that is idle afterwards.
            if self.unsent.capacity() > PIECES_MAX {
                self.unsent = VecDeque::new();
            }
        } else if self.close.is_none() && (self.stall_by.is_none() || moved) {
            self.stall_by = Some(stall_by);
        }
        written
    }

    fn write_pieces(&mut self) -> io::Result<Written> {
        if let Some(out) = &mut self.out {
            let whole = self.unsent.is_empty() && !self.full;
            let single = out.send.single().filter(|piece| whole && !piece.is_empty());
            if let Some(single) = single {
                match take_some(|| self.transport.write(single))? {
                    Some(count) => {
                        self.sent_bytes += count as u64;
                        self.full = self.transport.is_full(count, single.len());
                        out.send.consume_tail(count);
                    }
                    None => self.full = true,
                }
            }
            let pieces = self.unsent.len();
            out.send.drain_into(&mut self.unsent);
            self.unsent_bytes += self.unsent.range(pieces..).map(Bytes::len).sum::<usize>();
        }
        for _ in 0..WRITES_MAX {
            if self.unsent.is_empty() {
                return Ok(Written::All);
            }
            if self.full {
                return Ok(Written::Full);
            }
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let mut offered = 0;
            let count = slices.len().min(self.unsent.len());
            for (slice, piece) in slices.iter_mut().zip(&self.unsent) {
                *slice = IoSlice::new(piece);
                offered += piece.len();
            }
            match take_some(|| self.transport.write_vectored(&slices[..count]))? {
                Some(sent) => {
                    self.full = self.transport.is_full(sent, offered);
                    self.sent(sent);
                }
                None => self.full = true,
            }
        }
        Ok(match (self.unsent.is_empty(), self.full) {
            (true, _) => Written::All,
            (false, true) => Written::Full,
            (false, false) => Written::Share,
        })
    }

    fn sent(&mut self, mut count: usize) {
        self.sent_bytes += count as u64;
        self.unsent_bytes -= count;
        while let Some(piece) = self.unsent.front_mut() {
            if piece.len() > count {
                piece.advance(count);
                break;
            }
            count -= piece.len();
            self.unsent.pop_front();
        }
    }

    /// Drops what its gateway has said and the peer was not sent.
    pub(crate) fn forget_unsent(&mut self) {
        self.unsent = VecDeque::new();
        self.unsent_bytes = 0;
        self.out = None;
    }

    /// Whether nothing of its protocol has ever passed, because a handshake is not complete.
    pub(crate) fn was_shut_out(&self) -> bool {
        self.transport.missing().is_some()
    }

    /// What the console shows of it.
    pub(crate) fn row(&self) -> ConnectionRow {
        let view = self
            .connection
            .as_ref()
            .map(|c| c.view())
            .unwrap_or_default();
        let state = if self.close.is_some() {
            ConnectionState::Closing
        } else if self.paused {
            ConnectionState::Blocked
        } else if view.vhost.is_empty() {
            ConnectionState::Opening
        } else {
            ConnectionState::Running
        };
        ConnectionRow {
            id: self.id,
            gateway: self.gateway_name,
            peer: self.peer,
            accepted: self.accepted,
            state,
            received_bytes: self.received_bytes,
            sent_bytes: self.sent_bytes,
            unsent_bytes: self.unsent_bytes + self.transport.pending_bytes(),
            transport: self.transport_kind,
            view,
        }
    }

    /// Whether its login time is over without it having entered a vhost.
    pub(crate) fn login_overdue(&mut self, now: Now) -> bool {
        if self.login_by.is_none_or(|by| by > now.monotonic) {
            return false;
        }
        self.login_by = None;
        let connection = self.connection.as_ref();
        connection.is_some_and(|c| c.view().vhost.is_empty())
    }
}

/// Calls a write until no signal interrupts it; `None` when the socket takes nothing now.
fn take_some(mut write: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match write() {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Bits of a connection's number that say its slot: a worker has at most this many connections.
const INDEX_BITS: u32 = 20;

/// The index in the number of a connection that has no slot.
const NO_INDEX: u64 = (1 << INDEX_BITS) - 1;

/// The slots of a worker, found by number.
#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<Option<Slot>>,
    free: VecDeque<usize>,
    /// Counts connections, so that a slot used again gives another id.
    life: u64,
}

impl Slots {
    /// A free place and the number of the connection that will have it: the index in the lower bits, a
    /// counter above. `None` when all are taken.
    pub(crate) fn vacancy(&mut self) -> Option<(usize, u64)> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() < NO_INDEX as usize => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return None,
        };
        self.life += 1;
        Some((index, (self.life << INDEX_BITS) | index as u64))
    }

    /// The number of a connection that needs no place.
    pub(crate) fn seatless(&mut self) -> u64 {
        self.life += 1;
        (self.life << INDEX_BITS) | NO_INDEX
    }

    /// Puts a connection into the place that [`Slots::vacancy`] gave.
    pub(crate) fn fill(&mut self, index: usize, slot: Slot) {
        self.slots[index] = Some(slot);
    }

    /// Gives a place back.
    pub(crate) fn vacate(&mut self, index: usize) -> Option<Slot> {
        let slot = self.slots.get_mut(index).and_then(Option::take);
        self.free.push_back(index);
        slot
    }

    /// The slot at a place.
    pub(crate) fn at(&mut self, index: usize) -> Option<&mut Slot> {
        self.slots.get_mut(index).and_then(Option::as_mut)
    }

    /// Where a connection is, unless it is gone.
    pub(crate) fn find(&self, id: ConnectionId) -> Option<usize> {
        let index = (id.0 & NO_INDEX) as usize;
        let slot = self.slots.get(index)?.as_ref()?;
        (slot.id == id).then_some(index)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().flatten()
    }

    /// How many places there are, free ones included.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// Whether no connection is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }
}
