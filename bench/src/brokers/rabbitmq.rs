//! RabbitMQ with its MQTT plugin, on its own node name, folders, ports and port mapper.
//!
//! Owns its environment. Next: `mod.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::row::Feature;

use super::probe::{answers_amqp, answers_mqtt, free_ports};
use super::{BrokerError, Place, Running};

const LIBRARY: &str = "/usr/lib/rabbitmq/lib";
const PORT_MAPPER: &str = "/usr/bin/epmd";

/// What differs from its defaults.
pub const CONFIGURATION: &str = "rabbitmq_mqtt plugin, anonymous MQTT as guest; logs errors and warnings only; Erlang flags as shipped";

/// What RabbitMQ 3.10's MQTT has not. It takes a `$share` filter for an ordinary one, and answers
/// QoS 2 with QoS 1.
pub const LACKS: &[Feature] = &[
    Feature::Mqtt5,
    Feature::Qos2,
    Feature::SharedSubscription,
    Feature::RetainedByWildcard,
];

/// Starts it. The program of the installed release is run, not Debian's wrapper, which would
/// change the user and with it who owns the folder.
///
/// # Errors
/// See [`BrokerError`].
pub fn start(place: &Place) -> Result<Running, BrokerError> {
    let program =
        release().ok_or_else(|| BrokerError::NotInstalled("rabbitmq-server".to_owned()))?;
    let program = program.join("sbin/rabbitmq-server");
    let mut running = Running::new(place, "rabbitmq")?;
    let [mqtt, amqp, distribution, mapper] = free_ports()?;
    let mapper = mapper.port().to_string();

    // A port mapper of our own: one started by the node would outlive it.
    let mut epmd = Command::new(PORT_MAPPER);
    epmd.args(["-port", &mapper, "-address", "127.0.0.1"]);
    running.spawn(&mut epmd, "epmd.log")?;

    let configuration = format!(
        "listeners.tcp.1 = {amqp}\n\
         mqtt.listeners.tcp.1 = {mqtt}\n\
         mqtt.allow_anonymous = true\n\
         log.file.level = warning\n\
         log.console = false\n"
    );
    let configuration = running.write("rabbitmq.conf", &configuration)?;
    let plugins = running.write("enabled_plugins", "[rabbitmq_mqtt].\n")?;
    let environment = running.write("rabbitmq-env.conf", "")?;
    let mut server = Command::new(program);
    server
        .env("HOME", running.path(""))
        .env(
            "RABBITMQ_NODENAME",
            format!("bench{}@localhost", amqp.port()),
        )
        .env("RABBITMQ_CONF_ENV_FILE", environment)
        .env("RABBITMQ_CONFIG_FILE", configuration)
        .env(
            "RABBITMQ_ADVANCED_CONFIG_FILE",
            running.path("advanced.config"),
        )
        .env("RABBITMQ_GENERATED_CONFIG_DIR", running.path("generated"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins)
        .env("RABBITMQ_MNESIA_BASE", running.path("mnesia"))
        .env("RABBITMQ_LOG_BASE", running.path("log"))
        .env("RABBITMQ_PID_FILE", running.path("pid"))
        .env("RABBITMQ_DIST_PORT", distribution.port().to_string())
        .env("ERL_EPMD_PORT", &mapper)
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        // The distribution listens on all addresses otherwise.
        .env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-kernel inet_dist_use_interface {127,0,0,1}",
        );
    let pid = running.spawn(&mut server, "rabbitmq.log")?;
    running.await_ready(|_| (answers_amqp(amqp) && answers_mqtt(mqtt)).then_some(()))?;
    running.target.mqtt = Some(mqtt);
    running.target.amqp = Some(amqp);
    running.target.pid = Some(pid);
    Ok(running)
}

/// The folder of the installed release.
fn release() -> Option<PathBuf> {
    let entries = std::fs::read_dir(Path::new(LIBRARY)).ok()?;
    let mut releases: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    releases.retain(|path| path.join("sbin/rabbitmq-server").exists());
    releases.sort();
    releases.pop()
}

/// The version in the name of that folder.
pub fn version() -> Option<String> {
    let release = release()?;
    let (_, version) = release.file_name()?.to_str()?.rsplit_once('-')?;
    Some(version.to_owned())
}
