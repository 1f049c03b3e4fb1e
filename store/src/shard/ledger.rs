//! What workers have asked and were not yet answered: needed when the journal fails.
//!
//! Owns: the list of open publishes and questions per worker. Never decides an answer while the
//! journal works. Read next: [`super::data`].

use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::{Sequence, WorkerId};
use anabranch_core::port::{ShardEvent, ShardRequest, Ticket};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// Open requests of all workers.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    workers: FxHashMap<WorkerId, Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// Highest publish handed in.
    handed: u64,
    /// All publishes up to here are answered.
    answered: u64,
    /// Answered ranges above, first -> last.
    ahead: BTreeMap<u64, u64>,
    tickets: FxHashSet<Ticket>,
}

impl Open {
    fn close(&mut self, first: u64, last: u64) {
        if first > self.answered + 1 {
            self.ahead.insert(first, last);
            return;
        }
        self.answered = self.answered.max(last);
        while let Some(entry) = self.ahead.first_entry() {
            if *entry.key() > self.answered + 1 {
                break;
            }
            self.answered = self.answered.max(entry.remove());
        }
    }
}

impl Ledger {
    /// Notes requests that are about to be handled.
    pub(crate) fn asked(&mut self, from: WorkerId, requests: &[ShardRequest]) {
        let open = self.workers.entry(from).or_default();
        for request in requests {
            match request {
                ShardRequest::Publish { sequence, .. } => open.handed = open.handed.max(sequence.0),
                ShardRequest::Ask { ticket, .. } => {
                    open.tickets.insert(*ticket);
                }
                _ => {}
            }
        }
    }

    /// Notes answers that are about to be sent.
    pub(crate) fn answered(&mut self, to: WorkerId, events: &[ShardEvent]) {
        let open = self.workers.entry(to).or_default();
        for event in events {
            match event {
                ShardEvent::Published { first, last, .. } => open.close(first.0, last.0),
                ShardEvent::Reply { ticket, .. } => {
                    open.tickets.remove(ticket);
                }
                _ => {}
            }
        }
    }

    /// Answers everything that is open: the journal failed.
    pub(crate) fn fail_all(&mut self) -> Vec<(WorkerId, Vec<ShardEvent>)> {
        let outcome = PublishOutcome::Refused(ErrorKind::StorageFailed);
        let mut all = Vec::new();
        for (worker, open) in &mut self.workers {
            let mut events = Vec::new();
            let mut from = open.answered + 1;
            let ahead = std::mem::take(&mut open.ahead);
            for (first, last) in ahead.into_iter().chain([(open.handed + 1, open.handed)]) {
                if from < first {
                    let (first, last) = (Sequence(from), Sequence(first - 1));
                    events.push(ShardEvent::Published {
                        first,
                        last,
                        outcome,
                    });
                }
                from = from.max(last + 1);
            }
            open.answered = open.handed;
            let mut tickets: Vec<Ticket> = open.tickets.drain().collect();
            tickets.sort_unstable();
            for ticket in tickets {
                let why =
                    Refusal::new(ErrorKind::StorageFailed, "the journal of this shard failed");
                events.push(ShardEvent::Reply {
                    ticket,
                    result: Err(why),
                });
            }
            if !events.is_empty() {
                all.push((*worker, events));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(ledger: &mut Ledger) -> Vec<(u64, u64)> {
        let events = ledger.fail_all().into_iter().flat_map(|(_, events)| events);
        events
            .filter_map(|event| match event {
                ShardEvent::Published { first, last, .. } => Some((first.0, last.0)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn exactly_what_is_open_is_failed() {
        let mut ledger = Ledger::default();
        ledger.workers.insert(
            WorkerId(1),
            Open {
                handed: 10,
                ..Open::default()
            },
        );
        let done = |first, last| ShardEvent::Published {
            first: Sequence(first),
            last: Sequence(last),
            outcome: PublishOutcome::Routed,
        };
        ledger.answered(WorkerId(1), &[done(7, 8), done(1, 2), done(4, 4)]);
        assert_eq!(ranges(&mut ledger), [(3, 3), (5, 6), (9, 10)]);
        assert_eq!(ranges(&mut ledger), []);
    }

    #[test]
    fn answers_out_of_order_close_the_gap() {
        let mut open = Open {
            handed: 5,
            ..Open::default()
        };
        open.close(3, 5);
        open.close(1, 1);
        open.close(2, 2);
        assert_eq!((open.answered, open.ahead.len()), (5, 0));
    }
}
