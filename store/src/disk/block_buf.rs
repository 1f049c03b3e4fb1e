//! Room for bytes that are read around the system's cache.
//!
//! Owns: where it lies in memory, and that it is used again (new room is cleared by the system first). It lies in one
//! piece, a huge page where there are such: a disk is given a list of the pieces of memory that it fills, and one that has
//! to go through 512 of them, 4 KiB each, may need four times as long for the same bytes. Never reads. Read next:
//! [`super::real`].

use bytes::Bytes;
use memmap2::{Advice, MmapMut};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a huge page, and of the room here.
pub const BLOCK_BUF_BYTES: usize = 2 * 1024 * 1024;

/// Room that nobody reads from any more, to be used again.
#[derive(Debug, Clone)]
pub struct BlockBufs {
    free: Arc<Mutex<Vec<MmapMut>>>,
    max: usize,
}

impl BlockBufs {
    /// `max` of them are kept.
    pub fn new(max: usize) -> Self {
        let free = Arc::default();
        Self { free, max }
    }

    /// Room for [`BLOCK_BUF_BYTES`], with anything in it.
    pub fn get(&self) -> io::Result<BlockBuf> {
        let used = self.free().pop();
        let map = used.map_or_else(new_map, Ok)?;
        let from = map.as_ptr().align_offset(BLOCK_BUF_BYTES);
        Ok(BlockBuf {
            map: Some(map),
            from,
            len: BLOCK_BUF_BYTES,
            home: self.clone(),
        })
    }

    fn free(&self) -> MutexGuard<'_, Vec<MmapMut>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Twice as much as is used: somewhere in it a huge page begins. What is not touched costs nothing.
fn new_map() -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(2 * BLOCK_BUF_BYTES)?;
    // Where there is no such thing it takes longer.
    let _ = map.advise(Advice::HugePage);
    Ok(map)
}

/// See the module's text.
#[derive(Debug)]
pub struct BlockBuf {
    /// Always there, until it is dropped.
    map: Option<MmapMut>,
    from: usize,
    len: usize,
    home: BlockBufs,
}

impl BlockBuf {
    /// All of it.
    pub fn blocks(&mut self) -> &mut [u8] {
        let map = self.map.as_mut();
        let all = map.map(|map| &mut map[self.from..self.from + self.len]);
        all.unwrap_or_default()
    }

    /// Its first `len` bytes. The room is used again when the last slice of them is gone.
    pub fn into_bytes(mut self, len: usize) -> Bytes {
        self.len = self.len.min(len);
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for BlockBuf {
    fn as_ref(&self) -> &[u8] {
        let map = self.map.as_ref();
        let all = map.map(|map| &map[self.from..self.from + self.len]);
        all.unwrap_or_default()
    }
}

impl Drop for BlockBuf {
    fn drop(&mut self) {
        let mut free = self.home.free();
        if free.len() < self.home.max {
            free.extend(self.map.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_lies_in_one_huge_page_and_is_used_again() {
        let bufs = BlockBufs::new(1);
        let mut buf = bufs.get().unwrap();
        assert_eq!(buf.blocks().len(), BLOCK_BUF_BYTES);
        assert_eq!(buf.blocks().as_ptr().align_offset(BLOCK_BUF_BYTES), 0);
        buf.blocks().fill(7);
        let bytes = buf.into_bytes(10_000);
        assert_eq!(bytes.len(), 10_000);
        let slice = bytes.slice(9_999..);
        drop(bytes);
        assert!(bufs.free().is_empty());
        assert_eq!(slice, [7].as_slice());
        drop(slice);
        let (mut used, mut new) = (bufs.get().unwrap(), bufs.get().unwrap());
        assert!(used.blocks().iter().all(|byte| *byte == 7));
        assert!(new.blocks().iter().all(|byte| *byte == 0));
        drop((used, new));
        assert_eq!(bufs.free().len(), 1);
    }
}
