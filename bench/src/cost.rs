//! What a stretch of a row cost: readings before and after, and their difference per message.
//!
//! Owns which counters are read and in which order. Never sends a message. Next: `process.rs`,
//! then `flow.rs` and `staged.rs`, which take readings.

use std::time::{Duration, Instant};

use crate::lane::Score;
use crate::process::{self, Usage};
use crate::sample::{Figure, Sample};
use crate::target::Target;

/// What is read of the broker and the machine at one moment.
pub struct Reading {
    at: Instant,
    broker: Option<Usage>,
    own_cpu_us: Option<u64>,
    machine_busy_us: Option<u64>,
    syncs: Option<f64>,
}

impl Reading {
    /// The moment before a stretch. The broker's metrics are asked for first, so that answering
    /// falls outside of it.
    pub fn before(target: &Target) -> Self {
        let syncs = target.syncs();
        Self::take(target, syncs)
    }

    /// The moment after a stretch. Time and processor time are read first, metrics last.
    pub fn after(target: &Target) -> Self {
        let mut reading = Self::take(target, None);
        reading.syncs = target.syncs();
        reading
    }

    fn take(target: &Target, syncs: Option<f64>) -> Self {
        Self {
            at: Instant::now(),
            broker: target.pid.and_then(process::usage),
            own_cpu_us: process::own_cpu_us(),
            machine_busy_us: process::machine_busy_us(),
            syncs,
        }
    }
}

/// The sum over some stretches; what one of them did not tell is not a number.
#[derive(Default)]
pub struct Spent {
    messages: f64,
    elapsed: Duration,
    broker_us: f64,
    own_us: f64,
    machine_us: f64,
    written_bytes: f64,
    syncs: f64,
    rss_kib: f64,
}

impl Spent {
    /// Adds a stretch in which so many messages went through.
    pub fn add(&mut self, before: &Reading, after: &Reading, messages: u64) {
        let broker = |figure: fn(&Usage) -> Option<u64>| {
            let of = |reading: &Reading| reading.broker.as_ref().and_then(figure);
            grown(of(before), of(after))
        };
        self.messages += messages as f64;
        self.elapsed += after.at - before.at;
        self.broker_us += broker(|usage| Some(usage.cpu_us));
        self.written_bytes += broker(|usage| usage.written_bytes);
        self.own_us += grown(before.own_cpu_us, after.own_cpu_us);
        self.machine_us += grown(before.machine_busy_us, after.machine_busy_us);
        let syncs = before.syncs.zip(after.syncs);
        self.syncs += syncs.map_or(f64::NAN, |(before, after)| after - before);
        let rss_kib = after.broker.map(|usage| usage.rss_kib as f64);
        self.rss_kib = rss_kib.unwrap_or(f64::NAN);
    }

    /// How long all stretches took.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Sets what they cost per message.
    pub fn tell(&self, sample: &mut Sample) {
        let elapsed_us = self.elapsed.as_micros() as f64;
        let per_message = |sum: f64| sum / self.messages;
        sample.set(Figure::MessagesPerSecond, self.messages / elapsed_us * 1e6);
        sample.set(Figure::CpuUsPerMessage, per_message(self.broker_us));
        sample.set(Figure::GeneratorCpuUsPerMessage, per_message(self.own_us));
        sample.set(
            Figure::WrittenBytesPerMessage,
            per_message(self.written_bytes),
        );
        sample.set(Figure::SyncsPerMessage, per_message(self.syncs));
        if self.messages > 0.0 {
            sample.set(Figure::RssMib, self.rss_kib / 1024.0);
        }
        let others_us = self.machine_us - self.own_us - self.broker_us;
        if others_us.is_finite() {
            let cores =
                std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
            let share = others_us.max(0.0) / (elapsed_us * cores);
            sample.set(Figure::OthersCpuShare, share);
        }
    }
}

fn grown(before: Option<u64>, after: Option<u64>) -> f64 {
    let both = before.zip(after);
    both.map_or(f64::NAN, |(before, after)| {
        after.saturating_sub(before) as f64
    })
}

/// Sets the latencies of a run.
pub fn tell_latencies(score: &Score, sample: &mut Sample) {
    for (figure, histogram, q) in [
        (Figure::DeliveryP50Us, &score.delivery, 0.50),
        (Figure::DeliveryP99Us, &score.delivery, 0.99),
        (Figure::ConfirmP50Us, &score.confirmation, 0.50),
        (Figure::ConfirmP99Us, &score.confirmation, 0.99),
    ] {
        sample.set(
            figure,
            histogram.quantile_ns(q).map(|ns| ns as f64 / 1000.0),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at: Instant, cpu_us: u64, syncs: Option<f64>) -> Reading {
        Reading {
            at,
            broker: Some(Usage {
                cpu_us,
                rss_kib: 2048,
                written_bytes: Some(cpu_us * 2),
            }),
            own_cpu_us: Some(cpu_us),
            machine_busy_us: Some(cpu_us * 3),
            syncs,
        }
    }

    #[test]
    fn stretches_add_up_and_what_one_lacks_is_not_told() {
        let began = Instant::now();
        let second = Duration::from_secs(1);
        let mut spent = Spent::default();
        spent.add(
            &reading(began, 100, Some(1.0)),
            &reading(began + second, 300, Some(5.0)),
            100,
        );
        let mut sample = Sample::default();
        spent.tell(&mut sample);
        assert_eq!(sample.figures[&Figure::SyncsPerMessage], 0.04);
        spent.add(
            &reading(began, 900, None),
            &reading(began + second, 1000, None),
            100,
        );
        let mut sample = Sample::default();
        spent.tell(&mut sample);
        assert_eq!(sample.figures[&Figure::CpuUsPerMessage], 1.5);
        assert_eq!(sample.figures[&Figure::WrittenBytesPerMessage], 3.0);
        assert_eq!(sample.figures[&Figure::MessagesPerSecond], 100.0);
        assert_eq!(sample.figures[&Figure::RssMib], 2.0);
        assert!(!sample.figures.contains_key(&Figure::SyncsPerMessage));
    }

    #[test]
    fn no_stretch_tells_nothing() {
        let mut sample = Sample::default();
        Spent::default().tell(&mut sample);
        assert!(sample.figures.is_empty(), "{sample:?}");
    }
}
