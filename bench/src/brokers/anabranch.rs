//! Anabranch itself, in development mode with a fresh data folder.
//!
//! Owns its arguments and the reading of its `ready` line. Next: `mod.rs`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::probe::first_line;
use super::{BrokerError, Place, Running};

/// What differs from its defaults.
pub const CONFIGURATION: &str = "--dev (anonymous MQTT, AMQP guest/guest), fresh data folder";

const ANY_LOOPBACK_PORT: &str = "127.0.0.1:0";
const LOG: &str = "anabranch.log";

/// Starts the binary under a name of the report.
///
/// # Errors
/// See [`BrokerError`].
pub fn start(place: &Place, name: &'static str, binary: &Path) -> Result<Running, BrokerError> {
    if !binary.exists() {
        return Err(BrokerError::NotInstalled(binary.display().to_string()));
    }
    let mut running = Running::new(place, name)?;
    let mut server = Command::new(binary);
    server
        .args(["serve", "--dev", "--data"])
        .arg(running.path("data"));
    for listener in ["--mqtt", "--amqp", "--http"] {
        server.args([listener, ANY_LOOPBACK_PORT]);
    }
    server.args(["--log", "json"]);
    let pid = running.spawn(&mut server, LOG)?;
    let addresses = running
        .await_ready(|running| ready_line(&std::fs::read_to_string(running.path(LOG)).ok()?))?;
    running.target.mqtt = addresses.mqtt;
    running.target.amqp = addresses.amqp;
    running.target.http = addresses.http;
    running.target.pid = Some(pid);
    Ok(running)
}

/// The version it tells.
pub fn version(binary: &Path) -> Option<String> {
    let line = first_line(binary, &["--version"])?;
    line.rsplit(' ').next().map(str::to_owned)
}

#[derive(Debug, Default, PartialEq)]
struct Addresses {
    mqtt: Option<SocketAddr>,
    amqp: Option<SocketAddr>,
    http: Option<SocketAddr>,
}

/// Finds the line whose message is `ready`; its fields stand at the top or under `fields`.
fn ready_line(log: &str) -> Option<Addresses> {
    log.lines().find_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        let fields = line.get("fields").unwrap_or(&line);
        let text = |name: &str| fields.get(name).or_else(|| line.get(name))?.as_str();
        (text("message")? == "ready").then(|| {
            let address = |name| text(name)?.parse().ok();
            Addresses {
                mqtt: address("mqtt"),
                amqp: address("amqp"),
                http: address("http"),
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_is_found_flat_or_nested() {
        let expected = Addresses {
            mqtt: "127.0.0.1:1".parse().ok(),
            amqp: "127.0.0.1:2".parse().ok(),
            http: "127.0.0.1:3".parse().ok(),
        };
        let flat =
            r#"{"message":"ready","mqtt":"127.0.0.1:1","amqp":"127.0.0.1:2","http":"127.0.0.1:3"}"#;
        let nested =
            format!("words\n{{\"message\":\"other\"}}\n{{\"level\":\"INFO\",\"fields\":{flat}}}\n");
        assert_eq!(ready_line(flat), Some(expected));
        assert_eq!(ready_line(&nested), ready_line(flat));
        assert_eq!(ready_line("{\"message\":\"starting\"}\nready\n"), None);
    }
}
