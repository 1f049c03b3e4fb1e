//! How long a large journal takes to open: `cargo run --release -p anabranch-store --example opening -- GIB [DIR]`.
//!
//! Makes a journal of that many GiB (20 unless told) whose payloads are zeros and take no room on the disk,
//! opens it as after a fresh checkpoint, with and without its side files, and prints the times. The folder is
//! removed at the end when none was named.

use anabranch_core::id::{LogIndex, Term, UnixMs};
use anabranch_store::disk::real::RealDisk;
use anabranch_store::disk::{Disk, DiskFile, DiskLock};
use anabranch_store::journal::{Frame, FrameKind, Journal, JournalOptions};
use bytes::Bytes;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

const PAYLOAD_BYTES: usize = 256 * 1024;
/// Frames appended between two waits.
const BATCH: u64 = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let gib: u64 = arguments.next().map_or(Ok(20), |text| text.parse())?;
    let named = arguments.next().map(PathBuf::from);
    let made = tempfile::tempdir()?;
    let dir = named.unwrap_or_else(|| made.path().to_owned());
    let last = make(&dir, gib << 30)?;

    let with = open(&dir, last)?;
    for name in RealDisk.list(&dir)? {
        if name.ends_with(".tab") {
            RealDisk.remove(&dir.join(name))?;
        }
    }
    let without = open(&dir, last)?;
    println!("{gib} GiB in {} frames: opened in {with:.3} s", last.0 + 1);
    println!("without side files (as a folder of an earlier server): {without:.3} s");
    Ok(())
}

fn make(dir: &Path, bytes: u64) -> Result<LogIndex, Box<dyn std::error::Error>> {
    let journal = Journal::open(Arc::new(SparseDisk), dir, JournalOptions::default())?;
    let payload = Bytes::from(vec![0; PAYLOAD_BYTES]);
    let frames = bytes / PAYLOAD_BYTES as u64;
    let mut next = 0;
    while next < frames {
        let end = (next + BATCH).min(frames);
        let batch = (next..end).map(|index| Frame {
            term: Term(1),
            index: LogIndex(index),
            committed: LogIndex(index.saturating_sub(1)),
            clock: UnixMs(index),
            kind: FrameKind::Records,
            payload: payload.clone(),
        });
        let (send, done) = channel();
        journal.append(
            batch.collect(),
            Box::new(move |result| drop(send.send(result))),
        )?;
        done.recv()??;
        next = end;
        journal.set_applied(LogIndex(next - 1));
    }
    let (send, done) = channel();
    journal.close(Box::new(move |result| drop(send.send(result))));
    done.recv()??;
    journal.join();
    Ok(LogIndex(frames - 1))
}

/// Seconds that opening takes; the journal is closed again.
fn open(dir: &Path, last: LogIndex) -> Result<f64, Box<dyn std::error::Error>> {
    let options = JournalOptions {
        checkpoint: Some(last),
        ..JournalOptions::default()
    };
    let start = Instant::now();
    let journal = Journal::open(Arc::new(RealDisk), dir, options)?;
    let took = start.elapsed().as_secs_f64();
    let (send, done) = channel();
    journal.close(Box::new(move |result| drop(send.send(result))));
    done.recv()??;
    journal.join();
    Ok(took)
}

/// The machine's file system, but for files of zeros and writes of zeros: they are left as holes.
#[derive(Debug)]
struct SparseDisk;

impl Disk for SparseDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SparseFile(RealDisk.open(path)?)))
    }

    fn create_zeroed(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        std::fs::File::create_new(path)?.set_len(len)?;
        self.open(path)
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
struct SparseFile(Arc<dyn DiskFile>);

impl DiskFile for SparseFile {
    fn write_at(&self, slices: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        for slice in slices {
            let zeros = slice.len() >= PAYLOAD_BYTES && slice.iter().all(|byte| *byte == 0);
            if !zeros {
                self.0.write_at(&mut [IoSlice::new(slice)], offset)?;
            }
            offset += slice.len() as u64;
        }
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}
