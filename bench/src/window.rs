//! What a publisher has sent and the broker has not confirmed.
//!
//! Owns the send times of unconfirmed messages. Never reads a clock. Next: `engine.rs`.

use crate::link::Confirmed;
use crate::mqtt::client::PLACES;

const FREE: u64 = u64::MAX;

/// Unconfirmed messages of one publisher, at most [`PLACES`].
pub struct Unconfirmed {
    /// When the message in each place was sent, or [`FREE`].
    sent_ns: Vec<u64>,
    /// Every message before this one is confirmed.
    oldest: u64,
    next: u64,
    count: u64,
}

impl Default for Unconfirmed {
    fn default() -> Self {
        Self {
            sent_ns: vec![FREE; PLACES as usize],
            oldest: 0,
            next: 0,
            count: 0,
        }
    }
}

impl Unconfirmed {
    /// How many messages wait for their confirmation.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether the next message has a place: confirmations may come in any order, and the one
    /// that is [`PLACES`] back may still be missing.
    #[inline]
    pub fn has_place(&self) -> bool {
        self.sent_ns[place(self.next)] == FREE
    }

    /// Notes that the next message was sent.
    #[inline]
    pub fn sent(&mut self, now_ns: u64) {
        self.sent_ns[place(self.next)] = now_ns;
        self.next += 1;
        self.count += 1;
    }

    /// Notes a confirmation and gives each newly confirmed message's send time to `each`. What
    /// was not waited for is ignored.
    #[inline]
    pub fn confirm(&mut self, what: Confirmed, mut each: impl FnMut(u64)) {
        match what {
            Confirmed::One(message) => self.take(message, &mut each),
            Confirmed::Through(last) => {
                let last = last.min(self.next.saturating_sub(1));
                for message in self.oldest..=last {
                    self.take(message, &mut each);
                }
            }
        }
        while self.oldest < self.next && self.sent_ns[place(self.oldest)] == FREE {
            self.oldest += 1;
        }
    }

    #[inline]
    fn take(&mut self, message: u64, each: &mut impl FnMut(u64)) {
        let slot = &mut self.sent_ns[place(message)];
        if *slot != FREE {
            each(*slot);
            *slot = FREE;
            self.count -= 1;
        }
    }
}

#[inline]
fn place(message: u64) -> usize {
    (message % PLACES) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confirmed(window: &mut Unconfirmed, what: Confirmed) -> Vec<u64> {
        let mut times = Vec::new();
        window.confirm(what, |sent_ns| times.push(sent_ns));
        times
    }

    #[test]
    fn single_and_multiple_confirmations_meet() {
        let mut window = Unconfirmed::default();
        (0..6).for_each(|time| window.sent(time));
        assert_eq!(confirmed(&mut window, Confirmed::One(1)), [1]);
        assert_eq!(confirmed(&mut window, Confirmed::Through(3)), [0, 2, 3]);
        assert_eq!(confirmed(&mut window, Confirmed::One(3)), [] as [u64; 0]);
        assert_eq!(window.count(), 2);
        assert_eq!(confirmed(&mut window, Confirmed::Through(u64::MAX)), [4, 5]);
        assert_eq!(window.count(), 0);
    }

    #[test]
    fn a_message_left_behind_keeps_its_place() {
        let mut window = Unconfirmed::default();
        (0..PLACES).for_each(|time| window.sent(time));
        (1..PLACES).for_each(|message| window.confirm(Confirmed::One(message), |_| {}));
        assert_eq!(window.count(), 1);
        assert!(!window.has_place());
        window.confirm(Confirmed::One(0), |_| {});
        assert!(window.has_place());
    }
}
