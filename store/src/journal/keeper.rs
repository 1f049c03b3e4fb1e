//! Work on files that no confirm waits for: side files, and giving room back.
//!
//! Owns: doing it in order, on a thread of its own (in a simulation: at the end of a writer's round), and
//! counting readers out. What is about to go is written down first (in the list of what was released, or in
//! the segment's side file), so a crash anywhere leaves a journal that opens. A failure here is logged and
//! costs room, or time at the next opening; it never stops the journal. Never touches a segment that is
//! being written. Read next: [`super::room`] (what goes), [`super::writer`], which alone gives it work.

use super::files::remove_if_there;
use super::frame::{HEAD_BYTES, decode_head, is_plain};
use super::holes::holes;
use super::released::Released;
use super::room::{GiveBack, Gone, Punch};
use super::segment::{FrameTable, SEGMENT_HEADER_BYTES, SegmentFile, SegmentHeader, segment_path};
use super::spares::{KEPT_MAX, KEPT_WHEN_TIGHT, Shelf};
use super::stats::Health;
use super::table::{SideTable, read_table, table_path, table_paths};
use super::tiered::{Catalogue, Tiered};
use super::writer::Completion;
use crate::disk::Disk;
use crate::tier::Folder;
use anabranch_core::id::Position;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Called when something was written down, or could not be; on the keeper's thread.
pub(crate) type Noted = Box<dyn FnOnce(io::Result<()>) + Send>;

/// One piece of work; pieces are done in the order they were given.
pub(crate) enum Job {
    /// Write the side file of a segment whose frames are all synced.
    Table(SideTable),
    /// Write the side file of the newest segment, of frames that a checkpoint covers.
    Covered(Covered),
    /// Remove the side file of a segment that is gone or is written again.
    Forget(Position),
    /// Give room back.
    GiveBack(GiveBack),
    /// List a segment as one in the object store.
    Tiered(Tiered, Noted),
    /// Nobody reads its file any more who did not before: it goes.
    Moved(Position, Arc<SegmentFile>),
    /// List it no more.
    ObjectGone(Position, Noted),
    /// Say that the work before is done.
    Done(Completion),
}

/// The frames of the newest segment that a checkpoint covers.
pub(crate) struct Covered {
    pub(super) base: Position,
    pub(super) file: Arc<SegmentFile>,
    /// At least one.
    pub(super) frames: FrameTable,
    pub(super) epoch: u32,
}

impl Covered {
    /// What the side file says. The chain, the term and what was committed stand in the head of the last frame.
    pub(super) fn table(self) -> io::Result<SideTable> {
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        self.file.read_at(&mut header, 0)?;
        let header = SegmentHeader::decode(&header).ok_or(io::ErrorKind::InvalidData)?;
        let last = self
            .frames
            .places
            .last()
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut head = [0; HEAD_BYTES];
        self.file.read_at(&mut head, u64::from(last.offset))?;
        let head = decode_head(&head).map_err(io::Error::other)?;
        Ok(SideTable {
            salt: header.salt,
            chain: head.crc,
            base: header.base,
            first_index: header.first_index,
            last_term: head.term,
            committed: head.committed,
            capacity_bytes: header.capacity_bytes,
            frames: self.frames,
            epoch: self.epoch,
            given_back: Vec::new(),
        })
    }
}

/// What the work is done with.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) shelf: Shelf,
    pub(super) health: Arc<Health>,
    /// Length of a segment file that is worth keeping, in bytes.
    pub(super) segment_bytes: u64,
    /// The journal's part of the object store.
    pub(super) folder: Option<Arc<Folder>>,
}

/// How often holes that were put off are tried again, in milliseconds.
const PUT_OFF_MS: u64 = 1000;

/// Does jobs for one journal.
pub(super) struct Keeper {
    waiting: Vec<Job>,
    thread: Option<(Sender<Job>, JoinHandle<()>)>,
    /// Does the work where there is no thread.
    hands: Hands,
}

impl Keeper {
    /// `background`: on a thread of its own, when one can be had.
    pub(super) fn new(place: Place, catalogue: &Catalogue, background: bool) -> Self {
        let hands = |place| Hands::new(place, catalogue.clone());
        let thread = background.then(|| hands(place.clone()).start());
        let no_thread =
            |error: &io::Error| tracing::warn!(%error, "the writer keeps the side files itself");
        Self {
            waiting: Vec::new(),
            thread: thread.and_then(|started| started.inspect_err(no_thread).ok()),
            hands: hands(place),
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

    /// Forgets what was given and not begun: the journal has failed.
    pub(super) fn drop_waiting(&mut self) {
        self.waiting.clear();
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

/// Does the work.
struct Hands {
    place: Place,
    /// Holes that wait for readers, or for the disk.
    put_off: BTreeMap<Position, Punch>,
    /// This file system has no holes.
    no_holes: bool,
    /// What lies in the object store.
    catalogue: Catalogue,
}

impl Hands {
    fn new(place: Place, catalogue: Catalogue) -> Self {
        Self {
            place,
            put_off: BTreeMap::new(),
            no_holes: false,
            catalogue,
        }
    }

    fn start(mut self) -> io::Result<(Sender<Job>, JoinHandle<()>)> {
        let (send, jobs) = channel();
        let named = std::thread::Builder::new().name("journal-keeper".to_owned());
        Ok((send, named.spawn(move || self.serve(&jobs))?))
    }

    fn serve(&mut self, jobs: &Receiver<Job>) {
        loop {
            let job = if self.put_off.is_empty() {
                jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                jobs.recv_timeout(Duration::from_millis(PUT_OFF_MS))
            };
            match job {
                Ok(job) => self.run(job),
                Err(RecvTimeoutError::Timeout) => self.punch_put_off(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn run(&mut self, job: Job) {
        let Place { disk, dir, .. } = &self.place;
        let (done, base) = match job {
            Job::Table(table) => (table.write(&**disk, dir), table.base),
            Job::Covered(covered) => {
                let base = covered.base;
                let table = covered.table();
                (table.and_then(|table| table.write(&**disk, dir)), base)
            }
            Job::Forget(base) => {
                self.put_off.remove(&base);
                (remove_tables(&**disk, dir, base), base)
            }
            Job::GiveBack(work) => return self.give_back(work),
            Job::Tiered(tiered, done) => return done(self.note_tiered(tiered)),
            Job::ObjectGone(base, done) => {
                return done(self.rewrite(|catalogue| catalogue.remove(base)));
            }
            Job::Moved(base, file) => return self.remove_moved(base, file),
            Job::Done(done) => return done(Ok(())),
        };
        if let Err(error) = done {
            let path = table_path(&self.place.dir, base);
            tracing::warn!(path = %path.display(), %error, "a side file was not written or removed");
        }
    }

    fn note_tiered(&mut self, tiered: Tiered) -> io::Result<()> {
        let Place { disk, dir, .. } = &self.place;
        // The frames' places must be here when the frames are not.
        let fits = |table: &SideTable| table.belongs_to(&tiered.header);
        let table = read_table(&**disk, dir, tiered.header.base, fits);
        let (table, _) = table.ok_or(io::ErrorKind::InvalidData)?;
        table.write(&**disk, dir)?;
        self.rewrite(|catalogue| catalogue.add(tiered))
    }

    fn rewrite(&mut self, change: impl FnOnce(&mut Catalogue)) -> io::Result<()> {
        let mut next = self.catalogue.clone();
        change(&mut next);
        next.write(&*self.place.disk, &self.place.dir)?;
        self.catalogue = next;
        Ok(())
    }

    fn remove_moved(&mut self, base: Position, file: Arc<SegmentFile>) {
        // The file may be another segment's soon.
        self.put_off.remove(&base);
        let kept_max = self.kept_max();
        let Place {
            disk,
            dir,
            shelf,
            segment_bytes,
            ..
        } = &self.place;
        let path = segment_path(dir, base);
        let removed = match Arc::strong_count(&file) {
            1 => shelf.recycle(
                &**disk,
                dir,
                &path,
                file.disk_file(),
                *segment_bytes,
                kept_max,
            ),
            _ => disk.remove(&path),
        };
        if let Err(error) = removed.and_then(|()| disk.sync_dir(dir)) {
            tracing::warn!(path = %path.display(), %error, "the file of a segment that has moved is removed at the next start");
        }
    }

    /// Files that are kept to be used again.
    fn kept_max(&self) -> usize {
        match self.place.health.tight() {
            true => KEPT_WHEN_TIGHT,
            false => KEPT_MAX,
        }
    }

    fn give_back(&mut self, work: GiveBack) {
        if let Err(error) = self.release(work.released, work.segments) {
            let dir = self.place.dir.display();
            tracing::warn!(%dir, %error, "segments in which nothing lives were not released");
        }
        self.punch_put_off();
        for punch in work.punches {
            self.punch(punch);
        }
    }

    /// Lists the segments as released, then deletes their files or keeps them to be used again.
    fn release(&mut self, list: Option<Released>, segments: Vec<Gone>) -> io::Result<()> {
        let kept_max = self.kept_max();
        let Place {
            disk,
            dir,
            shelf,
            segment_bytes,
            folder,
            ..
        } = &self.place;
        if let Some(list) = list {
            list.write(&**disk, dir)?;
        }
        shelf.keep(&**disk, kept_max)?;
        let any = !segments.is_empty();
        for gone in segments {
            let Gone {
                base,
                file,
                is_tiered,
            } = gone;
            self.put_off.remove(&base);
            if is_tiered {
                remove_tables(&**disk, dir, base)?;
                if let Some(folder) = folder {
                    folder.doom(base);
                }
                continue;
            }
            let path = segment_path(dir, base);
            // Nobody can have begun to read it since it left the journal's memory.
            let unread = file.filter(|file| Arc::strong_count(file) == 1);
            match unread {
                Some(file) => {
                    let file = file.disk_file();
                    shelf.recycle(&**disk, dir, &path, file, *segment_bytes, kept_max)?;
                }
                None => disk.remove(&path)?,
            }
            remove_tables(&**disk, dir, base)?;
        }
        if any { disk.sync_dir(dir) } else { Ok(()) }
    }

    fn punch_put_off(&mut self) {
        for (_, punch) in std::mem::take(&mut self.put_off) {
            self.punch(punch);
        }
    }

    /// Punches the holes of a segment, or puts that off.
    fn punch(&mut self, mut punch: Punch) {
        if self.no_holes {
            return;
        }
        if let Some(before) = self.put_off.remove(&punch.base) {
            punch.readers.extend(before.readers);
        }
        match self.try_punch(&punch) {
            Ok(true) => {}
            Ok(false) => {
                self.put_off.insert(punch.base, punch);
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let dir = self.place.dir.display();
                tracing::warn!(%dir, "this file system has no holes: room comes back by whole segments only");
                self.no_holes = true;
            }
            Err(error) => {
                let path = segment_path(&self.place.dir, punch.base);
                tracing::warn!(path = %path.display(), %error, "holes were not punched; it is tried again");
                self.put_off.insert(punch.base, punch);
            }
        }
    }

    /// Writes down what is given back, then punches; `false` while somebody reads.
    fn try_punch(&self, punch: &Punch) -> io::Result<bool> {
        let Place { disk, dir, .. } = &self.place;
        let Some(file) = punch.readers.first().map(|file| file.disk_file()) else {
            return Ok(true);
        };
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        file.read_at(&mut header, 0)?;
        let header = SegmentHeader::decode(&header);
        let fits = |table: &SideTable| header.is_some_and(|header| table.belongs_to(&header));
        let table = read_table(&**disk, dir, punch.base, fits);
        let (mut table, _) = table.ok_or_else(|| io::Error::other("it has no sound side file"))?;
        table.given_back = punch.given_back.clone();
        table.write(&**disk, dir)?;
        if punch.readers.iter().any(|file| Arc::strong_count(file) > 1) {
            return Ok(false);
        }
        let plain = |offset: u64| {
            let mut magic = [0; 4];
            file.read_at(&mut magic, offset).is_ok() && is_plain(&magic)
        };
        for (from, to) in holes(
            &table.frames,
            &table.given_back,
            table.capacity_bytes,
            plain,
        ) {
            file.punch(from, to - from)?;
        }
        Ok(true)
    }
}

/// Removes the side file of a segment, and its twin.
fn remove_tables(disk: &dyn Disk, dir: &Path, base: Position) -> io::Result<()> {
    let mut paths = table_paths(dir, base).into_iter();
    paths.try_for_each(|path| remove_if_there(disk, &path))
}
