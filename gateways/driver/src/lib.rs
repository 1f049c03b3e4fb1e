//! Sockets, timers, write batching and back-pressure for every gateway.
//!
//! One thread per worker owns its connections from the first byte to the last; it waits in one poll
//! and calls everything else directly. There is no async runtime: sans-I/O protocols need no task,
//! a poll loop decides exactly when the broker's side takes its turn and when bytes leave, and an idle
//! connection costs a slot and nothing else.
//!
//! Owns: listeners, sockets, when to read and write, timers, the end of connections.
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
mod slot;
mod timers;
mod transport;

pub use call::{Call, CallDone};
pub use clock::{Clock, SystemClock};
pub use driver::{Crew, Driver, DriverSetup, Host, LoginDone, StartError, WORKERS_MAX};
pub use limits::DriverLimits;
pub use row::{ConnectionRow, ConnectionState, DriverTotals};
