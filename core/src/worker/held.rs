//! Questions that must see what their connection published before them.
//!
//! A data shard answers `Get`, `Purge` and the counts of `DeclareStream` from what is committed, while
//! publishes of the same connection may still wait for their frame. Such a question is held here, and
//! with it everything the connection asks after it, until those publishes are finished. Who asks after
//! its confirms never waits; publishing alone never comes here. Publishes parked for a full shard are not
//! waited for.
//!
//! Owns: the order of one connection's commands around such a question.
//! Never: order between connections. Next: `commands.rs`.

use super::{Connected, Worker};
use crate::gateway::Command;
use crate::id::{ConnectionId, Now, ShardId};
use std::collections::VecDeque;

/// Commands of a connection that wait for publishes before them; the first is the question.
#[derive(Default)]
pub(super) struct Held {
    commands: VecDeque<Command>,
    bytes: usize,
}

impl Held {
    /// Bytes of messages held; the connection is not read beyond a limit.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, command: Command) {
        if let Command::Publish { message, .. } = &command {
            self.bytes += message.cost_bytes();
        }
        self.commands.push_back(command);
    }
}

impl Worker {
    /// Takes commands in order, or holds them.
    pub(super) fn take(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        commands: impl Iterator<Item = Command>,
    ) {
        for command in commands {
            if !state.held.commands.is_empty() {
                state.held.push(command);
                continue;
            }
            match command {
                Command::Publish {
                    token,
                    mandatory,
                    message,
                } => self.publish(connection, state, token, mandatory, message),
                other if self.must_wait(connection, state, &other) => state.held.push(other),
                other => self.command(now, connection, state, other),
            }
        }
    }

    /// Whether a question concerns a stream to which the connection has unfinished publishes.
    fn must_wait(
        &mut self,
        connection: ConnectionId,
        state: &Connected,
        command: &Command,
    ) -> bool {
        let name = match command {
            Command::Get { stream, .. } | Command::Purge { stream, .. } => stream,
            Command::DeclareStream { declare, .. } => &declare.name,
            _ => return false,
        };
        let Some((vhost, _)) = state.vhost else {
            return false;
        };
        let found = self
            .fabric
            .meta()
            .stream(vhost, name)
            .map(|stream| stream.shard);
        // A full shard finishes nothing until settlements behind this question have freed room.
        let shard = found.filter(|shard| !self.blocked.contains(shard));
        let lane = shard.and_then(|shard| self.lanes.get_mut(&shard));
        lane.is_some_and(|lane| lane.fence(connection))
    }

    /// Publishes to a shard were finished: whoever waited for the last of them goes on.
    pub(super) fn release_held(&mut self, now: Now, shard: ShardId) {
        let Some(lane) = self.lanes.get_mut(&shard) else {
            return;
        };
        for connection in lane.passed_fences() {
            let Some(mut state) = self.connections.remove(&connection) else {
                continue;
            };
            let mut held = std::mem::take(&mut state.held).commands;
            if let Some(question) = held.pop_front() {
                self.command(now, connection, &mut state, question);
            }
            self.take(now, connection, &mut state, held.into_iter());
            self.put_back(connection, state);
        }
    }

    /// The connection is gone: what it held and nobody need answer is done all the same.
    pub(super) fn finish_held(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
    ) {
        for command in std::mem::take(&mut state.held).commands {
            match command {
                Command::Publish {
                    token,
                    mandatory,
                    message,
                } => self.publish(connection, state, token, mandatory, message),
                other @ (Command::Settle { .. } | Command::SetSessionExpiry { .. }) => {
                    self.command(now, connection, state, other);
                }
                _ => {}
            }
        }
    }
}
