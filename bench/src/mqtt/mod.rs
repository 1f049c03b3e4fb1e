//! A minimal MQTT 3.1.1 and 5.0 client for load: the bytes (`codec`) and the conversation
//! (`client`).
//!
//! Never opens a socket. Next: `../engine.rs`, which feeds it.

pub mod client;
pub mod codec;
