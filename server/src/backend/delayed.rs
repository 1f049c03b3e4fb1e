//! Messages that wait until they are due, for the API.
//!
//! Every data shard keeps those of its own addresses, per exchange; here they are joined to one list.
//!
//! Owns: the joining, and the rights. Never: when a message is due.

use std::collections::HashMap;

use anabranch_admin::backend::{BackendError, Identity};
use anabranch_admin::model::{DelayedMessage, DelayedQuery};
use anabranch_core::authority::{Action, Resource};
use anabranch_core::id::{ExchangeId, StreamId};
use anabranch_core::port::{Question, ShardReply};

use super::{Done, NodeBackend, refused};

impl NodeBackend {
    /// How many messages wait, by exchange.
    pub(super) async fn delayed_counts(&self) -> HashMap<ExchangeId, u64> {
        let mut counts = HashMap::new();
        for (_, stat) in self.stats().await {
            if let Some(exchange) = stat.stream.delayed_by() {
                *counts.entry(exchange).or_default() += stat.ready;
            }
        }
        counts
    }

    pub(super) async fn list_delayed(
        &self,
        who: &Identity,
        vhost: &str,
        name: &str,
        which: DelayedQuery,
    ) -> Done<Vec<DelayedMessage>> {
        let exchange = self.exchange(vhost, name)?;
        self.allow(who, Action::Peek, vhost, Resource::Exchange(name))?;
        let count = u32::try_from(which.count).unwrap_or(u32::MAX);
        let mut found = Vec::new();
        let homes = self.parts.fabric.meta().placed();
        for shard in homes {
            let question = Question::Delayed { exchange, count };
            let answer = self.parts.asker.ask(shard, question).await;
            if let ShardReply::Delayed(messages) = answer.map_err(refused)? {
                found.extend(messages);
            }
        }
        found.sort_by_key(|(due, _, _)| *due);
        found.truncate(which.count);
        let shown = found.iter().map(|(due, offset, message)| DelayedMessage {
            due_at_ms: due.0,
            message: self.show(*offset, 0, message, which.body_limit_bytes),
        });
        Ok(shown.collect())
    }

    pub(super) async fn empty_delayed(&self, who: &Identity, vhost: &str, name: &str) -> Done<u64> {
        let exchange = self.exchange(vhost, name)?;
        self.allow(who, Action::Purge, vhost, Resource::Exchange(name))?;
        let mut dropped = 0;
        let homes = self.parts.fabric.meta().placed();
        for shard in homes {
            let stream = StreamId::of_delayed(shard, exchange);
            let answer = self
                .parts
                .asker
                .ask(shard, Question::Purge { stream })
                .await;
            // Where nothing waits there is no such stream.
            if let Ok(ShardReply::Count(count)) = answer {
                dropped += count;
            }
        }
        Ok(dropped)
    }

    fn exchange(&self, vhost: &str, name: &str) -> Done<ExchangeId> {
        let id = self.vhost(vhost)?;
        let meta = self.parts.fabric.meta();
        let found = meta.exchange(id, name).map(|found| found.id);
        found.ok_or_else(|| {
            BackendError::NotFound(format!("there is no exchange {name:?} in vhost {vhost:?}"))
        })
    }
}
