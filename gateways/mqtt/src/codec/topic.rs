//! UTF-8 strings, topic names and topic filters: what is legal text.
//!
//! Owns the rules of sections 1.5.4, 4.7 and 4.8.2. It never matches a name against a filter;
//! routing is the core's.

use super::error::DecodeError;

/// The most levels a topic name or filter may have here; a deeper one is refused, never walked.
pub const LEVELS_MAX: usize = 128;

/// What every `$share` filter starts with.
const SHARE_PREFIX: &str = "$share";

/// Checks an MQTT UTF-8 string: valid UTF-8 without U+0000.
///
/// # Errors
/// [MQTT-1.5.4-1] for bytes that are not UTF-8 (surrogates included), [MQTT-1.5.4-2] for NUL.
#[inline]
pub fn check_text(bytes: &[u8]) -> Result<&str, DecodeError> {
    if bytes.contains(&0) {
        return Err(DecodeError::malformed("MQTT-1.5.4-2", "U+0000 in a string"));
    }
    str::from_utf8(bytes)
        .map_err(|_| DecodeError::malformed("MQTT-1.5.4-1", "a string is not UTF-8"))
}

/// What a byte means for a topic name; one look-up per byte keeps the check to one pass.
const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0x80;
    while byte < 256 {
        classes[byte] = NOT_ASCII;
        byte += 1;
    }
    classes[0] = NUL;
    classes[b'+' as usize] = WILDCARD;
    classes[b'#' as usize] = WILDCARD;
    classes
};
const NUL: u8 = 1;
const WILDCARD: u8 = 2;
const NOT_ASCII: u8 = 4;

/// Checks a topic name: a string of at least one character, without wildcards.
///
/// # Errors
/// As [`check_text`]; [MQTT-4.7.3-1] for an empty name, [MQTT-3.3.2-2] for a wildcard, and a name
/// of more than [`LEVELS_MAX`] levels.
#[inline]
pub fn check_name(bytes: &[u8]) -> Result<(), DecodeError> {
    let mut seen = 0;
    let mut separators = 0usize;
    for &byte in bytes {
        seen |= CLASSES[usize::from(byte)];
        separators += usize::from(byte == b'/');
    }
    if seen & (NUL | NOT_ASCII) != 0 {
        check_text(bytes)?;
    }
    if seen & WILDCARD != 0 {
        return Err(DecodeError::TopicName {
            clause: "MQTT-3.3.2-2",
            what: "wildcard",
        });
    }
    if bytes.is_empty() {
        return Err(DecodeError::TopicName {
            clause: "MQTT-4.7.3-1",
            what: "empty",
        });
    }
    if separators >= LEVELS_MAX {
        return Err(DecodeError::TopicName {
            clause: "MQTT-4.7.3",
            what: "too many levels",
        });
    }
    Ok(())
}

/// Why a topic filter cannot be subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// It has no character.
    #[error("empty topic filter [MQTT-4.7.3-1]")]
    Empty,
    /// `#` is not the whole last level.
    #[error("'#' is not the whole last level [MQTT-4.7.1-1]")]
    MultiLevel,
    /// `+` is not a whole level.
    #[error("'+' is not a whole level [MQTT-4.7.1-2]")]
    SingleLevel,
    /// More levels than [`LEVELS_MAX`].
    #[error("more than {LEVELS_MAX} levels")]
    TooManyLevels,
    /// `$share` without a share name, or with a wildcard in it.
    #[error("invalid share name [MQTT-4.8.2-1]")]
    ShareName,
    /// `$share/name` without a filter after it.
    #[error("no topic filter after the share name [MQTT-4.8.2-2]")]
    ShareFilter,
}

/// A topic filter split into what it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter<'a> {
    /// A subscription of the session's own.
    Plain(&'a str),
    /// A share of a group's subscription.
    Shared {
        /// The name of the group.
        group: &'a str,
        /// What the group subscribes to.
        filter: &'a str,
    },
}

/// Checks a topic filter and tells a shared one from a plain one.
///
/// # Errors
/// The first rule of sections 4.7.1, 4.7.3 and 4.8.2 that it breaks.
pub fn check_filter(text: &str) -> Result<Filter<'_>, FilterError> {
    let Some(rest) = text.strip_prefix(SHARE_PREFIX) else {
        check_levels(text)?;
        return Ok(Filter::Plain(text));
    };
    match rest.strip_prefix('/') {
        // `$share` alone has no share name; `$shared/x` is an ordinary filter.
        None if rest.is_empty() => Err(FilterError::ShareName),
        None => {
            check_levels(text)?;
            Ok(Filter::Plain(text))
        }
        Some(rest) => {
            let (group, filter) = rest.split_once('/').ok_or(FilterError::ShareFilter)?;
            if group.is_empty() || group.contains(['+', '#']) {
                return Err(FilterError::ShareName);
            }
            if filter.is_empty() {
                return Err(FilterError::ShareFilter);
            }
            check_levels(filter)?;
            Ok(Filter::Shared { group, filter })
        }
    }
}

fn check_levels(filter: &str) -> Result<(), FilterError> {
    if filter.is_empty() {
        return Err(FilterError::Empty);
    }
    let mut levels = filter.split('/').enumerate().peekable();
    while let Some((index, level)) = levels.next() {
        if index >= LEVELS_MAX {
            return Err(FilterError::TooManyLevels);
        }
        if level.contains('#') && (level != "#" || levels.peek().is_some()) {
            return Err(FilterError::MultiLevel);
        }
        if level.contains('+') && level != "+" {
            return Err(FilterError::SingleLevel);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_utf8_without_nul_mqtt_1_5_4() {
        assert!(check_text("a\u{FEFF}é".as_bytes()).is_ok());
        assert!(check_text(b"a\0b").is_err());
        assert!(check_text(&[0xED, 0xA0, 0x80]).is_err(), "a surrogate");
        assert!(check_text(&[0xC0, 0xAF]).is_err(), "an overlong form");
    }

    #[test]
    fn names_have_no_wildcard_and_at_least_one_character() {
        for good in ["a", "/", "a//b", "$SYS/x", "50%/x", "ä/ö"] {
            assert!(check_name(good.as_bytes()).is_ok(), "{good}");
        }
        for bad in ["", "+", "a/#", "a+b"] {
            assert!(check_name(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(check_name("/".repeat(LEVELS_MAX - 1).as_bytes()).is_ok());
        assert!(check_name("/".repeat(LEVELS_MAX).as_bytes()).is_err());
        assert!(check_name("/".repeat(65_535).as_bytes()).is_err());
    }

    fn check(filter: &str, expected: Result<Filter<'_>, FilterError>) {
        assert_eq!(check_filter(filter), expected, "{filter}");
    }

    #[test]
    fn filters_hold_the_wildcard_rules_mqtt_4_7_1() {
        for good in [
            "#",
            "+",
            "+/+",
            "/",
            "a/+/b/#",
            "sport/",
            "$SYS/#",
            "$shared/x",
        ] {
            check(good, Ok(Filter::Plain(good)));
        }
        check("", Err(FilterError::Empty));
        check("a#", Err(FilterError::MultiLevel));
        check("#/a", Err(FilterError::MultiLevel));
        check("a/#/b", Err(FilterError::MultiLevel));
        check("a+/b", Err(FilterError::SingleLevel));
        check("a/b+", Err(FilterError::SingleLevel));
        check(&"/".repeat(65_534), Err(FilterError::TooManyLevels));
    }

    #[test]
    fn shared_filters_name_a_group_and_a_filter_mqtt_4_8_2() {
        check(
            "$share/g/a/#",
            Ok(Filter::Shared {
                group: "g",
                filter: "a/#",
            }),
        );
        check(
            "$share/g//",
            Ok(Filter::Shared {
                group: "g",
                filter: "/",
            }),
        );
        check("$share", Err(FilterError::ShareName));
        check("$share//a", Err(FilterError::ShareName));
        check("$share/g+/a", Err(FilterError::ShareName));
        check("$share/g", Err(FilterError::ShareFilter));
        check("$share/g/", Err(FilterError::ShareFilter));
        check("$share/g/a#", Err(FilterError::MultiLevel));
    }
}
