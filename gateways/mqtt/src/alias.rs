//! Topic aliases, both ways (section 3.3.2.3.4). They live as long as their connection.
//!
//! What the client announces is remembered as it says. Towards the client an alias is announced when
//! a topic is seen for the second time in a row in its place, so that a topic that comes once costs
//! nothing, and from the third message on it saves its length.

use std::hash::{BuildHasher, BuildHasherDefault};

use bytes::Bytes;
use rustc_hash::FxHasher;

/// Aliases that the client announced, by their number less one.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    topics: Vec<Bytes>,
}

impl Announced {
    /// Lets `alias` stand for `topic` from now on; the caller has checked it against the maximum.
    pub(crate) fn set(&mut self, alias: u16, topic: &[u8]) {
        let place = usize::from(alias.saturating_sub(1));
        if place >= self.topics.len() {
            self.topics.resize(place + 1, Bytes::new());
        }
        // A copy, since the topic is a slice of a whole read's buffer.
        self.topics[place] = Bytes::copy_from_slice(topic);
    }

    /// What `alias` stands for.
    pub(crate) fn topic(&self, alias: u16) -> Option<Bytes> {
        let topic = self.topics.get(usize::from(alias.checked_sub(1)?))?;
        (!topic.is_empty()).then(|| topic.clone())
    }
}

/// Shortest topic that an alias is used for: the property takes three bytes.
const TOPIC_BYTES_MIN: usize = 4;

/// Aliases towards the client: each place is an alias, and a topic has its place by its hash.
#[derive(Debug)]
pub(crate) struct Sent {
    places: Box<[Place]>,
}

#[derive(Clone, Debug, Default)]
struct Place {
    /// Of the topic that was last here.
    hash: u64,
    /// That topic, once the client knows it by the alias.
    known: Option<Box<[u8]>>,
}

/// How a topic is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// As it is; the place remembers it.
    Plain,
    /// With the alias that shall stand for it.
    Announce(u16),
    /// By its alias alone.
    Alias(u16),
}

impl Sent {
    /// Room for so many aliases.
    pub(crate) fn new(most: u16) -> Sent {
        Sent {
            places: vec![Place::default(); usize::from(most)].into(),
        }
    }

    fn place(&self, topic: &[u8]) -> Option<(usize, u64)> {
        if topic.len() < TOPIC_BYTES_MIN || self.places.is_empty() {
            return None;
        }
        // 0 is the place where nothing was.
        let hash = BuildHasherDefault::<FxHasher>::default().hash_one(topic) | 1;
        let spread = hash >> 32 ^ hash;
        Some((spread as usize % self.places.len(), hash))
    }

    /// How to write `topic` now. Nothing changes before [`Sent::sent`].
    pub(crate) fn choose(&self, topic: &[u8]) -> Written {
        let Some((at, hash)) = self.place(topic) else {
            return Written::Plain;
        };
        let place = &self.places[at];
        let alias = u16::try_from(at + 1).unwrap_or(u16::MAX);
        match &place.known {
            Some(known) if **known == *topic => Written::Alias(alias),
            None if place.hash == hash => Written::Announce(alias),
            Some(_) | None => Written::Plain,
        }
    }

    /// Notes that `topic` left as [`Sent::choose`] said.
    pub(crate) fn sent(&mut self, topic: &[u8], as_written: Written) {
        let Some((at, hash)) = self.place(topic) else {
            return;
        };
        let place = &mut self.places[at];
        match as_written {
            Written::Alias(_) => {}
            Written::Announce(_) => place.known = Some(topic.into()),
            // The client goes on knowing the topic that was here, which is not asked for again
            // before another is announced in its stead.
            Written::Plain => *place = Place { hash, known: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(sent: &mut Sent, topic: &str) -> Written {
        let written = sent.choose(topic.as_bytes());
        sent.sent(topic.as_bytes(), written);
        written
    }

    #[test]
    fn an_alias_stands_for_what_was_announced_last_mqtt_3_3_2_7() {
        let mut announced = Announced::default();
        assert_eq!(announced.topic(3), None);
        announced.set(3, b"a/b");
        announced.set(1, b"c");
        announced.set(3, b"d");
        assert_eq!(announced.topic(3), Some(Bytes::from_static(b"d")));
        assert_eq!(announced.topic(2), None);
        assert_eq!(announced.topic(0), None);
    }

    #[test]
    fn a_topic_is_announced_at_its_second_message_and_saved_from_the_third() {
        let mut sent = Sent::new(1);
        assert_eq!(send(&mut sent, "plant/7"), Written::Plain);
        assert_eq!(send(&mut sent, "plant/7"), Written::Announce(1));
        assert_eq!(send(&mut sent, "plant/7"), Written::Alias(1));
        assert_eq!(send(&mut sent, "a/b"), Written::Plain, "short ones never");
        assert_eq!(send(&mut sent, "plant/7"), Written::Alias(1));
        assert_eq!(send(&mut sent, "plant/8"), Written::Plain);
        assert_eq!(send(&mut sent, "plant/7"), Written::Plain);
        assert_eq!(send(&mut sent, "plant/7"), Written::Announce(1));
        assert_eq!(Sent::new(0).choose(b"plant/7"), Written::Plain);
    }

    #[test]
    fn what_was_not_sent_is_not_known_to_the_client() {
        let mut sent = Sent::new(1);
        send(&mut sent, "plant/7");
        assert_eq!(sent.choose(b"plant/7"), Written::Announce(1));
        assert_eq!(sent.choose(b"plant/7"), Written::Announce(1));
    }
}
