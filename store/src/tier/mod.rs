//! Tiers: sealed segments that lie in an object store, so that what is kept outgrows the disk.
//!
//! Owns: the connection to the object store, a thread with a runtime for all that is asked of it, the cache of
//! ranges read back, what is counted. Never blocks a shard's thread: what is not in the cache is asked for and
//! comes later. Never decides that a segment is dead. Read next: [`objects`] (names, upload, verification),
//! [`ranges`] (the cache), [`folder`] (one journal's part), [`mover`] (what goes there, and what leaves), [`look`] (for tools),
//! [`crate::journal`] for the list of what lies there.
//!
//! An object is the bytes of a segment's file up to the end of its last frame, as they are (also when they are
//! compressed or encrypted). Its name is `<prefix>/<identity of the folder>/<shard>/<position>.seg`.

mod file;
mod folder;
mod look;
mod mover;
mod objects;
mod options;
mod ranges;
mod reader;
mod stats;

pub(crate) use folder::Folder;
pub use look::Unreached;
pub(crate) use look::{ObjectFile, Verdict};
pub(crate) use objects::Object;
pub use options::{TierError, TierOptions};
pub use stats::TierStats;

use objects::Objects;
use ranges::Ranges;
use stats::Counters;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

/// The object store of a node; clones share it.
#[derive(Clone)]
pub struct Tier {
    inner: Arc<Inner>,
    thread: Arc<Thread>,
}

impl std::fmt::Debug for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tier")
            .field("url", &self.inner.objects.url())
            .finish_non_exhaustive()
    }
}

/// What folders and tasks share.
pub(crate) struct Inner {
    objects: Objects,
    ranges: Ranges,
    counters: Counters,
    /// Sealed bytes that a journal keeps on its disk.
    local_bytes: u64,
    handle: Handle,
    last_folder: AtomicU32,
    folders: Mutex<HashMap<u32, Weak<Folder>>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("tier::Inner").finish_non_exhaustive()
    }
}

/// The thread; it ends with the last [`Tier`].
struct Thread {
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.end();
    }
}

impl Thread {
    fn end(&self) {
        let _ = self.stop.send(true);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // The last one may go on the thread itself, with a task that was ended.
        if let Some(thread) = thread.take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the object store panicked");
        }
    }
}

impl Tier {
    /// Starts the thread. Nothing is asked of the object store yet: a node starts without it.
    pub fn start(options: &TierOptions) -> Result<Tier, TierError> {
        let objects = Objects::open(options)?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(TierError::Thread)?;
        let inner = Arc::new(Inner {
            objects,
            ranges: Ranges::new(options.cache_bytes),
            counters: Counters::default(),
            local_bytes: options.local_bytes,
            handle: runtime.handle().clone(),
            last_folder: AtomicU32::new(0),
            folders: Mutex::default(),
        });
        let (stop, mut stopped) = watch::channel(false);
        let reading = inner.clone();
        let named = std::thread::Builder::new().name("tier".to_owned());
        let thread = named.spawn(move || {
            runtime.block_on(async move {
                let serving = tokio::spawn(reader::serve(reading));
                // Told, or the node is gone.
                let _ = stopped.wait_for(|stop| *stop).await;
                serving.abort();
            });
            // What still reads a file is not waited for.
            runtime.shutdown_background();
        });
        Ok(Tier {
            inner,
            thread: Arc::new(Thread {
                stop,
                thread: Mutex::new(Some(thread.map_err(TierError::Thread)?)),
            }),
        })
    }

    /// The part of one journal: `identity` is its folder's, `name` its shard's.
    pub(crate) fn folder(&self, identity: u64, name: &str) -> Arc<Folder> {
        let number = self.inner.last_folder.fetch_add(1, Ordering::Relaxed) + 1;
        let folder = Arc::new(Folder::new(self.inner.clone(), number, identity, name));
        let mut folders = self.inner.lock_folders();
        folders.retain(|_, folder| folder.strong_count() > 0);
        folders.insert(number, Arc::downgrade(&folder));
        folder
    }

    /// Ends the thread, at once: what is half done is done again at the next start. Nothing moves and nothing is read
    /// back from here on.
    pub fn stop(&self) {
        self.thread.end();
    }

    /// Where it is: the URL that was configured.
    pub fn url(&self) -> &str {
        self.inner.objects.url()
    }

    /// What was done since the start.
    pub fn stats(&self) -> TierStats {
        self.inner.counters.stats(&self.inner.ranges)
    }
}

impl Inner {
    fn lock_folders(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Weak<Folder>>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder_numbered(&self, number: u32) -> Option<Arc<Folder>> {
        self.lock_folders().get(&number).and_then(Weak::upgrade)
    }
}

/// A number for a folder of the object store that no other folder has.
pub(crate) fn new_identity() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hash maps draw their keys at random.
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// How long to wait after so many failures in a row.
fn back_off(failures: u32) -> std::time::Duration {
    let ms = BACK_OFF_MS << failures.saturating_sub(1).min(10);
    std::time::Duration::from_millis(ms.min(BACK_OFF_MS_MAX))
}

/// Waits after failures, in milliseconds: the first, doubled each time, and the longest.
const BACK_OFF_MS: u64 = 100;
const BACK_OFF_MS_MAX: u64 = 5000;
