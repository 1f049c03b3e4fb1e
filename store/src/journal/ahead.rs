//! Reading for readers: a thread of the journal reads what they come to, so that whoever serves them need not wait.
//!
//! Owns: the thread, what was asked of it and what has come, how much of the disk it takes at a time. What it reads is in the
//! system's cache then, and nothing is kept here. Never says what is to be read: see [`super::spot`]; never judges: what cannot
//! be read has come, too, and its reader's own read says why. Without the thread (in a simulation) nothing is ever waited for
//! here. Read next: [`super::walks`].

use super::mapped::Mapped;
use super::placement::Shared;
use super::segment::SegmentFile;
use super::walks::Chunk;
use crate::disk::BLOCK_BYTES;
use anabranch_core::id::Position;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

/// Bytes that are asked of the disk in one go. A sync of the writer waits behind what was asked before it: so little of
/// it is, and a walk is hardly slower for it.
const PIECE_BYTES: u64 = 128 * 1024;
/// Pieces under way at a time: the disk has the next one while this one is waited for.
const PIECES_UNDER_WAY: u64 = 2;
/// Jobs that may wait. What finds no room is asked for again by who needs it.
const JOBS_MAX: usize = 256;
/// Places remembered to have come: as many as may come before one of those who wait gets to look.
const COME_MAX: usize = 2 * JOBS_MAX;

/// What is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// What a walk comes to.
    Chunk(Chunk),
    /// What a jump reads: so it begins, in the segment of this base.
    Jump(Position, u64),
}

/// To be read.
pub(super) struct Bring {
    pub(super) place: Place,
    pub(super) file: Arc<SegmentFile>,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The walk that comes to it, if it is known: it is told whether others had it read already.
    pub(super) walk: Option<u64>,
}

impl Bring {
    /// Reads it; whether it is known that it was not there before.
    fn work(&self, into: &mut [u8]) -> bool {
        let is_chunk = matches!(self.place, Place::Chunk(_));
        let cached = is_chunk.then(|| self.file.is_cached(self.offset, self.len));
        if cached == Some(Some(true)) {
            return false;
        }
        let end = self.offset + self.len;
        let (mut asked, mut here) = (self.offset, self.offset);
        while here < end {
            while asked < end && asked < here + PIECES_UNDER_WAY * PIECE_BYTES {
                let piece = PIECE_BYTES.min(end - asked);
                // Advice that is not taken costs time, and nothing else.
                let _ = self.file.read_ahead(asked, piece);
                asked += piece;
            }
            let piece = PIECE_BYTES.min(end - here);
            let into = &mut into[..piece as usize];
            if self.file.read_at(into, here).is_err() {
                self.salvage(into, here);
            }
            here += piece;
        }
        cached == Some(Some(false))
    }

    /// Reads a piece of which something cannot be read: the rest of it is not waited for either.
    fn salvage(&self, piece: &mut [u8], offset: u64) {
        let blocks = piece.chunks_mut(BLOCK_BYTES as usize);
        for (block, at) in blocks.zip((offset..).step_by(BLOCK_BYTES as usize)) {
            let _ = self.file.read_at(block, at);
        }
    }
}

/// A chunk that may leave the system's cache.
pub(super) struct Behind {
    pub(super) chunk: Chunk,
    pub(super) file: Arc<SegmentFile>,
    pub(super) mapped: Option<Arc<Mapped>>,
    pub(super) len: u64,
}

impl Behind {
    fn work(&self) {
        if let Some(mapped) = &self.mapped {
            mapped.unload(self.chunk.nth);
        }
        // What stays the system takes back by itself.
        let _ = self.file.uncache(self.chunk.offset(), self.len);
    }
}

/// What is done for readers.
pub(super) enum Job {
    Bring(Bring),
    Behind(Behind),
    /// Unmap what had to make room, which takes a while.
    Unmap(Vec<Arc<Mapped>>),
}

/// What is called when something has come that was waited for.
type Wake = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Waits as a job, or is being read.
    asked: FxHashSet<Place>,
    /// The one that came last at the end.
    come: VecDeque<Place>,
    /// Somebody goes on when something has come.
    awaited: bool,
    ended: bool,
}

impl State {
    fn ask(&mut self, bring: Bring) {
        if self.jobs.len() < JOBS_MAX && self.asked.insert(bring.place) {
            self.jobs.push_back(Job::Bring(bring));
        }
    }
}

struct Desk {
    state: Mutex<State>,
    given: Condvar,
    wake: OnceLock<Wake>,
    shared: Arc<Mutex<Shared>>,
}

/// See the module's text.
pub(super) struct Ahead {
    desk: Arc<Desk>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").finish_non_exhaustive()
    }
}

impl Ahead {
    /// `background`: on a thread of its own, when one can be had.
    pub(super) fn new(shared: Arc<Mutex<Shared>>, background: bool) -> Self {
        let desk = Arc::new(Desk {
            state: Mutex::default(),
            given: Condvar::new(),
            wake: OnceLock::new(),
            shared,
        });
        let serving = desk.clone();
        let named = std::thread::Builder::new().name("journal-reader".to_owned());
        let thread = background.then(|| named.spawn(move || serving.serve()));
        let no_thread = |error: &std::io::Error| {
            tracing::warn!(%error, "whoever reads history waits for the disk itself");
        };
        let thread = thread.and_then(|started| started.inspect_err(no_thread).ok());
        desk.lock().ended = thread.is_none();
        Self {
            desk,
            thread: Mutex::new(thread),
        }
    }

    /// Whom to call when something has come.
    pub(super) fn on_arrival(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.desk.wake.set(Box::new(wake));
    }

    /// Whether somebody reads, and somebody is told when it is done.
    pub(super) fn serves(&self) -> bool {
        self.desk.wake.get().is_some() && !self.desk.lock().ended
    }

    /// Takes jobs, as many as there is room for.
    pub(super) fn give(&self, jobs: impl Iterator<Item = Job>) {
        let mut state = self.desk.lock();
        if state.ended {
            drop(state);
            jobs.for_each(|job| self.desk.advise(&job));
            return;
        }
        for job in jobs {
            match job {
                Job::Bring(bring) => state.ask(bring),
                // Few, and each gives memory back.
                Job::Behind(_) | Job::Unmap(_) => state.jobs.push_front(job),
            }
        }
        drop(state);
        self.desk.given.notify_one();
    }

    /// Whether a place was read a moment ago.
    pub(super) fn has_come(&self, place: Place) -> bool {
        self.desk.lock().come.contains(&place)
    }

    /// Whether all of it was read a moment ago; what was not will be, and whoever asks is called.
    pub(super) fn await_all(&self, wanted: impl Iterator<Item = Bring>) -> bool {
        let mut state = self.desk.lock();
        let mut here = true;
        for bring in wanted {
            if !state.come.contains(&bring.place) {
                here = false;
                state.ask(bring);
            }
        }
        state.awaited |= !here;
        drop(state);
        self.desk.given.notify_one();
        here
    }

    /// Forgets that places were read a moment ago: the system has taken them back, or one of them is read by somebody
    /// who waits for it, which is not to happen twice.
    pub(super) fn forget(&self, places: impl Iterator<Item = Place>) {
        let mut state = self.desk.lock();
        for place in places {
            state.come.retain(|come| *come != place);
        }
    }

    /// Ends the thread, after what it is at.
    pub(super) fn end(&self) {
        let mut state = self.desk.lock();
        state.ended = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.desk.given.notify_one();
        drop(jobs);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // A panic was told of when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.end();
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            let given = self.given.wait(state);
            state = given.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn serve(&self) {
        let _leaving = Leaving(self);
        let mut into = vec![0; PIECE_BYTES as usize];
        while let Some(job) = self.next() {
            match job {
                Job::Bring(bring) => {
                    if bring.work(&mut into) {
                        self.note_brought(&bring);
                    }
                    self.note_come(bring.place);
                }
                Job::Behind(behind) => {
                    behind.work();
                    let place = Place::Chunk(behind.chunk);
                    self.lock().come.retain(|come| *come != place);
                }
                Job::Unmap(mapped) => drop(mapped),
            }
            // Whatever it was: who found no room for a wish makes it again.
            let awaited = std::mem::take(&mut self.lock().awaited);
            if let Some(wake) = self.wake.get().filter(|_| awaited) {
                wake();
            }
        }
    }

    /// Nobody had it read before.
    fn note_brought(&self, bring: &Bring) {
        if let (Place::Chunk(chunk), Some(walk)) = (bring.place, bring.walk) {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.reading.brought(walk, chunk);
        }
    }

    fn note_come(&self, place: Place) {
        let mut state = self.lock();
        state.asked.remove(&place);
        state.come.retain(|come| *come != place);
        if state.come.len() >= COME_MAX {
            state.come.pop_front();
        }
        state.come.push_back(place);
    }

    /// What of a job is done where there is no thread: whoever reads it waits for it.
    fn advise(&self, job: &Job) {
        match job {
            Job::Bring(bring) => {
                let cached = bring.file.is_cached(bring.offset, bring.len);
                if cached != Some(true) {
                    let _ = bring.file.read_ahead(bring.offset, bring.len);
                }
                if cached == Some(false) {
                    self.note_brought(bring);
                }
            }
            Job::Behind(behind) => behind.work(),
            Job::Unmap(_) => {}
        }
    }
}

/// The thread leaves. If nobody told it to, it panicked: from then on whoever reads waits for the disk itself, and those
/// who wait for the thread are called.
struct Leaving<'a>(&'a Desk);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(jobs);
        tracing::error!(
            "the journal's reading thread panicked: whoever reads history waits for the disk itself"
        );
        if let Some(wake) = self.0.wake.get() {
            wake();
        }
    }
}
