//! Writes property blocks: whole ones, or single properties behind each other.
//!
//! What has no form on the wire (a string that is too long or holds NUL) is left out, so that
//! every block written is one that [`super::property`] reads.

use bytes::{BufMut, BytesMut};

use super::encode::put_var_int;
use super::property::{Kind, Properties, PropertyId};
use super::topic;

/// Builds a property block. Strings over 65,535 bytes are left out rather than cut.
#[derive(Debug, Default)]
pub struct PropertiesBuilder {
    block: BytesMut,
}

impl PropertiesBuilder {
    /// An empty block.
    pub fn new() -> PropertiesBuilder {
        PropertiesBuilder::default()
    }

    /// Adds a numeric property in the width that its identifier asks for.
    pub fn int(mut self, id: PropertyId, value: u32) -> PropertiesBuilder {
        put_int(&mut self.block, id, value);
        self
    }

    /// Adds a string property.
    pub fn text(mut self, id: PropertyId, text: &str) -> PropertiesBuilder {
        put_text(&mut self.block, id, text);
        self
    }

    /// Adds a binary property.
    pub fn binary(mut self, id: PropertyId, bytes: &[u8]) -> PropertiesBuilder {
        put_binary(&mut self.block, id, bytes);
        self
    }

    /// Adds a user property.
    pub fn pair(mut self, name: &str, value: &str) -> PropertiesBuilder {
        put_pair(&mut self.block, name, value);
        self
    }

    /// The finished block.
    pub fn build(self) -> Properties {
        Properties::checked(self.block.freeze())
    }
}

/// Appends a numeric property; one whose identifier is not numeric is left out.
pub(crate) fn put_int(block: &mut BytesMut, id: PropertyId, value: u32) {
    let Some((kind, _)) = id.rule() else { return };
    // A value that is too wide is held at the widest its field can say.
    let short = u16::try_from(value).unwrap_or(u16::MAX);
    match kind {
        Kind::Flag => {
            block.put_u8(id.0);
            block.put_u8(u8::from(value != 0));
        }
        Kind::U16 | Kind::U16Positive => {
            block.put_u8(id.0);
            block.put_u16(short);
        }
        Kind::U32 | Kind::U32Positive => {
            block.put_u8(id.0);
            block.put_u32(value);
        }
        Kind::VarIntPositive => {
            block.put_u8(id.0);
            put_var_int(block, value as usize);
        }
        Kind::Text | Kind::Topic | Kind::Binary | Kind::Pair => {}
    }
}

/// Appends a string property, unless it is too long for its length field or holds NUL.
pub(crate) fn put_text(block: &mut BytesMut, id: PropertyId, text: &str) {
    if topic::check_text(text.as_bytes()).is_ok() {
        put_binary(block, id, text.as_bytes());
    }
}

/// Appends a binary property, unless it is too long for its length field.
pub(crate) fn put_binary(block: &mut BytesMut, id: PropertyId, bytes: &[u8]) {
    if let Ok(count) = u16::try_from(bytes.len()) {
        block.put_u8(id.0);
        block.put_u16(count);
        block.put_slice(bytes);
    }
}

/// Appends a user property, unless a string of it is too long or holds NUL.
pub(crate) fn put_pair(block: &mut BytesMut, name: &str, value: &str) {
    let legal = |text: &str| topic::check_text(text.as_bytes()).is_ok();
    if let (Ok(name_bytes), Ok(value_bytes)) =
        (u16::try_from(name.len()), u16::try_from(value.len()))
        && legal(name)
        && legal(value)
    {
        block.put_u8(PropertyId::USER_PROPERTY.0);
        block.put_u16(name_bytes);
        block.put_slice(name.as_bytes());
        block.put_u16(value_bytes);
        block.put_slice(value.as_bytes());
    }
}
