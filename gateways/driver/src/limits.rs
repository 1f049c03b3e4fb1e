//! The named limits of the network side.
//!
//! Owns: their defaults and what each bounds.
//! Next: `desk.rs`, where they are kept.

/// Limits of one node's connections. All are plain numbers with their unit in the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverLimits {
    /// Open connections of all gateways together; one more is closed at once. At least 1.
    pub connections_max: usize,
    /// A worker gets so many connections before the next one gets its first: a few clients need no second
    /// thread, and what they tell each other wakes none. 1 spreads all of them.
    pub worker_company: usize,
    /// Time from the socket's acceptance until the connection has entered a vhost.
    pub login_ms: u64,
    /// With more unsent bytes than this a connection gets no answers and deliveries, so that the broker
    /// hands out no more.
    pub unsent_hold_bytes: usize,
    /// How much a connection may add to its unsent bytes while it is held (by asking without reading
    /// the answers) before it is stopped as a slow reader.
    pub unsent_stop_bytes: usize,
    /// How long a peer may take no byte of what is unsent before it is stopped as a slow reader.
    pub stall_ms: u64,
    /// How long a closed connection's last bytes may take to leave.
    pub linger_ms: u64,
    /// How long all connections together may take to end at shutdown.
    pub drain_ms: u64,
}

impl Default for DriverLimits {
    fn default() -> Self {
        DriverLimits {
            connections_max: 100_000,
            worker_company: 4,
            login_ms: 10_000,
            unsent_hold_bytes: 1024 * 1024,
            unsent_stop_bytes: 8 * 1024 * 1024,
            stall_ms: 60_000,
            linger_ms: 2_000,
            drain_ms: 5_000,
        }
    }
}
