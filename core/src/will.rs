//! A message that a session leaves behind, to be published when its connection ended out of order.
//!
//! Owns: [`SavedWill`], as records and checkpoints keep it. Persisted: the delay, the message as a record has it, then
//! whose it is.
//! Never: when it is published (`shard/wills.rs`).

use crate::authority::Principal;
use crate::gateway::Will;
use crate::id::{ConnectionId, UnixMs};
use crate::message::Message;
use crate::record::{message_bytes, message_from};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::sync::Arc;

/// See the module's text.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedWill {
    /// What.
    pub message: Arc<Message>,
    /// Seconds to wait after the end of the connection; the end of the session comes first.
    pub delay_s: u32,
    /// The user who left it; `None` when anonymous.
    pub user: Option<Arc<str>>,
}

impl SavedWill {
    /// Of the will that a session is opened with.
    pub fn new(will: &Will, by: &Principal) -> SavedWill {
        SavedWill {
            message: Arc::new(will.message.detached()),
            delay_s: will.delay_s,
            user: (!by.anonymous).then(|| by.user.clone()),
        }
    }

    /// The message as it is published now: its time to live begins now, and its publisher is gone.
    pub fn message_at(&self, now: UnixMs) -> Arc<Message> {
        let lives = |end: UnixMs| now.after(end.0.saturating_sub(self.message.published.0));
        Arc::new(Message {
            published: now,
            expires: self.message.expires.map(lives),
            publisher: ConnectionId::NONE,
            ..Message::clone(&self.message)
        })
    }
}

impl Serialize for SavedWill {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let message = message_bytes(&self.message);
        (self.delay_s, &message[..], &self.user).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SavedWill {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SavedWill, D::Error> {
        type Parts = (u32, Vec<u8>, Option<Arc<str>>);
        let (delay_s, message, user) = Parts::deserialize(deserializer)?;
        let message = message_from(message.into()).map_err(de::Error::custom)?;
        Ok(SavedWill {
            message: Arc::new(message),
            delay_s,
            user,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_will_is_read_back_as_it_was_and_lives_from_when_it_is_published() {
        let will = Will {
            message: Arc::new(Message {
                body: Bytes::from_static(b"gone"),
                published: UnixMs(1000),
                expires: Some(UnixMs(6000)),
                publisher: ConnectionId(8),
                retain: true,
                ..Message::default()
            }),
            delay_s: 7,
        };
        let by = Principal {
            user: "ann".into(),
            ..Principal::default()
        };
        let saved = SavedWill::new(&will, &by);
        let bytes = postcard::to_allocvec(&saved).unwrap();
        let read: SavedWill = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(read, saved);
        let message = read.message_at(UnixMs(90_000));
        assert_eq!(message.expires, Some(UnixMs(95_000)));
        assert_eq!(message.publisher, ConnectionId::NONE);
        assert!(message.retain && postcard::from_bytes::<SavedWill>(&bytes[..3]).is_err());
    }
}
