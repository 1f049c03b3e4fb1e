//! One direction between a worker and a shard: in the process, or over a network that delays, splits,
//! loses and comes back.
//!
//! Owns: the small reliable layer that makes such a network look like the process: numbered batches,
//! cumulative acknowledgements, everything unacknowledged again after a reconnect, repeats dropped by
//! their number. Order within a direction is kept; directions know nothing of each other.
//! Never: what the batches mean. Next: `node.rs`.

use std::collections::VecDeque;

use rand::RngExt;
use rand::rngs::StdRng;

/// Longest way of a batch or an acknowledgement, in virtual milliseconds.
const DELAY_MS_MAX: u64 = 8;
/// A batch is cut in two this often, each part again: 1 in so many.
const SPLIT_ONE_IN: u32 = 2;

/// One direction.
pub struct Direction<T> {
    /// Number of the last batch sent.
    sent: u64,
    /// Sent and not known to have arrived.
    unheard: VecDeque<(u64, Vec<T>)>,
    /// On the way: when it arrives, its number, what.
    flying: VecDeque<(u64, u64, Vec<T>)>,
    /// Acknowledgements on the way back: when, up to which number.
    heard: VecDeque<(u64, u64)>,
    /// Number of the last batch taken at the far end.
    taken: u64,
    connected: bool,
    /// How many repeats were dropped: shows that losses happen.
    pub repeats: u64,
}

impl<T> Default for Direction<T> {
    fn default() -> Self {
        Direction {
            sent: 0,
            unheard: VecDeque::new(),
            flying: VecDeque::new(),
            heard: VecDeque::new(),
            taken: 0,
            connected: true,
            repeats: 0,
        }
    }
}

impl<T: Clone> Direction<T> {
    /// Hands a batch over; it is split at random places.
    pub fn send(&mut self, now: u64, mut items: Vec<T>, dice: &mut StdRng) {
        while !items.is_empty() {
            let length = match items.len() > 1 && dice.random_ratio(1, SPLIT_ONE_IN) {
                true => dice.random_range(1..items.len()),
                false => items.len(),
            };
            let rest = items.split_off(length);
            self.sent += 1;
            self.unheard.push_back((self.sent, items.clone()));
            self.fly(now, self.sent, items, dice);
            items = rest;
        }
    }

    fn fly(&mut self, now: u64, number: u64, items: Vec<T>, dice: &mut StdRng) {
        if self.connected {
            let before = self.flying.back().map_or(0, |(at, ..)| *at);
            let at = before.max(now + dice.random_range(0..=DELAY_MS_MAX));
            self.flying.push_back((at, number, items));
        }
    }

    /// What has arrived by now and was not taken before, in order.
    pub fn arrived(&mut self, now: u64, dice: &mut StdRng) -> Vec<T> {
        while self.heard.front().is_some_and(|(at, _)| *at <= now) {
            let (_, until) = self.heard.pop_front().expect("looked at");
            self.forget(until);
        }
        let mut whole = Vec::new();
        while self.flying.front().is_some_and(|(at, ..)| *at <= now) {
            let (_, number, items) = self.flying.pop_front().expect("looked at");
            if number <= self.taken {
                self.repeats += 1;
            } else {
                assert_eq!(number, self.taken + 1, "the link leaves no gap");
                self.taken = number;
                whole.extend(items);
            }
            let back = self.heard.back().map_or(0, |(at, _)| *at);
            let at = back.max(now + dice.random_range(0..=DELAY_MS_MAX));
            self.heard.push_back((at, self.taken));
        }
        whole
    }

    fn forget(&mut self, until: u64) {
        while self
            .unheard
            .front()
            .is_some_and(|(number, _)| *number <= until)
        {
            self.unheard.pop_front();
        }
    }

    /// The connection is lost with everything on the way.
    pub fn lose(&mut self) {
        self.connected = false;
        self.flying.clear();
        self.heard.clear();
    }

    /// A new connection. What the sender does not know to have arrived is sent again, whether it has
    /// or not.
    pub fn reconnect(&mut self, now: u64, dice: &mut StdRng) {
        self.connected = true;
        for (number, items) in self.unheard.clone() {
            self.fly(now, number, items, dice);
        }
    }

    /// When something arrives next.
    pub fn next(&self) -> Option<u64> {
        let batch = self.flying.front().map(|(at, ..)| *at);
        let heard = self.heard.front().map(|(at, _)| *at);
        batch.into_iter().chain(heard).min()
    }

    /// Whether something waits for a reconnect.
    pub fn stranded(&self) -> bool {
        !self.connected && !self.unheard.is_empty()
    }
}
