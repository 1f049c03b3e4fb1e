//! QoS 2 behind its PUBLISH, both ways.
//!
//! From the client: PUBREL lets go of an identifier, PUBCOMP says so. To the client: PUBREC, PUBREL,
//! PUBCOMP. Where the session outlives its connection the broker writes each of these steps down
//! before it is acknowledged, so that neither side starts again after a break [MQTT-4.3.3-8].
//!
//! The questions need no list: their tokens say which identifier they are about.

use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{Command, Delivery, OnceKey, Outcome, Outputs, Reply};
use anabranch_core::id::{Now, Token};

use super::publishing::UNFINISHED_MAX_V3;
use super::{Fault, MqttConnection, ReasonCode};
use crate::codec::{Ack, PacketType};
use crate::inbound::Release;
use crate::outbound::{Step, Unsettled};
use crate::reason;

/// Tokens of these questions lie below [`super::ASK_BASE`] and above those of publishes: a kind, a
/// count that keeps them apart, a packet identifier.
const KIND_SHIFT: u32 = 56;
const COUNT_BITS: u64 = (1 << (KIND_SHIFT - 16)) - 1;

/// What a token of this module asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// To forget a key that this connection held.
    Forget,
    /// To forget one that it did not hold.
    ForgetUnknown,
    /// To note that the client has a delivery.
    Receive,
}

impl Asked {
    const fn number(self) -> u64 {
        match self {
            Asked::Forget => 1,
            Asked::ForgetUnknown => 2,
            Asked::Receive => 3,
        }
    }

    const fn token(self, count: u64, packet_id: u16) -> Token {
        Token(self.number() << KIND_SHIFT | (count & COUNT_BITS) << 16 | packet_id as u64)
    }

    /// What was asked by a token, and about which identifier.
    pub(super) const fn read(token: Token) -> Option<(Asked, u16)> {
        let asked = match token.0 >> KIND_SHIFT {
            1 => Asked::Forget,
            2 => Asked::ForgetUnknown,
            3 => Asked::Receive,
            _ => return None,
        };
        Some((asked, token.0 as u16))
    }
}

impl MqttConnection {
    fn token_of(&mut self, asked: Asked, packet_id: u16) -> Token {
        self.last_ask += 1;
        asked.token(self.last_ask, packet_id)
    }

    /// The client lets go of what it published.
    pub(super) fn on_pubrel(&mut self, ack: &Ack, out: &mut Outputs) -> Result<(), Fault> {
        let packet_id = ack.packet_id;
        let released = self.inbound.release(packet_id);
        if released == Release::Early {
            return Err(Fault::peer(
                ReasonCode::PROTOCOL_ERROR,
                "PUBREL for a message that was not acknowledged by PUBREC",
            ));
        }
        if !self.is_durable() {
            let reason = match released {
                Release::Freed | Release::Early => ReasonCode::SUCCESS,
                Release::Unknown => ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
            };
            self.send_ack(PacketType::PubComp, &Ack::new(packet_id, reason), out);
            return Ok(());
        }
        // An earlier connection of the session may have held it.
        let (asked, count) = match released {
            Release::Freed => (Asked::Forget, &mut self.releasing),
            Release::Unknown | Release::Early => {
                (Asked::ForgetUnknown, &mut self.releasing_unknown)
            }
        };
        if usize::from(*count) >= UNFINISHED_MAX_V3 {
            return Err(Fault::refused(
                ReasonCode::QUOTA_EXCEEDED,
                "too many PUBRELs wait for their PUBCOMP",
            ));
        }
        *count += 1;
        let token = self.token_of(asked, packet_id);
        out.commands.push(Command::Forget {
            token,
            once: OnceKey(packet_id),
        });
        Ok(())
    }

    /// The client has what it was sent, or does not want it.
    pub(super) fn on_pubrec(
        &mut self,
        now: Now,
        ack: &Ack,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        let packet_id = ack.packet_id;
        match self.outbound.step(packet_id) {
            None => {
                // Section 4.3.3: it has nothing to wait for.
                let reason = ReasonCode::PACKET_IDENTIFIER_NOT_FOUND;
                self.send_ack(PacketType::PubRel, &Ack::new(packet_id, reason), out);
                Ok(())
            }
            Some(Step::Ack) => Err(Fault::peer(
                ReasonCode::PROTOCOL_ERROR,
                "PUBREC for a QoS 1 message",
            )),
            Some(Step::Rec) if ack.reason.is_failure() => {
                // [MQTT-4.3.3-4]: nothing follows, and it is not sent again.
                self.finish_delivery(now, packet_id, Outcome::Rejected, out);
                Ok(())
            }
            Some(Step::Rec) => {
                self.note_received(packet_id, out);
                Ok(())
            }
            // PUBREL is on its way.
            Some(Step::Noted) => Ok(()),
            Some(Step::Comp) => {
                self.send_pubrel(packet_id, out);
                Ok(())
            }
        }
    }

    fn note_received(&mut self, packet_id: u16, out: &mut Outputs) {
        let step = if self.is_durable() {
            Step::Noted
        } else {
            Step::Comp
        };
        let Some(Unsettled {
            offset, consumer, ..
        }) = self.outbound.advance(packet_id, step)
        else {
            return;
        };
        if step == Step::Comp {
            self.send_pubrel(packet_id, out);
            return;
        }
        let token = self.token_of(Asked::Receive, packet_id);
        out.commands.push(Command::Receive {
            token,
            consumer,
            offset,
        });
    }

    fn send_pubrel(&self, packet_id: u16, out: &mut Outputs) {
        let ack = Ack::new(packet_id, ReasonCode::SUCCESS);
        self.send_ack(PacketType::PubRel, &ack, out);
    }

    /// The client is done with what it was sent.
    pub(super) fn on_pubcomp(
        &mut self,
        now: Now,
        ack: &Ack,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        match self.outbound.step(ack.packet_id) {
            None => Ok(()),
            Some(Step::Comp) => {
                self.finish_delivery(now, ack.packet_id, Outcome::Accepted, out);
                Ok(())
            }
            Some(Step::Ack | Step::Rec | Step::Noted) => Err(Fault::peer(
                ReasonCode::PROTOCOL_ERROR,
                "PUBCOMP for a message that was not released by PUBREL",
            )),
        }
    }

    /// A delivery that the client had before this connection: only its release is owed, with the
    /// identifier it had [MQTT-4.4.0-1].
    pub(super) fn resume_release(&mut self, delivery: &Delivery, out: &mut Outputs) {
        let packet_id = self.outbound.assign(Unsettled {
            offset: delivery.offset,
            consumer: delivery.consumer,
            step: Step::Comp,
        });
        if let Some(packet_id) = packet_id {
            self.send_pubrel(packet_id, out);
        }
    }

    /// The broker has written a step down, so the next one may leave.
    pub(super) fn on_noted(
        &mut self,
        asked: Asked,
        packet_id: u16,
        result: Result<Reply, Refusal>,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        match asked {
            Asked::Forget => self.releasing = self.releasing.saturating_sub(1),
            Asked::ForgetUnknown => {
                self.releasing_unknown = self.releasing_unknown.saturating_sub(1);
            }
            Asked::Receive => {}
        }
        let reason = match result {
            Ok(_) => ReasonCode::SUCCESS,
            Err(refusal) if refusal.kind == ErrorKind::NotFound => {
                ReasonCode::PACKET_IDENTIFIER_NOT_FOUND
            }
            // Unacknowledged, so that the client asks again by its next connection.
            Err(refusal) => {
                return Err(Fault::refused(
                    reason::row(refusal.kind).disconnect,
                    refusal.text,
                ));
            }
        };
        match asked {
            Asked::Forget | Asked::ForgetUnknown => {
                self.send_ack(PacketType::PubComp, &Ack::new(packet_id, reason), out);
            }
            Asked::Receive => {
                if self.outbound.step(packet_id) == Some(Step::Noted) {
                    self.outbound.advance(packet_id, Step::Comp);
                    self.send_pubrel(packet_id, out);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_what_was_asked_about_which_identifier() {
        for asked in [Asked::Forget, Asked::ForgetUnknown, Asked::Receive] {
            for packet_id in [1, u16::MAX] {
                let token = asked.token(u64::MAX, packet_id);
                assert_eq!(Asked::read(token), Some((asked, packet_id)));
                assert!(token.0 < super::super::ASK_BASE);
            }
            assert_ne!(asked.token(1, 9), asked.token(2, 9));
        }
        assert_eq!(Asked::read(Token(1)), None);
        assert_eq!(Asked::read(Token(super::super::ASK_BASE + 1)), None);
    }
}
