//! A minimal AMQP 0-9-1 client for load: the bytes (`codec`), messages (`publish`), the methods sent
//! in order (`script`) and the conversation (`client`).
//!
//! Never opens a socket. Next: `../engine.rs`, which feeds it.

pub mod client;
pub mod codec;
pub mod publish;
pub mod script;
