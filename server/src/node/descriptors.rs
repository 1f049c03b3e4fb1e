//! File descriptors: one for each connection, so the soft limit a shell gives (often 1,024) is raised to
//! the hard one.
//!
//! Owns: that limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for journals, listeners and threads, beside connections.
const OWN_USE: u64 = 256;

/// Raises the limit as far as the system lets us; says so when it stays below what is configured.
pub(super) fn raise(connections_max: usize) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Refused only where the limit is not ours to change; then it is as it was.
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(_) => limit.current,
    };
    let wanted = (connections_max as u64).saturating_add(OWN_USE);
    if let Some(descriptors) = current.filter(|current| *current < wanted) {
        tracing::warn!(
            descriptors,
            connections_max,
            "the system allows fewer open files than connections are configured; see `ulimit -Hn`"
        );
    }
}
