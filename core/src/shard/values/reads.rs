//! Pages of last values that wait for the frames before them.
//!
//! Owns how far a shard has come with its own frames, and the answers; never what is on a page.
//! Read next: [`super::page`].

use super::page::{Page, PageOf};
use crate::id::{UnixMs, WorkerId};
use crate::port::{ShardReply, Ticket};
use crate::shard::{Place, Shard};

/// How far a journalled shard has come with its own frames: the leader's memory.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    applied: u64,
    under_way: u64,
}

impl Progress {
    pub(in crate::shard) fn taken(&mut self) {
        self.under_way += 1;
    }

    pub(in crate::shard) fn applied(&mut self) {
        self.applied += 1;
        self.under_way = self.under_way.saturating_sub(1);
    }

    pub(in crate::shard) fn has_reached(&self, frame: u64) -> bool {
        self.applied >= frame
    }
}

/// A page that waits for frames.
#[derive(Debug)]
pub(crate) struct Read {
    frame: u64,
    from: WorkerId,
    ticket: Ticket,
    of: PageOf,
}

impl<B: Place> Shard<B> {
    /// The frame that holds what was handed in last; it need not be taken yet.
    pub(in crate::shard) fn frame_of_now(&self) -> u64 {
        let pending = u64::from(!self.builder.is_empty());
        self.progress.applied + self.progress.under_way + pending
    }

    pub(in crate::shard) fn read_values(&mut self, from: WorkerId, ticket: Ticket, of: PageOf) {
        let frame = self.frame_of_now();
        self.reads.push(Read {
            frame,
            from,
            ticket,
            of,
        });
    }

    /// Answers the pages whose frames are applied.
    pub(in crate::shard) fn answer_reads(&mut self, now: UnixMs) {
        let progress = &self.progress;
        let due = self
            .reads
            .extract_if(.., |read| progress.has_reached(read.frame));
        for Read {
            from, ticket, of, ..
        } in due.collect::<Vec<_>>()
        {
            let Page { values, next } = self.values.page(&of, now);
            self.reply(from, ticket, Ok(ShardReply::Values { values, next }));
        }
    }
}
