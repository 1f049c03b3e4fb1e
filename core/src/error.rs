//! What core may refuse, as one closed list that every gateway maps to its own codes.
//!
//! Owns: [`ErrorKind`] and [`Refusal`]. Three families are never mixed: the peer broke its protocol
//! (a gateway's own errors, never seen here), we refused (most kinds below), we broke
//! ([`ErrorKind::is_ours`]).
//! Never: a protocol's codes or sentences.
//! Next: each gateway's `reason.rs`.

use serde::{Deserialize, Serialize};

/// Why a command was not done. Closed and alphabetical: a new kind does not compile until every
/// gateway has mapped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The rules deny it.
    AccessRefused,
    /// Credentials are missing or wrong.
    BadCredentials,
    /// A name, filter or argument is malformed or reserved.
    BadRequest,
    /// A limit on memory, disk or parked bytes is reached; trying later may work.
    Busy,
    /// It exists with other settings.
    Inequivalent,
    /// It is in use, so a conditional delete was not done.
    InUse,
    /// Another connection holds it exclusively.
    Locked,
    /// The message is larger than the broker takes.
    MessageTooLarge,
    /// It holds messages, so a conditional delete was not done.
    NotEmpty,
    /// No such exchange, stream, binding, session or vhost.
    NotFound,
    /// Understood, but this broker does not do it (yet); the text names what.
    NotSupported,
    /// A quota of connections, streams or subscriptions is used up.
    QuotaExceeded,
    /// A second exclusive consumer, or a consumer beside an exclusive one.
    SecondConsumer,
    /// The node is shutting down.
    ShuttingDown,
    /// The journal failed: the shard refuses writes until the node restarts.
    StorageFailed,
    /// No shard leader answers now.
    Unavailable,
}

impl ErrorKind {
    /// Whether we broke, as opposed to having refused.
    pub fn is_ours(self) -> bool {
        matches!(
            self,
            ErrorKind::StorageFailed | ErrorKind::Unavailable | ErrorKind::ShuttingDown
        )
    }
}

/// A refused command: the kind for codes, the text for people (never secret, names what to do).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{text}")]
pub struct Refusal {
    /// Which of the closed list.
    pub kind: ErrorKind,
    /// One sentence without a full stop, such as `no queue 'jobs' in vhost '/'`.
    pub text: String,
}

impl Refusal {
    /// A refusal of `kind` with its sentence.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Refusal {
        Refusal {
            kind,
            text: text.into(),
        }
    }
}
