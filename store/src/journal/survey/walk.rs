//! The walk over a journal's segments, as recovery makes it, that goes on where that would stop.
//!
//! Owns: what is told of segments, side files and the end. Changes nothing. Read next: [`super::super::recovery`].

mod lists;
mod sides;

use super::Surveyed;
use crate::disk::{Disk, DiskFile};
use crate::finding::{FindingKind, Findings};
use crate::inspect::{ShardFolder, Source};
use crate::journal::error::OpenError;
use crate::journal::evidence::{proof_of_sync, search};
use crate::journal::inventory::{Inventory, SegmentAt};
use crate::journal::manifest::Part;
use crate::journal::meta::Meta;
use crate::journal::recovery::{Expect, Scanned, Told, scan, segment_of};
use crate::journal::released::Released;
use crate::journal::segment::{SegmentHeader, filled, segment_path};
use crate::journal::table::{SideTable, table_path};
use crate::journal::tiered::Tiered;
use crate::tier::{Object, ObjectFile};
use anabranch_core::id::{LogIndex, Position};
use lists::{look_at_meta, look_at_released, look_at_tiered};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file of a segment in the object store, which is not looked at: it has no frames.
#[derive(Debug)]
struct Away;

impl DiskFile for Away {
    fn write_at(&self, _: &mut [IoSlice<'_>], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }
}

/// What a walk gives.
pub(super) struct Found {
    pub(super) segments: Vec<Surveyed>,
    pub(super) tables: Vec<SideTable>,
    pub(super) gaps: Vec<(Position, Position)>,
    pub(super) broken_at: Option<(PathBuf, u64, LogIndex)>,
    pub(super) next_index: LogIndex,
    pub(super) purged: Option<LogIndex>,
}

/// See [`Survey::of`](super::Survey::of).
pub(super) fn walk(
    source: &Source,
    folder: &ShardFolder,
    covered: u64,
    findings: &mut Findings,
) -> Result<Found, OpenError> {
    let (disk, dir) = (&source.disk, &*folder.dir);
    // Read before the segments: what it says was synced is there.
    let meta = look_at_meta(&**disk, dir, findings)?;
    let names = disk.list(dir).map_err(OpenError::io(dir))?;
    let released = look_at_released(&**disk, dir, findings)?;
    let tiered = look_at_tiered(&**disk, dir, findings)?;
    let inventory = Inventory::sorted(names, released, tiered);
    let mut walk = Walk {
        disk,
        dir,
        told: Told {
            segment_bytes: 0,
            trusted_end: covered,
            must_reach: covered,
            lose_synced: false,
            sealing: source.sealing.clone(),
            tier: None,
        },
        meta: meta.unwrap_or_default(),
        released: inventory.released.clone(),
        findings,
        expect: None,
        done: Vec::new(),
        objects: BTreeMap::new(),
        tables: Vec::new(),
        gaps: Vec::new(),
        broken_at: None,
        lost: false,
    };
    let newest = inventory.bases.last().map_or(0, |base| base.0);
    if newest < walk.meta.newest_base && !walk.is_gone(Position(walk.meta.newest_base)) {
        let path = segment_path(dir, Position(walk.meta.newest_base));
        let what = "the newest segment is missing";
        walk.findings
            .add(FindingKind::SegmentMissing, path, None, what);
    }
    let mut opened = Vec::new();
    for base in &inventory.bases {
        let listed = inventory.tiered.as_ref().and_then(|list| list.get(*base));
        opened.extend(match listed {
            Some(Tiered { header, object }) => {
                let identity = inventory.tiered.as_ref().map_or(0, |list| list.identity);
                let tier = source.tier.as_ref();
                let file =
                    tier.map(|tier| Arc::new(tier.look_at(identity, &folder.name, *base, *object)));
                Some(walk.away(*header, *object, file))
            }
            None => walk.open(*base)?,
        });
    }
    walk.all(opened).map_err(OpenError::io(dir))?;
    if walk.expect.is_none() && covered.max(walk.meta.synced_end) > 0 {
        let what = "all segments are missing";
        walk.findings
            .add(FindingKind::SegmentMissing, dir, None, what);
    }
    Ok(Found {
        segments: walk.done,
        tables: walk.tables,
        gaps: walk.gaps,
        broken_at: walk.broken_at,
        next_index: LogIndex(walk.expect.map_or(0, |end| end.index)),
        purged: walk.meta.purged.map(|purged| purged.index),
    })
}

/// The walk under way.
struct Walk<'a> {
    disk: &'a Arc<dyn Disk>,
    dir: &'a Path,
    told: Told,
    meta: Meta,
    released: Option<Released>,
    findings: &'a mut Findings,
    expect: Option<Expect>,
    done: Vec<Surveyed>,
    /// Objects that are to be read.
    objects: BTreeMap<Position, Arc<ObjectFile>>,
    tables: Vec<SideTable>,
    gaps: Vec<(Position, Position)>,
    broken_at: Option<(PathBuf, u64, LogIndex)>,
    /// The end of the segment before could not be read, which was told.
    lost: bool,
}

impl Walk<'_> {
    /// Whether a segment was released by now.
    fn is_gone(&self, base: Position) -> bool {
        let released = Released::read(&**self.disk, self.dir).ok().flatten();
        released.is_some_and(|list| list.contains(base))
    }

    /// One that lies in the object store, and its object when that is to be read.
    fn away(
        &mut self,
        header: SegmentHeader,
        object: Object,
        file: Option<Arc<ObjectFile>>,
    ) -> SegmentAt {
        let Some(file) = file else {
            return SegmentAt::away(self.dir, header, Arc::new(Away), object);
        };
        let mut one = SegmentAt::away(self.dir, header, file.clone(), object);
        one.path = PathBuf::from(file.address());
        self.objects.insert(header.base, file);
        match header.open_key(&self.told.sealing) {
            Ok(key) => one.key = key,
            Err(error) => {
                let what = format!("its frames are sealed: {error}");
                let path = one.path.clone();
                self.findings.add(FindingKind::Sealed, path, Some(0), what);
            }
        }
        one
    }

    fn open(&mut self, base: Position) -> Result<Option<SegmentAt>, OpenError> {
        let opened = SegmentAt::open(&**self.disk, self.dir, base, &self.told.sealing);
        let error = match opened {
            Ok(one) => return Ok(Some(one)),
            Err(OpenError::Key { path, source }) => {
                let what = format!("its frames are sealed: {source}");
                self.findings.add(FindingKind::Sealed, path, Some(0), what);
                let one = SegmentAt::open_unkeyed(&**self.disk, self.dir, base);
                return one.map(Some);
            }
            Err(error) => error,
        };
        if self.is_gone(base) {
            return Ok(None);
        }
        let (kind, path, what) = match error {
            OpenError::Corrupt { path, what, .. } => (FindingKind::SegmentHeader, path, what),
            OpenError::Io { path, source } if source.kind() == io::ErrorKind::NotFound => {
                let what = "the segment is missing".to_owned();
                (FindingKind::SegmentMissing, path, what)
            }
            OpenError::Io { path, source } => (FindingKind::Unreadable, path, source.to_string()),
            other => return Err(other),
        };
        self.findings.add(kind, path, Some(0), what);
        Ok(None)
    }

    fn all(&mut self, opened: Vec<SegmentAt>) -> io::Result<()> {
        let headers: Vec<SegmentHeader> = opened.iter().map(|one| one.header).collect();
        let scanned: Vec<Scanned> = opened.into_iter().map(scanned).collect();
        let mut nth = 0;
        while nth < scanned.len() {
            let next = headers.get(nth + 1);
            let mut this = self.begin(&scanned, nth);
            let table = self.table(&this.header, next);
            let covered = next.is_some_and(|next| next.first_index.0 <= self.told.trusted_end);
            // A start believes it below the checkpoint only, and reads the rest.
            let away = this.segment.object().is_some();
            let believed = table
                .as_ref()
                .filter(|table| covered || away || !table.given_back.is_empty());
            let mut ends = false;
            if let (Some(table), Some(expect)) = (believed, self.expect.as_mut()) {
                expect.skip(table);
                this.segment
                    .set_table(table.frames.clone(), table.given_back.clone());
            } else if this.segment.object().is_some() {
                let path = table_path(self.dir, this.header.base);
                let what =
                    "its segment lies in the object store, and without it nobody knows where";
                self.findings.add(FindingKind::Table, path, None, what);
                self.lost = true;
            } else {
                let part = self.part(&this.header, next.is_none());
                if let (Ok(Some(part)), Some(expect)) = (&part, self.expect.as_mut()) {
                    expect.skip(part);
                    this.segment
                        .set_table(part.frames.clone(), part.given_back.clone());
                }
                ends = self.scan(&mut this, &scanned[nth + 1..], next)?;
                if part.is_err() {
                    self.renew_part(&this);
                }
                if !ends && !self.lost {
                    self.compare(&this, table);
                }
            }
            let part = Part::of(&this.segment, LogIndex(u64::MAX));
            self.done.push(Surveyed {
                object: self.objects.remove(&this.header.base),
                path: this.path,
                header: this.header,
                segment: this.segment,
                part,
            });
            if ends {
                break;
            }
            nth += 1;
        }
        Ok(())
    }

    /// Takes the next segment out; what is missing in front of it is told.
    fn begin(&mut self, scanned: &[Scanned], nth: usize) -> Scanned {
        let this = &scanned[nth];
        let header = this.header;
        let slot = filled(this.file.clone(), this.key.clone());
        let mut segment = segment_of(&header, slot);
        segment.set_object(this.segment.object());
        let this = Scanned {
            path: this.path.clone(),
            file: this.file.clone(),
            header,
            segment,
            key: this.key.clone(),
        };
        let before = Position(self.expect.map_or(0, |expect| expect.position));
        let listed = match &self.released {
            Some(released) => released.covers(before, header.base),
            None => self.expect.is_none(),
        };
        let joins = self.expect.is_some_and(|expect| {
            header.base.0 == expect.position
                && header.first_index.0 == expect.index
                && header.prev_crc == expect.chain
        });
        if !joins && !std::mem::take(&mut self.lost) {
            self.tell_gap(&this, before, listed);
        }
        let from_here = Expect {
            index: header.first_index.0,
            term: header.prev_term.0,
            chain: header.prev_crc,
            position: header.base.0,
            committed: 0,
        };
        match &mut self.expect {
            Some(expect) if !joins => expect.jump(&header),
            Some(_) => {}
            none => *none = Some(from_here),
        }
        this
    }

    /// What lies between two segments that do not join.
    fn tell_gap(&mut self, this: &Scanned, before: Position, listed: bool) {
        let base = this.header.base;
        if base > before {
            self.gaps.push((before, base));
            if !listed && !self.is_gone(before) {
                let what = format!(
                    "segments with positions {before} to {base} are missing in front of this one"
                );
                self.findings
                    .add(FindingKind::SegmentMissing, &this.path, None, what);
            }
        } else if self.expect.is_some() {
            let what =
                format!("it does not go on where the segment before ends, at position {before}");
            self.findings
                .add(FindingKind::Frame, &this.path, None, what);
        }
    }

    /// Believes frames as recovery does. Says whether the journal ends in this segment.
    fn scan(
        &mut self,
        this: &mut Scanned,
        later: &[Scanned],
        next: Option<&SegmentHeader>,
    ) -> io::Result<bool> {
        let Some(expect) = self.expect.as_mut() else {
            return Ok(true);
        };
        loop {
            let stop = scan(this, expect, &self.meta, &self.told)?;
            let joins = next.is_some_and(|next| {
                let goes_on = next.first_index.0 == expect.index && next.prev_crc == expect.chain;
                let released = self.released.as_ref();
                let gap = || {
                    released.is_some_and(|list| list.covers(Position(expect.position), next.base))
                };
                next.base.0 == expect.position && goes_on || next.base.0 > expect.position && gap()
            });
            if joins {
                return Ok(false);
            }
            let reached = expect.index;
            let mut remains = search(std::slice::from_ref(this), expect, &self.meta)?;
            let behind = search(later, expect, &self.meta)?;
            remains.live_frames |= behind.live_frames || !later.is_empty();
            remains.synced_end = remains.synced_end.max(behind.synced_end);
            let Some(proof) = proof_of_sync(&remains, expect, &self.meta, &self.told) else {
                if remains.live_frames {
                    let what =
                        format!("frames from log index {reached} on were not synced as a whole");
                    let at = Some(this.segment.end_offset());
                    self.findings
                        .add(FindingKind::TornTail, &this.path, at, what);
                }
                return Ok(true);
            };
            // A server may have been writing here: what it synced meanwhile is whole now.
            scan(this, expect, &self.meta, &self.told)?;
            if expect.index > reached {
                continue;
            }
            let what = format!("log index {reached}: {stop}, and {proof}");
            let at = this.segment.end_offset();
            self.findings
                .add(FindingKind::Frame, &this.path, Some(at), what);
            let here = (this.path.clone(), at, LogIndex(reached));
            self.broken_at.get_or_insert(here);
            self.lost = true;
            return Ok(later.is_empty());
        }
    }
}

fn scanned(one: SegmentAt) -> Scanned {
    let slot = filled(one.file.clone(), one.key.clone());
    let mut segment = segment_of(&one.header, slot);
    segment.set_object(one.object);
    Scanned {
        segment,
        path: one.path,
        file: one.file,
        header: one.header,
        key: one.key,
    }
}
