//! How long a reader has not settled what it holds.
//!
//! What it was handed between two looks is one lot, as old as the later look; a lot is forgotten when nothing of it is
//! held any more. A lot is made of runs of offsets: so a delivery costs next to nothing, and no timer.
//!
//! Owns: [`Unsettled`]. Never: what happens when it is too long (`shard/overdue.rs`).

use crate::id::MonotonicMs;
use std::collections::VecDeque;

/// First and last of offsets that follow each other.
type Run = (u64, u64);

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub struct Unsettled {
    /// Handed out since the last look.
    recent: Vec<Run>,
    lots: VecDeque<(MonotonicMs, Vec<Run>)>,
    /// It stands in the shard's list of readers to look at.
    pub(crate) watched: bool,
}

impl Unsettled {
    /// It was handed an offset; does nothing, and says so, when it is not looked at yet.
    pub fn note_watched(&mut self, offset: u64) -> bool {
        if self.watched {
            self.note(offset);
        }
        self.watched
    }

    /// It was handed an offset; says whether it is to be looked at from now on.
    pub fn note(&mut self, offset: u64) -> bool {
        match self.recent.last_mut() {
            Some((_, last)) if *last + 1 == offset => *last = offset,
            _ => self.recent.push((offset, offset)),
        }
        !std::mem::replace(&mut self.watched, true)
    }

    /// Looks: since when has it held the oldest of what it still holds? None when it holds nothing. Asks for the first
    /// offset of a run that is held.
    pub fn look(
        &mut self,
        now: MonotonicMs,
        first_held: impl Fn(Run) -> Option<u64>,
    ) -> Option<MonotonicMs> {
        self.recent.retain_mut(|run| narrow(run, &first_held));
        if !self.recent.is_empty() {
            self.lots.push_back((now, std::mem::take(&mut self.recent)));
        }
        while let Some((since, lot)) = self.lots.front_mut() {
            while let Some(run) = lot.last_mut() {
                if narrow(run, &first_held) {
                    return Some(*since);
                }
                lot.pop();
            }
            self.lots.pop_front();
        }
        None
    }

    /// It holds nothing any more.
    pub fn clear(&mut self) {
        *self = Unsettled::default();
    }
}

/// What lies before the first of a run that is held is not looked at again; says whether any is held.
fn narrow(run: &mut Run, first_held: impl Fn(Run) -> Option<u64>) -> bool {
    let held = first_held(*run);
    run.0 = held.unwrap_or(run.0);
    held.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_oldest_that_is_held_counts() {
        let mut unsettled = Unsettled::default();
        let mut held: BTreeSet<u64> = [1, 2, 7].into();
        assert!(unsettled.note(1) && !unsettled.note(2) && !unsettled.note(7));
        let at = MonotonicMs;
        let first = |held: &BTreeSet<u64>, (first, last)| held.range(first..=last).next().copied();
        assert_eq!(
            unsettled.look(at(10), |run| first(&held, run)),
            Some(at(10))
        );
        held.remove(&7);
        held.extend([3]);
        unsettled.note(3);
        assert_eq!(
            unsettled.look(at(20), |run| first(&held, run)),
            Some(at(10))
        );
        held.remove(&1);
        assert_eq!(
            unsettled.look(at(30), |run| first(&held, run)),
            Some(at(10))
        );
        held.remove(&2);
        assert_eq!(
            unsettled.look(at(40), |run| first(&held, run)),
            Some(at(20))
        );
        held.remove(&3);
        assert_eq!(unsettled.look(at(50), |run| first(&held, run)), None);
    }
}
