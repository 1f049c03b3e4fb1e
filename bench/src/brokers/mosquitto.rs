//! Mosquitto with a minimal configuration.
//!
//! Owns its configuration file. Next: `mod.rs`.

use std::path::Path;
use std::process::Command;

use crate::row::Feature;

use super::probe::{answers_mqtt, first_line, free_ports};
use super::{BrokerError, Place, Running};

const PROGRAM: &str = "/usr/sbin/mosquitto";

/// What differs from its defaults.
pub const CONFIGURATION: &str = "allow_anonymous, set_tcp_nodelay, max_queued_messages 0 (no limit), max_inflight_messages 50; logs errors and warnings only; no persistence (its default)";

/// What it has not.
pub const LACKS: &[Feature] = &[Feature::Amqp];

/// Starts it.
///
/// # Errors
/// See [`BrokerError`].
pub fn start(place: &Place) -> Result<Running, BrokerError> {
    if !Path::new(PROGRAM).exists() {
        return Err(BrokerError::NotInstalled(PROGRAM.to_owned()));
    }
    let mut running = Running::new(place, "mosquitto")?;
    let [mqtt] = free_ports()?;
    let configuration = format!(
        "listener {} 127.0.0.1\n\
         allow_anonymous true\n\
         set_tcp_nodelay true\n\
         max_queued_messages 0\n\
         max_inflight_messages 50\n\
         log_dest stderr\n\
         log_type error\n\
         log_type warning\n",
        mqtt.port()
    );
    let path = running.write("mosquitto.conf", &configuration)?;
    let pid = running.spawn(Command::new(PROGRAM).arg("-c").arg(path), "mosquitto.log")?;
    running.await_ready(|_| answers_mqtt(mqtt).then_some(()))?;
    running.target.mqtt = Some(mqtt);
    running.target.pid = Some(pid);
    Ok(running)
}

/// The version it tells.
pub fn version() -> Option<String> {
    let line = first_line(Path::new(PROGRAM), &["-h"])?;
    line.rsplit(' ').next().map(str::to_owned)
}
