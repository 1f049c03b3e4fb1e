//! Filters that one session alone has, found without a tree.
//!
//! Millions of sessions have a filter of their own each, with a wildcard at its end or none (`simple.rs`). Such a one is
//! kept by the session only: here is the hash of the filter and where the session is. When a second session comes with
//! the same filter both are put into the tree as all others are.
//!
//! Owns: [`Alone`]. Never: filters with other wildcards (`trie.rs`), what they ask together (`matching.rs`).

use super::places::Places;
use super::{Match, Place, Shard};
use crate::address::Address;
use crate::gateway::FilterSpec;
use crate::id::VhostId;
use crate::simple::{Depths, Simple, simple, write_filter};
use crate::stream::{Kind, Stream};

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Alone {
    places: Places,
    depths: Depths,
}

/// What a stream asks of a filter of this text, if it has one.
fn asks<B: Place>(stream: &Stream<B>, text: &[u8]) -> Option<FilterSpec> {
    match &stream.kind {
        Kind::Session(session) => session.filters.get(text),
        Kind::Group(group) => (group.spec.filter.0 == text).then(|| group.spec.clone()),
        Kind::Queue => None,
    }
}

impl<B: Place> Shard<B> {
    fn asks_alone(&self, vhost: VhostId, place: u32, text: &[u8]) -> Option<FilterSpec> {
        let stream = self.streams.get(place as usize)?.as_deref()?;
        (stream.vhost == vhost).then(|| asks(stream, text))?
    }

    /// Takes note of a filter that a stream has, which is not in the tree. Says whether it is new; or the stream that had
    /// it alone so far, which is forgotten here.
    pub(super) fn note_alone(
        &mut self,
        vhost: VhostId,
        place: u32,
        (key, spec): (Simple, &FilterSpec),
    ) -> Result<bool, Match> {
        let text = &spec.filter.0[..];
        let alone = &self.alone.places;
        let known = alone.find(key.hash, |other| {
            self.asks_alone(vhost, other, text).is_some()
        });
        match known {
            Some(other) if other == place => Ok(false),
            Some(other) => {
                self.alone.places.remove(key.hash, other);
                let before = self.asks_alone(vhost, other, text);
                Err(Match::new(other, before.as_ref().unwrap_or(spec)))
            }
            None => {
                self.alone.depths.note(key);
                self.alone.places.insert(key.hash, place);
                Ok(true)
            }
        }
    }

    /// A stream has the filter no more; says whether it had it alone.
    pub(super) fn forget_alone(&mut self, vhost: VhostId, place: u32, spec: &FilterSpec) -> bool {
        let key = simple(vhost, &spec.filter);
        key.is_some_and(|key| self.alone.places.remove(key.hash, place))
    }

    /// The streams of such filters that match an address.
    pub(super) fn match_alone(&self, vhost: VhostId, address: &Address, found: &mut Vec<Match>) {
        let mut text = Vec::new();
        self.alone.depths.visit(vhost, address, |hash, end, begin| {
            self.alone.places.find(hash, |place| {
                write_filter(&mut text, end, begin);
                let spec = self.asks_alone(vhost, place, &text);
                found.extend(spec.map(|spec| Match::new(place, &spec)));
                false
            });
        });
    }
}
