//! The intended send times of an open loop.
//!
//! Owns when which message is due. Never reads a clock. Next: `lane.rs`.

/// Message `n` is due `n` intervals after the first.
pub struct Pace {
    interval_ns: u64,
    began_ns: Option<u64>,
}

impl Pace {
    /// A pace whose clock starts with the first question.
    pub fn new(interval_ns: u64) -> Self {
        Self {
            interval_ns,
            began_ns: None,
        }
    }

    /// How many messages are due by now, in all.
    #[inline]
    pub fn due(&mut self, now_ns: u64) -> u64 {
        let began_ns = *self.began_ns.get_or_insert(now_ns);
        (now_ns - began_ns) / self.interval_ns + 1
    }

    /// When message `number` is due; now, as long as the clock stands.
    #[inline]
    pub fn intended_ns(&self, number: u64, now_ns: u64) -> u64 {
        self.began_ns
            .map_or(now_ns, |began_ns| began_ns + number * self.interval_ns)
    }
}
