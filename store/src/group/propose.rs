//! Proposals: from a payload to the answer that it is committed and applied.
//!
//! Owns the limit on what is under way, and the stamps. Never knows what a payload means. Read next:
//! [`crate::raft`].

use super::{Group, ProposeError};
use crate::journal::frame::MAX_PAYLOAD_BYTES;
use crate::raft::{Answer, Applied, Proposal, StateMachine, Types};
use anabranch_core::id::{LogIndex, UnixMs};
use bytes::Bytes;
use openraft::errors::ClientWriteError;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, oneshot};

/// A proposal that was committed and applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Its frame.
    pub index: LogIndex,
    /// What the state machine answered.
    pub applied: Applied,
}

/// What was proposed and not yet answered.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    pub(super) bytes: AtomicUsize,
    freed: Notify,
}

impl<S: StateMachine> Group<S> {
    /// Appends one frame. Waits only while too much is under way; `done` is called once, on the
    /// runtime's thread or the writer's, when the frame is committed and applied, or failed. Many
    /// proposals may be under way; they are appended and answered in the order of the calls.
    pub async fn propose(
        &self,
        payload: Bytes,
        done: impl FnOnce(Result<Committed, ProposeError>) + Send + 'static,
    ) {
        let inner = &self.inner;
        let len = payload.len();
        if len > MAX_PAYLOAD_BYTES {
            return done(Err(ProposeError::TooLarge(len)));
        }
        self.room_for(len).await;
        let now = inner.clock.now_ms();
        let stamp = now.max(inner.last_stamp.fetch_max(now, Ordering::Relaxed));
        let proposal = Proposal {
            clock: UnixMs(stamp),
            committed: inner.journal.committed(),
            payload,
        };
        let outstanding = inner.outstanding.clone();
        let journal = inner.journal.clone();
        let answer = Answer::new(
            move |result: Option<openraft::raft::ClientWriteResult<Types>>| {
                outstanding.bytes.fetch_sub(len, Ordering::AcqRel);
                outstanding.freed.notify_one();
                done(match result {
                    Some(Ok(written)) => Ok(Committed {
                        index: LogIndex(written.log_id.index),
                        applied: written.data,
                    }),
                    Some(Err(ClientWriteError::ForwardToLeader(_))) => Err(ProposeError::NotLeader),
                    Some(Err(_)) | None => Err(journal
                        .poisoned()
                        .map_or(ProposeError::Stopped, ProposeError::Poisoned)),
                });
            },
        );
        // On an error the library drops the answer, which then reports it.
        let _ = inner.raft.client_write_ff(proposal, Some(answer)).await;
    }

    /// Appends one frame and waits for its answer.
    pub async fn propose_and_wait(&self, payload: Bytes) -> Result<Committed, ProposeError> {
        let (send, receive) = oneshot::channel();
        self.propose(payload, move |result| {
            let _ = send.send(result);
        })
        .await;
        receive.await.unwrap_or(Err(ProposeError::Stopped))
    }

    async fn room_for(&self, len: usize) {
        let outstanding = &self.inner.outstanding;
        loop {
            let before = outstanding.bytes.load(Ordering::Acquire);
            if before == 0 || before + len <= self.inner.options.outstanding_bytes {
                outstanding.bytes.fetch_add(len, Ordering::AcqRel);
                return;
            }
            outstanding.freed.notified().await;
        }
    }
}
