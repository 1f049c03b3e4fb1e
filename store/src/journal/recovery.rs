//! Reading a journal back: which frames are believed, what is a torn tail, what is corruption.
//!
//! Owns: the rule. The next frame is believed only if salt, epoch, index (+1), term (not lower),
//! chain and checksums all match. Where that ends, everything after is a torn tail (or an old life
//! of the file) and is cut, **unless** something proves that a frame from there on was once synced:
//! a later whole frame that says so (its `synced` field), the meta file, or the checkpoint. Then it
//! is corruption: nothing is changed and the journal is not opened. (A later whole frame alone
//! proves nothing: a crash keeps any sectors of a batch that was never synced. For the same reason
//! a frame's `committed` proves nothing about this replica's disk: a quorum of others may have
//! committed what was never synced here.)
//!
//! A sealed segment below the checkpoint is not read when its side file is sound and joins the
//! segment behind it, nor is the part of the newest that its side file tells of: opening takes a look at each
//! file, and reads what follows the checkpoint. What is broken below it is met by who reads it. Read
//! next: [`super::inventory`] (the files), [`super::frame`], [`super::table`].

use super::error::OpenError;
use super::evidence::{is_cut, proof_of_sync, search};
use super::files::{drop_tail, install_segment};
use super::frame::{FrameFault, HEAD_BYTES, Head, decode_head};
use super::inventory::{Inventory, SegmentAt, corrupt};
use super::meta::{FrameId, Meta, MetaFile};
use super::released::Released;
use super::room::Punch;
use super::segment::{
    FileSlot, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, filled, first_capacity, salt_of,
    segment_path,
};
use super::table::{SideTable, read_table};
use super::tiered::Catalogue;
use super::tiering::TierPlace;
use super::window::Window;
use super::writer::Current;
use crate::disk::{Disk, DiskFile};
use crate::seal::{DataKey, Sealing};
use crate::tier::Folder;
use anabranch_core::id::{LogIndex, Position, Term};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What was found.
pub(crate) struct Recovered {
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) meta: Meta,
    pub(crate) meta_file: MetaFile,
    pub(crate) current: Current,
    pub(crate) chain: u32,
    pub(crate) last: Option<FrameId>,
    pub(crate) next_index: LogIndex,
    pub(crate) end: Position,
    pub(crate) committed: LogIndex,
    /// Bytes of a torn tail were dropped.
    pub(crate) cut: bool,
    /// Side files that sealed segments lack, or whose were of no use.
    pub(crate) missing_tables: Vec<SideTable>,
    /// What was released so far.
    pub(crate) released: Released,
    /// What lies in the object store; `None` where there never was one.
    pub(crate) catalogue: Option<Catalogue>,
    /// This journal's part of it.
    pub(crate) folder: Option<Arc<Folder>>,
    /// Segments of which parts were given back, should a crash have come before the holes.
    pub(crate) unfinished: Vec<Punch>,
}

/// What recovery is told.
pub(crate) struct Told {
    pub(crate) segment_bytes: u64,
    /// Payloads of frames below this log index are not read again: a checkpoint covers them. Their
    /// heads still are, with the chain.
    pub(crate) trusted_end: u64,
    /// Frames below this log index are known to have been synced (a checkpoint says so).
    pub(crate) must_reach: u64,
    /// What sealed segments are opened with, and new ones sealed.
    pub(crate) sealing: Sealing,
    /// Where segments may lie beside the disk.
    pub(crate) tier: Option<TierPlace>,
    /// Somebody who mends the journal takes it that frames which were synced are lost from the first one on that is
    /// not sound, but for those that must be there.
    pub(crate) lose_synced: bool,
}

/// Where the scan stands: what the next frame must match.
#[derive(Clone, Copy)]
pub(super) struct Expect {
    pub(super) index: u64,
    pub(super) term: u64,
    pub(super) chain: u32,
    pub(super) position: u64,
    pub(super) committed: u64,
}

impl Expect {
    /// Goes on with a segment before which others were released.
    pub(super) fn jump(&mut self, header: &SegmentHeader) {
        self.index = header.first_index.0;
        self.term = self.term.max(header.prev_term.0);
        self.chain = header.prev_crc;
        self.position = header.base.0;
    }

    /// Goes on behind a segment whose side file is believed.
    pub(super) fn skip(&mut self, table: &SideTable) {
        self.index += table.frames.places.len() as u64;
        self.term = table.last_term.0;
        self.chain = table.chain;
        self.position += table.frames.len;
        self.committed = self.committed.max(table.committed.0);
    }

    /// The side file of a segment that was just read to its end.
    pub(super) fn table_of(&self, read: &Scanned, meta: &Meta) -> SideTable {
        SideTable {
            salt: read.header.salt,
            chain: self.chain,
            base: read.header.base,
            first_index: read.header.first_index,
            last_term: Term(self.term),
            committed: LogIndex(self.committed),
            capacity_bytes: read.header.capacity_bytes,
            frames: read.segment.table().clone(),
            epoch: meta.epoch,
            given_back: Vec::new(),
        }
    }
}

/// One segment file under scan.
pub(super) struct Scanned {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) header: SegmentHeader,
    pub(super) segment: Segment,
    pub(super) key: Option<Arc<DataKey>>,
}

/// Opens what lies in `dir`, creating the first segment when there is none.
pub(crate) fn recover(disk: &dyn Disk, dir: &Path, told: &Told) -> Result<Recovered, OpenError> {
    let inventory = Inventory::of(disk, dir)?;
    let folder = inventory.folder(told.tier.as_ref(), dir)?;
    let bases = &inventory.bases;
    if !inventory.has_meta() && !bases.is_empty() {
        return Err(corrupt(
            dir.join(super::meta::META_NAME),
            0,
            0,
            "the file with the vote is missing",
        ));
    }
    let meta_path = dir.join(super::meta::META_NAME);
    let opened = MetaFile::open(disk, dir).map_err(OpenError::io(&meta_path))?;
    let Some((mut meta_file, mut meta)) = opened else {
        return Err(corrupt(
            meta_path,
            0,
            0,
            "neither copy of the vote is readable",
        ));
    };
    if bases.is_empty() {
        let reached = meta.synced_end.max(told.must_reach);
        if reached > 0 {
            return Err(corrupt(
                dir.to_owned(),
                0,
                0,
                &format!("all segments are missing; {reached} frames were synced"),
            ));
        }
        inventory.remove_leftovers(disk, dir)?;
        let mut first = create_first(disk, dir, told, meta_file, meta)?;
        first.catalogue = inventory.tiered;
        first.folder = folder;
        return Ok(first);
    }

    let newest = bases.iter().map(|base| base.0).max().unwrap_or(0);
    if newest < meta.newest_base {
        let path = segment_path(dir, Position(meta.newest_base));
        return Err(corrupt(
            path,
            0,
            meta.newest_base,
            "the newest segment is missing",
        ));
    }

    let mut expect: Option<Expect> = None;
    let mut scanned: Vec<Scanned> = Vec::new();
    let mut missing_tables = Vec::new();
    let mut fault: Option<(usize, FrameFault)> = None;
    let found = inventory.segments(disk, dir, &told.sealing, folder.as_deref())?;
    let headers: Vec<SegmentHeader> = found.iter().map(|one| one.header).collect();
    for (nth, at) in found.into_iter().enumerate() {
        let SegmentAt {
            path,
            file,
            header,
            key,
            object,
        } = at;
        let first = expect.get_or_insert(Expect {
            index: header.first_index.0,
            term: header.prev_term.0,
            chain: header.prev_crc,
            position: header.base.0,
            committed: 0,
        });
        // Only what was purged is ever released, and what was released is listed (but for what a server
        // before there was a list released: always the first).
        let before = Position(if nth == 0 { 0 } else { first.position });
        let listed = match &inventory.released {
            Some(released) => released.covers(before, header.base),
            None => nth == 0,
        };
        let released_end = meta.purged.map_or(0, |purged| purged.index.0 + 1);
        let released = listed && header.first_index.0 <= released_end;
        if nth == 0 && header.base > before && !released {
            let what = "the segments before this one are missing";
            return Err(corrupt(path, released_end, 0, what));
        }
        let gap = nth > 0 && header.base > before && header.first_index.0 > first.index;
        if gap && released && fault.is_none() {
            first.jump(&header);
        }
        let joins = header.base.0 == first.position
            && header.first_index.0 == first.index
            && header.prev_crc == first.chain;
        let slot = filled(file.clone(), key.clone());
        let mut segment = segment_of(&header, slot);
        segment.set_object(object);
        scanned.push(Scanned {
            path,
            file,
            header,
            segment,
            key,
        });
        if nth > 0 && !joins {
            // The segment before ends earlier than this one expects.
            fault.get_or_insert((nth - 1, FrameFault::NoMagic));
            continue;
        }
        if fault.is_some() {
            continue;
        }
        let this = &mut scanned[nth];
        let next = headers.get(nth + 1);
        let covered = next.is_some_and(|next| next.first_index.0 <= told.trusted_end);
        let joins_next = |table: &SideTable| {
            next.is_some_and(|next| {
                let released = inventory.released.as_ref();
                // Between it and the next one segments may have been released.
                table.joins(next)
                    || released.is_some_and(|list| list.covers(table.end(), next.base))
            })
        };
        let fits = |table: &SideTable| table.belongs_to(&header) && joins_next(table);
        let there = inventory.has_tables(header.base);
        let table = (covered && there != [false; 2])
            .then(|| read_table(disk, dir, header.base, fits))
            .flatten();
        if let Some((table, is_twin)) = table {
            first.skip(&table);
            this.segment
                .set_table(table.frames.clone(), table.given_back.clone());
            if is_twin || there != [true; 2] {
                missing_tables.push(table);
            }
            continue;
        }
        if object.is_some() {
            let what = "it lies in the object store, and its side file and the twin of that, which say where its \
                        frames lie, are missing or damaged, or no checkpoint covers it";
            return Err(corrupt(
                this.path.clone(),
                first.index,
                first.position,
                what,
            ));
        }
        let is_part = |table: &SideTable| table.is_part_of(&header, told.trusted_end, &meta);
        let part = (there != [false; 2]).then(|| read_table(disk, dir, header.base, is_part));
        if let Some((part, _)) = part.flatten() {
            first.skip(&part);
            this.segment.set_table(part.frames, part.given_back);
        }
        let stop = scan(this, first, &meta, told).map_err(OpenError::io(&this.path))?;
        match next {
            None => fault = Some((nth, stop)),
            Some(_) => missing_tables.push(first.table_of(this, &meta)),
        }
    }
    let Some(expect) = expect else {
        return Err(corrupt(dir.to_owned(), 0, 0, "no segment could be read"));
    };
    let (last_nth, fault) = fault.unwrap_or((scanned.len() - 1, FrameFault::NoMagic));

    let found = search(&scanned[last_nth..], &expect, &meta).map_err(OpenError::io(dir))?;
    let purged_end = meta.purged.map_or(0, |purged| purged.index.0 + 1);
    let may_lose = told.lose_synced && told.must_reach.max(purged_end) <= expect.index;
    if let Some(proof) = proof_of_sync(&found, &expect, &meta, told)
        && !may_lose
    {
        let what = format!("{fault}, and {proof}");
        return Err(corrupt(
            scanned[last_nth].path.clone(),
            expect.index,
            expect.position,
            &what,
        ));
    }
    // Nothing is changed before this: a corrupt journal is left as it is.
    inventory.remove_leftovers(disk, dir)?;
    let keep = &scanned[last_nth];
    let cut = found.live_frames || scanned.len() > last_nth + 1;
    if cut {
        tracing::warn!(segment = %keep.path.display(), index = expect.index, "cutting a torn tail");
        meta.epoch += 1;
        meta.cut_from = expect.index;
        meta.synced_end = expect.index;
        meta.newest_base = keep.header.base.0;
        meta_file.write(&meta).map_err(OpenError::io(&meta_path))?;
        let dropped: Vec<PathBuf> = scanned[last_nth + 1..]
            .iter()
            .map(|one| one.path.clone())
            .collect();
        let end_offset = keep.segment.end_offset();
        drop_tail(
            disk,
            dir,
            &*keep.file,
            end_offset,
            keep.header.capacity_bytes,
            &dropped,
        )
        .map_err(OpenError::io(&keep.path))?;
    }
    // What was read may be in the page cache only (the process ended, not the machine): it counts as
    // synced from here on, so it must be. A checkpoint was written after what it covers was synced.
    for one in &scanned[..=last_nth] {
        if one.segment.end_index().0 > told.trusted_end {
            one.file.sync().map_err(OpenError::io(&one.path))?;
        }
    }

    missing_tables.retain(|table: &SideTable| table.base < keep.header.base);
    let sealer = keep.key.clone().map(|key| told.sealing.sealer(key));
    let current = Current {
        file: keep.file.clone(),
        salt: keep.header.salt,
        offset: keep.segment.end_offset(),
        capacity_bytes: keep.header.capacity_bytes,
        sealer: sealer.transpose().map_err(OpenError::io(&keep.path))?,
    };
    scanned.truncate(last_nth + 1);
    let last = expect.index.checked_sub(1).map(|index| FrameId {
        term: Term(expect.term),
        index: LogIndex(index),
    });
    let mut released = inventory.released.clone().unwrap_or_default();
    if let Some(first) = scanned
        .first()
        .filter(|first| first.header.base > Position(0))
    {
        released.add(Position(0), first.header.base);
    }
    let outdated = !told
        .sealing
        .is_current(scanned[last_nth].header.key.as_ref());
    let mut segments: VecDeque<Segment> = scanned.into_iter().map(|one| one.segment).collect();
    if let Some(newest) = segments.back_mut() {
        newest.outdated = outdated;
    }
    Ok(Recovered {
        unfinished: segments.iter_mut().filter_map(Punch::unfinished).collect(),
        catalogue: inventory.tiered,
        folder,
        segments,
        released,
        meta,
        meta_file,
        current,
        chain: expect.chain,
        last,
        next_index: LogIndex(expect.index),
        end: Position(expect.position),
        committed: LogIndex(expect.committed),
        cut,
        missing_tables,
    })
}

fn create_first(
    disk: &dyn Disk,
    dir: &Path,
    told: &Told,
    meta_file: MetaFile,
    meta: Meta,
) -> Result<Recovered, OpenError> {
    let mut header = SegmentHeader {
        salt: salt_of(Position(0), meta.epoch),
        prev_crc: 0,
        base: Position(0),
        first_index: LogIndex(0),
        prev_term: Term(0),
        capacity_bytes: first_capacity(told.segment_bytes),
        key: None,
    };
    let sealing = &told.sealing;
    let key = header.take_key(sealing).map_err(OpenError::io(dir))?;
    let sealer = key.clone().map(|key| sealing.sealer(key));
    // Where there is a list, what is missing and not in it was lost.
    Released::default()
        .write(disk, dir)
        .map_err(OpenError::io(dir))?;
    let unfinished = dir.join("spare-0.tmp");
    let file = disk
        .create_zeroed(&unfinished, header.capacity_bytes)
        .map_err(OpenError::io(&unfinished))?;
    install_segment(disk, dir, &unfinished, &*file, &header)
        .map_err(io::Error::from)
        .map_err(OpenError::io(dir))?;
    let slot = filled(file.clone(), key);
    let current = Current {
        file,
        salt: header.salt,
        offset: SEGMENT_HEADER_BYTES,
        capacity_bytes: header.capacity_bytes,
        sealer: sealer.transpose().map_err(OpenError::io(dir))?,
    };
    Ok(Recovered {
        segments: VecDeque::from([segment_of(&header, slot)]),
        meta,
        meta_file,
        current,
        chain: 0,
        last: None,
        next_index: LogIndex(0),
        end: Position(0),
        committed: LogIndex(0),
        cut: false,
        missing_tables: Vec::new(),
        released: Released::default(),
        catalogue: None,
        folder: None,
        unfinished: Vec::new(),
    })
}

pub(super) fn segment_of(header: &SegmentHeader, slot: FileSlot) -> Segment {
    let SegmentHeader {
        base,
        first_index,
        capacity_bytes,
        key,
        ..
    } = *header;
    Segment::new(base, first_index, capacity_bytes, slot, key.is_some())
}

/// Believes frames of one segment until one does not match; says why it stopped.
pub(super) fn scan(
    this: &mut Scanned,
    expect: &mut Expect,
    meta: &Meta,
    told: &Told,
) -> io::Result<FrameFault> {
    let mut window = Window::new(&*this.file, this.header.capacity_bytes);
    loop {
        let offset = this.segment.end_offset();
        let Some(bytes) = window.get(offset, HEAD_BYTES)? else {
            return Ok(FrameFault::NoMagic);
        };
        let head = match decode_head(bytes) {
            Ok(head) => head,
            Err(fault) => return Ok(fault),
        };
        if !follows(&head, this.header.salt, expect)
            || is_cut(&head, meta)
            || !this.segment.fits(head.logical_len(), head.stored_len())
        {
            return Ok(FrameFault::NoMagic);
        }
        if head.index.0 >= told.trusted_end {
            let Some(body) = window.get(offset + HEAD_BYTES as u64, head.body_len())? else {
                return Ok(FrameFault::Field);
            };
            if let Err(fault) = head.check_stored(body) {
                return Ok(fault);
            }
        }
        this.segment.push(head.logical_len(), head.stored_len());
        expect.index += 1;
        expect.term = head.term.0;
        expect.chain = head.crc;
        expect.position += head.logical_len();
        expect.committed = expect.committed.max(head.committed.0);
    }
}

fn follows(head: &Head, salt: u32, expect: &Expect) -> bool {
    head.link.salt == salt
        && head.index.0 == expect.index
        && head.term.0 >= expect.term
        && head.link.prev_crc == expect.chain
}
