//! A worker as an operator sees it: its connections row by row, counts, and closing one.
//!
//! Owns: how these are read off the worker's state.
//! Never: the form they take for people (the admin surface).
//! Next: `worker/host.rs`.

use super::{Connected, ConnectionRow, Worker, WorkerCounts};
use crate::gateway::StopReason;
use crate::id::{ConnectionId, Now};
use crate::shard::Withheld;

impl Worker {
    /// An operator closes a connection.
    pub fn kick(&mut self, connection: ConnectionId) -> bool {
        let known = self.connections.contains_key(&connection);
        self.with(connection, |state| {
            state.mail.stop = Some(StopReason::Kicked)
        });
        known
    }

    /// Counts.
    pub fn counts(&self) -> WorkerCounts {
        WorkerCounts {
            connections: self.connections.len() as u64,
            ..self.counts
        }
    }

    /// What rules kept from consumers at delivery; see [`Shard::withheld`](crate::shard::Shard::withheld).
    pub fn withheld(&mut self, now: Now) -> Option<Withheld> {
        self.shard.withheld(now)
    }

    /// A row per connection.
    pub fn rows(&self) -> Vec<ConnectionRow> {
        let row = |id: &ConnectionId, state: &Connected| ConnectionRow {
            id: *id,
            protocol: state.protocol,
            peer: state.peer,
            user: state
                .principal
                .as_ref()
                .map(|principal| principal.user.clone())
                .unwrap_or_default(),
            vhost: state
                .vhost
                .as_ref()
                .map(|(_, name)| name.clone())
                .unwrap_or_default(),
            published: state.published,
            delivered: state.delivered,
            readers: state
                .readers
                .values()
                .filter(|reader| reader.attached)
                .count() as u32,
            blocked: (!self.blocked.is_empty() && state.parked_bytes > 0)
                || state.waiting_bytes > 0,
        };
        self.connections
            .iter()
            .map(|(id, state)| row(id, state))
            .collect()
    }
}
