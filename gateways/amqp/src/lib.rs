//! AMQP 0-9-1 as a pure state machine.
//!
//! Owns the bytes: frames, methods, content headers and field tables (`wire`), and the errors a peer
//! can be told (`error`). Never touches a socket, a clock or randomness: time and seeds come in as
//! arguments. Read `wire` first, then `README.md` for what is built and what is refused.

pub mod error;
pub mod wire;

pub use wire::fuzz::fuzz_decode;
