//! Who is served where one reader at a time is: the ordered modes (exclusive, failover).
//!
//! Owns: the election of the one that leads, and when the lead may pass on.
//! Never: the choice among several (`dispatch.rs`).
//! Next: `shard/modes.rs`.

use super::{Crowd, Reader};
use crate::port::ConsumerKey;

impl Crowd {
    /// The one reader of an ordered stream that is handed something now: the highest priority, then who came
    /// first; not while another still holds something, since what that one gives back comes before the rest.
    /// Also says whether it is another than at the last call that named one.
    pub(super) fn elect(&mut self) -> Option<(usize, bool)> {
        let place = self.candidate()?;
        if self.others_hold(place) {
            return None;
        }
        let number = self.list[place].number;
        let other = std::mem::replace(&mut self.lead, number) != number;
        Some((place, other))
    }

    /// Who is served of an ordered stream, or is until it has settled what it holds.
    pub fn lead(&self) -> Option<&Reader> {
        let place = self.candidate()?;
        if !self.others_hold(place) {
            return self.list.get(place);
        }
        let before = self.list.get(self.numbered(self.lead)?)?;
        before.serves().then_some(before)
    }

    fn candidate(&self) -> Option<usize> {
        let mut best: Option<usize> = None;
        for (place, reader) in self.list.iter().enumerate() {
            let better = best.is_none_or(|best| {
                let (rank, best) = (reader.priority, &self.list[best]);
                rank > best.priority || (rank == best.priority && reader.number == self.lead)
            });
            if reader.serves() && better {
                best = Some(place);
            }
        }
        best
    }

    fn others_hold(&self, place: usize) -> bool {
        let mut others = self.list.iter().enumerate();
        others.any(|(at, other)| at != place && other.held > 0)
    }

    /// Whether somebody else than the reader with this key holds something.
    pub fn held_beside(&self, key: ConsumerKey) -> bool {
        self.list
            .iter()
            .any(|other| other.key != key && other.held > 0)
    }

    /// Those that must go where only one may be attached: all but the one that is served, or came first.
    pub fn surplus(&self) -> Vec<ConsumerKey> {
        let first = || self.list.iter().find(|reader| reader.attached);
        let served = self.numbered(self.lead).and_then(|at| self.list.get(at));
        let kept = served.filter(|reader| reader.attached).or_else(first);
        let kept = kept.map(|reader| reader.number);
        let others = self.list.iter().filter(|reader| reader.attached);
        others
            .filter(|reader| Some(reader.number) != kept)
            .map(|reader| reader.key)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::readers;
    use crate::id::{ConnectionId, ConsumerTag};
    use crate::port::ConsumerKey;

    /// An ordered stream serves who ranks highest, then who came first; a change waits for what is held.
    #[test]
    fn one_leads_until_it_has_settled_what_it_holds() {
        let key = |tag| ConsumerKey {
            connection: ConnectionId(1),
            tag: ConsumerTag(tag),
        };
        let mut list = readers(&[(0, 9), (0, 9)]);
        assert_eq!(list.elect(), Some((0, true)));
        assert_eq!(list.elect(), Some((0, false)));
        list.find(key(0)).unwrap().held = 2;
        let mut better = list.get(1).unwrap().clone();
        (better.key, better.priority) = (key(2), 5);
        list.add(better);
        assert_eq!(list.elect(), None);
        assert_eq!(list.lead().map(|lead| lead.key), Some(key(0)));
        list.find(key(0)).unwrap().held = 0;
        assert_eq!(list.elect(), Some((2, true)));
        list.remove(key(2));
        assert_eq!(list.elect(), Some((0, true)), "by arrival again");
        // Who leads keeps the lead among equals, even when it came later.
        list.find(key(0)).unwrap().attached = false;
        assert_eq!(list.elect(), Some((1, true)));
        list.find(key(0)).unwrap().attached = true;
        assert_eq!(list.elect(), Some((1, false)));
        assert_eq!(list.surplus(), [key(0)]);
    }
}
