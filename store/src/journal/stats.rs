//! What writer and readers tell each other without a lock: how far the disk is, and whether it failed.
//!
//! Owns: the poisoned state (set once, never lifted), counters. Read next: [`super::writer`].

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Whom to tell when room is gone or there again.
#[derive(Default)]
struct Listener(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// Shared by the writer, the readers and the owner of a journal.
#[derive(Debug, Default)]
pub(crate) struct Health {
    poison: OnceLock<Arc<str>>,
    synced_end: AtomicU64,
    no_space: AtomicBool,
    listener: Listener,
    tight: AtomicBool,
    frames: AtomicU64,
    bytes: AtomicU64,
    syncs: AtomicU64,
    writes: AtomicU64,
    packed_from: AtomicU64,
    packed_to: AtomicU64,
    read_memory: AtomicU64,
    read_ahead: AtomicU64,
    read_file: AtomicU64,
    unreadable: AtomicU64,
}

/// Counters of one journal since it was opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct JournalStats {
    /// Frames appended.
    pub frames: u64,
    /// Bytes written for frames, envelopes included.
    pub bytes: u64,
    /// Writes of gathered frames.
    pub writes: u64,
    /// Syncs of segments.
    pub syncs: u64,
    /// Payload bytes of frames that were compressed or sealed, before that.
    pub packed_from: u64,
    /// Bytes that those frames took in their files, envelopes included.
    pub packed_to: u64,
    /// Bytes of frames and records that were read and were still in memory.
    pub read_memory_bytes: u64,
    /// Bytes of them that were read ahead of those who walk through history, and held in memory.
    pub read_ahead_bytes: u64,
    /// Bytes of them read from files.
    pub read_file_bytes: u64,
    /// Messages that could not be read, each time that it was tried.
    pub unreadable: u64,
}

impl Health {
    pub(crate) fn poison(&self) -> Option<Arc<str>> {
        self.poison.get().cloned()
    }

    pub(crate) fn set_poison(&self, cause: Arc<str>) {
        let _ = self.poison.set(cause);
    }

    /// First log index not known to be on stable storage here.
    pub(crate) fn synced_end(&self) -> u64 {
        self.synced_end.load(Ordering::Acquire)
    }

    pub(crate) fn set_synced_end(&self, end: u64) {
        self.synced_end.store(end, Ordering::Release);
    }

    /// Whether room for the next segment could not be had.
    pub(crate) fn no_space(&self) -> bool {
        self.no_space.load(Ordering::Relaxed)
    }

    /// Says so, or that it could; gives what was said before.
    pub(crate) fn set_no_space(&self, none: bool) -> bool {
        let before = self.no_space.swap(none, Ordering::Relaxed);
        if before != none
            && let Some(tell) = self.listener.0.get()
        {
            tell();
        }
        before
    }

    /// Whom to tell when it changes.
    pub(crate) fn on_space(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _ = self.listener.0.set(Box::new(tell));
    }

    /// Whether released files are deleted rather than kept for later.
    pub(crate) fn tight(&self) -> bool {
        self.tight.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tight(&self, tight: bool) {
        self.tight.store(tight, Ordering::Relaxed);
    }

    pub(crate) fn appended(&self, frames: u64) {
        self.frames.fetch_add(frames, Ordering::Relaxed);
    }

    pub(crate) fn wrote(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn packed(&self, from: u64, to: u64) {
        self.packed_from.fetch_add(from, Ordering::Relaxed);
        self.packed_to.fetch_add(to, Ordering::Relaxed);
    }

    pub(crate) fn did_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read_memory(&self, bytes: usize) {
        self.read_memory.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn read_ahead(&self, bytes: usize) {
        self.read_ahead.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn read_file(&self, bytes: usize) {
        self.read_file.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn is_unreadable(&self) {
        self.unreadable.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> JournalStats {
        JournalStats {
            frames: self.frames.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            packed_from: self.packed_from.load(Ordering::Relaxed),
            packed_to: self.packed_to.load(Ordering::Relaxed),
            read_memory_bytes: self.read_memory.load(Ordering::Relaxed),
            read_ahead_bytes: self.read_ahead.load(Ordering::Relaxed),
            read_file_bytes: self.read_file.load(Ordering::Relaxed),
            unreadable: self.unreadable.load(Ordering::Relaxed),
        }
    }
}
