//! Reading a segment file from front to back.
//!
//! Owns: how much is read at a time. Never reads beyond the end it was given. Read next:
//! [`super::recovery`].

use crate::disk::DiskFile;
use std::io;

/// Bytes read at a time.
pub(super) const WINDOW_BYTES: usize = 1024 * 1024;

/// Reads a file through a window that moves forward.
pub(super) struct Window<'a> {
    file: &'a dyn DiskFile,
    end: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    pub(super) fn new(file: &'a dyn DiskFile, end: u64) -> Self {
        Self {
            file,
            end,
            start: 0,
            bytes: Vec::new(),
        }
    }

    /// Exactly `len` bytes at `offset`, or `None` when the file ends before.
    pub(super) fn get(&mut self, offset: u64, len: usize) -> io::Result<Option<&[u8]>> {
        if offset + len as u64 > self.end {
            return Ok(None);
        }
        self.fill(offset, len)?;
        let from = (offset - self.start) as usize;
        Ok(self.bytes.get(from..from + len))
    }

    /// Up to `len` bytes at `offset`, or `None` at the end.
    pub(super) fn get_at_most(&mut self, offset: u64, len: usize) -> io::Result<Option<&[u8]>> {
        let left = self.end.saturating_sub(offset).min(len as u64) as usize;
        if left == 0 {
            Ok(None)
        } else {
            self.get(offset, left)
        }
    }

    fn fill(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let held = self.start + self.bytes.len() as u64;
        if offset >= self.start && offset + len as u64 <= held {
            return Ok(());
        }
        let want = (len.max(WINDOW_BYTES) as u64).min(self.end - offset) as usize;
        self.bytes.resize(want, 0);
        self.start = offset;
        self.file.read_at(&mut self.bytes, offset)
    }
}
