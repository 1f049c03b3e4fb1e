//! What came out: medians, ratios beside the aims, as a table and as JSON.
//!
//! Owns the layout of both. Never measures. Next: `sample.rs`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::compare::Extent;
use crate::engine::PAYLOAD_BYTES;
use crate::rows::Row;
use crate::sample::{Figure, Sample, median};

/// The broker that is measured against its peers.
const SUBJECT: &str = "anabranch";
/// Above this part of the machine used by others, figures are marked as disturbed.
const DISTURBED_SHARE: f64 = 0.10;

/// A broker that took part.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BrokerInfo {
    /// Its name.
    pub name: String,
    /// Its version, where it tells.
    pub version: Option<String>,
    /// How it differs from its own defaults.
    pub configuration: Option<String>,
}

/// Where it ran.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// Processors this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: Option<String>,
    /// File system under the brokers' folders.
    pub file_system: Option<String>,
}

/// All samples of one row on one broker.
#[derive(Debug, Serialize)]
struct Entry {
    row: &'static str,
    meaning: &'static str,
    broker: String,
    samples: Vec<Sample>,
}

impl Entry {
    fn median(&self, figure: Figure) -> Option<f64> {
        median(&self.samples, figure)
    }

    fn is_clean(&self) -> bool {
        self.samples.iter().all(Sample::is_clean)
    }
}

/// Processor time per message as a part of a peer's, in the same rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The row.
    pub row: &'static str,
    /// The peer.
    pub peer: String,
    /// Ours divided by the peer's.
    pub of_cpu: f64,
    /// What it should be at most, where there is an aim for this peer.
    pub aim: Option<f64>,
}

/// The whole result.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where it ran.
    pub machine: Machine,
    rounds: u32,
    seconds: f64,
    payload_bytes: usize,
    brokers: Vec<BrokerInfo>,
    entries: Vec<Entry>,
    #[serde(skip)]
    rows: Vec<&'static Row>,
}

impl Report {
    /// A report without samples.
    pub fn new(extent: &Extent, brokers: Vec<BrokerInfo>) -> Self {
        let machine = Machine {
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: Some(
                rustix::system::uname()
                    .release()
                    .to_string_lossy()
                    .into_owned(),
            ),
            file_system: None,
        };
        Self {
            machine,
            rounds: extent.rounds,
            seconds: extent.seconds,
            payload_bytes: PAYLOAD_BYTES,
            brokers,
            entries: Vec::new(),
            rows: extent.rows.clone(),
        }
    }

    /// Adds a sample of a row on a broker.
    pub fn add(&mut self, row: &'static Row, broker: &str, sample: Sample) {
        let found = self
            .entries
            .iter_mut()
            .find(|e| e.row == row.name && e.broker == broker);
        match found {
            Some(entry) => entry.samples.push(sample),
            None => self.entries.push(Entry {
                row: row.name,
                meaning: row.meaning,
                broker: broker.to_owned(),
                samples: vec![sample],
            }),
        }
    }

    /// Whether every message of every row arrived once and in order.
    pub fn is_clean(&self) -> bool {
        self.entries.iter().all(Entry::is_clean)
    }

    fn entry(&self, row: &str, broker: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| entry.row == row && entry.broker == broker)
    }

    /// Our processor time per message against each peer's, row by row.
    pub fn ratios(&self) -> Vec<Ratio> {
        let mut ratios = Vec::new();
        for row in &self.rows {
            let cpu = |broker: &str| {
                self.entry(row.name, broker)?
                    .median(Figure::CpuUsPerMessage)
            };
            let Some(ours) = cpu(SUBJECT) else { continue };
            for BrokerInfo { name, .. } in self.brokers.iter().filter(|info| info.name != SUBJECT) {
                if let Some(theirs) = cpu(name).filter(|theirs| *theirs > 0.0) {
                    let aim = row
                        .aim
                        .filter(|aim| aim.peer == name)
                        .map(|aim| aim.at_most);
                    ratios.push(Ratio {
                        row: row.name,
                        peer: name.clone(),
                        of_cpu: ours / theirs,
                        aim,
                    });
                }
            }
        }
        ratios
    }

    /// The report as JSON: the fields of this type, medians and ratios.
    pub fn json(&self) -> serde_json::Value {
        let figures = |entry: &Entry| -> BTreeMap<Figure, f64> {
            let all = entry
                .samples
                .iter()
                .flat_map(|sample| sample.figures.keys());
            all.filter_map(|figure| Some((*figure, entry.median(*figure)?)))
                .collect()
        };
        let mut json = serde_json::json!(self);
        json["medians"] = self
            .entries
            .iter()
            .map(|entry| {
                serde_json::json!({
                    "row": entry.row,
                    "broker": entry.broker,
                    "clean": entry.is_clean(),
                    "figures": figures(entry),
                })
            })
            .collect();
        json["ratios"] = serde_json::json!(self.ratios());
        json
    }

    /// The report as text for people.
    pub fn table(&self) -> String {
        let Machine {
            cores,
            kernel,
            file_system,
        } = &self.machine;
        let mut text = format!(
            "{} rounds of {} s per row, medians; {} byte payloads; {cores} cores, Linux {}, {}\n",
            self.rounds,
            self.seconds,
            self.payload_bytes,
            kernel.as_deref().unwrap_or("?"),
            file_system.as_deref().unwrap_or("file system unknown"),
        );
        for BrokerInfo {
            name,
            version,
            configuration,
        } in &self.brokers
        {
            text += &format!(
                "{name} {}",
                version.as_deref().unwrap_or("(version unknown)")
            );
            text += &configuration
                .as_ref()
                .map_or_else(String::new, |words| format!(": {words}"));
            text += "\n";
        }
        for (title, columns) in TABLES {
            self.part(title, columns, &mut text);
        }
        self.ratio_part(&mut text);
        self.notes(&mut text);
        text
    }

    /// One table: the rows that have any of its figures.
    fn part(&self, title: &str, columns: &[Column], text: &mut String) {
        let mut lines = vec![[title, "broker"].map(str::to_owned).to_vec()];
        lines[0].extend(columns.iter().map(|column| column.heading.to_owned()));
        for row in &self.rows {
            for entry in self
                .brokers
                .iter()
                .filter_map(|info| self.entry(row.name, &info.name))
            {
                let values: Vec<_> = columns
                    .iter()
                    .map(|column| entry.median(column.figure))
                    .collect();
                let failed = entry.samples.iter().all(|sample| sample.figures.is_empty());
                if values.iter().all(Option::is_none) && !(failed && columns[0].holds(row)) {
                    continue;
                }
                let mark = if entry.is_clean() { "" } else { " !" };
                let mut line = vec![row.name.to_owned(), format!("{}{mark}", entry.broker)];
                line.extend(
                    values
                        .iter()
                        .zip(columns)
                        .map(|(value, column)| column.show(*value)),
                );
                lines.push(line);
            }
        }
        if lines.len() > 1 {
            *text += "\n";
            *text += &aligned(&lines);
        }
    }

    fn ratio_part(&self, text: &mut String) {
        let headings = ["CPU per message", "of", "ratio", "aim", ""].map(str::to_owned);
        let mut lines = vec![headings.to_vec()];
        for Ratio {
            row,
            peer,
            of_cpu,
            aim,
        } in self.ratios()
        {
            let (aim, met) = match aim {
                Some(aim) => (
                    format!("<= {aim:.2}"),
                    if of_cpu <= aim { "met" } else { "missed" },
                ),
                None => (String::new(), ""),
            };
            lines.push(vec![
                row.to_owned(),
                peer,
                format!("{of_cpu:.3}"),
                aim,
                met.to_owned(),
            ]);
        }
        if lines.len() > 1 {
            *text += "\n";
            *text += &aligned(&lines);
        }
    }

    fn notes(&self, text: &mut String) {
        for Entry {
            row,
            broker,
            samples,
            ..
        } in &self.entries
        {
            for (round, sample) in samples
                .iter()
                .enumerate()
                .filter(|(_, sample)| !sample.is_clean())
            {
                *text += &format!("\n! {row} {broker} round {}: ", round + 1);
                if !sample.faults.is_clean() {
                    *text += &format!("{:?} ", sample.faults);
                }
                *text += sample.error.as_deref().unwrap_or("");
            }
        }
        let shares = self
            .entries
            .iter()
            .filter_map(|entry| entry.median(Figure::OthersCpuShare));
        let disturbed = shares.fold(0.0, f64::max);
        if disturbed > DISTURBED_SHARE {
            *text += &format!(
                "\nDisturbed: other processes took up to {:.0} % of the machine. Batches grow and \
                 CPU per message shrinks under such load; compare ratios only.",
                disturbed * 100.0
            );
        }
        if !text.ends_with('\n') {
            *text += "\n";
        }
    }
}

struct Column {
    heading: &'static str,
    figure: Figure,
    decimals: usize,
}

impl Column {
    fn show(&self, value: Option<f64>) -> String {
        value.map_or_else(
            || "-".to_owned(),
            |value| format!("{value:.*}", self.decimals),
        )
    }

    /// Whether a row that failed belongs in the table whose first column this is.
    fn holds(&self, row: &Row) -> bool {
        row.is_idle() == (self.figure == Figure::StartRssMib)
    }
}

const fn column(heading: &'static str, figure: Figure, decimals: usize) -> Column {
    Column {
        heading,
        figure,
        decimals,
    }
}

const TABLES: [(&str, &[Column]); 2] = [
    (
        "messages",
        &[
            column("CPU us/msg", Figure::CpuUsPerMessage, 2),
            column("msg/s", Figure::MessagesPerSecond, 0),
            column("p50 us", Figure::DeliveryP50Us, 0),
            column("p99 us", Figure::DeliveryP99Us, 0),
            column("confirm p50", Figure::ConfirmP50Us, 0),
            column("confirm p99", Figure::ConfirmP99Us, 0),
            column("generator", Figure::GeneratorCpuUsPerMessage, 2),
            column("RSS MiB", Figure::RssMib, 1),
            column("written B/msg", Figure::WrittenBytesPerMessage, 0),
            column("syncs/msg", Figure::SyncsPerMessage, 4),
        ],
    ),
    (
        "memory",
        &[
            column("start RSS MiB", Figure::StartRssMib, 1),
            column("KiB/connection", Figure::KibPerConnection, 1),
            column("connections/s", Figure::ConnectionsPerSecond, 0),
        ],
    ),
];

/// Pads cells: the first two columns to the left, the rest to the right.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines
            .iter()
            .filter_map(|line| line.get(column))
            .map(String::len)
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            if column < 2 {
                row += &format!("{cell:<width$}  ");
            } else {
                row += &format!("{cell:>width$}  ");
            }
        }
        text += row.trim_end();
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::select;
    use crate::sequence::Faults;

    fn report() -> Report {
        let rows = select(&["m-p2p-q0".to_owned(), "m-idle".to_owned()]).unwrap();
        let (idle, flow) = (rows[0], rows[1]);
        let extent = Extent {
            rows,
            rounds: 3,
            seconds: 1.0,
        };
        let infos = ["anabranch", "mosquitto"].map(|name| BrokerInfo {
            name: name.into(),
            ..Default::default()
        });
        let mut report = Report::new(&extent, infos.to_vec());
        for (broker, cpu_us) in [
            ("anabranch", [1.0, 9.0, 2.0]),
            ("mosquitto", [5.0, 5.0, 5.0]),
        ] {
            for value in cpu_us {
                let mut sample = Sample::default();
                sample.set(Figure::CpuUsPerMessage, value);
                report.add(flow, broker, sample);
            }
        }
        report.add(idle, "anabranch", Sample::failed("no listener"));
        report
    }

    #[test]
    fn ratios_are_of_medians_and_know_the_aim() {
        let expected = Ratio {
            row: "m-p2p-q0",
            peer: "mosquitto".into(),
            of_cpu: 0.4,
            aim: Some(0.5),
        };
        assert_eq!(report().ratios(), [expected]);
    }

    #[test]
    fn the_table_marks_what_was_not_clean_and_shows_what_failed() {
        let mut report = report();
        let table = report.table();
        assert!(
            table.contains("m-p2p-q0         mosquitto  0.400  <= 0.50  met"),
            "{table}"
        );
        assert!(table.contains("anabranch !"), "{table}");
        assert!(
            table.contains("! m-idle anabranch round 1: no listener"),
            "{table}"
        );
        assert!(!table.contains("mosquitto !"), "{table}");
        assert!(!report.is_clean());
        let faults = Faults {
            lost: 2,
            ..Faults::default()
        };
        let row = report.rows[1];
        report.add(
            row,
            "mosquitto",
            Sample {
                faults,
                ..Sample::default()
            },
        );
        assert!(report.table().contains("mosquitto !"));
    }

    #[test]
    fn json_carries_medians_samples_and_ratios() {
        let json = report().json();
        assert_eq!(json["medians"][0]["figures"]["cpu_us_per_message"], 2.0);
        assert_eq!(json["entries"][0]["samples"].as_array().unwrap().len(), 3);
        assert_eq!(json["ratios"][0]["of_cpu"], 0.4);
        assert_eq!(json["medians"][2]["clean"], false);
    }
}
