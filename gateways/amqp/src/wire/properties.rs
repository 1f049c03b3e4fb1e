//! The content header and its property list (AMQP 0-9-1 section 4.2.6.1).
//!
//! | octets | field |
//! |---|---|
//! | 0-1 | class, 60 (`basic`) |
//! | 2-3 | weight, 0 |
//! | 4-11 | body size |
//! | 12-13 | property flags, first property in the highest bit |
//! | 14.. | property list |
//!
//! Flags and list are kept as the raw bytes that came in, so that they can be relayed untouched. One
//! walk without allocation checks them and notes where each property stands. `PropertiesWriter` builds
//! a list. What properties mean for other protocols is `map`'s business.

use bytes::{BufMut, Bytes, BytesMut};

use super::field::{Field, FieldError, Reader, ShortStr, Writer};
use super::table::{Table, Value};
use crate::error::{AmqpError, ReplyCode};

/// Class of every content there is: `basic`.
pub const CLASS_BASIC: u16 = 60;
/// Octets of a content header in front of flags and property list.
pub const CONTENT_HEADER_BYTES: usize = 12;

const CONTENT_TYPE: u16 = 1 << 15;
const CONTENT_ENCODING: u16 = 1 << 14;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const PRIORITY: u16 = 1 << 11;
const CORRELATION_ID: u16 = 1 << 10;
const REPLY_TO: u16 = 1 << 9;
const EXPIRATION: u16 = 1 << 8;
const MESSAGE_ID: u16 = 1 << 7;
const TIMESTAMP: u16 = 1 << 6;
const TYPE: u16 = 1 << 5;
const USER_ID: u16 = 1 << 4;
const APP_ID: u16 = 1 << 3;
const CLUSTER_ID: u16 = 1 << 2;
/// Bits no property of `basic` stands for; the lowest would announce more flags.
const UNKNOWN: u16 = 0b11;

/// What a content header says before its properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHeader {
    /// Class of the content.
    pub class_id: u16,
    /// Octets of all body frames together.
    pub body_bytes: u64,
}

impl ContentHeader {
    /// Reads a header frame's payload up to the properties, which begin at `CONTENT_HEADER_BYTES`.
    ///
    /// # Errors
    /// 502 when it is too short or its weight is not 0, 505 when its class is not `basic`.
    #[inline]
    pub fn decode(payload: &[u8]) -> Result<Self, AmqpError> {
        let Some((&[c0, c1, w0, w1, b0, b1, b2, b3, b4, b5, b6, b7], rest)) =
            payload.split_first_chunk::<CONTENT_HEADER_BYTES>()
        else {
            return Err(AmqpError::connection(
                ReplyCode::SYNTAX_ERROR,
                "content header is too short",
            ));
        };
        let class_id = u16::from_be_bytes([c0, c1]);
        if class_id != CLASS_BASIC {
            return Err(AmqpError::connection(
                ReplyCode::UNEXPECTED_FRAME,
                format!("content header for class {class_id}, expected class {CLASS_BASIC}"),
            ));
        }
        if [w0, w1] != [0, 0] {
            return Err(AmqpError::connection(
                ReplyCode::SYNTAX_ERROR,
                "content header with a weight",
            ));
        }
        if rest.len() < 2 {
            return Err(AmqpError::connection(
                ReplyCode::SYNTAX_ERROR,
                "content header without property flags",
            ));
        }
        Ok(Self {
            class_id,
            body_bytes: u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
        })
    }
}

/// The properties of a message, borrowed from their raw bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Properties<'a> {
    /// MIME type.
    pub content_type: Option<ShortStr<'a>>,
    /// MIME encoding.
    pub content_encoding: Option<ShortStr<'a>>,
    /// Headers of the application and the broker.
    pub headers: Option<Table<'a>>,
    /// 1 transient, 2 persistent.
    pub delivery_mode: Option<u8>,
    /// 0 to 9.
    pub priority: Option<u8>,
    /// Ties an answer to its question.
    pub correlation_id: Option<ShortStr<'a>>,
    /// Where an answer goes.
    pub reply_to: Option<ShortStr<'a>>,
    /// Time to live in milliseconds, as decimal text.
    pub expiration: Option<ShortStr<'a>>,
    /// The application's id of the message.
    pub message_id: Option<ShortStr<'a>>,
    /// The application's time, in seconds since 1970.
    pub timestamp_s: Option<u64>,
    /// The application's type of the message.
    pub kind: Option<ShortStr<'a>>,
    /// The user who published it, checked by the broker.
    pub user_id: Option<ShortStr<'a>>,
    /// The application that published it.
    pub app_id: Option<ShortStr<'a>>,
    /// Reserved by the standard; kept.
    pub cluster_id: Option<ShortStr<'a>>,
}

fn when<'a, T: Field<'a>>(
    flags: u16,
    flag: u16,
    reader: &mut Reader<'a>,
) -> Result<Option<T>, FieldError> {
    if flags & flag == 0 {
        Ok(None)
    } else {
        T::read(reader).map(Some)
    }
}

impl<'a> Properties<'a> {
    /// Walks raw flags and list once and checks them to the end.
    ///
    /// # Errors
    /// What is malformed; a peer gets `malformed` of it.
    pub fn walk(raw: &'a [u8]) -> Result<Self, FieldError> {
        let mut reader = Reader::new(raw);
        let r = &mut reader;
        let flags = u16::read(r)?;
        if flags & UNKNOWN != 0 {
            return Err(FieldError::UnknownProperty(flags));
        }
        let properties = Self {
            content_type: when(flags, CONTENT_TYPE, r)?,
            content_encoding: when(flags, CONTENT_ENCODING, r)?,
            headers: when(flags, HEADERS, r)?,
            delivery_mode: when(flags, DELIVERY_MODE, r)?,
            priority: when(flags, PRIORITY, r)?,
            correlation_id: when(flags, CORRELATION_ID, r)?,
            reply_to: when(flags, REPLY_TO, r)?,
            expiration: when(flags, EXPIRATION, r)?,
            message_id: when(flags, MESSAGE_ID, r)?,
            timestamp_s: when(flags, TIMESTAMP, r)?,
            kind: when(flags, TYPE, r)?,
            user_id: when(flags, USER_ID, r)?,
            app_id: when(flags, APP_ID, r)?,
            cluster_id: when(flags, CLUSTER_ID, r)?,
        };
        reader.end()?;
        Ok(properties)
    }

    /// Appends flags and list.
    pub fn write(&self, out: &mut BytesMut) {
        let at = out.len();
        out.put_u16(0);
        let mut flags = 0;
        let mut writer = Writer::new(out);
        let w = &mut writer;
        put(&self.content_type, CONTENT_TYPE, &mut flags, w);
        put(&self.content_encoding, CONTENT_ENCODING, &mut flags, w);
        put(&self.headers, HEADERS, &mut flags, w);
        put(&self.delivery_mode, DELIVERY_MODE, &mut flags, w);
        put(&self.priority, PRIORITY, &mut flags, w);
        put(&self.correlation_id, CORRELATION_ID, &mut flags, w);
        put(&self.reply_to, REPLY_TO, &mut flags, w);
        put(&self.expiration, EXPIRATION, &mut flags, w);
        put(&self.message_id, MESSAGE_ID, &mut flags, w);
        put(&self.timestamp_s, TIMESTAMP, &mut flags, w);
        put(&self.kind, TYPE, &mut flags, w);
        put(&self.user_id, USER_ID, &mut flags, w);
        put(&self.app_id, APP_ID, &mut flags, w);
        put(&self.cluster_id, CLUSTER_ID, &mut flags, w);
        out[at..at + 2].copy_from_slice(&flags.to_be_bytes());
    }

    /// Flags and list as bytes of their own.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.write(&mut out);
        out.freeze()
    }

    /// The time to live in milliseconds.
    ///
    /// # Errors
    /// 406 on the channel when `expiration` is not a decimal number that fits.
    pub fn expiration_ms(&self) -> Result<Option<u64>, AmqpError> {
        let Some(text) = self.expiration else {
            return Ok(None);
        };
        let digits = text.as_bytes();
        if !digits.is_empty() && digits.len() <= 19 && digits.iter().all(u8::is_ascii_digit) {
            return Ok(Some(
                digits.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')),
            ));
        }
        Err(AmqpError::channel(
            ReplyCode::PRECONDITION_FAILED,
            format!("invalid expiration {text:?}"),
        ))
    }

    /// The routing keys of header `CC` or `BCC`, after the one the message was published with.
    ///
    /// # Errors
    /// 406 on the channel when the header is not an array of long strings.
    pub fn extra_keys(
        &self,
        name: &'static str,
    ) -> Result<impl Iterator<Item = &'a [u8]>, AmqpError> {
        let array = match self.headers.and_then(|headers| headers.first(name)) {
            None => None,
            Some(Value::Array(array)) if array.iter().all(|key| key.as_long_str().is_some()) => {
                Some(array)
            }
            Some(_) => {
                return Err(AmqpError::channel(
                    ReplyCode::PRECONDITION_FAILED,
                    format!("header {name} must be an array of strings"),
                ));
            }
        };
        Ok(array
            .into_iter()
            .flat_map(|array| array.iter())
            .filter_map(Value::as_long_str))
    }

    /// What a walk can be told about without decoding the rest again.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary {
            delivery_mode: self.delivery_mode.unwrap_or(1),
            priority: self.priority.unwrap_or(0),
            has_expiration: self.expiration.is_some(),
            has_headers: self.headers.is_some_and(|headers| !headers.is_empty()),
            has_cc: false,
            has_bcc: false,
        };
        if let Some(headers) = self.headers {
            for (name, _) in headers.iter() {
                match name.as_bytes() {
                    b"CC" => summary.has_cc = true,
                    b"BCC" => summary.has_bcc = true,
                    _ => {}
                }
            }
        }
        summary
    }
}

/// What routing and storing need to know of a property list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// 1 transient, 2 persistent; 1 when absent.
    pub delivery_mode: u8,
    /// 0 when absent.
    pub priority: u8,
    /// `expiration` is there; `Properties::expiration_ms` reads it.
    pub has_expiration: bool,
    /// There is a header.
    pub has_headers: bool,
    /// Header `CC` is there.
    pub has_cc: bool,
    /// Header `BCC` is there and must not be delivered.
    pub has_bcc: bool,
}

fn put<'a, T: Field<'a>>(
    property: &Option<T>,
    flag: u16,
    flags: &mut u16,
    writer: &mut Writer<'_>,
) {
    if let Some(value) = property {
        *flags |= flag;
        value.write(writer);
    }
}

/// The error a peer gets for a malformed property list.
pub fn malformed(error: FieldError) -> AmqpError {
    AmqpError::connection(
        ReplyCode::SYNTAX_ERROR,
        format!("content properties: {error}"),
    )
    .by((CLASS_BASIC, 40))
}

/// A property list that says nothing.
pub const EMPTY: &[u8] = &[0, 0];

#[cfg(test)]
mod tests {
    use super::super::table::{ArrayWriter, TableWriter};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            text in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..12)), 10),
            mode in prop::option::of(any::<u8>()),
            priority in prop::option::of(any::<u8>()),
            timestamp_s in prop::option::of(any::<u64>()),
            header in prop::option::of("[a-z]{0,5}"),
        ) {
            let mut table = TableWriter::new();
            if let Some(name) = &header {
                table.pair(name.as_bytes(), Value::Void).unwrap();
            }
            let s = |i: usize| text[i].as_deref().map(ShortStr::cut);
            let properties = Properties {
                content_type: s(0),
                content_encoding: s(1),
                headers: header.as_ref().map(|_| table.table()),
                delivery_mode: mode,
                priority,
                correlation_id: s(2),
                reply_to: s(3),
                expiration: s(4),
                message_id: s(5),
                timestamp_s,
                kind: s(6),
                user_id: s(7),
                app_id: s(8),
                cluster_id: s(9),
            };
            let raw = properties.to_bytes();
            prop_assert_eq!(Properties::walk(&raw), Ok(properties));
            for cut in 0..raw.len() {
                prop_assert!(Properties::walk(&raw[..cut]).is_err());
            }
        }

        #[test]
        fn random_bytes_never_panic(raw in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(properties) = Properties::walk(&raw) {
                let _ = (properties.expiration_ms(), properties.summary());
                if let Ok(keys) = properties.extra_keys("CC") {
                    prop_assert!(keys.count() <= raw.len());
                }
            }
        }
    }

    #[test]
    fn unknown_flags_and_content_headers_4_2_6_1() {
        assert_eq!(
            Properties::walk(&[0, 1]),
            Err(FieldError::UnknownProperty(1))
        );
        assert_eq!(Properties::walk(&[0, 0, 0]), Err(FieldError::Trailing));
        let code = |payload: &[u8]| ContentHeader::decode(payload).unwrap_err().code;
        assert_eq!(code(&[0, 60, 0]), ReplyCode::SYNTAX_ERROR);
        assert_eq!(
            code(&[0, 60, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            ReplyCode::SYNTAX_ERROR
        );
        assert_eq!(
            code(&[0, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            ReplyCode::UNEXPECTED_FRAME
        );
        assert_eq!(
            code(&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            ReplyCode::SYNTAX_ERROR
        );
    }

    #[test]
    fn expiration_is_a_decimal_number_or_406() {
        let expiration = |text: &str| {
            Properties {
                expiration: ShortStr::new(text.as_bytes()),
                ..Properties::default()
            }
            .expiration_ms()
        };
        assert_eq!(expiration("60000"), Ok(Some(60_000)));
        assert_eq!(expiration("0"), Ok(Some(0)));
        for bad in ["", "-1", "1.5", "ten", "99999999999999999999"] {
            let error = expiration(bad).unwrap_err();
            assert_eq!(error.code, ReplyCode::PRECONDITION_FAILED, "{bad}");
        }
    }

    #[test]
    fn cc_must_be_an_array_of_strings() {
        let mut keys = ArrayWriter::new();
        keys.push(Value::text("a")).push(Value::text("b"));
        let mut table = TableWriter::new();
        table
            .named("CC", Value::Array(keys.array()))
            .named("BCC", Value::text("c"));
        let properties = Properties {
            headers: Some(table.table()),
            ..Properties::default()
        };
        assert_eq!(
            properties.extra_keys("CC").unwrap().collect::<Vec<_>>(),
            [b"a", b"b"]
        );
        assert_eq!(
            properties.extra_keys("BCC").err().unwrap().code,
            ReplyCode::PRECONDITION_FAILED
        );
        let summary = properties.summary();
        assert!(summary.has_cc && summary.has_bcc && summary.has_headers);
    }
}
