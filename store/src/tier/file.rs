//! A segment in the object store, as its journal reads it.
//!
//! Owns: looking like the file that it was. Never waits: what is not in memory is asked for, and the read says
//! `WouldBlock`. Read next: [`super::ranges`].

use super::Inner;
use super::ranges::ObjectKey;
use crate::disk::DiskFile;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// See the module's text.
#[derive(Debug)]
pub(super) struct TierFile {
    pub(super) inner: Arc<Inner>,
    pub(super) object: ObjectKey,
    /// Length of the file that it was.
    pub(super) capacity_bytes: u64,
}

impl DiskFile for TierFile {
    fn write_at(&self, _slices: &mut [IoSlice<'_>], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.ranges.read(self.object, buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.capacity_bytes)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }
}
