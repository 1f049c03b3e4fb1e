//! Reading a journal on a real disk: walks and jumps, and readers who are still there when what
//! they read is given back.
//!
//! The folders lie beneath the build's own, since the system's temporary folder may be one in memory.

use anabranch_core::id::{LogIndex, Position, Term, UnixMs};
use anabranch_store::disk::Disk;
use anabranch_store::disk::block_buf::BlockBufs;
use anabranch_store::disk::real::RealDisk;
use anabranch_store::journal::{
    Completion, Compression, Frame, FrameId, FrameKind, GivenBack, Journal, JournalOptions,
    Packing, ReadError, WriteError,
};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What is read of a file in one go.
const CHUNK: u64 = 2 * 1024 * 1024;
/// A chunk of reading and a bit.
const SEGMENT: u64 = CHUNK + 64 * 1024;
/// Payload bytes of a frame: large enough to be a slice of the mapping, and a record of the small kind in it.
const PAYLOAD: usize = 20_000;
const SMALL: usize = 700;
/// Logical bytes of a frame.
const LOGICAL: u64 = 48 + PAYLOAD as u64;

fn options() -> JournalOptions {
    JournalOptions {
        segment_bytes: SEGMENT,
        tail_bytes: 0,
        ..JournalOptions::default()
    }
}

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn open(dir: &Path) -> Journal {
    Journal::open(Arc::new(RealDisk), dir, options()).unwrap()
}

fn payload(index: u64) -> Bytes {
    let mut payload = vec![index as u8; PAYLOAD];
    for (nth, part) in payload.chunks_exact_mut(8).enumerate() {
        part.copy_from_slice(&(index * 1_000_003 + nth as u64).to_le_bytes());
    }
    payload.into()
}

/// Where the payload of a frame begins.
fn place(index: u64) -> Position {
    Position(index * LOGICAL + 48)
}

fn wait(ask: impl FnOnce(Completion) -> Result<(), WriteError>) -> Result<(), WriteError> {
    let (send, done) = channel();
    ask(Box::new(move |result| drop(send.send(result))))?;
    done.recv().expect("an answer")
}

/// Appends and applies.
fn append(journal: &Journal, indexes: std::ops::Range<u64>) {
    for first in indexes.clone().step_by(20) {
        let frames = (first..indexes.end.min(first + 20)).map(|index| Frame {
            term: Term(1),
            index: LogIndex(index),
            committed: LogIndex(index.saturating_sub(1)),
            clock: UnixMs(index),
            kind: FrameKind::Records,
            payload: payload(index),
        });
        let frames: Vec<Frame> = frames.collect();
        let last = frames.last().unwrap().index;
        wait(|done| journal.append(frames, done)).unwrap();
        journal.set_applied(last);
    }
}

fn give_back(journal: &Journal, dead: &[(Position, Position)], through: u64) -> GivenBack {
    let id = FrameId {
        term: Term(1),
        index: LogIndex(through),
    };
    wait(|done| journal.purge(id, done)).unwrap();
    let mut given = GivenBack::default();
    wait(|done| {
        given = journal.give_back(dead, LogIndex(through), done)?;
        Ok(())
    })
    .unwrap();
    given
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let names = RealDisk.list(dir).unwrap();
    let segments = names.iter().filter(|name| name.ends_with(".seg"));
    segments.map(|name| dir.join(name)).collect()
}

/// Has the system forget the segments, or tells whether all of them are in its cache.
fn uncache(dir: &Path) {
    for path in segments(dir) {
        let file = RealDisk.open(&path).unwrap();
        file.sync().unwrap();
        file.uncache(0, SEGMENT).unwrap();
    }
}

fn walk(journal: &Journal, indexes: std::ops::Range<u64>) {
    for index in indexes {
        let read = journal.read(place(index), PAYLOAD);
        assert_eq!(read.unwrap(), payload(index), "frame {index}");
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn walks_and_jumps_read_what_was_written() {
    let dir = folder();
    let journal = open(dir.path());
    append(&journal, 0..1000);
    assert!(segments(dir.path()).len() >= 9);
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..500 {
        let index = random.random_range(0..999);
        if random.random_bool(0.5) {
            let frame = journal.frame(LogIndex(index)).unwrap();
            assert_eq!(frame.payload, payload(index));
        } else {
            let inside = random.random_range(0..PAYLOAD - SMALL);
            let at = Position(place(index).0 + inside as u64);
            let read = journal.read(at, SMALL).unwrap();
            assert_eq!(read, payload(index)[inside..inside + SMALL]);
        }
    }
    let jumped = journal.stats();
    assert!(jumped.read_file_bytes > 0);
    // One walks by frames, one by records, one by small parts of them.
    for index in 0..999 {
        let frame = journal.frame(LogIndex(index)).unwrap();
        assert_eq!(frame.payload, payload(index));
    }
    walk(&journal, 0..999);
    for index in 0..900 {
        let payload = payload(index);
        for inside in (0..PAYLOAD - SMALL).step_by(SMALL) {
            let at = Position(place(index).0 + inside as u64);
            let read = journal.read_sized(at, 4, |head| {
                assert_eq!(head, &payload[inside..inside + 4]);
                Some(SMALL)
            });
            assert_eq!(read.unwrap(), payload[inside..inside + SMALL]);
        }
    }
    let stats = journal.stats();
    let walked = stats.read_ahead_bytes;
    assert!(walked > 45 * 1024 * 1024, "{stats:?}");
    assert!(
        stats.read_file_bytes - jumped.read_file_bytes < walked / 8,
        "{stats:?}"
    );
    // What was just written is shared with who writes it.
    let before = journal.stats().read_memory_bytes;
    journal.set_applied(LogIndex(999));
    walk(&journal, 999..1000);
    assert_eq!(journal.stats().read_memory_bytes - before, PAYLOAD as u64);
}

#[test]
fn packed_frames_are_walked_through_too() {
    let dir = folder();
    let packed = JournalOptions {
        segment_bytes: SEGMENT / 8,
        packing: Packing {
            compression: Compression::Zstd,
            ..Packing::default()
        },
        ..options()
    };
    let journal = Journal::open(Arc::new(RealDisk), dir.path(), packed).unwrap();
    append(&journal, 0..2000);
    let stats = journal.stats();
    assert!(stats.packed_to < stats.packed_from / 2, "{stats:?}");
    assert!(segments(dir.path()).len() > 3);
    for index in 0..1900 {
        let payload = payload(index);
        assert_eq!(journal.frame(LogIndex(index)).unwrap().payload, payload);
        let at = Position(place(index).0 + 10_000);
        assert_eq!(
            journal.read(at, SMALL).unwrap(),
            payload[10_000..10_000 + SMALL]
        );
    }
    assert!(journal.stats().read_ahead_bytes > stats.packed_to / 2);
}

#[test]
fn what_may_still_be_cut_is_not_held() {
    let dir = folder();
    let journal = open(dir.path());
    append(&journal, 0..1000);
    wait(|done| {
        journal.close(done);
        Ok(())
    })
    .unwrap();
    journal.join();
    drop(journal);
    // Nothing is known to be applied after opening.
    let journal = open(dir.path());
    walk(&journal, 0..600);
    assert_eq!(journal.stats().read_ahead_bytes, 0);
    journal.set_applied(LogIndex(999));
    walk(&journal, 0..600);
    assert!(journal.stats().read_ahead_bytes > 0);
}

#[test]
fn bytes_that_are_held_stay_right_when_their_segments_are_used_again() {
    let dir = folder();
    let journal = open(dir.path());
    append(&journal, 0..1000);
    walk(&journal, 0..300);
    let held: Vec<Bytes> = (0..300)
        .map(|index| journal.read(place(index), PAYLOAD).unwrap())
        .collect();
    let small = journal.read(place(5), SMALL).unwrap();
    // All of it is dead, and other frames come.
    let given = give_back(&journal, &[(Position(0), Position(990 * LOGICAL))], 995);
    assert!(given.segments >= 8, "{given:?}");
    append(&journal, 1000..3000);
    for (index, bytes) in held.iter().enumerate() {
        assert_eq!(bytes, &payload(index as u64), "frame {index}");
    }
    assert_eq!(small, payload(5)[..SMALL]);
    let gone = journal.read(place(5), SMALL);
    assert!(matches!(gone, Err(ReadError::GivenBack(_))), "{gone:?}");
    drop(held);
    walk(&journal, 1000..2999);
}

#[test]
fn a_hole_takes_nothing_from_who_holds_bytes_of_the_segment() {
    let dir = folder();
    let journal = open(dir.path());
    append(&journal, 0..400);
    walk(&journal, 0..60);
    let held = journal.read(place(60), PAYLOAD).unwrap();
    let used = || RealDisk.used_bytes(dir.path()).unwrap();
    let before = used();
    // Of the first segment all but one frame is dead, that one held or not.
    let dead = [
        (Position(0), Position(50 * LOGICAL)),
        (Position(51 * LOGICAL), Position(100 * LOGICAL)),
    ];
    let given = give_back(&journal, &dead, 390);
    assert!(given.segments == 0 && given.bytes > 1_900_000, "{given:?}");
    let told = journal.read(place(60), PAYLOAD);
    assert!(matches!(told, Err(ReadError::GivenBack(_))), "{told:?}");
    assert_eq!(journal.read(place(50), PAYLOAD).unwrap(), payload(50));
    eventually("the room comes back", || used() + 1_500_000 < before);
    assert_eq!(held, payload(60));
    assert_eq!(journal.read(place(50), PAYLOAD).unwrap(), payload(50));
    assert_eq!(journal.frame(LogIndex(50)).unwrap().payload, payload(50));
    walk(&journal, 110..399);
}

#[test]
fn a_file_that_was_cut_short_is_an_error_and_no_signal() {
    let dir = folder();
    let segment = 2 * CHUNK;
    let options = JournalOptions {
        segment_bytes: segment,
        ..options()
    };
    let journal = Journal::open(Arc::new(RealDisk), dir.path(), options).unwrap();
    append(&journal, 0..800);
    let cut = |nth: usize| {
        let path = &segments(dir.path())[nth];
        let file = std::fs::OpenOptions::new().write(true).open(path);
        file.unwrap().set_len(CHUNK).unwrap();
    };
    // Walked into: what is not there was not read ahead, or has come just in time.
    walk(&journal, 0..20);
    assert!(journal.stats().read_ahead_bytes > 0);
    cut(0);
    // Nobody was there yet.
    cut(1);
    let first_of_second = segment / (LOGICAL + 32);
    let mut told = 0;
    for index in 20..first_of_second {
        match journal.read(place(index), PAYLOAD) {
            Err(ReadError::CutShort(_)) => {}
            read => assert_eq!(read.unwrap(), payload(index), "frame {index}"),
        }
    }
    for index in first_of_second + 110..2 * first_of_second {
        match journal.read(place(index), PAYLOAD) {
            Err(ReadError::CutShort(_)) => told += 1,
            other => panic!("frame {index}: {other:?}"),
        }
        let told = journal.frame(LogIndex(index)).unwrap_err();
        assert!(told.to_string().contains("cut short"), "{told}");
    }
    assert!(told > 80);
    walk(&journal, first_of_second..first_of_second + 20);
    walk(&journal, 2 * first_of_second + 2..799);
}

#[test]
fn a_walk_leaves_the_cache_as_it_found_it() {
    let dir = folder();
    let journal = open(dir.path());
    append(&journal, 0..1000);
    let is_cached = |nth: usize| {
        let path = &segments(dir.path())[nth];
        let file = RealDisk.open(path).unwrap();
        file.is_cached(0, SEGMENT / 2) == Some(true)
    };
    // Read by others a moment ago: it stays.
    for path in segments(dir.path()) {
        let file = RealDisk.open(&path).unwrap();
        file.read_at(&mut vec![0; SEGMENT as usize], 0).unwrap();
    }
    walk(&journal, 0..900);
    assert!((0..4).all(is_cached));
    let warm = journal.stats();
    assert!(warm.read_ahead_bytes > 700 * PAYLOAD as u64, "{warm:?}");
    // Nobody's: it does not come there, but for where the walk began and was none yet.
    drop(journal);
    let journal = open(dir.path());
    journal.set_applied(LogIndex(999));
    // What was just read the system does not forget at once.
    eventually("nothing is there", || {
        uncache(dir.path());
        !(0..4).any(is_cached)
    });
    walk(&journal, 0..900);
    assert!(!(1..4).any(is_cached));
    let cold = journal.stats();
    assert!(cold.read_ahead_bytes > 700 * PAYLOAD as u64, "{cold:?}");
    walk(&journal, 0..900);
}

#[test]
fn what_is_read_past_the_cache_does_not_stay_there() {
    let dir = folder();
    let path = dir.path().join("f");
    let file = RealDisk.create_zeroed(&path, 1024 * 1024).unwrap();
    let bytes: Vec<u8> = (0..1024 * 1024u32).map(|at| (at / 7) as u8).collect();
    anabranch_store::disk::write_all_at(&*file, &bytes, 0).unwrap();
    file.sync().unwrap();
    file.uncache(0, 1024 * 1024).unwrap();
    // Its name is another's by now.
    RealDisk.rename(&path, &dir.path().join("g")).unwrap();
    RealDisk.create_zeroed(&path, 8192).unwrap();
    let mut buf = BlockBufs::new(1).get().unwrap();
    let read = file.read_past_cache(&mut buf.blocks()[..303_104], 8192);
    read.unwrap();
    assert_eq!(buf.into_bytes(300_000), bytes[8192..308_192]);
    assert_ne!(file.is_cached(0, 1024 * 1024), Some(true));
    let mut buf = BlockBufs::new(1).get().unwrap();
    let read = file.read_past_cache(&mut buf.blocks()[..8192], 1024 * 1024 - 4096);
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
}
