//! Objects as a tool reads them: front to back, as the files that they were, and verified as a whole.
//!
//! Owns: waiting for the object store (which no shard ever does), the checksum of all bytes. Keeps two parts of an object
//! in memory. Read next: [`super::objects`], `journal/survey.rs` (who reads them).

use super::objects::{Object, ObjectError, PART_BYTES};
use super::{Inner, Tier};
use crate::disk::DiskFile;
use anabranch_core::id::Position;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts kept: a frame may lie in two.
const PARTS_KEPT: usize = 2;

/// The object store does not answer as it should: nothing is known of what lies there.
#[derive(Debug, thiserror::Error)]
#[error("{address}: {what}")]
pub struct Unreached {
    /// What was asked for.
    address: String,
    /// What was answered.
    what: String,
}

/// What an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// What was sent.
    Sound,
    /// Not what was sent: why.
    Rotten(String),
}

/// See the module's text.
pub(crate) struct ObjectFile {
    inner: Arc<Inner>,
    folder: String,
    base: Position,
    object: Object,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Its length, once it was asked for.
    has: Option<u64>,
    /// Of the parts from the first on that were read in order.
    digest: Option<Digest>,
    /// The part that comes next for it.
    next: u64,
    kept: Vec<(u64, Bytes)>,
    unreached: Option<ObjectError>,
}

impl std::fmt::Debug for ObjectFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectFile")
            .field("folder", &self.folder)
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

impl Tier {
    /// The object of a segment: `identity` is its folder's, `shard` its shard's.
    pub(crate) fn look_at(
        &self,
        identity: u64,
        shard: &str,
        base: Position,
        object: Object,
    ) -> ObjectFile {
        ObjectFile {
            inner: self.inner.clone(),
            folder: super::folder::name_of(identity, shard),
            base,
            object,
            state: Mutex::default(),
        }
    }
}

impl ObjectFile {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it is, for people.
    pub(crate) fn address(&self) -> String {
        self.inner.objects.address(&self.folder, self.base)
    }

    /// Looks whether it is there.
    pub(crate) fn open(&self) -> Result<Verdict, Unreached> {
        let length = {
            let (inner, folder, base) = (self.inner.clone(), self.folder.clone(), self.base);
            self.wait(async move { inner.objects.length(&folder, base).await })
        };
        match length {
            Ok(Some(has)) => {
                let mut state = self.lock();
                state.has = Some(has);
                state.digest = Some(Digest::new(CrcAlgorithm::Crc32Iscsi));
                Ok(Verdict::Sound)
            }
            Ok(None) => Ok(Verdict::Rotten("the object is missing".to_owned())),
            Err(error) => Err(self.unreached(&error)),
        }
    }

    /// Reads what was not read yet, and says what is wrong with the whole. What was kept of it is let go.
    pub(crate) fn close(&self) -> Result<Verdict, Unreached> {
        let parts = self.end().div_ceil(PART_BYTES);
        let mut state = self.lock();
        while state.next < parts {
            let next = state.next;
            if let Err(error) = self.take(&mut state, next) {
                return Err(self.unreached(&error));
            }
        }
        state.kept.clear();
        let (has, Object { len, crc }) = (state.has.unwrap_or(0), self.object);
        let digest = state.digest.take().map(|digest| digest.finalize() as u32);
        let rotten = if has != len {
            format!("the object has {has} bytes, and {len} were sent")
        } else if digest != Some(crc) {
            "the object's checksum is not that of what was sent".to_owned()
        } else {
            return Ok(Verdict::Sound);
        };
        Ok(Verdict::Rotten(rotten))
    }

    /// Whether something could not be read because the object store did not answer as it should.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().unreached.is_some()
    }

    /// Why it could not be read, when the object store did not answer as it should.
    pub(crate) fn failure(&self) -> Option<Unreached> {
        let failed = self.lock().unreached.take();
        failed.map(|error| self.unreached(&error))
    }

    fn unreached(&self, error: &ObjectError) -> Unreached {
        Unreached {
            address: self.address(),
            what: error.to_string(),
        }
    }

    /// The end of what is there of it.
    fn end(&self) -> u64 {
        self.lock().has.unwrap_or(0).min(self.object.len)
    }

    /// Brings a part, those before it first as far as they were not read.
    fn bring(&self, nth: u64) -> Result<Bytes, ObjectError> {
        let mut state = self.lock();
        if let Some((_, bytes)) = state.kept.iter().find(|(kept, _)| *kept == nth) {
            return Ok(bytes.clone());
        }
        while state.next < nth {
            let next = state.next;
            self.take(&mut state, next)?;
        }
        self.take(&mut state, nth)
    }

    fn take(&self, state: &mut State, nth: u64) -> Result<Bytes, ObjectError> {
        let end = state.has.unwrap_or(0).min(self.object.len);
        let start = nth * PART_BYTES;
        let bytes = self.get(start..end.min(start + PART_BYTES))?;
        if state.next == nth {
            state.next += 1;
            if let Some(digest) = &mut state.digest {
                digest.update(&bytes);
            }
        }
        if state.kept.len() == PARTS_KEPT {
            state.kept.remove(0);
        }
        state.kept.push((nth, bytes.clone()));
        Ok(bytes)
    }

    fn get(&self, range: Range<u64>) -> Result<Bytes, ObjectError> {
        let (inner, folder, base) = (self.inner.clone(), self.folder.clone(), self.base);
        let len = self.object.len;
        self.wait(async move { inner.objects.get(&folder, base, range, len).await })
    }

    /// Has the tier's thread do it, and waits.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ObjectError>> + Send + 'static,
    ) -> Result<T, ObjectError> {
        let (send, receive) = sync_channel(1);
        self.inner.handle.spawn(async move {
            let _ = send.send(work.await);
        });
        let ended = |_| io::Error::other("the thread of the object store has ended");
        receive.recv().map_err(ended)?
    }
}

impl DiskFile for ObjectFile {
    fn write_at(&self, _slices: &mut [IoSlice<'_>], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if end > self.end() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let nth = at / PART_BYTES;
            let bytes = self.bring(nth).map_err(|error| {
                let text = error.to_string();
                self.lock().unreached = Some(error);
                io::Error::other(text)
            })?;
            let from = (at - nth * PART_BYTES) as usize;
            let part = bytes.get(from..).unwrap_or_default();
            let count = part.len().min(rest.len());
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (into, after) = rest.split_at_mut(count);
            into.copy_from_slice(&part[..count]);
            rest = after;
            at += count as u64;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.object.len)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }
}
