//! A thread with a runtime of its own, for one shard.
//!
//! Owns: starting it and knowing whether its shard opened. Read next: [`super::data`].

use crate::group::GroupOpenError;
use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Why a shard did not start.
#[derive(Debug, thiserror::Error)]
pub enum ShardStartError {
    /// Its group cannot be opened.
    #[error(transparent)]
    Open(#[from] GroupOpenError),
    /// No thread or runtime could be had.
    #[error("starting the thread of a shard: {0}")]
    Thread(#[from] io::Error),
    /// The shard ended while it started.
    #[error("a shard ended while it started")]
    Ended,
}

/// Runs `work` on a new thread with a current-thread runtime and waits until it reports (through
/// its argument) that it is open or is not.
pub(crate) fn start<T, F>(
    name: String,
    work: impl FnOnce(mpsc::SyncSender<Result<T, ShardStartError>>) -> F + Send + 'static,
) -> Result<(T, JoinHandle<()>), ShardStartError>
where
    T: Send + 'static,
    F: Future<Output = ()>,
{
    let (report, opened) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => runtime.block_on(work(report)),
            Err(error) => {
                let _ = report.send(Err(error.into()));
            }
        }
    })?;
    match opened.recv() {
        Ok(Ok(value)) => Ok((value, thread)),
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(error)
        }
        Err(_) => {
            let _ = thread.join();
            Err(ShardStartError::Ended)
        }
    }
}
