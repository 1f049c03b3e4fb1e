//! The frames and records of a shard, one by one.
//!
//! Owns: from where, and in which order. Never prints. Read next: `journal/survey.rs`.

use super::{Away, InspectError, ShardFolder, ShardKind, Source};
use crate::checkpoint::survey::Newest;
use crate::finding::{FindingKind, Findings};
use crate::journal::FrameKind;
use crate::journal::survey::{Lives, Survey};
use crate::shard::meta;
use anabranch_core::id::{LogIndex, Position, Term, UnixMs};
use anabranch_core::meta::MetaCommand;
use anabranch_core::record::{Mark, Record, Records};
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Where a dump begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpFrom {
    /// At the frame of this log index.
    Index(LogIndex),
    /// At the frame that has this position, or the first one behind it.
    Position(Position),
}

/// One piece of a dump.
#[derive(Debug)]
pub enum Dumped {
    /// A frame.
    Frame {
        /// Its log index.
        index: LogIndex,
        /// Where its logical header lies.
        position: Position,
        /// Its term.
        term: Term,
        /// The leader's clock; 0 not stated.
        clock: UnixMs,
        /// What it is.
        kind: FrameKind,
        /// Bytes of its payload.
        payload_bytes: usize,
        /// A part of it was given back: its records are not listed.
        partly_given_back: bool,
        /// The file.
        path: PathBuf,
        /// Offset of its envelope there.
        offset: u64,
    },
    /// A record of the frame before.
    Record {
        /// Its place.
        position: Position,
        /// Bytes that it takes.
        bytes: u64,
        /// Who sent it.
        mark: Mark,
        /// What it says.
        record: Box<Record>,
    },
    /// A command of the frame before.
    Command(Box<MetaCommand>),
    /// A frame, or a record of the frame before, that is not sound.
    Damaged {
        /// The frame.
        index: LogIndex,
        /// The file.
        path: PathBuf,
        /// Offset there.
        offset: u64,
        /// Why not.
        what: String,
    },
}

/// Gives frames and what is in them to `each`, as long as it wants more. What was given back is passed over. No lock
/// is taken. Says what of the shard lies in an object store. An error at the end when frames are sealed whose key was
/// not given.
pub fn dump(
    source: &Source,
    folder: &ShardFolder,
    from: DumpFrom,
    each: &mut dyn FnMut(Dumped) -> ControlFlow<()>,
) -> Result<Away, InspectError> {
    // Side files are believed below the checkpoint only; without one all is read first.
    let newest = Newest::open(source, &folder.dir).ok();
    let standing = newest.and_then(|newest| newest.standing);
    let covered = standing.map_or(0, |standing| standing.id.index.0 + 1);
    let mut findings = Findings::default();
    let mut survey = Survey::of(source, folder, covered, &mut findings)?;
    let first = match from {
        DumpFrom::Index(index) => index,
        DumpFrom::Position(position) => survey.index_from(position),
    };
    survey.each_frame(first, &mut |seen| {
        let (head, payload) = match &seen.read {
            Ok(read) => read,
            Err(what) => {
                return each(Dumped::Damaged {
                    index: seen.index,
                    path: seen.path.to_owned(),
                    offset: seen.offset,
                    what: what.clone(),
                });
            }
        };
        each(Dumped::Frame {
            index: seen.index,
            position: seen.position,
            term: head.term,
            clock: head.clock,
            kind: head.kind,
            payload_bytes: payload.len(),
            partly_given_back: seen.lives == Lives::Partly,
            path: seen.path.to_owned(),
            offset: seen.offset,
        })?;
        if head.kind != FrameKind::Records || seen.lives == Lives::Partly {
            return ControlFlow::Continue(());
        }
        let damaged = |position, what| Dumped::Damaged {
            index: seen.index,
            path: seen.path.to_owned(),
            offset: seen.offset_of(position),
            what,
        };
        let first = seen.payload_position();
        match folder.kind {
            ShardKind::Meta => match meta::decode(payload) {
                Ok(commands) => commands
                    .into_iter()
                    .try_for_each(|command| each(Dumped::Command(Box::new(command)))),
                Err(what) => each(damaged(first, what)),
            },
            ShardKind::Data => {
                let mut records = match Records::new(payload, first, false) {
                    Ok(records) => records,
                    Err(error) => return each(damaged(first, error.to_string())),
                };
                loop {
                    let begun = records.position();
                    match records.next() {
                        None => return ControlFlow::Continue(()),
                        Some(Ok((position, mark, record))) => each(Dumped::Record {
                            position,
                            bytes: records.position().0 - position.0,
                            mark,
                            record: Box::new(record),
                        })?,
                        Some(Err(error)) => each(damaged(begun, error.to_string()))?,
                    }
                }
            }
        }
    })?;
    // Such frames were given without what is in them.
    match findings.first(FindingKind::Sealed) {
        Some(sealed) => Err(InspectError::Sealed {
            path: sealed.path.clone(),
            what: sealed.what.clone(),
        }),
        None => Ok(survey.away()),
    }
}

/// The name of an enum's variant, as `Debug` begins with it.
pub(super) fn variant_name(value: &dyn fmt::Debug) -> String {
    struct FirstWord(String);
    impl fmt::Write for FirstWord {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let end = text.find(|letter: char| !letter.is_alphanumeric());
            self.0.push_str(&text[..end.unwrap_or(text.len())]);
            // The rest may be long and is not wanted.
            end.map_or(Ok(()), |_| Err(fmt::Error))
        }
    }
    let mut word = FirstWord(String::new());
    let _ = fmt::write(&mut word, format_args!("{value:?}"));
    word.0
}

impl Dumped {
    /// The kind of a record or command, in one word.
    pub fn kind_name(&self) -> Option<String> {
        match self {
            Dumped::Record { record, .. } => Some(match &**record {
                Record::Publish { .. } => "Publish".to_owned(),
                Record::Change(change) => variant_name(change),
            }),
            Dumped::Command(command) => Some(variant_name(command)),
            Dumped::Frame { .. } | Dumped::Damaged { .. } => None,
        }
    }
}
