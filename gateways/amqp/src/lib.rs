//! AMQP 0-9-1 as a pure state machine.
//!
//! Owns the bytes (`wire`), the errors a peer can be told (`error`, `reason`), the spelling of addresses
//! (`address`), the meaning of properties (`map`) and the connection that ties them together
//! (`connection`). Never touches a socket, a clock or randomness: time and seeds come in as arguments.
//! Read `gateway` first, then `connection`; `README.md` says what is built and what is refused.

pub mod address;
pub mod arguments;
mod channel;
mod config;
mod confirm;
mod connection;
pub mod delay;
pub mod error;
mod gateway;
pub mod map;
pub mod names;
pub mod published;
pub mod reason;
mod stamp;
mod token;
mod transaction;
mod unacked;
mod unfinished;
pub mod wire;

pub use config::{AmqpConfig, ConfigError};
pub use gateway::AmqpGateway;
pub use wire::fuzz::fuzz_decode;
