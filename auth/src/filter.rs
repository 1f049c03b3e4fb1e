//! Filters of rules: whether one covers, or shares an address with, what is asked about.
//!
//! Owns the two walks. Never knows whose rule it is. Read next: `pattern.rs`.

use anabranch_core::address::{MANY, ONE, levels};

use crate::rule::RuleError;
use crate::template::{Named, Template, Values, strip, template};

/// A level of a filter.
#[derive(Debug)]
pub(crate) enum Level {
    One,
    Many,
    Text(Template),
}

pub(crate) fn level(bytes: &[u8]) -> Result<Level, RuleError> {
    if bytes == ONE {
        return Ok(Level::One);
    }
    if bytes == MANY {
        return Ok(Level::Many);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| RuleError::Filter)?;
    if text.contains(['+', '#']) {
        return Err(RuleError::Filter);
    }
    template(text).map(Level::Text)
}

pub(crate) fn is_wild(filter: &str) -> bool {
    levels(filter.as_bytes()).any(|level| level == ONE || level == MANY)
}

/// The text before a filter's first wildcard, its separator included. `a/#` also matches `a`, which a
/// prefix `a/` does not; what is delivered is asked about once more by its own address.
pub(crate) fn before_wildcard(filter: &str) -> &str {
    let mut end = 0;
    for level in levels(filter.as_bytes()) {
        if level == ONE || level == MANY {
            return filter.get(..end).unwrap_or(filter);
        }
        end += level.len() + 1;
    }
    filter
}

/// Whether `filter` matches every address that `levels` stands for; `wild` says that `+` and `#` in
/// `levels` are wildcards. Then `+` is met by `+` and within `#` only, and `#` within `#` only: this
/// never says yes wrongly, and says no wrongly only for filters with `#` before other levels.
pub(crate) fn covers(filter: &[Level], flat: &[&[u8]], wild: bool, values: Values<'_>) -> bool {
    let (mut at, mut level) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while let Some(&text) = flat.get(level) {
        let step = match filter.get(at) {
            Some(Level::Many) => {
                retry = Some((at, level));
                at += 1;
                continue;
            }
            Some(Level::One) => !(wild && text == MANY),
            Some(Level::Text(template)) => {
                let plain = !wild || (text != ONE && text != MANY);
                plain
                    && std::str::from_utf8(text).is_ok_and(|text| {
                        strip(template, Named::Address(text), values).is_some_and(str::is_empty)
                    })
            }
            None => false,
        };
        if step {
            at += 1;
            level += 1;
            continue;
        }
        // Let the last `#` take one level more.
        match &mut retry {
            Some((many, taken)) => {
                *taken += 1;
                at = *many + 1;
                level = *taken;
            }
            None => return false,
        }
    }
    filter
        .get(at..)
        .is_some_and(|rest| rest.iter().all(|level| matches!(level, Level::Many)))
}

/// Whether two filters have an address in common. Walks the table of both, so its cost is their product.
pub(crate) fn meets(own: &[Level], filter: &[&[u8]], values: Values<'_>) -> bool {
    let mut row = vec![false; filter.len() + 1];
    let mut reached = vec![false; filter.len() + 1];
    if let Some(first) = reached.first_mut() {
        *first = true;
    }
    for level in own.iter().map(Some).chain([None]) {
        // Within a row, a `#` of the filter may be passed over as no level.
        for (place, text) in filter.iter().enumerate() {
            let here = reached.get(place).copied().unwrap_or_default();
            let many = *text == MANY || matches!(level, Some(Level::Many));
            if here
                && many
                && let Some(next) = reached.get_mut(place + 1)
            {
                *next = true;
            }
        }
        let Some(level) = level else {
            return reached.last().copied().unwrap_or_default();
        };
        row.fill(false);
        for (place, here) in reached.iter().enumerate() {
            if !here {
                continue;
            }
            let text = filter.get(place).copied();
            // The rule's level taken with no level, or with one that the filter's `#` gives.
            if matches!(level, Level::Many) || text == Some(MANY) {
                set(&mut row, place);
            }
            if text.is_some_and(|text| text == MANY || agrees(level, text, values)) {
                set(&mut row, place + 1);
            }
        }
        std::mem::swap(&mut row, &mut reached);
    }
    false
}

fn set(row: &mut [bool], place: usize) {
    if let Some(flag) = row.get_mut(place) {
        *flag = true;
    }
}

/// Whether one level of each can be the same text.
fn agrees(level: &Level, text: &[u8], values: Values<'_>) -> bool {
    match level {
        Level::One | Level::Many => true,
        Level::Text(template) => {
            text == ONE
                || std::str::from_utf8(text).is_ok_and(|text| {
                    strip(template, Named::Address(text), values).is_some_and(str::is_empty)
                })
        }
    }
}
