//! Topics that say when a message is to be published: `$delayed/<time>/<topic>`.
//!
//! The time is a whole number: of seconds from now up to [`SECONDS_MAX`], and beyond that the second since 1970.
//!
//! Owns the reading of such topics. Never: the waiting (core).

use anabranch_core::id::UnixMs;
use bytes::Bytes;

/// In front of them.
const ROOT: &[u8] = b"$delayed/";
/// Larger numbers are a time, not a duration: 497 days, which as a time would be in May 1971.
pub const SECONDS_MAX: u64 = 42_949_669;

/// What a topic says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Nothing of a time.
    Plain(Bytes),
    /// Publish to this topic then.
    Later(Bytes, UnixMs),
    /// It begins like one with a time and is none.
    Malformed,
}

/// Takes the time off a topic.
#[inline]
pub fn topic(topic: Bytes, now: UnixMs) -> Topic {
    match topic.first() == Some(&b'$') && topic.starts_with(ROOT) {
        true => delayed(&topic, now),
        false => Topic::Plain(topic),
    }
}

#[cold]
fn delayed(topic: &Bytes, now: UnixMs) -> Topic {
    let rest = topic.slice(ROOT.len()..);
    let Some(end) = rest.iter().position(|byte| *byte == b'/') else {
        return Topic::Malformed;
    };
    let digits = &rest[..end];
    let inner = rest.slice(end + 1..);
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    // One time in another is a mistake.
    if !is_number || inner.is_empty() || inner.starts_with(ROOT) {
        return Topic::Malformed;
    }
    let number = digits.iter().fold(0u64, |number, digit| {
        number
            .saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    });
    let due = match number <= SECONDS_MAX {
        true => now.after(number * 1000),
        false => UnixMs(number.saturating_mul(1000)),
    };
    Topic::Later(inner, due)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMs = UnixMs(1_700_000_000_000);

    fn read(text: &'static str) -> Topic {
        topic(Bytes::from_static(text.as_bytes()), NOW)
    }

    fn later(text: &'static str, due: u64) -> Topic {
        Topic::Later(Bytes::from_static(text.as_bytes()), UnixMs(due))
    }

    #[test]
    fn a_small_number_is_a_duration_and_a_large_one_a_time() {
        assert_eq!(read("$delayed/15/x/y"), later("x/y", NOW.0 + 15_000));
        assert_eq!(read("$delayed/0/x"), later("x", NOW.0));
        assert_eq!(
            read("$delayed/3600/$SYS/t"),
            later("$SYS/t", NOW.0 + 3_600_000)
        );
        // Longer than 49 days.
        assert_eq!(
            read("$delayed/42949669/x"),
            later("x", NOW.0 + 42_949_669_000)
        );
        assert_eq!(read("$delayed/1900000000/x"), later("x", 1_900_000_000_000));
        assert_eq!(
            read("$delayed/99999999999999999999999/x"),
            later("x", u64::MAX)
        );
    }

    #[test]
    fn what_says_no_time_is_no_topic() {
        for wrong in [
            "$delayed/x/y",
            "$delayed//x",
            "$delayed/-5/x",
            "$delayed/5",
            "$delayed/5/",
            "$delayed/1.5/x",
            "$delayed/",
            "$delayed/5/$delayed/5/x",
        ] {
            assert_eq!(read(wrong), Topic::Malformed, "{wrong}");
        }
        for plain in ["$delayed", "$delayedness/5/x", "x/$delayed/5/y"] {
            assert!(matches!(read(plain), Topic::Plain(_)), "{plain}");
        }
    }
}
