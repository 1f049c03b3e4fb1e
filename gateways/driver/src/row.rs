//! What the driver tells about a connection: a row for the console.
//!
//! Owns: [`ConnectionRow`], [`ConnectionState`] and the counters of a node.
//! Next: `driver.rs`, which gathers rows from all workers.

use anabranch_core::gateway::ConnectionView;
use anabranch_core::id::{ConnectionId, UnixMs};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use crate::transport::TransportKind;

/// A live connection as the console sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRow {
    /// Names it when it is to be stopped.
    pub id: ConnectionId,
    /// Short name of its gateway.
    pub gateway: &'static str,
    /// The other end.
    pub peer: SocketAddr,
    /// What carries its bytes.
    pub transport: TransportKind,
    /// When it was accepted.
    pub accepted: UnixMs,
    /// How it stands.
    pub state: ConnectionState,
    /// Bytes read from it.
    pub received_bytes: u64,
    /// Bytes written to it.
    pub sent_bytes: u64,
    /// Bytes that its socket does not take yet.
    pub unsent_bytes: usize,
    /// What its gateway says of it.
    pub view: ConnectionView,
}

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// It has not entered a vhost yet.
    Opening,
    /// It works.
    Running,
    /// Its socket is not read, because the broker cannot take more of it now.
    Blocked,
    /// Its last bytes are leaving.
    Closing,
}

impl ConnectionState {
    /// Its name in the console.
    pub fn name(self) -> &'static str {
        match self {
            ConnectionState::Opening => "opening",
            ConnectionState::Running => "running",
            ConnectionState::Blocked => "blocked",
            ConnectionState::Closing => "closing",
        }
    }
}

/// One worker's counters, written by it once per turn.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Connections open now, those on their way to the worker included.
    pub(crate) open: AtomicUsize,
    /// Of those, the ones of each gateway.
    pub(crate) open_of: Vec<AtomicUsize>,
    /// Connections accepted since the start.
    pub(crate) accepted: AtomicU64,
    /// Connections that ended without their TLS or WebSocket handshake.
    pub(crate) handshakes_failed: AtomicU64,
    /// Bytes read since the start.
    pub(crate) received_bytes: AtomicU64,
    /// Bytes written since the start.
    pub(crate) sent_bytes: AtomicU64,
}

impl Counters {
    /// All 0, for so many gateways.
    pub(crate) fn new(gateways: usize) -> Counters {
        Counters {
            open_of: (0..gateways).map(|_| AtomicUsize::new(0)).collect(),
            ..Counters::default()
        }
    }
}

/// Sums over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverTotals {
    /// Connections open now.
    pub open: u64,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections since the start that ended because their TLS or WebSocket handshake failed.
    pub handshakes_failed: u64,
    /// Bytes read since the start.
    pub received_bytes: u64,
    /// Bytes written since the start.
    pub sent_bytes: u64,
}
