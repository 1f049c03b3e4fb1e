//! The state of the metadata shard: vhosts, users, rules, exchanges, streams by name, bindings,
//! placement. Deterministic: the same commands in the same order give the same state everywhere.
//!
//! Owns: the commands and what they change.
//! Never: messages, sessions and their filters (those live in their shards), meaning of rules.
//! Next: `meta/command.rs` (what it is told), `meta/apply.rs` (what that does), `router.rs` (who reads
//! it for every publish).

pub mod arguments;
pub mod command;
pub mod entry;
pub mod placement;

pub use command::{BindingChange, ExchangeSpec, MetaCommand, MetaReply, StreamSpec};
pub use entry::{
    Binding, BindingId, Exchange, PasswordHash, Rule, Stream, StreamState, User, Vhost,
};
