//! Topic text and canonical addresses.
//!
//! Canonical flat text was chosen to be topic text: levels joined by `/`, with `%2F %2B %23 %00`
//! for what a level of another protocol holds and topic text cannot. So every topic name is its
//! own address and every topic filter its own canonical filter, and nothing is converted on the
//! way. The one address without topic text is that of no level, since a topic name has at least
//! one character [MQTT-4.7.3-1]: it is written `%`, and the topics that look like it, `%`, `%25`,
//! `%2525` and so on, are addresses with one `25` more.
//!
//! Validity of topic text is [`crate::codec::topic`]'s; matching is the core's.

use anabranch_core::address::{Address, AddressError, TopicFilter};
use bytes::Bytes;
use std::borrow::Cow;

/// How the address of no level is written.
const NO_LEVEL: &[u8] = b"%";
/// What an address gains that would be read as that of no level.
const ESCAPED: &[u8] = b"25";

/// Whether it is `%` and any number of `25`.
fn looks_like_no_level(text: &[u8]) -> bool {
    match text.split_first() {
        Some((b'%', rest)) => rest.chunks(ESCAPED.len()).all(|pair| pair == ESCAPED),
        _ => false,
    }
}

/// What stands for the topic text, when that is not the text itself.
fn unescaped(topic: &[u8]) -> Option<&[u8]> {
    let special = looks_like_no_level(topic);
    special.then(|| match topic.len() {
        1 => &topic[1..],
        length => &topic[..length - ESCAPED.len()],
    })
}

/// The address of a topic name that the codec has checked.
pub fn to_address(topic: Bytes) -> Address {
    match unescaped(&topic).map(<[u8]>::len) {
        Some(length) => Address(topic.slice(..length)),
        None => Address(topic),
    }
}

/// The topic name of an address.
pub fn to_topic(address: &Address) -> Cow<'_, [u8]> {
    if address.0.is_empty() {
        Cow::Borrowed(NO_LEVEL)
    } else if looks_like_no_level(&address.0) {
        Cow::Owned([&address.0, ESCAPED].concat())
    } else {
        Cow::Borrowed(&address.0)
    }
}

/// The canonical filter of a topic filter that the codec has checked.
///
/// # Errors
/// When the core takes no such filter.
pub fn to_filter(filter: &str) -> Result<TopicFilter, AddressError> {
    let filter = filter.as_bytes();
    let filter = unescaped(filter).unwrap_or(filter);
    TopicFilter::new(Bytes::copy_from_slice(filter))
}

/// Characters that a spelling escapes, with their codes.
type Escapes = [(char, &'static str)];

/// What one level of topic text cannot hold, with its escape.
const ESCAPES: &Escapes = &[('/', "2F"), ('+', "2B"), ('#', "23"), ('\0', "00")];

/// What one word of a dotted name cannot hold, likewise.
const WORD_ESCAPES: &Escapes = &[('.', "2E"), ('*', "2A"), ('#', "23")];

/// How many bytes of `text` (behind a `%`) are `25`s, and which character the escape behind them
/// stands for, if there is one.
fn escape_at(text: &str, escapes: &Escapes) -> Option<(usize, char)> {
    let code = text.trim_start_matches("25");
    let doubled = text.len() - code.len();
    let (character, _) = escapes
        .iter()
        .find(|(_, escape)| code.starts_with(escape))?;
    Some((doubled, *character))
}

/// One level of topic text for any text: what a level cannot hold is escaped, and what looks like
/// an escape gains `25`.
pub fn escape_level(text: &str) -> String {
    let mut level = String::with_capacity(text.len());
    for (index, character) in text.char_indices() {
        if let Some((_, escape)) = ESCAPES.iter().find(|(raw, _)| *raw == character) {
            level.push('%');
            level.push_str(escape);
            continue;
        }
        level.push(character);
        if character == '%'
            && text
                .get(index + 1..)
                .is_some_and(|behind| escape_at(behind, ESCAPES).is_some())
        {
            level.push_str("25");
        }
    }
    level
}

/// The text that [`escape_level`] made a level of.
pub fn unescape_level(level: &str) -> String {
    unescape(level, ESCAPES)
}

fn unescape(level: &str, escapes: &Escapes) -> String {
    let mut text = String::with_capacity(level.len());
    let mut left = level;
    while let Some((before, behind)) = left.split_once('%') {
        text.push_str(before);
        left = behind;
        match escape_at(behind, escapes) {
            Some((0, character)) => {
                text.push(character);
                left = behind.get(2..).unwrap_or("");
            }
            Some(_) => {
                text.push('%');
                left = behind.get(2..).unwrap_or("");
            }
            None => text.push('%'),
        }
    }
    text.push_str(left);
    text
}

/// The address of a dotted name: each word is a level.
///
/// # Errors
/// When it has more levels than the core takes.
pub fn address_of_dotted(name: &str) -> Result<Address, AddressError> {
    let levels: Vec<String> = name
        .split('.')
        .map(|word| escape_level(&unescape(word, WORD_ESCAPES)))
        .collect();
    Address::new(Bytes::from(levels.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::topic;

    #[test]
    fn any_text_is_a_level_and_comes_back() {
        for text in [
            "", "jobs", "/", "a/b+c#", "\0", "%", "%2F", "%252F", "50%", "%25", "%%2F/",
        ] {
            let level = escape_level(text);
            assert!(!level.contains(['/', '+', '#', '\0']), "{level}");
            assert_eq!(unescape_level(&level), text, "{level}");
        }
        assert_eq!(escape_level("/"), "%2F");
        assert_eq!(escape_level("%2F"), "%252F");
        assert_eq!(escape_level("50%25"), "50%25");
    }

    #[test]
    fn a_dotted_name_has_a_level_for_each_word() {
        for (name, address) in [
            ("jobs", "jobs"),
            ("", ""),
            ("a.b", "a/b"),
            ("a/b.c", "a%2Fb/c"),
            ("a%2Eb", "a.b"),
            ("a%252Eb*#", "a%2Eb*%23"),
            ("%2F", "%252F"),
        ] {
            let made = address_of_dotted(name).expect("few levels");
            assert_eq!(made.as_str(), address, "{name}");
        }
        assert!(address_of_dotted(&".".repeat(topic::LEVELS_MAX)).is_err());
    }

    #[test]
    fn topic_text_is_canonical_text() {
        for name in ["a", "/", "a//b", "a.b/c", "50%/x", "%2F", "$SYS/x", "ä"] {
            topic::check_name(name.as_bytes()).expect("legal name");
            let address = to_address(Bytes::copy_from_slice(name.as_bytes()));
            assert_eq!(Address::new(address.0.clone()).as_ref(), Ok(&address));
            assert_eq!(&*to_topic(&address), name.as_bytes());
        }
        assert_eq!(topic::LEVELS_MAX, anabranch_core::address::LEVELS_MAX);
    }

    #[test]
    fn the_address_of_no_level_has_a_legal_topic_name() {
        assert!(topic::check_name(&to_topic(&Address::default())).is_ok());
        for (address, topic) in [("", "%"), ("%", "%25"), ("%25", "%2525"), ("%2", "%2")] {
            let address = Address(Bytes::from_static(address.as_bytes()));
            assert_eq!(&*to_topic(&address), topic.as_bytes());
            assert_eq!(to_address(Bytes::from_static(topic.as_bytes())), address);
            assert_eq!(to_filter(topic).expect("a filter").0, address.0);
        }
    }
}
