//! Last values for the API.
//!
//! Every data shard keeps those of its own addresses, in their order; here they are joined to one list.
//!
//! Owns: the joining, and the rights it asks for each address. Never: keeps a value.

use std::sync::Arc;

use anabranch_admin::backend::{BackendError, Identity};
use anabranch_admin::model::{RetainedPage, RetainedQuery, RetainedValue};
use anabranch_core::address::{Address, TopicFilter};
use anabranch_core::authority::{Action, Resource};
use anabranch_core::id::ShardId;
use anabranch_core::message::Message;
use anabranch_core::port::{Question, ShardReply};

use super::messages::show_body;
use super::value::{table_to_json, text};
use super::{Done, NodeBackend, refused};

/// Rounds of questions for one page: when so many found nothing to show, the caller asks on.
const ROUNDS_MAX: usize = 16;

impl NodeBackend {
    pub(super) async fn page_of_values(
        &self,
        who: &Identity,
        which: RetainedQuery,
    ) -> Done<RetainedPage> {
        let vhost = self.vhost(&which.vhost)?;
        let filter: TopicFilter = which
            .filter
            .parse()
            .map_err(|error| BackendError::Invalid(format!("filter: {error}")))?;
        let mut after = which.after.as_deref().map(address_of).transpose()?;
        let homes = self.homes(&which.vhost, &filter);
        let mut items = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let count = u32::try_from(which.count - items.len()).unwrap_or(u32::MAX);
            let mut found: Vec<Arc<Message>> = Vec::new();
            // Behind this address a shard has more than it said.
            let mut known_to: Option<Address> = None;
            for shard in &homes {
                let question = Question::Values {
                    vhost,
                    filter: filter.clone(),
                    hides_system: false,
                    after: after.clone(),
                    count,
                };
                let answer = self.parts.asker.ask(*shard, question).await;
                if let ShardReply::Values { values, next } = answer.map_err(refused)? {
                    found.extend(values);
                    known_to = match (known_to, next) {
                        (Some(known), Some(next)) => Some(known.min(next)),
                        (known, next) => known.or(next),
                    };
                }
            }
            found.retain(|value| known_to.as_ref().is_none_or(|end| value.address <= *end));
            found.sort_by(|a, b| a.address.cmp(&b.address));
            for value in found {
                if items.len() == which.count {
                    return Ok(page(items, after));
                }
                after = Some(value.address.clone());
                let topic = Resource::Topic(&value.address);
                if self
                    .allow(who, Action::Receive, &which.vhost, topic)
                    .is_ok()
                {
                    items.push(self.show_value(&which, &value));
                }
            }
            let Some(end) = known_to else {
                return Ok(page(items, None));
            };
            after = Some(end);
            if items.len() == which.count {
                break;
            }
        }
        Ok(page(items, after))
    }

    pub(super) async fn drop_value(&self, who: &Identity, vhost: &str, topic: &str) -> Done<()> {
        let id = self.vhost(vhost)?;
        let address = address_of(topic)?;
        for action in [Action::Publish, Action::Retain] {
            self.allow(who, action, vhost, Resource::Topic(&address))?;
        }
        for shard in self.homes(vhost, &TopicFilter(address.0.clone())) {
            let question = Question::DropValue {
                vhost: id,
                address: address.clone(),
            };
            let answer = self.parts.asker.ask(shard, question).await;
            if matches!(answer.map_err(refused)?, ShardReply::Count(dropped) if dropped > 0) {
                return Ok(());
            }
        }
        let why = format!("there is no last value of {topic:?} in vhost {vhost:?}");
        Err(BackendError::NotFound(why))
    }

    /// How many addresses have a last value.
    pub(super) async fn value_count(&self) -> u64 {
        let homes = self.parts.fabric.meta().placed();
        let mut count = 0;
        for shard in homes {
            match self.parts.asker.ask(shard, Question::ValueCounts).await {
                Ok(ShardReply::ValueCounts { values, .. }) => count += values,
                Ok(_) => {}
                Err(error) => tracing::debug!(%shard, %error, "last values were not counted"),
            }
        }
        count
    }

    /// The shards that may have values of a filter: of a single address its home.
    fn homes(&self, vhost: &str, filter: &TopicFilter) -> Vec<ShardId> {
        let meta = self.parts.fabric.meta();
        if filter.is_wild() {
            return meta.placed().into_iter().collect();
        }
        meta.place(vhost, filter.as_str()).into_iter().collect()
    }

    fn show_value(&self, which: &RetainedQuery, value: &Message) -> RetainedValue {
        let properties = self.parts.codecs.neutral(value);
        let (body, body_encoding, cut) = show_body(&value.body, which.body_limit_bytes);
        RetainedValue {
            vhost: which.vhost.clone(),
            address: value.address.as_str().to_owned(),
            published_at_ms: value.published.0,
            content_type: properties.content_type.as_ref().map(text),
            headers: table_to_json(&properties.headers),
            body,
            body_encoding,
            body_bytes: value.body.len() as u64,
            cut,
        }
    }
}

fn page(items: Vec<RetainedValue>, after: Option<Address>) -> RetainedPage {
    RetainedPage {
        items,
        next: after.map(|address| address.as_str().to_owned()),
    }
}

fn address_of(text: &str) -> Done<Address> {
    text.parse()
        .map_err(|error| BackendError::Invalid(format!("topic: {error}")))
}
