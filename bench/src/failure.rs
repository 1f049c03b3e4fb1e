//! Why a run ended early.
//!
//! Owns the error and its words. Never decides what becomes of a row. Next: `engine.rs`.

use std::time::Duration;

use crate::lane::Role;
use crate::link::LinkError;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A connection failed.
    #[error("{who}: {source}")]
    Link {
        /// Which connection, for people.
        who: String,
        /// What happened.
        source: LinkError,
    },
    /// The system refused epoll.
    #[error("epoll: {0}")]
    Epoll(#[from] rustix::io::Errno),
    /// The broker does not listen for what the row needs.
    #[error("{broker} has no listener for {who}")]
    NoListener {
        /// The broker's name.
        broker: String,
        /// What would connect.
        who: String,
    },
    /// Messages neither arrived nor were confirmed for a while.
    #[error("stalled while {what}")]
    Stalled {
        /// What was going on.
        what: &'static str,
    },
    /// Something took longer than it may.
    #[error("{what} took longer than {:.1} s", limit.as_secs_f64())]
    Late {
        /// What was waited for.
        what: &'static str,
        /// How long.
        limit: Duration,
    },
}

impl EngineError {
    /// The failure of the connection with this role.
    pub fn link(role: Role, source: LinkError) -> Self {
        Self::Link {
            who: role.to_string(),
            source,
        }
    }
}
