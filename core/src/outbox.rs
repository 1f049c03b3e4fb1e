//! What a shard has to tell its workers, gathered over a batch.
//!
//! Owns: coalescing of publish results, grouping of deliveries per connection, and their order: a
//! reply that ends a consumer comes after the deliveries made before it.
//! Never: decides anything.

use crate::gateway::{Delivery, PublishOutcome};
use crate::id::{ConnectionId, Sequence, WorkerId};
use crate::port::ShardEvent;
use rustc_hash::FxHashMap;

/// Events per worker.
#[derive(Debug, Default)]
pub struct Outbox {
    workers: Vec<Tray>,
}

#[derive(Debug)]
struct Tray {
    worker: WorkerId,
    events: Vec<ShardEvent>,
    deliveries: FxHashMap<ConnectionId, Vec<Delivery>>,
}

impl Outbox {
    #[inline]
    fn tray(&mut self, worker: WorkerId) -> &mut Tray {
        if self
            .workers
            .first()
            .is_some_and(|first| first.worker == worker)
        {
            return &mut self.workers[0];
        }
        self.tray_of(worker)
    }

    fn tray_of(&mut self, worker: WorkerId) -> &mut Tray {
        let place = self
            .workers
            .iter()
            .position(|tray| tray.worker == worker)
            .unwrap_or_else(|| {
                self.workers.push(Tray {
                    worker,
                    events: Vec::new(),
                    deliveries: FxHashMap::default(),
                });
                self.workers.len() - 1
            });
        &mut self.workers[place]
    }

    /// Appends an event.
    pub fn event(&mut self, worker: WorkerId, event: ShardEvent) {
        self.tray(worker).events.push(event);
    }

    /// Appends the result of a publish, widening the last one when it continues it.
    pub fn published(&mut self, worker: WorkerId, sequence: Sequence, result: PublishOutcome) {
        let events = &mut self.tray(worker).events;
        if let Some(ShardEvent::Published { last, outcome, .. }) = events.last_mut()
            && last.0 + 1 == sequence.0
            && *outcome == result
        {
            *last = sequence;
            return;
        }
        events.push(ShardEvent::Published {
            first: sequence,
            last: sequence,
            outcome: result,
        });
    }

    /// Appends a delivery.
    pub fn deliver(&mut self, connection: ConnectionId, delivery: Delivery) {
        self.tray(connection.worker())
            .deliveries
            .entry(connection)
            .or_default()
            .push(delivery);
    }

    /// Puts the connection's deliveries before whatever event comes next.
    pub fn settle_order(&mut self, connection: ConnectionId) {
        let tray = self.tray(connection.worker());
        if let Some(deliveries) = tray.deliveries.remove(&connection) {
            tray.events.push(ShardEvent::Deliver {
                connection,
                deliveries,
            });
        }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.workers
            .iter()
            .all(|tray| tray.events.is_empty() && tray.deliveries.is_empty())
    }

    /// Takes everything, a batch per worker.
    pub fn take(&mut self) -> impl Iterator<Item = (WorkerId, Vec<ShardEvent>)> + '_ {
        self.workers.iter_mut().filter_map(|tray| {
            let mut events = std::mem::take(&mut tray.events);
            let deliveries = tray.deliveries.drain();
            events.extend(
                deliveries.map(|(connection, deliveries)| ShardEvent::Deliver {
                    connection,
                    deliveries,
                }),
            );
            (!events.is_empty()).then_some((tray.worker, events))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_results_become_one_range() {
        let mut outbox = Outbox::default();
        for sequence in [1, 2, 3, 5] {
            outbox.published(WorkerId(0), Sequence(sequence), PublishOutcome::Routed);
        }
        outbox.published(WorkerId(0), Sequence(6), PublishOutcome::Unroutable);
        let ranges: Vec<_> = outbox
            .take()
            .flat_map(|(_, events)| events)
            .map(|event| match event {
                ShardEvent::Published { first, last, .. } => (first.0, last.0),
                other => panic!("unexpected {other:?}"),
            })
            .collect();
        assert_eq!(ranges, [(1, 3), (5, 5), (6, 6)]);
        assert!(outbox.is_empty());
    }
}
