//! Sockets, timers, write batching and back-pressure for every gateway.
//!
//! One thread per worker owns its connections from the first byte to the last; it waits in one poll
//! and calls everything else directly. There is no async runtime: sans-I/O protocols need no task,
//! a poll loop decides exactly when the broker's side takes its turn and when bytes leave, and an idle
//! connection costs a slot and nothing else.
//!
//! Bytes travel over TCP, TLS, WebSocket or WebSocket in TLS; a gateway cannot tell which.
//!
//! Owns: listeners, sockets, TLS and WebSocket, when to read and write, timers, the end of connections.
//! Never: knows a protocol's packets, or what a command means.
//! Next: `driver.rs` (from outside), `desk.rs` (the loop), `feed.rs` (one connection).
#![forbid(unsafe_code)]

mod call;
mod clock;
mod desk;
mod driver;
mod farewell;
mod feed;
mod limits;
mod listener;
mod mailbox;
mod reader;
mod row;
mod secure;
mod slot;
mod timers;
mod tls;
mod transport;
mod websocket;
mod wrapped;

pub use call::{Call, CallDone};
pub use clock::{Clock, SystemClock};
pub use driver::{
    Crew, Driver, DriverSetup, GatewaySetup, Host, ListenerSetup, Listening, LoginDone, StartError,
    WORKERS_MAX,
};
pub use limits::DriverLimits;
pub use row::{ConnectionRow, ConnectionState, DriverTotals};
pub use tls::{ClientCertificates, Reloaded, Tls, TlsError, TlsFiles};
pub use transport::TransportKind;
pub use websocket::{Origins, WebSocketSetup};
