//! SUBSCRIBE and UNSUBSCRIBE: one reason per filter, in the filters' order [MQTT-3.9.3-1].
//!
//! What this side refuses by itself (a malformed filter, a shared one) never reaches the broker;
//! the rest is asked in one command, and the answer fills the gaps.

use anabranch_core::error::Refusal;
use anabranch_core::gateway::{
    Command, FilterName, FilterSpec, Outputs, Reply, SendRetained, SessionFilter,
};
use anabranch_core::message::Quality;

use super::{
    ASKS_MAX, Ask, Fault, MqttConnection, Packet, Properties, PropertiesBuilder, PropertyId,
    ReasonCode,
};
use crate::address::to_filter;
use crate::codec::topic::{Filter, check_filter};
use crate::codec::{QoS, SubAck, Subscribe, SubscribeFilter, UnsubAck, Unsubscribe};
use crate::reason;

/// An acknowledgement in the making.
pub(super) struct Wanted {
    packet_id: u16,
    /// Per filter; `None` where the broker was asked.
    reasons: Vec<Option<ReasonCode>>,
}

impl Wanted {
    /// The finished list, with the broker's answers in the gaps.
    fn fill(self, mut answers: impl Iterator<Item = ReasonCode>) -> Vec<ReasonCode> {
        let gap = ReasonCode::UNSPECIFIED_ERROR;
        let fill =
            |reason: Option<ReasonCode>| reason.unwrap_or_else(|| answers.next().unwrap_or(gap));
        self.reasons.into_iter().map(fill).collect()
    }
}

impl MqttConnection {
    pub(super) fn on_subscribe(
        &mut self,
        subscribe: &Subscribe,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        self.check_asks()?;
        let with_id = subscribe
            .properties
            .int(PropertyId::SUBSCRIPTION_ID)
            .is_some();
        let mut specs = Vec::with_capacity(subscribe.filters.len());
        let mut reasons = Vec::with_capacity(subscribe.filters.len());
        for entry in &subscribe.filters {
            // CONNACK has said Subscription Identifiers Available 0.
            let spec = if with_id {
                Err(ReasonCode::SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED)
            } else {
                filter_spec(entry)
            };
            reasons.push(spec.as_ref().err().copied());
            specs.extend(spec.map(|spec| SessionFilter {
                spec,
                group: None,
                retained: SendRetained::Never,
            }));
        }
        let wanted = Wanted {
            packet_id: subscribe.packet_id,
            reasons,
        };
        if specs.is_empty() {
            self.suback(wanted, std::iter::empty(), None, out);
            return Ok(());
        }
        let token = self.ask(Ask::Subscribe(wanted));
        out.commands.push(Command::Subscribe {
            token,
            filters: specs,
        });
        Ok(())
    }

    pub(super) fn on_subscribed(
        &mut self,
        wanted: Wanted,
        result: Result<Reply, Refusal>,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        match result {
            Ok(Reply::Subscribed(results)) => {
                let why = results
                    .iter()
                    .find_map(|result| result.as_ref().err())
                    .cloned();
                let reasons = results.iter().map(|result| match result {
                    // [MQTT-3.9.3-2]; no more than QoS 1 was asked for.
                    Ok(Quality::AtMostOnce) => ReasonCode::SUCCESS,
                    Ok(Quality::AtLeastOnce | Quality::ExactlyOnce) => ReasonCode::GRANTED_QOS_1,
                    Err(refusal) => reason::row(refusal.kind).suback,
                });
                self.suback(wanted, reasons, why, out);
            }
            Ok(_) => self.suback(wanted, std::iter::empty(), None, out),
            Err(refusal) => {
                let reasons = std::iter::repeat(reason::row(refusal.kind).suback);
                self.suback(wanted, reasons, Some(refusal), out);
            }
        }
        Ok(())
    }

    pub(super) fn on_unsubscribe(
        &mut self,
        unsubscribe: &Unsubscribe,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        self.check_asks()?;
        let mut filters = Vec::with_capacity(unsubscribe.filters.len());
        let mut reasons = Vec::with_capacity(unsubscribe.filters.len());
        for text in &unsubscribe.filters {
            let filter = match check_filter(text) {
                Ok(Filter::Plain(text)) => {
                    to_filter(text).map_err(|_| ReasonCode::TOPIC_FILTER_INVALID)
                }
                // Never granted, so it does not exist.
                Ok(Filter::Shared { .. }) => Err(ReasonCode::NO_SUBSCRIPTION_EXISTED),
                Err(_) => Err(ReasonCode::TOPIC_FILTER_INVALID),
            };
            reasons.push(filter.as_ref().err().copied());
            filters.extend(filter.map(|filter| FilterName {
                group: None,
                filter,
            }));
        }
        let wanted = Wanted {
            packet_id: unsubscribe.packet_id,
            reasons,
        };
        if filters.is_empty() {
            self.unsuback(wanted, std::iter::empty(), None, out);
            return Ok(());
        }
        let token = self.ask(Ask::Unsubscribe(wanted));
        out.commands.push(Command::Unsubscribe { token, filters });
        Ok(())
    }

    pub(super) fn on_unsubscribed(
        &mut self,
        wanted: Wanted,
        result: Result<Reply, Refusal>,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        match result {
            Ok(Reply::Unsubscribed(existed)) => {
                // [MQTT-3.11.3-2]
                let reasons = existed.iter().map(|existed| match existed {
                    true => ReasonCode::SUCCESS,
                    false => ReasonCode::NO_SUBSCRIPTION_EXISTED,
                });
                self.unsuback(wanted, reasons, None, out);
            }
            Ok(_) => self.unsuback(wanted, std::iter::empty(), None, out),
            // 3.1.1 has no code for a failure here, so it must not hear of success.
            Err(refusal) if !self.is_v5() => {
                return Err(Fault::refused(
                    reason::row(refusal.kind).disconnect,
                    refusal.text,
                ));
            }
            Err(refusal) => {
                let code = match reason::row(refusal.kind).suback {
                    code if code.allowed_in(crate::codec::PacketType::UnsubAck) => code,
                    _ => ReasonCode::UNSPECIFIED_ERROR,
                };
                self.unsuback(wanted, std::iter::repeat(code), Some(refusal), out);
            }
        }
        Ok(())
    }

    fn check_asks(&self) -> Result<(), Fault> {
        if self.asks.len() < ASKS_MAX {
            return Ok(());
        }
        Err(Fault::refused(
            ReasonCode::QUOTA_EXCEEDED,
            "too many subscriptions wait for their acknowledgement",
        ))
    }

    fn suback(
        &self,
        wanted: Wanted,
        answers: impl Iterator<Item = ReasonCode>,
        why: Option<Refusal>,
        out: &mut Outputs,
    ) {
        let packet = SubAck {
            packet_id: wanted.packet_id,
            properties: self.reason_string(why),
            reasons: wanted.fill(answers),
        };
        self.send(&Packet::SubAck(packet), out);
    }

    fn unsuback(
        &self,
        wanted: Wanted,
        answers: impl Iterator<Item = ReasonCode>,
        why: Option<Refusal>,
        out: &mut Outputs,
    ) {
        let packet = UnsubAck {
            packet_id: wanted.packet_id,
            properties: self.reason_string(why),
            reasons: wanted.fill(answers),
        };
        self.send(&Packet::UnsubAck(packet), out);
    }

    /// The first refusal in words, for a client that wants them [MQTT-3.1.2-29].
    fn reason_string(&self, why: Option<Refusal>) -> Properties {
        match why {
            Some(refusal) if self.is_v5() && self.client.wants_reasons => PropertiesBuilder::new()
                .text(PropertyId::REASON_STRING, &refusal.text)
                .build(),
            _ => Properties::EMPTY,
        }
    }
}

/// What the broker is asked for one filter, or why it is not asked.
fn filter_spec(entry: &SubscribeFilter) -> Result<FilterSpec, ReasonCode> {
    let filter = match check_filter(&entry.filter) {
        Ok(Filter::Plain(text)) => to_filter(text).map_err(|_| ReasonCode::TOPIC_FILTER_INVALID)?,
        // CONNACK has said Shared Subscription Available 0.
        Ok(Filter::Shared { .. }) => return Err(ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED),
        Err(_) => return Err(ReasonCode::TOPIC_FILTER_INVALID),
    };
    let quality = match entry.qos {
        QoS::AtMostOnce => Quality::AtMostOnce,
        // [MQTT-3.2.2-10]: QoS 2 is taken and granted as 1.
        QoS::AtLeastOnce | QoS::ExactlyOnce => Quality::AtLeastOnce,
    };
    Ok(FilterSpec {
        filter,
        quality,
        no_local: entry.no_local,
        retain_as_published: entry.retain_as_published,
        identifier: 0,
    })
}
