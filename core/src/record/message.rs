//! The message of a publish record and what is asked with it, as bytes.
//!
//! Owns: the fields and bits of both; the format's text stands in `record.rs`.
//! Never: where a record begins and ends, its checksum.
//! Next: `message.rs`, `shard/checkpoint.rs` (which keeps last values in the same form).

use super::{RecordError, put_varint, take_part, take_u8, take_u64, varint};
use crate::address::Address;
use crate::death::Deaths;
use crate::gateway::OnceKey;
use crate::id::{ConnectionId, ExchangeId, StreamId, UnixMs, VhostId};
use crate::message::{Message, OriginTag, Quality};
use crate::port::{Extra, Handed, Later, Once};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::sync::Arc;

const EXTRA_KEEP: u64 = 1;
const EXTRA_ONCE: u64 = 2;
const EXTRA_HANDED: u64 = 4;
const EXTRA_KEYED: u64 = 8;
const EXTRA_LATER: u64 = 16;
const EXTRA_OVERTAKEN: u64 = 32;
/// All that is known.
const EXTRA_ALL: u64 =
    EXTRA_KEEP | EXTRA_ONCE | EXTRA_KEYED | EXTRA_HANDED | EXTRA_LATER | EXTRA_OVERTAKEN;
const HANDED_NO_LOCAL: u8 = 4;
const FLAG_RETAIN: u8 = 4;
const FLAG_EXPIRES: u8 = 8;
const FLAG_ORIGIN_KEY: u8 = 16;
const FLAG_DEATHS: u8 = 32;

pub(super) fn put_extra(out: &mut BytesMut, extra: &Extra) {
    let keep = extra.keep.map_or(0, |_| EXTRA_KEEP);
    let once = match extra.once {
        None => 0,
        Some(Once::Numbered { .. }) => EXTRA_ONCE,
        Some(Once::Keyed { .. }) => EXTRA_KEYED,
    };
    let handed = extra.handed.map_or(0, |_| EXTRA_HANDED);
    let later = extra.later.map_or(0, |_| EXTRA_LATER);
    let overtaken = if extra.overtaken { EXTRA_OVERTAKEN } else { 0 };
    put_varint(out, keep | once | handed | later | overtaken);
    if let Some(vhost) = extra.keep {
        put_varint(out, u64::from(vhost.0));
    }
    match extra.once {
        None => {}
        Some(Once::Numbered {
            session,
            number,
            floor,
        }) => {
            out.put_u64_le(session.0);
            put_varint(out, number);
            put_varint(out, floor);
        }
        Some(Once::Keyed { session, key }) => {
            out.put_u64_le(session.0);
            out.put_u16_le(key.0);
        }
    }
    if let Some(handed) = extra.handed {
        let no_local = if handed.no_local { HANDED_NO_LOCAL } else { 0 };
        out.put_u8(handed.quality as u8 | no_local);
        put_varint(out, u64::from(handed.identifier));
    }
    if let Some(later) = extra.later {
        out.put_u64_le(later.due.0);
        put_varint(out, u64::from(later.vhost.0));
        put_varint(out, u64::from(later.exchange.0));
    }
}

pub(super) fn take_extra(bytes: &mut Bytes) -> Result<Extra, RecordError> {
    let bits = varint(bytes)?;
    if bits & !EXTRA_ALL != 0 {
        return Err(RecordError::Field);
    }
    let mut extra = Extra {
        overtaken: bits & EXTRA_OVERTAKEN != 0,
        ..Extra::default()
    };
    if bits & EXTRA_KEEP != 0 {
        let vhost = u32::try_from(varint(bytes)?).map_err(|_| RecordError::Field)?;
        extra.keep = Some(VhostId(vhost));
    }
    if bits & EXTRA_ONCE != 0 {
        extra.once = Some(Once::Numbered {
            session: StreamId(take_u64(bytes)?),
            number: varint(bytes)?,
            floor: varint(bytes)?,
        });
    }
    if bits & EXTRA_KEYED != 0 {
        let session = StreamId(take_u64(bytes)?);
        let key = bytes.try_get_u16_le().map_err(|_| RecordError::Short)?;
        let key = OnceKey(key);
        extra.once = Some(Once::Keyed { session, key });
    }
    if bits & EXTRA_HANDED != 0 {
        let flags = take_u8(bytes)?;
        extra.handed = Some(Handed {
            quality: Quality::from_number(flags & 3).ok_or(RecordError::Field)?,
            no_local: flags & HANDED_NO_LOCAL != 0,
            identifier: u32::try_from(varint(bytes)?).map_err(|_| RecordError::Field)?,
        });
    }
    if bits & EXTRA_LATER != 0 {
        let due = UnixMs(take_u64(bytes)?);
        let mut number = || u32::try_from(varint(bytes)?).map_err(|_| RecordError::Field);
        extra.later = Some(Later {
            due,
            vhost: VhostId(number()?),
            exchange: ExchangeId(number()?),
        });
    }
    Ok(extra)
}

pub(super) fn put_message(out: &mut BytesMut, message: &Message) {
    let mut flags = message.quality as u8;
    flags |= if message.retain { FLAG_RETAIN } else { 0 };
    flags |= if message.expires.is_some() {
        FLAG_EXPIRES
    } else {
        0
    };
    flags |= if message.origin_key.is_empty() {
        0
    } else {
        FLAG_ORIGIN_KEY
    };
    flags |= if message.deaths.is_some() {
        FLAG_DEATHS
    } else {
        0
    };
    out.put_u8(flags);
    out.put_u8(message.origin.0);
    out.put_u8(message.priority);
    out.put_u64_le(message.published.0);
    if let Some(expires) = message.expires {
        out.put_u64_le(expires.0);
    }
    put_varint(out, message.publisher.0);
    let origin_key = (!message.origin_key.is_empty()).then_some(&message.origin_key);
    // Encoding to a growing buffer can only fail for types that `Deaths` does not hold.
    let deaths = message.deaths.as_deref();
    let deaths =
        deaths.map(|deaths| Bytes::from(postcard::to_allocvec(deaths).unwrap_or_default()));
    let parts = [
        Some(&message.exchange),
        Some(&message.address.0),
        origin_key,
        Some(&message.properties),
        deaths.as_ref(),
    ];
    for part in parts.into_iter().flatten() {
        put_varint(out, part.len() as u64);
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&message.body);
}

pub(super) fn take_message(mut bytes: Bytes) -> Result<Message, RecordError> {
    let flags = take_u8(&mut bytes)?;
    let origin = OriginTag(take_u8(&mut bytes)?);
    let priority = take_u8(&mut bytes)?;
    let published = UnixMs(take_u64(&mut bytes)?);
    let expires = if flags & FLAG_EXPIRES != 0 {
        Some(UnixMs(take_u64(&mut bytes)?))
    } else {
        None
    };
    let publisher = ConnectionId(varint(&mut bytes)?);
    let exchange = take_part(&mut bytes)?;
    let address = Address(take_part(&mut bytes)?);
    let origin_key = if flags & FLAG_ORIGIN_KEY != 0 {
        take_part(&mut bytes)?
    } else {
        Bytes::new()
    };
    let properties = take_part(&mut bytes)?;
    let deaths = if flags & FLAG_DEATHS != 0 {
        let encoded = take_part(&mut bytes)?;
        let deaths: Deaths = postcard::from_bytes(&encoded).map_err(|_| RecordError::Field)?;
        Some(Arc::new(deaths))
    } else {
        None
    };
    Ok(Message {
        exchange,
        address,
        origin_key,
        origin,
        properties,
        body: bytes,
        quality: Quality::from_number(flags & 3).ok_or(RecordError::Field)?,
        retain: flags & FLAG_RETAIN != 0,
        priority,
        published,
        expires,
        publisher,
        deaths,
    })
}

/// A message by itself, as records have it: for checkpoints.
pub(crate) fn message_bytes(message: &Message) -> Bytes {
    let mut out = BytesMut::with_capacity(message.cost_bytes());
    put_message(&mut out, message);
    out.freeze()
}

/// The message that [`message_bytes`] wrote.
pub(crate) fn message_from(bytes: Bytes) -> Result<Message, RecordError> {
    take_message(bytes)
}
