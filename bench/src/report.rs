//! What came out: medians, ratios beside the aims, and all of it as JSON.
//!
//! Owns the layout of that. Never measures. Next: `sample.rs`, `table.rs`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::compare::Extent;
use crate::lane::PAYLOAD_BYTES;
use crate::rows::Row;
use crate::sample::{Figure, Sample, median};

/// The broker that is measured against its peers.
const SUBJECT: &str = "anabranch";

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
pub struct Entry {
    /// The row's name.
    pub row: &'static str,
    meaning: &'static str,
    /// The broker's name.
    pub broker: String,
    /// One per round.
    pub samples: Vec<Sample>,
}

impl Entry {
    /// The median over the rounds.
    pub fn median(&self, figure: Figure) -> Option<f64> {
        median(&self.samples, figure)
    }

    /// Whether every round was clean.
    pub fn is_clean(&self) -> bool {
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
    /// Rounds.
    pub rounds: u32,
    /// Measured seconds per row, broker and round.
    pub seconds: f64,
    /// Bytes of every message's payload.
    pub payload_bytes: usize,
    /// Who took part, in the order of the table's lines.
    pub brokers: Vec<BrokerInfo>,
    /// All samples.
    pub entries: Vec<Entry>,
    /// What was run, in this order.
    #[serde(skip)]
    pub rows: Vec<&'static Row>,
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

    /// The samples of a row on a broker, if it ran there.
    pub fn entry(&self, row: &str, broker: &str) -> Option<&Entry> {
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
