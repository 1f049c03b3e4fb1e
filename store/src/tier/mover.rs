//! Moving segments to the object store, and removing what is dead there.
//!
//! Owns: the order of the steps, so that a segment is on the disk, or in the object store, or for a while in both, and
//! never in neither: send, read back, note it in the journal's list (durable), let readers go there, remove the file.
//! What a crash leaves half done is removed or done again at the next start. Never reads a message. Read next:
//! [`crate::journal`] (`tiering.rs`: which segment is next), [`super::objects`].

use super::objects::ObjectError;
use super::{Folder, Inner, back_off};
use crate::journal::{Journal, Movable};
use anabranch_core::id::Position;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Moves what is to move and removes what is dead, until the task is aborted.
pub(super) async fn run(inner: Arc<Inner>, folder: Arc<Folder>, journal: Journal) {
    let began_at = journal.end();
    let mut swept = false;
    let mut failures = 0;
    // What lacks its side file stays until a start has made that again.
    let mut stays = BTreeSet::new();
    // One that has failed notes nothing.
    while journal.poisoned().is_none() {
        let done = async {
            if !swept {
                sweep(&inner, &folder, &journal, began_at).await?;
                swept = true;
            }
            for base in folder.doomed() {
                remove(&inner, &folder, &journal, base).await?;
            }
            while let Some(next) = journal.movable(&stays) {
                let base = next.base;
                let moved = move_out(&inner, &folder, &journal, next).await;
                if matches!(moved, Err(ObjectError::NoSideFile)) {
                    stays.insert(base);
                }
                moved?;
            }
            Ok::<(), ObjectError>(())
        };
        match done.await {
            Ok(()) => {
                failures = 0;
                folder.look.notified().await;
            }
            Err(error) => {
                failures += 1;
                inner.counters.failed("moving segments", &error);
                tokio::time::sleep(back_off(failures)).await;
            }
        }
    }
}

/// Removes objects that a crash left without a note: they were sent, or were to be removed. And says which are not
/// there, or not whole, though they are noted; when that are all of them nothing is sent to the wrong place.
async fn sweep(
    inner: &Inner,
    folder: &Folder,
    journal: &Journal,
    began_at: Position,
) -> Result<(), ObjectError> {
    let noted = journal.tiered();
    let found = inner.objects.list(folder.name()).await?;
    if !noted.is_empty() && !noted.keys().any(|base| found.contains_key(base)) {
        return Err(ObjectError::Elsewhere {
            objects: noted.len(),
            folder: folder.address(),
        });
    }
    inner.counters.answered();
    for (base, object) in &noted {
        let has = found.get(base).copied();
        if has != Some(object.len) {
            tracing::error!(
                object = folder.object_address(*base),
                has,
                len = object.len,
                "a segment in the object store is not there as it was sent: put it back from a copy"
            );
        }
    }
    // What lies behind the end is of another copy of the folder: somebody restored an old one.
    for base in found.into_keys().filter(|base| *base < began_at) {
        if !noted.contains_key(&base) && !folder.doomed().contains(&base) {
            inner.objects.delete(folder.name(), base).await?;
            inner.counters.removed();
        }
    }
    Ok(())
}

async fn remove(
    inner: &Inner,
    folder: &Folder,
    journal: &Journal,
    base: Position,
) -> Result<(), ObjectError> {
    inner.objects.delete(folder.name(), base).await?;
    inner.counters.removed();
    noted(|done| journal.forget_object(base, done)).await?;
    folder.is_gone(base);
    Ok(())
}

async fn move_out(
    inner: &Inner,
    folder: &Folder,
    journal: &Journal,
    next: Movable,
) -> Result<(), ObjectError> {
    let base = next.base;
    let sent = inner
        .objects
        .put(folder.name(), base, &next.file(), next.len)
        .await?;
    inner.counters.sent(sent.len);
    noted(|done| journal.note_object(next, sent, done)).await?;
    if !journal.switch(base, sent) {
        // It was released meanwhile.
        folder.doom(base);
    }
    Ok(())
}

/// Waits until the journal has written something down.
async fn noted(
    ask: impl FnOnce(Box<dyn FnOnce(io::Result<()>) + Send>),
) -> Result<(), ObjectError> {
    let (send, receive) = oneshot::channel();
    ask(Box::new(move |result| {
        let _ = send.send(result);
    }));
    let closed = |_| ObjectError::Journal("it is closed or has failed".to_owned());
    let result = receive.await.map_err(closed)?;
    result.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => ObjectError::NoSideFile,
        _ => ObjectError::Journal(error.to_string()),
    })
}
