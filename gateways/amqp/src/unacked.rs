//! Deliveries of a channel that were sent and not acknowledged, and the settling of them.
//!
//! Tags count up, so the entries are sorted by tag; acknowledging in order takes from the front, out of
//! order leaves an entry marked dead until it reaches the front or half of them are dead. Settled
//! offsets are handed to core as dense runs. Owns this bookkeeping only.

use std::collections::VecDeque;

use anabranch_core::gateway::{Command, Outcome};
use anabranch_core::id::{ConsumerTag, Offset};

/// A delivery that waits for its acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsettled {
    /// Its delivery tag on the channel.
    pub tag: u64,
    /// Whose delivery it is.
    pub consumer: ConsumerTag,
    /// Its place in the stream.
    pub offset: Offset,
    /// It came by `basic.get`, which no prefetch window counts.
    pub got: bool,
}

/// The deliveries of a channel that wait, oldest first.
#[derive(Debug, Default)]
pub struct Unacked {
    entries: VecDeque<(Unsettled, bool)>,
    dead: usize,
}

impl Unacked {
    /// Dead entries kept before they are swept out.
    const DEAD_SLACK: usize = 64;

    /// Adds one; tags must count up.
    pub fn push(&mut self, delivery: Unsettled) {
        self.entries.push_back((delivery, true));
    }

    /// Whether one of this consumer waits.
    pub fn holds(&self, consumer: ConsumerTag) -> bool {
        let mut waiting = self.entries.iter().filter(|(_, live)| *live);
        waiting.any(|(entry, _)| entry.consumer == consumer)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.entries.len() - self.dead
    }

    /// Takes the one with this tag.
    pub fn take(&mut self, tag: u64) -> Option<Unsettled> {
        let at = match self.entries.front() {
            Some((first, _)) if first.tag == tag => 0,
            _ => self
                .entries
                .binary_search_by_key(&tag, |(entry, _)| entry.tag)
                .ok()?,
        };
        let (entry, live) = self.entries.get_mut(at)?;
        if !std::mem::take(live) {
            return None;
        }
        let taken = *entry;
        self.dead += 1;
        self.sweep();
        Some(taken)
    }

    /// Takes all up to this tag, oldest first, and hands them to `each`; false when no live one has
    /// exactly this tag.
    pub fn take_up_to(&mut self, tag: u64, each: impl FnMut(Unsettled)) -> bool {
        match self
            .entries
            .binary_search_by_key(&tag, |(entry, _)| entry.tag)
        {
            Ok(at) if self.entries[at].1 => {
                self.take_front(at + 1, each);
                true
            }
            _ => false,
        }
    }

    /// Takes all, oldest first.
    pub fn take_all(&mut self, each: impl FnMut(Unsettled)) {
        self.take_front(self.entries.len(), each);
    }

    /// Puts back what was taken and is not settled after all.
    pub fn put_back(&mut self, taken: impl Iterator<Item = Unsettled>) {
        self.entries.retain(|(_, live)| *live);
        self.dead = 0;
        let before = self.entries.len();
        self.entries.extend(taken.map(|entry| (entry, true)));
        if self.entries.len() > before {
            let entries = self.entries.make_contiguous();
            entries.sort_unstable_by_key(|(entry, _)| entry.tag);
        }
    }

    fn take_front(&mut self, count: usize, mut each: impl FnMut(Unsettled)) {
        for (entry, live) in self.entries.drain(..count) {
            if live {
                each(entry);
            } else {
                self.dead -= 1;
            }
        }
        self.sweep();
    }

    fn sweep(&mut self) {
        while let Some((_, false)) = self.entries.front() {
            self.entries.pop_front();
            self.dead -= 1;
        }
        if self.dead > Self::DEAD_SLACK && self.dead * 2 > self.entries.len() {
            self.entries.retain(|(_, live)| *live);
            self.dead = 0;
        }
    }
}

/// Gathers settled offsets into dense runs.
#[derive(Debug, Default)]
pub struct SettleRun {
    run: Option<(ConsumerTag, Offset, Offset, Outcome)>,
}

impl SettleRun {
    /// Adds one; what cannot be joined with it goes to `commands`.
    #[inline]
    pub fn add(
        &mut self,
        consumer: ConsumerTag,
        offset: Offset,
        outcome: Outcome,
        commands: &mut Vec<Command>,
    ) {
        if let Some((of, _, last, how)) = &mut self.run
            && *of == consumer
            && *how == outcome
            && last.next() == offset
        {
            *last = offset;
            return;
        }
        self.flush(commands);
        self.run = Some((consumer, offset, offset, outcome));
    }

    /// Hands what was gathered to `commands`.
    #[inline]
    pub fn flush(&mut self, commands: &mut Vec<Command>) {
        if let Some((consumer, first, last, outcome)) = self.run.take() {
            commands.push(Command::Settle {
                consumer,
                first,
                last,
                outcome,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(tag: u64) -> Unsettled {
        Unsettled {
            tag,
            consumer: ConsumerTag(1),
            offset: Offset(tag),
            got: false,
        }
    }

    #[test]
    fn consecutive_offsets_of_a_consumer_are_one_command() {
        let mut commands = Vec::new();
        let mut run = SettleRun::default();
        for (consumer, offset, outcome) in [
            (1, 5, Outcome::Accepted),
            (1, 6, Outcome::Accepted),
            (1, 8, Outcome::Accepted),
            (2, 9, Outcome::Accepted),
            (2, 10, Outcome::Released),
        ] {
            run.add(
                ConsumerTag(consumer),
                Offset(offset),
                outcome,
                &mut commands,
            );
        }
        run.flush(&mut commands);
        run.flush(&mut commands);
        let runs: Vec<_> = commands
            .iter()
            .map(|command| match command {
                Command::Settle {
                    consumer,
                    first,
                    last,
                    ..
                } => (consumer.0, first.0, last.0),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(runs, [(1, 5, 6), (1, 8, 8), (2, 9, 9), (2, 10, 10)]);
    }

    proptest! {
        #[test]
        fn behaves_like_a_plain_list(ops in prop::collection::vec((0u8..5, 0u64..40), 0..200)) {
            let mut unacked = Unacked::default();
            let mut model: Vec<u64> = Vec::new();
            let mut next = 0;
            let mut away: Vec<Unsettled> = Vec::new();
            for (op, arg) in ops {
                match op {
                    4 => {
                        model.extend(away.iter().map(|e| e.tag));
                        model.sort_unstable();
                        unacked.put_back(away.drain(..));
                    }
                    0 | 1 => {
                        next += 1 + u64::from(op);
                        unacked.push(entry(next));
                        model.push(next);
                    }
                    2 => {
                        let tag = next.saturating_sub(arg);
                        let at = model.iter().position(|t| *t == tag);
                        let taken = unacked.take(tag);
                        prop_assert_eq!(taken.map(|e| e.tag), at.map(|at| model.remove(at)));
                        away.extend(taken.filter(|_| arg % 2 == 0));
                    }
                    _ => {
                        let tag = next.saturating_sub(arg);
                        let mut taken = Vec::new();
                        let found = unacked.take_up_to(tag, |e| taken.push(e.tag));
                        prop_assert_eq!(found, model.contains(&tag));
                        if found {
                            let rest = model.split_off(model.iter().position(|t| *t == tag).unwrap() + 1);
                            prop_assert_eq!(&taken, &std::mem::replace(&mut model, rest));
                        }
                    }
                }
                prop_assert_eq!(unacked.len(), model.len());
                prop_assert!(unacked.entries.len() <= model.len() * 2 + Unacked::DEAD_SLACK + 2);
            }
            let mut rest = Vec::new();
            unacked.take_all(|e| rest.push(e.tag));
            prop_assert_eq!(rest, model);
        }
    }
}
