//! Whether a rule's pattern matches a name, an address or a filter.
//!
//! Owns the five kinds of match. Never decides anything: `ready.rs` and `engine.rs` do. Read next:
//! `template.rs` for placeholders, `filter.rs` for wildcards.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use anabranch_core::address::{Address, TopicFilter, levels};
use regex::{Regex, RegexBuilder};
use smallvec::SmallVec;

use crate::filter::{Level, before_wildcard, covers, is_wild, level, meets};
use crate::rule::{MatchKind, PATTERN_LIMIT_BYTES, RuleError};
use crate::template::{
    Named, Part, Template, Values, expand, in_levels, strip, template, value_of,
};

/// Memory of one compiled expression.
const REGEX_LIMIT_BYTES: usize = 1 << 20;
/// Compiled expressions kept for one rule whose pattern has placeholders.
const EXPANDED_LIMIT: usize = 1024;

/// A pattern made ready.
#[derive(Debug)]
pub(crate) enum Pattern {
    Literal(Template),
    Prefix(Template),
    Filter(Vec<Level>),
    Regex(Regex),
    /// Expanded at each question; remembered by expanded text.
    Expanding {
        template: Template,
        whole: bool,
        made: Mutex<HashMap<String, Option<Regex>>>,
    },
}

impl Pattern {
    /// # Errors
    /// When the text is too long or is none of its kind.
    pub(crate) fn new(kind: MatchKind, text: &str) -> Result<Pattern, RuleError> {
        if text.len() > PATTERN_LIMIT_BYTES {
            return Err(RuleError::PatternLength);
        }
        match kind {
            MatchKind::Literal => Ok(Pattern::Literal(template(text)?)),
            MatchKind::Prefix => {
                let parts = template(text)?;
                if matches!(parts.last(), Some(Part::Value(_))) {
                    return Err(RuleError::OpenPrefix);
                }
                Ok(Pattern::Prefix(parts))
            }
            MatchKind::Filter => levels(text.as_bytes())
                .map(level)
                .collect::<Result<_, _>>()
                .map(Pattern::Filter),
            MatchKind::Regex | MatchKind::RegexSearch => {
                let whole = kind == MatchKind::Regex;
                let template = template(text)?;
                if template.iter().any(|part| matches!(part, Part::Value(_))) {
                    // Broken expressions are refused now, not found out at the first question.
                    let probe = expand(&template, |_| Some(Cow::Borrowed("x"))).unwrap_or_default();
                    regex(&probe, whole)?;
                    return Ok(Pattern::Expanding {
                        template,
                        whole,
                        made: Mutex::new(HashMap::new()),
                    });
                }
                regex(text, whole).map(Pattern::Regex)
            }
        }
    }

    /// Whether it matches.
    pub(crate) fn matches(&self, subject: Named<'_>, values: Values<'_>) -> bool {
        match self {
            Pattern::Literal(template) => {
                let wild = matches!(subject, Named::Filter(text) if is_wild(text));
                !wild && strip(template, subject, values).is_some_and(str::is_empty)
            }
            Pattern::Prefix(template) => {
                let subject = match subject {
                    // What a filter can match begins with what stands before its first wildcard.
                    Named::Filter(text) => Named::Address(before_wildcard(text)),
                    other => other,
                };
                strip(template, subject, values).is_some()
            }
            Pattern::Filter(filter) => {
                let flat = subject.text().as_bytes();
                let levels: SmallVec<[&[u8]; 16]> = levels(flat).collect();
                covers(filter, &levels, matches!(subject, Named::Filter(_)), values)
            }
            Pattern::Regex(regex) => regex.is_match(subject.text()),
            Pattern::Expanding {
                template,
                whole,
                made,
            } => {
                let value = |placeholder| {
                    let value = value_of(placeholder, values, in_levels(subject))?;
                    Some(Cow::Owned(regex::escape(&value)))
                };
                let Some(text) = expand(template, value) else {
                    return false;
                };
                let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
                if made.len() >= EXPANDED_LIMIT && !made.contains_key(&text) {
                    made.clear();
                }
                made.entry(text)
                    .or_insert_with_key(|text| regex(text, *whole).ok())
                    .as_ref()
                    .is_some_and(|regex| regex.is_match(subject.text()))
            }
        }
    }
}

impl Pattern {
    /// Whether some address that `filter` stands for may match: never says no wrongly. What a deny asks
    /// when everything under a filter is to be allowed at once.
    pub(crate) fn overlaps(&self, filter: &str, values: Values<'_>) -> bool {
        match self {
            Pattern::Filter(own) => {
                let levels: SmallVec<[&[u8]; 16]> = levels(filter.as_bytes()).collect();
                meets(own, &levels, values)
            }
            Pattern::Literal(template) => {
                let value = |placeholder| value_of(placeholder, values, true);
                expand(template, value).is_some_and(|text| {
                    let text = Address(text.into());
                    TopicFilter(filter.to_owned().into()).matches(&text)
                })
            }
            Pattern::Prefix(_) | Pattern::Regex(_) | Pattern::Expanding { .. } => {
                is_wild(filter) || self.matches(Named::Address(filter), values)
            }
        }
    }
}

fn regex(text: &str, whole: bool) -> Result<Regex, RuleError> {
    let text = if whole {
        Cow::Owned(format!(r"\A(?:{text})\z"))
    } else {
        Cow::Borrowed(text)
    };
    RegexBuilder::new(&text)
        .size_limit(REGEX_LIMIT_BYTES)
        .build()
        .map_err(|error| RuleError::Regex(error.to_string()))
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
