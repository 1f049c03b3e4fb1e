//! Runs a row in two stages: everything is stored while nobody reads, then everything is read.
//!
//! Owns the cycle of these stages, which is repeated until the measured time is over: on most
//! brokers one cycle is too short for the clock that processor time is counted by. Never starts a
//! broker. Next: `setup.rs`, `engine.rs`.

use std::time::{Duration, Instant};

use crate::amqp;
use crate::amqp::script;
use crate::cost::{Reading, Spent, tell_latencies};
use crate::engine::Engine;
use crate::failure::EngineError;
use crate::flow::STALL_LIMIT;
use crate::lane::{Lane, Role, Score, Template};
use crate::mqtt::client::Subscription;
use crate::mqtt::codec::Version;
use crate::mqtt::encode::PublishTemplate;
use crate::receiver::Receiver;
use crate::row::{Queue, SMALL_BYTES, Stage, Staged, Stock};
use crate::sample::Sample;
use crate::sequence::Faults;
use crate::setup::{self, Names, SET_UP_LIMIT, amqp_link, mqtt_link};
use crate::target::Target;

/// How long one stage may take.
const STAGE_LIMIT: Duration = Duration::from_secs(120);
/// How long more messages than there should be are waited for.
const LINGER: Duration = Duration::from_millis(50);
/// Cycles end after this many times the measured time, whatever part of it was measured.
const CYCLES_LIMIT: f64 = 3.0;
const QOS: u8 = 1;

/// Stores and reads until `seconds` of both are measured, at least once; gives a sample for each
/// of `stages`. Reading is left out when it is not among them. `next_run` numbers the cycles.
pub fn run(
    target: &Target,
    staged: &Staged,
    stages: &[Stage],
    seconds: f64,
    mut next_run: impl FnMut() -> u32,
) -> Vec<Sample> {
    let began = Instant::now();
    let mut course = Course {
        target,
        staged,
        drains: stages.contains(&Stage::Drain),
        store: Part::default(),
        drain: Part::default(),
        score: Score::default(),
    };
    loop {
        course.cycle(&Names { run: next_run() });
        let measured = course.store.spent.elapsed() + course.drain.spent.elapsed();
        if !course.is_clean()
            || measured.as_secs_f64() >= seconds
            || began.elapsed().as_secs_f64() >= seconds * CYCLES_LIMIT
        {
            break;
        }
    }
    let Course {
        store,
        drain,
        score,
        ..
    } = course;
    let mut store = store.sample();
    tell_latencies(&score, &mut store);
    let mut drain = drain.sample();
    if let (Some(error), None) = (&store.error, &drain.error) {
        drain.error = Some(format!("nothing to read: {error}"));
    }
    let sample = |stage: &Stage| match stage {
        Stage::Store => store.clone(),
        Stage::Drain => drain.clone(),
    };
    stages.iter().map(sample).collect()
}

/// What is known of one stage after some cycles.
#[derive(Default)]
struct Part {
    spent: Spent,
    faults: Faults,
    error: Option<String>,
}

impl Part {
    fn is_clean(&self) -> bool {
        self.error.is_none() && self.faults.is_clean()
    }

    fn sample(self) -> Sample {
        let mut sample = Sample {
            faults: self.faults,
            error: self.error,
            ..Sample::default()
        };
        self.spent.tell(&mut sample);
        sample
    }
}

struct Course<'t> {
    target: &'t Target,
    staged: &'t Staged,
    drains: bool,
    store: Part,
    drain: Part,
    /// Counts of the cycle that runs, latencies of all.
    score: Score,
}

impl Course<'_> {
    fn is_clean(&self) -> bool {
        self.store.is_clean() && self.drain.is_clean()
    }

    fn cycle(&mut self, names: &Names) {
        let stored = self.store(names);
        match stored {
            Ok(engine) if self.drains => {
                let drained = self.drain(engine, names);
                self.drain.error = drained.err().map(|error| error.to_string());
            }
            Ok(engine) => engine.disconnect(),
            Err(error) => self.store.error = Some(error.to_string()),
        }
        // Also after a failure: what is left would weigh on the rows to come.
        let tidied = self.tidy(names);
        if let (Err(error), true) = (tidied, self.is_clean()) {
            self.store.error = Some(format!("tidying up: {error}"));
        }
    }

    /// Everything until all messages are stored and confirmed; gives the engine that knows them.
    fn store(&mut self, names: &Names) -> Result<Engine, EngineError> {
        let messages = self.staged.messages;
        if self.staged.stock == Stock::Session {
            self.leave_session(names)?;
        }
        let mut engine = Engine::new(names.run)?;
        let (link, template) = self.publisher(&mut engine, names, SMALL_BYTES)?;
        let lane = Lane::new(0, link, template, self.staged.window, true, 0..0);
        engine.add_lane(lane.limited(messages));
        ready(&mut engine)?;

        std::mem::swap(&mut engine.score, &mut self.score);
        engine.score.recording = true;
        let before = Reading::before(self.target);
        engine.send(true);
        let confirmed = engine.score.confirmed;
        let outcome = finish(&mut engine, "storing", Engine::is_done);
        let confirmed = engine.score.confirmed - confirmed;
        self.store
            .spent
            .add(&before, &Reading::after(self.target), confirmed);
        engine.score.recording = false;
        std::mem::swap(&mut engine.score, &mut self.score);
        outcome?;
        if self.staged.stock == Stock::Retained && self.drains {
            // Each topic gets a second value, unmeasured: only that one may be read.
            engine.extend(0, messages);
            finish(&mut engine, "storing again", Engine::is_done)?;
        }
        engine.send(false);
        Ok(engine)
    }

    /// Everything from a reader's connecting until it has all messages and the broker its
    /// acknowledgements.
    fn drain(&mut self, mut engine: Engine, names: &Names) -> Result<(), EngineError> {
        let messages = self.staged.messages;
        let receiver = Receiver::new(0..1, 1, SMALL_BYTES);
        engine.add_receiver(match self.staged.stock {
            Stock::Session | Stock::Queue => receiver,
            Stock::Retained => receiver.unordered().starting_at(messages),
        });
        let before = Reading::before(self.target);
        let link = self.reader(&mut engine, names)?;
        let has_all = |engine: &Engine| engine.arrived(0) >= messages;
        let outcome = finish(&mut engine, "reading", has_all)
            .and_then(|()| engine.fence(link))
            .and_then(|()| ready(&mut engine));
        let arrived = engine.arrived(0);
        self.drain
            .spent
            .add(&before, &Reading::after(self.target), arrived);
        let outcome = outcome.and_then(|()| {
            let until = Instant::now() + LINGER;
            engine.until("more messages", LINGER * 2, |_| Instant::now() >= until)
        });
        self.drain.faults.add(&engine.faults());
        engine.disconnect();
        outcome
    }

    /// Makes the session and goes away.
    fn leave_session(&self, names: &Names) -> Result<(), EngineError> {
        let mut engine = Engine::new(names.run)?;
        let subscription = Subscription {
            filter: names.topic(0),
            qos: QOS,
        };
        self.session(&mut engine, names, false, Some(subscription))?;
        ready(&mut engine)?;
        engine.leave();
        Ok(())
    }

    fn session(
        &self,
        engine: &mut Engine,
        names: &Names,
        clean: bool,
        subscription: Option<Subscription>,
    ) -> Result<usize, EngineError> {
        let id = names.client('s', 0);
        let who = (Version::V311, id.as_str(), clean);
        mqtt_link(engine, self.target, Role::Receiver(0), who, subscription)
    }

    fn publisher(
        &self,
        engine: &mut Engine,
        names: &Names,
        payload_bytes: usize,
    ) -> Result<(usize, Template), EngineError> {
        let role = Role::Publisher(0);
        let filler = setup::filler(payload_bytes);
        let template = match self.staged.stock {
            Stock::Queue => {
                let queue = names.queue(0);
                let steps = [
                    script::declare_queue(&queue, Queue::Durable),
                    script::select_confirms(),
                ];
                let link = amqp_link(engine, self.target, role, false, steps)?;
                let template = amqp::publish::PublishTemplate::new("", &queue, true, &filler);
                return Ok((link, Template::Amqp(template)));
            }
            Stock::Session => PublishTemplate::new(Version::V311, &names.topic(0), QOS, &filler),
            Stock::Retained => {
                let topic = names.numbered_topic(0);
                PublishTemplate::new(Version::V311, &topic, QOS, &filler)
                    .retained()
                    .numbered(0, self.staged.messages)
            }
        };
        let id = names.client('p', 0);
        let link = mqtt_link(engine, self.target, role, (Version::V311, &id, true), None)?;
        Ok((link, Template::Mqtt(template)))
    }

    fn reader(&self, engine: &mut Engine, names: &Names) -> Result<usize, EngineError> {
        let role = Role::Receiver(0);
        match self.staged.stock {
            Stock::Session => self.session(engine, names, false, None),
            Stock::Retained => {
                let filter = names.every_topic();
                let subscription = Some(Subscription { filter, qos: QOS });
                self.session(engine, names, true, subscription)
            }
            Stock::Queue => {
                let steps = setup::consume(&names.queue(0), Queue::Durable);
                amqp_link(engine, self.target, role, true, steps)
            }
        }
    }

    /// Removes what would outlive the connections.
    fn tidy(&self, names: &Names) -> Result<(), EngineError> {
        let mut engine = Engine::new(names.run)?;
        match self.staged.stock {
            Stock::Session => {
                self.session(&mut engine, names, true, None)?;
            }
            Stock::Retained => {
                // An empty retained message clears its topic.
                let (link, template) = self.publisher(&mut engine, names, 0)?;
                let lane = Lane::new(0, link, template, self.staged.window, true, 0..0);
                engine.add_lane(lane.limited(self.staged.messages));
                ready(&mut engine)?;
                engine.send(true);
                finish(&mut engine, "clearing topics", Engine::is_done)?;
            }
            Stock::Queue => {
                let steps = [script::delete_queue(&names.queue(0))];
                amqp_link(&mut engine, self.target, Role::Idle, false, steps)?;
            }
        }
        ready(&mut engine)?;
        engine.disconnect();
        Ok(())
    }
}

fn ready(engine: &mut Engine) -> Result<(), EngineError> {
    engine.until("setting up", SET_UP_LIMIT, |engine| engine.unready() == 0)
}

/// Lets a stage run to its end.
fn finish(
    engine: &mut Engine,
    what: &'static str,
    done: impl FnMut(&Engine) -> bool,
) -> Result<(), EngineError> {
    if engine.until_or_stalled(what, STAGE_LIMIT, STALL_LIMIT, done)? {
        Ok(())
    } else {
        Err(EngineError::Stalled { what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_broker::{Fault, start};
    use crate::sample::Figure;

    const BOTH: &[Stage] = &[Stage::Store, Stage::Drain];

    fn samples(fault: Fault, stock: Stock, stages: &[Stage]) -> Vec<Sample> {
        let target = Target {
            mqtt: Some(start(fault)),
            ..Target::default()
        };
        let staged = Staged {
            stock,
            messages: 40,
            window: 8,
        };
        let mut run_number = 0;
        run(&target, &staged, stages, 0.1, || {
            run_number += 1;
            run_number
        })
    }

    #[test]
    fn what_is_stored_for_a_session_is_drained_in_order() {
        let samples = samples(Fault::None, Stock::Session, BOTH);
        assert!(samples.iter().all(Sample::is_clean), "{samples:?}");
        assert!(samples[0].figures.contains_key(&Figure::ConfirmP99Us));
        assert!(samples[1].figures[&Figure::MessagesPerSecond] > 0.0);
        assert!(!samples[1].figures.contains_key(&Figure::DeliveryP50Us));
    }

    #[test]
    fn the_last_retained_value_of_every_topic_is_read() {
        let samples = samples(Fault::None, Stock::Retained, BOTH);
        assert!(samples.iter().all(Sample::is_clean), "{samples:?}");
    }

    #[test]
    fn an_older_retained_value_is_a_fault() {
        // The second value of the first topic never comes to be.
        let samples = samples(Fault::Lose(40), Stock::Retained, BOTH);
        assert!(samples[0].is_clean(), "{samples:?}");
        let faults = samples[1].faults;
        assert_eq!((faults.lost, faults.stray), (1, 1));
    }

    #[test]
    fn a_session_that_was_not_kept_is_told_and_the_store_keeps_its_figures() {
        let samples = samples(Fault::ForgetSessions, Stock::Session, BOTH);
        assert!(samples[0].is_clean(), "{samples:?}");
        let error = samples[1].error.as_deref().unwrap();
        assert_eq!(error, "receiver 0: the broker has not kept the session");
    }

    #[test]
    fn without_a_reader_only_storing_is_measured() {
        let samples = samples(Fault::None, Stock::Retained, &[Stage::Store]);
        assert_eq!(samples.len(), 1);
        assert!(samples[0].is_clean(), "{samples:?}");
    }

    #[test]
    fn a_broker_without_the_protocol_fails_both_stages() {
        let staged = Staged {
            stock: Stock::Queue,
            messages: 1,
            window: 1,
        };
        let samples = run(&Target::default(), &staged, BOTH, 0.1, || 1);
        for sample in samples {
            let error = sample.error.unwrap();
            assert!(error.contains("has no listener for publisher 0"), "{error}");
        }
    }
}
