//! Runs one row that sends messages: set up, warm up, measure, drain, tidy.
//!
//! Owns the phases and their limits. Never starts a broker. Next: `engine.rs`.

use std::time::{Duration, Instant};

use crate::amqp::script;
use crate::engine::{Engine, EngineError};
use crate::lane::{Lane, Receiver};
use crate::process;
use crate::rows::{Flow, Shape, Side};
use crate::sample::{Figure, Sample};
use crate::setup::{Names, consumer, publisher};
use crate::target::Target;

/// How long connections, queues and subscriptions may take.
const SET_UP_LIMIT: Duration = Duration::from_secs(20);
/// How long what is in flight may take to arrive after the last message was sent.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// A flow in which nothing arrives for so long is stalled.
const STALL_LIMIT: Duration = Duration::from_secs(5);
/// Messages received in one row, at most.
const DELIVERIES_MAX: u64 = 200_000_000;
/// Part of the measured time that runs before it, unmeasured.
const WARM_UP_PART: f64 = 0.25;

/// Runs a flow on a broker for about `seconds` of measured time. `run` marks its messages and
/// names, and must not repeat on one broker.
///
/// # Errors
/// When a connection fails or the set-up takes too long; a flow that stalls gives a sample that
/// says so.
pub fn run(target: &Target, flow: &Flow, seconds: f64, run: u32) -> Result<Sample, EngineError> {
    let mut engine = Engine::new(run)?;
    let names = Names { run };
    let (lanes, receivers) = match flow.shape {
        Shape::Pairs(count) => (count, count),
        Shape::FanOut(count) => (1, count),
        Shape::FanIn(count) => (count, 1),
    };
    let mut consumers = Vec::new();
    for receiver in 0..receivers {
        let hears = match flow.shape {
            Shape::Pairs(_) => receiver..receiver + 1,
            Shape::FanOut(_) | Shape::FanIn(_) => 0..lanes,
        };
        engine.add_receiver(Receiver::new(hears, lanes));
        consumers.push(consumer(&mut engine, target, flow, &names, receiver)?);
    }
    engine.until("setting up the consumers", SET_UP_LIMIT, |engine| {
        engine.unready() == 0
    })?;
    for lane in 0..lanes {
        let heard_by = match flow.shape {
            Shape::Pairs(_) => lane..lane + 1,
            Shape::FanOut(_) | Shape::FanIn(_) => 0..receivers,
        };
        let (link, template) = publisher(&mut engine, target, flow, &names, lane)?;
        let confirmed = flow.publish.is_confirmed();
        engine.add_lane(Lane::new(
            lane,
            link,
            template,
            flow.window,
            confirmed,
            heard_by,
        ));
    }
    engine.until("setting up the publishers", SET_UP_LIMIT, |engine| {
        engine.unready() == 0
    })?;

    let mut sample = measure(&mut engine, target, seconds)?;
    tidy(engine, flow, &names, &consumers, &mut sample);
    Ok(sample)
}

fn measure(engine: &mut Engine, target: &Target, seconds: f64) -> Result<Sample, EngineError> {
    let mut sample = Sample::default();
    engine.send(true);
    if !steady(engine, seconds * WARM_UP_PART)? {
        sample.error = Some("stalled".to_owned());
    }

    let before = Reading::take(target);
    let (began, delivered) = (Instant::now(), engine.score.delivered);
    engine.score.recording = true;
    if sample.error.is_none() && !steady(engine, seconds)? {
        sample.error = Some("stalled".to_owned());
    }
    engine.score.recording = false;
    let elapsed = began.elapsed();
    let messages = (engine.score.delivered - delivered) as f64;
    // The second reading opens with the processor time, so that little else falls into it.
    let after = Reading::take(target);
    engine.send(false);

    match engine.until(
        "receiving what is in flight",
        DRAIN_LIMIT,
        Engine::is_drained,
    ) {
        Ok(()) => {}
        Err(late @ EngineError::Late { .. }) => sample.error = Some(late.to_string()),
        Err(error) => return Err(error),
    }
    sample.faults = engine.faults();
    sample.set(Figure::MessagesPerSecond, messages / elapsed.as_secs_f64());
    let us = |histogram: &crate::histogram::Histogram, q| {
        histogram.quantile_ns(q).map(|ns| ns as f64 / 1000.0)
    };
    sample.set(Figure::DeliveryP50Us, us(&engine.score.delivery, 0.50));
    sample.set(Figure::DeliveryP99Us, us(&engine.score.delivery, 0.99));
    sample.set(Figure::ConfirmP50Us, us(&engine.score.confirmation, 0.50));
    sample.set(Figure::ConfirmP99Us, us(&engine.score.confirmation, 0.99));
    costs(&mut sample, &before, &after, messages, elapsed);
    Ok(sample)
}

/// Lets the flow run for `seconds`; false when it stalled before.
fn steady(engine: &mut Engine, seconds: f64) -> Result<bool, EngineError> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut last = (engine.score.delivered, Instant::now());
    let mut stalled = false;
    let limit = Duration::from_secs_f64(seconds) + STALL_LIMIT;
    engine.until("a measured phase", limit, |engine| {
        let now = Instant::now();
        if engine.score.delivered != last.0 {
            last = (engine.score.delivered, now);
        }
        stalled = now - last.1 > STALL_LIMIT;
        stalled || now >= end || engine.score.delivered >= DELIVERIES_MAX
    })?;
    Ok(!stalled)
}

/// What is read of the broker and the machine before and after.
struct Reading {
    broker: Option<process::Usage>,
    own_cpu_us: Option<u64>,
    machine_busy_us: Option<u64>,
    syncs: Option<f64>,
}

impl Reading {
    fn take(target: &Target) -> Self {
        Self {
            broker: target.pid.and_then(process::usage),
            own_cpu_us: process::own_cpu_us(),
            machine_busy_us: process::machine_busy_us(),
            syncs: target.syncs(),
        }
    }
}

fn costs(sample: &mut Sample, before: &Reading, after: &Reading, messages: f64, elapsed: Duration) {
    let syncs = before
        .syncs
        .zip(after.syncs)
        .map(|(a, b)| (b - a) / messages);
    sample.set(Figure::SyncsPerMessage, syncs);
    let difference =
        |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| b.saturating_sub(a) as f64);
    let own = difference(before.own_cpu_us, after.own_cpu_us);
    sample.set(
        Figure::GeneratorCpuUsPerMessage,
        own.map(|own| own / messages),
    );
    let Some((old, new)) = before.broker.zip(after.broker) else {
        return;
    };
    let broker_us = new.cpu_us.saturating_sub(old.cpu_us) as f64;
    sample.set(Figure::CpuUsPerMessage, broker_us / messages);
    sample.set(Figure::RssMib, new.rss_kib as f64 / 1024.0);
    let written = old.written_bytes.zip(new.written_bytes);
    let written = written.map(|(a, b)| b.saturating_sub(a) as f64 / messages);
    sample.set(Figure::WrittenBytesPerMessage, written);
    let busy = difference(before.machine_busy_us, after.machine_busy_us);
    let cores = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    let others = busy
        .zip(own)
        .map(|(busy, own)| (busy - own - broker_us).max(0.0));
    let share = others.map(|others| others / (elapsed.as_micros() as f64 * cores));
    sample.set(Figure::OthersCpuShare, share);
}

/// Deletes what would outlive the connections. A failure here spoils no figure; it is noted.
fn tidy(mut engine: Engine, flow: &Flow, names: &Names, consumers: &[usize], sample: &mut Sample) {
    if flow.consume == (Side::Amqp { durable: true }) {
        let deleted = consumers
            .iter()
            .enumerate()
            .try_for_each(|(receiver, link)| {
                engine.run_script(*link, [script::delete_queue(&names.queue(receiver))])
            });
        let deleted = deleted.and_then(|()| {
            engine.until("deleting queues", SET_UP_LIMIT, |engine| {
                engine.unready() == 0
            })
        });
        if let Err(error) = deleted {
            sample.error.get_or_insert_with(|| error.to_string());
        }
    }
    engine.disconnect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_broker::{Fault, start};
    use crate::mqtt::codec::Version;
    use crate::sequence::Faults;

    const Q0: Side = Side::Mqtt(Version::V311, 0);

    fn sample(fault: Fault, shape: Shape) -> Sample {
        let target = Target {
            mqtt: Some(start(fault)),
            ..Target::default()
        };
        let flow = Flow {
            shape,
            publish: Q0,
            consume: Q0,
            window: 4,
        };
        run(&target, &flow, 0.1, 1).unwrap()
    }

    #[test]
    fn a_clean_run_counts_messages_and_latencies() {
        for shape in [Shape::Pairs(2), Shape::FanOut(3)] {
            let sample = sample(Fault::None, shape);
            assert!(sample.is_clean(), "{sample:?}");
            assert!(sample.figures[&Figure::MessagesPerSecond] > 0.0);
            let p50 = sample.figures[&Figure::DeliveryP50Us];
            assert!(p50 > 0.0 && p50 <= sample.figures[&Figure::DeliveryP99Us]);
        }
    }

    #[test]
    fn what_a_broker_breaks_is_counted() {
        let check = |fault, expected| {
            assert_eq!(sample(fault, Shape::Pairs(1)).faults, expected);
        };
        check(
            Fault::Lose(3),
            Faults {
                lost: 1,
                ..Faults::default()
            },
        );
        check(
            Fault::Repeat(3),
            Faults {
                repeated: 1,
                ..Faults::default()
            },
        );
        check(
            Fault::Swap(3),
            Faults {
                reordered: 1,
                ..Faults::default()
            },
        );
    }

    #[test]
    fn a_loss_is_counted_at_every_receiver() {
        assert_eq!(sample(Fault::Lose(3), Shape::FanOut(3)).faults.lost, 3);
    }

    #[test]
    fn a_broker_without_the_protocol_is_an_error() {
        let flow = Flow {
            shape: Shape::Pairs(1),
            publish: Q0,
            consume: Q0,
            window: 1,
        };
        let error = run(&Target::default(), &flow, 0.1, 1).unwrap_err();
        assert!(matches!(error, EngineError::NoListener { .. }), "{error}");
    }
}
