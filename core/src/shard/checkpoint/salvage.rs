//! The pairs of a checkpoint of which some cannot be read: those that still make a state.
//!
//! Owns: which pairs stay, and saying what is gone. Never: files, or which pairs those are (`store/`).
//! Next: `restore.rs`, which takes pairs of which none is missing.

use super::restore::Restored;
use super::{
    CheckpointError, KEY_FORM, KEY_GLOBALS, KEY_HEARD, KEY_PARTING, KEY_PINNED, KEY_REFERRED,
    KEY_VALUE, KEY_WILL, WHOLE, number, numbered,
};
use crate::id::{Position, StreamId};
use crate::index::Blocks;
use crate::shard::Shard;
use crate::stream::{KEY_CHUNK, KEY_HEAD, Serial, Stream};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Streams, or runs of them, that are named when entries of theirs are gone.
const NAMED_MAX: usize = 20;

/// Keys that cannot be read: those between two that can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The last key before them; absent at the beginning.
    pub after: Option<Bytes>,
    /// The first behind them; absent at the end.
    pub before: Option<Bytes>,
}

impl Gap {
    /// Whether a key may be one of them.
    pub fn has(&self, key: &[u8]) -> bool {
        self.after.as_ref().is_none_or(|after| *key > **after)
            && self.before.as_ref().is_none_or(|before| *key < **before)
    }
}

/// All of a checkpoint that can be read.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    /// Pairs, ascending by their keys.
    pub pairs: Vec<(Bytes, Bytes)>,
    /// Keys that may have had a newer value, or may have gone since.
    pub unsure: BTreeSet<Bytes>,
    /// Where other keys may have been.
    pub gaps: Vec<Gap>,
}

/// What of that is of use.
#[derive(Debug, Default)]
pub struct Salvaged {
    /// Pairs that fit together, ascending.
    pub pairs: Vec<(Bytes, Bytes)>,
    /// What is gone, or may be, in words.
    pub lost: Vec<String>,
}

impl Shard<Position> {
    /// Takes what of a checkpoint makes a state as the state of a shard just made, whose blocks are in `blocks`.
    ///
    /// # Errors
    /// [`CheckpointError`]: what every state needs is not among it, or is of an unknown version.
    pub fn salvage_pairs(
        &mut self,
        remains: Remains,
        blocks: Arc<dyn Blocks>,
    ) -> Result<Salvaged, CheckpointError> {
        let Remains {
            pairs,
            unsure,
            gaps,
        } = remains;
        let is_there = |key: &[u8]| {
            let found = pairs.iter().any(|(there, _)| there == key);
            found && !unsure.contains(key)
        };
        let whole = is_there(WHOLE);
        let in_parts = is_there(&[KEY_FORM]) && is_there(&[KEY_GLOBALS]);
        if !whole && !in_parts {
            return Err(CheckpointError::Malformed);
        }
        let mut salvaged = Salvaged::default();
        let newest = newest_of_each(&pairs);
        let mut beheaded = BTreeSet::new();
        let (mut misfits, mut old) = (0u64, 0u64);
        let mut moved = BTreeSet::new();
        let mut restored = Restored::default();
        self.set_blocks(blocks.clone());
        for (key, value) in pairs {
            let kind = key.first().copied();
            // A whole state that may have been replaced; and counts that are of what is gone, too.
            if !whole && (kind.is_none() || kind == Some(KEY_REFERRED)) {
                continue;
            }
            let serial = key.get(1..9).and_then(|serial| number(serial).ok());
            if kind == Some(KEY_HEAD) && !serial.is_some_and(|serial| newest.contains(&serial)) {
                // Another stream has its id by now, or it makes no sense.
                misfits += 1;
                continue;
            }
            if kind == Some(KEY_CHUNK) && unsure.contains(&key) && !is_own(&key, &value, &*blocks) {
                // Others were given its blocks since: two owners would free them for each other.
                misfits += 1;
                continue;
            }
            let value = match (kind, serial) {
                (Some(KEY_HEAD), Some(serial)) if unsure.contains(&key) => {
                    moved.insert(serial);
                    Stream::head_that_ends_far(&value).unwrap_or(value)
                }
                (Some(KEY_CHUNK), Some(serial)) if moved.contains(&serial) => {
                    Stream::chunk_without_more(&value).unwrap_or(value)
                }
                _ => value,
            };
            match self.take_pair(&key, value.clone(), &mut restored) {
                Ok(()) => {
                    old += u64::from(unsure.contains(&key));
                    salvaged.pairs.push((key, value));
                }
                Err(CheckpointError::Version(other)) => {
                    return Err(CheckpointError::Version(other));
                }
                Err(CheckpointError::Malformed) => match (kind, serial) {
                    (Some(KEY_CHUNK), Some(serial)) if !restored.has_stream(serial) => {
                        beheaded.insert(serial);
                    }
                    _ => misfits += 1,
                },
            }
        }
        self.all_taken(restored);
        if !whole {
            let counts = self.recount();
            salvaged.pairs.extend(counts);
        }
        for gap in &gaps {
            salvaged.lost.extend(self.words(gap));
        }
        if !beheaded.is_empty() {
            let count = beheaded.len();
            let what = format!(
                "{count} streams or sessions of which only messages are left (numbered {})",
                runs(&beheaded)
            );
            salvaged.lost.push(what);
        }
        let stale = self.called(|serial| moved.contains(&serial));
        if !stale.is_empty() {
            let what = format!(
                "messages of {}, of which an older state is left: settled ones may come again, and offsets go on far behind",
                some_of(&stale)
            );
            salvaged.lost.push(what);
        }
        if old > 0 {
            let what = format!(
                "what happened last to {old} parts of the state: settled messages may come again"
            );
            salvaged.lost.push(what);
        }
        if misfits > 0 {
            let what = format!("{misfits} parts that do not fit what is left");
            salvaged.lost.push(what);
        }
        Ok(salvaged)
    }

    /// Counts again what of the journal the streams refer to, and gives the pairs that say so.
    fn recount(&mut self) -> Vec<(Bytes, Bytes)> {
        let mut referred = std::mem::take(&mut self.referred).emptied();
        // What is left of streams that end refers to it too, until it is freed.
        let ending = self.ended.iter();
        let streams = self.streams.iter().flatten().map(|stream| &**stream);
        for stream in streams.chain(ending) {
            stream.each_weight(|weight| {
                if let Some(position) = weight.position {
                    referred.add(position, weight.cost, 1);
                }
            });
        }
        referred.freeze();
        let mut pairs = Vec::new();
        while let Some((group, counts)) = referred.next_change() {
            pairs.extend(counts.map(|counts| (numbered(KEY_REFERRED, group), counts)));
        }
        pairs.sort_unstable();
        self.referred = referred;
        pairs
    }

    /// What may be in a gap.
    fn words(&self, gap: &Gap) -> Vec<String> {
        let mut words = Vec::new();
        let (after, before) = (gap.after.as_deref(), gap.before.as_deref());
        let kind_of = |key: Option<&[u8]>| key.and_then(|key| key.first().copied());
        let first = kind_of(after).unwrap_or(0);
        let last = kind_of(before).unwrap_or(u8::MAX);
        let serial = |key: Option<&[u8]>, kind: u8| {
            let key = key.filter(|key| key.first() == Some(&kind))?;
            number(key.get(1..9)?).ok()
        };
        for kind in [
            KEY_HEARD,
            KEY_WILL,
            KEY_PARTING,
            KEY_VALUE,
            KEY_PINNED,
            KEY_HEAD,
            KEY_CHUNK,
        ] {
            if kind < first || kind > last {
                continue;
            }
            let after = serial(after, kind);
            let until = serial(before, kind);
            words.extend(match kind {
                KEY_HEARD => Some("what sessions had sent and not released (quality 2)".to_owned()),
                KEY_WILL => Some("wills that were due".to_owned()),
                KEY_PARTING => Some("members of groups that parted".to_owned()),
                KEY_VALUE => Some("retained messages".to_owned()),
                KEY_PINNED => Some("which dead letters have still to arrive".to_owned()),
                KEY_HEAD => {
                    let from = after.map_or(0, |after| after + 1);
                    match until {
                        Some(until) if until <= from => None,
                        Some(until) => Some(format!(
                            "streams and sessions numbered {from} to {}",
                            until - 1
                        )),
                        None => Some(format!("streams and sessions numbered {from} and more")),
                    }
                }
                _ => self.entries_in(after.unwrap_or(0), until.unwrap_or(u64::MAX)),
            });
        }
        words
    }

    /// Names the streams with numbers from the first to the last, whose entries may be gone.
    fn entries_in(&self, first: u64, last: u64) -> Option<String> {
        let all = self.called(|serial| (first..=last).contains(&serial));
        (!all.is_empty()).then(|| format!("messages that wait in {}", some_of(&all)))
    }

    /// What streams are called that have such numbers.
    fn called(&self, has: impl Fn(u64) -> bool) -> Vec<String> {
        let here = self.streams.iter().flatten();
        let here = here.filter(|stream| has(stream.serial.0));
        here.map(|stream| format!("'{}'", stream.called()))
            .collect()
    }
}

/// Whether a chunk's blocks, if it has any, are still its own.
fn is_own(key: &[u8], value: &[u8], blocks: &dyn Blocks) -> bool {
    let (serial, nth) = key[1..].split_at(key.len().min(9) - 1);
    match (number(serial), number(nth)) {
        (Ok(serial), Ok(nth)) => Stream::has_its_rows(Serial(serial), nth, value, blocks),
        _ => false,
    }
}

/// Numbers that follow each other, as words.
fn runs(numbers: &BTreeSet<u64>) -> String {
    let numbers: Vec<u64> = numbers.iter().copied().collect();
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let words = runs.filter_map(|run| match run {
        [one] => Some(one.to_string()),
        _ => Some(format!("{} to {}", run.first()?, run.last()?)),
    });
    some_of(&words.collect::<Vec<_>>())
}

/// The first of many, and how many more there are.
fn some_of(all: &[String]) -> String {
    let more = match all.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", all[..all.len().min(NAMED_MAX)].join(", "))
}

/// The streams that count: of those with the same id the one that came last.
fn newest_of_each(pairs: &[(Bytes, Bytes)]) -> BTreeSet<u64> {
    let heads = pairs
        .iter()
        .filter(|(key, _)| key.first() == Some(&KEY_HEAD));
    let mut newest: FxHashMap<StreamId, u64> = FxHashMap::default();
    for (key, value) in heads {
        let serial = number(&key[1..]).ok();
        let head = serial.and_then(|serial| Some((serial, Stream::id_of_head(value)?)));
        if let Some((serial, id)) = head {
            newest.insert(id, serial);
        }
    }
    newest.into_values().collect()
}
