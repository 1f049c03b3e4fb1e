//! How other threads reach a worker: a mailbox of batches and a bell that rings only when it sleeps.
//!
//! The queue has no limit of its own: what travels in it is bounded at its source (credits of
//! consumers, parked bytes of publishers, the limit of connections).
//!
//! Owns: [`Mailbox`], [`Letter`], and the ports that write into mailboxes.
//! Never: looks into a batch.
//! Next: `desk.rs`, the reader.

use anabranch_core::gateway::StopReason;
use anabranch_core::id::{ConnectionId, ShardId, WorkerId};
use anabranch_core::port::{ShardEvent, ShardPort, ShardRequest, WorkerPort};
use anabranch_core::worker::{HostAnswer, Worker};
use mio::net::TcpStream;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::call::Call;
use crate::row::ConnectionRow;

/// What a worker may be sent.
pub(crate) enum Letter {
    /// From a shard, for connections here.
    Events {
        from: ShardId,
        events: Vec<ShardEvent>,
    },
    /// From a worker, for the volatile shard here.
    Requests {
        from: WorkerId,
        requests: Vec<ShardRequest>,
    },
    /// The answer to a login or a change of metadata.
    Answer(HostAnswer),
    /// A new connection of the listener with this number.
    Accept {
        socket: TcpStream,
        peer: SocketAddr,
        listener: usize,
    },
    /// End a connection; the callback is told whether there was one.
    Stop {
        connection: ConnectionId,
        reason: StopReason,
        done: Box<dyn FnOnce(bool) + Send>,
    },
    /// A command of somebody without a socket.
    Call(Box<Call>),
    /// Describe all connections.
    Rows(Box<dyn FnOnce(Vec<ConnectionRow>) + Send>),
    /// Look at the worker itself.
    Inspect(Box<dyn FnOnce(&Worker) + Send>),
    /// End all connections, then the thread.
    Shutdown,
}

/// A worker's mailbox.
pub(crate) struct Mailbox {
    letters: Mutex<Vec<Letter>>,
    /// The worker is about to sleep or asleep: whoever clears this must ring.
    sleeping: AtomicBool,
    bell: mio::Waker,
}

impl Mailbox {
    pub(crate) fn new(bell: mio::Waker) -> Mailbox {
        Mailbox {
            letters: Mutex::new(Vec::new()),
            sleeping: AtomicBool::new(false),
            bell,
        }
    }

    /// Drops a letter in; wakes the worker when it sleeps.
    pub(crate) fn send(&self, letter: Letter) {
        self.lock().push(letter);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // Only a closed poll fails here, and then nobody is left to wake.
            self.bell.wake().ok();
        }
    }

    /// Takes all letters, in order, appending to `to`, which is empty.
    pub(crate) fn take(&self, to: &mut Vec<Letter>) {
        debug_assert!(to.is_empty());
        std::mem::swap(&mut *self.lock(), to);
    }

    /// Says that the worker is about to sleep; false when there is mail, so that it must not.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        // A sender pushes before it looks at the flag: either it sees the flag, or we see its letter.
        let empty = self.lock().is_empty();
        if !empty {
            self.awake();
        }
        empty
    }

    /// Says that the worker is awake, so that nobody rings.
    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Letter>> {
        // Nothing panics while it is held; a poisoned lock would still hold whole letters.
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerPort for Mailbox {
    fn send(&self, from: ShardId, events: Vec<ShardEvent>) {
        Mailbox::send(self, Letter::Events { from, events });
    }
}

impl ShardPort for Mailbox {
    fn send(&self, from: WorkerId, requests: Vec<ShardRequest>) {
        Mailbox::send(self, Letter::Requests { from, requests });
    }
}
