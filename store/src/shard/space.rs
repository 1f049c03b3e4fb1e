//! How much room there is, and what follows from it.
//!
//! Owns: the two limits (what the disk must have free, what the journals may take), when publishing stops and
//! goes on, when room is to be made early. Never makes room itself. Read next: [`super::data`], which does.
//!
//! Publishing stops before the room is used up: what is left then is the reserve for settlements, checkpoints,
//! side files and what is on its way.

use crate::disk::Disk;
use crate::group::GroupOptions;
use crate::journal::Journal;
use anabranch_core::id::{MonotonicMs, Now};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// How often the room is looked at, in milliseconds; what the journal says itself is looked at at once.
const CHECK_MS: u64 = 1000;
/// How soon room is made again after some was: in milliseconds.
const RELIEF_MS: u64 = 250;
/// And the longest wait when there was none to be had, while publishing has stopped and while it goes on.
const RELIEF_FULL_MS_MAX: u64 = 3000;
const RELIEF_NEAR_MS_MAX: u64 = 60_000;

/// Parts of the limit on all journals, of 64: room is made early from the first on, publishing stops at the
/// second, and goes on below the third.
const NEAR_OF_64: u64 = 40;
const FULL_OF_64: u64 = 56;
const RESUME_OF_64: u64 = 52;

/// A limit on what the files of a data folder take.
#[derive(Debug, Clone)]
pub struct JournalLimit {
    /// The data folder.
    pub root: PathBuf,
    /// Bytes that may be allocated for all files beneath it.
    pub bytes_max: u64,
    /// Data shards that share it.
    pub shards: u16,
}

impl JournalLimit {
    /// A group's options, so small that many segments of all shards fit under the limit and that what is on its
    /// way fits into the reserve.
    pub fn fit(&self, options: GroupOptions) -> GroupOptions {
        let part = self.bytes_max / 32 / u64::from(self.shards.max(1));
        let part = part.max(SEGMENT_BYTES_MIN);
        GroupOptions {
            segment_bytes: options.segment_bytes.min(part),
            outstanding_bytes: options
                .outstanding_bytes
                .min(usize::try_from(part).unwrap_or(usize::MAX)),
            ..options
        }
    }

    /// How far a journal may grow between two checkpoints.
    pub(super) fn checkpoint_bytes(&self, usual: u64) -> u64 {
        usual.min(self.bytes_max / 8 / u64::from(self.shards.max(1)))
    }
}

/// Smallest segment of a journal under a limit.
const SEGMENT_BYTES_MIN: u64 = 512 * 1024;

/// Why publishing has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// The disk has less room than it must have.
    LowWater {
        /// Bytes free.
        free: u64,
        /// The limit.
        low_water: u64,
    },
    /// The files of the data folder take nearly all that they may.
    Limit {
        /// Bytes allocated.
        used: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The disk refused room for the journal's next segment.
    NoRoom,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        match self {
            Shortage::LowWater { free, low_water } => write!(
                f,
                "the disk has {} MiB free, store.low_water_bytes asks for {}: free room on the disk, or \
                 consume or purge what waits",
                mib(*free),
                mib(*low_water)
            ),
            Shortage::Limit { used, bytes_max } => write!(
                f,
                "the data folder takes {} MiB of the {} that store.journal_bytes_max allows: consume or purge \
                 what waits, or raise the limit",
                mib(*used),
                mib(*bytes_max)
            ),
            Shortage::NoRoom => f.write_str(
                "the disk has no room for the journal's next segment: free room on the disk, or consume or \
                 purge what waits",
            ),
        }
    }
}

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Looked {
    /// Why publishing has to stop, if it has to.
    pub(super) shortage: Option<Shortage>,
    /// Room is short or will be soon: what can be given back is to be given back, all of it.
    pub(super) tight: bool,
    /// Room is to be made now.
    pub(super) relieve: bool,
}

/// Looks at the room from time to time.
pub(super) struct Watch {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    low_water_bytes: u64,
    limit: Option<JournalLimit>,
    next_check: MonotonicMs,
    check_at: u64,
    next_relief: MonotonicMs,
    relief_ms: u64,
    over_limit: bool,
    /// What the journal said of its next segment when it was asked last.
    no_room: bool,
}

impl Watch {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        low_water_bytes: u64,
        limit: Option<JournalLimit>,
    ) -> Self {
        Self {
            disk,
            dir,
            low_water_bytes,
            limit,
            next_check: MonotonicMs(0),
            check_at: 0,
            next_relief: MonotonicMs(0),
            relief_ms: RELIEF_MS,
            over_limit: false,
            no_room: false,
        }
    }

    /// Looks, when it is time to. `written`: bytes that the journal has written; `relieved`: room was made since
    /// the last look.
    pub(super) fn look(
        &mut self,
        now: Now,
        written: u64,
        journal: &Journal,
        relieved: bool,
    ) -> Option<Looked> {
        if relieved {
            self.relief_ms = RELIEF_MS;
            self.next_relief = self.next_relief.min(now.monotonic.after(RELIEF_MS));
        }
        let no_room = journal.no_space();
        let is_news = relieved || no_room != self.no_room;
        if now.monotonic < self.next_check && written < self.check_at && !is_news {
            return None;
        }
        self.next_check = now.monotonic.after(CHECK_MS);
        // A fast publisher must not fill the rest between two looks.
        let low_water_step = (self.low_water_bytes > 0).then_some(self.low_water_bytes / 4);
        let limit_step = self.limit.as_ref().map(|limit| limit.bytes_max / 64);
        let step = low_water_step.into_iter().chain(limit_step).min();
        self.check_at = written.saturating_add(step.unwrap_or(u64::MAX).max(1));
        self.no_room = no_room;
        match self.measure() {
            Ok((shortage, near)) => Some(self.conclude(now, shortage, near)),
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, "the room on the disk is not known");
                None
            }
        }
    }

    /// Why publishing has to stop, and whether room is to be made early.
    fn measure(&mut self) -> io::Result<(Option<Shortage>, bool)> {
        let free = self.disk.free_bytes(&self.dir)?;
        let low_water = self.low_water_bytes;
        let mut near = false;
        let mut shortage = (free < low_water).then_some(Shortage::LowWater { free, low_water });
        if let Some(JournalLimit {
            root, bytes_max, ..
        }) = &self.limit
        {
            let (used, bytes_max) = (self.disk.used_bytes(root)?, *bytes_max);
            let part = |of_64: u64| bytes_max / 64 * of_64;
            near = used > part(NEAR_OF_64);
            let stop = if self.over_limit {
                RESUME_OF_64
            } else {
                FULL_OF_64
            };
            self.over_limit = used > part(stop);
            let over = self
                .over_limit
                .then_some(Shortage::Limit { used, bytes_max });
            shortage = shortage.or(over);
        }
        let no_room = self.no_room.then_some(Shortage::NoRoom);
        Ok((shortage.or(no_room), near))
    }

    fn conclude(&mut self, now: Now, shortage: Option<Shortage>, near: bool) -> Looked {
        let tight = shortage.is_some() || near;
        let relieve = tight && now.monotonic >= self.next_relief;
        if relieve {
            let longest = match shortage {
                Some(_) => RELIEF_FULL_MS_MAX,
                None => RELIEF_NEAR_MS_MAX,
            };
            self.next_relief = now.monotonic.after(self.relief_ms.min(longest));
            self.relief_ms = (self.relief_ms * 2).min(longest);
        }
        if !tight {
            self.relief_ms = RELIEF_MS;
        }
        Looked {
            shortage,
            tight,
            relieve,
        }
    }
}
