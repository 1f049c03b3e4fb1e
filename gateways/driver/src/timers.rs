//! When which connection wants attention: one ordered set per worker instead of a timer each.
//!
//! Deadlines that only move away (keep-alive, heartbeats) leave the set as it is: the old entry fires,
//! its connection is asked again and gets a new one. So traffic does not touch the set.
//!
//! Owns: the set.
//! Never: reads a clock.

use anabranch_core::id::MonotonicMs;
use std::collections::BTreeSet;

/// Deadlines of a worker's slots; each slot has at most one, and remembers it itself.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    set: BTreeSet<(MonotonicMs, usize)>,
}

impl Timers {
    /// Makes sure that `slot` is looked at by `wanted`; `due` is what the set holds for it.
    pub(crate) fn want(
        &mut self,
        slot: usize,
        due: &mut Option<MonotonicMs>,
        wanted: Option<MonotonicMs>,
    ) {
        let Some(wanted) = wanted else { return };
        if let Some(held) = *due {
            if held <= wanted {
                return;
            }
            self.set.remove(&(held, slot));
        }
        self.set.insert((wanted, slot));
        *due = Some(wanted);
    }

    /// Forgets a slot.
    pub(crate) fn forget(&mut self, slot: usize, due: &mut Option<MonotonicMs>) {
        if let Some(held) = due.take() {
            self.set.remove(&(held, slot));
        }
    }

    /// The next slot whose time has come; its entry is gone then.
    pub(crate) fn pop(&mut self, now: MonotonicMs) -> Option<usize> {
        let first = *self.set.first()?;
        if first.0 > now {
            return None;
        }
        self.set.remove(&first);
        Some(first.1)
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<MonotonicMs> {
        self.set.first().map(|(due, _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_moves_away_stays_and_one_that_comes_nearer_replaces_it() {
        let mut timers = Timers::default();
        let mut due = None;
        timers.want(7, &mut due, Some(MonotonicMs(100)));
        timers.want(7, &mut due, Some(MonotonicMs(200)));
        assert_eq!((due, timers.next()), (Some(MonotonicMs(100)), due));
        timers.want(7, &mut due, Some(MonotonicMs(50)));
        assert_eq!(timers.next(), Some(MonotonicMs(50)));
        assert_eq!(timers.pop(MonotonicMs(49)), None);
        assert_eq!(timers.pop(MonotonicMs(50)), Some(7));
        assert_eq!(timers.next(), None, "one entry per slot");
    }

    #[test]
    fn a_forgotten_slot_never_fires() {
        let mut timers = Timers::default();
        let mut due = None;
        timers.want(3, &mut due, Some(MonotonicMs(1)));
        timers.forget(3, &mut due);
        assert_eq!((due, timers.pop(MonotonicMs(9))), (None, None));
    }
}
