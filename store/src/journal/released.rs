//! What of a journal was released: ranges of positions whose segments are gone on purpose.
//!
//! Owns: the layout and the file. It is written before a segment's file goes, so that a segment that is
//! missing without being listed here was lost. Never says what may go. Read next: [`super::room`],
//! [`super::recovery`].
//!
//! The file is named `released`. All numbers are little-endian; the layout is persisted. The same bytes
//! stand in it twice, so that a rotten bit in one leaves the other:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABR1` |
//! | 4 | 4 | version, 1 |
//! | 8 | 4 | number of ranges |
//! | 12 | 4 | CRC-32C of bytes 0..12 and of the ranges |
//! | 16 | 16 n | ranges, ascending and apart: first position, end position (u64 each) |

use super::files::{read_twins, replace_twins, twins_differ_at};
use super::frame::{crc32c, u32_at, u64_at};
use crate::disk::Disk;
use anabranch_core::id::Position;
use std::io;
use std::path::Path;

const MAGIC: [u8; 4] = *b"ABR1";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const RANGE_BYTES: usize = 16;

/// Name of the file inside the journal's directory.
pub(super) const RELEASED_NAME: &str = "released";

/// Ranges of positions, ascending; no two touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Released(Vec<(Position, Position)>);

impl Released {
    /// Adds a segment that is about to go.
    pub(super) fn add(&mut self, from: Position, to: Position) {
        let at = self.0.partition_point(|range| range.1 < from);
        let mut merged = (from, to);
        let mut end = at;
        while let Some(next) = self.0.get(end).filter(|next| next.0 <= to) {
            merged = (merged.0.min(next.0), merged.1.max(next.1));
            end += 1;
        }
        self.0.splice(at..end, [merged]);
    }

    /// Whether everything from `from` to `to` was released.
    pub(super) fn covers(&self, from: Position, to: Position) -> bool {
        self.0.iter().any(|range| range.0 <= from && to <= range.1)
    }

    /// Whether the byte at a position was.
    pub(super) fn contains(&self, position: Position) -> bool {
        self.covers(position, Position(position.0.saturating_add(1)))
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.0.len() * RANGE_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.0.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for (from, to) in &self.0 {
            bytes.extend_from_slice(&from.0.to_le_bytes());
            bytes.extend_from_slice(&to.0.to_le_bytes());
        }
        let crc = crc32c(&[&bytes[..12], &bytes[HEADER_BYTES..]]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Where the two copies of the file in `dir` begin to differ; nothing when they do not, or there is no file.
    pub(super) fn differs_at(disk: &dyn Disk, dir: &Path) -> io::Result<Option<u64>> {
        twins_differ_at(disk, &dir.join(RELEASED_NAME), Self::decode)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let known = bytes.len() >= HEADER_BYTES
            && bytes[..4] == MAGIC
            && u32_at(bytes, 4) == VERSION
            && u32_at(bytes, 12) == crc32c(&[&bytes[..12], &bytes[HEADER_BYTES..]]);
        let ranges = bytes.get(HEADER_BYTES..)?.chunks_exact(RANGE_BYTES);
        if !known || ranges.len() != u32_at(bytes, 8) as usize {
            return None;
        }
        let range = |bytes: &[u8]| (Position(u64_at(bytes, 0)), Position(u64_at(bytes, 8)));
        Some(Self(ranges.map(range).collect()))
    }

    /// Reads the file; `None` when there is none, an error of kind `InvalidData` when neither copy is sound.
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> io::Result<Option<Self>> {
        read_twins(disk, &dir.join(RELEASED_NAME), Self::decode)
    }

    /// Replaces the file; durable on return.
    pub(super) fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        replace_twins(disk, dir, &dir.join(RELEASED_NAME), &self.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;

    fn of(ranges: &[(u64, u64)]) -> Released {
        let mut released = Released::default();
        for (from, to) in ranges {
            released.add(Position(*from), Position(*to));
        }
        released
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let released = of(&[(10, 20), (40, 50), (20, 30), (60, 70), (0, 5)]);
        assert_eq!(released, of(&[(0, 5), (10, 30), (40, 50), (60, 70)]));
        assert_eq!(of(&[(10, 30), (40, 50), (30, 40)]), of(&[(10, 50)]));
        assert!(released.covers(Position(12), Position(30)));
        assert!(!released.covers(Position(12), Position(31)));
        assert!(released.contains(Position(10)) && !released.contains(Position(30)));
    }

    #[test]
    fn one_rotten_bit_is_survived_and_two_are_told() {
        let dir = Path::new("j");
        let released = of(&[(0, 5), (10, 30)]);
        let len = 2 * released.encode().len() as u64;
        for at in 0..len {
            let disk = SimDisk::new(1);
            assert_eq!(Released::read(&disk, dir).unwrap(), None);
            released.write(&disk, dir).unwrap();
            disk.flip_bit(&dir.join(RELEASED_NAME), at, (at % 8) as u8);
            assert_eq!(Released::read(&disk, dir).unwrap(), Some(released.clone()));
            disk.flip_bit(&dir.join(RELEASED_NAME), (at + len / 2) % len, 1);
            let told = Released::read(&disk, dir).unwrap_err();
            assert_eq!(told.kind(), io::ErrorKind::InvalidData);
        }
    }
}
