//! Runs rows on several brokers in interleaved rounds, and gathers the samples.
//!
//! Owns the order: in every round each row runs on every broker before the next row does, so
//! that what else happens on the machine falls on all of them alike. Next: `report.rs`.

use std::time::Duration;

use crate::brokers::{Broker, Place, Running};
use crate::engine::EngineError;
use crate::process;
use crate::report::{BrokerInfo, Report};
use crate::rows::{Kind, Row};
use crate::sample::{Figure, Sample};
use crate::target::Target;
use crate::{flow, idle};

/// How long a broker that has just started is left alone before its memory is read.
const START_SETTLE: Duration = Duration::from_millis(500);

/// How much is run.
pub struct Extent {
    /// Rows, in their order.
    pub rows: Vec<&'static Row>,
    /// Rounds.
    pub rounds: u32,
    /// Measured seconds per row and broker.
    pub seconds: f64,
}

impl Extent {
    fn each_row(&self) -> impl Iterator<Item = (u32, &'static Row)> {
        (0..self.rounds).flat_map(|round| self.rows.iter().map(move |row| (round, *row)))
    }
}

/// Runs rows on brokers that are running already.
pub fn run(targets: &[Target], extent: &Extent) -> Report {
    let names = targets.iter().map(|target| BrokerInfo {
        name: target.name.clone(),
        ..Default::default()
    });
    let mut report = Report::new(extent, names.collect());
    let mut runs = Runs::default();
    for (round, row) in extent.each_row() {
        for target in targets.iter().filter(|target| target.can_run(row)) {
            let sample = runs.measure(target, row, extent.seconds);
            tell(round, row, &target.name, &sample);
            report.add(row, &target.name, sample);
        }
    }
    report
}

/// Starts every broker anew in each round, runs the rows and stops them. A broker that does not
/// start, or ends in the middle, gives failed samples.
pub fn compare(brokers: &[Broker], extent: &Extent, place: &Place) -> Report {
    let infos = brokers.iter().map(|broker| BrokerInfo {
        name: broker.name().to_owned(),
        version: broker.version(),
        configuration: Some(broker.configuration().to_owned()),
    });
    let mut report = Report::new(extent, infos.collect());
    report.machine.file_system = process::file_system(&place.folder);
    let mut runs = Runs::default();
    let mut slots: Vec<Slot> = Vec::new();
    for (round, row) in extent.each_row() {
        if extent
            .rows
            .first()
            .is_some_and(|first| first.name == row.name)
        {
            slots.clear();
            slots.extend(brokers.iter().map(|broker| Slot::start(broker, place)));
        }
        for slot in slots.iter_mut().filter(|slot| slot.can_run(row)) {
            let sample = slot.measure(&mut runs, row, extent.seconds, place);
            tell(round, row, slot.broker.name(), &sample);
            report.add(row, slot.broker.name(), sample);
        }
    }
    report
}

/// Numbers the runs, so that no two on one broker share names or stamps.
struct Runs {
    next: u32,
}

impl Default for Runs {
    fn default() -> Self {
        // Another bench may have used the same broker before.
        Self {
            next: std::process::id() % 1_000_000 * 1000,
        }
    }
}

impl Runs {
    fn measure(&mut self, target: &Target, row: &Row, seconds: f64) -> Sample {
        self.next = self.next.wrapping_add(1);
        let sample = match row.kind {
            Kind::Flow(flow) => flow::run(target, &flow, seconds, self.next),
            Kind::Idle(protocol) => idle::run(target, protocol, self.next),
        };
        sample.unwrap_or_else(|error: EngineError| Sample::failed(error))
    }
}

/// A broker in one round.
struct Slot<'b> {
    broker: &'b Broker,
    running: Result<Running, String>,
    start_rss_kib: Option<u64>,
    last: Option<&'static Row>,
}

impl<'b> Slot<'b> {
    fn start(broker: &'b Broker, place: &Place) -> Self {
        let running = broker.start(place).map_err(|error| error.to_string());
        std::thread::sleep(START_SETTLE);
        let pid = running.as_ref().ok().and_then(|running| running.target.pid);
        let start_rss_kib = pid.and_then(process::usage).map(|usage| usage.rss_kib);
        Self {
            broker,
            running,
            start_rss_kib,
            last: None,
        }
    }

    /// A broker that does not run still gets the rows it might have, to show that it failed.
    fn can_run(&self, row: &Row) -> bool {
        match &self.running {
            Ok(running) => running.target.can_run(row),
            Err(_) => !(row.needs_amqp() && *self.broker == Broker::Mosquitto),
        }
    }

    fn measure(
        &mut self,
        runs: &mut Runs,
        row: &'static Row,
        seconds: f64,
        place: &Place,
    ) -> Sample {
        // Memory that an earlier row left behind would hide what idle connections take, and the
        // memory they leave behind would weigh on the rows after them.
        if self
            .last
            .is_some_and(|last| last.is_idle() || row.is_idle())
        {
            *self = Self::start(self.broker, place);
        }
        self.last = Some(row);
        let running = match &mut self.running {
            Ok(running) => running,
            Err(error) => return Sample::failed(error),
        };
        let mut sample = runs.measure(&running.target, row, seconds);
        if row.is_idle() {
            sample.set(
                Figure::StartRssMib,
                self.start_rss_kib.map(|kib| kib as f64 / 1024.0),
            );
        }
        if !running.is_alive() {
            let (name, log) = (self.broker.name(), running.last_words());
            sample.error = Some(format!(
                "{name} ended during this row; its last words:
{log}"
            ));
            *self = Self::start(self.broker, place);
        }
        sample
    }
}

fn tell(round: u32, row: &Row, broker: &str, sample: &Sample) {
    let figure = |figure| sample.figures.get(&figure).copied();
    let mut line = format!("round {} {:<12} {:<10}", round + 1, row.name, broker);
    if let Some(cpu_us) = figure(Figure::CpuUsPerMessage) {
        line += &format!(" {cpu_us:8.2} us/msg");
    }
    if let Some(rate) = figure(Figure::MessagesPerSecond) {
        line += &format!(" {rate:10.0} msg/s");
    }
    if let Some(kib) = figure(Figure::KibPerConnection) {
        line += &format!(" {kib:8.1} KiB/connection");
    }
    if !sample.faults.is_clean() {
        line += &format!(" ! {:?}", sample.faults);
    }
    if let Some(error) = &sample.error {
        line += &format!(" ! {error}");
    }
    eprintln!("{line}");
}
