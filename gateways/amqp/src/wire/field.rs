//! The domains a method's arguments are made of (AMQP 0-9-1 section 4.2.5).
//!
//! Owns reading and writing of octet, short, long, long-long, bit, short string, long string and field
//! table. Consecutive bits share octets (4.2.5.2). Strings are bytes: the standard asks for UTF-8 but
//! keys and names are relayed as they came. Read `method` for what is made of them.

use bytes::{BufMut, BytesMut};

use super::table::Table;

/// Why the arguments of a method could not be read; always reply code 502.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The arguments end inside a field.
    #[error("arguments end inside a field")]
    Truncated,
    /// Octets follow the last field.
    #[error("octets follow the last argument")]
    Trailing,
    /// A field table holds a value of an unknown type.
    #[error("field table holds a value of unknown type 0x{0:02x}")]
    UnknownValueType(u8),
    /// A field table or array is nested deeper than `table::DEPTH_MAX`.
    #[error("field table is nested too deeply")]
    TooDeep,
    /// The flags of a property list name properties that do not exist.
    #[error("property flags 0x{0:04x} name unknown properties")]
    UnknownProperty(u16),
}

/// A short string: up to 255 octets of any value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ShortStr<'a>(&'a [u8]);

impl<'a> ShortStr<'a> {
    /// The string as bytes, or `None` when it is longer than 255 octets.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() <= 255).then_some(Self(bytes))
    }

    /// The string as bytes, cut to 255 octets.
    pub fn cut(bytes: &'a [u8]) -> Self {
        Self(&bytes[..bytes.len().min(255)])
    }

    /// The octets.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The text, or `None` when the octets are not UTF-8.
    pub fn as_str(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }

    /// True when it holds nothing.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for ShortStr<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.0))
    }
}

/// A long string: up to 4 GiB of octets, within a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LongStr<'a>(pub &'a [u8]);

impl std::fmt::Debug for LongStr<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Reads fields one after the other from borrowed bytes.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// The octet that holds the bits being read, and how many of it are taken.
    bits: u8,
    bits_taken: u8,
}

impl<'a> Reader<'a> {
    /// A reader over a method's arguments.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            bits: 0,
            bits_taken: 8,
        }
    }

    /// What has not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes `n` octets.
    #[inline]
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], FieldError> {
        self.bits_taken = 8;
        let (head, rest) = self.rest.split_at_checked(n).ok_or(FieldError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// Takes a number of fixed size, as big-endian octets.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FieldError> {
        self.bits_taken = 8;
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(FieldError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    #[inline]
    fn bit(&mut self) -> Result<bool, FieldError> {
        if self.bits_taken == 8 {
            let [octet] = self.array::<1>()?;
            self.bits = octet;
            self.bits_taken = 0;
        }
        let bit = self.bits & (1 << self.bits_taken) != 0;
        self.bits_taken += 1;
        Ok(bit)
    }

    /// Succeeds when nothing is left.
    pub fn end(&self) -> Result<(), FieldError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(FieldError::Trailing)
        }
    }
}

/// Writes fields one after the other.
#[derive(Debug)]
pub struct Writer<'b> {
    out: &'b mut BytesMut,
    bits_used: u8,
}

impl<'b> Writer<'b> {
    /// A writer that appends to `out`.
    pub fn new(out: &'b mut BytesMut) -> Self {
        Self { out, bits_used: 8 }
    }

    /// Appends octets.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.bits_used = 8;
        self.out.put_slice(bytes);
    }

    #[inline]
    fn bit(&mut self, bit: bool) {
        if self.bits_used == 8 {
            self.out.put_u8(0);
            self.bits_used = 0;
        }
        if let Some(last) = self.out.last_mut() {
            *last |= u8::from(bit) << self.bits_used;
        }
        self.bits_used += 1;
    }
}

/// A domain: something a method's argument can be.
pub trait Field<'a>: Sized {
    /// Reads one.
    fn read(reader: &mut Reader<'a>) -> Result<Self, FieldError>;
    /// Appends one.
    fn write(&self, writer: &mut Writer<'_>);
}

macro_rules! number_field {
    ($($number:ty)*) => {$(
        impl<'a> Field<'a> for $number {
            #[inline]
            fn read(reader: &mut Reader<'a>) -> Result<Self, FieldError> {
                Ok(Self::from_be_bytes(reader.array()?))
            }
            #[inline]
            fn write(&self, writer: &mut Writer<'_>) {
                writer.put(&self.to_be_bytes());
            }
        }
    )*};
}

number_field!(u8 u16 u32 u64);

impl<'a> Field<'a> for bool {
    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, FieldError> {
        reader.bit()
    }
    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        writer.bit(*self);
    }
}

impl<'a> Field<'a> for ShortStr<'a> {
    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, FieldError> {
        let [len] = reader.array::<1>()?;
        Ok(Self(reader.take(usize::from(len))?))
    }
    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        // A `ShortStr` is never longer than 255 octets, so nothing is cut off here.
        writer.put(&[self.0.len() as u8]);
        writer.put(self.0);
    }
}

impl<'a> Field<'a> for LongStr<'a> {
    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, FieldError> {
        let len = u32::read(reader)?;
        Ok(Self(reader.take(len as usize)?))
    }
    fn write(&self, writer: &mut Writer<'_>) {
        (self.0.len() as u32).write(writer);
        writer.put(self.0);
    }
}

impl<'a> Field<'a> for Table<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, FieldError> {
        let LongStr(raw) = LongStr::read(reader)?;
        Table::new(raw)
    }
    fn write(&self, writer: &mut Writer<'_>) {
        LongStr(self.raw()).write(writer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_share_octets_until_another_field_comes_4_2_5_2() {
        let mut out = BytesMut::new();
        let mut writer = Writer::new(&mut out);
        for bit in [true, false, true, true, false, false, false, true, true] {
            bit.write(&mut writer);
        }
        7u8.write(&mut writer);
        true.write(&mut writer);
        assert_eq!(&out[..], &[0b1000_1101, 1, 7, 1]);

        let mut reader = Reader::new(&out);
        let bits: Vec<bool> = (0..9).map(|_| bool::read(&mut reader).unwrap()).collect();
        assert_eq!(
            bits,
            [true, false, true, true, false, false, false, true, true]
        );
        assert_eq!(u8::read(&mut reader), Ok(7));
        assert_eq!(bool::read(&mut reader), Ok(true));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn a_string_longer_than_its_frame_is_truncated() {
        assert_eq!(
            ShortStr::read(&mut Reader::new(&[3, b'a'])),
            Err(FieldError::Truncated)
        );
        assert_eq!(
            LongStr::read(&mut Reader::new(&[255, 255, 255, 255, 1])),
            Err(FieldError::Truncated)
        );
        assert_eq!(ShortStr::new(&[0; 256]), None);
    }
}
