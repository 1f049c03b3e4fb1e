//! Files made ready to become the next segments: new ones, and released ones to be used again.
//!
//! Owns: how many are kept and how one is made. A segment that is used again costs no zeros. Never
//! gives a file its name: see [`super::files`]. Read next: [`super::writer`], [`super::keeper`].

use super::files::{Spare, make_spare};
use crate::disk::{Disk, DiskFile};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Released files kept for later.
pub(super) const KEPT_MAX: usize = 4;
/// The same when room on the disk matters more than speed.
pub(super) const KEPT_WHEN_TIGHT: usize = 1;

/// Files that are ready, and names for new ones; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Shelf {
    ready: Arc<Mutex<Vec<Spare>>>,
    named: Arc<AtomicU64>,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Vec<Spare>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_path(&self, dir: &Path) -> PathBuf {
        let number = self.named.fetch_add(1, Ordering::Relaxed) + 1;
        dir.join(format!("spare-{number}.tmp"))
    }

    fn take(&self, len: u64) -> Option<Spare> {
        let mut ready = self.lock();
        let nth = ready.iter().position(|spare| spare.len == len)?;
        Some(ready.swap_remove(nth))
    }

    fn put(&self, spare: Spare) {
        self.lock().push(spare);
    }

    fn has(&self, len: u64) -> bool {
        self.lock().iter().any(|spare| spare.len == len)
    }

    /// Keeps a released segment of `len` bytes for later, or deletes it: when enough are kept, and when
    /// it has holes (each write into one would change metadata). Its old frames are of no harm: the next
    /// life of the file has another salt.
    pub(super) fn recycle(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        path: &Path,
        file: &Arc<dyn DiskFile>,
        len: u64,
        kept_max: usize,
    ) -> io::Result<()> {
        let of_use = file.len()? == len && file.allocated_bytes()? >= len;
        if !of_use || self.lock().len() >= kept_max {
            return disk.remove(path);
        }
        let spare = self.new_path(dir);
        disk.rename(path, &spare)?;
        self.put(Spare {
            path: spare,
            file: file.clone(),
            len,
        });
        Ok(())
    }

    /// Deletes those beyond `kept_max`.
    pub(super) fn keep(&self, disk: &dyn Disk, kept_max: usize) -> io::Result<()> {
        let mut ready = self.lock();
        while ready.len() > kept_max {
            let spare = ready.remove(0);
            disk.remove(&spare.path)?;
        }
        Ok(())
    }
}

/// The maker of spare files of one journal.
#[derive(Debug)]
pub(super) struct Spares {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Made by a thread of its own.
    background: bool,
    shelf: Shelf,
    making: Option<JoinHandle<io::Result<Spare>>>,
}

impl Spares {
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf, background: bool) -> Self {
        Self {
            disk,
            dir,
            background,
            shelf: Shelf::default(),
            making: None,
        }
    }

    /// Where released files are put.
    pub(super) fn shelf(&self) -> Shelf {
        self.shelf.clone()
    }

    /// A file of exactly `len` bytes; made now when none is ready.
    pub(super) fn take(&mut self, len: u64) -> io::Result<Spare> {
        if let Some(spare) = self.shelf.take(len) {
            return Ok(spare);
        }
        if let Some(thread) = self.making.take() {
            self.shelf.put(join(thread)?);
            if let Some(spare) = self.shelf.take(len) {
                return Ok(spare);
            }
        }
        make_spare(&*self.disk, self.shelf.new_path(&self.dir), len)
    }

    /// Puts a file back that was not used after all.
    pub(super) fn put_back(&mut self, spare: Spare) {
        self.shelf.put(spare);
    }

    /// Sees to it that a file of `len` bytes is being made unless one is ready, and says which; an error
    /// says that there is no room.
    pub(super) fn prepare(&mut self, len: u64) -> io::Result<bool> {
        if let Some(thread) = self.making.take_if(|thread| thread.is_finished()) {
            self.shelf.put(join(thread)?);
        }
        if self.shelf.has(len) {
            return Ok(true);
        }
        if self.making.is_some() {
            return Ok(false);
        }
        let path = self.shelf.new_path(&self.dir);
        if !self.background {
            self.shelf.put(make_spare(&*self.disk, path, len)?);
            return Ok(true);
        }
        let disk = self.disk.clone();
        let named = std::thread::Builder::new().name("segment-maker".to_owned());
        self.making = Some(named.spawn(move || make_spare(&*disk, path, len))?);
        Ok(false)
    }
}

impl Drop for Spares {
    /// Waits for a file being made, so that whoever opens the folder next finds nobody at work.
    fn drop(&mut self) {
        if let Some(thread) = self.making.take() {
            let _ = join(thread);
        }
    }
}

fn join(thread: JoinHandle<io::Result<Spare>>) -> io::Result<Spare> {
    thread
        .join()
        .map_err(|_| io::Error::other("making a segment panicked"))?
}
