//! Rights of live connections, asked again after rules or users changed.
//!
//! Publishers are asked at their next message anyway (`publish.rs`) and readers at every delivery
//! (`deliver.rs`); here the rest is ended that may not be any more: connections whose user is gone or may
//! not connect, consumers that may not consume, sessions whose filters may not be subscribed.
//!
//! Owns: when and what to ask again. Never: rules.

use super::steps::Step;
use super::{Connected, Worker};
use crate::authority::{Action, Circumstances, Question as AuthorityQuestion, Resource};
use crate::error::{ErrorKind, Refusal};
use crate::gateway::{Answer, StopReason};
use crate::id::{ConnectionId, ConsumerTag, Now};
use crate::port::{ConsumerKey, Question};

impl Worker {
    /// Asks again what is live, when the rules have changed since the last time.
    pub(super) fn renew_rights(&mut self, now: Now) {
        let generation = self.authority.generation();
        if generation == self.rights_generation {
            return;
        }
        self.rights_generation = generation;
        let all: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for connection in all {
            self.renew_connection(now, connection);
        }
    }

    fn allowed(&self, state: &Connected, action: Action, resource: Resource<'_>) -> bool {
        let (Some(principal), Some((_, vhost))) = (&state.principal, &state.vhost) else {
            return true;
        };
        let question = AuthorityQuestion {
            principal,
            action,
            vhost,
            resource,
            circumstances: Circumstances::default(),
        };
        self.authority.decide(&question).allowed
    }

    fn renew_connection(&mut self, now: Now, connection: ConnectionId) {
        let Some(state) = self.connections.get(&connection) else {
            return;
        };
        let Some(principal) = &state.principal else {
            return;
        };
        let known = principal.anonymous || {
            let meta = self.fabric.meta();
            // Other roles are other rights everywhere: the client logs in again and gets them.
            meta.user(&principal.user)
                .is_some_and(|user| user.roles == principal.roles)
        };
        if !known || !self.allowed(state, Action::Connect, Resource::Vhost) {
            return self.with(connection, |state| {
                state.mail.stop = Some(StopReason::Unauthorised)
            });
        }
        let lost: Vec<ConsumerTag> = state
            .readers
            .iter()
            .filter(|(_, reader)| reader.attached && !reader.name.is_empty())
            .filter(|(_, reader)| {
                !self.allowed(state, Action::Consume, Resource::Queue(&reader.name))
            })
            .map(|(tag, _)| *tag)
            .collect();
        for tag in lost {
            self.end_consumer(now, connection, tag);
        }
        self.renew_session(now, connection);
    }

    fn end_consumer(&mut self, now: Now, connection: ConnectionId, tag: ConsumerTag) {
        let Some(reader) = self
            .connections
            .get_mut(&connection)
            .and_then(|state| state.readers.get_mut(&tag))
        else {
            return;
        };
        reader.attached = false;
        let (shard, stream) = (reader.shard, reader.stream);
        let why = format!(
            "the rules do not allow to consume from queue '{}' any more",
            reader.name
        );
        let consumer = ConsumerKey { connection, tag };
        self.ask_shard(
            now,
            shard,
            connection,
            Step::Nothing,
            Question::Detach { consumer, stream },
        );
        let why = Refusal::new(ErrorKind::AccessRefused, why);
        self.with(connection, |state| {
            state
                .mail
                .answers
                .push(Answer::Ended { consumer: tag, why })
        });
    }

    /// A session with a filter that may not be subscribed is unbound from it, and its connection ended:
    /// no protocol has another way to tell a subscriber.
    pub(super) fn renew_session(&mut self, now: Now, connection: ConnectionId) {
        let Some(state) = self.connections.get(&connection) else {
            return;
        };
        let Some(session) = &state.session else {
            return;
        };
        let lost: Vec<_> = session
            .filters
            .iter()
            .filter(|filter| !self.allowed(state, Action::Subscribe, Resource::Filter(filter)))
            .cloned()
            .collect();
        let groups = session.groups.keys();
        let groups: Vec<_> = groups
            .filter(|(_, filter)| {
                let mut rights = [Action::Subscribe, Action::Share].into_iter();
                !rights.all(|right| self.allowed(state, right, Resource::Filter(filter)))
            })
            .cloned()
            .collect();
        if lost.is_empty() && groups.is_empty() {
            return;
        }
        let shard = session.shard;
        let question = Question::Unsubscribe {
            connection,
            filters: lost,
        };
        self.ask_shard(now, shard, connection, Step::Nothing, question);
        if let Some(mut state) = self.connections.remove(&connection) {
            for group in groups {
                self.leave(now, connection, &mut state, group, None);
            }
            self.put_back(connection, state);
        }
        self.with(connection, |state| {
            state.mail.stop = Some(StopReason::Unauthorised)
        });
    }
}
