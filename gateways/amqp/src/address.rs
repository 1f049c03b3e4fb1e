//! How AMQP spells addresses: routing keys and binding patterns to and from canonical flat text.
//!
//! A routing key is a list of words joined by `.`; an address is the same list of levels joined by `/`.
//! What would be ambiguous inside a word is escaped: `%2E %2A %23` for `.`, `*`, `#` here, `%2F %2B %23
//! %00` in canonical text; text that looks like such an escape (`%(25)*XX`) gains one more `25`. So the
//! codec is a bijection between canonical addresses and keys without a raw `*` or `#` (a raw one is
//! taken as plain text and comes back escaped, hence `Message::origin_key`). Bytes that are not UTF-8
//! are written `%XX`. The empty key is the address of no level.
//!
//! Owns: both directions and the cache of a connection. Never: matching; core does that.

use std::borrow::Cow;

use anabranch_core::address::{Address, AddressError, MANY, ONE, SEPARATOR, TopicFilter};
use bytes::Bytes;
use rustc_hash::FxHashMap;

/// Longest routing key, in bytes: a short string.
pub const KEY_BYTES_MAX: usize = 255;
/// How many converted keys a connection remembers.
const CACHE_KEYS_MAX: usize = 1024;

const KEY_CODES: [(&[u8; 2], u8); 3] = [(b"2E", b'.'), (b"2A", b'*'), (b"23", b'#')];
const FLAT_CODES: [(&[u8; 2], u8); 4] = [(b"2F", b'/'), (b"2B", b'+'), (b"23", b'#'), (b"00", 0)];

/// A routing key in canonical form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The address.
    pub address: Address,
    /// The key itself when it cannot be had back from the address, else empty.
    pub origin_key: Bytes,
}

/// Looks at a `%` for an escape or something that looks like one: how often `25` is repeated and which
/// character the code stands for.
fn escape_at(rest: &[u8], codes: &[(&[u8; 2], u8)]) -> Option<(usize, u8)> {
    let mut tail = rest.strip_prefix(b"%")?;
    let mut repeats = 0;
    loop {
        let code = tail.first_chunk::<2>()?;
        if let Some((_, plain)) = codes.iter().find(|(c, _)| *c == code) {
            return Some((repeats, *plain));
        }
        if code != b"25" {
            return None;
        }
        repeats += 1;
        tail = &tail[2..];
    }
}

/// Escapes what `codes` name and what looks like an escape.
fn escape(text: &[u8], codes: &[(&[u8; 2], u8)], out: &mut Vec<u8>) {
    for (at, &byte) in text.iter().enumerate() {
        if let Some((code, _)) = codes.iter().find(|(_, plain)| *plain == byte) {
            out.push(b'%');
            out.extend_from_slice(*code);
        } else if byte == b'%' && escape_at(&text[at..], codes).is_some() {
            out.extend_from_slice(b"%25");
        } else {
            out.push(byte);
        }
    }
}

/// Undoes `escape`.
fn unescape(text: &[u8], codes: &[(&[u8; 2], u8)], out: &mut Vec<u8>) {
    let mut at = 0;
    while at < text.len() {
        match (text[at] == b'%')
            .then(|| escape_at(&text[at..], codes))
            .flatten()
        {
            Some((0, plain)) => {
                out.push(plain);
                at += 3;
            }
            Some(_) => {
                out.push(b'%');
                at += 3;
            }
            None => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
}

/// Text of a word with what is not UTF-8 written `%XX`.
fn as_text(bytes: &[u8]) -> Cow<'_, [u8]> {
    if std::str::from_utf8(bytes).is_ok() {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len() * 3);
    for chunk in bytes.utf8_chunks() {
        out.extend_from_slice(chunk.valid().as_bytes());
        for byte in chunk.invalid() {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    Cow::Owned(out)
}

fn word_to_level(word: &[u8], out: &mut Vec<u8>) {
    let mut text = Vec::with_capacity(word.len());
    unescape(word, &KEY_CODES, &mut text);
    escape(&as_text(&text), &FLAT_CODES, out);
}

fn flat_of(key: &[u8], wildcards: bool) -> Vec<u8> {
    let mut flat = Vec::with_capacity(key.len() + 8);
    for (index, word) in key.split(|byte| *byte == b'.').enumerate() {
        if index > 0 {
            flat.push(SEPARATOR);
        }
        match word {
            b"*" if wildcards => flat.extend_from_slice(ONE),
            b"#" if wildcards => flat.extend_from_slice(MANY),
            word => word_to_level(word, &mut flat),
        }
    }
    flat
}

/// Whether every byte is the same in a key and in canonical text.
#[inline]
fn is_plain(key: &[u8]) -> bool {
    key.iter()
        .all(|byte| !matches!(byte, b'.' | b'*' | b'#' | b'%' | b'/' | b'+' | 0 | 0x80..))
}

/// A routing key as an address.
///
/// # Errors
/// When it has more levels than core takes.
pub fn key_to_address(key: &Bytes) -> Result<Converted, AddressError> {
    if is_plain(key) {
        return Ok(Converted {
            address: Address(key.clone()),
            origin_key: Bytes::new(),
        });
    }
    let address = Address::new(flat_of(key, false).into())?;
    let mut back = Vec::with_capacity(key.len());
    address_to_key(&address.0, &mut back);
    let origin_key = if back == key[..] {
        Bytes::new()
    } else {
        Bytes::copy_from_slice(key)
    };
    Ok(Converted {
        address,
        origin_key,
    })
}

/// A binding pattern of a topic exchange: the word `*` is one level, the word `#` any number.
///
/// # Errors
/// When it has more levels than core takes.
pub fn pattern_to_filter(pattern: &[u8]) -> Result<TopicFilter, AddressError> {
    TopicFilter::new(flat_of(pattern, true).into())
}

/// A binding key that is compared as it is, without wildcards: that of a direct exchange.
///
/// # Errors
/// When it has more levels than core takes.
pub fn key_to_filter(key: &[u8]) -> Result<TopicFilter, AddressError> {
    TopicFilter::new(flat_of(key, false).into())
}

/// Appends the routing key of an address, of whatever length.
pub fn address_to_key(flat: &[u8], out: &mut Vec<u8>) {
    if !flat
        .iter()
        .any(|byte| matches!(byte, b'%' | b'.' | b'*' | b'#'))
    {
        out.extend(
            flat.iter()
                .map(|byte| if *byte == SEPARATOR { b'.' } else { *byte }),
        );
        return;
    }
    let mut text = Vec::with_capacity(flat.len());
    for (index, level) in flat.split(|byte| *byte == SEPARATOR).enumerate() {
        if index > 0 {
            out.push(b'.');
        }
        text.clear();
        unescape(level, &FLAT_CODES, &mut text);
        escape(&text, &KEY_CODES, out);
    }
}

/// Cuts a routing key that is too long for a short string: its beginning, `~` and a hash of the whole.
/// What it stands for then travels in a header.
pub fn cut_key(key: &mut Vec<u8>) -> bool {
    if key.len() <= KEY_BYTES_MAX {
        return false;
    }
    // FNV-1a: stable across versions and machines, so that equal addresses keep equal keys.
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut end = KEY_BYTES_MAX - 1 - HASH_DIGITS;
    // Not inside a character.
    while end > 0 && key[end] & 0xC0 == 0x80 {
        end -= 1;
    }
    key.truncate(end);
    key.extend_from_slice(format!("~{hash:016x}").as_bytes());
    true
}

/// Hash digits at the end of a key that was cut.
const HASH_DIGITS: usize = 16;

/// Whether an address may be that of a key that was cut.
pub fn looks_cut(address: &Address) -> bool {
    let rest = address.0.len().checked_sub(HASH_DIGITS + 1);
    rest.is_some_and(|at| {
        let (mark, digits) = (address.0[at], &address.0[at + 1..]);
        mark == b'~' && digits.iter().all(u8::is_ascii_hexdigit)
    })
}

/// Whether `cut` is the address of the key that `whole` is cut to.
pub fn is_cut_of(cut: &Address, whole: &Address) -> bool {
    let mut key = Vec::new();
    address_to_key(&whole.0, &mut key);
    cut_key(&mut key)
        && key_to_address(&Bytes::from(key)).is_ok_and(|converted| converted.address == *cut)
}

/// Keys a connection converted before.
#[derive(Debug, Default)]
pub struct KeyCache {
    known: FxHashMap<Box<[u8]>, Converted>,
}

impl KeyCache {
    /// The canonical form of a routing key; shares `key` when nothing in it is special.
    ///
    /// # Errors
    /// As `key_to_address`.
    #[inline]
    pub fn convert(
        &mut self,
        key: &[u8],
        keep: impl FnOnce() -> Bytes,
    ) -> Result<Converted, AddressError> {
        if is_plain(key) {
            return Ok(Converted {
                address: Address(keep()),
                origin_key: Bytes::new(),
            });
        }
        if let Some(known) = self.known.get(key) {
            return Ok(known.clone());
        }
        let converted = key_to_address(&Bytes::copy_from_slice(key))?;
        if self.known.len() >= CACHE_KEYS_MAX {
            self.known.clear();
        }
        self.known.insert(key.into(), converted.clone());
        Ok(converted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(key: &str) -> String {
        key_to_address(&Bytes::copy_from_slice(key.as_bytes()))
            .unwrap()
            .address
            .to_string()
    }

    fn key(flat: &str) -> String {
        let mut out = Vec::new();
        address_to_key(flat.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn examples_of_the_design() {
        for (key_text, flat) in [
            ("a.b.c", "a/b/c"),
            ("a.b%2Ec", "a/b.c"),
            ("a.b/c", "a/b%2Fc"),
            ("50%.x", "50%/x"),
            ("spBv1%2E0.g", "spBv1.0/g"),
            ("a..b", "a//b"),
            ("", ""),
            (".", "/"),
            ("%252E", "%2E"),
            ("%2F", "%252F"),
            ("%00+", "%2500%2B"),
            ("é.ü", "é/ü"),
        ] {
            assert_eq!(address(key_text), flat);
            assert_eq!(key(flat), key_text);
        }
    }

    #[test]
    fn raw_wildcards_in_a_published_key_are_plain_text_and_the_key_is_kept() {
        let converted = key_to_address(&Bytes::from_static(b"a.*.#")).unwrap();
        assert_eq!(converted.address.as_str(), "a/*/%23");
        assert_eq!(converted.origin_key, "a.*.#");
        assert_eq!(key("a/*/%23"), "a.%2A.%23");
        let converted = key_to_address(&Bytes::from_static(b"a.\xff")).unwrap();
        assert_eq!(converted.address.as_str(), "a/%FF");
        assert_eq!(converted.origin_key, &b"a.\xff"[..]);
    }

    #[test]
    fn patterns_have_wildcards_as_whole_words_only() {
        let filter = |pattern: &str| pattern_to_filter(pattern.as_bytes()).unwrap().to_string();
        assert_eq!(filter("a.*.#"), "a/+/#");
        assert_eq!(filter("a*.b#"), "a*/b%23");
        assert_eq!(filter("#.%23"), "#/%23");
        assert_eq!(key_to_filter(b"#.*").unwrap().to_string(), "%23/*");
    }

    #[test]
    fn too_many_words_are_refused() {
        let deep = Bytes::from(vec![b'.'; 200]);
        assert_eq!(key_to_address(&deep), Err(AddressError::TooDeep));
    }

    #[test]
    fn a_long_key_is_cut_on_a_character_and_stays_distinct() {
        let mut one = "é".repeat(200).into_bytes();
        let mut two = one.clone();
        two.push(b'x');
        assert!(cut_key(&mut one) && cut_key(&mut two));
        assert!(one.len() <= KEY_BYTES_MAX && std::str::from_utf8(&one).is_ok());
        assert_ne!(one, two);
        assert!(!cut_key(&mut b"short".to_vec()));
    }

    /// Words and levels out of the pieces that are hard.
    fn text() -> impl Strategy<Value = String> {
        prop::collection::vec(
            prop_oneof![
                Just("%"),
                Just("25"),
                Just("2E"),
                Just("2A"),
                Just("23"),
                Just("2F"),
                Just("2B"),
                Just("00"),
                Just("."),
                Just("/"),
                Just("a"),
                Just("é"),
                Just("\u{0}"),
                Just("+"),
                Just("2e"),
                Just("*"),
                Just("#"),
            ],
            0..12,
        )
        .prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn keys_without_raw_wildcards_come_back_as_they_were(key_text in text()) {
            let key_text = key_text.replace(['*', '#'], "");
            let converted = key_to_address(&Bytes::from(key_text.clone())).unwrap();
            prop_assert!(converted.origin_key.is_empty());
            prop_assert_eq!(key(converted.address.as_str()), key_text);
        }

        #[test]
        fn every_canonical_address_comes_back_as_it_was(levels in prop::collection::vec(text(), 0..5)) {
            // Canonical text is what escaping any levels gives.
            let mut flat = Vec::new();
            for (index, level) in levels.iter().enumerate() {
                if index > 0 {
                    flat.push(b'/');
                }
                escape(level.as_bytes(), &FLAT_CODES, &mut flat);
            }
            let flat = String::from_utf8(flat).unwrap();
            prop_assert!(flat.parse::<Address>().is_ok());
            prop_assert_eq!(address(&key(&flat)), flat);
        }

        #[test]
        fn any_bytes_are_a_valid_address_or_refused(raw in prop::collection::vec(any::<u8>(), 0..255)) {
            if let Ok(converted) = key_to_address(&Bytes::from(raw.clone())) {
                prop_assert!(Address::new(converted.address.0.clone()).is_ok());
                let mut cache = KeyCache::default();
                for _ in 0..2 {
                    prop_assert_eq!(cache.convert(&raw, || Bytes::from(raw.clone())), Ok(converted.clone()));
                }
            }
            if let Ok(filter) = pattern_to_filter(&raw) {
                prop_assert!(TopicFilter::new(filter.0).is_ok());
            }
        }
    }
}
