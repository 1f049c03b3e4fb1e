//! A minimal MQTT 3.1.1 and 5.0 client for load: the bytes that come (`codec`) and go
//! (`encode`), and the conversation (`client`).
//!
//! Never opens a socket. Next: `../engine.rs`, which feeds it.

pub mod client;
pub mod codec;
pub mod encode;
