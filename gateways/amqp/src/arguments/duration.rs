//! A length of time as arguments of streams write it: a whole number and one of Y, M, D, h, m, s.
//!
//! A year is 365 days and a month 30, as deployed brokers have it.

const SECOND_MS: u64 = 1000;
const DAY_MS: u64 = 24 * 3600 * SECOND_MS;

/// Milliseconds, at least a second; `None` when it is written otherwise.
pub fn read_ms(text: &[u8]) -> Option<u64> {
    let (unit, number) = text.split_last()?;
    let unit_ms = match unit {
        b'Y' => 365 * DAY_MS,
        b'M' => 30 * DAY_MS,
        b'D' => DAY_MS,
        b'h' => 3600 * SECOND_MS,
        b'm' => 60 * SECOND_MS,
        b's' => SECOND_MS,
        _ => return None,
    };
    if !number.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    (number > 0).then(|| number.saturating_mul(unit_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_units_are_known_and_nothing_else() {
        for (text, ms) in [
            ("1s", Some(1000)),
            ("5m", Some(300_000)),
            ("2h", Some(7_200_000)),
            ("7D", Some(604_800_000)),
            ("1M", Some(2_592_000_000)),
            ("1Y", Some(31_536_000_000)),
            ("99999999999999999Y", Some(u64::MAX)),
            ("0s", None),
            ("s", None),
            ("", None),
            ("7", None),
            ("7d", None),
            ("+7D", None),
            ("-7D", None),
            ("7 D", None),
            ("\u{663}s", None),
        ] {
            assert_eq!(read_ms(text.as_bytes()), ms, "{text}");
        }
    }
}
