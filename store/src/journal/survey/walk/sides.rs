//! What the side files of segments say, and what is wrong with them.
//!
//! Owns: which of the two is believed, as a start does, and which are to be made again. Changes nothing. Read next:
//! `journal/table.rs` (what stands in one).

use super::Walk;
use crate::finding::FindingKind;
use crate::journal::keeper::Covered;
use crate::journal::recovery::Scanned;
use crate::journal::segment::SegmentHeader;
use crate::journal::table::{SideTable, look_at_table, table_path, table_paths};
use anabranch_core::id::LogIndex;
use std::io;

impl Walk<'_> {
    /// The side file or its twin, when one is sound and tells of this segment, which must be full.
    pub(super) fn table(
        &mut self,
        header: &SegmentHeader,
        next: Option<&SegmentHeader>,
    ) -> Option<SideTable> {
        let next = next?;
        let [mut first, mut twin] = self.tables(header, next);
        if first != twin {
            // A server may be writing them.
            [first, twin] = self.tables(header, next);
        }
        let [path, twin_path] = table_paths(self.dir, header.base);
        let (kind, missing) = (FindingKind::TableCopy, FindingKind::TableMissing);
        let only_one = || "there is only one of the two".to_owned();
        let (table, kind, copy, what) = match (first, twin) {
            (Ok(table), Ok(same)) if table == same => return Some(table),
            // The first is written first: a server is about to write the other, or will be.
            (Ok(table), Ok(_)) => (table, missing, twin_path, "it is older".to_owned()),
            (Ok(table), Err(Some(what))) => (table, kind, twin_path, what),
            (Ok(table), Err(None)) => (table, missing, twin_path, only_one()),
            (Err(Some(what)), Ok(table)) => (table, kind, path, what),
            (Err(None), Ok(table)) => (table, missing, path, only_one()),
            (Err(None), Err(None)) => {
                let what = "the segment has no side file";
                self.findings.add(missing, path, None, what);
                return None;
            }
            (Err(told), Err(told_of_twin)) => {
                let what = told.or(told_of_twin).unwrap_or_default();
                self.findings.add(FindingKind::Table, path, Some(0), what);
                return None;
            }
        };
        let at = kind.is_defect().then_some(0);
        self.findings.add(kind, copy, at, what);
        self.tables.push(table.clone());
        Some(table)
    }

    /// What the side file and its twin say; or why they are of no use, unless they are just not there.
    fn tables(
        &self,
        header: &SegmentHeader,
        next: &SegmentHeader,
    ) -> [Result<SideTable, Option<String>>; 2] {
        let of_no_use = |what: &str| Err(Some(what.to_owned()));
        table_paths(self.dir, header.base).map(|path| match look_at_table(&**self.disk, &path) {
            Ok(None) => Err(None),
            Ok(Some(table)) if !table.belongs_to(header) => {
                of_no_use("it tells of another life of the segment")
            }
            Ok(Some(table)) => {
                let released = self.released.as_ref();
                let joins = table.joins(next)
                    || released.is_some_and(|list| list.covers(table.end(), next.base))
                    || self.is_gone(table.end());
                // That of a segment that is full now, when the server ended before it could write the one of all of it.
                let is_part = || table.is_part_of(header, self.told.trusted_end, &self.meta);
                match joins {
                    true => Ok(table),
                    false if is_part() => Err(None),
                    false => of_no_use(
                        "the next segment does not go on where it says that this one ends",
                    ),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                of_no_use("its checksums do not match")
            }
            Err(error) => Err(Some(format!("it cannot be read: {error}"))),
        })
    }

    /// What a side file says of the first frames of a segment that was not full when the checkpoint was taken. An error
    /// when one of the newest segment's is rotten and there is none to go by.
    pub(super) fn part(
        &mut self,
        header: &SegmentHeader,
        is_newest: bool,
    ) -> Result<Option<SideTable>, ()> {
        let covered = self.told.trusted_end;
        let paths = table_paths(self.dir, header.base);
        let looked = paths
            .each_ref()
            .map(|path| look_at_table(&**self.disk, path));
        let is_rotten = |one: &io::Result<Option<SideTable>>| matches!(one, Err(error) if error.kind() == io::ErrorKind::InvalidData);
        let rotten = paths.into_iter().zip(looked.each_ref().map(is_rotten));
        let rotten = rotten.filter(|(_, rotten)| *rotten && is_newest);
        let rotten = rotten.map(|(path, _)| path).next();
        let mut sound = looked.into_iter().filter_map(|one| one.ok().flatten());
        let part = sound.find(|table| table.is_part_of(header, covered, &self.meta));
        let Some(path) = rotten else {
            return Ok(part);
        };
        let kind = match part {
            Some(_) => FindingKind::TableCopy,
            None => FindingKind::Table,
        };
        let what = "its checksums do not match";
        self.findings.add(kind, path, Some(0), what);
        self.tables.extend(part.clone());
        part.map(Some).ok_or(())
    }

    /// The side file of the newest segment is to be made again from what was read.
    pub(super) fn renew_part(&mut self, this: &Scanned) {
        let through = self.told.trusted_end.checked_sub(1).map(LogIndex);
        let frames = through.and_then(|through| this.segment.table_through(through));
        let covered = frames.zip(this.segment.file.get());
        let table = covered.map(|(frames, file)| {
            let covered = Covered {
                base: this.header.base,
                file: file.clone(),
                frames,
                epoch: self.meta.epoch,
            };
            covered.table()
        });
        self.tables.extend(table.and_then(Result::ok));
    }

    /// Compares the frames of a segment that was read with its side file, if that is of use.
    pub(super) fn compare(&mut self, this: &Scanned, table: Option<SideTable>) {
        let Some(expect) = &self.expect else { return };
        let read = expect.table_of(this, &self.meta);
        let same = |table: &SideTable| table.frames == read.frames && table.chain == read.chain;
        if table.as_ref().is_some_and(same) {
            return;
        }
        if table.is_some() {
            let path = table_path(self.dir, this.header.base);
            let what = "it says that frames lie elsewhere than they do";
            self.findings.add(FindingKind::Table, path, Some(0), what);
        }
        self.tables.retain(|table| table.base != read.base);
        self.tables.push(read);
    }
}
