//! Runs one row that sends messages: set up, warm up, measure, drain, tidy.
//!
//! Owns the phases and their limits. Never starts a broker. Next: `engine.rs`.

use std::time::{Duration, Instant};

use crate::amqp::script;
use crate::cost::{Reading, Spent, tell_latencies};
use crate::engine::Engine;
use crate::failure::EngineError;
use crate::lane::Lane;
use crate::receiver::Receiver;
use crate::row::{Flow, Shape, Side};
use crate::sample::Sample;
use crate::setup::{Names, SET_UP_LIMIT, consumer, publisher};
use crate::target::Target;

/// How long what is in flight may take to arrive after the last message was sent.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// A flow in which nothing arrives for so long is stalled.
pub const STALL_LIMIT: Duration = Duration::from_secs(5);
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
    let (lanes, receivers, connections) = match flow.shape {
        Shape::Pairs(count) => (count, count, count),
        Shape::FanOut(count) => (1, count, count),
        Shape::FanIn(count) => (count, 1, 1),
        Shape::Shared(publishers, members) => (publishers, 1, members),
    };
    for number in 0..receivers {
        let (hears, ordered) = match flow.shape {
            Shape::Pairs(_) => (number..number + 1, true),
            Shape::FanOut(_) | Shape::FanIn(_) => (0..lanes, true),
            Shape::Shared(..) => (0..lanes, false),
        };
        let receiver = Receiver::new(hears, lanes, flow.payload_bytes);
        engine.add_receiver(if ordered {
            receiver
        } else {
            receiver.unordered()
        });
    }
    let mut consumers = Vec::new();
    for number in 0..connections {
        consumers.push(consumer(&mut engine, target, flow, &names, number)?);
    }
    engine.until("setting up the consumers", SET_UP_LIMIT, |engine| {
        engine.unready() == 0
    })?;
    let interval = flow.per_second.map(|rate| Duration::from_secs(1) / rate);
    if let Some(interval) = interval {
        engine.wake_each(interval)?;
    }
    for number in 0..lanes {
        let heard_by = match flow.shape {
            Shape::Pairs(_) => number..number + 1,
            Shape::FanOut(_) | Shape::FanIn(_) | Shape::Shared(..) => 0..receivers,
        };
        let (link, template) = publisher(&mut engine, target, flow, &names, number)?;
        let confirmed = flow.publish.is_confirmed();
        let mut lane = Lane::new(number, link, template, flow.window, confirmed, heard_by);
        if let Some(interval) = interval {
            lane = lane.paced(interval.as_nanos() as u64);
        }
        engine.add_lane(lane);
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

    let before = Reading::before(target);
    let delivered = engine.score.delivered;
    engine.score.recording = true;
    if sample.error.is_none() && !steady(engine, seconds)? {
        sample.error = Some("stalled".to_owned());
    }
    engine.score.recording = false;
    let messages = engine.score.delivered - delivered;
    let after = Reading::after(target);
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
    let mut spent = Spent::default();
    spent.add(&before, &after, messages);
    spent.tell(&mut sample);
    tell_latencies(&engine.score, &mut sample);
    Ok(sample)
}

/// Lets the flow run for `seconds`; false when it stalled before.
fn steady(engine: &mut Engine, seconds: f64) -> Result<bool, EngineError> {
    let length = Duration::from_secs_f64(seconds);
    let end = Instant::now() + length;
    let limit = length + STALL_LIMIT;
    engine.until_or_stalled("a measured phase", limit, STALL_LIMIT, |engine| {
        Instant::now() >= end || engine.score.delivered >= DELIVERIES_MAX
    })
}

/// Deletes what would outlive the connections. A failure here spoils no figure; it is noted.
fn tidy(mut engine: Engine, flow: &Flow, names: &Names, consumers: &[usize], sample: &mut Sample) {
    if matches!(flow.consume, Side::Amqp(queue) if queue.is_durable()) {
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
    use crate::sample::Figure;
    use crate::sequence::Faults;

    const Q0: Side = Side::Mqtt(Version::V311, 0);
    const Q1: Side = Side::Mqtt(Version::V311, 1);
    const Q2: Side = Side::Mqtt(Version::V311, 2);

    fn sample(fault: Fault, flow: &Flow) -> Sample {
        let target = Target {
            mqtt: Some(start(fault)),
            ..Target::default()
        };
        run(&target, flow, 0.1, 1).unwrap()
    }

    #[test]
    fn a_clean_run_counts_messages_and_latencies() {
        for flow in [
            Flow::new(Shape::Pairs(2), Q0, Q0, 4),
            Flow::new(Shape::Pairs(1), Q1, Q1, 4),
            Flow::new(Shape::Pairs(1), Q2, Q2, 4),
            Flow::new(Shape::FanOut(3), Q0, Q0, 4),
            Flow::new(Shape::FanIn(3), Q0, Q0, 4),
            Flow::new(Shape::Shared(1, 4), Q1, Q1, 4),
            Flow::new(Shape::Pairs(1), Q0, Q0, 4).of_16_kib(),
        ] {
            let sample = sample(Fault::None, &flow);
            assert!(sample.is_clean(), "{sample:?}");
            assert!(sample.figures[&Figure::MessagesPerSecond] > 0.0);
            let p50 = sample.figures[&Figure::DeliveryP50Us];
            assert!(p50 > 0.0 && p50 <= sample.figures[&Figure::DeliveryP99Us]);
        }
    }

    #[test]
    fn what_a_broker_breaks_is_counted() {
        let check = |fault, expected| {
            let flow = Flow::new(Shape::Pairs(1), Q0, Q0, 4);
            assert_eq!(sample(fault, &flow).faults, expected);
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
        let flow = Flow::new(Shape::FanOut(3), Q0, Q0, 4);
        assert_eq!(sample(Fault::Lose(3), &flow).faults.lost, 3);
    }

    #[test]
    fn an_open_loop_keeps_its_rate() {
        let flow = Flow::new(Shape::Pairs(1), Q0, Q0, 1).open_loop(2_000);
        let sample = sample(Fault::None, &flow);
        assert!(sample.is_clean(), "{sample:?}");
        let rate = sample.figures[&Figure::MessagesPerSecond];
        // A closed loop would be far above, whatever the machine.
        assert!(rate < 20_000.0, "{rate}");
    }

    #[test]
    fn what_a_broker_refuses_is_an_error_with_its_reason() {
        let target = Target {
            mqtt: Some(start(Fault::GrantQos0)),
            ..Target::default()
        };
        let error = run(&target, &Flow::new(Shape::Pairs(1), Q2, Q2, 4), 0.1, 1);
        let error = error.unwrap_err().to_string();
        assert_eq!(
            error,
            "receiver 0: the broker grants QoS 0 where 2 was asked for"
        );
    }

    #[test]
    fn a_broker_without_the_protocol_is_an_error() {
        let flow = Flow::new(Shape::Pairs(1), Q0, Q0, 1);
        let error = run(&Target::default(), &flow, 0.1, 1).unwrap_err();
        assert!(matches!(error, EngineError::NoListener { .. }), "{error}");
    }
}
