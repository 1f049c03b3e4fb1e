//! Layers of values over the defaults, each value with its source.
//!
//! Owns: which keys exist (those of the defaults), what type each has (that of its default), the names of
//! environment variables, the search for the nearest known key.
//! Never: what a key means.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{Entry, PREFIX, SEPARATOR};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nobody changed it.
    Default,
    /// A configuration file.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Variable(name) => f.write_str(name),
            Source::Flag(flag) => f.write_str(flag),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {error}")]
    Unreadable {
        /// Which.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file is not TOML.
    #[error("the configuration {path} is not TOML: {error}")]
    Syntax {
        /// Which.
        path: String,
        /// Where and what.
        error: Box<toml::de::Error>,
    },
    /// No such key.
    #[error("{from}: there is no key `{key}`; the nearest is `{nearest}`")]
    Unknown {
        /// Who named it.
        from: String,
        /// What it named.
        key: String,
        /// What it may have meant.
        nearest: String,
    },
    /// A key has a value of another type.
    #[error("{from}: `{key}` must be {wanted}, not {found}")]
    Type {
        /// Who said it.
        from: String,
        /// The key.
        key: String,
        /// What it must be.
        wanted: &'static str,
        /// What was said.
        found: String,
    },
    /// A value does not fit.
    #[error("{from}: `{key}` must be {wanted}, not {found}")]
    Range {
        /// Who said it.
        from: Source,
        /// The key.
        key: String,
        /// What it must be.
        wanted: String,
        /// What was said.
        found: String,
    },
    /// A gateway does not take its section.
    #[error("[{section}]: {why}")]
    Section {
        /// Which.
        section: String,
        /// What the gateway said.
        why: String,
    },
}

/// Values over their defaults.
#[derive(Debug)]
pub(crate) struct Merged {
    values: Table,
    /// Only of keys that somebody changed.
    sources: BTreeMap<String, Source>,
}

impl Merged {
    pub(crate) fn new(defaults: Table) -> Merged {
        Merged {
            values: defaults,
            sources: BTreeMap::new(),
        }
    }

    /// Lays a file over what is there.
    pub(crate) fn file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
            path: name.clone(),
            error,
        })?;
        let table: Table = toml::from_str(&text).map_err(|error| ConfigError::Syntax {
            path: name,
            error: Box::new(error),
        })?;
        self.lay(&table, "", &Source::File(path.to_owned()))
    }

    fn lay(&mut self, table: &Table, within: &str, source: &Source) -> Result<(), ConfigError> {
        for (name, value) in table {
            let key = join(within, name);
            match (self.find(&key), value) {
                (None, _) => return Err(self.unknown(source.to_string(), &key)),
                (Some(Value::Table(_)), Value::Table(inner)) => self.lay(inner, &key, source)?,
                (Some(known), value) if known.same_type(value) => {
                    self.set(&key, value.clone(), source.clone());
                }
                (Some(known), value) => {
                    return Err(ConfigError::Type {
                        from: source.to_string(),
                        key,
                        wanted: describe(known),
                        found: value.to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Takes the value of an environment variable whose name says that it is a key.
    pub(crate) fn variable(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let key = name.strip_prefix(PREFIX).unwrap_or(name);
        let key = key.to_ascii_lowercase().replace(SEPARATOR, ".");
        if self.find(&key).is_none_or(Value::is_table) {
            let nearest = variable_name(&self.nearest(&key));
            return Err(ConfigError::Unknown {
                from: "the environment".to_owned(),
                key: name.to_owned(),
                nearest,
            });
        }
        self.text(&key, text, Source::Variable(name.to_owned()))
    }

    /// Takes the value of a flag.
    pub(crate) fn flag(
        &mut self,
        flag: &'static str,
        key: &str,
        text: &str,
    ) -> Result<(), ConfigError> {
        self.text(key, text, Source::Flag(flag))
    }

    /// Sets a key from text, read as the type of its default.
    fn text(&mut self, key: &str, text: &str, source: Source) -> Result<(), ConfigError> {
        let Some(known) = self.find(key) else {
            return Err(self.unknown(source.to_string(), key));
        };
        let value = match known {
            Value::String(_) => Some(Value::String(text.to_owned())),
            Value::Array(_) => Some(Value::Array(
                text.split(',')
                    .map(str::trim)
                    .filter(|part| !part.is_empty())
                    .map(|part| Value::String(part.to_owned()))
                    .collect(),
            )),
            Value::Integer(_) => text.trim().parse().ok().map(Value::Integer),
            Value::Float(_) => text.trim().parse().ok().map(Value::Float),
            Value::Boolean(_) => text.trim().parse().ok().map(Value::Boolean),
            Value::Datetime(_) | Value::Table(_) => None,
        };
        let Some(value) = value else {
            return Err(ConfigError::Type {
                from: source.to_string(),
                key: key.to_owned(),
                wanted: describe(known),
                found: format!("{text:?}"),
            });
        };
        self.set(key, value, source);
        Ok(())
    }

    fn set(&mut self, key: &str, value: Value, source: Source) {
        let mut table = &mut self.values;
        let mut parts = key.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                table.insert(part.to_owned(), value);
                break;
            }
            match table.get_mut(part) {
                Some(Value::Table(inner)) => table = inner,
                // Callers have found the key before they set it.
                _ => return,
            }
        }
        self.sources.insert(key.to_owned(), source);
    }

    /// Moves an address that nobody set to loopback.
    pub(crate) fn stay_home(&mut self, key: &str) {
        let text = self.find(key).and_then(Value::as_str).unwrap_or_default();
        let port = text
            .parse::<SocketAddr>()
            .ok()
            .map(|address| address.port());
        if let (Some(port), Source::Default) = (port, self.source(key)) {
            let home = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            self.set(key, Value::String(home.to_string()), Source::Default);
        }
    }

    /// What a key is now.
    pub(crate) fn find(&self, key: &str) -> Option<&Value> {
        let mut parts = key.split('.');
        let mut value = self.values.get(parts.next()?)?;
        for part in parts {
            value = value.as_table()?.get(part)?;
        }
        Some(value)
    }

    /// A section.
    pub(crate) fn table(&self, path: &[&str]) -> Table {
        let found = self.find(&path.join("."));
        found.and_then(Value::as_table).cloned().unwrap_or_default()
    }

    /// Who said what a key is.
    pub(crate) fn source(&self, key: &str) -> Source {
        self.sources.get(key).cloned().unwrap_or(Source::Default)
    }

    /// All keys that have a value.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.gather(&self.values, "", &mut entries);
        entries
    }

    fn gather(&self, table: &Table, within: &str, entries: &mut Vec<Entry>) {
        for (name, value) in table {
            let key = join(within, name);
            match value {
                Value::Table(inner) => self.gather(inner, &key, entries),
                value => entries.push(Entry {
                    source: self.source(&key),
                    value: value.clone(),
                    key,
                }),
            }
        }
    }

    fn unknown(&self, from: String, key: &str) -> ConfigError {
        ConfigError::Unknown {
            from,
            key: key.to_owned(),
            nearest: self.nearest(key),
        }
    }

    /// The known key or section, of as many parts, that differs in the fewest letters.
    fn nearest(&self, key: &str) -> String {
        let mut names: Vec<String> = Vec::new();
        for entry in self.entries() {
            let parts: Vec<&str> = entry.key.split('.').collect();
            names.extend((1..=parts.len()).map(|count| parts[..count].join(".")));
        }
        let depth = key.matches('.').count();
        let of_depth = |name: &&String| name.matches('.').count() == depth;
        let same: Vec<&String> = names.iter().filter(of_depth).collect();
        let among = if same.is_empty() {
            names.iter().collect()
        } else {
            same
        };
        let nearest = among.into_iter().min_by_key(|name| distance(name, key));
        nearest.cloned().unwrap_or_default()
    }
}

fn join(within: &str, name: &str) -> String {
    if within.is_empty() {
        name.to_owned()
    } else {
        format!("{within}.{name}")
    }
}

fn variable_name(key: &str) -> String {
    format!(
        "{PREFIX}{}",
        key.replace('.', SEPARATOR).to_ascii_uppercase()
    )
}

fn describe(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "text",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a section",
    }
}

/// How many letters must be inserted, deleted or replaced to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, candidate) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *candidate);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_changed_letters() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("address", "adress"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
