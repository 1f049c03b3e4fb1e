//! The keys that every gateway has: where it listens, and what carries its bytes there.
//!
//! Owns: these keys, `[tls]` as the driver takes it.
//! Never: a gateway's own keys.

use std::net::SocketAddr;
use std::path::PathBuf;

use anabranch_driver::{ClientCertificates, Tls, TlsFiles, TransportKind};
use toml::{Table, Value};

use super::settings::{self, ClientAuth};
use super::{Config, ConfigError};

/// Keys that are no gateway's own.
pub(super) const KEYS: [&str; 6] = [
    "address",
    "tls_address",
    "ws_address",
    "wss_address",
    "ws_path",
    "ws_origins",
];

/// Where a gateway listens and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerKeys {
    /// Where, by what carries the bytes; those that are on.
    pub addresses: Vec<(TransportKind, SocketAddr)>,
    /// The only path of its WebSockets, if not any.
    pub ws_path: Option<String>,
    /// Whose pages may connect, if that is restricted.
    pub ws_origins: Vec<String>,
}

impl ListenerKeys {
    /// The key that says where a gateway listens in one of the ways.
    pub fn key(gateway: &str, kind: TransportKind) -> String {
        let name = match kind {
            TransportKind::Tcp => "address",
            TransportKind::Tls => "tls_address",
            TransportKind::Ws => "ws_address",
            TransportKind::Wss => "wss_address",
        };
        format!("gateway.{gateway}.{name}")
    }
}

const KINDS: [TransportKind; 4] = [
    TransportKind::Tcp,
    TransportKind::Tls,
    TransportKind::Ws,
    TransportKind::Wss,
];

/// Puts the keys with their defaults into a gateway's section: plain TCP only.
pub(super) fn put_defaults(address: &str, section: &mut Table) {
    for key in KEYS {
        let value = match key {
            "address" => Value::String(address.to_owned()),
            "ws_origins" => Value::Array(Vec::new()),
            _ => Value::String(String::new()),
        };
        section.insert(key.to_owned(), value);
    }
}

impl Config {
    /// Where a gateway listens and how. An empty address is a listener that is off.
    ///
    /// # Errors
    /// When one is no address, or a path or an origin is none.
    pub fn listeners_of(&self, gateway: &str) -> Result<ListenerKeys, ConfigError> {
        let mut addresses = Vec::new();
        for kind in KINDS {
            let key = ListenerKeys::key(gateway, kind);
            if self.merged.find(&key).and_then(Value::as_str) != Some("") {
                addresses.push((kind, settings::address(&self.merged, &key)?));
            }
        }
        let path_key = format!("gateway.{gateway}.ws_path");
        let path = self.merged.find(&path_key).and_then(Value::as_str);
        let path = path.filter(|path| !path.is_empty());
        if path.is_some_and(|path| !path.starts_with('/') || path.contains('?')) {
            let wanted = "empty for any path, or a path such as \"/mqtt\"";
            return Err(self.refuse(&path_key, wanted));
        }
        let origins_key = format!("gateway.{gateway}.ws_origins");
        let origins = self.merged.find(&origins_key).and_then(Value::as_array);
        let origins = origins.map(Vec::as_slice).unwrap_or_default();
        let origins: Option<Vec<String>> = origins
            .iter()
            .map(|origin| Some(origin.as_str().filter(|text| is_origin(text))?.to_owned()))
            .collect();
        let Some(ws_origins) = origins else {
            let wanted = "a list of origins such as [\"https://app.example.org\"]";
            return Err(self.refuse(&origins_key, wanted));
        };
        Ok(ListenerKeys {
            addresses,
            ws_path: path.map(str::to_owned),
            ws_origins,
        })
    }

    /// Reads the certificates that the listener of the key `listener` needs.
    ///
    /// # Errors
    /// When they are not configured, or cannot be used.
    pub fn certificates(&self, listener: &str) -> Result<Tls, ConfigError> {
        let tls = &self.settings.tls;
        let wanted = |what: &str| {
            format!(
                "the path of a PEM file with {what}, because `{listener}` is set \
                 (write both tls.certificate and tls.key)"
            )
        };
        if tls.certificate.as_os_str().is_empty() {
            let what = wanted("the certificate and those that link it to its root");
            return Err(self.refuse("tls.certificate", &what));
        }
        if tls.key.as_os_str().is_empty() {
            return Err(self.refuse("tls.key", &wanted("the certificate's private key")));
        }
        let authority = Some(tls.client_ca.clone()).filter(|path| !path.as_os_str().is_empty());
        Tls::load(TlsFiles {
            certificate: absolute(&tls.certificate),
            key: absolute(&tls.key),
            clients: authority.map(|authority| ClientCertificates {
                authority: absolute(&authority),
                required: tls.client_auth == ClientAuth::Require,
            }),
        })
        .map_err(|error| ConfigError::Section {
            section: "tls".to_owned(),
            why: error.to_string(),
        })
    }
}

fn absolute(path: &PathBuf) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.clone())
}

/// Whether it is what a browser says of a page: scheme, host and perhaps a port, without a path.
fn is_origin(text: &str) -> bool {
    let rest = text.split_once("://").map(|(_, rest)| rest);
    rest.is_some_and(|host| !host.is_empty() && !host.contains(['/', '*', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GatewaySection;

    fn load(section: &str) -> Result<ListenerKeys, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("anabranch.toml");
        std::fs::write(&file, format!("[gateway.words]\n{section}")).unwrap();
        let words = GatewaySection {
            name: "words",
            address: "0.0.0.0:7",
            defaults: Table::new(),
        };
        let config = Config::load(&[words], Some(&file), std::iter::empty(), &[]).unwrap();
        config.listeners_of("words")
    }

    #[test]
    fn every_way_has_its_key_and_an_empty_address_is_off() {
        let all = "address = \"\"\ntls_address = \"127.0.0.1:1\"\n\
                   ws_address = \"127.0.0.1:2\"\nwss_address = \"127.0.0.1:3\"";
        let found = load(all).unwrap();
        let ports = found.addresses.iter();
        let ports: Vec<_> = ports
            .map(|(kind, address)| (*kind, address.port()))
            .collect();
        let wanted = [TransportKind::Tls, TransportKind::Ws, TransportKind::Wss];
        assert_eq!(ports, wanted.into_iter().zip(1..).collect::<Vec<_>>());
        assert!(found.ws_path.is_none() && found.ws_origins.is_empty());
    }

    #[test]
    fn what_is_no_address_path_or_origin_is_refused_with_its_key() {
        for (section, said) in [
            ("tls_address = \"here\"", "gateway.words.tls_address"),
            ("ws_path = \"mqtt\"", "gateway.words.ws_path"),
            (
                "ws_origins = [\"app.example.org\"]",
                "gateway.words.ws_origins",
            ),
            (
                "ws_origins = [\"https://a.example/\"]",
                "gateway.words.ws_origins",
            ),
            ("ws_origins = [7]", "gateway.words.ws_origins"),
        ] {
            let error = load(section).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("such as"), "{error}");
        }
    }
}
