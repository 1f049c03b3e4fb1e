//! A moment as people write it.
//!
//! Owns: reading times of RFC 3339. Never: asks what time it is.

use crate::id::UnixMs;

/// A time of RFC 3339 in milliseconds since 1970; none when it is no such time or an earlier one.
pub fn unix_ms(text: &str) -> Option<UnixMs> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        let all = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| all)
    };
    let bytes = text.as_bytes();
    let marks = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    let marked = marks.iter().all(|(at, mark)| bytes.get(*at) == Some(mark));
    if !marked || !matches!(bytes.get(10), Some(b'T' | b't' | b' ')) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let sound = (1..=12).contains(&month)
        && (1..=days_of_month).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !sound {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut ms = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let length = fraction.bytes().take_while(u8::is_ascii_digit).count();
        let digits: String = fraction[..length]
            .chars()
            .chain("00".chars())
            .take(3)
            .collect();
        ms = digits.parse::<i64>().ok().filter(|_| length > 0)?;
        rest = &fraction[length..];
    }
    let offset_minutes = match rest {
        "Z" | "z" => 0,
        _ => {
            let at = text.len() - rest.len();
            let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
            let sign = match rest.as_bytes() {
                [b'+', _, _, b':', _, _] => 1,
                [b'-', _, _, b':', _, _] => -1,
                _ => return None,
            };
            sign * (hours * 60 + minutes)
        }
    };
    let minutes = (days_since_1970(year, month, day) * 24 + hour) * 60 + minute - offset_minutes;
    let unix_ms = u64::try_from((minutes * 60 + second) * 1000 + ms);
    unix_ms.ok().map(UnixMs)
}

/// Days from 1970-01-01 in the Gregorian calendar; the year is counted from March, so that a leap day is its
/// last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    const DAYS_FROM_YEAR_0_TO_1970: i64 = 719_468;
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * DAYS_OF_400_YEARS + of_era * 365 + of_era / 4 - of_era / 100 + of_year
        - DAYS_FROM_YEAR_0_TO_1970
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_rfc_3339_are_read_to_the_millisecond() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T23:59:59.5Z", 951_868_799_500),
            ("2026-11-30T11:07:46+01:00", 1_796_033_266_000),
            ("2026-11-30 05:07:46.123456-05:00", 1_796_033_266_123),
            ("2400-12-31t00:00:00z", 13_601_001_600_000),
        ] {
            assert_eq!(unix_ms(text), Some(UnixMs(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_not_read_as_one() {
        for text in [
            "",
            "2026-11-30",
            "2026-11-30T11:07:46",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-30T24:00:00Z",
            "2026-11-30T11:07:46.Z",
            "2026-11-30T11:07:46+0100",
            "2026-11-30T11:07:46Zü",
            "+026-11-30T11:07:46Z",
            "1969-12-31T23:59:59Z",
            "2026-11-30T11:07:46ü01:00",
        ] {
            assert_eq!(unix_ms(text), None, "{text}");
        }
    }
}
