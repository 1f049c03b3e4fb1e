//! How the writer is fed, and where it runs.
//!
//! Owns: the queue of steps, the thread of a real journal and the local task of a simulated one.
//! The queue itself has no bound: what may wait is bounded by the group's limit on bytes not yet
//! confirmed. Read next: [`super::writer`].

use super::writer::{Op, Writer};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thread_priority::unix::{
    RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};
use thread_priority::{ThreadPriority, ThreadPriorityValue};
use tokio::sync::Notify;

/// Real-time priority asked for the writer's thread, the lowest there is: under load the wait for a
/// turn on the processor costs more than the sync itself. The thread sleeps nearly always.
const WRITER_PRIORITY: u8 = 1;
/// Niceness asked for where real time is not allowed.
const WRITER_NICENESS: i32 = -15;

#[derive(Default)]
struct Waiting {
    ops: Vec<Op>,
    closed: bool,
    /// The thread sleeps and must be woken.
    asleep: bool,
}

/// Steps that wait for the writer.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    wake_thread: Condvar,
    wake_task: Notify,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues steps in order.
    pub(crate) fn push(&self, ops: impl IntoIterator<Item = Op>) {
        let mut waiting = self.lock();
        waiting.ops.extend(ops);
        let asleep = std::mem::take(&mut waiting.asleep);
        drop(waiting);
        if asleep {
            self.wake_thread.notify_one();
        }
        self.wake_task.notify_one();
    }

    /// Lets the writer end once everything queued is done.
    pub(crate) fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.asleep = false;
        drop(waiting);
        self.wake_thread.notify_one();
        self.wake_task.notify_one();
    }

    /// Waits for steps on the writer's own thread, or as long as `at_most`; `false` when closed and drained.
    fn take_blocking(&self, into: &mut Vec<Op>, at_most: Option<Duration>) -> bool {
        let mut waiting = self.lock();
        loop {
            if !waiting.ops.is_empty() {
                std::mem::swap(&mut waiting.ops, into);
                return true;
            }
            if waiting.closed {
                return false;
            }
            waiting.asleep = true;
            let Some(at_most) = at_most else {
                let woken = self.wake_thread.wait(waiting);
                waiting = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let woken = self.wake_thread.wait_timeout(waiting, at_most);
            let (guard, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
            waiting = guard;
            if timeout.timed_out() && waiting.ops.is_empty() && !waiting.closed {
                return true;
            }
        }
    }

    async fn take(&self, into: &mut Vec<Op>, at_most: Option<Duration>) -> bool {
        loop {
            {
                let mut waiting = self.lock();
                if !waiting.ops.is_empty() {
                    std::mem::swap(&mut waiting.ops, into);
                    return true;
                }
                if waiting.closed {
                    return false;
                }
            }
            let woken = self.wake_task.notified();
            let Some(at_most) = at_most else {
                woken.await;
                continue;
            };
            if tokio::time::timeout(at_most, woken).await.is_err() {
                return true;
            }
        }
    }
}

/// How long a writer that wants room waits before it looks again.
const ROOM_WAIT: Duration = Duration::from_millis(250);

fn wait_of(writer: &Writer) -> Option<Duration> {
    writer.wants_room().then_some(ROOM_WAIT)
}

/// Where a journal's writer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriterMode {
    /// A thread of its own, with raised priority where that is allowed.
    #[default]
    Thread,
    /// A task of the current tokio runtime; each batch takes `latency` of the runtime's (possibly
    /// paused) time. For simulations: one thread, the same order every time.
    Local {
        /// Time from taking a batch to doing it.
        latency: Duration,
    },
}

/// A running writer.
#[derive(Debug)]
pub(crate) enum Running {
    Thread(std::thread::JoinHandle<()>),
    Task,
}

/// Starts the writer.
pub(crate) fn start(
    name: &str,
    queue: Arc<Queue>,
    mut writer: Writer,
    mode: WriterMode,
) -> std::io::Result<Running> {
    match mode {
        WriterMode::Thread => {
            let named = std::thread::Builder::new().name(name.to_owned());
            let thread = named.spawn(move || {
                raise_priority();
                let mut ops = Vec::new();
                while queue.take_blocking(&mut ops, wait_of(&writer)) {
                    writer.run(&mut ops);
                }
                writer.finish();
            })?;
            Ok(Running::Thread(thread))
        }
        WriterMode::Local { latency } => {
            tokio::spawn(async move {
                let mut ops = Vec::new();
                while queue.take(&mut ops, wait_of(&writer)).await {
                    if !latency.is_zero() {
                        tokio::time::sleep(latency).await;
                    }
                    writer.run(&mut ops);
                }
                writer.finish();
            });
            Ok(Running::Task)
        }
    }
}

/// Both wishes are refused to an ordinary user; then the thread runs like any other.
fn raise_priority() {
    let Ok(priority) = ThreadPriorityValue::try_from(WRITER_PRIORITY) else {
        return;
    };
    let fifo = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let wish = ThreadPriority::Crossplatform(priority);
    if set_thread_priority_and_policy(thread_native_id(), wish, fifo).is_err() {
        let _ = rustix::process::setpriority_process(None, WRITER_NICENESS);
    }
}
