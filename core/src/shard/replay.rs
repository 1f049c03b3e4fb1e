//! Handing out from a stream whose messages stay: each reader goes on from its own place.
//!
//! A reader takes credit and a place, nothing else; what it settles makes room for more and changes no state that is
//! replicated. In one round each gets a share at most, so that one that reads years of history holds up neither those
//! at the end nor other streams; a record that several are handed in one round is read once (`Bodies`).
//!
//! Owns: attaching such a reader, its deliveries, its settlements.
//! Never: how long messages stay (`retention.rs`), finding a place (`stream/kept.rs`).
//! Next: `dispatch/cursor.rs`.

use super::{Bodies, Fetched, Place, Shard};
use crate::dispatch::{Cursor, Reader, travel_units};
use crate::error::{ErrorKind, Refusal};
use crate::gateway::{Delivery, Outcome, Replay, SeekTo, ValueFilter};
use crate::id::Offset;
use crate::message::Message;
use crate::port::{Attach, ConsumerKey};
use crate::properties::{Codecs, Value};
use crate::stream::{Entry, Stream};
use std::sync::Arc;

/// The header whose value a reader may choose messages by.
pub const FILTER_HEADER: &[u8] = b"x-stream-filter-value";
/// Messages that one reader looks at in one round, and their cost in bytes: whoever else the shard serves waits as long.
const SHARE: usize = 64;
const SHARE_BYTES: u64 = 64 << 10;
/// A reader's credit counts up to here.
const CREDIT_MAX: u32 = 65_535;

/// Whether a filter takes a message. A value that is no text is taken as the text that it is written as.
fn takes(filter: &ValueFilter, codecs: &Codecs, message: &Message) -> bool {
    let value = match message.properties.is_empty() {
        true => None,
        false => {
            let headers = codecs.neutral(message).headers;
            headers.into_iter().find(|(name, _)| name == FILTER_HEADER)
        }
    };
    let is = |text: &[u8]| filter.values.iter().any(|value| value == text);
    match value.map(|(_, value)| value) {
        None | Some(Value::Void) => filter.unfiltered,
        Some(Value::Text(text) | Value::ShortText(text) | Value::Binary(text)) => is(&text),
        Some(Value::Int(number, _)) => is(number.to_string().as_bytes()),
        Some(Value::UInt(number, _)) => is(number.to_string().as_bytes()),
        Some(Value::Bool(value)) => is(value.to_string().as_bytes()),
        Some(
            Value::Float(_)
            | Value::Double(_)
            | Value::Decimal { .. }
            | Value::Timestamp(_)
            | Value::List(_)
            | Value::Table(_),
        ) => false,
    }
}

/// The place and the terms of a reader that is to be attached, if the stream is one whose messages stay.
///
/// # Errors
/// `BadRequest` when the stream and what is asked of it do not go together, `NotSupported` for a reader that does not
/// settle.
pub(super) fn cursor_for<B: Place>(
    stream: &Stream<B>,
    attach: &Attach,
) -> Result<Option<Box<Cursor>>, Refusal> {
    let name = &stream.name;
    let (from, only) = match (stream.replays(), attach.replay.as_deref()) {
        (false, None) => return Ok(None),
        (false, Some(_)) => {
            let why =
                format!("queue '{name}' is no stream: nothing is kept there to be read again");
            return Err(Refusal::new(ErrorKind::BadRequest, why));
        }
        (true, None) => (SeekTo::End, None),
        (true, Some(Replay { from, only, .. })) => (*from, only.clone()),
    };
    if attach.presettled {
        let why = format!("automatic acknowledgement is not supported by stream '{name}'");
        return Err(Refusal::new(ErrorKind::NotSupported, why));
    }
    if attach.credit == u32::MAX {
        let why = format!("consumer prefetch count is not set for stream '{name}'");
        return Err(Refusal::new(ErrorKind::BadRequest, why));
    }
    Ok(Some(Box::new(Cursor::new(stream.place_of(from), only))))
}

/// The credit of a reader that asks for so much.
pub(super) fn credit_for(reader: &Reader, credit: u32) -> u32 {
    match reader.cursor {
        Some(_) => credit.min(CREDIT_MAX),
        None => credit,
    }
}

/// The message as it is read again: how long it was worth keeping, the stream says.
fn without_end(message: Arc<Message>) -> Arc<Message> {
    match message.expires {
        None => message,
        Some(_) => Arc::new(Message {
            expires: None,
            ..(*message).clone()
        }),
    }
}

impl<B: Place> Shard<B> {
    /// Hands out what can be; says whether somebody could be handed more and had its share.
    pub(super) fn dispatch_replay(
        &mut self,
        stream: &mut Stream<B>,
        bodies: &mut dyn Bodies<B>,
    ) -> bool {
        let (first, end) = (stream.first(), stream.end());
        let mut more = false;
        let mut from = 0;
        while let Some(place) = stream.readers.next_with_room(from) {
            from = place + 1;
            more |= self.replay_to(stream, place, (first, end), bodies);
        }
        more
    }

    fn replay_to(
        &mut self,
        stream: &mut Stream<B>,
        place: usize,
        (first, end): (u64, u64),
        bodies: &mut dyn Bodies<B>,
    ) -> bool {
        let mut bytes = 0;
        for _ in 0..SHARE {
            if bytes >= SHARE_BYTES {
                break;
            }
            let Some(reader) = stream.readers.get(place).filter(|reader| reader.has_room()) else {
                return false;
            };
            let Some(offset) = reader.cursor.as_ref().map(|cursor| cursor.next(first)) else {
                return false;
            };
            if offset >= end {
                return false;
            }
            let read = match stream
                .entry(offset)
                .map(|entry| (bodies.fetch(&entry.body), entry))
            {
                Some((Fetched::Here(message), entry)) => Some((message, entry)),
                Some((Fetched::Later, _)) => {
                    self.pause(stream.id);
                    return false;
                }
                // One that cannot be read must not hold up those behind it.
                Some((Fetched::Lost, _)) | None => None,
            };
            // Nothing may lie in a row behind one that is not there.
            let behind = match &read {
                Some(_) => offset + 1,
                None => stream.next_kept(offset + 1).unwrap_or(end),
            };
            bytes += read
                .as_ref()
                .map_or(0, |(_, entry)| u64::from(entry.cost_bytes));
            let wanted = read.filter(|(message, entry)| self.gets(reader, entry, message));
            let Some(reader) = stream.readers.at(place) else {
                return false;
            };
            let Some(cursor) = reader.cursor.as_deref_mut() else {
                return false;
            };
            let Some((message, entry)) = wanted else {
                cursor.pass(behind - 1);
                continue;
            };
            cursor.hold(offset);
            reader.held += 1;
            reader.travelling += travel_units(entry.cost_bytes as usize);
            let delivery = Delivery {
                consumer: reader.key.tag,
                offset: Offset(offset),
                attempt: 1,
                quality: entry.quality,
                retain: false,
                identifier: 0,
                more_identifiers: None,
                received: false,
                message: without_end(message),
            };
            let connection = reader.key.connection;
            stream.tally.delivered += 1;
            self.outbox.deliver(connection, delivery);
        }
        true
    }

    /// Whether a reader may be handed a message and wants it.
    fn gets(&mut self, reader: &Reader, entry: &Entry<B>, message: &Message) -> bool {
        let only = reader.cursor.as_deref().and_then(Cursor::only);
        if only.is_some_and(|filter| !takes(filter, &self.codecs, message))
            || reader.is_own(message)
        {
            return false;
        }
        let may = self.may_take(reader, entry, message);
        if !may {
            self.withhold(&reader.principal, &message.address);
        }
        may
    }

    /// A reader of a stream whose messages stay has settled some: it has room for as many more.
    pub(super) fn settle_replayed(
        stream: &mut Stream<B>,
        key: ConsumerKey,
        (first, last): (Offset, Offset),
        outcome: Outcome,
    ) {
        let Some(reader) = stream.readers.find(key) else {
            return;
        };
        let Some(cursor) = reader.cursor.as_deref_mut() else {
            return;
        };
        let settled = cursor.settle(first.0, last.0);
        reader.held = reader.held.saturating_sub(settled);
        if outcome == Outcome::Accepted {
            stream.tally.settled += u64::from(settled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::OriginTag;
    use crate::properties::Properties;
    use bytes::Bytes;

    fn message(value: Option<Value>) -> Message {
        let headers = value.map(|value| (Bytes::from_static(FILTER_HEADER), value));
        let properties = Properties {
            headers: headers.into_iter().collect(),
            ..Properties::default()
        };
        Message {
            origin: OriginTag::BROKER,
            properties: properties.encode(),
            ..Message::default()
        }
    }

    #[test]
    fn a_filter_takes_its_values_exactly_and_what_has_none_when_asked() {
        let codecs = Codecs::default();
        let mut filter = ValueFilter {
            values: vec![Bytes::from_static(b"7"), Bytes::from_static(b"emea")],
            unfiltered: false,
        };
        let text = |text: &'static str| Some(Value::Text(Bytes::from_static(text.as_bytes())));
        for (value, taken) in [
            (text("emea"), true),
            (text("apac"), false),
            (text("EMEA"), false),
            (Some(Value::Int(7, 32)), true),
            (Some(Value::Int(8, 32)), false),
            (None, false),
        ] {
            assert_eq!(
                takes(&filter, &codecs, &message(value.clone())),
                taken,
                "{value:?}"
            );
        }
        filter.unfiltered = true;
        assert!(takes(&filter, &codecs, &message(None)));
        assert!(takes(&filter, &codecs, &Message::default()));
        assert!(!takes(&filter, &codecs, &message(text("apac"))));
    }
}
