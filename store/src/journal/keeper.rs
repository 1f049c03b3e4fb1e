//! Work on files that no confirm waits for: side files.
//!
//! Owns: doing it in order, on a thread of its own (in a simulation: at the end of a writer's round).
//! A failure here is logged and costs nothing but time at the next opening; it never stops the
//! journal. Never touches a segment that is being written. Read next: [`super::table`],
//! [`super::writer`], which alone gives it work.

use super::table::{SideTable, remove_if_there, table_path};
use crate::disk::Disk;
use anabranch_core::id::Position;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// One piece of work; pieces are done in the order they were given.
#[derive(Debug)]
pub(super) enum Job {
    /// Write the side file of a segment whose frames are all synced.
    Table(SideTable),
    /// Remove the side file of a segment that is gone or is written again.
    Forget(Position),
}

/// Does jobs for one journal.
#[derive(Debug)]
pub(super) struct Keeper {
    hands: Hands,
    waiting: Vec<Job>,
    thread: Option<(Sender<Job>, JoinHandle<()>)>,
}

impl Keeper {
    /// `background`: on a thread of its own, when one can be had.
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf, background: bool) -> Self {
        let hands = Hands { disk, dir };
        let thread = background
            .then(|| hands.clone().start())
            .and_then(|started| {
                started
                    .inspect_err(
                        |error| tracing::warn!(%error, "side files are written by the writer"),
                    )
                    .ok()
            });
        Self {
            hands,
            waiting: Vec::new(),
            thread,
        }
    }

    /// Takes a job for the next [`Keeper::work`].
    pub(super) fn give(&mut self, job: Job) {
        self.waiting.push(job);
    }

    /// Sees to it that what was given is done: everything that the jobs rely on is durable.
    pub(super) fn work(&mut self) {
        for job in self.waiting.drain(..) {
            match &self.thread {
                Some((jobs, _)) => {
                    let _ = jobs.send(job);
                }
                None => self.hands.run(job),
            }
        }
    }
}

impl Drop for Keeper {
    /// Waits for the work given, so that whoever opens the folder next finds nobody at it.
    fn drop(&mut self) {
        if let Some((jobs, thread)) = self.thread.take() {
            drop(jobs);
            let _ = thread.join();
        }
    }
}

/// What a job is done with.
#[derive(Debug, Clone)]
struct Hands {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl Hands {
    fn start(self) -> io::Result<(Sender<Job>, JoinHandle<()>)> {
        let (send, jobs): (_, Receiver<Job>) = channel();
        let named = std::thread::Builder::new().name("journal-keeper".to_owned());
        let thread = named.spawn(move || {
            for job in jobs {
                self.run(job);
            }
        })?;
        Ok((send, thread))
    }

    fn run(&self, job: Job) {
        let (done, base) = match job {
            Job::Table(table) => (table.write(&*self.disk, &self.dir), table.base),
            Job::Forget(base) => {
                let path = table_path(&self.dir, base);
                (remove_if_there(&*self.disk, &path), base)
            }
        };
        if let Err(error) = done {
            let path = table_path(&self.dir, base);
            tracing::warn!(path = %path.display(), %error, "a side file was not written or removed");
        }
    }
}
