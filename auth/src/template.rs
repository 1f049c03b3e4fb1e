//! Text with placeholders, and what placeholders stand for.
//!
//! Owns that a value stands for itself only: in an address it is written as one level, so that it never
//! reaches across levels and never is a wildcard; an empty value matches nothing. Read next:
//! `pattern.rs`.

use std::borrow::Cow;

use crate::rule::RuleError;

/// What placeholders stand for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Values<'a> {
    pub(crate) user: &'a str,
    pub(crate) client_id: &'a str,
    pub(crate) vhost: &'a str,
}

/// What a pattern is compared with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Named<'a> {
    /// A name without levels.
    Name(&'a str),
    /// A canonical address.
    Address(&'a str),
    /// A canonical filter: matched when all it can match is.
    Filter(&'a str),
}

impl<'a> Named<'a> {
    pub(crate) fn text(self) -> &'a str {
        match self {
            Named::Name(text) | Named::Address(text) | Named::Filter(text) => text,
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
pub(crate) type Template = Vec<Part>;

pub(crate) fn template(text: &str) -> Result<Template, RuleError> {
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

pub(crate) fn in_levels(subject: Named<'_>) -> bool {
    !matches!(subject, Named::Name(_))
}

/// What a placeholder stands for, in the spelling of an address when `in_levels`; none when empty.
pub(crate) fn value_of<'a>(
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
pub(crate) fn as_level(text: &str) -> Cow<'_, str> {
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

pub(crate) fn expand<'a>(
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
pub(crate) fn strip<'a>(
    template: &[Part],
    subject: Named<'a>,
    values: Values<'_>,
) -> Option<&'a str> {
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
