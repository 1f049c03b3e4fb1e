//! Runs rows on several brokers in interleaved rounds, and gathers the samples.
//!
//! Owns the order: in every round each row runs on every broker before the next row does, so
//! that what else happens on the machine falls on all of them alike, and they take turns in
//! going first. Next: `report.rs`.

use std::time::Duration;

use crate::brokers::{Broker, Place, Running};
use crate::failure::EngineError;
use crate::process;
use crate::report::{BrokerInfo, Report};
use crate::row::{Feature, Kind, Row, Stage};
use crate::sample::{Figure, Sample};
use crate::target::Target;
use crate::{flow, idle, staged};

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
    /// Rounds, and in each the rows; stages of one load come together.
    fn each_group(&self) -> impl Iterator<Item = (u32, Vec<&'static Row>)> {
        let groups = || {
            self.rows
                .chunk_by(|a, b| a.group() == b.group())
                .map(<[_]>::to_vec)
        };
        (0..self.rounds).flat_map(move |round| groups().map(move |rows| (round, rows)))
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
    for (round, rows) in extent.each_group() {
        for target in targets {
            let rows = able(&rows, &target.name, |row| target.lack(row), &mut report);
            for (row, sample) in runs.measure(target, &rows, extent.seconds) {
                tell(round, row, &target.name, &sample);
                report.add(row, &target.name, sample);
            }
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
    let mut begun = None;
    for (round, rows) in extent.each_group() {
        if begun != Some(round) {
            begun = Some(round);
            slots.clear();
            slots.extend(brokers.iter().map(|broker| Slot::start(broker, place)));
            // The one that goes first comes off some percent worse.
            let first = round as usize % brokers.len().max(1);
            slots.rotate_left(first);
        }
        for slot in &mut slots {
            let name = slot.broker.name();
            let rows = able(&rows, name, |row| slot.lack(row), &mut report);
            for (row, sample) in slot.measure(&mut runs, &rows, extent.seconds, place) {
                tell(round, row, name, &sample);
                report.add(row, name, sample);
            }
        }
    }
    report
}

/// The rows that a broker can run; the report notes the others.
fn able(
    rows: &[&'static Row],
    broker: &str,
    lack: impl Fn(&Row) -> Option<Feature>,
    report: &mut Report,
) -> Vec<&'static Row> {
    let mut able = rows.to_vec();
    able.retain(|row| match lack(row) {
        Some(feature) => {
            report.leave_out(row, broker, feature);
            false
        }
        None => true,
    });
    able
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
    fn number(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// Runs one row, or stages of one load.
    fn measure(
        &mut self,
        target: &Target,
        rows: &[&'static Row],
        seconds: f64,
    ) -> Vec<(&'static Row, Sample)> {
        let Some(first) = rows.first() else {
            return Vec::new();
        };
        let sample =
            |result: Result<Sample, EngineError>| vec![result.unwrap_or_else(Sample::failed)];
        let samples = match first.kind {
            Kind::Flow(flow) => sample(flow::run(target, &flow, seconds, self.number())),
            Kind::Idle(idle) => sample(idle::run(target, idle, self.number())),
            Kind::Staged(staged, _) => {
                let stages: Vec<Stage> = rows.iter().filter_map(|row| row.stage()).collect();
                staged::run(target, &staged, &stages, seconds, || self.number())
            }
        };
        rows.iter().copied().zip(samples).collect()
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
    fn lack(&self, row: &Row) -> Option<Feature> {
        match &self.running {
            Ok(running) => running.target.lack(row),
            Err(_) => {
                let mut needs = row.needs().into_iter();
                needs.find(|feature| self.broker.lacks().contains(feature))
            }
        }
    }

    fn measure(
        &mut self,
        runs: &mut Runs,
        rows: &[&'static Row],
        seconds: f64,
        place: &Place,
    ) -> Vec<(&'static Row, Sample)> {
        let Some(row) = rows.first().copied() else {
            return Vec::new();
        };
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
            Err(error) => {
                let failed = |row: &&'static Row| (*row, Sample::failed(&*error));
                return rows.iter().map(failed).collect();
            }
        };
        let mut samples = runs.measure(&running.target, rows, seconds);
        if row.is_idle() {
            for (_, sample) in &mut samples {
                let start_rss_mib = self.start_rss_kib.map(|kib| kib as f64 / 1024.0);
                sample.set(Figure::StartRssMib, start_rss_mib);
            }
        }
        if !running.is_alive() {
            let (name, log) = (self.broker.name(), running.last_words());
            for (_, sample) in &mut samples {
                sample.error = Some(format!(
                    "{name} ended during this row; its last words:\n{log}"
                ));
            }
            *self = Self::start(self.broker, place);
        }
        samples
    }
}

fn tell(round: u32, row: &Row, broker: &str, sample: &Sample) {
    let figure = |figure| sample.figures.get(&figure).copied();
    let mut line = format!("round {} {:<16} {:<10}", round + 1, row.name, broker);
    if let Some(cpu_us) = figure(Figure::CpuUsPerMessage) {
        line += &format!(" {cpu_us:8.2} us/msg");
    }
    if let Some(rate) = figure(Figure::MessagesPerSecond) {
        line += &format!(" {rate:10.0} msg/s");
    }
    if let Some(kib) = figure(Figure::KibPerConnection) {
        line += &format!(" {kib:8.1} KiB/connection");
    }
    if let Some(kib) = figure(Figure::KibPerChannel) {
        line += &format!(" {kib:8.1} KiB/channel");
    }
    if !sample.faults.is_clean() {
        line += &format!(" ! {:?}", sample.faults);
    }
    if let Some(error) = &sample.error {
        line += &format!(" ! {error}");
    }
    eprintln!("{line}");
}
