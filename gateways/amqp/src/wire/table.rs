//! Field tables and arrays (AMQP 0-9-1 section 4.2.5.5), checked once and decoded on demand.
//!
//! A `Table` is the raw bytes between a table's length and its end, known to be well formed; it is
//! relayed byte for byte, and iterating gives its pairs in their order, duplicates and all. `Value`
//! keeps the tag it came with, so that writing it again gives the same octets. Tags follow what
//! deployed peers send (`s` is a 16-bit integer, `l` 64-bit), plus the standard's own `U` and `L`.
//! Never allocates while reading. `TableWriter` builds one.

use bytes::{BufMut, Bytes, BytesMut};

use super::field::{Field, FieldError, LongStr, Reader, ShortStr};

/// How deep tables and arrays may be nested.
pub const DEPTH_MAX: u32 = 64;

/// A well-formed field table, as its raw bytes without the length in front.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Table<'a>(&'a [u8]);

/// A well-formed field array, as its raw bytes without the length in front.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Array<'a>(&'a [u8]);

/// One value of a table or array, with the type tag it has on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `U`, the standard's own tag for what is sent as `s`
    StandardI16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l`
    I64(i64),
    /// `L`, the standard's own tag for what is sent as `l`
    StandardI64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`: how many digits stand after the decimal point, and the number without the point
    Decimal(u8, i32),
    /// `S`
    LongStr(LongStr<'a>),
    /// `x`
    Bytes(&'a [u8]),
    /// `A`
    Array(Array<'a>),
    /// `T`, in seconds since 1970
    Timestamp(u64),
    /// `F`
    Table(Table<'a>),
    /// `V`
    Void,
}

impl<'a> Table<'a> {
    /// The table, once every pair in it is known to be well formed.
    ///
    /// # Errors
    /// What is wrong with the first malformed pair.
    pub fn new(raw: &'a [u8]) -> Result<Self, FieldError> {
        check_table(raw, 0)?;
        Ok(Self(raw))
    }

    /// The raw bytes, without the length in front.
    pub fn raw(self) -> &'a [u8] {
        self.0
    }

    /// True when it holds no pair.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Its pairs in their order, duplicates included.
    pub fn iter(self) -> impl Iterator<Item = (ShortStr<'a>, Value<'a>)> {
        let mut reader = Reader::new(self.0);
        // The bytes were checked when the table was made, so this ends at the end and not before.
        std::iter::from_fn(move || {
            let name = ShortStr::read(&mut reader).ok()?;
            Some((name, read_value(&mut reader).ok()?))
        })
    }

    /// The first value of that name.
    pub fn first(self, name: &str) -> Option<Value<'a>> {
        self.iter()
            .find(|(n, _)| n.as_bytes() == name.as_bytes())
            .map(|(_, value)| value)
    }
}

impl std::fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'a> Array<'a> {
    /// The array, once every value in it is known to be well formed.
    ///
    /// # Errors
    /// What is wrong with the first malformed value.
    pub fn new(raw: &'a [u8]) -> Result<Self, FieldError> {
        check_array(raw, 0)?;
        Ok(Self(raw))
    }

    /// The raw bytes, without the length in front.
    pub fn raw(self) -> &'a [u8] {
        self.0
    }

    /// Its values in their order.
    pub fn iter(self) -> impl Iterator<Item = Value<'a>> {
        let mut reader = Reader::new(self.0);
        std::iter::from_fn(move || {
            if reader.rest().is_empty() {
                None
            } else {
                read_value(&mut reader).ok()
            }
        })
    }
}

impl std::fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

fn check_table(raw: &[u8], depth: u32) -> Result<(), FieldError> {
    let mut reader = Reader::new(raw);
    while !reader.rest().is_empty() {
        ShortStr::read(&mut reader)?;
        check_value(&mut reader, depth)?;
    }
    Ok(())
}

fn check_array(raw: &[u8], depth: u32) -> Result<(), FieldError> {
    let mut reader = Reader::new(raw);
    while !reader.rest().is_empty() {
        check_value(&mut reader, depth)?;
    }
    Ok(())
}

fn check_value(reader: &mut Reader<'_>, depth: u32) -> Result<(), FieldError> {
    match read_value(reader)? {
        Value::Table(Table(_)) | Value::Array(Array(_)) if depth >= DEPTH_MAX => {
            Err(FieldError::TooDeep)
        }
        Value::Table(Table(raw)) => check_table(raw, depth + 1),
        Value::Array(Array(raw)) => check_array(raw, depth + 1),
        _ => Ok(()),
    }
}

/// Reads one value; what is nested in it is not looked into.
fn read_value<'a>(reader: &mut Reader<'a>) -> Result<Value<'a>, FieldError> {
    let [tag] = reader.array::<1>()?;
    Ok(match tag {
        b't' => Value::Bool(reader.array::<1>()? != [0]),
        b'b' => Value::I8(i8::from_be_bytes(reader.array()?)),
        b'B' => Value::U8(u8::from_be_bytes(reader.array()?)),
        b's' => Value::I16(i16::from_be_bytes(reader.array()?)),
        b'U' => Value::StandardI16(i16::from_be_bytes(reader.array()?)),
        b'u' => Value::U16(u16::from_be_bytes(reader.array()?)),
        b'I' => Value::I32(i32::from_be_bytes(reader.array()?)),
        b'i' => Value::U32(u32::from_be_bytes(reader.array()?)),
        b'l' => Value::I64(i64::from_be_bytes(reader.array()?)),
        b'L' => Value::StandardI64(i64::from_be_bytes(reader.array()?)),
        b'f' => Value::F32(f32::from_be_bytes(reader.array()?)),
        b'd' => Value::F64(f64::from_be_bytes(reader.array()?)),
        b'D' => {
            let [scale] = reader.array::<1>()?;
            Value::Decimal(scale, i32::from_be_bytes(reader.array()?))
        }
        b'S' => Value::LongStr(LongStr::read(reader)?),
        b'x' => Value::Bytes(LongStr::read(reader)?.0),
        b'A' => Value::Array(Array(LongStr::read(reader)?.0)),
        b'T' => Value::Timestamp(u64::from_be_bytes(reader.array()?)),
        b'F' => Value::Table(Table(LongStr::read(reader)?.0)),
        b'V' => Value::Void,
        other => return Err(FieldError::UnknownValueType(other)),
    })
}

impl<'a> Value<'a> {
    /// A long string value.
    pub fn text(text: &'a str) -> Self {
        Value::LongStr(LongStr(text.as_bytes()))
    }

    /// The number it is, when it is an integer of any width.
    pub fn as_i64(self) -> Option<i64> {
        Some(match self {
            Value::I8(n) => n.into(),
            Value::U8(n) => n.into(),
            Value::I16(n) | Value::StandardI16(n) => n.into(),
            Value::U16(n) => n.into(),
            Value::I32(n) => n.into(),
            Value::U32(n) => n.into(),
            Value::I64(n) | Value::StandardI64(n) => n,
            _ => return None,
        })
    }

    /// The octets it is, when it is a long string.
    pub fn as_long_str(self) -> Option<&'a [u8]> {
        match self {
            Value::LongStr(LongStr(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

/// Appends a value with its tag.
fn put_value(out: &mut BytesMut, value: Value<'_>) {
    fn put_long(out: &mut BytesMut, tag: u8, bytes: &[u8]) {
        out.put_u8(tag);
        out.put_u32(bytes.len() as u32);
        out.put_slice(bytes);
    }
    match value {
        Value::Bool(b) => out.put_slice(&[b't', u8::from(b)]),
        Value::I8(n) => out.put_slice(&[b'b', n as u8]),
        Value::U8(n) => out.put_slice(&[b'B', n]),
        Value::I16(n) => {
            out.put_u8(b's');
            out.put_i16(n);
        }
        Value::StandardI16(n) => {
            out.put_u8(b'U');
            out.put_i16(n);
        }
        Value::U16(n) => {
            out.put_u8(b'u');
            out.put_u16(n);
        }
        Value::I32(n) => {
            out.put_u8(b'I');
            out.put_i32(n);
        }
        Value::U32(n) => {
            out.put_u8(b'i');
            out.put_u32(n);
        }
        Value::I64(n) => {
            out.put_u8(b'l');
            out.put_i64(n);
        }
        Value::StandardI64(n) => {
            out.put_u8(b'L');
            out.put_i64(n);
        }
        Value::F32(n) => {
            out.put_u8(b'f');
            out.put_f32(n);
        }
        Value::F64(n) => {
            out.put_u8(b'd');
            out.put_f64(n);
        }
        Value::Decimal(scale, n) => {
            out.put_slice(&[b'D', scale]);
            out.put_i32(n);
        }
        Value::LongStr(LongStr(bytes)) => put_long(out, b'S', bytes),
        Value::Bytes(bytes) => put_long(out, b'x', bytes),
        Value::Array(array) => put_long(out, b'A', array.raw()),
        Value::Timestamp(seconds) => {
            out.put_u8(b'T');
            out.put_u64(seconds);
        }
        Value::Table(table) => put_long(out, b'F', table.raw()),
        Value::Void => out.put_u8(b'V'),
    }
}

/// Builds a field table, pair by pair, in the order given.
#[derive(Debug, Default)]
pub struct TableWriter(BytesMut);

impl TableWriter {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a pair.
    ///
    /// # Errors
    /// Gives the name back when it is longer than a short string can be; nothing is written then.
    pub fn pair<'n>(&mut self, name: &'n [u8], value: Value<'_>) -> Result<(), &'n [u8]> {
        let short = ShortStr::new(name).ok_or(name)?;
        self.0.put_u8(short.as_bytes().len() as u8);
        self.0.put_slice(short.as_bytes());
        put_value(&mut self.0, value);
        Ok(())
    }

    /// Appends a pair whose name is a literal of this crate.
    pub fn named(&mut self, name: &'static str, value: Value<'_>) -> &mut Self {
        let written = self.pair(name.as_bytes(), value);
        debug_assert!(written.is_ok(), "literal names are short");
        self
    }

    /// True when it holds no pair.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The table so far.
    pub fn table(&self) -> Table<'_> {
        Table(&self.0)
    }

    /// The raw bytes, without the length in front.
    pub fn finish(self) -> Bytes {
        self.0.freeze()
    }
}

/// Builds a field array, value by value.
#[derive(Debug, Default)]
pub struct ArrayWriter(BytesMut);

impl ArrayWriter {
    /// An empty array.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a value.
    pub fn push(&mut self, value: Value<'_>) -> &mut Self {
        put_value(&mut self.0, value);
        self
    }

    /// The array so far.
    pub fn array(&self) -> Array<'_> {
        Array(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A value that owns what is nested in it, for the generator only.
    #[derive(Clone, Debug)]
    enum Tree {
        Leaf(u8, u64),
        Str(Vec<u8>),
        Array(Vec<Tree>),
        Table(Vec<(String, Tree)>),
    }

    fn tree() -> impl Strategy<Value = Tree> {
        let leaf = prop_oneof![
            (any::<u8>(), any::<u64>()).prop_map(|(tag, bits)| Tree::Leaf(tag, bits)),
            prop::collection::vec(any::<u8>(), 0..20).prop_map(Tree::Str),
        ];
        leaf.prop_recursive(4, 24, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Tree::Array),
                prop::collection::vec(("[a-c]{0,3}", inner), 0..5).prop_map(Tree::Table),
            ]
        })
    }

    fn write_tree(tree: &Tree, put: &mut dyn FnMut(Value<'_>)) {
        match tree {
            Tree::Leaf(tag, bits) => put(match tag % 15 {
                0 => Value::Bool(bits & 1 == 1),
                1 => Value::I8(*bits as i8),
                2 => Value::U8(*bits as u8),
                3 => Value::I16(*bits as i16),
                4 => Value::StandardI16(*bits as i16),
                5 => Value::U16(*bits as u16),
                6 => Value::I32(*bits as i32),
                7 => Value::U32(*bits as u32),
                8 => Value::I64(*bits as i64),
                9 => Value::StandardI64(*bits as i64),
                10 => Value::F32(f32::from_bits(*bits as u32)),
                11 => Value::F64(f64::from_bits(*bits)),
                12 => Value::Decimal(*bits as u8, *bits as i32),
                13 => Value::Timestamp(*bits),
                _ => Value::Void,
            }),
            Tree::Str(bytes) if bytes.len() % 2 == 0 => put(Value::LongStr(LongStr(bytes))),
            Tree::Str(bytes) => put(Value::Bytes(bytes)),
            Tree::Array(items) => {
                let mut array = ArrayWriter::new();
                for item in items {
                    write_tree(item, &mut |value| {
                        array.push(value);
                    });
                }
                put(Value::Array(array.array()));
            }
            Tree::Table(pairs) => {
                let mut table = TableWriter::new();
                for (name, item) in pairs {
                    write_tree(item, &mut |value| {
                        table.pair(name.as_bytes(), value).unwrap()
                    });
                }
                put(Value::Table(table.table()));
            }
        }
    }

    /// Writes again what iterating gives, nested values taken apart and put together.
    fn rewrite(table: Table<'_>) -> Bytes {
        fn value(v: Value<'_>, put: &mut dyn FnMut(Value<'_>)) {
            match v {
                Value::Array(array) => {
                    let mut out = ArrayWriter::new();
                    for item in array.iter() {
                        value(item, &mut |v| {
                            out.push(v);
                        });
                    }
                    put(Value::Array(out.array()));
                }
                Value::Table(inner) => put(Value::Table(Table::new(&rewrite(inner)).unwrap())),
                other => put(other),
            }
        }
        let mut out = TableWriter::new();
        for (name, v) in table.iter() {
            value(v, &mut |v| out.pair(name.as_bytes(), v).unwrap());
        }
        out.finish()
    }

    proptest! {
        #[test]
        fn decoding_and_encoding_keeps_order_duplicates_and_tags(pairs in prop::collection::vec(("[a-c]{0,3}", tree()), 0..6)) {
            let mut table = TableWriter::new();
            for (name, item) in &pairs {
                write_tree(item, &mut |value| table.pair(name.as_bytes(), value).unwrap());
            }
            let raw = table.finish();
            let table = Table::new(&raw).unwrap();
            prop_assert_eq!(table.iter().count(), pairs.len());
            prop_assert_eq!(rewrite(table), raw);
        }

        #[test]
        fn random_bytes_are_a_table_or_an_error(raw in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(table) = Table::new(&raw) {
                // Only an octet other than 0 and 1 in a boolean may come back as another one.
                prop_assert_eq!(rewrite(table).len(), raw.len());
            }
        }
    }

    #[test]
    fn nesting_has_a_limit() {
        let nested = |levels: u32| {
            let mut raw = Vec::new();
            for _ in 0..levels {
                let mut outer = vec![b'A'];
                outer.extend((raw.len() as u32).to_be_bytes());
                outer.extend(&raw);
                raw = outer;
            }
            let mut table = vec![1, b'k'];
            table.extend(raw);
            table
        };
        assert!(Table::new(&nested(DEPTH_MAX)).is_ok());
        assert_eq!(Table::new(&nested(DEPTH_MAX + 1)), Err(FieldError::TooDeep));
        assert_eq!(Table::new(&nested(5000)), Err(FieldError::TooDeep));
    }

    #[test]
    fn a_malformed_pair_is_named() {
        assert_eq!(
            Table::new(&[1, b'k', b'?']),
            Err(FieldError::UnknownValueType(b'?'))
        );
        assert_eq!(Table::new(&[1, b'k', b'I', 0]), Err(FieldError::Truncated));
        assert_eq!(
            Table::new(&[1, b'k', b'F', 0, 0, 0, 2, 1, b'x']),
            Err(FieldError::Truncated)
        );
        assert_eq!(Table::new(&[1]), Err(FieldError::Truncated));
    }
}
