//! Whether a rule's pattern matches a name, an address or a filter.
//!
//! Owns placeholders: a value stands for itself only. In an address it is written as one level, so it
//! never reaches across levels and never is a wildcard; an empty value matches nothing. Never decides
//! anything: `engine.rs` does.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use anabranch_core::address::{Address, MANY, ONE, TopicFilter, levels};
use regex::{Regex, RegexBuilder};
use smallvec::SmallVec;

use crate::rule::{MatchKind, PATTERN_LIMIT_BYTES, RuleError};

/// Memory of one compiled expression.
const REGEX_LIMIT_BYTES: usize = 1 << 20;
/// Compiled expressions kept for one rule whose pattern has placeholders.
const EXPANDED_LIMIT: usize = 1024;

/// What placeholders stand for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Values<'a> {
    pub(crate) user: &'a str,
    pub(crate) client_id: &'a str,
    pub(crate) vhost: &'a str,
}

/// What a pattern is compared with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// A name without levels.
    Name(&'a str),
    /// A canonical address.
    Address(&'a str),
    /// A canonical filter: matched when all it can match is.
    Filter(&'a str),
}

impl<'a> Subject<'a> {
    fn text(self) -> &'a str {
        match self {
            Subject::Name(text) | Subject::Address(text) | Subject::Filter(text) => text,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placeholder {
    User,
    ClientId,
    Vhost,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Value(Placeholder),
}

/// Text with placeholders.
type Template = Vec<Part>;

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

/// A level of a filter.
#[derive(Debug)]
pub(crate) enum Level {
    One,
    Many,
    Text(Template),
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
    pub(crate) fn matches(&self, subject: Subject<'_>, values: Values<'_>) -> bool {
        match self {
            Pattern::Literal(template) => {
                let wild = matches!(subject, Subject::Filter(text) if is_wild(text));
                !wild && strip(template, subject, values).is_some_and(str::is_empty)
            }
            Pattern::Prefix(template) => {
                let subject = match subject {
                    // What a filter can match begins with what stands before its first wildcard.
                    Subject::Filter(text) => Subject::Address(before_wildcard(text)),
                    other => other,
                };
                strip(template, subject, values).is_some()
            }
            Pattern::Filter(filter) => {
                let flat = subject.text().as_bytes();
                let levels: SmallVec<[&[u8]; 16]> = levels(flat).collect();
                covers(
                    filter,
                    &levels,
                    matches!(subject, Subject::Filter(_)),
                    values,
                )
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
                is_wild(filter) || self.matches(Subject::Address(filter), values)
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

fn template(text: &str) -> Result<Template, RuleError> {
    let mut parts = Template::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, after)) = after.split_once('}') else {
            break;
        };
        let placeholder = match name {
            "user" => Placeholder::User,
            "client_id" => Placeholder::ClientId,
            "vhost" => Placeholder::Vhost,
            _ => return Err(RuleError::Placeholder(name.to_owned())),
        };
        if !before.is_empty() {
            parts.push(Part::Text(before.to_owned()));
        }
        parts.push(Part::Value(placeholder));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}

fn level(bytes: &[u8]) -> Result<Level, RuleError> {
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

fn in_levels(subject: Subject<'_>) -> bool {
    !matches!(subject, Subject::Name(_))
}

/// What a placeholder stands for, in the spelling of an address when `in_levels`; none when empty.
fn value_of<'a>(
    placeholder: Placeholder,
    values: Values<'a>,
    in_levels: bool,
) -> Option<Cow<'a, str>> {
    let value = match placeholder {
        Placeholder::User => values.user,
        Placeholder::ClientId => values.client_id,
        Placeholder::Vhost => values.vhost,
    };
    if value.is_empty() {
        None
    } else if in_levels {
        Some(as_level(value))
    } else {
        Some(Cow::Borrowed(value))
    }
}

/// Text as one level of a canonical address.
fn as_level(text: &str) -> Cow<'_, str> {
    if !text.contains(['/', '+', '#', '\0', '%']) {
        return Cow::Borrowed(text);
    }
    let mut level = String::with_capacity(text.len() + 8);
    for (at, character) in text.char_indices() {
        match character {
            '/' => level.push_str("%2F"),
            '+' => level.push_str("%2B"),
            '#' => level.push_str("%23"),
            '\0' => level.push_str("%00"),
            '%' => {
                level.push('%');
                if looks_escaped(text.get(at + 1..).unwrap_or_default()) {
                    level.push_str("25");
                }
            }
            other => level.push(other),
        }
    }
    Cow::Owned(level)
}

/// Whether what follows a `%` makes it look like an escape: any number of `25`, then a code in use.
fn looks_escaped(mut rest: &str) -> bool {
    loop {
        if ["2F", "2B", "23", "00"]
            .iter()
            .any(|code| rest.starts_with(code))
        {
            return true;
        }
        match rest.strip_prefix("25") {
            Some(after) => rest = after,
            None => return false,
        }
    }
}

fn expand<'a>(
    template: &[Part],
    value: impl Fn(Placeholder) -> Option<Cow<'a, str>>,
) -> Option<String> {
    let mut text = String::new();
    for part in template {
        match part {
            Part::Text(part) => text.push_str(part),
            Part::Value(placeholder) => text.push_str(&value(*placeholder)?),
        }
    }
    Some(text)
}

/// What is left of the subject's text after the template.
fn strip<'a>(template: &[Part], subject: Subject<'a>, values: Values<'_>) -> Option<&'a str> {
    let mut rest = subject.text();
    for part in template {
        rest = match part {
            Part::Text(text) => rest.strip_prefix(text.as_str())?,
            Part::Value(placeholder) => {
                let value = value_of(*placeholder, values, in_levels(subject))?;
                rest.strip_prefix(&*value)?
            }
        };
    }
    Some(rest)
}

fn is_wild(filter: &str) -> bool {
    levels(filter.as_bytes()).any(|level| level == ONE || level == MANY)
}

/// The text before a filter's first wildcard, its separator included. `a/#` also matches `a`, which a
/// prefix `a/` does not; what is delivered is asked about once more by its own address.
fn before_wildcard(filter: &str) -> &str {
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
fn covers(filter: &[Level], flat: &[&[u8]], wild: bool, values: Values<'_>) -> bool {
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
                        strip(template, Subject::Address(text), values).is_some_and(str::is_empty)
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
fn meets(own: &[Level], filter: &[&[u8]], values: Values<'_>) -> bool {
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
                    strip(template, Subject::Address(text), values).is_some_and(str::is_empty)
                })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values() -> Values<'static> {
        Values {
            user: "anna",
            client_id: "c/1",
            vhost: "v",
        }
    }

    fn address(kind: MatchKind, pattern: &str, text: &str) -> bool {
        Pattern::new(kind, pattern)
            .unwrap()
            .matches(Subject::Address(text), values())
    }

    fn filter(pattern: &str, text: &str) -> bool {
        Pattern::new(MatchKind::Filter, pattern)
            .unwrap()
            .matches(Subject::Filter(text), values())
    }

    #[test]
    fn each_kind_of_match_reads_its_pattern_its_own_way() {
        use MatchKind::{Filter, Literal, Prefix, Regex, RegexSearch};
        for (kind, pattern, text, expected) in [
            (Literal, "a/b", "a/b", true),
            (Literal, "a/b", "a/b/c", false),
            (Prefix, "a/", "a/b/c", true),
            (Prefix, "", "anything", true),
            (Prefix, "a/", "a", false),
            (Filter, "plant/+/temp", "plant/7/temp", true),
            (Filter, "plant/+/temp", "plant/7/8/temp", false),
            (Filter, "plant/#", "plant", true),
            (Filter, "#/temp", "plant/7/temp", true),
            (Filter, "#", "", true),
            (Filter, "+", "", false),
            (Regex, "a.c", "abc", true),
            (Regex, "a|b", "ab", false),
            (RegexSearch, "b", "abc", true),
            (Regex, "b", "abc", false),
        ] {
            assert_eq!(
                address(kind, pattern, text),
                expected,
                "{kind:?} {pattern} {text}"
            );
        }
    }

    #[test]
    fn a_filter_is_covered_only_when_all_it_can_match_is() {
        for (pattern, asked, expected) in [
            ("plant/+/temp", "plant/+/temp", true),
            ("plant/+/temp", "plant/7/temp", true),
            ("plant/+/temp", "plant/#", false),
            ("plant/+/temp", "#", false),
            ("plant/#", "plant/+/temp", true),
            ("plant/#", "plant/#", true),
            ("plant/#", "+/x", false),
            ("#", "#", true),
            ("+/#", "#", false),
            ("plant/7", "plant/+", false),
        ] {
            assert_eq!(filter(pattern, asked), expected, "{pattern} covers {asked}");
        }
        let prefix = Pattern::new(MatchKind::Prefix, "plant/").unwrap();
        assert!(prefix.matches(Subject::Filter("plant/+/x"), values()));
        assert!(!prefix.matches(Subject::Filter("+/x"), values()));
        let literal = Pattern::new(MatchKind::Literal, "plant/+").unwrap();
        assert!(!literal.matches(Subject::Filter("plant/+"), values()));
    }

    #[test]
    fn filters_without_a_common_address_do_not_overlap() {
        for (rule, asked, expected) in [
            ("plant/secret/#", "#", true),
            ("plant/secret/#", "plant/+/x", true),
            ("plant/secret/#", "plant/open/#", false),
            ("a/+", "a/+/b", false),
            ("#/a", "b/#", true),
            ("+/b", "a/c", false),
            ("a", "a/#", true),
            ("own/${user}", "own/+", true),
            ("own/${user}", "own/bert", false),
        ] {
            let pattern = Pattern::new(MatchKind::Filter, rule).unwrap();
            assert_eq!(
                pattern.overlaps(asked, values()),
                expected,
                "{rule} and {asked}"
            );
        }
    }

    #[test]
    fn a_placeholder_is_one_level_and_never_a_wildcard() {
        let own = Pattern::new(MatchKind::Filter, "own/${user}/#").unwrap();
        let asks = |user: &'static str, text: &str| {
            let values = Values {
                user,
                ..Values::default()
            };
            own.matches(Subject::Address(text), values)
        };
        assert!(asks("anna", "own/anna/x"));
        assert!(!asks("anna", "own/bert/x"));
        assert!(!asks("+", "own/bert/x"));
        assert!(asks("+", "own/%2B/x"));
        assert!(!asks("a/b", "own/a/b"));
        assert!(asks("a/b", "own/a%2Fb"));
        assert!(asks("50%", "own/50%/x"));
        assert!(asks("a%2Fb", "own/a%252Fb"));
        assert!(!asks("", "own//x"), "nobody is nobody");
    }

    #[test]
    fn placeholders_in_names_and_expressions_stand_for_themselves() {
        let name = |kind, pattern, text| {
            Pattern::new(kind, pattern)
                .unwrap()
                .matches(Subject::Name(text), values())
        };
        assert!(name(MatchKind::Literal, "q.${client_id}", "q.c/1"));
        assert!(name(MatchKind::Prefix, "${user}.", "anna.x"));
        assert!(name(MatchKind::Regex, "${user}-[0-9]+", "anna-12"));
        let dots = Values {
            user: ".*",
            ..values()
        };
        let pattern = Pattern::new(MatchKind::Regex, "${user}-1").unwrap();
        assert!(!pattern.matches(Subject::Name("bert-1"), dots));
        assert!(pattern.matches(Subject::Name(".*-1"), dots));
    }

    #[test]
    fn patterns_that_make_no_sense_are_refused() {
        use MatchKind::{Filter, Literal, Prefix, Regex};
        assert_eq!(
            Pattern::new(Literal, "${claim.x}").unwrap_err(),
            RuleError::Placeholder("claim.x".into())
        );
        assert_eq!(
            Pattern::new(Prefix, "a${user}").unwrap_err(),
            RuleError::OpenPrefix
        );
        assert_eq!(Pattern::new(Filter, "a+/b").unwrap_err(), RuleError::Filter);
        assert!(matches!(
            Pattern::new(Regex, "(").unwrap_err(),
            RuleError::Regex(_)
        ));
        assert!(matches!(
            Pattern::new(Regex, "(${user}").unwrap_err(),
            RuleError::Regex(_)
        ));
        let bomb = "a{1000}{1000}";
        assert!(matches!(
            Pattern::new(Regex, bomb).unwrap_err(),
            RuleError::Regex(_)
        ));
    }

    fn flat_address() -> impl Strategy<Value = String> {
        proptest::collection::vec("[ab]{0,1}", 1..6).prop_map(|levels| levels.join("/"))
    }

    fn flat_filter() -> impl Strategy<Value = String> {
        proptest::collection::vec(
            prop_oneof![2 => "[ab]", 1 => Just("+".to_owned()), 1 => Just("#".to_owned())],
            1..6,
        )
        .prop_map(|levels| levels.join("/"))
    }

    proptest! {
        #[test]
        fn a_filter_rule_matches_an_address_as_core_matches_it(filter in flat_filter(), text in flat_address()) {
            let core = TopicFilter::new(filter.clone().into()).unwrap()
                .matches(&Address::new(text.clone().into()).unwrap());
            prop_assert_eq!(address(MatchKind::Filter, &filter, &text), core);
        }

        #[test]
        fn what_a_rule_covers_it_matches_address_by_address(rule in flat_filter(), asked in flat_filter(), text in flat_address()) {
            let inside = TopicFilter::new(asked.clone().into()).unwrap()
                .matches(&Address::new(text.clone().into()).unwrap());
            if inside && filter(&rule, &asked) {
                prop_assert!(address(MatchKind::Filter, &rule, &text), "{} covers {} but not {}", rule, asked, text);
            }
        }

        #[test]
        fn filters_overlap_when_they_have_an_address_in_common(rule in flat_filter(), asked in flat_filter(), text in flat_address()) {
            let inside = TopicFilter::new(asked.clone().into()).unwrap()
                .matches(&Address::new(text.clone().into()).unwrap());
            let overlaps = Pattern::new(MatchKind::Filter, &rule).unwrap().overlaps(&asked, values());
            if inside && address(MatchKind::Filter, &rule, &text) {
                prop_assert!(overlaps, "{} and {} share {}", rule, asked, text);
            }
            if filter(&rule, &asked) {
                prop_assert!(overlaps, "{} covers {}", rule, asked);
            }
        }

        #[test]
        fn a_value_is_exactly_one_level(value in "[a/+#%250FB]{1,8}") {
            let level = as_level(&value).into_owned();
            prop_assert_eq!(levels(level.as_bytes()).count(), 1);
            prop_assert!(Address::new(level.into()).is_ok());
        }

        #[test]
        fn different_values_are_different_levels(one in "[a/%25F]{1,8}", other in "[a/%25F]{1,8}") {
            prop_assert_eq!(one == other, as_level(&one) == as_level(&other));
        }
    }
}
