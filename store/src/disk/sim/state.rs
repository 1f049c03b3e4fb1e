//! What a simulated disk holds, and what of it is stable.
//!
//! Owns: the bytes seen now, the bytes that a power loss leaves, and the dice. Read next:
//! [`super`].

use super::Faults;
use super::SimStats;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// Unit of tearing, in bytes.
pub const SECTOR_BYTES: usize = 512;

/// Unit of room, in bytes.
pub(super) const BLOCK: usize = crate::disk::BLOCK_BYTES as usize;

#[derive(Debug)]
pub(super) struct State {
    pub(super) random: u64,
    pub(super) life: u64,
    pub(super) next_inode: u64,
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) names: BTreeMap<PathBuf, u64>,
    pub(super) stable_names: BTreeMap<PathBuf, u64>,
    pub(super) pending: Vec<NameChange>,
    pub(super) locks: BTreeSet<PathBuf>,
    pub(super) faults: Faults,
    pub(super) stats: SimStats,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Inode {
    pub(super) now: Vec<u8>,
    pub(super) stable: Vec<u8>,
    pub(super) dirty: BTreeSet<usize>,
    /// Blocks that were given back.
    pub(super) holes: BTreeSet<usize>,
    /// Blocks that cannot be read until they are written as a whole.
    pub(super) unreadable: BTreeSet<usize>,
}

#[derive(Debug, Clone)]
pub(super) enum NameChange {
    Link(PathBuf, u64),
    Rename(PathBuf, PathBuf),
    Unlink(PathBuf),
}

impl State {
    /// A number below `bound` (which must not be 0) from the dice (splitmix64).
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Bytes of all files, or of those beneath a directory.
    pub(super) fn used_bytes(&self, dir: Option<&Path>) -> u64 {
        // A file that no name leads to any more has given its room back.
        let named: BTreeSet<u64> = self
            .names
            .iter()
            .chain(&self.stable_names)
            .filter(|(path, _)| dir.is_none_or(|dir| path.starts_with(dir)))
            .map(|(_, number)| *number)
            .collect();
        let inodes = self
            .inodes
            .iter()
            .filter(|(number, _)| named.contains(number));
        inodes.map(|(_, inode)| inode.allocated()).sum()
    }

    /// Counts a call that changes something; an error when the power is off.
    pub(super) fn use_power(&mut self) -> io::Result<()> {
        count_down(&mut self.faults.power_off_after, "power")?;
        self.stats.changes += 1;
        Ok(())
    }

    /// What a failed sync leaves: some sectors are stable, and none counts as unsynced any more.
    pub(super) fn give_up_dirty(&mut self, number: u64) {
        let inode = self.inodes.get_mut(&number);
        let dirty = inode.map(|inode| std::mem::take(&mut inode.dirty));
        for sector in dirty.unwrap_or_default() {
            let survives = self.below(2) == 0;
            if let (true, Some(inode)) = (survives, self.inodes.get_mut(&number)) {
                inode.settle(sector);
            }
        }
    }

    pub(super) fn change(&mut self, change: NameChange) {
        apply_change(&mut self.names, &change);
        self.pending.push(change);
    }
}

impl Inode {
    /// Notes that the bytes from `start` to `end` were written.
    pub(super) fn touch(&mut self, start: usize, end: usize) {
        self.dirty
            .extend(start / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES);
        for block in start / BLOCK..=(end - 1) / BLOCK {
            self.holes.remove(&block);
        }
    }

    /// Whether some of these bytes lie in a block that cannot be read: so all of a read of them fails, and so does a write
    /// that is not of the whole block.
    pub(super) fn check_readable(&self, start: usize, end: usize) -> io::Result<()> {
        match self
            .unreadable
            .range(start / BLOCK..end.div_ceil(BLOCK))
            .next()
        {
            Some(_) => Err(io::Error::other("the sector cannot be read")),
            None => Ok(()),
        }
    }

    pub(super) fn punch(&mut self, offset: usize, len: usize) {
        let end = (offset + len).min(self.now.len());
        if offset >= end {
            return;
        }
        self.now[offset..end].fill(0);
        self.dirty
            .extend(offset / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES);
        self.holes.extend(offset.div_ceil(BLOCK)..end / BLOCK);
    }

    /// After a crash: a hole whose zeros were lost in part is none.
    pub(super) fn forget_filled_holes(&mut self) {
        let stable = &self.stable;
        let empty = |block: &usize| {
            let bytes = stable.get(block * BLOCK..(block + 1) * BLOCK);
            bytes.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0))
        };
        self.holes.retain(empty);
    }

    pub(super) fn allocated(&self) -> u64 {
        (self.now.len() - self.holes.len() * BLOCK) as u64
    }

    pub(super) fn settle(&mut self, sector: usize) {
        let start = sector * SECTOR_BYTES;
        let end = (start + SECTOR_BYTES).min(self.now.len());
        if self.stable.len() < end {
            self.stable.resize(end, 0);
        }
        self.stable[start..end].copy_from_slice(&self.now[start..end]);
    }
}

/// Counts a fault down: `Err` once nothing is left, and for ever after.
pub(super) fn count_down(left: &mut Option<u64>, what: &str) -> io::Result<()> {
    match left {
        Some(0) => Err(io::Error::other(format!("injected {what} failure"))),
        Some(more) => {
            *more -= 1;
            Ok(())
        }
        None => Ok(()),
    }
}

impl NameChange {
    /// Whether a sync of `dir` makes it stable.
    pub(super) fn is_in(&self, dir: &Path) -> bool {
        let path = match self {
            NameChange::Link(path, _) | NameChange::Unlink(path) => path,
            NameChange::Rename(_, to) => to,
        };
        path.parent() == Some(dir)
    }
}

pub(super) fn apply_change(names: &mut BTreeMap<PathBuf, u64>, change: &NameChange) {
    match change {
        NameChange::Link(path, inode) => {
            names.insert(path.clone(), *inode);
        }
        NameChange::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        NameChange::Unlink(path) => {
            names.remove(path);
        }
    }
}
