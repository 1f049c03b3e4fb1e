//! What shards tell a worker: results of publishes, answers, deliveries, and what happened to its connections.
//!
//! Owns: the first step of each [`ShardEvent`].
//! Never: the rest of a command that waited for an answer (`worker/steps.rs`).
//! Next: `worker/publish.rs`, `worker/forward.rs`, `worker/groups/leave.rs`.

use super::Worker;
use crate::gateway::{Answer, Delivery, StopReason};
use crate::id::{ConnectionId, Now, ShardId};
use crate::port::{ConsumerKey, ShardEvent};

impl Worker {
    /// Events of another thread's shard.
    pub fn shard_events(&mut self, now: Now, from: ShardId, events: Vec<ShardEvent>) {
        for event in events {
            match event {
                ShardEvent::Published {
                    first,
                    last,
                    outcome,
                } => self.finish_publishes(now, from, first, last, outcome),
                ShardEvent::Waits {
                    sequence,
                    cost_bytes,
                } => self.publish_waits(from, sequence, cost_bytes),
                ShardEvent::Deliver {
                    connection,
                    deliveries,
                } => self.hand_over(connection, deliveries),
                ShardEvent::Reply { ticket, result } => {
                    if let Some((connection, step)) = self.steps.remove(&(from, ticket)) {
                        self.step(now, from, connection, step, result);
                    }
                }
                ShardEvent::Ended { consumer, why } => {
                    let ConsumerKey { connection, tag } = consumer;
                    self.with(connection, |state| {
                        if state
                            .readers
                            .remove(&tag)
                            .is_some_and(|reader| reader.attached && !reader.member)
                        {
                            state
                                .mail
                                .answers
                                .push(Answer::Ended { consumer: tag, why });
                        }
                    });
                }
                ShardEvent::Overdue { consumer, after_ms } => {
                    let ConsumerKey { connection, tag } = consumer;
                    self.with(connection, |state| {
                        if state.readers.contains_key(&tag) {
                            let consumer = tag;
                            let answer = Answer::Overdue { consumer, after_ms };
                            state.mail.answers.push(answer);
                        }
                    });
                }
                ShardEvent::Displaced { connection } => {
                    self.with(connection, |state| {
                        state.mail.stop = Some(StopReason::TakenOver)
                    });
                }
                ShardEvent::Unused { stream } => {
                    let found = self
                        .fabric
                        .meta()
                        .stream_by_id(stream)
                        .map(|stream| stream.shard);
                    if let Some(shard) = found {
                        self.drop_stream(now, stream, shard);
                    }
                }
                ShardEvent::Forward(forward) => self.forward(now, from, *forward),
                ShardEvent::GroupMade { connection, group } => {
                    self.group_made(now, from, connection, group);
                }
                ShardEvent::Parting { number, parting } => {
                    self.parting(now, from, number, parting);
                }
                ShardEvent::Blocked(blocked) => self.shard_blocked(now, from, blocked),
            }
        }
        self.release_fenced(now, from);
        self.release_answered(now);
    }

    fn shard_blocked(&mut self, now: Now, shard: ShardId, blocked: bool) {
        if blocked {
            self.blocked.insert(shard);
            return;
        }
        if !self.blocked.remove(&shard) {
            return;
        }
        self.unpark(now, shard);
        if !self.blocked.is_empty() {
            return;
        }
        let parked = self
            .connections
            .iter()
            .filter(|(_, state)| state.parked_bytes > 0);
        let parked: Vec<ConnectionId> = parked.map(|(id, _)| *id).collect();
        for connection in parked {
            self.with(connection, |state| {
                state.parked_bytes = 0;
                if state.waiting_bytes == 0 {
                    state.mail.answers.push(Answer::Blocked(None));
                }
            });
        }
    }

    fn hand_over(&mut self, connection: ConnectionId, deliveries: Vec<Delivery>) {
        self.with(connection, |state| {
            if deliveries.len() == 1 || !state.mail.deliveries.is_empty() {
                state.mail.deliveries.extend(deliveries);
            } else {
                state.mail.deliveries = deliveries;
            }
        });
    }
}
