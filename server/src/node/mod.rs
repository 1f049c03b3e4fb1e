//! A node's life: configured, started, ready, drained.
//!
//! Owns: the order of starting and stopping, what is printed at the start, signals.
//! Never: rules; what a part does once it runs.
//! Next: `start.rs` (what is joined with what), `founding.rs` (what a first start stores).

mod descriptors;
mod founding;
mod start;

use std::path::Path;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::cli::ServeFlags;
use crate::config::{Config, ConfigError, LogFormat};
use crate::gateways;

pub(crate) use founding::{is_guest, propose};
use start::Running;
pub use start::StartError;

/// The configuration that these flags, the environment and the file they name give.
///
/// # Errors
/// See [`Config::load`].
pub fn configuration(flags: &ServeFlags) -> Result<Config, ConfigError> {
    let node = &flags.node;
    let data = node.data.as_ref().map(|data| data.display().to_string());
    let given = [
        ("--data", "node.data", data),
        ("--dev", "node.dev", flags.dev.then(|| "true".to_owned())),
        ("--mqtt", "gateway.mqtt.address", node.mqtt.clone()),
        ("--amqp", "gateway.amqp.address", node.amqp.clone()),
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
/// A gateway's section does not fit, or development mode would listen beyond loopback.
pub fn check(config: &Config) -> Result<gateways::Listening, StartError> {
    let (listening, _) = gateways::make(config)?;
    if config.settings.node.dev {
        let http = ("http", config.settings.http.address);
        let all = listening
            .iter()
            .map(|(gateway, address)| (gateway.name(), *address));
        for (name, address) in all.chain([http]) {
            if !address.ip().is_loopback() {
                return Err(StartError::DevBeyondLoopback { name, address });
            }
        }
    }
    Ok(listening)
}

/// Runs a node until it is told to stop; gives the exit code.
pub fn serve(flags: &ServeFlags) -> ExitCode {
    let config = match configuration(flags) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("anabranch: {error}");
            return ExitCode::from(2);
        }
    };
    if let Err(error) = log_to_stdout(&config) {
        eprintln!("anabranch: {error}");
        return ExitCode::from(2);
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

fn log_to_stdout(config: &Config) -> Result<(), String> {
    let log = &config.settings.log;
    let level = EnvFilter::try_new(&log.level).map_err(|error| format!("log.level: {error}"))?;
    let log_lines = tracing_subscriber::fmt()
        .with_env_filter(level)
        .with_target(false);
    match log.format {
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

/// Says what a newcomer needs, and last that the node is ready.
fn announce(config: &Config, running: &Running) {
    let json = config.settings.log.format == LogFormat::Json;
    let address = |name: &str| {
        let found = running.listening.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, address)| address.to_string())
            .unwrap_or_default()
    };
    let (mqtt, amqp, http) = (address("mqtt"), address("amqp"), running.http.to_string());
    let file = running.password_file.display().to_string();
    let console = format!("http://{http}/");
    if config.settings.node.dev {
        tracing::warn!(
            "--dev: EVERYONE ON THIS MACHINE MAY DO EVERYTHING: anonymous access, guest/guest with all rights"
        );
    }
    if let Some(password) = &running.first_password {
        if json {
            tracing::info!(
                user = "admin",
                password,
                file,
                "first start: the administrator was created"
            );
        } else {
            println!(
                "\n  console   {console}\n  user      admin\n  password  {password}   (also in {file})\n"
            );
        }
    } else {
        tracing::info!(
            console,
            file,
            "the administrator's first password stands in the file"
        );
    }
    if !json && running.first_password.is_some() {
        try_it(&running.listening, &running.password_file);
    }
    tracing::info!(mqtt, amqp, http, "ready");
}

/// Two commands to copy: an application that waits for what a device reports.
fn try_it(listening: &[(&'static str, std::net::SocketAddr)], file: &Path) {
    let port = |name: &str| {
        let found = listening.iter().find(|(known, _)| *known == name);
        found.map_or(0, |(_, address)| address.port())
    };
    let password = format!("\"$(cat '{}')\"", file.display());
    println!(
        "  Try it, in two terminals:\n\n    amqp-consume --server 127.0.0.1 --port {} --username admin --password {password} \\\n        --exchange {} --routing-key 'plant.*.temp' cat\n\n    mosquitto_pub -h 127.0.0.1 -p {} -u admin -P {password} -q 1 -t plant/7/temp -m 21.5\n",
        port("amqp"),
        gateways::TOPIC_EXCHANGE,
        port("mqtt"),
    );
}
