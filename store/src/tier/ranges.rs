//! The memory for ranges that were read back.
//!
//! Owns: which ranges of objects are held, wanted and on their way, within a limit. Never asks for anything itself.
//! Read next: [`super::reader`], which does; [`super::file`], from which it is read.
//!
//! What nobody has read yet stays for a while, so that two readers do not drive each other's ranges out; a read that
//! is larger than the whole limit is let in by itself. What failed rests, then whoever still wants it asks again.

use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Bytes of a range.
pub(super) const RANGE_BYTES: u64 = 256 << 10;
/// Ranges that are asked for in one request.
const TOGETHER_MAX: usize = 16;
/// Ranges that may be wanted and not yet asked for; further wishes are made again later.
const WANTED_MAX: usize = 1024;
/// How long what nobody has read is kept.
const UNREAD_FOR: Duration = Duration::from_secs(10);

/// An object of a folder, by numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ObjectKey {
    pub(super) folder: u32,
    pub(super) base: u64,
    /// Its length in bytes.
    pub(super) len: u64,
}

/// A range of an object: the first byte lies at so many times [`RANGE_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    object: ObjectKey,
    nth: u64,
}

impl Key {
    fn bytes(&self) -> Range<u64> {
        let start = self.nth * RANGE_BYTES;
        start..(start + RANGE_BYTES).min(self.object.len)
    }

    fn len(&self) -> u64 {
        let bytes = self.bytes();
        bytes.end - bytes.start
    }

    fn next(&self) -> Option<Key> {
        let nth = self.nth + 1;
        (nth * RANGE_BYTES < self.object.len).then_some(Key { nth, ..*self })
    }
}

/// Ranges that are asked for together.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) object: ObjectKey,
    pub(super) bytes: Range<u64>,
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Held {
    bytes: Bytes,
    tick: u64,
    was_read: bool,
    since: Instant,
}

/// What a cache has counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct RangeCounts {
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    held: FxHashMap<Key, Held>,
    /// By when they were last used.
    by_age: BTreeMap<u64, Key>,
    tick: u64,
    /// Of what is held and what is on its way.
    bytes: u64,
    /// The largest read that was asked for.
    largest: u64,
    wanted: VecDeque<Key>,
    /// Wanted, on their way, or resting after a failure.
    known: FxHashSet<Key>,
    failures: FxHashMap<ObjectKey, u32>,
    hits: u64,
    misses: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Ranges {
    state: Mutex<State>,
    bytes_max: u64,
    /// Something is wanted, or there is room.
    pub(super) changed: Notify,
}

impl Ranges {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            state: Mutex::default(),
            bytes_max,
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills `buf` from `offset` bytes of an object; `WouldBlock` when something of it is not here: then it comes.
    pub(super) fn read(&self, object: ObjectKey, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if end > object.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if buf.is_empty() {
            return Ok(());
        }
        let keys = (offset / RANGE_BYTES..=(end - 1) / RANGE_BYTES).map(|nth| Key { object, nth });
        let keys: Vec<Key> = keys.collect();
        let mut state = self.lock();
        if state.has_lost(&keys, end) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut missing = 0;
        for key in &keys {
            if state.touch(*key) {
                continue;
            }
            missing += 1;
            if state.want(*key) {
                state.misses += 1;
            }
        }
        if missing > 0 {
            state.largest = state.largest.max(keys.len() as u64 * RANGE_BYTES);
            drop(state);
            self.changed.notify_one();
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.hits += 1;
        for key in &keys {
            let range = key.bytes();
            let Some(held) = state.held.get_mut(key) else {
                return Err(io::ErrorKind::WouldBlock.into());
            };
            held.was_read = true;
            let (from, to) = (offset.max(range.start), end.min(range.end));
            let into = &mut buf[(from - offset) as usize..(to - offset) as usize];
            let from = (from - range.start) as usize;
            into.copy_from_slice(&held.bytes[from..from + into.len()]);
        }
        // Whoever reads on finds the next one here.
        let ahead = keys.last().and_then(Key::next);
        let ahead = ahead.filter(|next| !state.held.contains_key(next));
        let asks = ahead.is_some_and(|next| state.want(next));
        drop(state);
        if asks {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// What to ask for next; nothing when nothing is wanted or there is no room for it.
    pub(super) fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        let first = *state.wanted.front()?;
        let mut keys = vec![first];
        while keys.len() < TOGETHER_MAX
            && let Some(key) = state.wanted.get(keys.len())
            && keys.last().and_then(Key::next).as_ref() == Some(key)
        {
            keys.push(*key);
        }
        let limit = self.bytes_max.max(2 * state.largest);
        let mut room = 0;
        for key in &keys {
            if !state.make_room(key.len(), limit) {
                break;
            }
            state.bytes += key.len();
            room += 1;
        }
        keys.truncate(room);
        let (from, to) = (keys.first()?.bytes().start, keys.last()?.bytes().end);
        state.wanted.drain(..room);
        Some(Job {
            object: first.object,
            bytes: from..to,
            keys,
        })
    }

    /// What a job asked for is here: all of it, or what the object still has.
    pub(super) fn arrived(&self, job: &Job, bytes: &Bytes) {
        let mut state = self.lock();
        state.failures.remove(&job.object);
        let since = Instant::now();
        for key in &job.keys {
            let range = key.bytes();
            let inside = |at: u64| bytes.len().min((at - job.bytes.start) as usize);
            // Not a slice: the others of the job must not keep it in memory.
            let part = Bytes::copy_from_slice(&bytes[inside(range.start)..inside(range.end)]);
            state.known.remove(key);
            state.bytes -= key.len() - part.len() as u64;
            state.tick += 1;
            let tick = state.tick;
            state.by_age.insert(tick, *key);
            state.held.insert(
                *key,
                Held {
                    bytes: part,
                    tick,
                    was_read: false,
                    since,
                },
            );
        }
    }

    /// It did not come; so many times in a row. It rests until [`Ranges::rested`].
    pub(super) fn failed(&self, job: &Job) -> u32 {
        let mut state = self.lock();
        state.bytes -= job.keys.iter().map(Key::len).sum::<u64>();
        let failures = state.failures.entry(job.object).or_default();
        *failures += 1;
        *failures
    }

    /// Who wants it may ask for it again.
    pub(super) fn rested(&self, job: &Job) {
        let mut state = self.lock();
        for key in &job.keys {
            state.known.remove(key);
        }
    }

    /// An object is gone.
    pub(super) fn forget(&self, folder: u32, base: u64) {
        let mut state = self.lock();
        let is_it = |object: &ObjectKey| object.folder == folder && object.base == base;
        let gone: Vec<Key> = state.held.keys().copied().collect();
        for key in gone.into_iter().filter(|key| is_it(&key.object)) {
            state.remove(&key);
        }
        state.failures.retain(|object, _| !is_it(object));
    }

    pub(super) fn counts(&self) -> RangeCounts {
        let state = self.lock();
        RangeCounts {
            hits: state.hits,
            misses: state.misses,
            bytes: state.bytes,
        }
    }
}

impl State {
    /// Whether bytes before `end` are known to be lost: the object was cut short.
    fn has_lost(&self, keys: &[Key], end: u64) -> bool {
        keys.iter().any(|key| {
            let wanted = end.min(key.bytes().end);
            let held = self.held.get(key);
            held.is_some_and(|held| key.bytes().start + (held.bytes.len() as u64) < wanted)
        })
    }

    /// Whether it is here; then it is the one used last.
    fn touch(&mut self, key: Key) -> bool {
        self.tick += 1;
        let tick = self.tick;
        let Some(held) = self.held.get_mut(&key) else {
            return false;
        };
        self.by_age.remove(&held.tick);
        held.tick = tick;
        self.by_age.insert(tick, key);
        true
    }

    /// Says whether it was not wanted before.
    fn want(&mut self, key: Key) -> bool {
        let new = self.wanted.len() < WANTED_MAX && self.known.insert(key);
        if new {
            self.wanted.push_back(key);
        }
        new
    }

    fn remove(&mut self, key: &Key) {
        if let Some(held) = self.held.remove(key) {
            self.by_age.remove(&held.tick);
            self.bytes -= held.bytes.len() as u64;
        }
    }

    /// Lets go of what was read longest ago until so many more bytes fit.
    fn make_room(&mut self, more: u64, limit: u64) -> bool {
        while self.bytes + more > limit && self.bytes > 0 {
            let old = |key: &&Key| {
                let held = self.held.get(key);
                held.is_some_and(|held| held.was_read || held.since.elapsed() >= UNREAD_FOR)
            };
            let Some(key) = self.by_age.values().find(old).copied() else {
                return false;
            };
            self.remove(&key);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: ObjectKey = ObjectKey {
        folder: 1,
        base: 0,
        len: 10 * RANGE_BYTES - 5,
    };

    fn byte_at(offset: u64) -> u8 {
        (offset % 251) as u8
    }

    fn answer(ranges: &Ranges, job: &Job) {
        let bytes: Vec<u8> = job.bytes.clone().map(byte_at).collect();
        ranges.arrived(job, &bytes.into());
    }

    fn read(ranges: &Ranges, offset: u64, len: usize) -> io::Result<()> {
        let mut buf = vec![0; len];
        ranges.read(OBJECT, &mut buf, offset)?;
        let right = (offset..).zip(&buf).all(|(at, byte)| *byte == byte_at(at));
        assert!(right, "{offset} {len}");
        Ok(())
    }

    fn is_away(result: io::Result<()>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    #[test]
    fn what_is_not_here_is_asked_for_once_and_together() {
        let ranges = Ranges::new(64 << 20);
        let offset = 3 * RANGE_BYTES - 10;
        for _ in 0..3 {
            assert!(is_away(read(&ranges, offset, 20)));
        }
        let job = ranges.next_job().unwrap();
        assert_eq!(job.bytes, 2 * RANGE_BYTES..4 * RANGE_BYTES);
        assert!(ranges.next_job().is_none());
        assert!(is_away(read(&ranges, offset, 20)), "on its way");
        assert!(ranges.next_job().is_none(), "and not asked for again");
        answer(&ranges, &job);
        read(&ranges, offset, 20).unwrap();
        let ahead = ranges.next_job().unwrap();
        assert_eq!(ahead.bytes, 4 * RANGE_BYTES..5 * RANGE_BYTES, "read ahead");
        let counts = ranges.counts();
        assert_eq!((counts.hits, counts.misses), (1, 2));
    }

    #[test]
    fn the_end_of_an_object_is_its_end() {
        let ranges = Ranges::new(64 << 20);
        assert!(is_away(read(&ranges, OBJECT.len - 3, 3)));
        let job = ranges.next_job().unwrap();
        assert_eq!(job.bytes, 9 * RANGE_BYTES..OBJECT.len);
        answer(&ranges, &job);
        read(&ranges, OBJECT.len - 3, 3).unwrap();
        let beyond = read(&ranges, OBJECT.len - 3, 4).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_was_read_longest_ago_goes_and_what_nobody_has_read_stays() {
        let ranges = Ranges::new(3 * RANGE_BYTES);
        let fetch = |nth: u64| {
            assert!(is_away(read(&ranges, nth * RANGE_BYTES, 1)), "{nth}");
            // What is read ahead is in the way of nothing here.
            while let Some(job) = ranges.next_job() {
                answer(&ranges, &job);
            }
        };
        fetch(9);
        read(&ranges, 9 * RANGE_BYTES, 1).unwrap();
        fetch(5);
        fetch(7);
        assert_eq!(ranges.counts().bytes, 3 * RANGE_BYTES - 5);
        fetch(3);
        assert!(is_away(read(&ranges, 9 * RANGE_BYTES, 1)), "it made room");
        assert!(ranges.next_job().is_none(), "the rest was not read yet");
        for nth in [3, 5, 7] {
            read(&ranges, nth * RANGE_BYTES, 1).unwrap();
        }
        assert!(ranges.next_job().is_some(), "now it was");
        assert!(ranges.counts().bytes <= 3 * RANGE_BYTES);
    }

    #[test]
    fn a_read_larger_than_the_limit_is_let_in() {
        let ranges = Ranges::new(RANGE_BYTES);
        let len = 8 * RANGE_BYTES as usize;
        assert!(is_away(read(&ranges, 0, len)));
        while let Some(job) = ranges.next_job() {
            answer(&ranges, &job);
        }
        read(&ranges, 0, len).unwrap();
    }

    #[test]
    fn what_an_object_has_lost_is_told_and_the_rest_is_read() {
        let ranges = Ranges::new(64 << 20);
        let cut = 3 * RANGE_BYTES + 100;
        assert!(is_away(read(
            &ranges,
            2 * RANGE_BYTES,
            3 * RANGE_BYTES as usize
        )));
        let job = ranges.next_job().unwrap();
        let there: Vec<u8> = (job.bytes.start..cut).map(byte_at).collect();
        ranges.arrived(&job, &there.into());
        assert_eq!(ranges.counts().bytes, RANGE_BYTES + 100);
        read(&ranges, cut - 10, 10).unwrap();
        for offset in [cut - 9, cut, cut + RANGE_BYTES] {
            let lost = read(&ranges, offset, 10).unwrap_err();
            assert_eq!(lost.kind(), io::ErrorKind::UnexpectedEof, "{offset}");
        }
        ranges.forget(OBJECT.folder, OBJECT.base);
        assert_eq!(ranges.counts().bytes, 0);
    }

    #[test]
    fn what_failed_rests_and_is_asked_for_again() {
        let ranges = Ranges::new(64 << 20);
        for failures in 1..4 {
            assert!(is_away(read(&ranges, 0, 1)));
            let job = ranges.next_job().unwrap();
            assert_eq!(ranges.failed(&job), failures);
            assert!(is_away(read(&ranges, 0, 1)));
            assert!(ranges.next_job().is_none(), "it rests");
            ranges.rested(&job);
        }
        assert_eq!(ranges.counts().bytes, 0);
        assert!(is_away(read(&ranges, 0, 1)));
        let job = ranges.next_job().unwrap();
        answer(&ranges, &job);
        read(&ranges, 0, 1).unwrap();
        ranges.forget(OBJECT.folder, OBJECT.base);
        assert!(is_away(read(&ranges, 0, 1)));
    }
}
