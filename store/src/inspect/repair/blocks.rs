//! Mending blocks of the index: where a queue's messages lie, from the messages themselves.
//!
//! Owns: reading all records between two positions, and nothing else. Core says which rows they are, and whether that is
//! certain (`core/src/stream/rebuild.rs`); a block of which it is not stays as it is. Read next: [`super`].

use super::{RepairError, StepKind, Work};
use crate::checkpoint::survey::Newest;
use crate::inspect::state::State;
use crate::inspect::{InspectError, ShardKind};
use crate::journal::FrameKind;
use crate::journal::survey::{Lives, Seen, Survey};
use crate::tier::Unreached;
use anabranch_core::id::Position;
use anabranch_core::record::Records;
use anabranch_core::shard::LostRows;
use std::ops::ControlFlow;

impl Work<'_> {
    /// Blocks whose rows the journal still tells.
    pub(super) fn blocks(&mut self) -> Result<(), RepairError> {
        if self.folder.kind == ShardKind::Meta {
            return Ok(());
        }
        let Ok(newest) = Newest::open(self.source, self.dir) else {
            return Ok(());
        };
        // As the checkpoint has it: its pairs name the blocks.
        let Ok(State::Data(shard)) = State::of(self.folder.kind, &newest) else {
            return Ok(());
        };
        let covered = newest.standing.as_ref();
        let covered = covered.map_or(0, |standing| standing.id.index.0 + 1);
        for mut lost in shard.lost_rows() {
            let (mut survey, _, _) = self.survey()?;
            let whole = read_all(&mut survey, covered, &mut lost).map_err(InspectError::Tier)?;
            let blocks = lost.blocks().filter(|_| whole);
            for (block, bytes, rows) in blocks.into_iter().flatten() {
                let (path, offset) = newest.block(block);
                let what = format!(
                    "written again at offset {offset}, with the places of {rows} entries of stream {}, which the journal tells",
                    lost.stream
                );
                if self.step(StepKind::Block, &path, what) {
                    newest.write_block(block, &bytes).map_err(self.io())?;
                }
            }
        }
        Ok(())
    }
}

/// Names all records to `lost` that lie where its own do; `false` when some of them are not there or not sound.
fn read_all(survey: &mut Survey, covered: u64, lost: &mut LostRows) -> Result<bool, Unreached> {
    let (from, to) = (lost.from, lost.to);
    let first = survey.index_from(from);
    let (mut end, mut next, mut sound) = (None, 0, true);
    survey.each_frame(first, &mut |seen| {
        sound &= match end {
            None => seen.position <= from,
            Some(end) => seen.position == end,
        };
        let is_behind = seen.index.0 >= covered || to.is_some_and(|to| seen.position > to);
        if !sound || is_behind {
            return ControlFlow::Break(());
        }
        end = note(&seen, lost);
        sound = end.is_some();
        next = seen.index.0 + 1;
        match sound {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })?;
    Ok(sound && (next >= covered || to.is_some_and(|to| end > Some(to))))
}

/// Names the records of a frame; where it ends, if it is there as a whole.
fn note(seen: &Seen<'_>, lost: &mut LostRows) -> Option<Position> {
    let (head, payload) = seen.read.as_ref().ok()?;
    if seen.lives != Lives::Whole {
        return None;
    }
    if head.kind == FrameKind::Records {
        let mut records = Records::new(payload, seen.payload_position(), true).ok()?;
        while let Some(record) = records.next() {
            let (position, _, record) = record.ok()?;
            let bytes = (records.position().0 - position.0) as usize;
            lost.note((position, bytes), head.clock, &record);
        }
    }
    Some(Position(seen.position.0 + head.logical_len()))
}
