//! A cursor over the bytes of one packet: the data types of section 1.5.
//!
//! Every read is bounds-checked and gives [`DecodeError`]; nothing here knows a packet.

use super::error::DecodeError;
use super::topic;

/// The clause for a packet that ends before its fields do.
const SHORT: DecodeError = DecodeError::malformed("MQTT-2.1.4", "a field runs past the packet");

/// Reads the fields of one packet in order.
pub(super) struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { left: bytes }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// What was not read yet.
    pub(super) const fn rest(&self) -> &'a [u8] {
        self.left
    }

    #[inline]
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.left.split_at_checked(count).ok_or(SHORT)?;
        self.left = tail;
        Ok(head)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self.left.split_first_chunk::<N>().ok_or(SHORT)?;
        self.left = tail;
        Ok(*head)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// A variable byte integer of 1 to 4 bytes.
    #[inline]
    pub(super) fn var_int(&mut self) -> Result<u32, DecodeError> {
        match var_int(self.left) {
            VarInt::Value {
                value,
                bytes,
                minimal,
            } => {
                if !minimal {
                    return Err(DecodeError::malformed(
                        "MQTT-1.5.5-1",
                        "a variable byte integer is longer than needed",
                    ));
                }
                self.left = self.left.get(bytes..).ok_or(SHORT)?;
                Ok(value)
            }
            VarInt::Incomplete => Err(SHORT),
            VarInt::TooLong => Err(VAR_INT_TOO_LONG),
        }
    }

    /// Binary data with a two-byte length.
    #[inline]
    pub(super) fn binary(&mut self) -> Result<&'a [u8], DecodeError> {
        let count = self.u16()?;
        self.take(usize::from(count))
    }

    /// A UTF-8 encoded string with a two-byte length.
    #[inline]
    pub(super) fn text(&mut self) -> Result<&'a str, DecodeError> {
        topic::check_text(self.binary()?)
    }

    /// A packet identifier, which is never 0.
    #[inline]
    pub(super) fn packet_id(&mut self) -> Result<u16, DecodeError> {
        match self.u16()? {
            // [MQTT-2.2.1-3]: and of a server's packets [MQTT-2.2.1-4].
            0 => Err(DecodeError::malformed(
                "MQTT-2.2.1-3",
                "packet identifier 0",
            )),
            id => Ok(id),
        }
    }

    /// Refuses bytes after the last field.
    pub(super) fn finish(&self) -> Result<(), DecodeError> {
        if self.left.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::malformed(
                "MQTT-2.1.4",
                "bytes after the last field",
            ))
        }
    }
}

pub(super) const VAR_INT_TOO_LONG: DecodeError = DecodeError::malformed(
    "MQTT-1.5.5-1",
    "a variable byte integer of more than 4 bytes",
);

/// What the front of a buffer holds as a variable byte integer.
pub(super) enum VarInt {
    Value {
        value: u32,
        bytes: usize,
        minimal: bool,
    },
    Incomplete,
    TooLong,
}

/// Parses a variable byte integer at the front of `bytes`.
#[inline]
pub(super) fn var_int(bytes: &[u8]) -> VarInt {
    let mut value = 0u32;
    for (index, &byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            // A last byte of 0 after others adds nothing, so a shorter form existed.
            return VarInt::Value {
                value,
                bytes: index + 1,
                minimal: byte != 0 || index == 0,
            };
        }
    }
    if bytes.len() < 4 {
        VarInt::Incomplete
    } else {
        VarInt::TooLong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Option<u32> {
        Reader::new(bytes).var_int().ok()
    }

    #[test]
    fn variable_byte_integers_have_the_minimal_form_only_mqtt_1_5_5_1() {
        assert_eq!(read(&[0x00]), Some(0));
        assert_eq!(read(&[0x7F]), Some(127));
        assert_eq!(read(&[0x80, 0x01]), Some(128));
        assert_eq!(read(&[0xFF, 0xFF, 0xFF, 0x7F]), Some(268_435_455));
        assert_eq!(read(&[0x80, 0x00]), None);
        assert_eq!(read(&[0xFF, 0xFF, 0xFF, 0xFF, 0x01]), None);
        assert_eq!(read(&[0xFF]), None);
    }

    #[test]
    fn fields_past_the_end_are_malformed() {
        assert!(Reader::new(&[0]).u16().is_err());
        assert!(Reader::new(&[0, 2, b'a']).binary().is_err());
        assert!(Reader::new(&[0, 0]).packet_id().is_err());
    }
}
