//! The binary: configuration, command line and wiring.
//!
//! Owns: which parts make a server, how it is configured, what can be typed. Never contains a rule.
//! Next: `cli/mod.rs` (what can be typed), `node/start.rs` (what is joined), `gateways.rs` (the protocols),
//! `backend/mod.rs` (what the API sees).
#![forbid(unsafe_code)]

mod backend;
mod cli;
mod config;
mod gateways;
mod login;
mod node;
mod rules;

use std::process::ExitCode;

use clap::Parser;

use cli::{Command, CommandLine};

/// A batch of messages is more allocations of one size than the C library keeps at hand for a thread, and they are
/// freed on another one. How much this one keeps is said in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match CommandLine::parse().command {
        Command::Serve(flags) => node::serve(&flags),
        other => cli::run(other),
    }
}
