//! Publishes of the client that wait for the broker's word, and QoS 2 identifiers not yet released.
//!
//! Tokens of publishes are consecutive, so a place in a queue is all that is kept of one. The broker
//! may finish them in any order; PUBACKs and PUBRECs leave in the order in which the PUBLISHes came
//! [MQTT-4.6.0-2] [MQTT-4.6.0-3].
//!
//! An identifier of QoS 2 is held from its PUBLISH to its PUBREL: a PUBLISH that comes again under it
//! is the same message [MQTT-4.3.3-10], and is answered by another PUBREC when the first was.

use std::collections::VecDeque;

use anabranch_core::error::ErrorKind;
use anabranch_core::id::Token;
use rustc_hash::FxHashMap;

use crate::codec::{PacketType, ReasonCode};

/// See the module.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// Token of the first one in `waiting`.
    base: u64,
    waiting: VecDeque<Waiting>,
    /// How many in `waiting` are of QoS 1.
    at_least_once: usize,
    /// Held QoS 2 identifiers. Most clients use none.
    held: Option<Box<FxHashMap<u16, Held>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// PUBREC is owed, and so often once more as the PUBLISH came again.
    Owed(u16),
    Answered,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    packet_id: u16,
    step: Step,
    /// Set when the broker has finished it.
    verdict: Option<Verdict>,
}

/// How a publish went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) reason: ReasonCode,
    /// What the core calls it, when it refused.
    pub(crate) refused: Option<ErrorKind>,
}

impl Verdict {
    pub(crate) const fn of(reason: ReasonCode) -> Verdict {
        Verdict {
            reason,
            refused: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    AtLeastOnce,
    ExactlyOnce,
}

/// A publish to acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) packet_id: u16,
    pub(crate) verdict: Verdict,
    /// PUBACK or PUBREC.
    pub(crate) by: PacketType,
    /// How often: a message that came again before its answer is answered again.
    pub(crate) times: u32,
    /// Whether its QoS 2 identifier is free again, since the message was refused.
    pub(crate) freed: bool,
}

/// What a PUBREL comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The identifier was held and is free now.
    Freed,
    /// Its PUBREC is not out yet: the client could not know that it may release it.
    Early,
    /// Not held by this connection.
    Unknown,
}

impl Inbound {
    pub(crate) fn new() -> Inbound {
        Inbound {
            base: 1,
            waiting: VecDeque::new(),
            at_least_once: 0,
            held: None,
        }
    }

    /// How many count against the receive maximum: QoS 1 until PUBACK, QoS 2 until PUBREL.
    pub(crate) fn len(&self) -> usize {
        self.at_least_once + self.held.as_ref().map_or(0, |held| held.len())
    }

    fn push(&mut self, packet_id: u16, step: Step) -> Token {
        let token = self.base + self.waiting.len() as u64;
        self.waiting.push_back(Waiting {
            packet_id,
            step,
            verdict: None,
        });
        Token(token)
    }

    /// Enters a QoS 1 publish and gives the token to ask with.
    #[inline]
    pub(crate) fn enter(&mut self, packet_id: u16) -> Token {
        self.at_least_once += 1;
        self.push(packet_id, Step::AtLeastOnce)
    }

    /// Enters a QoS 2 publish whose identifier is not held.
    #[inline]
    pub(crate) fn enter_exactly_once(&mut self, packet_id: u16) -> Token {
        self.held
            .get_or_insert_default()
            .insert(packet_id, Held::Owed(0));
        self.push(packet_id, Step::ExactlyOnce)
    }

    /// Whether a QoS 2 identifier is held.
    #[inline]
    pub(crate) fn holds(&self, packet_id: u16) -> bool {
        self.held
            .as_ref()
            .is_some_and(|held| held.contains_key(&packet_id))
    }

    /// A PUBLISH of a held identifier, which asks the broker for nothing; says whether to answer it
    /// now.
    pub(crate) fn repeat(&mut self, packet_id: u16) -> bool {
        let held = self.held.as_mut().and_then(|held| held.get_mut(&packet_id));
        match held {
            Some(Held::Owed(repeated)) => {
                *repeated = repeated.saturating_add(1);
                false
            }
            Some(Held::Answered) => true,
            None => false,
        }
    }

    /// Marks `first..=last` as finished. Tokens that are none of its own are
    /// ignored.
    #[inline]
    pub(crate) fn finish(&mut self, first: Token, last: Token, verdict: Verdict) {
        let place = |token: u64| usize::try_from(token.saturating_sub(self.base)).ok();
        let (Some(from), Some(to)) = (place(first.0), place(last.0.saturating_add(1))) else {
            return;
        };
        let to = to.min(self.waiting.len());
        if from < to {
            for waiting in self.waiting.range_mut(from..to) {
                waiting.verdict = Some(verdict);
            }
        }
    }

    /// The next publish to acknowledge.
    #[inline]
    pub(crate) fn next_finished(&mut self) -> Option<Finished> {
        let Waiting {
            packet_id,
            step,
            verdict,
        } = *self.waiting.front()?;
        let verdict = verdict?;
        self.waiting.pop_front();
        self.base += 1;
        let (by, times) = match step {
            Step::AtLeastOnce => {
                self.at_least_once -= 1;
                (PacketType::PubAck, 1)
            }
            Step::ExactlyOnce => (PacketType::PubRec, self.answered(packet_id, verdict.reason)),
        };
        Some(Finished {
            packet_id,
            verdict,
            by,
            times,
            // [MQTT-4.3.3-9]
            freed: step == Step::ExactlyOnce && verdict.reason.is_failure(),
        })
    }

    /// Notes that PUBREC leaves; says how often it is owed.
    #[inline]
    fn answered(&mut self, packet_id: u16, reason: ReasonCode) -> u32 {
        let Some(held) = &mut self.held else { return 1 };
        let before = if reason.is_failure() {
            held.remove(&packet_id)
        } else {
            held.insert(packet_id, Held::Answered)
        };
        match before {
            Some(Held::Owed(repeated)) => 1 + u32::from(repeated),
            Some(Held::Answered) | None => 1,
        }
    }

    /// Lets go of an identifier.
    #[inline]
    pub(crate) fn release(&mut self, packet_id: u16) -> Release {
        let Some(held) = &mut self.held else {
            return Release::Unknown;
        };
        match held.get(&packet_id) {
            None => Release::Unknown,
            Some(Held::Owed(_)) => Release::Early,
            Some(Held::Answered) => {
                held.remove(&packet_id);
                Release::Freed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(inbound: &mut Inbound) -> Vec<(u16, ReasonCode, PacketType)> {
        std::iter::from_fn(|| inbound.next_finished())
            .map(|finished| (finished.packet_id, finished.verdict.reason, finished.by))
            .collect()
    }

    #[test]
    fn acknowledgements_leave_in_the_order_of_the_publishes_mqtt_4_6_0_2_mqtt_4_6_0_3() {
        let mut inbound = Inbound::new();
        let first = inbound.enter(7);
        let second = inbound.enter_exactly_once(8);
        let third = inbound.enter(9);
        inbound.finish(
            second,
            third,
            Verdict::of(ReasonCode::NO_MATCHING_SUBSCRIBERS),
        );
        assert_eq!(inbound.next_finished(), None);
        inbound.finish(first, first, Verdict::of(ReasonCode::SUCCESS));
        let nobody = ReasonCode::NO_MATCHING_SUBSCRIBERS;
        assert_eq!(
            order(&mut inbound),
            [
                (7, ReasonCode::SUCCESS, PacketType::PubAck),
                (8, nobody, PacketType::PubRec),
                (9, nobody, PacketType::PubAck),
            ]
        );
        assert_eq!(inbound.enter(7), Token(4), "tokens go on without a gap");
    }

    #[test]
    fn foreign_tokens_change_nothing() {
        let mut inbound = Inbound::new();
        inbound.enter(1);
        inbound.finish(Token(5), Token(9), Verdict::of(ReasonCode::SUCCESS));
        inbound.finish(Token(0), Token(0), Verdict::of(ReasonCode::SUCCESS));
        inbound.finish(
            Token(u64::MAX),
            Token(u64::MAX),
            Verdict::of(ReasonCode::SUCCESS),
        );
        assert_eq!(inbound.next_finished(), None);
    }

    #[test]
    fn an_identifier_is_held_from_publish_to_pubrel_mqtt_4_3_3_10() {
        let mut inbound = Inbound::new();
        assert_eq!(inbound.release(5), Release::Unknown);
        let token = inbound.enter_exactly_once(5);
        assert!(inbound.holds(5) && !inbound.holds(6));
        assert_eq!(inbound.release(5), Release::Early);
        inbound.finish(token, token, Verdict::of(ReasonCode::SUCCESS));
        assert_eq!(order(&mut inbound).len(), 1);
        assert!(inbound.repeat(5), "answered, so it is answered again");
        assert_eq!(inbound.len(), 1);
        assert_eq!(inbound.release(5), Release::Freed);
        assert_eq!(inbound.release(5), Release::Unknown);
        assert_eq!(inbound.len(), 0);
    }

    #[test]
    fn a_refusal_frees_the_identifier_and_answers_repetitions_too_mqtt_4_3_3_9() {
        let mut inbound = Inbound::new();
        let token = inbound.enter_exactly_once(5);
        assert!(!inbound.repeat(5), "not before the first one");
        inbound.finish(token, token, Verdict::of(ReasonCode::QUOTA_EXCEEDED));
        assert_eq!(
            inbound.next_finished(),
            Some(Finished {
                packet_id: 5,
                verdict: Verdict::of(ReasonCode::QUOTA_EXCEEDED),
                by: PacketType::PubRec,
                times: 2,
                freed: true,
            })
        );
        assert!(!inbound.holds(5));
    }
}
