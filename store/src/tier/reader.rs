//! Reading ranges back.
//!
//! Owns: asking for what is wanted, a few requests at a time, and telling journals when something has come or may be
//! asked for again. What failed rests, longer each time; only what an object has lost, because it was cut short, is given
//! up: those who read that are told. Read next: [`super::ranges`].

use super::objects::ObjectError;
use super::ranges::Job;
use super::{Inner, back_off};
use anabranch_core::id::Position;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Requests under way at a time.
const REQUESTS_MAX: usize = 8;
/// How often it is looked whether there is room for what is wanted.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Asks for what is wanted, for as long as the runtime lives.
pub(super) async fn serve(inner: Arc<Inner>) {
    let under_way = Arc::new(Semaphore::new(REQUESTS_MAX));
    loop {
        let Ok(one) = under_way.clone().acquire_owned().await else {
            return;
        };
        let Some(job) = inner.ranges.next_job() else {
            drop(one);
            let _ = tokio::time::timeout(LOOK_AGAIN, inner.ranges.changed.notified()).await;
            continue;
        };
        let inner = inner.clone();
        tokio::spawn(async move {
            let rest = fetch(&inner, &job).await;
            drop(one);
            if let Some(rest) = rest {
                tokio::time::sleep(rest).await;
                inner.ranges.rested(&job);
            }
            if let Some(folder) = inner.folder_numbered(job.object.folder) {
                folder.wake();
            }
        });
    }
}

/// Asks for one job's ranges; says how long they rest when they did not come.
async fn fetch(inner: &Inner, job: &Job) -> Option<Duration> {
    let folder = inner.folder_numbered(job.object.folder)?;
    let (base, len) = (Position(job.object.base), job.object.len);
    let get = |range| inner.objects.get(folder.name(), base, range, len);
    let mut asked = get(job.bytes.clone()).await;
    if let Err(ObjectError::CutShort { has, .. }) = asked {
        // What it still has is read.
        let there = job.bytes.start..has.min(job.bytes.end);
        asked = match there.is_empty() {
            true => Ok(Bytes::new()),
            false => get(there).await,
        };
    }
    match asked {
        Ok(bytes) => {
            inner.counters.read(bytes.len() as u64);
            inner.ranges.arrived(job, &bytes);
            None
        }
        Err(error) => {
            inner.counters.failed("reading a range back", &error);
            Some(back_off(inner.ranges.failed(job)))
        }
    }
}
