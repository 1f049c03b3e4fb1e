//! Frames and records of a shard as lines.
//!
//! Owns: how each is printed, for people and as JSON.
//! Never: prints what a metadata command says: it may hold hashes of passwords.

use std::ops::ControlFlow;

use anabranch_core::record::Record;
use anabranch_store::inspect::{DumpFrom, Dumped, InspectError, ShardFolder, Source, dump};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::output;
use super::{CouldNot, Ended, Format, KEYS_NEEDED, print_away};

/// Bytes of a field that a line of text shows.
const TEXT_MAX: usize = 200;

/// Prints frames and records.
pub(super) struct Lines<'a> {
    pub(super) format: Format,
    pub(super) bodies: bool,
    /// Frames that may still be printed.
    pub(super) left: &'a mut u64,
}

impl Lines<'_> {
    pub(super) fn dump(
        self,
        source: &Source,
        folder: &ShardFolder,
        from: DumpFrom,
    ) -> Result<Ended, CouldNot> {
        let mut damaged = false;
        let dumped = dump(source, folder, from, &mut |one| {
            if let Dumped::Frame { .. } = &one {
                if *self.left == 0 {
                    return ControlFlow::Break(());
                }
                *self.left -= 1;
            }
            damaged |= matches!(one, Dumped::Damaged { .. });
            let value = self.value(folder, &one);
            output::line(&match self.format {
                Format::Json => value.to_string(),
                Format::Text => text_of(&one, &value),
            });
            ControlFlow::Continue(())
        });
        let away = dumped.map_err(|error| match error {
            InspectError::Sealed { .. } => format!("{error}; {KEYS_NEEDED}"),
            other => other.to_string(),
        })?;
        // Not among the records, which a program may read.
        print_away(folder, &away, |line| eprintln!("{line}"));
        Ok(if damaged { Ended::Defects } else { Ended::Fine })
    }

    fn value(&self, folder: &ShardFolder, one: &Dumped) -> Value {
        let mut value = match one {
            Dumped::Frame {
                index,
                position,
                term,
                clock,
                kind,
                payload_bytes,
                partly_given_back,
                path,
                offset,
            } => json!({
                "frame": index.0,
                "position": position.0,
                "term": term.0,
                "time_ms": clock.0,
                "kind": format!("{kind:?}"),
                "payload_bytes": payload_bytes,
                "partly_given_back": partly_given_back,
                "file": path.display().to_string(),
                "offset": offset,
            }),
            Dumped::Record {
                position,
                bytes,
                mark,
                record,
            } => {
                let mut value = json!({
                    "record": one.kind_name(),
                    "position": position.0,
                    "bytes": bytes,
                    "lane": mark.lane.0,
                    "sequence": mark.sequence.0,
                });
                self.add_record(&mut value, record);
                value
            }
            Dumped::Command(_) => json!({"command": one.kind_name()}),
            Dumped::Damaged {
                index,
                path,
                offset,
                what,
            } => json!({
                "damaged": index.0,
                "file": path.display().to_string(),
                "offset": offset,
                "what": what,
            }),
        };
        value["shard"] = folder.name.clone().into();
        value
    }

    fn add_record(&self, value: &mut Value, record: &Record) {
        match record {
            Record::Publish {
                streams,
                by_topic,
                message,
                ..
            } => {
                let streams: Vec<u64> = streams.iter().map(|stream| stream.0).collect();
                value["streams"] = streams.into();
                value["by_topic_of_vhost"] = by_topic.map(|vhost| vhost.0).into();
                value["exchange"] = String::from_utf8_lossy(&message.exchange).into();
                value["address"] = String::from_utf8_lossy(&message.address.0).into();
                value["published_ms"] = message.published.0.into();
                value["retain"] = message.retain.into();
                value["body_bytes"] = message.body.len().into();
                if self.bodies {
                    match std::str::from_utf8(&message.body) {
                        Ok(text) => value["body"] = text.into(),
                        Err(_) => value["body_base64"] = STANDARD.encode(&message.body).into(),
                    }
                }
            }
            Record::Change(change) => value["change"] = format!("{change:?}").into(),
        }
    }
}

/// A line for people: what it is, then everything else in the order of JSON.
fn text_of(one: &Dumped, value: &Value) -> String {
    let head = match one {
        Dumped::Frame { .. } => "",
        Dumped::Record { .. } | Dumped::Command(_) => "  ",
        Dumped::Damaged { .. } => "DAMAGED ",
    };
    let mut text = head.to_owned();
    let first = ["frame", "record", "command", "damaged"];
    let fields = value.as_object().into_iter().flatten();
    let (front, rest): (Vec<_>, Vec<_>) =
        fields.partition(|(name, _)| first.contains(&name.as_str()));
    for (name, field) in front.into_iter().chain(rest) {
        let shown = match field {
            Value::Null => continue,
            Value::String(text) if text.len() > TEXT_MAX => {
                let cut = text.char_indices().map(|(at, _)| at);
                let cut = cut.take_while(|at| *at <= TEXT_MAX).last();
                format!("{}...", &text[..cut.unwrap_or(0)])
            }
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        text.push_str(&format!("{name}={shown} "));
    }
    text.trim_end().to_owned()
}
