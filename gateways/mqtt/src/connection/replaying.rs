//! `$stream/<name>`: a stream of the vhost that keeps its messages, read again from an offset or a time.
//!
//! SUBSCRIBE says from where by user properties: `offset` (`first`, `last`, `next` or a number) or `since` (a time of
//! RFC 3339, or milliseconds since 1970), and with `filter` which messages. Each message tells by user properties
//! where it was (`x-stream`, `x-stream-offset`, `x-stream-time`), so that the client can go on behind it. The place
//! is not kept: such a subscription ends with its connection, also where the session does not.
//!
//! At most QoS 1 is granted, as to groups: an exchange of QoS 2 that outlives its connection belongs to the session's
//! own messages.
//!
//! Owns: what is asked of the broker for it, the answers of a SUBSCRIBE with such filters among others.
//! Never: how a message is written ([`super::delivering`]).

use std::sync::Arc;

use anabranch_core::date;
use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{
    Command, Consume, Delivery, Outcome, Outputs, Replay, Reply, SeekTo, SessionFilter, ValueFilter,
};
use anabranch_core::id::{ConsumerTag, Now, Offset, Token, UnixMs};
use anabranch_core::message::Quality;
use bytes::{Bytes, BytesMut};

use super::leaving::quality_of;
use super::subscribing::{Wanted, granted};
use super::{Ask, Fault, MqttConnection, Properties, PropertyId, ReasonCode};
use crate::address::to_filter;
use crate::codec::{SubscribeFilter, Value, put_pair};
use crate::reason;

/// In front of a stream's name.
const PREFIX: &str = "$stream/";
/// The first tag of a consumer of a stream; groups have those below.
const TAGS_FROM: ConsumerTag = ConsumerTag(1 << 31);
/// Streams that one connection may read at once.
const REPLAYS_MAX: usize = 64;
/// How many messages may be on their way that the client does not acknowledge.
const UNACKNOWLEDGED_CREDIT: u32 = 256;
/// Values to choose messages by.
const FILTER_VALUES_MAX: usize = 64;

/// The name of the stream that a filter is about.
pub(super) fn stream_name(filter: &str) -> Option<&str> {
    filter.strip_prefix(PREFIX)
}

/// Whether a delivery comes from a stream that is read again.
pub(super) fn is_replayed(consumer: ConsumerTag) -> bool {
    consumer >= TAGS_FROM
}

/// The streams that a connection reads.
#[derive(Debug, Default)]
pub(super) struct Replays {
    open: Vec<Replayed>,
    gatherings: Vec<Gathering>,
    last_tag: u32,
    last_gathering: u64,
}

impl Replays {
    /// Whether none was ever asked for.
    pub(super) const fn is_empty(&self) -> bool {
        self.last_gathering == 0
    }
}

/// One of them.
#[derive(Debug)]
struct Replayed {
    consumer: ConsumerTag,
    stream: Arc<str>,
    /// As granted.
    quality: Quality,
    identifier: u32,
}

/// A SUBSCRIBE that was asked in several parts.
#[derive(Debug)]
struct Gathering {
    number: u64,
    wanted: Wanted,
    /// Parts not answered.
    left: usize,
    why: Option<Refusal>,
}

/// A part of a SUBSCRIBE.
#[derive(Debug)]
pub(super) struct Part {
    gathering: u64,
    of: PartOf,
}

#[derive(Debug)]
enum PartOf {
    /// The session's own filters, which stand at these places.
    Session(Vec<usize>),
    /// A stream, whose filter stands at this place.
    Stream {
        place: usize,
        consumer: ConsumerTag,
        quality: Quality,
    },
}

/// From where and what is read: by the user properties of a SUBSCRIBE.
#[derive(Clone, Debug, PartialEq)]
struct Terms {
    from: SeekTo,
    only: Option<ValueFilter>,
}

fn bad(text: String) -> Refusal {
    Refusal::new(ErrorKind::BadRequest, text)
}

impl Terms {
    fn read(properties: &Properties) -> Result<Terms, Refusal> {
        let (mut from, mut values, mut unfiltered) = (None, Vec::new(), false);
        for property in properties.iter() {
            let Value::Pair(name, value) = property.value else {
                continue;
            };
            let place = match name {
                "offset" => offset(value),
                "since" => since(value),
                "filter" => {
                    values.push(Bytes::copy_from_slice(value.as_bytes()));
                    continue;
                }
                "match-unfiltered" => {
                    unfiltered = match value {
                        "true" => true,
                        "false" => false,
                        _ => {
                            let why =
                                format!("match-unfiltered must be true or false, not '{value}'");
                            return Err(bad(why));
                        }
                    };
                    continue;
                }
                _ => continue,
            };
            if from.replace(place?).is_some() {
                return Err(bad("one of offset and since says where to begin".to_owned()));
            }
        }
        if values.len() > FILTER_VALUES_MAX {
            return Err(bad(format!("more than {FILTER_VALUES_MAX} filter values")));
        }
        Ok(Terms {
            from: from.unwrap_or(SeekTo::End),
            only: (!values.is_empty()).then_some(ValueFilter { values, unfiltered }),
        })
    }
}

fn offset(value: &str) -> Result<SeekTo, Refusal> {
    match value {
        "first" => Ok(SeekTo::Start),
        "last" => Ok(SeekTo::Last),
        "next" => Ok(SeekTo::End),
        number => match number.parse() {
            Ok(offset) => Ok(SeekTo::Offset(Offset(offset))),
            Err(_) => Err(bad(format!(
                "offset must be first, last, next or a number, not '{value}'"
            ))),
        },
    }
}

fn since(value: &str) -> Result<SeekTo, Refusal> {
    let time = value.parse().ok().map(UnixMs);
    let time = time.or_else(|| date::unix_ms(value));
    time.map(SeekTo::Time).ok_or_else(|| {
        bad(format!(
            "since must be milliseconds since 1970 or look like 2026-01-31T08:00:00Z, not '{value}'"
        ))
    })
}

impl MqttConnection {
    /// Asks for a SUBSCRIBE of which some filters, at the places `streams`, name streams. The gaps of `wanted` are
    /// theirs and those of `filters`, in order.
    pub(super) fn subscribe_with_streams(
        &mut self,
        mut wanted: Wanted,
        filters: Vec<SessionFilter>,
        streams: &[(usize, &SubscribeFilter)],
        properties: &Properties,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        let is_stream = |place: &usize| streams.iter().any(|(at, _)| at == place);
        let places: Vec<usize> = wanted.gaps().filter(|place| !is_stream(place)).collect();
        let identifier = properties.int(PropertyId::SUBSCRIPTION_ID).unwrap_or(0);
        let terms = Terms::read(properties);
        let number = {
            let replays = &mut self.few.get_or_insert_default().replays;
            replays.last_gathering += 1;
            replays.last_gathering
        };
        let mut parts = Vec::new();
        if !places.is_empty() {
            let of = PartOf::Session(places);
            let token = self.ask(Ask::Part(Part {
                gathering: number,
                of,
            }));
            parts.push(Command::Subscribe { token, filters });
        }
        let mut why = None;
        for (place, entry) in streams {
            let asked = terms.clone().and_then(|terms| self.replay_of(entry, terms));
            let (quality, consume) = match asked {
                Ok(asked) => asked,
                Err(refusal) => {
                    self.check_tellable(&refusal)?;
                    wanted.answer(*place, refused_here(&refusal));
                    why.get_or_insert(refusal);
                    continue;
                }
            };
            // Another subscription to the same stream takes the place of the one before [MQTT-3.8.4-3].
            self.end_replay(&consume.stream, out);
            let consumer = consume.consumer;
            self.few
                .get_or_insert_default()
                .replays
                .open
                .push(Replayed {
                    consumer,
                    stream: consume.stream.clone(),
                    quality,
                    identifier,
                });
            let of = PartOf::Stream {
                place: *place,
                consumer,
                quality,
            };
            let token = self.ask(Ask::Part(Part {
                gathering: number,
                of,
            }));
            parts.push(Command::Consume {
                token,
                consume: Box::new(consume),
            });
        }
        if parts.is_empty() {
            self.suback(wanted, std::iter::empty(), why, out);
            return Ok(());
        }
        let left = parts.len();
        out.commands.append(&mut parts);
        let replays = &mut self.few.get_or_insert_default().replays;
        replays.gatherings.push(Gathering {
            number,
            wanted,
            left,
            why,
        });
        Ok(())
    }

    /// What is granted and asked for one stream.
    fn replay_of(
        &mut self,
        entry: &SubscribeFilter,
        terms: Terms,
    ) -> Result<(Quality, Consume), Refusal> {
        let name = stream_name(&entry.filter).unwrap_or_default();
        let filter = to_filter(&entry.filter);
        let (Ok(filter), false) = (filter, name.is_empty() || name.contains(['+', '#'])) else {
            let text = format!("'{}' names no single stream", entry.filter);
            return Err(bad(text));
        };
        let receive_max = u32::from(self.client.receive_max);
        let replays = &mut self.few.get_or_insert_default().replays;
        if replays.open.len() >= REPLAYS_MAX {
            let text = format!("a connection reads at most {REPLAYS_MAX} streams at once");
            return Err(Refusal::new(ErrorKind::QuotaExceeded, text));
        }
        let consumer = ConsumerTag(TAGS_FROM.0 + (replays.last_tag & !TAGS_FROM.0));
        replays.last_tag = replays.last_tag.wrapping_add(1);
        let quality = quality_of(entry.qos).min(Quality::AtLeastOnce);
        let consume = Consume {
            consumer,
            stream: Arc::from(name),
            private: false,
            exclusive: false,
            presettled: false,
            credit: match quality {
                Quality::AtMostOnce => UNACKNOWLEDGED_CREDIT,
                Quality::AtLeastOnce | Quality::ExactlyOnce => receive_max,
            },
            priority: 0,
            no_local: entry.no_local,
            replay: Some(Box::new(Replay {
                from: terms.from,
                only: terms.only,
                subscribes: Some(filter),
            })),
        };
        Ok((quality, consume))
    }

    /// A part of a SUBSCRIBE was answered.
    pub(super) fn on_part(
        &mut self,
        part: Part,
        result: Result<Reply, Refusal>,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        let answers: Vec<(usize, Result<Quality, Refusal>)> = match (part.of, result) {
            (PartOf::Session(places), Ok(Reply::Subscribed(granted))) => {
                places.into_iter().zip(granted).collect()
            }
            (PartOf::Session(places), other) => {
                let why = other.err().unwrap_or_else(|| bad("no answer".to_owned()));
                let refuse = |place| (place, Err(why.clone()));
                places.into_iter().map(refuse).collect()
            }
            (PartOf::Stream { place, quality, .. }, Ok(_)) => vec![(place, Ok(quality))],
            (
                PartOf::Stream {
                    place, consumer, ..
                },
                Err(why),
            ) => {
                if let Some(few) = &mut self.few {
                    few.replays.open.retain(|open| open.consumer != consumer);
                }
                vec![(place, Err(why))]
            }
        };
        for (_, answer) in &answers {
            if let Err(refusal) = answer {
                self.check_tellable(refusal)?;
            }
        }
        let Some(replays) = self.few.as_deref_mut().map(|few| &mut few.replays) else {
            return Ok(());
        };
        let number = part.gathering;
        let at = replays
            .gatherings
            .iter()
            .position(|one| one.number == number);
        let Some(at) = at else {
            return Ok(());
        };
        let gathering = &mut replays.gatherings[at];
        for (place, answer) in answers {
            match answer {
                // [MQTT-3.9.3-2]
                Ok(quality) => gathering.wanted.answer(place, granted(quality)),
                Err(refusal) => {
                    let code = reason::row(refusal.kind).suback;
                    gathering.wanted.answer(place, code);
                    gathering.why.get_or_insert(refusal);
                }
            }
        }
        gathering.left -= 1;
        if gathering.left == 0 {
            let Gathering { wanted, why, .. } = replays.gatherings.remove(at);
            self.suback(wanted, std::iter::empty(), why, out);
        }
        Ok(())
    }

    /// Stops reading a stream; says whether it was read. What is on its way is not sent any more.
    pub(super) fn end_replay(&mut self, stream: &str, out: &mut Outputs) -> bool {
        let Some(replays) = self.few.as_deref_mut().map(|few| &mut few.replays) else {
            return false;
        };
        let at = replays.open.iter().position(|open| &*open.stream == stream);
        let Some(at) = at else {
            return false;
        };
        let consumer = replays.open.remove(at).consumer;
        out.commands.push(Command::Cancel {
            token: Token::NONE,
            consumer,
        });
        true
    }

    /// A message of a stream that is read again.
    #[cold]
    pub(super) fn on_replayed(&mut self, now: Now, mut delivery: Delivery, out: &mut Outputs) {
        let consumer = delivery.consumer;
        let Some(open) = self.replayed(consumer) else {
            // On its way when the client unsubscribed.
            let offset = delivery.offset;
            let commands = &mut out.commands;
            return self
                .outbound
                .settle(consumer, offset, Outcome::Released, commands);
        };
        delivery.quality = delivery.quality.min(open.quality);
        delivery.identifier = open.identifier;
        if delivery.quality != Quality::AtMostOnce {
            return self.deliver_or_wait(now, delivery, out);
        }
        // Nobody acknowledges it: it is done with when it is written.
        self.deliver(now, &delivery, out);
        let (offset, commands) = (delivery.offset, &mut out.commands);
        self.outbound
            .settle(consumer, offset, Outcome::Accepted, commands);
    }

    fn replayed(&self, consumer: ConsumerTag) -> Option<&Replayed> {
        let mut open = self.few.as_ref()?.replays.open.iter();
        open.find(|open| open.consumer == consumer)
    }

    /// Appends where in its stream a message was.
    pub(super) fn write_place(&self, delivery: &Delivery, block: &mut BytesMut) {
        if let Some(open) = self.replayed(delivery.consumer) {
            put_pair(block, "x-stream", &open.stream);
        }
        put_pair(block, "x-stream-offset", &delivery.offset.to_string());
        let time = delivery.message.published.0.to_string();
        put_pair(block, "x-stream-time", &time);
    }
}

/// The code for what this side refuses by itself.
fn refused_here(refusal: &Refusal) -> ReasonCode {
    match refusal.kind {
        ErrorKind::BadRequest => ReasonCode::IMPLEMENTATION_SPECIFIC,
        kind => reason::row(kind).suback,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::PropertiesBuilder;

    fn read(pairs: &[(&str, &str)]) -> Result<Terms, Refusal> {
        let all = pairs
            .iter()
            .fold(PropertiesBuilder::new(), |all, (name, value)| {
                all.pair(name, value)
            });
        Terms::read(&all.build())
    }

    #[test]
    fn every_place_has_a_form_and_next_is_the_default() {
        for (pairs, from) in [
            (&[][..], SeekTo::End),
            (&[("offset", "first")], SeekTo::Start),
            (&[("offset", "last")], SeekTo::Last),
            (&[("offset", "next"), ("other", "x")], SeekTo::End),
            (&[("offset", "17")], SeekTo::Offset(Offset(17))),
            (
                &[("since", "1700000000000")],
                SeekTo::Time(UnixMs(1_700_000_000_000)),
            ),
            (
                &[("since", "1970-01-01T00:00:01Z")],
                SeekTo::Time(UnixMs(1000)),
            ),
        ] {
            assert_eq!(read(pairs), Ok(Terms { from, only: None }), "{pairs:?}");
        }
        for pairs in [
            &[("offset", "-1")][..],
            &[("offset", "")],
            &[("since", "yesterday")],
            &[("offset", "1"), ("since", "1")],
            &[("match-unfiltered", "yes")],
        ] {
            assert!(read(pairs).is_err(), "{pairs:?}");
        }
    }

    #[test]
    fn values_to_choose_by_may_be_several() {
        let read = read(&[
            ("filter", "a"),
            ("filter", "b"),
            ("match-unfiltered", "true"),
        ]);
        let only = read.unwrap().only.unwrap();
        assert_eq!((only.values.len(), only.unfiltered), (2, true));
    }
}
