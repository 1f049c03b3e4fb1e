//! Which segments of a journal lie in an object store.
//!
//! Owns: the layout and the file. An object is listed before the segment's file goes, and until the object is gone; one
//! that is listed and released is to be removed. What is listed says enough to open the journal without the object
//! store: the segment's header stands here, its frames' places in the side file, which stays. Never moves anything.
//! Read next: [`super::tiering`], [`super::recovery`].
//!
//! The file is named `tiered`. All numbers are little-endian; the layout is persisted. The same bytes stand in it
//! twice, so that a rotten bit in one leaves the other:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABO1` |
//! | 4 | 4 | version, 1 |
//! | 8 | 4 | number of objects |
//! | 12 | 4 | CRC-32C of bytes 0..12 and of what follows this field |
//! | 16 | 8 | identity: names the journal's folder in the object store |
//! | 24 | 168 n | objects, ascending by position: the first 152 bytes of the segment's header, length of the object (8), its CRC-32C (4), 0 (4) |

use super::files::{read_twins, replace_twins, twins_differ_at};
use super::frame::{crc32c, u32_at, u64_at};
use super::segment::{HEADER_USED_BYTES, SegmentHeader};
use crate::disk::Disk;
use crate::tier::Object;
use anabranch_core::id::Position;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

const MAGIC: [u8; 4] = *b"ABO1";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const OBJECT_BYTES: usize = HEADER_USED_BYTES + 16;

/// Name of the file inside the journal's directory.
pub(super) const TIERED_NAME: &str = "tiered";

/// A segment in the object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiered {
    pub(super) header: SegmentHeader,
    pub(super) object: Object,
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Catalogue {
    /// Names the journal's folder in the object store.
    pub(super) identity: u64,
    objects: BTreeMap<Position, Tiered>,
}

impl Catalogue {
    pub(super) fn new(identity: u64) -> Self {
        Self {
            identity,
            objects: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, tiered: Tiered) {
        self.objects.insert(tiered.header.base, tiered);
    }

    pub(super) fn remove(&mut self, base: Position) {
        self.objects.remove(&base);
    }

    pub(super) fn get(&self, base: Position) -> Option<&Tiered> {
        self.objects.get(&base)
    }

    pub(super) fn bases(&self) -> impl Iterator<Item = Position> {
        self.objects.keys().copied()
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.objects.len() * OBJECT_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.objects.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.identity.to_le_bytes());
        for Tiered { header, object } in self.objects.values() {
            bytes.extend_from_slice(&header.encode()[..HEADER_USED_BYTES]);
            bytes.extend_from_slice(&object.len.to_le_bytes());
            bytes.extend_from_slice(&object.crc.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
        }
        let crc = crc32c(&[&bytes[..12], &bytes[16..]]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let known = bytes.len() >= HEADER_BYTES
            && bytes[..4] == MAGIC
            && u32_at(bytes, 4) == VERSION
            && u32_at(bytes, 12) == crc32c(&[&bytes[..12], &bytes[16..]]);
        let objects = bytes.get(HEADER_BYTES..)?.chunks_exact(OBJECT_BYTES);
        if !known || objects.len() != u32_at(bytes, 8) as usize {
            return None;
        }
        let mut read = Self::new(u64_at(bytes, 16));
        for bytes in objects {
            read.add(Tiered {
                header: SegmentHeader::decode(&bytes[..HEADER_USED_BYTES])?,
                object: Object {
                    len: u64_at(bytes, HEADER_USED_BYTES),
                    crc: u32_at(bytes, HEADER_USED_BYTES + 8),
                },
            });
        }
        Some(read)
    }

    /// Reads the file; `None` when there is none, an error of kind `InvalidData` when neither copy is sound.
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> io::Result<Option<Self>> {
        read_twins(disk, &dir.join(TIERED_NAME), Self::decode)
    }

    /// Where the two copies of the file in `dir` begin to differ; nothing when they do not, or there is no file.
    pub(super) fn differs_at(disk: &dyn Disk, dir: &Path) -> io::Result<Option<u64>> {
        twins_differ_at(disk, &dir.join(TIERED_NAME), Self::decode)
    }

    /// Replaces the file; durable on return.
    pub(super) fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        replace_twins(disk, dir, &dir.join(TIERED_NAME), &self.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;
    use crate::seal::{WRAPPED_BYTES, WrappedKey};
    use anabranch_core::id::{LogIndex, Term};

    fn tiered(base: u64) -> Tiered {
        Tiered {
            header: SegmentHeader {
                salt: 7,
                prev_crc: 8,
                base: Position(base),
                first_index: LogIndex(base / 10),
                prev_term: Term(3),
                capacity_bytes: 1 << 20,
                key: (base == 100).then_some(WrappedKey([5; WRAPPED_BYTES])),
            },
            object: Object {
                len: 1_000_000,
                crc: 9,
            },
        }
    }

    #[test]
    fn one_rotten_bit_is_survived_and_two_are_told() {
        let dir = Path::new("j");
        let mut catalogue = Catalogue::new(0x1234);
        for base in [500, 100, 900] {
            catalogue.add(tiered(base));
        }
        catalogue.remove(Position(500));
        assert_eq!(
            catalogue.bases().collect::<Vec<_>>(),
            [Position(100), Position(900)]
        );
        let len = 2 * catalogue.encode().len() as u64;
        for at in 0..len {
            let disk = SimDisk::new(1);
            assert_eq!(Catalogue::read(&disk, dir).unwrap(), None);
            catalogue.write(&disk, dir).unwrap();
            disk.flip_bit(&dir.join(TIERED_NAME), at, (at % 8) as u8);
            let read = Catalogue::read(&disk, dir).unwrap();
            assert_eq!(read.as_ref(), Some(&catalogue));
            disk.flip_bit(&dir.join(TIERED_NAME), (at + len / 2) % len, 1);
            let told = Catalogue::read(&disk, dir).unwrap_err();
            assert_eq!(told.kind(), io::ErrorKind::InvalidData);
        }
    }
}
