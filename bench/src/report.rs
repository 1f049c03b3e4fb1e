//! What came out: medians, ratios beside the aims, and all of it as JSON.
//!
//! Owns the layout of that. Never measures. Next: `sample.rs`, `table.rs`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::compare::Extent;
use crate::row::{Aim, Feature, Row, SMALL_BYTES};
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

/// A figure of ours beside a peer's in the same rounds, or beside an aim that is an amount.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The row.
    pub row: &'static str,
    /// The figure.
    pub figure: Figure,
    /// The peer, when there is one.
    pub peer: Option<String>,
    /// Our median.
    pub ours: Option<f64>,
    /// The peer's median.
    pub theirs: Option<f64>,
    /// What the aim is held against: ours divided by the peer's, or ours alone.
    pub value: Option<f64>,
    /// What it should be at most, where there is an aim.
    pub aim: Option<f64>,
    /// How that came out.
    pub verdict: Option<Verdict>,
}

/// What became of an aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// At or below.
    Met,
    /// Above.
    Missed,
    /// A side lost, repeated or reordered messages, or failed.
    NotClean,
    /// There is no figure to hold against it.
    Unmeasured,
}

/// A row that was not run on a broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The row.
    pub row: &'static str,
    /// The broker.
    pub broker: String,
    /// What it lacks.
    pub why: &'static str,
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
    /// Bytes of a message's payload where the row does not say otherwise.
    pub payload_bytes: usize,
    /// Who took part, in the order of the table's lines.
    pub brokers: Vec<BrokerInfo>,
    /// All samples.
    pub entries: Vec<Entry>,
    /// What a broker was spared because it lacks a feature of a protocol it speaks.
    pub left_out: Vec<LeftOut>,
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
            payload_bytes: SMALL_BYTES,
            brokers,
            entries: Vec::new(),
            left_out: Vec::new(),
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

    /// Notes that a broker lacks what a row needs. That it does not speak the protocol at all
    /// goes without saying.
    pub fn leave_out(&mut self, row: &Row, broker: &str, feature: Feature) {
        let left_out = LeftOut {
            row: row.name,
            broker: broker.to_owned(),
            why: feature.absence(),
        };
        let unsaid = matches!(feature, Feature::Mqtt | Feature::Amqp);
        if !unsaid && !self.left_out.contains(&left_out) {
            self.left_out.push(left_out);
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

    /// Our processor time per message against each peer's, and every aim, row by row.
    pub fn ratios(&self) -> Vec<Ratio> {
        let peers = || self.brokers.iter().filter(|info| info.name != SUBJECT);
        let mut ratios = Vec::new();
        for row in &self.rows {
            let Some(ours) = self.entry(row.name, SUBJECT) else {
                continue;
            };
            for BrokerInfo { name, .. } in peers() {
                let cpu = Figure::CpuUsPerMessage;
                let aimed = |aim: &&Aim| aim.figure == cpu && aim.peer == Some(name);
                if row.aims.iter().find(aimed).is_none() {
                    let ratio = self.ratio(ours, cpu, Some(name), None);
                    ratios.extend(ratio.value.is_some().then_some(ratio));
                }
            }
            for aim in row.aims {
                if aim
                    .peer
                    .is_none_or(|peer| peers().any(|info| info.name == peer))
                {
                    ratios.push(self.ratio(ours, aim.figure, aim.peer, Some(aim.at_most)));
                }
            }
        }
        ratios
    }

    fn ratio(&self, entry: &Entry, figure: Figure, peer: Option<&str>, aim: Option<f64>) -> Ratio {
        let other = peer.and_then(|peer| self.entry(entry.row, peer));
        let ours = entry.median(figure);
        let theirs = other.and_then(|other| other.median(figure));
        let value = match peer {
            Some(_) => ours
                .zip(theirs.filter(|theirs| *theirs > 0.0))
                .map(|(ours, theirs)| ours / theirs),
            None => ours,
        };
        let clean = entry.is_clean() && other.is_none_or(Entry::is_clean);
        let verdict = aim.map(|aim| match value {
            None => Verdict::Unmeasured,
            Some(_) if !clean => Verdict::NotClean,
            Some(value) if value <= aim => Verdict::Met,
            Some(_) => Verdict::Missed,
        });
        Ratio {
            row: entry.row,
            figure,
            peer: peer.map(str::to_owned),
            ours,
            theirs,
            value,
            aim,
            verdict,
        }
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
    fn ratios_are_of_medians_and_held_against_the_aim() {
        let mut report = report();
        let [idle, cpu] = report.ratios().try_into().unwrap();
        let expected = Ratio {
            row: "m-p2p-q0",
            figure: Figure::CpuUsPerMessage,
            peer: Some("mosquitto".into()),
            ours: Some(2.0),
            theirs: Some(5.0),
            value: Some(0.4),
            aim: Some(0.2),
            verdict: Some(Verdict::Missed),
        };
        assert_eq!(cpu, expected);
        // An aim that is an amount, on a row that failed.
        assert_eq!((idle.row, idle.peer), ("m-idle", None));
        assert_eq!(idle.verdict, Some(Verdict::Unmeasured));
        report.add(report.rows[1], "mosquitto", Sample::failed("gone"));
        assert_eq!(report.ratios()[1].verdict, Some(Verdict::NotClean));
    }

    #[test]
    fn a_missing_feature_is_noted_once_and_is_no_fault() {
        let mut report = report();
        report.entries.clear();
        let row = report.rows[1];
        for feature in [Feature::Qos2, Feature::Qos2, Feature::Mqtt] {
            report.leave_out(row, "rabbitmq", feature);
        }
        assert!(report.is_clean());
        let table = report.table();
        let note = "not run: m-p2p-q0 on rabbitmq: no QoS 2 to subscribers";
        assert_eq!(table.matches("not run").count(), 1, "{table}");
        assert!(table.contains(note), "{table}");
    }

    #[test]
    fn the_table_marks_what_was_not_clean_and_shows_what_failed() {
        let mut report = report();
        let table = report.table();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let ratio = table
            .lines()
            .map(words)
            .find(|line| line.ends_with("missed"));
        assert_eq!(
            ratio.as_deref(),
            Some("m-p2p-q0 CPU us/msg 2.00 mosquitto 5.00 0.400 <= 0.20 missed"),
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
        assert_eq!(json["ratios"][1]["value"], 0.4);
        assert_eq!(json["medians"][2]["clean"], false);
    }
}
