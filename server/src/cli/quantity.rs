//! Bytes and times as people write them.
//!
//! Owns: what a number with a unit is. Never: which flags take one.

use std::str::FromStr;

/// A number of bytes: plain, or with KiB, MiB, GiB or TiB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bytes(pub(super) u64);

impl FromStr for Bytes {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Bytes, &'static str> {
        let units = [
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("TiB", 1 << 40),
        ];
        let bytes = measured(text, &units);
        bytes
            .map(Bytes)
            .ok_or("it is a number, or one with KiB, MiB, GiB or TiB")
    }
}

/// Milliseconds: a plain number, or one with ms, s, m, h or d.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Millis(pub(super) u64);

impl Millis {
    /// One that is not none.
    pub(super) fn some(text: &str) -> Result<Millis, &'static str> {
        match text.parse()? {
            Millis(0) => Err("it is at least 1"),
            some => Ok(some),
        }
    }
}

impl FromStr for Millis {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Millis, &'static str> {
        let units = [
            ("ms", 1),
            ("s", 1000),
            ("m", 60_000),
            ("h", 3_600_000),
            ("d", 86_400_000),
        ];
        let ms = measured(text, &units);
        ms.map(Millis)
            .ok_or("it is a number of milliseconds, or one with s, m, h or d, such as 30s")
    }
}

/// A number in the first of the units that the text ends with, or without one.
fn measured(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let with_unit = |(unit, factor): &(&str, u64)| Some((text.strip_suffix(unit)?, *factor));
    let (number, factor) = units.iter().find_map(with_unit).unwrap_or((text, 1));
    number.trim_end().parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_people_do() {
        let bytes = |text: &str| text.parse::<Bytes>().ok().map(|bytes| bytes.0);
        assert_eq!(bytes("1GiB"), Some(1 << 30));
        assert_eq!(bytes("2 KiB"), Some(2048));
        assert_eq!(bytes("77"), Some(77));
        for wrong in ["", "GiB", "1GB", "-1", "99999999999TiB"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_are_written_as_people_do() {
        let ms = |text: &str| text.parse::<Millis>().ok().map(|ms| ms.0);
        assert_eq!(ms("1500"), Some(1500));
        assert_eq!(ms("20ms"), Some(20));
        assert_eq!(ms("90s"), Some(90_000));
        assert_eq!(ms("5m"), Some(300_000));
        assert_eq!(ms("7d"), Some(604_800_000));
        assert_eq!(ms("0"), Some(0));
        for wrong in ["", "d", "7w", "-1d", "7\u{fc}", "300000000000000d"] {
            assert_eq!(ms(wrong), None, "{wrong}");
        }
        assert!(Millis::some("0s").is_err());
    }
}
