//! The last minutes of the node's rates, sampled once a second, so that a chart is full at once.
//!
//! Owns a ring of points made from successive totals. Never keeps more than [`POINTS_LIMIT`].

use std::collections::VecDeque;

use serde::Serialize;

use crate::model::Overview;

/// Points kept: five minutes at one a second.
pub(crate) const POINTS_LIMIT: usize = 300;
/// Time between two points.
pub(crate) const STEP_MS: u64 = 1000;

/// One second of the node's life; what is not whole is per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Point {
    at_ms: u64,
    received: f64,
    delivered: f64,
    acknowledged: f64,
    bytes_in: f64,
    bytes_out: f64,
    ready: u64,
    unacknowledged: u64,
    connections: u64,
}

/// The ring.
#[derive(Debug, Default)]
pub(crate) struct History {
    points: VecDeque<Point>,
    last: Option<(u64, Overview)>,
}

impl History {
    /// Takes the numbers of this moment.
    pub(crate) fn sample(&mut self, at_ms: u64, now: Overview) {
        if let Some((before_ms, before)) = &self.last {
            let elapsed_s = at_ms.saturating_sub(*before_ms) as f64 / 1000.0;
            if elapsed_s <= 0.0 {
                return;
            }
            let rate = |new: u64, old: u64| {
                (new.saturating_sub(old) as f64 / elapsed_s * 10.0).round() / 10.0
            };
            let (new, old) = (&now.totals, &before.totals);
            self.points.push_back(Point {
                at_ms,
                received: rate(new.received, old.received),
                delivered: rate(new.delivered, old.delivered),
                acknowledged: rate(new.acknowledged, old.acknowledged),
                bytes_in: rate(new.bytes_in, old.bytes_in),
                bytes_out: rate(new.bytes_out, old.bytes_out),
                ready: now.gauges.ready,
                unacknowledged: now.gauges.unacknowledged,
                connections: now.gauges.connections,
            });
            while self.points.len() > POINTS_LIMIT {
                self.points.pop_front();
            }
        }
        self.last = Some((at_ms, now));
    }

    /// The points from the oldest to the newest.
    pub(crate) fn points(&self) -> Vec<Point> {
        self.points.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(total: u64) -> Overview {
        let mut overview = Overview::default();
        overview.totals.received = total;
        overview
    }

    #[test]
    fn rates_are_differences_over_the_time_that_really_passed() {
        let mut history = History::default();
        history.sample(1000, received(100));
        assert!(history.points().is_empty());
        history.sample(3000, received(150));
        assert_eq!(history.points()[0].received, 25.0);
        history.sample(3000, received(900));
        assert_eq!(history.points().len(), 1, "no time passed, no point");
    }

    #[test]
    fn the_ring_is_bounded() {
        let mut history = History::default();
        for second in 0..2000 {
            history.sample(second * 1000, received(second));
        }
        assert_eq!(history.points().len(), POINTS_LIMIT);
        assert_eq!(
            history.points().last().map(|point| point.at_ms),
            Some(1_999_000)
        );
    }
}
