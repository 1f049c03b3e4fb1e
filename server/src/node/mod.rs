//! A node's life: configured, started, ready, drained.
//!
//! Owns: the order of starting and stopping, what is printed at the start, signals.
//! Never: rules; what a part does once it runs.
//! Next: `start.rs` (what is joined with what), `founding.rs` (what a first start stores).

mod certificates;
mod descriptors;
mod founding;
mod keys;
mod start;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anabranch_driver::TransportKind;
use anabranch_store::seal::Sealing;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::cli::ServeFlags;
use crate::config::{Config, ConfigError, LogFormat};
use crate::gateways;

use founding::{ADMIN, GUEST};
pub(crate) use founding::{is_guest, propose};
use start::Running;
pub use start::StartError;

/// Exit code when the configuration cannot be used; that of a wrong command line as well.
pub const CONFIGURATION_CODE: u8 = 2;

/// The configuration that these flags, the environment and the file they name give.
///
/// # Errors
/// See [`Config::load`].
pub fn configuration(flags: &ServeFlags) -> Result<Config, ConfigError> {
    let node = &flags.node;
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let given = [
        ("--data", "node.data", path(&node.data)),
        ("--dev", "node.dev", flags.dev.then(|| "true".to_owned())),
        ("--mqtt", "gateway.mqtt.address", node.mqtt.clone()),
        (
            "--mqtt-tls",
            "gateway.mqtt.tls_address",
            node.mqtt_tls.clone(),
        ),
        ("--mqtt-ws", "gateway.mqtt.ws_address", node.mqtt_ws.clone()),
        (
            "--mqtt-wss",
            "gateway.mqtt.wss_address",
            node.mqtt_wss.clone(),
        ),
        ("--amqp", "gateway.amqp.address", node.amqp.clone()),
        (
            "--amqp-tls",
            "gateway.amqp.tls_address",
            node.amqp_tls.clone(),
        ),
        ("--certificate", "tls.certificate", path(&node.certificate)),
        ("--key", "tls.key", path(&node.key)),
        ("--http", "http.address", node.http.clone()),
        ("--log", "log.format", node.log.clone()),
    ];
    let given: Vec<_> = given
        .into_iter()
        .filter_map(|(flag, key, value)| Some((flag, key, value?)))
        .collect();
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Config::load(
        &gateways::sections(),
        node.config.as_deref(),
        environment,
        &given,
    )
}

/// Whether a node could be started with this configuration, as far as that can be known without doing it.
///
/// # Errors
/// A gateway's section, `log.level` or a certificate does not fit, or development mode would listen
/// beyond loopback.
pub fn check(config: &Config) -> Result<gateways::Made, StartError> {
    log_level(config)?;
    let made = gateways::make(config)?;
    if config.settings.node.dev {
        let http = ("http", config.settings.http.address);
        let all = made.gateways.iter().flat_map(|of| {
            let listeners = of.listeners.iter();
            listeners.map(|listener| (of.gateway.name(), listener.address))
        });
        for (name, address) in all.chain([http]) {
            if !address.ip().is_loopback() {
                return Err(StartError::DevBeyondLoopback { name, address });
            }
        }
    }
    Ok(made)
}

/// Whether the store could be opened with this configuration, as far as that can be known without asking anybody: its
/// keys are a ring of keys, its object store is named as it must be.
///
/// # Errors
/// The keys cannot be used (a command that prints them is not run), or `store.tier` does not fit.
pub fn check_store(config: &Config) -> Result<(), StartError> {
    keys::check(config)?;
    config.settings.store.tier.start()?;
    Ok(())
}

/// What opens the files of a node with this configuration: the keys that it names, if it names some.
///
/// # Errors
/// They cannot be read.
pub fn sealing(config: &Config) -> Result<Sealing, ConfigError> {
    Ok(keys::packing(config)?.sealing)
}

/// Runs a node until it is told to stop; gives the exit code.
pub fn serve(flags: &ServeFlags) -> ExitCode {
    let config = match configuration(flags) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("anabranch: {error}");
            return ExitCode::from(CONFIGURATION_CODE);
        }
    };
    if let Err(error) = check(&config).and_then(|_| log_to_stdout(&config)) {
        eprintln!("anabranch: {error}");
        return ExitCode::from(CONFIGURATION_CODE);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("api")
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(live(&config));
            // What still runs in the background (a password being verified) is not waited for.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(StartError::System(error)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("anabranch: {error}");
            ExitCode::FAILURE
        }
    }
}

fn log_level(config: &Config) -> Result<EnvFilter, StartError> {
    let level = &config.settings.log.level;
    EnvFilter::try_new(level).map_err(|error| {
        StartError::Config(config.refuse(
            "log.level",
            &format!("a level, or levels by module such as info,anabranch_core=debug ({error})"),
        ))
    })
}

fn log_to_stdout(config: &Config) -> Result<(), StartError> {
    let log_lines = tracing_subscriber::fmt()
        .with_env_filter(log_level(config)?)
        .with_target(false);
    match config.settings.log.format {
        LogFormat::Text => log_lines.with_ansi(false).init(),
        LogFormat::Json => log_lines.json().init(),
    }
    Ok(())
}

async fn live(config: &Config) -> Result<(), StartError> {
    // Before anything starts: a signal during the start stops it at its end.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    descriptors::raise(config.settings.limits.connections_max);
    let running = start::start(config).await?;
    announce(config, &running);
    let lost = tokio::select! {
        () = told(&mut terminate) => None,
        () = told(&mut interrupt) => None,
        what = running.logins.thread_lost() => Some(what),
    };
    tracing::info!("draining");
    running.stop().await;
    match lost {
        None => {
            tracing::info!("stopped");
            Ok(())
        }
        Some(what) => Err(StartError::Lost(what)),
    }
}

async fn told(signal: &mut Signal) {
    // A closed stream of signals never says anything, so that the node goes on.
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Says what a newcomer needs, and last that the node is ready. A log that a program reads gets no
/// password: such logs are collected.
fn announce(config: &Config, running: &Running) {
    let address = |name: &str| {
        let address = running.plain(name);
        address.map_or_else(String::new, |address| address.to_string())
    };
    let (tls, ws, wss) = (
        running.others(TransportKind::Tls),
        running.others(TransportKind::Ws),
        running.others(TransportKind::Wss),
    );
    let (mqtt, amqp, http) = (address("mqtt"), address("amqp"), running.http.to_string());
    let file = running.password_file.display().to_string();
    let console = format!("http://{}/", near(running.http));
    let dev = config.settings.node.dev;
    if !config.strangers.is_empty() {
        let names = config.strangers.join(" ");
        tracing::warn!(names, "environment variables that are no keys are not used");
    }
    if dev {
        tracing::warn!(
            "--dev: EVERYONE ON THIS MACHINE MAY DO EVERYTHING: anonymous access, guest/guest with all rights"
        );
    }
    let first = running.first_password.as_deref();
    if config.settings.log.format == LogFormat::Json {
        if first.is_some() {
            tracing::info!(
                user = ADMIN,
                file,
                "first start: the administrator was created, with the password in the file"
            );
        }
    } else if dev {
        welcome(running, &console, GUEST, GUEST, "");
    } else if let Some(password) = first {
        welcome(
            running,
            &console,
            ADMIN,
            password,
            &format!("   (also in {file})"),
        );
    }
    if (first.is_none() || dev) && running.password_file.exists() {
        tracing::info!(
            console,
            file,
            "the administrator's first password, if nobody changed it, stands in the file"
        );
    }
    tracing::info!(mqtt, amqp, http, tls, ws, wss, "ready");
}

/// Where somebody on this machine reaches a listener: who listens everywhere does so on loopback too.
fn near(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()))
    } else {
        address
    }
}

/// Where the console is, who may enter, and two commands to copy: an application that waits for what a
/// device reports.
fn welcome(running: &Running, console: &str, user: &str, password: &str, note: &str) {
    let typed = match user {
        ADMIN => format!("\"$(cat '{}')\"", running.password_file.display()),
        _ => password.to_owned(),
    };
    let exchange = gateways::TOPIC_EXCHANGE;
    println!("\n  console   {console}\n  user      {user}\n  password  {password}{note}\n");
    let (Some(amqp), Some(mqtt)) = (running.plain("amqp"), running.plain("mqtt")) else {
        return;
    };
    let (amqp, mqtt) = (near(amqp), near(mqtt));
    let ((amqp, amqp_port), (mqtt, mqtt_port)) =
        ((amqp.ip(), amqp.port()), (mqtt.ip(), mqtt.port()));
    println!(
        "  Try it, in two terminals:\n\n    \
         amqp-consume --server {amqp} --port {amqp_port} --username {user} --password {typed} \\\n        \
         --exchange {exchange} --routing-key 'plant.*.temp' cat\n\n    \
         mosquitto_pub -h {mqtt} -p {mqtt_port} -u {user} -P {typed} -q 1 -t plant/7/temp -m 21.5\n"
    );
}
