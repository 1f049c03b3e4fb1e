//! AMQP 0-9-1 as a pure state machine.
//!
//! Owns the bytes (`wire`), the errors a peer can be told (`error`, `reason`), the spelling of addresses
//! (`address`) and the meaning of properties (`map`). Never touches a socket, a clock or randomness:
//! time and seeds come in as arguments. Read `wire` first, then `README.md` for what is built and what
//! is refused.

pub mod address;
pub mod error;
pub mod map;
pub mod reason;
pub mod wire;

pub use wire::fuzz::fuzz_decode;
