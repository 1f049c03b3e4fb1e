//! Four digits at the end of a topic or routing key, by which one publisher spreads its messages
//! over many topics.
//!
//! Owns their form. Never encodes a packet. Next: `mqtt/encode.rs`, `amqp/publish.rs`.

/// How many digits there are.
pub const DIGITS: usize = 4;

/// Digits in an encoded message that change from message to message.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    at: usize,
    first: u64,
    count: u64,
}

impl Numbers {
    /// Digits that end before byte `end` of the message and run through `count` numbers from
    /// `first`, again and again.
    pub fn new(end: usize, first: u64, count: u64) -> Self {
        Self {
            at: end - DIGITS,
            first,
            count,
        }
    }

    /// Writes the digits of message `sequence`.
    #[inline]
    pub fn write(&self, message: &mut [u8], sequence: u64) {
        let mut rest = self.first + sequence % self.count;
        for digit in message[self.at..self.at + DIGITS].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}

/// The digits of `number`, as [`Numbers::write`] writes them.
pub fn digits(number: u64) -> String {
    format!("{number:04}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_run_through_their_numbers_and_start_again() {
        let numbers = Numbers::new(6, 250, 250);
        for (sequence, expected) in [(0, 250), (1, 251), (249, 499), (250, 250), (1249, 499)] {
            let mut message = *b"a/0000!";
            numbers.write(&mut message, sequence);
            assert_eq!(message[..2], *b"a/");
            assert_eq!(message[2..6], *digits(expected).as_bytes());
            assert_eq!(message[6], b'!');
        }
    }
}
