//! Arguments of declarations and bindings: named values that are kept, compared and stored.
//!
//! Owns: [`Arguments`], its stored form, and when two values count as the same.
//! Never: what an argument means (its gateway's or `exchange.rs`'s business).
//! Next: `command.rs`, where they travel; `apply.rs`, where they are compared.

use crate::error::{ErrorKind, Refusal};
use crate::properties::Value;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How deep lists and tables may be nested in an argument; deeper is refused.
pub const ARGUMENT_DEPTH_MAX: usize = 16;

/// Named values, sorted by name, so that the order a client writes them in never matters. Cheap to
/// compare, safe to store: every value it can hold survives being written and read back.
#[derive(Clone, Debug, Default)]
pub struct Arguments(Vec<(Bytes, Value)>);

impl Arguments {
    /// Takes arguments as a gateway decoded them.
    ///
    /// # Errors
    /// `BadRequest` when a value is nested deeper than [`ARGUMENT_DEPTH_MAX`].
    pub fn new(mut arguments: Vec<(Bytes, Value)>) -> Result<Arguments, Refusal> {
        for (name, value) in &arguments {
            if depth(value) > ARGUMENT_DEPTH_MAX {
                let name = String::from_utf8_lossy(name);
                return Err(Refusal::new(
                    ErrorKind::BadRequest,
                    format!("argument '{name}' is nested deeper than {ARGUMENT_DEPTH_MAX} levels"),
                ));
            }
        }
        arguments.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Arguments(detached(&arguments)))
    }

    /// All of them, sorted by name.
    pub fn as_slice(&self) -> &[(Bytes, Value)] {
        &self.0
    }

    /// The first value of this name.
    pub fn named(&self, name: &[u8]) -> Option<&Value> {
        let at = self.0.partition_point(|(known, _)| &known[..] < name);
        self.0
            .get(at)
            .filter(|(known, _)| &known[..] == name)
            .map(|(_, value)| value)
    }

    /// The name of the first argument in which the two differ, with what each says; `None` when they
    /// are equivalent (whole numbers of different width are).
    pub fn difference<'a>(&'a self, other: &'a Arguments) -> Option<Difference<'a>> {
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        loop {
            let difference = match (left.peek(), right.peek()) {
                (None, None) => return None,
                (Some((name, value)), None) => (name, Some(value), None),
                (None, Some((name, value))) => (name, None, Some(value)),
                (Some((name, value)), Some((other, _))) if name < other => {
                    (name, Some(value), None)
                }
                (Some((name, _)), Some((other, value))) if name > other => {
                    (other, None, Some(value))
                }
                (Some((_, ours)), Some((_, theirs))) if equivalent(ours, theirs) => {
                    left.next();
                    right.next();
                    continue;
                }
                (Some((name, ours)), Some((_, theirs))) => (name, Some(ours), Some(theirs)),
            };
            let (name, ours, theirs) = difference;
            return Some(Difference { name, ours, theirs });
        }
    }
}

/// Identical, types and widths included: what makes two bindings one.
impl PartialEq for Arguments {
    fn eq(&self, other: &Arguments) -> bool {
        self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .zip(&other.0)
                .all(|((name, value), (other, theirs))| name == other && identical(value, theirs))
    }
}

impl Eq for Arguments {}

/// Where two sets of arguments differ.
#[derive(Clone, Copy, Debug)]
pub struct Difference<'a> {
    /// Name of the argument.
    pub name: &'a Bytes,
    /// On the side that was asked.
    pub ours: Option<&'a Value>,
    /// On the side that was compared with.
    pub theirs: Option<&'a Value>,
}

/// Whether two values say the same at a redeclaration or in a headers match: the kind of value counts
/// (a text is never a number), the width of a number does not.
pub fn equivalent(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Int(..) | Value::UInt(..), Value::Int(..) | Value::UInt(..)) => {
            whole(a) == whole(b)
        }
        (Value::Float(..) | Value::Double(..), Value::Float(..) | Value::Double(..)) => {
            fraction(a) == fraction(b)
        }
        (Value::Text(a) | Value::ShortText(a), Value::Text(b) | Value::ShortText(b)) => a == b,
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equivalent(a, b))
        }
        (Value::Table(a), Value::Table(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|((name, a), (other, b))| name == other && equivalent(a, b))
        }
        _ => a == b,
    }
}

/// Equal bit for bit, so that a value which is no number is equal to itself.
fn identical(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Float(a), Value::Float(b)) => a.to_bits() == b.to_bits(),
        (Value::Double(a), Value::Double(b)) => a.to_bits() == b.to_bits(),
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| identical(a, b))
        }
        (Value::Table(a), Value::Table(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|((name, a), (other, b))| name == other && identical(a, b))
        }
        _ => a == b,
    }
}

fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Int(number, _) => Some(i128::from(*number)),
        Value::UInt(number, _) => Some(i128::from(*number)),
        _ => None,
    }
}

fn fraction(value: &Value) -> Option<u64> {
    match value {
        Value::Float(number) => Some(f64::from(*number).to_bits()),
        Value::Double(number) => Some(number.to_bits()),
        _ => None,
    }
}

/// A copy whose bytes are its own, so that an argument does not keep a whole read buffer alive.
fn detached(entries: &[(Bytes, Value)]) -> Vec<(Bytes, Value)> {
    fn copy(value: &Value) -> Value {
        match value {
            Value::Text(text) => Value::Text(Bytes::copy_from_slice(text)),
            Value::ShortText(text) => Value::ShortText(Bytes::copy_from_slice(text)),
            Value::Binary(bytes) => Value::Binary(Bytes::copy_from_slice(bytes)),
            Value::List(values) => Value::List(values.iter().map(copy).collect()),
            Value::Table(entries) => Value::Table(detached(entries)),
            plain => plain.clone(),
        }
    }
    let copied = |(name, value): &(Bytes, Value)| (Bytes::copy_from_slice(name), copy(value));
    entries.iter().map(copied).collect()
}

/// Counts levels of nesting; looks no deeper than it must to say "too deep".
fn depth(value: &Value) -> usize {
    fn within(value: &Value, left: usize) -> usize {
        if left == 0 {
            return 1;
        }
        let inner = |deepest: usize, value: &Value| deepest.max(within(value, left - 1));
        match value {
            Value::List(values) => 1 + values.iter().fold(0, inner),
            Value::Table(entries) => 1 + entries.iter().map(|(_, value)| value).fold(0, inner),
            _ => 1,
        }
    }
    within(value, ARGUMENT_DEPTH_MAX)
}

/// The stored form of a value. Persisted: names of variants and fields never change their meaning.
/// Floating point is stored as its bits, so that every value comes back as it was.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stored {
    Void,
    Bool(bool),
    Int(i64, u8),
    Uint(u64, u8),
    FloatBits(u32),
    DoubleBits(u64),
    Decimal(u8, u32),
    Text(Octets),
    ShortText(Octets),
    Binary(Octets),
    Timestamp(u64),
    List(Vec<Stored>),
    Table(Vec<(Octets, Stored)>),
}

impl From<&Value> for Stored {
    fn from(value: &Value) -> Stored {
        match value {
            Value::Void => Stored::Void,
            Value::Bool(value) => Stored::Bool(*value),
            Value::Int(value, bits) => Stored::Int(*value, *bits),
            Value::UInt(value, bits) => Stored::Uint(*value, *bits),
            Value::Float(value) => Stored::FloatBits(value.to_bits()),
            Value::Double(value) => Stored::DoubleBits(value.to_bits()),
            Value::Decimal { scale, unscaled } => Stored::Decimal(*scale, *unscaled),
            Value::Text(value) => Stored::Text(Octets(value.clone())),
            Value::ShortText(value) => Stored::ShortText(Octets(value.clone())),
            Value::Binary(value) => Stored::Binary(Octets(value.clone())),
            Value::Timestamp(value) => Stored::Timestamp(*value),
            Value::List(values) => Stored::List(values.iter().map(Stored::from).collect()),
            Value::Table(entries) => Stored::Table(
                entries
                    .iter()
                    .map(|(name, value)| (Octets(name.clone()), Stored::from(value)))
                    .collect(),
            ),
        }
    }
}

impl From<Stored> for Value {
    fn from(stored: Stored) -> Value {
        match stored {
            Stored::Void => Value::Void,
            Stored::Bool(value) => Value::Bool(value),
            Stored::Int(value, bits) => Value::Int(value, bits),
            Stored::Uint(value, bits) => Value::UInt(value, bits),
            Stored::FloatBits(bits) => Value::Float(f32::from_bits(bits)),
            Stored::DoubleBits(bits) => Value::Double(f64::from_bits(bits)),
            Stored::Decimal(scale, unscaled) => Value::Decimal { scale, unscaled },
            Stored::Text(value) => Value::Text(value.0),
            Stored::ShortText(value) => Value::ShortText(value.0),
            Stored::Binary(value) => Value::Binary(value.0),
            Stored::Timestamp(value) => Value::Timestamp(value),
            Stored::List(values) => Value::List(values.into_iter().map(Value::from).collect()),
            Stored::Table(entries) => Value::Table(
                entries
                    .into_iter()
                    .map(|(name, value)| (name.0, Value::from(value)))
                    .collect(),
            ),
        }
    }
}

/// Bytes as readable text where they are UTF-8, else `hex:` and two digits per byte.
struct Octets(Bytes);

const HEX: &str = "hex:";

impl Serialize for Octets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.starts_with(HEX) => serializer.serialize_str(text),
            _ => {
                let digits = self.0.iter().map(|byte| format!("{byte:02x}"));
                serializer.serialize_str(&format!("{HEX}{}", digits.collect::<String>()))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Octets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Octets, D::Error> {
        let text = String::deserialize(deserializer)?;
        let Some(digits) = text.strip_prefix(HEX) else {
            return Ok(Octets(Bytes::from(text)));
        };
        let digits: Option<Vec<u8>> = digits
            .bytes()
            .map(|digit| (digit as char).to_digit(16).map(|digit| digit as u8))
            .collect();
        match digits {
            Some(digits) if digits.len() % 2 == 0 => Ok(Octets(
                digits
                    .chunks(2)
                    .map(|pair| pair[0] << 4 | pair[1])
                    .collect(),
            )),
            _ => Err(serde::de::Error::custom(
                "bytes are not pairs of hex digits",
            )),
        }
    }
}

impl Serialize for Arguments {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(
            self.0
                .iter()
                .map(|(name, value)| (Octets(name.clone()), Stored::from(value))),
        )
    }
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Arguments, D::Error> {
        let stored = Vec::<(Octets, Stored)>::deserialize(deserializer)?;
        let values = stored
            .into_iter()
            .map(|(name, value)| (name.0, value.into()));
        Arguments::new(values.collect()).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn octets() -> impl Strategy<Value = Bytes> {
        prop_oneof![
            "(hex:)?[a-z0-9]{0,6}".prop_map(Bytes::from),
            proptest::collection::vec(any::<u8>(), 0..8).prop_map(Bytes::from),
        ]
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Void),
            any::<bool>().prop_map(Value::Bool),
            (any::<i64>(), prop_oneof![Just(8u8), Just(64)]).prop_map(|(n, w)| Value::Int(n, w)),
            (any::<u64>(), prop_oneof![Just(8u8), Just(64)]).prop_map(|(n, w)| Value::UInt(n, w)),
            any::<u32>().prop_map(|bits| Value::Float(f32::from_bits(bits))),
            any::<u64>().prop_map(|bits| Value::Double(f64::from_bits(bits))),
            (any::<u8>(), any::<u32>())
                .prop_map(|(scale, unscaled)| Value::Decimal { scale, unscaled }),
            octets().prop_map(Value::Text),
            octets().prop_map(Value::ShortText),
            octets().prop_map(Value::Binary),
            any::<u64>().prop_map(Value::Timestamp),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
                proptest::collection::vec((octets(), inner), 0..4).prop_map(Value::Table),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_survives_being_stored(
            values in proptest::collection::vec((octets(), value()), 0..6),
        ) {
            let arguments = Arguments::new(values).unwrap();
            let stored = serde_json::to_vec(&arguments).unwrap();
            let back: Arguments = serde_json::from_slice(&stored).unwrap();
            prop_assert_eq!(back, arguments);
        }
    }

    fn arguments(pairs: &[(&'static str, Value)]) -> Arguments {
        let owned = pairs
            .iter()
            .map(|(name, value)| (Bytes::from_static(name.as_bytes()), value.clone()));
        Arguments::new(owned.collect()).unwrap()
    }

    #[test]
    fn a_number_of_another_width_is_equivalent_but_a_text_is_not() {
        let small = arguments(&[("ttl", Value::Int(60, 8)), ("a", Value::Bool(true))]);
        let wide = arguments(&[("a", Value::Bool(true)), ("ttl", Value::UInt(60, 64))]);
        assert!(small.difference(&wide).is_none());
        assert_ne!(small, wide);
        let text = arguments(&[
            ("a", Value::Bool(true)),
            ("ttl", Value::Text(Bytes::from_static(b"60"))),
        ]);
        assert_eq!(small.difference(&text).unwrap().name, "ttl");
    }

    #[test]
    fn a_missing_argument_is_a_difference_on_either_side() {
        let none = Arguments::default();
        let one = arguments(&[("x", Value::Void)]);
        assert!(none.difference(&one).unwrap().ours.is_none());
        assert!(one.difference(&none).unwrap().theirs.is_none());
    }

    #[test]
    fn too_deep_nesting_is_refused() {
        let nested =
            |levels: usize| (1..levels).fold(Value::Void, |inner, _| Value::List(vec![inner]));
        let with = |value| Arguments::new(vec![(Bytes::from_static(b"x"), value)]);
        assert!(with(nested(ARGUMENT_DEPTH_MAX)).is_ok());
        assert!(with(nested(ARGUMENT_DEPTH_MAX + 1)).is_err());
        let deepest = with(nested(ARGUMENT_DEPTH_MAX)).unwrap();
        let stored = serde_json::to_vec(&deepest).unwrap();
        assert_eq!(
            serde_json::from_slice::<Arguments>(&stored).unwrap(),
            deepest
        );
    }
}
