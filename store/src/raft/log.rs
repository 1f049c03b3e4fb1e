//! The journal as the consensus library's log: no second log, no second copy.
//!
//! Owns: the translation entry <-> frame and the library's contract of durability (append returns
//! at once, the callback reports the sync; votes and entries keep their order). Never waits for a
//! sync of entries. Read next: [`crate::journal`].

use super::types::{Entry, LogId, Membership, Proposal, Types, Vote};
use crate::journal::{
    Completion, Frame, FrameId, FrameKind, Journal, ReadError, VoteRecord, WriteError,
};
use anabranch_core::id::{LogIndex, Term, UnixMs};
use bytes::Bytes;
use futures_util::{Stream, stream};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{EntryPayload, OptionalSend};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use tokio::sync::oneshot;

/// Payload bytes given to one replication request; at least one entry goes always.
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// The log of one group.
#[derive(Debug, Clone)]
pub struct LogStore {
    journal: Journal,
    /// The frame that the log begins after, where that is not the last one that was given up.
    floor: Option<FrameId>,
}

impl LogStore {
    /// The log that lies in `journal`, of which a checkpoint covers what is up to `covered`.
    pub fn new(journal: Journal, covered: Option<FrameId>) -> Self {
        let mut log = Self {
            journal,
            floor: None,
        };
        let Some(covered) = covered else {
            return log;
        };
        if let Err(error) = log.read_ids() {
            tracing::warn!(
                %error, covered = covered.index.0,
                "the log cannot be read below the checkpoint, and begins behind it"
            );
            log.floor = Some(covered);
        }
        log
    }

    /// Reads the entries that the library reads as it starts, to learn where in the log the terms begin.
    fn read_ids(&self) -> Result<(), io::Error> {
        let Range { start, end } = self.clamp(&..);
        let Some(last) = end.checked_sub(1).filter(|last| start <= *last) else {
            return Ok(());
        };
        let committed = self.journal.committed().0;
        if (start..end).contains(&committed) {
            self.entry(committed)?;
        }
        let ends = [start, last].map(|index| self.entry(index).map(|entry| entry.log_id));
        let [first, last] = ends;
        let mut between = vec![(first?, last?)];
        while let Some((first, last)) = between.pop() {
            if first.leader_id != last.leader_id && first.index + 1 < last.index {
                let middle = self.entry(first.index.midpoint(last.index))?.log_id;
                between.extend([(first, middle), (middle, last)]);
            }
        }
        Ok(())
    }

    /// The last frame that is not part of the log any more.
    fn purged(&self) -> Option<FrameId> {
        let ends = [self.journal.purged(), self.floor];
        ends.into_iter().flatten().max_by_key(|id| id.index)
    }

    fn entry(&self, index: u64) -> Result<Entry, io::Error> {
        let frame = self.journal.frame(LogIndex(index)).map_err(read_error)?;
        to_entry(frame)
    }

    fn clamp(&self, range: &impl RangeBounds<u64>) -> Range<u64> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        let first = self.purged().map_or(0, |purged| purged.index.0 + 1);
        let next = self.journal.last().map_or(0, |last| last.index.0 + 1);
        start.max(first)..end.min(next)
    }
}

fn read_error(error: ReadError) -> io::Error {
    match error {
        ReadError::Io(error) => error,
        ReadError::Corrupt(_) | ReadError::CutShort(_) => {
            io::Error::new(io::ErrorKind::InvalidData, error)
        }
        ReadError::NoFrame(_) | ReadError::NoBytes(..) | ReadError::GivenBack(_) => {
            io::Error::new(io::ErrorKind::NotFound, error)
        }
    }
}

fn write_error(error: WriteError) -> io::Error {
    io::Error::other(error)
}

/// Waits for one durable operation.
async fn durable(ask: impl FnOnce(Completion) -> Result<(), WriteError>) -> Result<(), io::Error> {
    let (send, receive) = oneshot::channel();
    ask(Box::new(move |result| {
        let _ = send.send(result);
    }))
    .map_err(write_error)?;
    match receive.await {
        Ok(result) => result.map_err(write_error),
        Err(_) => Err(io::Error::other("the journal's writer has ended")),
    }
}

fn to_frame(entry: Entry) -> Result<Frame, io::Error> {
    let (kind, clock, committed, payload) = match entry.payload {
        EntryPayload::Blank => (FrameKind::Blank, UnixMs(0), LogIndex(0), Bytes::new()),
        EntryPayload::Normal(proposal) => (
            FrameKind::Records,
            proposal.clock,
            proposal.committed,
            proposal.payload,
        ),
        EntryPayload::Membership(members) => {
            let json = serde_json::to_vec(&members).map_err(io::Error::other)?;
            (FrameKind::Membership, UnixMs(0), LogIndex(0), json.into())
        }
    };
    let term = Term(*entry.log_id.leader_id);
    Ok(Frame {
        term,
        index: LogIndex(entry.log_id.index),
        committed,
        clock,
        kind,
        payload,
    })
}

fn to_entry(frame: Frame) -> Result<Entry, io::Error> {
    let payload = match frame.kind {
        FrameKind::Blank => EntryPayload::Blank,
        FrameKind::Records => EntryPayload::Normal(Proposal {
            clock: frame.clock,
            committed: frame.committed,
            payload: frame.payload,
        }),
        FrameKind::Membership => {
            let members: Membership = serde_json::from_slice(&frame.payload)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            EntryPayload::Membership(members)
        }
    };
    Ok(Entry {
        log_id: log_id(FrameId {
            term: frame.term,
            index: frame.index,
        }),
        payload,
    })
}

pub(crate) fn log_id(id: FrameId) -> LogId {
    LogId::new(id.term.0.into(), id.index.0)
}

pub(crate) fn frame_id(id: &LogId) -> FrameId {
    FrameId {
        term: Term(*id.leader_id),
        index: LogIndex(id.index),
    }
}

fn vote_of(record: VoteRecord) -> Vote {
    if record.committed {
        Vote::new_committed(record.term.0, record.node)
    } else {
        Vote::new(record.term.0, record.node)
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        // One at a time: a backlog after a restart may be far larger than memory.
        let reader = self.clone();
        stream::iter(self.clamp(&range).map(move |index| reader.entry(index)))
    }

    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        self.clamp(&range).map(|index| self.entry(index)).collect()
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.journal.vote().map(vote_of))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, io::Error> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        for index in self.clamp(&(start..end)) {
            let entry = self.entry(index)?;
            if let EntryPayload::Normal(proposal) = &entry.payload {
                bytes += proposal.payload.len();
            }
            entries.push(entry);
            if bytes >= MAX_BATCH_BYTES {
                break;
            }
        }
        Ok(entries)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let last_purged_log_id = self.purged().map(log_id);
        let last_log_id = self.journal.last().map(log_id).or(last_purged_log_id);
        Ok(LogState {
            last_purged_log_id,
            last_log_id,
        })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let leader = vote.leader_id();
        let record = VoteRecord {
            term: Term(leader.term),
            node: leader.voted_for,
            committed: vote.is_committed(),
        };
        durable(|done| {
            self.journal.save_vote(record, done);
            Ok(())
        })
        .await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        // It becomes durable with the next frame, whose header states it.
        if let Some(committed) = committed {
            self.journal.set_committed(LogIndex(committed.index));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        let committed = self.journal.committed();
        let purged = self.purged();
        if committed.0 == 0 || purged.is_some_and(|purged| purged.index >= committed) {
            return Ok(purged.map(log_id));
        }
        match self.journal.frame(committed) {
            Ok(frame) => Ok(Some(log_id(FrameId {
                term: frame.term,
                index: frame.index,
            }))),
            // A leader may have told of a commit further on than what was synced here.
            Err(ReadError::NoFrame(_)) => Ok(self.journal.last().map(log_id)),
            Err(error) => Err(read_error(error)),
        }
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let frames = entries
            .into_iter()
            .map(to_frame)
            .collect::<Result<Vec<_>, _>>()?;
        let done: Completion =
            Box::new(move |result| callback.io_completed(result.map_err(write_error)));
        self.journal.append(frames, done).map_err(write_error)
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let keep = last_log_id.map(|id| LogIndex(id.index));
        durable(|done| self.journal.truncate_after(keep, done)).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        durable(|done| self.journal.purge(frame_id(&log_id), done)).await
    }
}
