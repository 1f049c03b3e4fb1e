//! Layers of values over the defaults, each value with its source.
//!
//! Owns: which keys exist (those of the defaults), what type each has (that of its default), the names of
//! environment variables.
//! Never: what a key means.
//! Next: `nearest.rs`, for names that nobody knows.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::nearest::nearest;
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
    #[error("{from}: there is no key `{key}`; {}", hint(.nearest.as_deref()))]
    Unknown {
        /// Who named it.
        from: String,
        /// What it named.
        key: String,
        /// What it may have meant, if anything is near.
        nearest: Option<String>,
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

fn hint(nearest: Option<&str>) -> String {
    match nearest {
        Some(name) => format!("the nearest is `{name}`"),
        None => "`anabranch config show` prints all there are".to_owned(),
    }
}

/// Values over their defaults.
#[derive(Debug)]
pub(crate) struct Merged {
    values: Table,
    defaults: Table,
    /// Only of keys that somebody changed.
    sources: BTreeMap<String, Source>,
}

impl Merged {
    pub(crate) fn new(defaults: Table) -> Merged {
        Merged {
            values: defaults.clone(),
            defaults,
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

    /// Takes the value of an environment variable whose name begins with [`PREFIX`]; gives whether it is a
    /// key. One that looks like a key and is none is refused, so that a slip is not passed over.
    pub(crate) fn variable(&mut self, name: &str, text: &str) -> Result<bool, ConfigError> {
        let key = name.strip_prefix(PREFIX).unwrap_or(name);
        let key = key.to_ascii_lowercase().replace(SEPARATOR, ".");
        let separated = key.contains('.');
        if separated && self.find(&key).is_some_and(|value| !value.is_table()) {
            self.text(&key, text, Source::Variable(name.to_owned()))?;
            return Ok(true);
        }
        match self.nearest_variable(&key) {
            None if !separated => Ok(false),
            nearest => Err(ConfigError::Unknown {
                from: "the environment".to_owned(),
                key: name.to_owned(),
                nearest,
            }),
        }
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
        find_in(&self.values, key)
    }

    /// What a key is when nobody sets it.
    pub(crate) fn default_of(&self, key: &str) -> Option<&Value> {
        find_in(&self.defaults, key)
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

    /// The known key or section that is meant by a name, if one is near.
    fn nearest(&self, key: &str) -> Option<String> {
        let mut names: Vec<String> = Vec::new();
        for entry in self.entries() {
            let parts: Vec<&str> = entry.key.split('.').collect();
            names.extend((1..=parts.len()).map(|count| parts[..count].join(".")));
        }
        nearest(key, &names).map(str::to_owned)
    }

    /// The variable that is meant by a name, be its parts separated as they should, by one underscore, or
    /// be it the last part alone.
    fn nearest_variable(&self, key: &str) -> Option<String> {
        let keys: Vec<String> = self.entries().into_iter().map(|entry| entry.key).collect();
        if key.contains('.') {
            return nearest(key, &keys).map(variable_name);
        }
        let alone = |full: &&String| full.rsplit('.').next() == Some(key);
        if let Some(full) = keys.iter().find(alone) {
            return Some(variable_name(full));
        }
        let flat: Vec<String> = keys.iter().map(|key| key.replace('.', "_")).collect();
        let found = nearest(key, &flat)?;
        let place = flat.iter().position(|name| name == found)?;
        keys.get(place).map(|key| variable_name(key))
    }
}

fn find_in<'a>(values: &'a Table, key: &str) -> Option<&'a Value> {
    let mut parts = key.split('.');
    let mut value = values.get(parts.next()?)?;
    for part in parts {
        value = value.as_table()?.get(part)?;
    }
    Some(value)
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
