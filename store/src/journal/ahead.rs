//! Reading for readers: a thread of the journal reads what they come to, so that whoever serves them need not wait.
//!
//! Owns: the thread, what was asked of it and what has come. A chunk of history that may be held is read around the system's
//! cache, unless it is there, and held ([`super::held`]); what a jump reads is in the cache then. Never says what is to be
//! read: see [`super::spot`]; never judges: what cannot be read has come, too, and its reader's own read says why. Without the
//! thread (in a simulation) nothing is ever waited for here. Read next: [`super::walks`].

use super::placement::Shared;
use super::segment::SegmentFile;
use super::walks::Chunk;
use crate::disk::BLOCK_BYTES;
use crate::disk::block_buf::BlockBufs;
use anabranch_core::id::Position;
use bytes::Bytes;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that are read into the system's cache in one go.
const PIECE_BYTES: usize = 128 * 1024;
/// Room for chunks that is kept when nobody reads from it: more than is filled while a walk goes on.
const SPARE_CHUNKS: usize = 4;
/// A walk that stands still for this long, twice at most, gives up what is held for it.
const REST: Duration = Duration::from_secs(10);
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
    /// Whether what is read may be held: nothing of it is cut any more.
    pub(super) is_final: bool,
}

impl Bring {
    /// Reads it; what it does not give, to be held, is in the system's cache then.
    fn work(&self, bufs: &BlockBufs) -> Option<Bytes> {
        if let (Place::Chunk(_), true) = (self.place, self.is_final)
            && let Ok(bytes) = self.read_to_hold(bufs)
        {
            return Some(bytes);
        }
        self.read_through_cache();
        None
    }

    /// From the system's cache if all of it is there, else around it.
    fn read_to_hold(&self, bufs: &BlockBufs) -> io::Result<Bytes> {
        let len = usize::try_from(self.len).map_err(io::Error::other)?;
        let mut buf = bufs.get()?;
        // A sample first: the whole is not to be copied in vain.
        if self.file.is_cached(self.offset, self.len) == Some(true)
            && let Some(all) = buf.blocks().get_mut(..len)
            && self.file.read_now(all, self.offset)?
        {
            return Ok(buf.into_bytes(len));
        }
        let whole = len.next_multiple_of(BLOCK_BYTES as usize);
        let blocks = buf.blocks().get_mut(..whole);
        let blocks = blocks.ok_or_else(|| io::Error::other("more than a chunk"))?;
        self.file.read_past_cache(blocks, self.offset)?;
        Ok(buf.into_bytes(len))
    }

    /// What is done of it where there is no thread: whoever reads it waits for it.
    fn advise(&self) {
        if self.file.is_cached(self.offset, self.len) != Some(true) {
            let _ = self.file.read_ahead(self.offset, self.len);
        }
    }

    /// Of a piece in which something cannot be read the rest is not waited for either.
    fn read_through_cache(&self) {
        let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(self.len).unwrap_or(PIECE_BYTES))];
        let end = self.offset + self.len;
        for at in (self.offset..end).step_by(PIECE_BYTES) {
            let len = (end - at).min(PIECE_BYTES as u64) as usize;
            let piece = &mut piece[..len];
            if self.file.read_at(piece, at).is_err() {
                let blocks = piece.chunks_mut(BLOCK_BYTES as usize);
                for (block, at) in blocks.zip((at..).step_by(BLOCK_BYTES as usize)) {
                    let _ = self.file.read_at(block, at);
                }
            }
        }
    }
}

/// What is called when something has come that was waited for.
type Wake = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Bring>,
    /// Waits as a job, or is being read.
    asked: FxHashSet<Place>,
    /// The one that came last at the end.
    come: VecDeque<Place>,
    /// Somebody goes on when something has come.
    awaited: bool,
    /// Since when something is held, or when it was last looked who walks; nothing when nothing is held.
    holds_since: Option<Instant>,
    ended: bool,
}

impl State {
    fn ask(&mut self, bring: Bring) {
        if self.jobs.len() < JOBS_MAX && self.asked.insert(bring.place) {
            self.jobs.push_back(bring);
        }
    }

    fn note_come(&mut self, place: Place) {
        self.come.retain(|come| *come != place);
        if self.come.len() >= COME_MAX {
            self.come.pop_front();
        }
        self.come.push_back(place);
    }
}

struct Desk {
    state: Mutex<State>,
    given: Condvar,
    came: Condvar,
    wake: OnceLock<Wake>,
    bufs: BlockBufs,
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
            came: Condvar::new(),
            wake: OnceLock::new(),
            bufs: BlockBufs::new(SPARE_CHUNKS),
            shared,
        });
        let serving = desk.clone();
        let named = std::thread::Builder::new().name("journal-reader".to_owned());
        let thread = background.then(|| named.spawn(move || serving.serve()));
        let no_thread = |error: &io::Error| {
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
    pub(super) fn give(&self, jobs: impl Iterator<Item = Bring>) {
        let mut state = self.desk.lock();
        if state.ended {
            drop(state);
            jobs.for_each(|job| job.advise());
            return;
        }
        jobs.for_each(|job| state.ask(job));
        drop(state);
        self.desk.given.notify_one();
    }

    /// Waits for those of the chunks that are being read, or will be. Who could have waited looks again at what is held.
    pub(super) fn wait_for(&self, chunks: &[Chunk]) {
        let mut state = self.desk.lock();
        let is_asked = |state: &State| {
            let mut places = chunks.iter().map(|chunk| Place::Chunk(*chunk));
            places.any(|place| state.asked.contains(&place))
        };
        while !state.ended && is_asked(&state) {
            let came = self.desk.came.wait(state);
            state = came.unwrap_or_else(PoisonError::into_inner);
        }
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
        self.desk.came.notify_all();
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

    fn next(&self) -> Option<Bring> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            let Some(since) = state.holds_since else {
                let given = self.given.wait(state);
                state = given.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = REST.saturating_sub(since.elapsed());
            if left.is_zero() {
                drop(state);
                let holds = self.shared().reading.rest();
                state = self.lock();
                state.holds_since = holds.then(Instant::now);
            } else {
                let given = self.given.wait_timeout(state, left);
                state = given.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let _leaving = Leaving(self);
        while let Some(job) = self.next() {
            self.bring(&job);
            // Whatever it was: who found no room for a wish makes it again.
            let awaited = std::mem::take(&mut self.lock().awaited);
            if let Some(wake) = self.wake.get().filter(|_| awaited) {
                wake();
            }
        }
    }

    fn bring(&self, bring: &Bring) {
        let chunk = match bring.place {
            Place::Chunk(chunk) => Some(chunk),
            Place::Jump(..) => None,
        };
        // Another walk came to it first.
        let is_held = chunk.is_some_and(|chunk| self.shared().reading.holds(chunk));
        let bytes = if is_held {
            None
        } else {
            bring.work(&self.bufs)
        };
        let is_held = is_held || bytes.is_some();
        if let (Some(chunk), Some(bytes)) = (chunk, bytes) {
            self.shared().reading.hold(chunk, bytes);
        }
        let mut state = self.lock();
        state.asked.remove(&bring.place);
        // What is held its readers find without being told.
        if is_held {
            state.holds_since.get_or_insert_with(Instant::now);
        } else {
            state.note_come(bring.place);
        }
        drop(state);
        self.came.notify_all();
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
        self.0.came.notify_all();
        tracing::error!(
            "the journal's reading thread panicked: whoever reads history waits for the disk itself"
        );
        if let Some(wake) = self.0.wake.get() {
            wake();
        }
    }
}
