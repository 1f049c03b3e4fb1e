//! A file's bytes in memory: the one place with unsafe code.
//!
//! Owns: the mapping and what is asked of the system about it. Never says who may change the file: see
//! [`crate::journal`], whose segments are mapped only while nobody writes, shortens or reuses them. Read
//! next: [`super::real`].

use super::DiskMap;
use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};
use std::fs::File;
use std::io;

/// A shared, read-only mapping of a file's beginning.
#[derive(Debug)]
pub(super) struct RealMap(Mmap);

impl RealMap {
    /// Maps `len` bytes, which the file has.
    #[expect(
        unsafe_code,
        reason = "a mapping is sound as long as nobody changes its bytes: a segment is mapped when all frames of it \
                  are applied (none is cut or written any more), and counts as read until the mapping is gone, so \
                  that its file is neither used again nor punched where it lives; other processes are kept out by \
                  the folder's lock"
    )]
    pub(super) fn of(file: &File, len: usize) -> io::Result<Self> {
        let map = unsafe { MmapOptions::new().len(len).map(file)? };
        // A page that is missing costs itself only: around a fault the system would read as much as it reads ahead,
        // and others wait behind that.
        map.advise(Advice::Random)?;
        Ok(Self(map))
    }
}

impl DiskMap for RealMap {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn load(&self, offset: usize, len: usize) -> io::Result<()> {
        self.0.advise_range(Advice::PopulateRead, offset, len)
    }

    #[expect(
        unsafe_code,
        reason = "for a shared mapping of a file this forgets page table entries only: the same bytes come back \
                  from the file"
    )]
    fn unload(&self, offset: usize, len: usize) {
        // A range that stays costs memory that the system takes back by itself.
        let _ = unsafe {
            self.0
                .unchecked_advise_range(UncheckedAdvice::DontNeed, offset, len)
        };
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::real::RealDisk;
    use crate::disk::{Disk, write_all_at};
    use std::io;

    const LEN: usize = 256 * 1024;

    #[test]
    fn a_map_shows_the_file_and_outlives_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = RealDisk.create_zeroed(&path, LEN as u64).unwrap();
        write_all_at(&*file, &[7; LEN], 0).unwrap();
        file.sync().unwrap();
        let map = file.map(LEN - 100).unwrap().unwrap();
        RealDisk.remove(&path).unwrap();
        map.load(4096, 8192).unwrap();
        assert_eq!(map.bytes(), [7; LEN - 100]);
        map.unload(0, LEN - 100);
        file.uncache(0, LEN as u64).unwrap();
        assert_eq!(map.bytes(), [7; LEN - 100]);
    }

    #[test]
    fn what_is_not_there_is_an_error_and_no_signal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = RealDisk.create_zeroed(&path, LEN as u64).unwrap();
        let told = file.map(LEN + 1).unwrap_err();
        assert_eq!(told.kind(), io::ErrorKind::UnexpectedEof);
        // Somebody shortens it behind our back.
        let map = file.map(LEN).unwrap().unwrap();
        let shorter = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        shorter.set_len(LEN as u64 / 2).unwrap();
        map.load(0, LEN / 2).unwrap();
        map.load(LEN / 2, LEN / 2).unwrap_err();
    }
}
