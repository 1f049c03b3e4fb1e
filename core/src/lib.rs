//! Nouns and rules of Anabranch: messages, routing, streams, subscriptions, sessions, commands and
//! their deterministic `apply`.
//!
//! Owns: everything every protocol shares. All arrows of the workspace point here.
//! Never: opens a file or a socket, reads a clock, makes up randomness, names a protocol.
//! Next: `gateway.rs` (the contract of a protocol), then `docs/ARCHITECTURE.md`.

pub mod address;
pub mod authority;
pub mod date;
pub mod death;
pub mod dispatch;
pub mod error;
pub mod exchange;
pub mod gateway;
pub mod id;
pub mod index;
pub mod limits;
pub mod message;
pub mod meta;
pub mod once;
pub mod outbox;
pub mod port;
pub mod properties;
pub mod record;
pub mod router;
pub mod shard;
pub(crate) mod simple;
pub mod stream;
pub mod trie;
pub mod will;
pub mod worker;
