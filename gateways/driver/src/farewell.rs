//! The log of ended connections: once each, with who ended it and why.
//!
//! A storm of equal ends (a thousand clients with a wrong password) must not become a storm of log
//! lines: each kind of end has a number of lines per second, the rest is counted and told (`unsaid`) with
//! the next line of its kind.
//!
//! Owns: the rate limit and the wording.
//! Never: decides to end a connection.

use anabranch_core::gateway::{Close, ClosedBy, ConnectionView};
use anabranch_core::id::{ConnectionId, MonotonicMs};
use std::net::SocketAddr;

/// Lines per second and kind of end, per worker.
const LINES_MAX: u32 = 10;
const WINDOW_MS: u64 = 1_000;

/// Who is gone.
pub(crate) struct Ended<'a> {
    pub(crate) id: ConnectionId,
    pub(crate) gateway: &'static str,
    pub(crate) peer: SocketAddr,
    pub(crate) view: &'a ConnectionView,
    pub(crate) close: &'a Close,
}

/// Writes the log of ended connections.
#[derive(Debug, Default)]
pub(crate) struct Farewell {
    kinds: [Window; 4],
}

#[derive(Debug, Default)]
struct Window {
    began: MonotonicMs,
    lines: u32,
    unsaid: u64,
}

impl Window {
    /// Whether a line may be written now, and how many were left out before it.
    fn admit(&mut self, now: MonotonicMs) -> Option<u64> {
        if now.0.saturating_sub(self.began.0) >= WINDOW_MS {
            self.began = now;
            self.lines = 0;
        }
        if self.lines >= LINES_MAX {
            self.unsaid += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Farewell {
    /// Logs the end of a connection.
    pub(crate) fn log(&mut self, now: MonotonicMs, ended: &Ended<'_>) {
        let (kind, by) = match ended.close.by {
            ClosedBy::Peer => (0, "peer"),
            ClosedBy::PeerFault => (1, "peer's fault"),
            ClosedBy::Refused => (2, "refused"),
            ClosedBy::Us => (3, "broker"),
        };
        let Some(unsaid) = self.kinds[kind].admit(now) else {
            return;
        };
        let Ended {
            id,
            gateway,
            peer,
            view,
            close,
        } = ended;
        let (user, client, why) = (&view.user, &view.client, &close.why);
        match close.by {
            ClosedBy::Peer => {
                tracing::debug!(%id, gateway, %peer, user, client, by, %why, unsaid, "connection ended");
            }
            ClosedBy::PeerFault | ClosedBy::Refused | ClosedBy::Us => {
                tracing::info!(%id, gateway, %peer, user, client, by, %why, unsaid, "connection ended");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_counted_and_told_with_the_next_line() {
        let mut window = Window::default();
        for _ in 0..LINES_MAX {
            assert_eq!(window.admit(MonotonicMs(5)), Some(0));
        }
        assert_eq!(window.admit(MonotonicMs(6)), None);
        assert_eq!(window.admit(MonotonicMs(7)), None);
        assert_eq!(window.admit(MonotonicMs(5 + WINDOW_MS)), Some(2));
    }
}
