//! SUBSCRIBE and UNSUBSCRIBE: one reason per filter, in the filters' order [MQTT-3.9.3-1].
//!
//! What this side refuses by itself (a malformed filter) never reaches the broker; the rest is
//! asked in one command, and the answer fills the gaps. `$share/<group>/<filter>` is a filter that
//! the session has as a member of a group.

use std::sync::Arc;

use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{
    Command, FilterName, FilterSpec, Outputs, Reply, SendRetained, SessionFilter,
};
use anabranch_core::message::Quality;

use super::leaving::quality_of;
use super::replaying::stream_name;
use super::{
    ASKS_MAX, Ask, Fault, MqttConnection, Packet, Properties, PropertiesBuilder, PropertyId,
    ReasonCode, Version,
};
use crate::address::to_filter;
use crate::codec::topic::{Filter, check_filter};
use crate::codec::{
    PacketType, QoS, RetainHandling, SubAck, Subscribe, SubscribeFilter, UnsubAck, Unsubscribe,
};
use crate::reason;

/// An acknowledgement in the making.
#[derive(Debug)]
pub(super) struct Wanted {
    packet_id: u16,
    /// Per filter; `None` where the broker was asked.
    reasons: Vec<Option<ReasonCode>>,
    /// What a 3.1 client asked for, per filter: that version knows no refusal, and asks servers to
    /// grant what they do not allow (its section 3.8).
    granted_anyway: Vec<QoS>,
}

impl Wanted {
    /// The places of filters that are not answered.
    pub(super) fn gaps(&self) -> impl Iterator<Item = usize> {
        let all = self.reasons.iter().enumerate();
        all.filter(|(_, reason)| reason.is_none())
            .map(|(place, _)| place)
    }

    /// The answer of one filter.
    pub(super) fn answer(&mut self, place: usize, reason: ReasonCode) {
        if let Some(gap) = self.reasons.get_mut(place) {
            *gap = Some(reason);
        }
    }

    /// The finished list, with the broker's answers in the gaps.
    fn fill(self, mut answers: impl Iterator<Item = ReasonCode>) -> Vec<ReasonCode> {
        let gap = ReasonCode::UNSPECIFIED_ERROR;
        let mut anyway = self.granted_anyway.into_iter();
        let fill = |reason: Option<ReasonCode>| {
            let reason = reason.unwrap_or_else(|| answers.next().unwrap_or(gap));
            match anyway.next() {
                Some(asked) if reason.is_failure() => granted(quality_of(asked)),
                Some(_) | None => reason,
            }
        };
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
        let identifier = subscribe
            .properties
            .int(PropertyId::SUBSCRIPTION_ID)
            .unwrap_or(0);
        let mut filters = Vec::with_capacity(subscribe.filters.len());
        let mut reasons = Vec::with_capacity(subscribe.filters.len());
        let mut streams = Vec::new();
        for entry in &subscribe.filters {
            if stream_name(&entry.filter).is_some() {
                streams.push((reasons.len(), entry));
                reasons.push(None);
                continue;
            }
            let filter = session_filter(entry, identifier);
            reasons.push(filter.as_ref().err().copied());
            filters.extend(filter);
        }
        let old = self.client.version == Version::V31;
        if old && filters.len() + streams.len() < reasons.len() {
            return Err(Fault::peer(
                ReasonCode::TOPIC_FILTER_INVALID,
                "a malformed topic filter, which 3.1 cannot be told of",
            ));
        }
        let asked = subscribe.filters.iter().map(|entry| entry.qos);
        let wanted = Wanted {
            packet_id: subscribe.packet_id,
            reasons,
            granted_anyway: asked.filter(|_| old).collect(),
        };
        if !streams.is_empty() {
            let properties = &subscribe.properties;
            return self.subscribe_with_streams(wanted, filters, &streams, properties, out);
        }
        if filters.is_empty() {
            self.suback(wanted, std::iter::empty(), None, out);
            return Ok(());
        }
        let token = self.ask(Ask::Subscribe(wanted));
        out.commands.push(Command::Subscribe { token, filters });
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
                let refusals = || results.iter().filter_map(|result| result.as_ref().err());
                refusals().try_for_each(|refusal| self.check_tellable(refusal))?;
                let why = refusals().next().cloned();
                let reasons = results.iter().map(|result| match result {
                    // [MQTT-3.9.3-2]
                    Ok(quality) => granted(*quality),
                    Err(refusal) => reason::row(refusal.kind).suback,
                });
                self.suback(wanted, reasons, why, out);
            }
            Ok(_) => self.suback(wanted, std::iter::empty(), None, out),
            Err(refusal) => {
                self.check_tellable(&refusal)?;
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
            if let Some(stream) = stream_name(text) {
                reasons.push(Some(existed(self.end_replay(stream, out))));
                continue;
            }
            let filter = match check_filter(text) {
                Ok(named) => filter_name(named),
                Err(_) => Err(ReasonCode::TOPIC_FILTER_INVALID),
            };
            reasons.push(filter.as_ref().err().copied());
            filters.extend(filter);
        }
        let wanted = Wanted {
            packet_id: unsubscribe.packet_id,
            reasons,
            granted_anyway: Vec::new(),
        };
        if filters.is_empty() {
            self.unsuback(wanted, std::iter::empty(), None, out);
            return Ok(());
        }
        // What the client settled before it leaves a group was the group's.
        self.outbound.flush(&mut out.commands);
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
            Ok(Reply::Unsubscribed(results)) => {
                // [MQTT-3.11.3-2]
                let reasons = results.iter().map(|one| existed(*one));
                self.unsuback(wanted, reasons, None, out);
            }
            Ok(_) => self.unsuback(wanted, std::iter::empty(), None, out),
            // Older versions have no code for a failure here, so it must not hear of success.
            Err(refusal) if !self.is_v5() => {
                return Err(Fault::refused(
                    reason::row(refusal.kind).disconnect,
                    refusal.text,
                ));
            }
            Err(refusal) => {
                let code = match reason::row(refusal.kind).suback {
                    code if code.allowed_in(PacketType::UnsubAck) => code,
                    _ => ReasonCode::UNSPECIFIED_ERROR,
                };
                self.unsuback(wanted, std::iter::repeat(code), Some(refusal), out);
            }
        }
        Ok(())
    }

    /// A 3.1 client hears of success where it is not allowed something, and nothing else that is
    /// not so.
    pub(super) fn check_tellable(&self, refusal: &Refusal) -> Result<(), Fault> {
        if self.client.version != Version::V31 || refusal.kind == ErrorKind::AccessRefused {
            return Ok(());
        }
        Err(Fault::refused(
            reason::row(refusal.kind).disconnect,
            refusal.text.clone(),
        ))
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

    pub(super) fn suback(
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

/// The code that grants a quality.
pub(super) const fn granted(quality: Quality) -> ReasonCode {
    match quality {
        Quality::AtMostOnce => ReasonCode::SUCCESS,
        Quality::AtLeastOnce => ReasonCode::GRANTED_QOS_1,
        Quality::ExactlyOnce => ReasonCode::GRANTED_QOS_2,
    }
}

/// The code for a subscription that is no more, if it was one.
const fn existed(existed: bool) -> ReasonCode {
    match existed {
        true => ReasonCode::SUCCESS,
        false => ReasonCode::NO_SUBSCRIPTION_EXISTED,
    }
}

/// What the broker calls a filter.
fn filter_name(named: Filter<'_>) -> Result<FilterName, ReasonCode> {
    let (group, text) = match named {
        Filter::Plain(text) => (None, text),
        Filter::Shared { group, filter } => (Some(Arc::from(group)), filter),
    };
    let filter = to_filter(text).map_err(|_| ReasonCode::TOPIC_FILTER_INVALID)?;
    Ok(FilterName { group, filter })
}

/// What the broker is asked for one filter, or why it is not asked.
fn session_filter(entry: &SubscribeFilter, identifier: u32) -> Result<SessionFilter, ReasonCode> {
    let named = check_filter(&entry.filter).map_err(|_| ReasonCode::TOPIC_FILTER_INVALID)?;
    if let Filter::Shared { filter, .. } = named
        && stream_name(filter).is_some()
    {
        // Each reader of a stream gets all of it.
        return Err(ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED);
    }
    let FilterName { group, filter } = filter_name(named)?;
    let quality = quality_of(entry.qos);
    let (quality, retained) = match group {
        // A message that goes to one of many is acknowledged once (section 4.8.2 leaves it to the
        // server), and no retained one is sent.
        Some(_) => (quality.min(Quality::AtLeastOnce), SendRetained::Never),
        None => (quality, send_retained(entry.retain_handling)),
    };
    Ok(SessionFilter {
        spec: FilterSpec {
            filter,
            quality,
            no_local: entry.no_local,
            retain_as_published: entry.retain_as_published,
            identifier,
        },
        group,
        retained,
    })
}

/// [MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11]
const fn send_retained(handling: RetainHandling) -> SendRetained {
    match handling {
        RetainHandling::Send => SendRetained::Always,
        RetainHandling::SendIfNew => SendRetained::IfNew,
        RetainHandling::DoNotSend => SendRetained::Never,
    }
}
