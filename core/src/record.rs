//! How commands of a data shard are written into its journal, and read back.
//!
//! A frame's payload (all integers little-endian, `varint` is LEB128):
//!
//! | field | size | meaning |
//! |---|---|---|
//! | version | 1 | [`PAYLOAD_VERSION`] |
//! | records | | one after the other to the end |
//!
//! A record:
//!
//! | field | size | meaning |
//! |---|---|---|
//! | length | 4 | bytes after this field and the next |
//! | crc | 4 | CRC32C of those bytes |
//! | kind | 1 | 1 publish, 2 change, 3 publish with extra |
//! | lane | 8 | who sent it |
//! | sequence | varint | its number there: of a publish or, for a change, the ticket to answer (0 none) |
//! | rest | | by kind |
//!
//! A publish: `streams` varint count and 8 bytes each; `by_topic` varint (0 none, else vhost + 1); then the
//! message, whose place is what an index keeps: flags 1 (quality in bits 0-1, 4 retain, 8 expires, 16 origin
//! key, 32 deaths), origin 1, priority 1, published 8, \[expires 8\], publisher varint, then exchange, address,
//! \[origin key\], properties and \[deaths, in postcard\] each as varint length and bytes, then the body to the end of the
//! record.
//! A publish with extra has after `by_topic` a varint of bits (1 keep, 2 once by number, 4 handed, 8 once by key,
//! 16 later, 32 overtaken) and what they say: keep as vhost varint; once as session 8, then number varint and floor varint, or key 2;
//! handed as quality 1 (in bits 0-1, 4 no local) and identifier varint; later as due 8, vhost varint and exchange varint.
//! A change: [`Change`] in postcard encoding; its variants are persisted in order: append only.
//!
//! Owns: this format, records one by one.
//! Never: when records are written (`shard/frame.rs`) or where (`store/`).
//! Next: `record/change.rs`, `record/message.rs`.

mod change;
mod message;

pub use change::{AsJson, Change, FirstLimits};
pub(crate) use message::{message_bytes, message_from};

use crate::id::{Lane, Position, Sequence, StreamId, VhostId};
use crate::message::Message;
use crate::port::Extra;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use message::{put_extra, put_message, take_extra, take_message};
use smallvec::SmallVec;
use std::sync::Arc;

/// Persisted. Payloads of another version are refused with [`RecordError::Version`].
pub const PAYLOAD_VERSION: u8 = 1;
/// Bytes before a record's checked part.
pub const RECORD_HEADER_BYTES: usize = 8;
/// A record longer than this is refused when read (and never written: message limits are lower).
pub const RECORD_BYTES_MAX: usize = 256 * 1024 * 1024;

const KIND_PUBLISH: u8 = 1;
const KIND_CHANGE: u8 = 2;
const KIND_PUBLISH_EXTRA: u8 = 3;

/// Who sent a record, and as which of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The sender.
    pub lane: Lane,
    /// Its number there.
    pub sequence: Sequence,
}

/// A record read back.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A message and where it goes.
    Publish {
        /// Named destinations.
        streams: SmallVec<[StreamId; 2]>,
        /// Match the sessions of this vhost.
        by_topic: Option<VhostId>,
        /// What most publishes have not.
        extra: Option<Box<Extra>>,
        /// The message.
        message: Arc<Message>,
    },
    /// Anything else.
    Change(Change),
}

/// Why bytes are no record. Each means corruption or a newer version, never a peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Another version of this format.
    #[error("payload version {0} is not known to this build")]
    Version(u8),
    /// Shorter than its fields say.
    #[error("a record is cut short")]
    Short,
    /// The checksum does not match.
    #[error("a record's checksum does not match")]
    Checksum,
    /// A field has a value that nothing writes.
    #[error("a record has a field that makes no sense")]
    Field,
}

fn crc32c(bytes: &[u8]) -> u32 {
    // The crate hands 32-bit sums back in 64 bits.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value as u8) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

fn varint(bytes: &mut Bytes) -> Result<u64, RecordError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = take_u8(bytes)?;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(RecordError::Field)
}

fn take_u8(bytes: &mut Bytes) -> Result<u8, RecordError> {
    bytes.try_get_u8().map_err(|_| RecordError::Short)
}

fn take_u64(bytes: &mut Bytes) -> Result<u64, RecordError> {
    bytes.try_get_u64_le().map_err(|_| RecordError::Short)
}

fn take_part(bytes: &mut Bytes) -> Result<Bytes, RecordError> {
    let length = varint(bytes)? as usize;
    if length > bytes.len() {
        return Err(RecordError::Short);
    }
    Ok(bytes.split_to(length))
}

/// Gathers records into one frame's payload.
#[derive(Debug, Default)]
pub struct PayloadBuilder {
    buffer: BytesMut,
    records: usize,
}

impl PayloadBuilder {
    /// Appends a publish.
    pub fn publish(
        &mut self,
        mark: Mark,
        streams: &[StreamId],
        by_topic: Option<VhostId>,
        extra: Option<&Extra>,
        message: &Message,
    ) {
        let kind = match extra {
            None => KIND_PUBLISH,
            Some(_) => KIND_PUBLISH_EXTRA,
        };
        let start = self.begin(kind, mark);
        let out = &mut self.buffer;
        out.reserve(message.cost_bytes() + 8 * streams.len() + 64);
        put_varint(out, streams.len() as u64);
        for stream in streams {
            out.put_u64_le(stream.0);
        }
        put_varint(out, by_topic.map_or(0, |vhost| u64::from(vhost.0) + 1));
        if let Some(extra) = extra {
            put_extra(out, extra);
        }
        put_message(out, message);
        self.end(start);
    }

    /// Appends a change.
    pub fn change(&mut self, mark: Mark, change: &Change) {
        let start = self.begin(KIND_CHANGE, mark);
        // Encoding to a growing buffer can only fail for types that `Change` does not hold.
        let encoded = postcard::to_allocvec(change).unwrap_or_default();
        self.buffer.extend_from_slice(&encoded);
        self.end(start);
    }

    fn begin(&mut self, kind: u8, mark: Mark) -> usize {
        if self.buffer.is_empty() {
            self.buffer.put_u8(PAYLOAD_VERSION);
        }
        let start = self.buffer.len();
        self.buffer.put_u64_le(0);
        self.buffer.put_u8(kind);
        self.buffer.put_u64_le(mark.lane.0);
        put_varint(&mut self.buffer, mark.sequence.0);
        start
    }

    fn end(&mut self, start: usize) {
        let checked = &self.buffer[start + RECORD_HEADER_BYTES..];
        let (length, crc) = (checked.len() as u32, crc32c(checked));
        self.buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
        self.buffer[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
        self.records += 1;
    }

    /// Bytes gathered.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether nothing was gathered.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Takes the payload, leaving an empty builder.
    pub fn take(&mut self) -> Bytes {
        self.records = 0;
        self.buffer.split().freeze()
    }
}

/// Walks a payload: each record with its mark and the place of its first byte, counted from `base`
/// (the position of the payload's first byte).
pub struct Records {
    rest: Bytes,
    position: u64,
    checked: bool,
    failed: bool,
}

impl Records {
    /// Of a payload that lies at `base`. `checked` says that the bytes were just made or checked as a
    /// whole, so that each record's own checksum need not be computed again.
    pub fn new(payload: &Bytes, base: Position, checked: bool) -> Result<Records, RecordError> {
        match payload.first() {
            None => Err(RecordError::Short),
            Some(&PAYLOAD_VERSION) => Ok(Records {
                rest: payload.slice(1..),
                position: base.0 + 1,
                checked,
                failed: false,
            }),
            Some(other) => Err(RecordError::Version(*other)),
        }
    }

    /// Where the next record begins.
    pub fn position(&self) -> Position {
        Position(self.position)
    }

    fn read(&mut self) -> Result<(Position, Mark, Record), RecordError> {
        let position = Position(self.position);
        let (mut bytes, whole) = cut(&mut self.rest, self.checked)?;
        self.position += whole as u64;
        let (mark, record) = parse(&mut bytes)?;
        Ok((position, mark, record))
    }
}

impl Iterator for Records {
    type Item = Result<(Position, Mark, Record), RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || self.failed {
            return None;
        }
        let read = self.read();
        self.failed = read.is_err();
        Some(read)
    }
}

/// Takes one record's checked part off the front; also says how many bytes the whole record has.
fn cut(bytes: &mut Bytes, trusted: bool) -> Result<(Bytes, usize), RecordError> {
    let length = bytes.try_get_u32_le().map_err(|_| RecordError::Short)? as usize;
    let crc = bytes.try_get_u32_le().map_err(|_| RecordError::Short)?;
    if length > bytes.len() {
        return Err(RecordError::Short);
    }
    let checked = bytes.split_to(length);
    if !trusted && crc32c(&checked) != crc {
        return Err(RecordError::Checksum);
    }
    Ok((checked, RECORD_HEADER_BYTES + length))
}

fn parse(bytes: &mut Bytes) -> Result<(Mark, Record), RecordError> {
    let kind = take_u8(bytes)?;
    let lane = Lane(take_u64(bytes)?);
    let mark = Mark {
        lane,
        sequence: Sequence(varint(bytes)?),
    };
    let record = match kind {
        KIND_PUBLISH | KIND_PUBLISH_EXTRA => {
            let count = varint(bytes)?;
            if count * 8 > bytes.len() as u64 {
                return Err(RecordError::Short);
            }
            let mut streams = SmallVec::new();
            for _ in 0..count {
                streams.push(StreamId(take_u64(bytes)?));
            }
            let by_topic = match varint(bytes)? {
                0 => None,
                vhost => Some(VhostId(
                    u32::try_from(vhost - 1).map_err(|_| RecordError::Field)?,
                )),
            };
            let extra = match kind {
                KIND_PUBLISH_EXTRA => Some(Box::new(take_extra(bytes)?)),
                _ => None,
            };
            let message = Arc::new(take_message(std::mem::take(bytes))?);
            Record::Publish {
                streams,
                by_topic,
                extra,
                message,
            }
        }
        KIND_CHANGE => Record::Change(postcard::from_bytes(bytes).map_err(|_| RecordError::Field)?),
        _ => return Err(RecordError::Field),
    };
    Ok((mark, record))
}

/// How many bytes the record has whose first [`RECORD_HEADER_BYTES`] these are.
///
/// # Errors
/// [`RecordError::Short`] when there are fewer, [`RecordError::Field`] when the length is absurd.
pub fn record_bytes(header: &[u8]) -> Result<usize, RecordError> {
    let length = header.first_chunk::<4>().ok_or(RecordError::Short)?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > RECORD_BYTES_MAX {
        return Err(RecordError::Field);
    }
    Ok(RECORD_HEADER_BYTES + length)
}

/// Reads the message of a publish record, whole and with its checksum verified.
pub fn read_message(record: Bytes) -> Result<Arc<Message>, RecordError> {
    let mut rest = record;
    let (mut checked, _) = cut(&mut rest, false)?;
    match parse(&mut checked)?.1 {
        Record::Publish { message, .. } => Ok(message),
        Record::Change(_) => Err(RecordError::Field),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::death::Deaths;
    use crate::gateway::OnceKey;
    use crate::id::{ConnectionId, ExchangeId, Offset, UnixMs};
    use crate::message::{OriginTag, Quality};
    use crate::port::{Handed, Later, Once};
    use proptest::prelude::*;

    fn extra(number: usize) -> Option<Extra> {
        let keep = (number % 2 == 1).then_some(VhostId(7));
        let once = (number > 1).then_some(match number % 3 {
            0 => Once::Keyed {
                session: StreamId(3),
                key: OnceKey(9),
            },
            _ => Once::Numbered {
                session: StreamId(3),
                number: 900,
                floor: 4,
            },
        });
        let handed = (number % 3 == 1).then_some(Handed {
            quality: Quality::AtLeastOnce,
            identifier: 268_435_455,
            no_local: true,
        });
        let later = (number > 3).then_some(Later {
            due: UnixMs(u64::MAX - 7),
            vhost: VhostId(1),
            exchange: ExchangeId(u32::MAX),
        });
        (keep.is_some() || once.is_some()).then_some(Extra {
            keep,
            once,
            handed,
            later,
            overtaken: number.is_multiple_of(2),
            at_once: false,
            whole: false,
        })
    }

    fn deaths() -> Arc<Deaths> {
        let death = crate::death::Death {
            stream: "q".into(),
            reason: crate::death::DeathReason::Expired,
            count: 3,
            first: UnixMs(9),
            exchange: Bytes::new(),
            address: Bytes::from_static(b"a/b"),
            origin_key: Bytes::new(),
            time_to_live_ms: Some(10),
        };
        Arc::new(Deaths::with(None, death))
    }

    fn message() -> impl Strategy<Value = Message> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        (
            bytes(),
            "[a-z/]{0,20}",
            bytes(),
            bytes(),
            bytes(),
            (0u8..3, any::<bool>(), any::<u8>()),
            proptest::option::of(any::<u64>()),
        )
            .prop_map(
                |(
                    exchange,
                    address,
                    origin_key,
                    properties,
                    body,
                    (quality, retain, priority),
                    expires,
                )| Message {
                    exchange,
                    address: Address(Bytes::from(address)),
                    origin_key,
                    origin: OriginTag(3),
                    properties,
                    body,
                    quality: Quality::from_number(quality).unwrap(),
                    retain,
                    priority,
                    published: UnixMs(77),
                    expires: expires.map(UnixMs),
                    publisher: ConnectionId(1 << 48),
                    deaths: retain.then(deaths),
                },
            )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(messages in proptest::collection::vec(message(), 1..8)) {
            let mut builder = PayloadBuilder::default();
            for (number, message) in messages.iter().enumerate() {
                let mark = Mark { lane: Lane(9), sequence: Sequence(number as u64 + 1) };
                builder.publish(mark, &[StreamId(5), StreamId(u64::MAX)], Some(VhostId(0)), extra(number).as_ref(), message);
                builder.change(mark, &Change::Delivered { stream: StreamId(4), until: Offset(3) });
            }
            let payload = builder.take();
            prop_assert!(builder.is_empty());
            let mut read = 0;
            for record in Records::new(&payload, Position(1000), false).unwrap() {
                let (position, mark, record) = record.unwrap();
                if let Record::Publish { message, streams, by_topic, extra: more } = record {
                    prop_assert_eq!(more.map(|more| *more), extra(read));
                    prop_assert_eq!(&*message, &messages[read]);
                    prop_assert_eq!(mark.sequence.0, read as u64 + 1);
                    prop_assert_eq!((streams.len(), by_topic), (2, Some(VhostId(0))));
                    let at = (position.0 - 1000) as usize;
                    let whole = record_bytes(&payload[at..]).unwrap();
                    prop_assert_eq!(read_message(payload.slice(at..at + whole)).unwrap(), message);
                    read += 1;
                }
            }
            prop_assert_eq!(read, messages.len());
        }

        #[test]
        fn damaged_bytes_are_an_error_and_never_a_panic(message in message(), at in any::<proptest::sample::Index>(), bit in 0u8..8) {
            let mut builder = PayloadBuilder::default();
            builder.publish(Mark::default(), &[StreamId(5)], None, None, &message);
            let mut bytes = builder.take().to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let records = Records::new(&Bytes::from(bytes), Position(0), false);
            prop_assert!(records.is_err() || records.unwrap().any(|record| record.is_err()));
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for checked in [false, true] {
                if let Ok(records) = Records::new(&Bytes::from(bytes.clone()), Position(0), checked) {
                    records.for_each(drop);
                }
            }
        }
    }
}
