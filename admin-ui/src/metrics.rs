//! `/metrics` in OpenMetrics text, made from the same numbers as the overview.
//!
//! Owns the names: `anabranch_<total>_total`, `anabranch_<gauge>`, and per protocol
//! `anabranch_protocol_connections`. Never names a single queue or connection.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text::encode};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::model::Overview;

/// Media type of what [`render`] gives.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The numbers of one moment as text.
///
/// # Errors
/// Only when writing into a string fails.
pub(crate) fn render(overview: Overview) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("anabranch");
    registry.register_collector(Box::new(Numbers(overview)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Numbers(Overview);

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let overview = &self.0;
        for (name, help, value) in overview.totals.fields() {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(
                name,
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        let node = [
            (
                "memory_bytes",
                "Resident memory",
                overview.node.memory_bytes,
            ),
            (
                "disk_used_bytes",
                "Size of the data folder",
                overview.node.disk_used_bytes,
            ),
            (
                "disk_free_bytes",
                "Free space where it lies",
                overview.node.disk_free_bytes,
            ),
            (
                "start_time_seconds",
                "When the node started, since 1970",
                overview.node.started_at_ms / 1000,
            ),
            (
                "alarms",
                "Things that are wrong now",
                overview.alarms.len() as u64,
            ),
        ];
        for (name, help, value) in overview.gauges.fields().into_iter().chain(node) {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let kind = ConstGauge::new(0i64).metric_type();
        let mut family = encoder.encode_descriptor(
            "protocol_connections",
            "Open connections by protocol",
            None,
            kind,
        )?;
        for row in &overview.protocols {
            let labels = [("protocol", row.protocol.as_str())];
            let gauge = ConstGauge::new(i64::try_from(row.connections).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ProtocolCount;

    #[test]
    fn counters_end_in_total_and_protocols_are_labels() {
        let mut overview = Overview::default();
        overview.totals.received = 42;
        overview.gauges.ready = 7;
        overview.protocols.push(ProtocolCount {
            protocol: "one".into(),
            connections: 3,
        });
        let text = render(overview).unwrap();
        for line in [
            "# TYPE anabranch_received counter",
            "anabranch_received_total 42",
            "# HELP anabranch_ready Messages that wait for delivery",
            "anabranch_ready 7",
            "anabranch_protocol_connections{protocol=\"one\"} 3",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
