//! Runs one row of idle connections or channels: memory before and with them, and how fast they
//! came.
//!
//! Owns their number and the phases. Never starts a broker. Next: `engine.rs`.

use std::time::{Duration, Instant};

use crate::amqp;
use crate::amqp::client::Plan;
use crate::amqp::script;
use crate::engine::{Client, Engine};
use crate::failure::EngineError;
use crate::lane::Role;
use crate::mqtt::codec::Version;
use crate::process;
use crate::row::Idle;
use crate::sample::{Figure, Sample};
use crate::setup::mqtt_link;
use crate::target::Target;

/// Connections held.
const CONNECTIONS: usize = 2_000;
/// Connections that hold channels, and how many each of them holds.
const CHANNEL_CONNECTIONS: usize = 10;
const CHANNELS_EACH: u16 = 200;
/// Handshakes under way at once: fewer than any broker's backlog.
const HANDSHAKES_MAX: usize = 64;
/// How long all of them may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// How long the broker is left alone before its memory is read.
const SETTLE: Duration = Duration::from_millis(500);

/// Holds what is idle on a broker and measures what it costs.
///
/// # Errors
/// When a connection fails or they take too long.
pub fn run(target: &Target, idle: Idle, run: u32) -> Result<Sample, EngineError> {
    match idle {
        Idle::Mqtt | Idle::Amqp => connections(target, idle, run),
        Idle::AmqpChannels => channels(target, run),
    }
}

fn connections(target: &Target, idle: Idle, run: u32) -> Result<Sample, EngineError> {
    let mut engine = Engine::new(run)?;
    let before = rss_kib(target);
    let began = Instant::now();
    connect(&mut engine, target, idle, CONNECTIONS)?;
    let elapsed = began.elapsed();

    settle(&mut engine)?;
    let mut sample = Sample::default();
    let rate = CONNECTIONS as f64 / elapsed.as_secs_f64();
    sample.set(Figure::ConnectionsPerSecond, rate);
    let grown = tell_memory(target, before, &mut sample);
    sample.set(Figure::KibPerConnection, grown / CONNECTIONS as f64);
    engine.disconnect();
    Ok(sample)
}

/// Opens channels on connections that are there already, so that only channels are weighed.
fn channels(target: &Target, run: u32) -> Result<Sample, EngineError> {
    let mut engine = Engine::new(run)?;
    connect(&mut engine, target, Idle::AmqpChannels, CHANNEL_CONNECTIONS)?;
    settle(&mut engine)?;
    let before = rss_kib(target);
    let began = Instant::now();
    for number in 0..CHANNEL_CONNECTIONS {
        engine.run_script(number, (1..=CHANNELS_EACH).map(script::open_channel))?;
    }
    engine.until("opening channels", CONNECT_LIMIT, |engine| {
        engine.unready() == 0
    })?;
    let elapsed = began.elapsed();

    settle(&mut engine)?;
    let mut sample = Sample::default();
    let channels = CHANNEL_CONNECTIONS as f64 * f64::from(CHANNELS_EACH);
    sample.set(Figure::ChannelsPerSecond, channels / elapsed.as_secs_f64());
    let grown = tell_memory(target, before, &mut sample);
    sample.set(Figure::KibPerChannel, grown / channels);
    engine.disconnect();
    Ok(sample)
}

fn rss_kib(target: &Target) -> Option<u64> {
    Some(target.pid.and_then(process::usage)?.rss_kib)
}

/// Sets the broker's memory and gives by how many KiB it has grown; not a number when that is
/// not known.
fn tell_memory(target: &Target, before_kib: Option<u64>, sample: &mut Sample) -> f64 {
    let after_kib = rss_kib(target);
    sample.set(Figure::RssMib, after_kib.map(|kib| kib as f64 / 1024.0));
    before_kib
        .zip(after_kib)
        .map_or(f64::NAN, |(before, after)| {
            after.saturating_sub(before) as f64
        })
}

/// Leaves the broker alone for a while.
fn settle(engine: &mut Engine) -> Result<(), EngineError> {
    let settled = Instant::now() + SETTLE;
    engine.until("settling", SETTLE * 4, |_| Instant::now() >= settled)
}

fn connect(
    engine: &mut Engine,
    target: &Target,
    idle: Idle,
    count: usize,
) -> Result<(), EngineError> {
    let deadline = Instant::now() + CONNECT_LIMIT;
    let left = || deadline.saturating_duration_since(Instant::now());
    for number in 0..count {
        match idle {
            Idle::Mqtt => {
                let id = format!("idle{number}");
                let who = (Version::V311, id.as_str(), true);
                mqtt_link(engine, target, Role::Idle, who, None)?;
            }
            Idle::Amqp | Idle::AmqpChannels => {
                let address = target.amqp.ok_or_else(|| EngineError::NoListener {
                    broker: target.name.clone(),
                    who: Role::Idle.to_string(),
                })?;
                let login = target.amqp_login();
                engine.connect(address, Role::Idle, |out| {
                    Client::Amqp(amqp::client::Client::connect(login, Plan::default(), out))
                })?;
            }
        }
        engine.until("connecting", left(), |engine| {
            engine.unready() < HANDSHAKES_MAX
        })?;
    }
    engine.until("connecting", left(), |engine| engine.unready() == 0)
}
