//! The harness of the whole-system tests: it runs the real server as a process and drives it with
//! clients nobody here wrote.
//!
//! Owns: starting, stopping, killing and restarting a node ([`node`]), the foreign clients
//! ([`agent`], [`mosquitto`], [`load`]), the administrator's API ([`api`]) and raw sockets ([`wire`]).
//! Never: links a crate of the server, waits by sleeping, or uses a fixed port.
//! Read next: [`node::Node`], then `tests/cross_protocol.rs`.

pub mod agent;
pub mod api;
pub mod load;
pub mod mosquitto;
pub mod node;
pub mod process;
pub mod repository;
pub mod wire;

pub use agent::Agent;
pub use api::Api;
pub use node::Node;
