//! Moving a queue's subscription for the API.
//!
//! Owns: the rights it asks. Never: finds the place in a queue (core's `shard/seek.rs`).

use anabranch_admin::backend::{BackendError, Identity};
use anabranch_admin::model::SeekTo;
use anabranch_core::authority::{Action, Resource};
use anabranch_core::id::{Offset, UnixMs};
use anabranch_core::port::{Question, SeekTo as Place, ShardReply};

use super::{Done, NodeBackend, refused};

impl NodeBackend {
    /// What leaves is taken from the queue as if it were consumed, or purged: whoever may do both may do this.
    pub(super) async fn move_subscription(
        &self,
        who: &Identity,
        vhost: &str,
        name: &str,
        to: SeekTo,
    ) -> Done<u64> {
        let place = self.place(vhost, name).await?;
        if place.session {
            let why = "only a queue's subscription can be moved, not a session's";
            return Err(BackendError::Invalid(why.to_owned()));
        }
        for action in [Action::Consume, Action::Purge] {
            self.allow(who, action, vhost, Resource::Queue(name))?;
        }
        let question = Question::Seek {
            stream: place.stream,
            to: place_of(to),
        };
        let answer = self.parts.asker.ask(place.shard, question).await;
        match answer.map_err(refused)? {
            ShardReply::Count(left) => Ok(left),
            _ => Ok(0),
        }
    }
}

/// A place as core has it.
pub(super) fn place_of(to: SeekTo) -> Place {
    match to {
        SeekTo::Start => Place::Start,
        SeekTo::End => Place::End,
        SeekTo::Offset(offset) => Place::Offset(Offset(offset)),
        SeekTo::TimeMs(time) => Place::Time(UnixMs(time)),
    }
}
