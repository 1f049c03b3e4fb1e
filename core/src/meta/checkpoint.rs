//! The whole metadata as bytes and back, for checkpoints.
//!
//! Layout, persisted: one version byte, then JSON of `Saved`. Version 1 is the only one so far; a
//! reader of a newer one refuses, a field that an older writer did not know gets its default.
//!
//! Owns: that layout.
//! Never: files.

use super::placement::Placement;
use super::policy::Policy;
use super::{Binding, Exchange, LastIds, Meta, Rule, Stream, Target, User, Vhost};
use crate::id::VhostId;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The version written now.
const VERSION: u8 = 1;

/// Why bytes are no checkpoint of metadata.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Written by a newer build, or no checkpoint at all.
    #[error("metadata checkpoint has version {0:?}, this build reads {VERSION}")]
    Version(Option<u8>),
    /// Not the JSON that belongs there.
    #[error("metadata checkpoint does not parse: {0}")]
    Parse(#[from] serde_json::Error),
    /// It speaks of something it does not hold.
    #[error("metadata checkpoint is not whole: {0}")]
    NotWhole(String),
}

#[derive(Serialize, Deserialize)]
struct Saved<'a> {
    vhosts: Vec<Cow<'a, Vhost>>,
    users: Vec<Cow<'a, User>>,
    rules: Vec<Cow<'a, Rule>>,
    exchanges: Vec<Cow<'a, Exchange>>,
    streams: Vec<Cow<'a, Stream>>,
    bindings: Vec<Cow<'a, Binding>>,
    placement: Cow<'a, Placement>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    policies: Vec<(VhostId, Cow<'a, Policy>)>,
    incarnation: u64,
    last: LastIds,
    generation: u64,
    rules_generation: u64,
}

impl Meta {
    /// The whole state as bytes; the same state gives the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let saved = Saved {
            vhosts: self.vhosts().map(Cow::Borrowed).collect(),
            users: self.users().map(Cow::Borrowed).collect(),
            rules: self.rules.values().map(Cow::Borrowed).collect(),
            exchanges: self
                .exchanges
                .values()
                .map(|state| Cow::Borrowed(&state.exchange))
                .collect(),
            streams: self
                .streams
                .values()
                .map(|entry| Cow::Borrowed(&entry.stream))
                .collect(),
            bindings: self.bindings.values().map(Cow::Borrowed).collect(),
            placement: Cow::Borrowed(&self.placement),
            policies: self
                .policies
                .all()
                .map(|(vhost, policy)| (vhost, Cow::Borrowed(policy)))
                .collect(),
            incarnation: self.incarnation,
            last: self.last,
            generation: self.generation,
            rules_generation: self.rules_generation,
        };
        let mut out = vec![VERSION];
        // Writing to memory cannot fail: every map key is text.
        let _ = serde_json::to_writer(&mut out, &saved);
        out
    }

    /// Reads what [`Meta::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are of another version, do not parse or are not whole.
    pub fn decode(bytes: &[u8]) -> Result<Meta, CheckpointError> {
        let json = match bytes.split_first() {
            Some((&VERSION, json)) => json,
            other => return Err(CheckpointError::Version(other.map(|(version, _)| *version))),
        };
        let saved: Saved<'static> = serde_json::from_slice(json)?;
        let mut meta = Meta::default();
        for vhost in saved.vhosts {
            meta.link_vhost(vhost.into_owned());
        }
        for exchange in saved.exchanges {
            if !meta.vhosts.contains_key(&exchange.vhost) {
                let text = format!("exchange {} has no vhost", exchange.id);
                return Err(CheckpointError::NotWhole(text));
            }
            meta.link_exchange(exchange.into_owned());
        }
        for stream in saved.streams {
            if !meta.vhosts.contains_key(&stream.vhost) {
                let text = format!("stream {} has no vhost", stream.id);
                return Err(CheckpointError::NotWhole(text));
            }
            meta.link_stream(stream.into_owned());
        }
        for binding in saved.bindings {
            let end = match binding.target {
                Target::Stream(stream) => meta.streams.contains_key(&stream),
                Target::Exchange(exchange) => meta.exchanges.contains_key(&exchange),
            };
            let ends = meta.exchanges.contains_key(&binding.exchange) && end;
            if !ends {
                let text = format!("binding {} has a loose end", binding.id.0);
                return Err(CheckpointError::NotWhole(text));
            }
            meta.link_binding(binding.into_owned())
                .map_err(|refusal| CheckpointError::NotWhole(refusal.text))?;
        }
        let users = saved.users.into_iter().map(Cow::into_owned);
        meta.users = users.map(|user| (user.name.clone(), user)).collect();
        let rules = saved.rules.into_iter().map(Cow::into_owned);
        meta.rules = rules.map(|rule| (rule.id.clone(), rule)).collect();
        meta.placement = saved.placement.into_owned();
        for (vhost, policy) in saved.policies {
            meta.policies
                .put(vhost, policy.into_owned())
                .map_err(|refusal| CheckpointError::NotWhole(refusal.text))?;
        }
        meta.incarnation = saved.incarnation;
        meta.last = saved.last;
        meta.generation = saved.generation;
        meta.rules_generation = saved.rules_generation;
        Ok(meta)
    }
}
