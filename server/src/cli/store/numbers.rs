//! A shard in numbers, as text and as JSON.
//!
//! Owns: which numbers are shown, and names of vhosts from the metadata shard.

use std::collections::BTreeMap;

use anabranch_core::id::{UnixMs, VhostId};
use anabranch_store::inspect::{ShardFolder, Source, Stats, stats};
use serde_json::{Value, json};

use super::super::output;
use super::{CouldNot, Ended, Format, LookFlags, bytes, print_away, progress};

pub(super) fn print_stats(
    source: &Source,
    look: &LookFlags,
    top: usize,
) -> Result<Ended, CouldNot> {
    let mut vhosts = BTreeMap::new();
    if let Some(meta) = ShardFolder::named(&look.data, "meta").filter(|meta| meta.dir.is_dir()) {
        // Without them streams are told by the numbers of their vhosts.
        if let Ok(numbers) = stats(source, &meta, &mut |_| {}) {
            vhosts = numbers.vhosts;
        }
    }
    look.each(|folder| {
        let numbers =
            stats(source, folder, &mut progress(folder)).map_err(|error| error.to_string())?;
        let value = stats_json(folder, &numbers, top, |vhost| {
            let name = vhosts.get(&vhost).map(|name| name.to_string());
            name.unwrap_or_else(|| vhost.to_string())
        });
        match look.format {
            Format::Json => output::line(&value.to_string()),
            Format::Text => print_numbers(folder, &numbers, &value),
        }
        Ok(match numbers.damaged {
            0 => Ended::Fine,
            _ => Ended::Defects,
        })
    })
}

fn stats_json(
    folder: &ShardFolder,
    numbers: &Stats,
    top: usize,
    vhost: impl Fn(VhostId) -> String,
) -> Value {
    let records = numbers.records.iter().map(|(name, kind)| {
        let average = kind.bytes / kind.count.max(1);
        let value = json!({"count": kind.count, "bytes": kind.bytes, "average_bytes": average});
        (name.clone(), value)
    });
    let streams = numbers.streams.iter().take(top).map(|facts| {
        json!({
            "id": facts.id.0,
            "vhost": vhost(facts.vhost),
            "name": &*facts.name,
            "level": facts.id.rank(),
            "kind": format!("{:?}", facts.sort).to_lowercase(),
            "entries": facts.entries,
            "bytes": facts.bytes,
            "next_offset": facts.end.0,
        })
    });
    let time = |time: Option<UnixMs>| time.map(|time| time.0);
    json!({
        "shard": folder.name,
        "segments": numbers.segments,
        "tier_segments": numbers.away.segments,
        "tier_bytes": numbers.away.bytes,
        "tier_read": numbers.away.read,
        "file_bytes": numbers.file_bytes,
        "allocated_bytes": numbers.allocated_bytes,
        "logical_bytes": numbers.logical_bytes,
        "given_back_bytes": numbers.given_back_bytes,
        "folder_bytes": numbers.folder_bytes,
        "frames": numbers.frames,
        "average_frame_bytes": numbers.logical_bytes / numbers.frames.max(1),
        "records": Value::Object(records.collect()),
        "damaged": numbers.damaged,
        "oldest_ms": time(numbers.oldest),
        "newest_ms": time(numbers.newest),
        "last_index": numbers.last.map(|index| index.0),
        "checkpoint_index": numbers.checkpoint.map(|index| index.0),
        "runs": numbers.runs,
        "run_bytes": numbers.run_bytes,
        "index_blocks": numbers.index_blocks,
        "index_blocks_used": numbers.index.used,
        "index_blocks_free": numbers.index.free,
        "last_values": numbers.values,
        "streams": numbers.streams.len(),
        "top_streams": streams.collect::<Vec<_>>(),
    })
}

fn print_numbers(folder: &ShardFolder, numbers: &Stats, value: &Value) {
    let name = &folder.name;
    output::line(&format!(
        "{name}: {} on the disk; {} segments of {} with {} allocated; {} of frames, {} of them given back",
        bytes(numbers.folder_bytes),
        numbers.segments,
        bytes(numbers.file_bytes),
        bytes(numbers.allocated_bytes),
        bytes(numbers.logical_bytes),
        bytes(numbers.given_back_bytes),
    ));
    print_away(folder, &numbers.away, output::line);
    let shown = |field: &str| match &value[field] {
        Value::Null => "none".to_owned(),
        other => other.to_string(),
    };
    output::line(&format!(
        "{name}: {} frames of {} on average; log index {} last, checkpoint of {}; {} runs of {}; index blocks: {} used, {} free; \
         {} last values; times {} to {} (ms)",
        numbers.frames,
        bytes(numbers.logical_bytes / numbers.frames.max(1)),
        shown("last_index"),
        shown("checkpoint_index"),
        numbers.runs,
        bytes(numbers.run_bytes),
        numbers.index.used,
        numbers.index.free,
        numbers.values,
        shown("oldest_ms"),
        shown("newest_ms"),
    ));
    for (kind, count) in &numbers.records {
        // Commands of the metadata are not told apart by bytes.
        let size = match count.bytes {
            0 => String::new(),
            all => format!(
                ", {} ({} each)",
                bytes(all),
                bytes(all / count.count.max(1))
            ),
        };
        output::line(&format!("  {} records {kind}{size}", count.count));
    }
    if numbers.damaged > 0 {
        let damaged = numbers.damaged;
        output::line(&format!(
            "  {damaged} frames or records cannot be read: see `anabranch store check`"
        ));
    }
    output::line(&format!("  {} streams", numbers.streams.len()));
    for stream in value["top_streams"].as_array().into_iter().flatten() {
        let text = |field: &str| stream[field].as_str().unwrap_or_default().to_owned();
        // A queue with priorities is a stream for each of them.
        let level = match stream["level"].as_u64() {
            Some(below @ 1..) => format!(", {below} below its highest priority"),
            _ => String::new(),
        };
        output::line(&format!(
            "    {} {:?} in {:?}{level} (stream {}): {} messages, {}",
            text("kind"),
            text("name"),
            text("vhost"),
            stream["id"],
            stream["entries"],
            bytes(stream["bytes"].as_u64().unwrap_or(0)),
        ));
    }
}
