//! QoS 1 publishes of the client that wait for the broker's word.
//!
//! Their tokens are consecutive, so a place in a queue is all that is kept of one. The broker may
//! finish them in any order; PUBACKs leave in the order in which the PUBLISHes came
//! [MQTT-4.6.0-2].

use std::collections::VecDeque;

use anabranch_core::id::Token;

use crate::codec::ReasonCode;

/// The queue of unfinished publishes.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// Token of the first one in `waiting`.
    base: u64,
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    packet_id: u16,
    /// Set when the broker has finished it.
    reason: Option<ReasonCode>,
}

impl Inbound {
    pub(crate) fn new() -> Inbound {
        Inbound {
            base: 1,
            waiting: VecDeque::new(),
        }
    }

    /// How many wait: what the receive maximum bounds.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Enters a publish and gives the token to ask with.
    #[inline]
    pub(crate) fn enter(&mut self, packet_id: u16) -> Token {
        let token = self.base + self.waiting.len() as u64;
        self.waiting.push_back(Waiting {
            packet_id,
            reason: None,
        });
        Token(token)
    }

    /// Marks `first..=last` as finished with `reason`. Tokens that are none of its own are
    /// ignored.
    #[inline]
    pub(crate) fn finish(&mut self, first: Token, last: Token, reason: ReasonCode) {
        let place = |token: u64| usize::try_from(token.saturating_sub(self.base)).ok();
        let (Some(from), Some(to)) = (place(first.0), place(last.0.saturating_add(1))) else {
            return;
        };
        let to = to.min(self.waiting.len());
        if from < to {
            for waiting in self.waiting.range_mut(from..to) {
                waiting.reason = Some(reason);
            }
        }
    }

    /// The next publish to acknowledge: its packet identifier and how it went.
    #[inline]
    pub(crate) fn next_finished(&mut self) -> Option<(u16, ReasonCode)> {
        let front = self.waiting.front()?;
        let finished = (front.packet_id, front.reason?);
        self.waiting.pop_front();
        self.base += 1;
        Some(finished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_leave_in_the_order_of_the_publishes_mqtt_4_6_0_2() {
        let mut inbound = Inbound::new();
        let tokens: Vec<Token> = [7, 8, 9].map(|id| inbound.enter(id)).to_vec();
        inbound.finish(tokens[1], tokens[2], ReasonCode::NO_MATCHING_SUBSCRIBERS);
        assert_eq!(inbound.next_finished(), None);
        inbound.finish(tokens[0], tokens[0], ReasonCode::SUCCESS);
        let order: Vec<u16> = std::iter::from_fn(|| inbound.next_finished())
            .map(|(id, _)| id)
            .collect();
        assert_eq!(order, [7, 8, 9]);
        assert_eq!(inbound.enter(7), Token(4), "tokens go on without a gap");
    }

    #[test]
    fn foreign_tokens_change_nothing() {
        let mut inbound = Inbound::new();
        inbound.enter(1);
        inbound.finish(Token(5), Token(9), ReasonCode::SUCCESS);
        inbound.finish(Token(0), Token(0), ReasonCode::SUCCESS);
        inbound.finish(Token(u64::MAX), Token(u64::MAX), ReasonCode::SUCCESS);
        assert_eq!(inbound.next_finished(), None);
    }
}
