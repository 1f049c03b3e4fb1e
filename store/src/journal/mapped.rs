//! A sealed segment in memory, mapped.
//!
//! Owns: what of it was loaded, so that nothing is touched that cannot be read; and that a slice of it counts as
//! a reader of the file. Never says which segments are mapped: see [`super::spot`]. Read next:
//! [`crate::disk::map`].

use super::segment::SegmentFile;
use super::walks::CHUNK_BYTES;
use crate::disk::DiskMap;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What is read from here on is a slice of the mapping; less is copied. A slice that somebody keeps (a consumer
/// that does not read) keeps its segment's file from being used again or punched, and a copy of less than this
/// costs no more than a microsecond or two. So it takes large messages, of which few are under way, to hold on to
/// a file.
const SLICE_FROM_BYTES: usize = 16 * 1024;

/// It was not loaded, or let go.
const NOT_LOADED: u8 = 0;
/// It was loaded.
const LOADED: u8 = 1;
/// Something of it cannot be read. It is not tried again, for each record in it: a disk takes its time over that.
const NOT_LOADABLE: u8 = 2;

/// The mapping, which goes with its last slice.
#[derive(Debug)]
struct Mapping {
    map: Box<dyn DiskMap>,
    /// For each chunk, whether it was loaded and not let go: one of the three below.
    loaded: Vec<AtomicU8>,
    file: Arc<SegmentFile>,
    total_bytes: Arc<AtomicU64>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let len = self.map.bytes().len() as u64;
        self.total_bytes.fetch_sub(len, Ordering::Relaxed);
    }
}

/// What a slice holds.
struct Owner(Arc<Mapping>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.map.bytes()
    }
}

/// A mapped segment.
#[derive(Debug)]
pub(crate) struct Mapped {
    mapping: Arc<Mapping>,
    bytes: Bytes,
}

impl Mapped {
    /// Maps `len` bytes of a file, unless there is no such thing. Counted in `total_bytes` while anything of it
    /// is held.
    pub(super) fn of(
        file: Arc<SegmentFile>,
        len: u64,
        total_bytes: Arc<AtomicU64>,
    ) -> io::Result<Option<Self>> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let Some(map) = file.map(len)? else {
            return Ok(None);
        };
        total_bytes.fetch_add(len as u64, Ordering::Relaxed);
        let chunks = len.div_ceil(CHUNK_BYTES as usize);
        let mapping = Arc::new(Mapping {
            map,
            loaded: (0..chunks).map(|_| AtomicU8::new(NOT_LOADED)).collect(),
            file,
            total_bytes,
        });
        let bytes = Bytes::from_owner(Owner(mapping.clone()));
        Ok(Some(Self { mapping, bytes }))
    }

    /// Bytes that are mapped.
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The file.
    pub(super) fn file(&self) -> &Arc<SegmentFile> {
        &self.mapping.file
    }

    /// Bytes of the file, unless they are not mapped or not loaded. `load` says of a chunk that is not whether it
    /// is to be, and waited for.
    pub(super) fn peek(
        &self,
        offset: u64,
        len: usize,
        load: impl Fn(u32) -> bool,
    ) -> Option<&[u8]> {
        let from = usize::try_from(offset).ok()?;
        let bytes = self.bytes.get(from..from.checked_add(len)?)?;
        self.is_loaded(from, len, load).then_some(bytes)
    }

    /// The same, to keep.
    pub(super) fn take(
        &self,
        offset: u64,
        len: usize,
        load: impl Fn(u32) -> bool,
    ) -> Option<Bytes> {
        let bytes = self.peek(offset, len, load)?;
        Some(if len < SLICE_FROM_BYTES {
            Bytes::copy_from_slice(bytes)
        } else {
            self.bytes.slice_ref(bytes)
        })
    }

    fn is_loaded(&self, from: usize, len: usize, load: impl Fn(u32) -> bool) -> bool {
        if len == 0 {
            return true;
        }
        let chunk = CHUNK_BYTES as usize;
        (from / chunk..=(from + len - 1) / chunk).all(|nth| {
            let Some(loaded) = self.mapping.loaded.get(nth) else {
                return false;
            };
            match loaded.load(Ordering::Relaxed) {
                LOADED => return true,
                NOT_LOADABLE => return false,
                _ if !load(nth as u32) => return false,
                _ => {}
            }
            let begin = nth * chunk;
            let end = (begin + chunk).min(self.bytes.len());
            // Page by page it would be waited for: the mapping is told to read nothing ahead.
            let (file, from, len) = (&self.mapping.file, begin as u64, (end - begin) as u64);
            if file.is_cached(from, len) != Some(true) {
                let _ = file.read_ahead(from, len);
            }
            // What it cannot load the read from the file explains.
            let done = self.mapping.map.load(begin, end - begin).is_ok();
            loaded.store(if done { LOADED } else { NOT_LOADABLE }, Ordering::Relaxed);
            done
        })
    }

    /// Takes note that the system has taken a chunk back: it is loaded again before it is touched.
    pub(super) fn forget(&self, nth: u32) {
        if let Some(loaded) = self.mapping.loaded.get(nth as usize) {
            // One that cannot be loaded stays so.
            let (was, is) = (LOADED, NOT_LOADED);
            let _ = loaded.compare_exchange(was, is, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Lets a chunk go.
    pub(super) fn unload(&self, nth: u32) {
        self.forget(nth);
        let nth = nth as usize;
        if nth < self.mapping.loaded.len() {
            let begin = nth * CHUNK_BYTES as usize;
            let end = (begin + CHUNK_BYTES as usize).min(self.bytes.len());
            self.mapping.map.unload(begin, end - begin);
        }
    }
}
