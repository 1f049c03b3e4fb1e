//! Reading what the disk has to bring first: nobody who serves others waits for it.
//!
//! The disk is a real one behind a gate: what was not read since it was chilled is waited for until the gate opens.

mod worker;

use anabranch_core::gateway::PublishOutcome;
use anabranch_core::id::{LogIndex, Position, StreamId, Term, UnixMs, VhostId};
use anabranch_core::limits::StreamLimits;
use anabranch_core::port::{Question, ShardEvent, ShardReply};
use anabranch_store::disk::real::RealDisk;
use anabranch_store::disk::sim::SimDisk;
use anabranch_store::disk::{Disk, DiskFile, DiskLock};
use anabranch_store::journal::{
    Completion, Frame, FrameId, FrameKind, Journal, JournalOptions, ReadError, WriteError,
    WriterMode,
};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use worker::{STREAM, Worker};

const BLOCK: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct State {
    is_cold: bool,
    shut: bool,
    fails: bool,
    /// Nobody can tell what is in the cache.
    blind: bool,
    /// The thread that reads for others panics.
    panics: bool,
    /// Blocks at this offset of every file cannot be read.
    bad: Option<u64>,
    /// Reads that came to such a block.
    bad_reads: usize,
    /// What is asked for as a sample is always there.
    sample_lies: bool,
    /// What was given up behind a walk.
    uncached: usize,
    /// Blocks of files that were read since it is cold.
    cached: BTreeSet<(PathBuf, u64)>,
    /// Threads that had to wait for the disk.
    waited: BTreeSet<String>,
    waiting: usize,
}

#[derive(Debug, Clone, Default)]
struct Gate {
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.0.lock().unwrap());
        self.state.1.notify_all();
    }

    /// Nothing is in the cache any more, and nothing comes.
    fn shut(&self) {
        self.change(|state| {
            (state.is_cold, state.shut) = (true, true);
            state.cached.clear();
        });
    }

    fn open(&self) {
        self.change(|state| state.shut = false);
    }

    fn until(&self, is_so: impl Fn(&State) -> bool) {
        let state = self.state.0.lock().unwrap();
        let until = self
            .state
            .1
            .wait_timeout_while(state, PATIENCE, |state| !is_so(state));
        assert!(!until.unwrap().1.timed_out());
    }

    fn lies(&self) -> bool {
        self.state.0.lock().unwrap().sample_lies
    }

    fn is_blind(&self) -> bool {
        self.state.0.lock().unwrap().blind
    }

    fn waited(&self) -> Vec<String> {
        let state = self.state.0.lock().unwrap();
        state.waited.iter().cloned().collect()
    }

    /// A sample, which no bad block is part of.
    fn has(&self, path: &Path, offset: u64, len: u64) -> bool {
        let state = self.state.0.lock().unwrap();
        let blocks = offset / BLOCK..(offset + len).div_ceil(BLOCK);
        let mut blocks = blocks.filter(|nth| state.bad != Some(nth * BLOCK));
        !state.is_cold || blocks.all(|nth| state.cached.contains(&(path.to_owned(), nth)))
    }

    fn is_bad(&self, offset: u64, len: u64) -> bool {
        let bad = self.state.0.lock().unwrap().bad;
        bad.is_some_and(|bad| offset < bad + BLOCK && bad < offset + len)
    }

    /// Waits for the disk; what was read is in the cache then.
    fn pass(&self, path: &Path, offset: u64, len: u64) -> io::Result<()> {
        self.pass_by(path, offset, len)?;
        let blocks = offset / BLOCK..(offset + len).div_ceil(BLOCK);
        let blocks = blocks.map(|nth| (path.to_owned(), nth));
        self.change(|state| state.cached.extend(blocks));
        Ok(())
    }

    /// Waits for the disk, and the cache stays as it is.
    fn pass_by(&self, path: &Path, offset: u64, len: u64) -> io::Result<()> {
        if self.is_bad(offset, len) {
            self.change(|state| state.bad_reads += 1);
            return Err(io::Error::other("a bad block"));
        }
        if self.has(path, offset, len) {
            return Ok(());
        }
        let mut state = self.state.0.lock().unwrap();
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        if state.panics && name == "journal-reader" {
            drop(state);
            panic!("as told");
        }
        state.waited.insert(name);
        state.waiting += 1;
        self.state.1.notify_all();
        let opened = self
            .state
            .1
            .wait_timeout_while(state, PATIENCE, |state| state.shut);
        let (mut state, late) = opened.unwrap();
        state.waiting -= 1;
        if state.fails || late.timed_out() {
            return Err(io::Error::other("the disk fails"));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Default)]
struct GatedDisk(Gate);

impl GatedDisk {
    fn gated(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        match path.extension().is_some_and(|end| end == "seg") {
            true => Arc::new(GatedFile(file, path.to_owned(), self.0.clone())),
            false => file,
        }
    }
}

impl Disk for GatedDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.gated(path, RealDisk.open(path)?))
    }
    fn create_zeroed(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        // A spare becomes a segment under another name.
        let file = RealDisk.create_zeroed(path, len)?;
        Ok(Arc::new(GatedFile(file, path.to_owned(), self.0.clone())))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.create_dir(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        RealDisk.lock(path)
    }
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        RealDisk.free_bytes(dir)
    }
    fn used_bytes(&self, dir: &Path) -> io::Result<u64> {
        RealDisk.used_bytes(dir)
    }
}

#[derive(Debug)]
struct GatedFile(Arc<dyn DiskFile>, PathBuf, Gate);

impl DiskFile for GatedFile {
    fn write_at(&self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.write_at(slices, offset)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.2.pass(&self.1, offset, buf.len() as u64)?;
        self.0.read_at(buf, offset)
    }
    fn read_past_cache(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.2.pass_by(&self.1, offset, buf.len() as u64)?;
        self.0.read_at(buf, offset)
    }
    fn read_now(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        let len = buf.len() as u64;
        if self.2.is_blind() || self.2.is_bad(offset, len) || !self.2.has(&self.1, offset, len) {
            return Ok(false);
        }
        self.0.read_at(buf, offset).map(|()| true)
    }
    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        if self.2.lies() {
            return Some(true);
        }
        (!self.2.is_blind()).then(|| self.2.has(&self.1, offset, len))
    }
    fn uncache(&self, _offset: u64, _len: u64) -> io::Result<()> {
        self.2.change(|state| state.uncached += 1);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}

const SEGMENT: u64 = 2 * 1024 * 1024 + 64 * 1024;
const PAYLOAD: usize = 20_000;

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn payload(index: u64) -> Bytes {
    index.to_le_bytes().repeat(PAYLOAD / 8).into()
}

fn place(index: u64) -> Position {
    Position(index * (48 + PAYLOAD as u64) + 48)
}

fn wait(ask: impl FnOnce(Completion) -> Result<(), WriteError>) {
    let (send, done) = channel();
    ask(Box::new(move |result| drop(send.send(result)))).unwrap();
    done.recv().expect("an answer").expect("done");
}

fn append(journal: &Journal, indexes: std::ops::Range<u64>) {
    for index in indexes {
        let frame = Frame {
            term: Term(1),
            index: LogIndex(index),
            committed: LogIndex(index.saturating_sub(1)),
            clock: UnixMs(index),
            kind: FrameKind::Records,
            payload: payload(index),
        };
        wait(|done| journal.append(vec![frame], done));
        journal.set_applied(LogIndex(index));
    }
}

/// A journal of 500 frames in five segments, all but the last of it cold.
fn cold(dir: &Path) -> (Gate, Journal, Receiver<()>) {
    let disk = GatedDisk::default();
    let options = JournalOptions {
        segment_bytes: SEGMENT,
        tail_bytes: 0,
        ..JournalOptions::default()
    };
    let journal = Journal::open(Arc::new(disk.clone()), dir, options).unwrap();
    append(&journal, 0..500);
    let (send, arrived) = channel();
    journal.on_arrival(move || {
        let _ = send.send(());
    });
    disk.0.shut();
    (disk.0, journal, arrived)
}

/// As a shard reads a record.
fn fetch(journal: &Journal, index: u64) -> Result<Bytes, ReadError> {
    journal.fetch_sized(place(index), 8, |_| Some(PAYLOAD))
}

fn is_away(journal: &Journal, index: u64) -> bool {
    matches!(fetch(journal, index), Err(error) if error.is_away())
}

/// As a shard goes on when something has come.
fn fetch_at_last(
    journal: &Journal,
    arrived: &Receiver<()>,
    index: u64,
) -> Result<Bytes, ReadError> {
    loop {
        match fetch(journal, index) {
            Err(error) if error.is_away() => arrived.recv_timeout(PATIENCE).expect("it comes"),
            read => return read,
        }
    }
}

#[test]
fn what_the_disk_has_to_bring_comes_later_and_nobody_waits_for_it() {
    let dir = folder();
    let (gate, journal, arrived) = cold(dir.path());
    assert!(is_away(&journal, 7) && is_away(&journal, 7));
    gate.until(|state| state.waiting == 1);
    assert!(is_away(&journal, 250) && is_away(&journal, 7));
    gate.open();
    for index in (7..480).chain([3, 100, 470]) {
        let read = fetch_at_last(&journal, &arrived, index);
        assert!(read.unwrap() == payload(index), "frame {index}");
    }
    assert_eq!(gate.waited(), ["journal-reader"]);
    // Once it walked, it went on through what was read ahead, and mostly without being told to come later.
    let stats = journal.stats();
    assert!(stats.read_ahead_bytes > stats.read_file_bytes, "{stats:?}");
}

#[test]
fn what_the_disk_does_not_give_is_an_error_of_its_reader() {
    let dir = folder();
    let (gate, journal, arrived) = cold(dir.path());
    gate.change(|state| (state.shut, state.fails) = (false, true));
    for index in 7..30 {
        let failed = fetch_at_last(&journal, &arrived, index);
        assert!(matches!(failed, Err(ReadError::Io(_))), "frame {index}");
    }
    gate.change(|state| state.fails = false);
    for index in 7..30 {
        let read = fetch_at_last(&journal, &arrived, index);
        assert!(read.unwrap() == payload(index), "frame {index}");
    }
}

/// The thread stopped at it, and each record of its chunk was waited for by who came to it, and had the chunk read anew.
#[test]
fn a_bad_sector_costs_the_records_it_lies_in_and_nobody_waits_for_the_others() {
    let dir = folder();
    let (gate, journal, arrived) = cold(dir.path());
    let bad = 75 * BLOCK;
    gate.change(|state| (state.shut, state.bad) = (false, Some(bad)));
    let mut lost = 0;
    for index in 2..100 {
        match fetch_at_last(&journal, &arrived, index) {
            Err(ReadError::Io(_)) => lost += 1,
            read => assert!(read.unwrap() == payload(index), "frame {index}"),
        }
    }
    assert!((1..=2).contains(&lost), "{lost}");
    assert_eq!(gate.waited(), ["journal-reader"]);
    gate.change(|state| assert!(state.bad_reads < 10, "{}", state.bad_reads));
}

/// Who served others waited for each page that was gone.
#[test]
fn a_chunk_that_is_there_in_part_is_read_for_those_who_must_not_wait() {
    let dir = folder();
    let (gate, journal, arrived) = cold(dir.path());
    gate.change(|state| (state.shut, state.sample_lies) = (false, true));
    for index in 2..480 {
        let read = fetch_at_last(&journal, &arrived, index);
        assert!(read.unwrap() == payload(index), "frame {index}");
    }
    assert_eq!(gate.waited(), ["journal-reader"]);
}

/// What had come once was read without a second thought.
#[test]
fn what_the_system_takes_back_is_asked_for_again() {
    let dir = folder();
    let (gate, journal, arrived) = cold(dir.path());
    gate.change(|state| (state.shut, state.is_cold) = (false, false));
    let walk = |range: std::ops::Range<u64>| {
        for index in range {
            let read = fetch_at_last(&journal, &arrived, index);
            assert!(read.unwrap() == payload(index), "frame {index}");
        }
    };
    let begun = Instant::now();
    while journal.stats().read_ahead_bytes == 0 {
        assert!(begun.elapsed() < PATIENCE, "the first chunk is read ahead");
        walk(2..40);
    }
    walk(40..200);
    gate.shut();
    // By a jump first, then by a walk.
    let away: Vec<u64> = (15..35).filter(|index| is_away(&journal, *index)).collect();
    gate.open();
    assert_eq!(away, (15..35).collect::<Vec<_>>());
    walk(15..200);
    assert_eq!(gate.waited(), ["journal-reader"]);
}

#[test]
fn where_nobody_can_tell_what_is_there_all_is_asked_for_and_nothing_is_given_up() {
    let dir = folder();
    let (gate, journal, arrived) = cold(dir.path());
    gate.change(|state| (state.shut, state.blind) = (false, true));
    for index in (2..480).chain([3, 100, 470]) {
        let read = fetch_at_last(&journal, &arrived, index);
        assert!(read.unwrap() == payload(index), "frame {index}");
    }
    assert_eq!(gate.waited(), ["journal-reader"]);
    gate.change(|state| assert_eq!(state.uncached, 0));
    let stats = journal.stats();
    assert!(stats.read_ahead_bytes > stats.read_file_bytes, "{stats:?}");
}

/// Whoever waited for it waited for ever.
#[test]
fn when_the_thread_that_reads_panics_everybody_waits_for_the_disk_themselves() {
    let dir = folder();
    let (gate, journal, arrived) = cold(dir.path());
    gate.change(|state| (state.shut, state.panics) = (false, true));
    for index in 7..100 {
        let read = fetch_at_last(&journal, &arrived, index);
        assert!(read.unwrap() == payload(index), "frame {index}");
    }
}

#[test]
fn a_segment_that_is_being_read_for_somebody_is_not_used_again_before() {
    let dir = folder();
    let (gate, journal, arrived) = cold(dir.path());
    assert!(is_away(&journal, 7));
    gate.until(|state| state.waiting == 1);
    let through = LogIndex(495);
    let id = FrameId {
        term: Term(1),
        index: through,
    };
    wait(|done| journal.purge(id, done));
    let dead = [(Position(0), place(490))];
    let released = std::thread::scope(|scope| {
        // What keeps the files reads the header of one; it may wait.
        let released =
            scope.spawn(|| wait(|done| journal.give_back(&dead, through, done).map(drop)));
        gate.open();
        released.join()
    });
    released.unwrap();
    append(&journal, 500..900);
    let gone = fetch_at_last(&journal, &arrived, 7);
    assert!(matches!(gone, Err(ReadError::GivenBack(_))));
    for index in 496..880 {
        let read = fetch_at_last(&journal, &arrived, index);
        assert!(read.unwrap() == payload(index), "frame {index}");
    }
}

#[test]
fn a_journal_ends_while_somebody_waits_for_it_to_read() {
    let dir = folder();
    let (gate, journal, _) = cold(dir.path());
    assert!(is_away(&journal, 7));
    gate.until(|state| state.waiting == 1);
    gate.open();
    drop(journal);
}

const TAIL: StreamId = StreamId(78);

async fn start(dir: &Path, gate: &Gate) -> Worker {
    let disk = Arc::new(GatedDisk(gate.clone()));
    // Every worker of these tests begins with a simulated disk; this one has another.
    Worker::start_with(&SimDisk::new(1), 1, |setup| {
        (setup.dir, setup.disk) = (dir.to_owned(), disk);
        setup.options.writer = WriterMode::Thread;
    })
    .await
}

#[tokio::test]
async fn who_reads_at_the_end_is_served_while_others_wait_for_history() {
    let (dir, gate) = (folder(), Gate::default());
    let mut worker = start(dir.path(), &gate).await;
    worker.create().await;
    let question = Question::CreateStream {
        stream: TAIL,
        vhost: VhostId(1),
        name: Arc::from("t"),
        limits: StreamLimits::default(),
    };
    assert!(matches!(worker.ask(question).await, Ok(ShardReply::Done)));
    let history: Vec<Vec<u8>> = (0..200u32)
        .map(|number| number.to_le_bytes().repeat(500))
        .collect();
    for body in &history {
        let sequence = worker.publish_to(STREAM, body.clone());
        assert_eq!(worker.published(sequence).await, PublishOutcome::Routed);
    }
    gate.shut();
    worker.attach(1).await;
    gate.until(|state| state.waiting > 0);
    worker.attach_to(TAIL, 2).await;
    for number in 0..20 {
        worker.publish_to(TAIL, vec![number]);
        let mut delivered = false;
        while !delivered {
            match worker.event().await {
                ShardEvent::Published { .. } => {}
                ShardEvent::Deliver { deliveries, .. } => {
                    assert_eq!(deliveries[0].message.body, [number].as_slice());
                    delivered = true;
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }
    gate.open();
    let mut got = Vec::new();
    while got.len() < history.len() {
        if let ShardEvent::Deliver { deliveries, .. } = worker.event().await {
            got.extend(deliveries.into_iter().map(|one| one.message.body.to_vec()));
        }
    }
    assert!(got == history, "all of it, in order");
    assert_eq!(gate.waited(), ["journal-reader"]);
    worker.shard.shutdown_local().await;
}
