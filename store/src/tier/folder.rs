//! One journal's part of the object store.
//!
//! Owns: its name there, which objects are to go, and waking the journal's owner when something has come. Never keeps
//! the journal. Read next: [`super::mover`].

use super::Inner;
use super::file::TierFile;
use super::mover;
use super::objects::Object;
use super::ranges::ObjectKey;
use crate::disk::DiskFile;
use crate::journal::Journal;
use anabranch_core::id::Position;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// What is called when something has come.
type Wake = Box<dyn Fn() + Send + Sync>;

/// See the module's text.
pub(crate) struct Folder {
    inner: Arc<Inner>,
    number: u32,
    identity: u64,
    name: String,
    doomed: Mutex<BTreeSet<Position>>,
    /// There may be something to move or to remove.
    pub(super) look: Notify,
    wake: OnceLock<Wake>,
    moving: Mutex<Option<AbortHandle>>,
}

/// The name of a journal's folder below the tier's prefix.
pub(super) fn name_of(identity: u64, shard: &str) -> String {
    format!("{identity:016x}/{shard}")
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folder")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Folder {
    pub(super) fn new(inner: Arc<Inner>, number: u32, identity: u64, shard: &str) -> Self {
        Self {
            inner,
            number,
            identity,
            name: name_of(identity, shard),
            doomed: Mutex::default(),
            look: Notify::new(),
            wake: OnceLock::new(),
            moving: Mutex::default(),
        }
    }

    /// The number that names it.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// Its name below the tier's prefix.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where it is, for people.
    pub(super) fn address(&self) -> String {
        self.inner.objects.folder_address(&self.name)
    }

    /// Where the object of a segment is, for people.
    pub(crate) fn object_address(&self, base: Position) -> String {
        self.inner.objects.address(&self.name, base)
    }

    /// Sealed bytes that stay on the journal's disk.
    pub(crate) fn keep_bytes(&self) -> u64 {
        self.inner.local_bytes
    }

    /// The file of a segment that lies there.
    pub(crate) fn file(
        &self,
        base: Position,
        object: Object,
        capacity_bytes: u64,
    ) -> Arc<dyn DiskFile> {
        Arc::new(TierFile {
            inner: self.inner.clone(),
            object: ObjectKey {
                folder: self.number,
                base: base.0,
                len: object.len,
            },
            capacity_bytes,
        })
    }

    /// Nothing lives in a segment any more, and that is written down: its object is removed.
    pub(crate) fn doom(&self, base: Position) {
        self.lock_doomed().insert(base);
        self.look.notify_one();
    }

    /// An object is gone.
    pub(super) fn is_gone(&self, base: Position) {
        self.lock_doomed().remove(&base);
        self.inner.ranges.forget(self.number, base.0);
    }

    /// Objects that are to go.
    pub(crate) fn doomed(&self) -> Vec<Position> {
        self.lock_doomed().iter().copied().collect()
    }

    fn lock_doomed(&self) -> MutexGuard<'_, BTreeSet<Position>> {
        self.doomed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something may have become movable: a checkpoint was written.
    pub(crate) fn look(&self) {
        self.look.notify_one();
    }

    /// Whom to wake when something has come.
    pub(crate) fn on_arrival(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    pub(super) fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// Begins to move segments of the journal.
    pub(crate) fn start(self: &Arc<Self>, journal: Journal) {
        let moving = mover::run(self.inner.clone(), self.clone(), journal);
        let task = self.inner.handle.spawn(moving);
        let mut running = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = running.replace(task.abort_handle()) {
            before.abort();
        }
    }

    /// Ends that: what is half done is done again at the next start.
    pub(crate) fn stop(&self) {
        let mut running = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = running.take() {
            task.abort();
        }
    }
}
