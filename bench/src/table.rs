//! The report as text for people.
//!
//! Owns columns and alignment. Never computes a figure. Next: `report.rs`.

use crate::report::{BrokerInfo, Entry, LeftOut, Machine, Ratio, Report, Verdict};
use crate::row::{Kind, Row};
use crate::sample::Figure;

/// Above this part of the machine used by others, figures are marked as disturbed.
const DISTURBED_SHARE: f64 = 0.10;

impl Report {
    /// The report as text for people.
    pub fn table(&self) -> String {
        let Machine {
            cores,
            kernel,
            file_system,
        } = &self.machine;
        let mut text = format!(
            "{} rounds of {} s per row, medians; {} byte payloads (16k: 16384); {cores} cores, Linux {}, {}\n",
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
        lines[0].extend(
            columns
                .iter()
                .map(|column| column.figure.words().to_owned()),
        );
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
        let headings = [
            "ratios and aims",
            "figure",
            "ours",
            "of",
            "theirs",
            "value",
            "aim",
            "",
        ];
        let mut lines = vec![headings.map(str::to_owned).to_vec()];
        let number = |value: &Option<f64>, decimals: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
        };
        for ratio in self.ratios() {
            let Ratio {
                row,
                figure,
                peer,
                ours,
                theirs,
                value,
                aim,
                verdict,
            } = &ratio;
            lines.push(vec![
                (*row).to_owned(),
                figure.words().to_owned(),
                number(ours, 2),
                peer.clone().unwrap_or_default(),
                peer.as_ref()
                    .map_or_else(String::new, |_| number(theirs, 2)),
                number(value, 3),
                aim.map_or_else(String::new, |aim| format!("<= {aim:.2}")),
                verdict.map_or("", words).to_owned(),
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
        for LeftOut { row, broker, why } in &self.left_out {
            *text += &format!("\nnot run: {row} on {broker}: {why}");
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

fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "missed",
        Verdict::NotClean => "not clean",
        Verdict::Unmeasured => "not measured",
    }
}

struct Column {
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
        let idle = matches!(row.kind, Kind::Idle(_));
        idle == (self.figure == Figure::StartRssMib)
    }
}

const fn column(figure: Figure, decimals: usize) -> Column {
    Column { figure, decimals }
}

const TABLES: [(&str, &[Column]); 2] = [
    (
        "messages",
        &[
            column(Figure::CpuUsPerMessage, 2),
            column(Figure::MessagesPerSecond, 0),
            column(Figure::DeliveryP50Us, 0),
            column(Figure::DeliveryP99Us, 0),
            column(Figure::ConfirmP50Us, 0),
            column(Figure::ConfirmP99Us, 0),
            column(Figure::GeneratorCpuUsPerMessage, 2),
            column(Figure::RssMib, 1),
            column(Figure::WrittenBytesPerMessage, 0),
            column(Figure::SyncsPerMessage, 4),
        ],
    ),
    (
        "memory",
        &[
            column(Figure::StartRssMib, 1),
            column(Figure::KibPerConnection, 1),
            column(Figure::ConnectionsPerSecond, 0),
            column(Figure::KibPerChannel, 1),
            column(Figure::ChannelsPerSecond, 0),
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
