//! Publisher confirms of a channel: which tags were answered, and the fewest frames that say so.
//!
//! Answers come as ranges in any order. A range that joins everything below it is told with
//! `multiple`; one that has a gap below it is told tag by tag, since `multiple` would cover the gap.
//! Owns the bookkeeping only; the connection writes the frames.

use std::collections::BTreeMap;

/// One frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// Delivery tag: the number of the publish since `confirm.select`.
    pub tag: u64,
    /// Covers every tag up to this one that was not told before.
    pub multiple: bool,
    /// `basic.ack`, else `basic.nack`.
    pub ack: bool,
}

/// The confirms of one channel.
#[derive(Debug)]
pub struct Confirms {
    /// Publishes of the channel before `confirm.select`: their number is taken off to get a tag.
    base: u64,
    /// Every tag below it was told.
    low: u64,
    /// Ranges told tag by tag above `low`: first to last.
    told: BTreeMap<u64, u64>,
    /// Ranges answered and not told: first to (last, ack).
    waiting: BTreeMap<u64, (u64, bool)>,
}

impl Confirms {
    /// Confirms for publishes after the `base`-th of the channel.
    pub fn new(base: u64) -> Self {
        Self {
            base,
            low: 1,
            told: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Takes in that the channel's publishes `first..=last` were answered. Numbers from before
    /// `confirm.select` are ignored.
    pub fn answered(&mut self, first: u64, last: u64, ack: bool) {
        let (Some(last), first) = (
            last.checked_sub(self.base),
            first.saturating_sub(self.base).max(1),
        ) else {
            return;
        };
        if last < first {
            return;
        }
        // Consecutive answers alike are one range; the common case is one range that grows.
        if let Some(mut before) = self.waiting.last_entry()
            && before.get().0 + 1 == first
            && before.get().1 == ack
        {
            before.get_mut().0 = last;
            return;
        }
        self.waiting.insert(first, (last, ack));
    }

    /// Whether there is something to tell.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Hands everything answered and not told to `send`, lowest tag first.
    pub fn tell(&mut self, mut send: impl FnMut(Confirm)) {
        while let Some((first, (last, ack))) = self.waiting.pop_first() {
            if first == self.low {
                send(Confirm {
                    tag: last,
                    multiple: last > first,
                    ack,
                });
                self.low = last + 1;
                while let Some(next) = self.told.first_entry()
                    && *next.key() == self.low
                {
                    self.low = next.remove() + 1;
                }
            } else {
                for tag in first..=last {
                    send(Confirm {
                        tag,
                        multiple: false,
                        ack,
                    });
                }
                self.remember(first, last);
            }
        }
    }

    /// Remembers a range told above a gap, joined to the one before it.
    fn remember(&mut self, first: u64, last: u64) {
        if let Some((_, before)) = self.told.range_mut(..first).next_back()
            && *before + 1 == first
        {
            *before = last;
            return;
        }
        self.told.insert(first, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(confirms: &mut Confirms) -> Vec<(u64, bool, bool)> {
        let mut out = Vec::new();
        confirms.tell(|c| out.push((c.tag, c.multiple, c.ack)));
        out
    }

    #[test]
    fn consecutive_answers_are_one_frame() {
        let mut confirms = Confirms::new(0);
        confirms.answered(1, 1, true);
        confirms.answered(2, 5, true);
        assert_eq!(told(&mut confirms), [(5, true, true)]);
        confirms.answered(6, 6, true);
        assert_eq!(told(&mut confirms), [(6, false, true)]);
    }

    #[test]
    fn a_gap_below_forbids_multiple() {
        let mut confirms = Confirms::new(0);
        confirms.answered(3, 4, true);
        assert_eq!(told(&mut confirms), [(3, false, true), (4, false, true)]);
        confirms.answered(1, 2, true);
        assert_eq!(told(&mut confirms), [(2, true, true)]);
        confirms.answered(5, 5, true);
        assert_eq!(told(&mut confirms), [(5, false, true)]);
    }

    #[test]
    fn a_refused_publish_among_others_is_told_apart() {
        let mut confirms = Confirms::new(10);
        confirms.answered(9, 12, true);
        confirms.answered(13, 13, false);
        confirms.answered(14, 15, true);
        assert_eq!(
            told(&mut confirms),
            [(2, true, true), (3, false, false), (5, true, true)]
        );
        confirms.answered(1, 10, true);
        assert!(!confirms.is_waiting());
    }

    proptest! {
        #[test]
        fn every_tag_is_told_once_whatever_the_order(lens in prop::collection::vec((1u64..5, any::<bool>()), 1..20), order in any::<u64>(), flush in any::<u32>()) {
            let mut ranges = Vec::new();
            let mut next = 1;
            for (len, ack) in lens {
                ranges.push((next, next + len - 1, ack));
                next += len;
            }
            let expected: Vec<bool> = ranges.iter().flat_map(|(f, l, ack)| (*f..=*l).map(|_| *ack)).collect();
            // A cheap shuffle out of the number given.
            ranges.sort_by_key(|(first, _, _)| first.wrapping_mul(order | 1) % 97);
            let mut confirms = Confirms::new(0);
            let mut state = vec![None; expected.len()];
            for (at, (first, last, ack)) in ranges.into_iter().enumerate() {
                confirms.answered(first, last, ack);
                if flush & (1 << (at % 32)) != 0 || at % 7 == 0 {
                    confirms.tell(|c| settle(&mut state, c));
                }
            }
            confirms.tell(|c| settle(&mut state, c));
            prop_assert_eq!(state, expected.into_iter().map(Some).collect::<Vec<_>>());
        }
    }

    /// What a client makes of a confirm.
    fn settle(state: &mut [Option<bool>], confirm: Confirm) {
        let tag = confirm.tag as usize;
        let from = if confirm.multiple { 0 } else { tag - 1 };
        for (at, entry) in state[from..tag].iter_mut().enumerate() {
            assert!(
                confirm.multiple || entry.is_none(),
                "tag {} told twice",
                from + at + 1
            );
            entry.get_or_insert(confirm.ack);
        }
    }
}
