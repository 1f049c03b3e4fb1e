//! The configuration: where every value comes from, and what it is.
//!
//! Each key has a default. A TOML file changes it, the environment variable `ANABRANCH_SECTION__KEY`
//! changes that, a flag of the command line wins. The defaults are the list of what exists: a key that is
//! not among them is refused, and the nearest that is gets named. A gateway's section is its own: its
//! defaults are asked of it, and it reads its section itself.
//!
//! Owns: the sections of the server, merging, where a value came from.
//! Never: what a gateway's keys mean.
//! Next: `merge.rs`, then `settings.rs` and `listeners.rs`.

mod listeners;
mod merge;
mod nearest;
mod settings;

use std::path::{Path, PathBuf};

use toml::{Table, Value};

pub use listeners::ListenerKeys;
pub use merge::{ConfigError, Source};
pub use settings::{AuthSettings, LogFormat, Settings};

use merge::Merged;

/// Environment variables that are keys begin with this and have [`SEPARATOR`] between section and key.
pub const PREFIX: &str = "ANABRANCH_";
/// Between section and key in the name of an environment variable.
pub const SEPARATOR: &str = "__";
/// Variables that begin so and are no keys: the command line reads them.
pub const NOT_KEYS: [&str; 4] = [
    "ANABRANCH_CONFIG",
    "ANABRANCH_PASSWORD",
    "ANABRANCH_URL",
    "ANABRANCH_USER",
];

/// A gateway's section as the configuration sees it.
pub struct GatewaySection {
    /// Short name: the section is `[gateway.<name>]`.
    pub name: &'static str,
    /// Where it listens unless told otherwise.
    pub address: &'static str,
    /// Its own keys with their defaults.
    pub defaults: Table,
}

/// One value of the configuration, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The whole key, such as `http.address`.
    pub key: String,
    /// What it is.
    pub value: Value,
    /// Who said so.
    pub source: Source,
}

/// The configuration, whole.
#[derive(Debug)]
pub struct Config {
    /// What the server itself uses.
    pub settings: Settings,
    /// Environment variables that begin with [`PREFIX`] and are nothing that is known.
    pub strangers: Vec<String>,
    merged: Merged,
}

impl Config {
    /// Reads the configuration: defaults, then `file`, then `environment`, then `flags` (whole key and
    /// value as text).
    ///
    /// # Errors
    /// When a file cannot be read or is not TOML, a key is unknown, or a value does not fit.
    pub fn load(
        gateways: &[GatewaySection],
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        flags: &[(&'static str, &'static str, String)],
    ) -> Result<Config, ConfigError> {
        let mut merged = Merged::new(defaults(gateways));
        if let Some(path) = file {
            merged.file(path)?;
        }
        let mut variables: Vec<_> = environment
            .filter(|(name, _)| name.starts_with(PREFIX) && !NOT_KEYS.contains(&name.as_str()))
            .collect();
        variables.sort();
        let mut strangers = Vec::new();
        for (name, value) in variables {
            if !merged.variable(&name, &value)? {
                strangers.push(name);
            }
        }
        for (flag, key, value) in flags {
            merged.flag(flag, key, value)?;
        }
        let dev = merged.find("node.dev").and_then(Value::as_bool) == Some(true);
        if dev {
            // What everyone may enter listens on loopback unless told otherwise (and is refused then).
            for gateway in gateways {
                merged.stay_home(&format!("gateway.{}.address", gateway.name));
            }
        }
        let settings = settings::read(&merged)?;
        Ok(Config {
            settings,
            strangers,
            merged,
        })
    }

    /// Every key, its value and its source, in the order of the sections.
    pub fn entries(&self) -> Vec<Entry> {
        self.merged.entries()
    }

    /// A gateway's own keys.
    pub fn section_of(&self, gateway: &str) -> Table {
        let mut section = self.merged.table(&["gateway", gateway]);
        for key in listeners::KEYS {
            section.remove(key);
        }
        section
    }

    /// An error about a key: what it must be, and what it is.
    pub fn refuse(&self, key: &str, wanted: &str) -> ConfigError {
        let found = self.merged.find(key).map(Value::to_string);
        ConfigError::Range {
            from: self.merged.source(key),
            key: key.to_owned(),
            wanted: wanted.to_owned(),
            found: found.unwrap_or_default(),
        }
    }

    /// An error about a gateway's section, in the gateway's words; where they say what a key must be, with
    /// what it is and who said so.
    pub fn refuse_section(&self, gateway: &str, why: &str) -> ConfigError {
        let section = format!("gateway.{gateway}");
        for name in self.section_of(gateway).keys() {
            let key = format!("{section}.{name}");
            if let Some(wanted) = why.strip_prefix(&format!("{key} must be ")) {
                return self.refuse(&key, wanted);
            }
        }
        ConfigError::Section {
            section,
            why: why.to_owned(),
        }
    }

    /// The data folder, absolute where the working folder is known.
    pub fn data(&self) -> PathBuf {
        let data = &self.settings.node.data;
        std::path::absolute(data).unwrap_or_else(|_| data.clone())
    }
}

fn defaults(gateways: &[GatewaySection]) -> Table {
    let mut all = settings::defaults();
    let mut sections = Table::new();
    for gateway in gateways {
        let mut section = Table::new();
        listeners::put_defaults(gateway.address, &mut section);
        section.extend(gateway.defaults.clone());
        sections.insert(gateway.name.to_owned(), Value::Table(section));
    }
    all.insert("gateway".to_owned(), Value::Table(sections));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_driver::TransportKind;

    fn gateways() -> Vec<GatewaySection> {
        vec![GatewaySection {
            name: "words",
            address: "0.0.0.0:7",
            defaults: toml::from_str("length_max = 10\ngreeting = \"hello\"").unwrap(),
        }]
    }

    fn load(
        file: Option<&str>,
        environment: &[(&str, &str)],
        flags: &[(&'static str, &'static str, String)],
    ) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("anabranch.toml");
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
        }
        let environment = environment
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        Config::load(&gateways(), file.map(|_| &*path), environment, flags)
    }

    fn entry(config: &Config, key: &str) -> (Value, Source) {
        let entries = config.entries();
        let entry = entries.into_iter().find(|entry| entry.key == key).unwrap();
        (entry.value, entry.source)
    }

    #[test]
    fn the_defaults_are_those_that_the_readme_promises() {
        let config = load(None, &[], &[]).unwrap();
        let settings = &config.settings;
        assert_eq!(settings.http.address, "127.0.0.1:15672".parse().unwrap());
        assert_eq!(settings.node.data, Path::new("./data"));
        let words = config.listeners_of("words").unwrap();
        let plain = (TransportKind::Tcp, "0.0.0.0:7".parse().unwrap());
        assert_eq!(words.addresses, [plain]);
        assert!(!settings.node.dev);
        assert!(
            config
                .entries()
                .iter()
                .all(|entry| entry.source == Source::Default)
        );
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_file() {
        let file =
            "[http]\naddress = \"127.0.0.1:1\"\n[gateway.words]\nlength_max = 1\ngreeting = \"a\"";
        let environment = [
            ("ANABRANCH_GATEWAY__WORDS__LENGTH_MAX", "2"),
            ("ANABRANCH_HTTP__ADDRESS", "127.0.0.1:2"),
            ("ANABRANCH_URL", "for the command line, not a key"),
            ("PATH", "/bin"),
        ];
        let flags = [("--http", "http.address", "127.0.0.1:3".to_owned())];
        let config = load(Some(file), &environment, &flags).unwrap();
        assert_eq!(config.settings.http.address.port(), 3);
        assert_eq!(entry(&config, "http.address").1, Source::Flag("--http"));
        let section = config.section_of("words");
        assert_eq!(section["length_max"].as_integer(), Some(2));
        assert_eq!(section["greeting"].as_str(), Some("a"));
        assert!(!section.contains_key("address"));
        let (_, source) = entry(&config, "gateway.words.length_max");
        assert_eq!(source.to_string(), "ANABRANCH_GATEWAY__WORDS__LENGTH_MAX");
        assert!(
            entry(&config, "gateway.words.greeting")
                .1
                .to_string()
                .ends_with("anabranch.toml")
        );
    }

    #[test]
    fn an_unknown_key_is_refused_and_the_nearest_one_named() {
        for (file, said) in [
            ("[htp]\naddress = \"x\"", ["`htp`", "`http`"]),
            (
                "[http]\nadress = \"x\"",
                ["`http.adress`", "`http.address`"],
            ),
            (
                "[gateway.wrods]\nlength_max = 1",
                ["`gateway.wrods`", "`gateway.words`"],
            ),
            (
                "[gateway.words]\nlenght_max = 1",
                ["`gateway.words.lenght_max`", "`gateway.words.length_max`"],
            ),
        ] {
            let error = load(Some(file), &[], &[]).unwrap_err().to_string();
            assert!(said.iter().all(|word| error.contains(word)), "{error}");
            assert!(error.contains("anabranch.toml"), "{error}");
        }
        let error = load(None, &[("ANABRANCH_HTTP__ADRESS", "x")], &[])
            .unwrap_err()
            .to_string();
        assert!(error.contains("ANABRANCH_HTTP__ADRESS"), "{error}");
        assert!(error.contains("ANABRANCH_HTTP__ADDRESS"), "{error}");
    }

    #[test]
    fn a_variable_that_looks_like_a_key_is_refused_and_another_one_told() {
        for (slip, meant) in [
            ("ANABRANCH_HTTP_ADDRESS", "ANABRANCH_HTTP__ADDRESS"),
            ("ANABRANCH_DATA", "ANABRANCH_NODE__DATA"),
            (
                "ANABRANCH_GATEWAY_WORDS_LENGTH_MAX",
                "ANABRANCH_GATEWAY__WORDS__LENGTH_MAX",
            ),
            (
                "ANABRANCH_WORDS__LENGHT_MAX",
                "ANABRANCH_GATEWAY__WORDS__LENGTH_MAX",
            ),
        ] {
            let error = load(None, &[(slip, "1")], &[]).unwrap_err().to_string();
            assert!(error.contains(slip) && error.contains(meant), "{error}");
        }
        // Orchestrators name services so.
        let others = [
            ("ANABRANCH_PASSWORD", "of the command line"),
            ("ANABRANCH_PORT_1883_TCP_ADDR", "10.0.0.1"),
            ("ANABRANCH_SERVICE_HOST", "10.0.0.1"),
        ];
        let config = load(None, &others, &[]).unwrap();
        assert_eq!(
            config.strangers,
            ["ANABRANCH_PORT_1883_TCP_ADDR", "ANABRANCH_SERVICE_HOST"]
        );
    }

    #[test]
    fn a_section_is_known_by_its_end_and_nothing_is_guessed_from_afar() {
        let error = |file| load(Some(file), &[], &[]).unwrap_err().to_string();
        assert!(error("[words]\na = 1").contains("`gateway.words`"));
        assert!(error("dev = true").contains("`node.dev`"));
        let far = error("[cluster]\na = 1");
        assert!(
            !far.contains("nearest") && far.contains("config show"),
            "{far}"
        );
    }

    #[test]
    fn an_address_may_be_a_name_and_a_wrong_one_is_told_its_own_port() {
        let config = load(Some("[http]\naddress = \"localhost:7000\""), &[], &[]).unwrap();
        assert!(config.settings.http.address.ip().is_loopback());
        let error = load(Some("[http]\naddress = \"here\""), &[], &[]).unwrap_err();
        assert!(error.to_string().contains("127.0.0.1:15672"), "{error}");
    }

    #[test]
    fn a_value_of_another_type_or_out_of_range_is_refused_with_its_place() {
        for (file, said) in [
            ("[http]\naddress = 7", "http.address"),
            ("[http]\naddress = \"here\"", "http.address"),
            ("http = 7", "http"),
            ("[limits]\nconnections_max = 0", "limits.connections_max"),
            ("[limits]\nconnections_max = -1", "limits.connections_max"),
            (
                "[gateway.words]\nlength_max = \"ten\"",
                "gateway.words.length_max",
            ),
        ] {
            let error = load(Some(file), &[], &[]).unwrap_err().to_string();
            assert!(error.contains(said), "{file}: {error}");
        }
        let error = load(None, &[("ANABRANCH_LIMITS__CONNECTIONS_MAX", "many")], &[]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("ANABRANCH_LIMITS__CONNECTIONS_MAX"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_no_toml_says_where() {
        let error = load(Some("[http\n"), &[], &[]).unwrap_err().to_string();
        assert!(
            error.contains("anabranch.toml") && error.contains("line 1"),
            "{error}"
        );
        let missing = Path::new("/nonexistent/anabranch.toml");
        let error = Config::load(&gateways(), Some(missing), std::iter::empty(), &[]).unwrap_err();
        assert!(
            error.to_string().contains("/nonexistent/anabranch.toml"),
            "{error}"
        );
    }
}
