//! Commands that wait for others of their connection, so that all take effect in order.
//!
//! Two things are not done when they were asked. Exchanges, streams, bindings and subscriptions change
//! when metadata or the session's shard has committed it: everything the connection asks meanwhile is
//! held here, or a publish would be routed as if nothing had been asked. And a data shard answers `Get`, `Purge` and the counts of
//! `DeclareStream` from what is committed: such a question is held until the connection's own publishes
//! to that shard are finished. Who waits for its answers is never held; publishing alone never comes
//! here. Publishes parked for a full shard are not waited for.
//!
//! Owns: the order of one connection's commands around these two.
//! Never: order between connections. Next: `commands.rs`.

use super::{Connected, Worker};
use crate::gateway::{Answer, Command};
use crate::id::{ConnectionId, Now, ShardId, Token};
use std::collections::VecDeque;

/// What a connection has to wait with.
#[derive(Default)]
pub(super) struct Held {
    /// A change of where messages go that is not answered yet.
    asked: Option<Token>,
    /// In order; the first may be a question that waits for publishes.
    commands: VecDeque<Command>,
    bytes: usize,
}

impl Held {
    /// Bytes of messages held; the connection is not read beyond a limit.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the answer to `token` was waited for.
    pub(super) fn answered(&mut self, token: Token) -> bool {
        self.asked.take_if(|asked| *asked == token).is_some()
    }

    /// Whether commands are held for another reason than a change.
    pub(super) fn is_held_up(&self) -> bool {
        self.asked.is_none() && !self.commands.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.asked.is_none() && self.commands.is_empty()
    }

    fn push(&mut self, command: Command) {
        if let Command::Publish { message, .. } = &command {
            self.bytes += message.cost_bytes();
        }
        self.commands.push_back(command);
    }

    fn take_commands(&mut self) -> VecDeque<Command> {
        self.bytes = 0;
        std::mem::take(&mut self.commands)
    }
}

/// The token of a command that changes where messages go.
fn change(command: &Command) -> Option<Token> {
    match command {
        Command::DeclareExchange { token, .. }
        | Command::DeleteExchange { token, .. }
        | Command::DeclareStream { token, .. }
        | Command::DeleteStream { token, .. }
        | Command::Bind { token, .. }
        | Command::Unbind { token, .. }
        | Command::Subscribe { token, .. }
        | Command::Unsubscribe { token, .. } => Some(*token).filter(|token| *token != Token::NONE),
        _ => None,
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
        self.look_at_rules();
        for command in commands {
            if !state.held.is_idle() {
                state.held.push(command);
                continue;
            }
            match command {
                Command::Publish {
                    token,
                    mandatory,
                    patient,
                    once,
                    later,
                    message,
                } => self.publish(
                    connection,
                    state,
                    token,
                    (mandatory, patient),
                    (once, later),
                    message,
                ),
                other if self.must_wait(connection, state, &other) => state.held.push(other),
                other => self.take_one(now, connection, state, other),
            }
        }
    }

    fn take_one(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        command: Command,
    ) {
        let asked = change(&command);
        self.command(now, connection, state, command);
        // What is refused or only looked up may be answered already.
        let done = matches!(
            state.mail.answers.last(),
            Some(Answer::Done { token, .. }) if Some(*token) == asked
        );
        state.held.asked = asked.filter(|_| !done);
    }

    /// Whether a question concerns a stream to which the connection has unfinished publishes.
    fn must_wait(
        &mut self,
        connection: ConnectionId,
        state: &Connected,
        command: &Command,
    ) -> bool {
        let waits = matches!(
            command,
            Command::Get { .. }
                | Command::Purge { .. }
                | Command::DeclareStream { .. }
                | Command::Atomic { .. }
        );
        // When those have been sent, the question comes here again.
        if waits && !state.once.is_empty() {
            return true;
        }
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
    pub(super) fn release_fenced(&mut self, now: Now, shard: ShardId) {
        let Some(lane) = self.lanes.get_mut(&shard) else {
            return;
        };
        for connection in lane.passed_fences() {
            let Some(mut state) = self.connections.remove(&connection) else {
                continue;
            };
            let mut held = state.held.take_commands();
            if let Some(question) = held.pop_front() {
                self.take_one(now, connection, &mut state, question);
            }
            self.take(now, connection, &mut state, held.into_iter());
            self.put_back(connection, state);
        }
    }

    /// Changes were answered: whoever waited for one goes on.
    pub(super) fn release_answered(&mut self, now: Now) {
        while let Some(connection) = self.answered.pop() {
            let Some(mut state) = self.connections.remove(&connection) else {
                continue;
            };
            let held = state.held.take_commands();
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
        for command in state.held.take_commands() {
            match command {
                Command::Publish {
                    token,
                    mandatory,
                    patient,
                    once: None,
                    later,
                    message,
                } => self.publish(
                    connection,
                    state,
                    token,
                    (mandatory, patient),
                    (None, later),
                    message,
                ),
                other @ (Command::Settle { .. }
                | Command::SetSessionExpiry { .. }
                | Command::DropWill) => {
                    self.command(now, connection, state, other);
                }
                _ => {}
            }
        }
    }
}
