//! How long a reader has not settled what it holds.
//!
//! What it was handed between two looks is one lot, as old as the later look; a lot is forgotten when nothing of it is
//! held any more. So each delivery costs a number in a list, and no timer.
//!
//! Owns: [`Unsettled`]. Never: what happens when it is too long (`shard/overdue.rs`).

use crate::id::MonotonicMs;
use std::collections::VecDeque;

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub struct Unsettled {
    /// Handed out since the last look.
    recent: Vec<u64>,
    lots: VecDeque<(MonotonicMs, Vec<u64>)>,
    /// It stands in the shard's list of readers to look at.
    pub(crate) watched: bool,
}

impl Unsettled {
    /// It was handed an offset; says whether it is to be looked at from now on.
    pub fn note(&mut self, offset: u64) -> bool {
        self.recent.push(offset);
        !std::mem::replace(&mut self.watched, true)
    }

    /// Looks: since when has it held the oldest of what it still holds? None when it holds nothing.
    pub fn look(&mut self, now: MonotonicMs, is_held: impl Fn(u64) -> bool) -> Option<MonotonicMs> {
        self.recent.retain(|offset| is_held(*offset));
        if !self.recent.is_empty() {
            self.lots.push_back((now, std::mem::take(&mut self.recent)));
        }
        while let Some((since, lot)) = self.lots.front_mut() {
            while let Some(last) = lot.last() {
                if is_held(*last) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_oldest_that_is_held_counts() {
        let mut unsettled = Unsettled::default();
        let mut held: BTreeSet<u64> = [1, 2].into();
        assert!(unsettled.note(1) && !unsettled.note(2));
        let at = MonotonicMs;
        assert_eq!(unsettled.look(at(10), |o| held.contains(&o)), Some(at(10)));
        held.extend([3]);
        unsettled.note(3);
        assert_eq!(unsettled.look(at(20), |o| held.contains(&o)), Some(at(10)));
        held.remove(&1);
        assert_eq!(unsettled.look(at(30), |o| held.contains(&o)), Some(at(10)));
        held.remove(&2);
        assert_eq!(unsettled.look(at(40), |o| held.contains(&o)), Some(at(20)));
        held.remove(&3);
        assert_eq!(unsettled.look(at(50), |o| held.contains(&o)), None);
    }
}
