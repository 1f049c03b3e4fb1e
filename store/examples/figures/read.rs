//! Catching up, beside reading the same files from front to back by `read` as `cat` does. Cold: the files are not in
//! the system's cache; warm: they are. Cases take turns.

use crate::measure::{Arguments, cpu_us, median};
use anabranch_core::address::Address;
use anabranch_core::id::{Lane, LogIndex, Position, Sequence, StreamId, Term, UnixMs};
use anabranch_core::message::Message;
use anabranch_core::record::{
    Mark, PayloadBuilder, RECORD_HEADER_BYTES, Records, read_message, record_bytes,
};
use anabranch_store::disk::Disk;
use anabranch_store::disk::real::RealDisk;
use anabranch_store::journal::{Frame, FrameKind, Journal, JournalOptions};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

const BODY_BYTES: usize = 1024;
const FRAME_RECORDS: u64 = 128;
/// Bytes that `cat` reads at a time.
const CAT_BYTES: usize = 128 * 1024;

/// Writes about so many bytes, up to where a segment begins: history lies in full ones. Gives the place of each frame's records, counted from its payload.
fn fill(dir: &Path, bytes: u64) -> (LogIndex, Vec<u64>) {
    let journal = Journal::open(Arc::new(RealDisk), dir, JournalOptions::default()).expect("open");
    let mut builder = PayloadBuilder::default();
    let message = Message {
        address: Address(Bytes::from_static(b"plant\x004\x00temperature")),
        body: vec![7; BODY_BYTES].into(),
        ..Message::default()
    };
    for sequence in 0..FRAME_RECORDS {
        let mark = Mark {
            lane: Lane(1),
            sequence: Sequence(1_000_000 + sequence),
        };
        builder.publish(mark, &[StreamId(1)], None, None, &message);
    }
    let payload = builder.take();
    let mut places = Vec::new();
    let mut records = Records::new(&payload, Position(0), true).expect("records");
    loop {
        let place = records.position();
        if records.next().is_none() {
            break;
        }
        places.push(place.0);
    }
    let mut frames = 0;
    let mut segments = usize::MAX;
    while frames * (payload.len() as u64) < bytes || files(dir).len() <= segments {
        if frames * (payload.len() as u64) < bytes {
            segments = files(dir).len();
        }
        let index = frames;
        frames += 1;
        let frame = Frame {
            term: Term(1),
            index: LogIndex(index),
            committed: LogIndex(index.saturating_sub(1)),
            clock: UnixMs(index),
            kind: FrameKind::Records,
            payload: payload.clone(),
        };
        let (send, done) = channel();
        let done_sender = Box::new(move |result| drop(send.send(result)));
        journal.append(vec![frame], done_sender).expect("append");
        done.recv().expect("an answer").expect("synced");
        journal.set_applied(LogIndex(index));
    }
    close(&journal);
    (LogIndex(frames - 1), places)
}

fn open(dir: &Path, last: LogIndex) -> Journal {
    let options = JournalOptions {
        checkpoint: Some(last),
        ..JournalOptions::default()
    };
    Journal::open(Arc::new(RealDisk), dir, options).expect("open")
}

fn close(journal: &Journal) {
    let (send, done) = channel();
    journal.close(Box::new(move |result| drop(send.send(result))));
    done.recv().expect("an answer").expect("closed");
    journal.join();
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let names = RealDisk.list(dir).expect("list");
    let segments = names.iter().filter(|name| name.ends_with(".seg"));
    segments.map(|name| dir.join(name)).collect()
}

/// Has the system forget the files.
fn chill(dir: &Path) {
    for path in files(dir) {
        let file = RealDisk.open(&path).expect("open");
        file.sync().expect("sync");
        file.uncache(0, file.len().expect("length"))
            .expect("advice");
    }
}

/// Each gives the bytes that it read.
#[derive(Clone, Copy)]
enum Way {
    Cat,
    Frames,
    Records,
}

fn read(way: Way, dir: &Path, journal: Option<&Journal>, last: LogIndex, places: &[u64]) -> u64 {
    let mut bytes = 0;
    match (way, journal) {
        (Way::Cat, _) | (_, None) => {
            let mut buffer = vec![0; CAT_BYTES];
            for path in files(dir) {
                let file = RealDisk.open(&path).expect("open");
                let len = file.len().expect("length");
                let mut offset = 0;
                while offset < len {
                    let piece = CAT_BYTES.min((len - offset) as usize);
                    file.read_at(&mut buffer[..piece], offset).expect("read");
                    offset += piece as u64;
                    bytes += piece as u64;
                }
            }
        }
        (Way::Frames, Some(journal)) => {
            for index in 0..=last.0 {
                bytes += journal.frame(LogIndex(index)).expect("frame").logical_len();
            }
        }
        (Way::Records, Some(journal)) => {
            for index in 0..=last.0 {
                let base = journal.payload_position(LogIndex(index)).expect("place");
                for place in places {
                    let at = Position(base.0 + place);
                    let size = |header: &[u8]| record_bytes(header).ok();
                    let record = journal.read_sized(at, RECORD_HEADER_BYTES, size);
                    let record = record.expect("record");
                    bytes += record.len() as u64;
                    read_message(record).expect("sound");
                }
            }
        }
    }
    bytes
}

pub fn run(dir: &Path, arguments: &Arguments) {
    let bytes = arguments.number("mib", 1024.0) as u64 * 1024 * 1024;
    std::fs::create_dir_all(dir).expect("folder");
    let (last, places) = fill(dir, bytes);
    println!(
        "{} frames of {FRAME_RECORDS} records of {BODY_BYTES} B; at least 0.70 of cat",
        last.0 + 1
    );
    // What was just written the system does not forget at once.
    chill(dir);
    read(Way::Cat, dir, None, last, &places);
    for cold in [true, false] {
        let mut ratios = (Vec::new(), Vec::new());
        for round in 0..arguments.number("rounds", 3.0) as usize {
            let mut ways = [
                (Way::Cat, "cat"),
                (Way::Frames, "frames"),
                (Way::Records, "records"),
            ];
            // A disk that rests saves up for bursts: nobody comes after the slowest each time.
            if round % 2 == 1 {
                ways.reverse();
            }
            let mut rates = [0.0; 3];
            for (way, name) in ways {
                // Without its own journal a case would find what another one holds.
                let journal = match way {
                    Way::Cat => None,
                    Way::Frames | Way::Records => Some(open(dir, last)),
                };
                if cold {
                    chill(dir);
                } else {
                    read(Way::Cat, dir, None, last, &places);
                }
                let (start, cpu) = (Instant::now(), cpu_us());
                let bytes = read(way, dir, journal.as_ref(), last, &places) as f64;
                let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_us() - cpu);
                let rate = bytes / seconds / 1e6;
                let stats = journal.as_ref().map(Journal::stats).unwrap_or_default();
                println!(
                    "  {:<5} {name:<8} {rate:>8.0} MB/s  {:>6.3} CPU us/KiB  {:>6.1} MB ahead, {:>6.1} MB by file",
                    if cold { "cold" } else { "warm" },
                    cpu / (bytes / 1024.0),
                    stats.read_ahead_bytes as f64 / 1e6,
                    stats.read_file_bytes as f64 / 1e6,
                );
                rates[way as usize] = rate;
                if let Some(journal) = journal {
                    close(&journal);
                }
            }
            let [cat, frames, records] = rates;
            ratios.0.push(frames / cat);
            ratios.1.push(records / cat);
        }
        println!(
            "  => {}: frames {:.2} of cat, records one by one {:.2}",
            if cold { "cold" } else { "warm" },
            median(&mut ratios.0),
            median(&mut ratios.1)
        );
    }
}
