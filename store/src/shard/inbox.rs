//! What waits for a shard's thread.
//!
//! Owns: the queue of batches and the wake-up of the thread. It has no limit of its own: a worker
//! that was told `Blocked` stops, and what it may have sent before is bounded by its own limit on
//! unanswered publishes. Never blocks a sender. Read next: [`super::data`].

use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// A queue with one reader.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    waiting: Mutex<Waiting<T>>,
    wake: Notify,
}

#[derive(Debug)]
struct Waiting<T> {
    items: Vec<T>,
    stop: bool,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                items: Vec::new(),
                stop: false,
            }),
            wake: Notify::new(),
        }
    }
}

impl<T> Inbox<T> {
    /// Queues one item; gives it back when the shard has stopped.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.stop {
            return Err(item);
        }
        let first = waiting.items.is_empty();
        waiting.items.push(item);
        drop(waiting);
        // Later ones find the reader awake, or woken already.
        if first {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Takes all that waits into `into`, which is empty; `true` when no more will come.
    pub(crate) fn take(&self, into: &mut Vec<T>) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut waiting.items, into);
        waiting.stop
    }

    /// Lets the reader end after what waits now.
    pub(crate) fn stop(&self) {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .stop = true;
        self.wake.notify_one();
    }

    /// Wakes the reader though nothing was queued.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits for something to do.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }
}
