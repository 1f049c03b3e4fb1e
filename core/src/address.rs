//! Canonical addresses and filters: the one spelling every gateway converts to and from.
//!
//! An address is a list of levels, kept flat: levels joined by `/`. Inside a level the bytes `/`, `+`,
//! `#` and NUL are written `%2F`, `%2B`, `%23`, `%00`; text that would look like such an escape gains
//! one more `25` after its `%` (the family `%(25)*XX`). So flat text is unambiguous, is valid UTF-8,
//! and can be compared, hashed and cached as bytes. A filter is the same text where a whole level `+`
//! stands for exactly one level and a whole level `#` for any number of levels (none too), anywhere.
//! The empty text is the address of no level at all.
//!
//! Owns: the types, validity and matching of one filter with one address.
//! Never: a protocol's own spelling (its gateway's `address` module) or sets of filters (`trie.rs`).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Separates levels in flat text.
pub const SEPARATOR: u8 = b'/';
/// As a whole level of a filter: exactly one level.
pub const ONE: &[u8] = b"+";
/// As a whole level of a filter: any number of levels, none too.
pub const MANY: &[u8] = b"#";
/// More levels than this are refused (the deepest walk that matching makes).
pub const LEVELS_MAX: usize = 128;
/// Longest flat text in bytes; longer is refused.
pub const ADDRESS_BYTES_MAX: usize = 65_535;

/// A canonical address as flat text. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(pub Bytes);

/// A canonical filter as flat text. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicFilter(pub Bytes);

/// Why flat text is no address or filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// More than [`ADDRESS_BYTES_MAX`].
    #[error("the address is longer than {ADDRESS_BYTES_MAX} bytes")]
    TooLong,
    /// More than [`LEVELS_MAX`] levels.
    #[error("the address has more than {LEVELS_MAX} levels")]
    TooDeep,
    /// Not UTF-8, or with a NUL.
    #[error("the address is not UTF-8 text without NUL")]
    NotText,
    /// A wildcard character where only plain text may stand.
    #[error("the address has a wildcard where none may stand")]
    Wildcard,
}

/// Walks the levels of flat text; the empty text has none.
pub fn levels(flat: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut parts = flat.split(|byte| *byte == SEPARATOR);
    if flat.is_empty() {
        parts.next();
    }
    parts
}

fn check(flat: &[u8]) -> Result<(), AddressError> {
    if flat.len() > ADDRESS_BYTES_MAX {
        return Err(AddressError::TooLong);
    }
    if flat.iter().filter(|byte| **byte == SEPARATOR).count() >= LEVELS_MAX {
        return Err(AddressError::TooDeep);
    }
    if flat.contains(&0) || std::str::from_utf8(flat).is_err() {
        return Err(AddressError::NotText);
    }
    Ok(())
}

impl Address {
    /// Checks flat text and takes it as an address.
    pub fn new(flat: Bytes) -> Result<Address, AddressError> {
        check(&flat)?;
        if flat.iter().any(|byte| matches!(byte, b'+' | b'#')) {
            return Err(AddressError::Wildcard);
        }
        Ok(Address(flat))
    }

    /// The flat text; always UTF-8 when made by [`Address::new`].
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("\u{fffd}")
    }

    /// Whether its first level starts with `$`: such addresses are hidden from leading wildcards of
    /// filters that say so.
    pub fn is_system(&self) -> bool {
        self.0.first() == Some(&b'$')
    }
}

impl TopicFilter {
    /// Checks flat text and takes it as a filter.
    pub fn new(flat: Bytes) -> Result<TopicFilter, AddressError> {
        check(&flat)?;
        let plain = |level: &[u8]| !level.iter().any(|byte| matches!(byte, b'+' | b'#'));
        if levels(&flat).all(|level| level == ONE || level == MANY || plain(level)) {
            Ok(TopicFilter(flat))
        } else {
            Err(AddressError::Wildcard)
        }
    }

    /// The flat text; always UTF-8 when made by [`TopicFilter::new`].
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("\u{fffd}")
    }

    /// Whether it has a wildcard level.
    pub fn is_wild(&self) -> bool {
        levels(&self.0).any(|level| level == ONE || level == MANY)
    }

    /// Whether its first level is a wildcard.
    pub fn starts_wild(&self) -> bool {
        matches!(levels(&self.0).next(), Some(level) if level == ONE || level == MANY)
    }

    /// Whether it matches `address`, wildcards alone considered.
    pub fn matches(&self, address: &Address) -> bool {
        let filter: Vec<&[u8]> = levels(&self.0).collect();
        let address: Vec<&[u8]> = levels(&address.0).collect();
        matches(&filter, &address)
    }
}

/// Greedy with one point of return, so it is linear in practice and quadratic at worst.
pub(crate) fn matches(filter: &[&[u8]], address: &[&[u8]]) -> bool {
    let (mut at, mut level) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while level < address.len() {
        if at < filter.len() && filter[at] == MANY {
            retry = Some((at + 1, level));
            at += 1;
        } else if at < filter.len() && (filter[at] == ONE || filter[at] == address[level]) {
            at += 1;
            level += 1;
        } else if let Some((back, consumed)) = retry {
            retry = Some((back, consumed + 1));
            at = back;
            level = consumed + 1;
        } else {
            return false;
        }
    }
    filter[at..].iter().all(|level| *level == MANY)
}

macro_rules! text_serde {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $name::new(Bytes::from(text)).map_err(serde::de::Error::custom)
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl std::str::FromStr for $name {
            type Err = AddressError;
            fn from_str(text: &str) -> Result<Self, AddressError> {
                $name::new(Bytes::copy_from_slice(text.as_bytes()))
            }
        }
    };
}
text_serde!(Address);
text_serde!(TopicFilter);

#[cfg(test)]
mod tests {
    use super::*;

    fn check(filter: &str, address: &str, expected: bool) {
        let filter: TopicFilter = filter.parse().unwrap();
        let address: Address = address.parse().unwrap();
        assert_eq!(
            filter.matches(&address),
            expected,
            "{filter} with {address}"
        );
    }

    #[test]
    fn wildcards_are_whole_levels() {
        check("a/+/c", "a/b/c", true);
        check("a/+/c", "a//c", true);
        check("a/+", "a", false);
        check("a/#", "a", true);
        check("a/#", "a/b/c", true);
        check("#", "a", true);
        check("+", "", false);
        check("#", "", true);
        check("", "", true);
        check("+/+", "/", true);
        check("a/#/z", "a/z", true);
        check("a/#/z", "a/b/z/c/z", true);
        check("a/#/z", "a/b/z/c", false);
        check("#/#", "", true);
        check("#/+", "x", true);
    }

    #[test]
    fn a_wildcard_inside_a_level_is_refused() {
        assert_eq!("a/b+".parse::<TopicFilter>(), Err(AddressError::Wildcard));
        assert_eq!("a/+".parse::<Address>(), Err(AddressError::Wildcard));
    }

    #[test]
    fn too_many_levels_are_refused() {
        let deep = "/".repeat(LEVELS_MAX);
        assert_eq!(deep.parse::<Address>(), Err(AddressError::TooDeep));
        assert!("/".repeat(LEVELS_MAX - 1).parse::<Address>().is_ok());
    }
}
