//! Runs one row of idle connections: memory before and with them, and how fast they came.
//!
//! Owns the number of connections and the phases. Never starts a broker. Next: `engine.rs`.

use std::time::{Duration, Instant};

use crate::amqp::client::Plan;
use crate::engine::{Client, Engine, EngineError};
use crate::lane::Role;
use crate::mqtt::codec::Version;
use crate::process;
use crate::rows::Protocol;
use crate::sample::{Figure, Sample};
use crate::target::Target;
use crate::{amqp, mqtt};

/// Connections held.
pub const CONNECTIONS: usize = 2_000;
/// Handshakes under way at once: fewer than any broker's backlog.
const HANDSHAKES_MAX: usize = 64;
/// How long all of them may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// How long the broker is left alone before its memory is read.
const SETTLE: Duration = Duration::from_millis(500);

/// Holds [`CONNECTIONS`] on a broker and measures what they cost.
///
/// # Errors
/// When a connection fails or they take too long.
pub fn run(target: &Target, protocol: Protocol, run: u32) -> Result<Sample, EngineError> {
    let mut engine = Engine::new(run)?;
    let before = target.pid.and_then(process::usage);
    let began = Instant::now();
    let deadline = began + CONNECT_LIMIT;
    for number in 0..CONNECTIONS {
        connect(&mut engine, target, protocol, number)?;
        let left = deadline.saturating_duration_since(Instant::now());
        engine.until("connecting", left, |engine| {
            engine.unready() < HANDSHAKES_MAX
        })?;
    }
    let left = deadline.saturating_duration_since(Instant::now());
    engine.until("connecting", left, |engine| engine.unready() == 0)?;
    let elapsed = began.elapsed();

    let settled = Instant::now() + SETTLE;
    engine.until("settling", SETTLE * 4, |_| Instant::now() >= settled)?;
    let mut sample = Sample::default();
    sample.set(
        Figure::ConnectionsPerSecond,
        CONNECTIONS as f64 / elapsed.as_secs_f64(),
    );
    if let Some((before, after)) = before.zip(target.pid.and_then(process::usage)) {
        let grown_kib = after.rss_kib.saturating_sub(before.rss_kib) as f64;
        sample.set(Figure::KibPerConnection, grown_kib / CONNECTIONS as f64);
        sample.set(Figure::RssMib, after.rss_kib as f64 / 1024.0);
    }
    engine.disconnect();
    Ok(sample)
}

fn connect(
    engine: &mut Engine,
    target: &Target,
    protocol: Protocol,
    number: usize,
) -> Result<usize, EngineError> {
    let listener = match protocol {
        Protocol::Mqtt => target.mqtt,
        Protocol::Amqp => target.amqp,
    };
    let address = listener.ok_or_else(|| EngineError::NoListener {
        broker: target.name.clone(),
        who: format!("{protocol:?}"),
    })?;
    engine.connect(address, Role::Idle, |out| match protocol {
        Protocol::Mqtt => {
            let (id, login) = (format!("idle{number}"), target.mqtt_login());
            Client::Mqtt(mqtt::client::Client::connect(
                Version::V311,
                &id,
                login,
                None,
                out,
            ))
        }
        Protocol::Amqp => {
            let login = target.amqp_login();
            Client::Amqp(amqp::client::Client::connect(login, Plan::default(), out))
        }
    })
}
