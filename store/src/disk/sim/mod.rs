//! A seeded disk in memory that behaves as badly as a real one may.
//!
//! Owns: what is volatile and what is stable, the faults that a test asks for, and what is left
//! after a crash. Never random by itself: the same seed and the same calls give the same bytes.
//! Read next: [`super::real`], and the simulation tests of the store.
//!
//! Model: a write reaches the page cache at once; each 512-byte sector of it is stable after
//! `sync`, and after a crash an unsynced sector is kept or lost by a throw of the dice (so a write
//! tears). A sync that fails may have kept some of them, and forgets that the others were written: a later
//! one does not try them again. A created, renamed or removed name is stable after `sync_dir`; a crash keeps a random
//! prefix of the changes not yet synced. A hole is a write of zeros that takes blocks away.

mod state;
#[cfg(test)]
mod tests;

pub use state::SECTOR_BYTES;

use super::{Disk, DiskFile, DiskLock};
use state::{BLOCK, Inode, NameChange, State, apply_change, count_down};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Faults to inject. The default has none.
#[derive(Debug, Default, Clone)]
pub struct Faults {
    /// Writes fail once this many more have succeeded.
    pub fail_write_after: Option<u64>,
    /// Syncs of files fail once this many more have succeeded.
    pub fail_sync_after: Option<u64>,
    /// The power goes once this many more calls have changed something (writes, syncs, and changes and syncs
    /// of names): each later one fails, until the crash.
    pub power_off_after: Option<u64>,
    /// One sync in this many reports success without making anything stable; 0 = never.
    pub lose_one_sync_in: u64,
    /// Bytes that all files together may occupy; creating beyond gives `StorageFull`.
    pub capacity_bytes: Option<u64>,
    /// Holes cannot be punched once this many more were.
    pub fail_punch_after: Option<u64>,
}

/// Calls that the disk served.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SimStats {
    /// Calls that changed something and succeeded.
    pub changes: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Syncs of files that succeeded or pretended to.
    pub syncs: u64,
    /// Syncs that only pretended.
    pub lost_syncs: u64,
}

/// The disk; clones share it. After [`SimDisk::crash`] every file opened before is dead.
#[derive(Debug, Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

impl SimDisk {
    /// An empty disk whose dice start at `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                random: seed,
                life: 0,
                next_inode: 1,
                inodes: BTreeMap::new(),
                names: BTreeMap::new(),
                stable_names: BTreeMap::new(),
                pending: Vec::new(),
                locks: BTreeSet::new(),
                faults: Faults::default(),
                stats: SimStats::default(),
            })),
        }
    }

    /// A disk of its own with the same names, bytes and dice; nobody holds its locks.
    pub fn copy(&self) -> SimDisk {
        let state = self.lock_state();
        SimDisk {
            state: Arc::new(Mutex::new(State {
                random: state.random,
                life: 0,
                next_inode: state.next_inode,
                inodes: state.inodes.clone(),
                names: state.names.clone(),
                stable_names: state.stable_names.clone(),
                pending: state.pending.clone(),
                locks: BTreeSet::new(),
                faults: state.faults.clone(),
                stats: state.stats,
            })),
        }
    }

    /// Replaces the faults to inject.
    pub fn set_faults(&self, faults: Faults) {
        self.lock_state().faults = faults;
    }

    /// Calls served so far.
    pub fn stats(&self) -> SimStats {
        self.lock_state().stats
    }

    /// Power loss: unsynced sectors and names survive at random, locks end, files opened before
    /// answer with an error from now on, and the faults are lifted.
    pub fn crash(&self) {
        let mut state = self.lock_state();
        state.life += 1;
        state.locks.clear();
        state.faults = Faults::default();
        let mut names = std::mem::take(&mut state.stable_names);
        let pending = std::mem::take(&mut state.pending);
        let keep = state.below(pending.len() as u64 + 1) as usize;
        for change in &pending[..keep] {
            apply_change(&mut names, change);
        }
        let inodes: Vec<u64> = state.inodes.keys().copied().collect();
        for number in inodes {
            if !names.values().any(|kept| *kept == number) {
                state.inodes.remove(&number);
                continue;
            }
            let dirty = state
                .inodes
                .get_mut(&number)
                .map(|inode| std::mem::take(&mut inode.dirty));
            for sector in dirty.unwrap_or_default() {
                let survives = state.below(2) == 0;
                if let (true, Some(inode)) = (survives, state.inodes.get_mut(&number)) {
                    inode.settle(sector);
                }
            }
            if let Some(inode) = state.inodes.get_mut(&number) {
                inode.now = inode.stable.clone();
                inode.forget_filled_holes();
            }
        }
        state.stable_names = names.clone();
        state.names = names;
    }

    /// Flips one bit of a file, on stable storage and in the cache alike.
    pub fn flip_bit(&self, path: &Path, byte: u64, bit: u8) {
        let mut state = self.lock_state();
        let Some(number) = state.names.get(path).copied() else {
            return;
        };
        let Some(inode) = state.inodes.get_mut(&number) else {
            return;
        };
        let at = byte as usize;
        let mask = 1u8 << (bit % 8);
        if let Some(slot) = inode.now.get_mut(at) {
            *slot ^= mask;
        }
        if let Some(slot) = inode.stable.get_mut(at) {
            *slot ^= mask;
        }
    }

    /// The block of 4 KiB in which this byte of a file lies cannot be read any more, until it is written as a whole.
    pub fn lose_block(&self, path: &Path, byte: u64) {
        let mut state = self.lock_state();
        let number = state.names.get(path).copied();
        if let Some(inode) = number.and_then(|number| state.inodes.get_mut(&number)) {
            inode.unreadable.insert(byte as usize / BLOCK);
        }
    }

    /// Bytes that all files occupy.
    pub fn occupied_bytes(&self) -> u64 {
        self.lock_state().used_bytes(None)
    }

    /// The bytes of a file as a reader sees them now.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.lock_state();
        let number = state.names.get(path)?;
        state.inodes.get(number).map(|inode| inode.now.clone())
    }

    /// A number that two disks share exactly when their names and bytes are the same.
    pub fn fingerprint(&self) -> u64 {
        let state = self.lock_state();
        let mut hash = DefaultHasher::new();
        for (path, number) in &state.names {
            path.hash(&mut hash);
            if let Some(inode) = state.inodes.get(number) {
                inode.now.hash(&mut hash);
            }
        }
        hash.finish()
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, state: &State, inode: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile {
            disk: self.clone(),
            inode,
            life: state.life,
        })
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.lock_state();
        let inode = state
            .names
            .get(path)
            .copied()
            .ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(&state, inode))
    }

    fn create_zeroed(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.lock_state();
        state.use_power()?;
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if state
            .faults
            .capacity_bytes
            .is_some_and(|capacity| state.used_bytes(None) + len > capacity)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let inode = state.next_inode;
        state.next_inode += 1;
        let zeros = vec![0; len as usize];
        state.inodes.insert(
            inode,
            Inode {
                now: zeros.clone(),
                stable: zeros,
                ..Inode::default()
            },
        );
        state.change(NameChange::Link(path.to_owned(), inode));
        Ok(self.file(&state, inode))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.use_power()?;
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        if !state.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.use_power()?;
        state.change(NameChange::Unlink(path.to_owned()));
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.lock_state();
        let inside = state.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside
            .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
            .collect())
    }

    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.use_power()?;
        for change in std::mem::take(&mut state.pending) {
            if change.is_in(dir) {
                apply_change(&mut state.stable_names, &change);
            } else {
                state.pending.push(change);
            }
        }
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let mut state = self.lock_state();
        if !state.locks.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimLock {
            disk: self.clone(),
            path: path.to_owned(),
            life: state.life,
        }))
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let state = self.lock_state();
        let used = state.used_bytes(None);
        Ok(state
            .faults
            .capacity_bytes
            .map_or(u64::MAX, |capacity| capacity.saturating_sub(used)))
    }

    fn used_bytes(&self, dir: &Path) -> io::Result<u64> {
        Ok(self.lock_state().used_bytes(Some(dir)))
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: u64,
    life: u64,
}

impl SimFile {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.lock_state();
        if state.life != self.life || !state.inodes.contains_key(&self.inode) {
            return Err(io::Error::other("the simulated machine crashed"));
        }
        work(&mut state)
    }
}

impl DiskFile for SimFile {
    fn write_at(&self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.with(|state| {
            state.use_power()?;
            count_down(&mut state.faults.fail_write_after, "write")?;
            let total: usize = slices.iter().map(|slice| slice.len()).sum();
            let start = offset as usize;
            let capacity = state.faults.capacity_bytes;
            let used = state.used_bytes(None);
            let inode = state.inodes.entry(self.inode).or_default();
            let grown = (start + total).saturating_sub(inode.now.len()) as u64;
            if grown > 0 && capacity.is_some_and(|capacity| used + grown > capacity) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            // What lies around what is written has to be read first.
            let whole = start.div_ceil(BLOCK)..(start + total) / BLOCK;
            inode.unreadable.retain(|block| !whole.contains(block));
            inode.check_readable(start, start + total)?;
            if inode.now.len() < start + total {
                inode.now.resize(start + total, 0);
            }
            let mut at = start;
            for slice in slices.iter() {
                inode.now[at..at + slice.len()].copy_from_slice(slice);
                at += slice.len();
            }
            if total > 0 {
                inode.touch(start, start + total);
            }
            state.stats.writes += 1;
            Ok(())
        })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|state| {
            let inode = state.inodes.entry(self.inode).or_default();
            let start = offset as usize;
            inode.check_readable(start, start + buf.len())?;
            let bytes = inode
                .now
                .get(start..start + buf.len())
                .ok_or(io::ErrorKind::UnexpectedEof)?;
            buf.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state| {
            state.use_power()?;
            if let Err(error) = count_down(&mut state.faults.fail_sync_after, "sync") {
                state.give_up_dirty(self.inode);
                return Err(error);
            }
            state.stats.syncs += 1;
            let one_in = state.faults.lose_one_sync_in;
            if one_in > 0 && state.below(one_in) == 0 {
                state.stats.lost_syncs += 1;
                return Ok(());
            }
            let inode = state.inodes.entry(self.inode).or_default();
            for sector in std::mem::take(&mut inode.dirty) {
                inode.settle(sector);
            }
            Ok(())
        })
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.with(|state| {
            state.use_power()?;
            if count_down(&mut state.faults.fail_punch_after, "punch").is_err() {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let inode = state.inodes.entry(self.inode).or_default();
            inode.punch(offset as usize, len as usize);
            Ok(())
        })
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        self.with(|state| Ok(state.inodes.entry(self.inode).or_default().allocated()))
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|state| Ok(state.inodes.entry(self.inode).or_default().now.len() as u64))
    }
}

#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
    path: PathBuf,
    life: u64,
}

impl DiskLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.lock_state();
        if state.life == self.life {
            state.locks.remove(&self.path);
        }
    }
}
