//! One measurement of one row on one broker, and the median of several.
//!
//! Owns the list of figures. Never measures. Next: `flow.rs`, `report.rs`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::sequence::Faults;

/// A figure a row can give; the name in JSON is the variant's, in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Processor time of the broker per message received, microseconds.
    CpuUsPerMessage,
    /// Messages received per second.
    MessagesPerSecond,
    /// Sending to receiving, microseconds, median.
    DeliveryP50Us,
    /// Sending to receiving, microseconds, 99 of 100 at or below.
    DeliveryP99Us,
    /// Sending to the broker's confirmation, microseconds, median.
    ConfirmP50Us,
    /// Sending to the broker's confirmation, microseconds, 99 of 100 at or below.
    ConfirmP99Us,
    /// Resident memory of the broker at the end, MiB.
    RssMib,
    /// Bytes the broker wrote to a device per message received.
    WrittenBytesPerMessage,
    /// Syncs the broker made per message received, where it tells.
    SyncsPerMessage,
    /// Resident memory of the broker before its first row, MiB.
    StartRssMib,
    /// Resident memory per idle connection, KiB.
    KibPerConnection,
    /// Connections set up per second.
    ConnectionsPerSecond,
    /// Resident memory per idle channel, KiB.
    KibPerChannel,
    /// Channels opened per second.
    ChannelsPerSecond,
    /// Processor time of this program per message received, microseconds: what it could send and
    /// receive at most is one second divided by this.
    GeneratorCpuUsPerMessage,
    /// Part of the machine's processors that neither broker nor generator used, but others did.
    OthersCpuShare,
}

impl Figure {
    /// Its name in tables.
    pub fn words(self) -> &'static str {
        match self {
            Figure::CpuUsPerMessage => "CPU us/msg",
            Figure::MessagesPerSecond => "msg/s",
            Figure::DeliveryP50Us => "p50 us",
            Figure::DeliveryP99Us => "p99 us",
            Figure::ConfirmP50Us => "confirm p50",
            Figure::ConfirmP99Us => "confirm p99",
            Figure::RssMib => "RSS MiB",
            Figure::WrittenBytesPerMessage => "written B/msg",
            Figure::SyncsPerMessage => "syncs/msg",
            Figure::StartRssMib => "start RSS MiB",
            Figure::KibPerConnection => "KiB/connection",
            Figure::ConnectionsPerSecond => "connections/s",
            Figure::KibPerChannel => "KiB/channel",
            Figure::ChannelsPerSecond => "channels/s",
            Figure::GeneratorCpuUsPerMessage => "generator",
            Figure::OthersCpuShare => "others",
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// The figures it gave.
    pub figures: BTreeMap<Figure, f64>,
    /// What went wrong with its messages.
    pub faults: Faults,
    /// Why it ended early, or why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Sample {
    /// A sample that could not be taken.
    pub fn failed(error: impl ToString) -> Self {
        Self {
            error: Some(error.to_string()),
            ..Self::default()
        }
    }

    /// Sets a figure, if there is a value and it is a number.
    pub fn set(&mut self, figure: Figure, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            self.figures.insert(figure, value);
        }
    }

    /// Whether all messages arrived once and in order, to the end.
    pub fn is_clean(&self) -> bool {
        self.faults.is_clean() && self.error.is_none()
    }
}

/// The median of one figure over the samples that have it (the mean of the middle two when
/// their number is even).
pub fn median(samples: &[Sample], figure: Figure) -> Option<f64> {
    let mut values: Vec<f64> = samples
        .iter()
        .filter_map(|sample| sample.figures.get(&figure).copied())
        .collect();
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(values: &[f64], expected: Option<f64>) {
        let samples: Vec<Sample> = values
            .iter()
            .map(|value| {
                let mut sample = Sample::default();
                sample.set(Figure::RssMib, *value);
                sample
            })
            .collect();
        assert_eq!(median(&samples, Figure::RssMib), expected);
    }

    #[test]
    fn the_median_ignores_order_and_missing_values() {
        check(&[], None);
        check(&[3.0], Some(3.0));
        check(&[9.0, 1.0, 2.0], Some(2.0));
        check(&[4.0, 1.0, 2.0, 9.0], Some(3.0));
        check(&[f64::NAN, 1.0], Some(1.0));
    }

    #[test]
    fn a_fault_or_an_error_is_not_clean() {
        assert!(Sample::default().is_clean());
        assert!(!Sample::failed("no").is_clean());
        let faults = Faults {
            repeated: 1,
            ..Faults::default()
        };
        assert!(
            !Sample {
                faults,
                ..Sample::default()
            }
            .is_clean()
        );
    }
}
