//! From one segment to another: the next one, or back to an earlier one by a cut.
//!
//! Owns which segment is being written, having the next one ready in time, and waiting while there is no room
//! for it. Never gathers or syncs a frame. Read next: [`crate::journal::spares`], [`crate::journal::files`].

use super::{Current, Cut, Op, Roll, Writer};
use crate::journal::files::{InstallError, drop_tail, install_segment};
use crate::journal::frame::{HEAD_BYTES, decode_head};
use crate::journal::keeper::Job;
use crate::journal::placement::Sealed;
use crate::journal::segment::{
    SEGMENT_HEADER_BYTES, SegmentFile, SegmentHeader, grown_capacity, salt_of,
};
use crate::journal::table::SideTable;
use anabranch_core::id::{Position, Term};
use std::io;

impl Writer {
    /// Goes on in a new segment, or waits when there is no room for it.
    pub(super) fn roll(&mut self, mut roll: Roll) -> io::Result<()> {
        let spare = match self.spares.take(roll.capacity_bytes) {
            Ok(spare) => spare,
            Err(error) if is_no_room(&error) => {
                self.note_no_space(&error);
                self.stalled.push_back(Op::Roll(roll));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let salt = salt_of(roll.base, self.epoch);
        let mut header = SegmentHeader {
            salt,
            prev_crc: self.chain,
            base: roll.base,
            first_index: roll.first_index,
            prev_term: roll.prev_term,
            capacity_bytes: roll.capacity_bytes,
            key: None,
        };
        let key = header.take_key(&self.sealing)?;
        let sealer = key
            .clone()
            .map(|key| self.sealing.sealer(key))
            .transpose()?;
        let installed = install_segment(&*self.disk, &self.dir, &spare.path, &*spare.file, &header);
        match installed {
            Ok(()) => {}
            Err(InstallError::NoName(error)) if is_no_room(&error) => {
                self.note_no_space(&error);
                self.spares.put_back(spare);
                self.stalled.push_back(Op::Roll(roll));
                return Ok(());
            }
            Err(InstallError::NoName(error) | InstallError::NotDurable(error)) => {
                return Err(error);
            }
        }
        if let Some(sealed) = roll.sealed.take() {
            // Written when this round is over: all of it is synced then.
            if let Some(table) = self.table_of(sealed, roll.prev_term) {
                self.keeper.give(Job::Table(table));
            }
        }
        self.current = Current {
            file: spare.file.clone(),
            salt,
            offset: SEGMENT_HEADER_BYTES,
            capacity_bytes: roll.capacity_bytes,
            sealer,
        };
        self.newest_base = roll.base;
        let _ = roll.slot.set(SegmentFile::new(spare.file, key));
        self.note_room();
        Ok(())
    }

    /// Drops the frames from the cut on, and goes on where what is kept ends.
    pub(super) fn cut(&mut self, mut cut: Cut) -> io::Result<()> {
        let Some(slot) = cut.slot.get().cloned() else {
            return Err(io::Error::other(
                "a cut names a segment that was never made",
            ));
        };
        let file = slot.disk_file().clone();
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        file.read_at(&mut header, 0)?;
        let header = SegmentHeader::decode(&header)
            .ok_or_else(|| io::Error::other("segment header unreadable"))?;
        if self.packer.compresses() {
            cut.find_end(&*file, &header)?;
        }
        let key = slot.key().cloned();
        let sealer = key.map(|key| self.sealing.sealer(key)).transpose()?;
        // The record of the cut comes first: from here on a scan refuses the dropped frames.
        self.end_index = cut.meta.cut_from;
        self.epoch = cut.meta.epoch;
        self.newest_base = Position(cut.meta.newest_base);
        self.write_meta(cut.meta)?;
        self.health.set_synced_end(self.end_index);
        drop_tail(
            &*self.disk,
            &self.dir,
            &*file,
            cut.end_offset,
            cut.capacity_bytes,
            &cut.dropped,
        )?;
        for base in cut.forgotten {
            self.keeper.give(Job::Forget(base));
        }
        self.chain = match cut.last_offset {
            None => header.prev_crc,
            Some(offset) => {
                let mut head = [0; HEAD_BYTES];
                file.read_at(&mut head, offset)?;
                decode_head(&head).map_err(io::Error::other)?.crc
            }
        };
        self.current = Current {
            file,
            salt: header.salt,
            offset: cut.end_offset,
            capacity_bytes: cut.capacity_bytes,
            sealer,
        };
        Ok(())
    }

    /// The side file of the current segment, which ends here; none when it was cut meanwhile.
    fn table_of(&self, mut sealed: Sealed, last_term: Term) -> Option<SideTable> {
        if self.packer.compresses() {
            sealed.frames = self.shared().settled(&sealed)?;
        }
        Some(SideTable {
            salt: self.current.salt,
            chain: self.chain,
            base: sealed.base,
            first_index: sealed.first_index,
            last_term,
            committed: sealed.committed,
            capacity_bytes: sealed.capacity_bytes,
            frames: sealed.frames,
            epoch: self.epoch,
            given_back: Vec::new(),
        })
    }

    /// Has the next segment ready before it is needed: the wait for its zeros is not in the way of
    /// a confirm. Early, for a fast publisher fills a segment in the time that it takes to make one;
    /// late when the disk is nearly full.
    pub(super) fn prepare_next(&mut self) {
        let early = if self.health.tight() {
            self.current.capacity_bytes / 2
        } else {
            self.current.capacity_bytes / 8
        };
        if self.current.offset <= early && !self.health.no_space() {
            return;
        }
        let len = grown_capacity(self.current.capacity_bytes, self.segment_bytes);
        match self.spares.prepare(len) {
            Ok(true) if self.stalled.is_empty() => self.note_room(),
            Ok(_) => {}
            Err(error) => self.note_no_space(&error),
        }
    }

    fn note_no_space(&mut self, error: &io::Error) {
        if !self.health.set_no_space(true) {
            tracing::warn!(dir = %self.dir.display(), %error, "no room for the next segment: publishing stops until there is");
        }
    }

    fn note_room(&mut self) {
        if self.health.set_no_space(false) {
            tracing::info!(dir = %self.dir.display(), "there is room for the next segment again");
        }
    }
}

fn is_no_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
