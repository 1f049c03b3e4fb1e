//! Files made ready to become the next segments: new ones, and released ones to be used again.
//!
//! Owns: how many are kept and when one is made. A segment that is used again costs no zeros. Never
//! gives a file its name: see [`super::files`]. Read next: [`super::writer`].

use super::files::{Spare, make_spare};
use crate::disk::Disk;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Released files kept for later.
const KEPT_MAX: usize = 4;

/// The spare files of one journal.
#[derive(Debug)]
pub(super) struct Spares {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Made by a thread of its own.
    background: bool,
    ready: Vec<Spare>,
    making: Option<JoinHandle<io::Result<Spare>>>,
    named: u64,
}

impl Spares {
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf, background: bool) -> Self {
        Self {
            disk,
            dir,
            background,
            ready: Vec::new(),
            making: None,
            named: 0,
        }
    }

    fn new_path(&mut self) -> PathBuf {
        self.named += 1;
        self.dir.join(format!("spare-{}.tmp", self.named))
    }

    /// A file of exactly `len` bytes; made now when none is ready.
    pub(super) fn take(&mut self, len: u64) -> io::Result<Spare> {
        if let Some(spare) = self.take_ready(len) {
            return Ok(spare);
        }
        if let Some(thread) = self.making.take() {
            let made = join(thread)?;
            self.ready.push(made);
            if let Some(spare) = self.take_ready(len) {
                return Ok(spare);
            }
        }
        let path = self.new_path();
        make_spare(&*self.disk, path, len)
    }

    fn take_ready(&mut self, len: u64) -> Option<Spare> {
        let nth = self.ready.iter().position(|spare| spare.len == len)?;
        Some(self.ready.swap_remove(nth))
    }

    /// Keeps a released segment of `len` bytes for later, or deletes it. Its old frames are of no
    /// harm: the next life of the file has another salt.
    pub(super) fn recycle(&mut self, path: &Path, len: u64) -> io::Result<()> {
        let file = self.disk.open(path)?;
        if self.ready.len() >= KEPT_MAX || file.len()? != len {
            return self.disk.remove(path);
        }
        let spare = self.new_path();
        self.disk.rename(path, &spare)?;
        self.ready.push(Spare {
            path: spare,
            file,
            len,
        });
        Ok(())
    }

    /// Deletes all but one: room on the disk matters more than speed now.
    pub(super) fn give_back(&mut self) -> io::Result<()> {
        while self.ready.len() > 1 {
            let spare = self.ready.remove(0);
            self.disk.remove(&spare.path)?;
        }
        Ok(())
    }

    /// Sees to it that a file of `len` bytes is ready or being made; an error says that there is no room.
    pub(super) fn prepare(&mut self, len: u64) -> io::Result<()> {
        if let Some(thread) = self.making.take_if(|thread| thread.is_finished()) {
            let made = join(thread)?;
            self.ready.push(made);
        }
        if self.ready.iter().any(|spare| spare.len == len) || self.making.is_some() {
            return Ok(());
        }
        let path = self.new_path();
        if !self.background {
            let made = make_spare(&*self.disk, path, len)?;
            self.ready.push(made);
            return Ok(());
        }
        let disk = self.disk.clone();
        let named = std::thread::Builder::new().name("segment-maker".to_owned());
        self.making = Some(named.spawn(move || make_spare(&*disk, path, len))?);
        Ok(())
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
