//! The side file of a segment: where its frames lie, and what of it was given back.
//!
//! Owns: the layout, its checksums, how one becomes durable, and that there are two of it. A segment's frames
//! are not read at opening when a sound side file says where they are. That of the newest segment tells of the
//! frames that the newest checkpoint covers, of all others it tells of all. The frames carry all of it themselves,
//! but not where a part was given back, nor when they lie in the object store: so its twin, another file with
//! the same bytes, serves when the first is lost or rotten. Read next: [`super::segment`],
//! [`super::recovery`] (when one is believed), [`super::keeper`] (who writes them).
//!
//! All numbers are little-endian; the layout is persisted. The file is named like its segment, with
//! the suffix `.tab`, its twin with `.twin`. Header, 128 bytes:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABT1` |
//! | 4 | 2 | version, 1 |
//! | 6 | 2 | flags: 0. (Whether the segment is sealed, and its key, stands in its header.) |
//! | 8 | 4 | salt of the segment: the life of its file that this describes |
//! | 12 | 4 | chain: envelope checksum of the last frame |
//! | 16 | 8 | position of the first byte |
//! | 24 | 8 | logical bytes |
//! | 32 | 8 | log index of the first frame |
//! | 40 | 8 | term of the last frame |
//! | 48 | 8 | highest committed log index known when it was made |
//! | 56 | 8 | length of the segment's file in bytes |
//! | 64 | 8 | offset in that file of the first byte after the last frame |
//! | 72 | 4 | number of frames |
//! | 76 | 4 | number of ranges given back |
//! | 80 | 4 | CRC-32C of the ranges |
//! | 84 | 4 | CRC-32C of the frames' places |
//! | 88 | 4 | epoch of the journal when it was made (0 in those of older servers) |
//! | 92 | 32 | 0 |
//! | 124 | 4 | CRC-32C of bytes 0..124 |
//!
//! Then the ranges, ascending and apart, 8 bytes each: first and end, in logical bytes from the base
//! (u32 each). Then the frames, 8 bytes each: logical start from the base and offset of the envelope in
//! the file (u32 each).

use super::files::{read_file, replace_file};
use super::frame::{crc32c, u32_at, u64_at};
use super::meta::Meta;
use super::segment::{FramePlace, FrameTable, SegmentHeader, parse_name};
use crate::disk::Disk;
use anabranch_core::id::{LogIndex, Position, Term};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: [u8; 4] = *b"ABT1";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 128;
const PAIR_BYTES: usize = 8;
const SUFFIX: &str = ".tab";
const TWIN_SUFFIX: &str = ".twin";

/// What a side file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SideTable {
    pub(crate) salt: u32,
    /// Envelope checksum of the last frame.
    pub(crate) chain: u32,
    pub(crate) base: Position,
    pub(crate) first_index: LogIndex,
    pub(crate) last_term: Term,
    pub(crate) committed: LogIndex,
    pub(crate) capacity_bytes: u64,
    pub(crate) frames: FrameTable,
    /// How often the journal's tail had been cut when this was made.
    pub(crate) epoch: u32,
    /// Given back: logical bytes from the base, ascending, no two touch.
    pub(crate) given_back: Vec<(u32, u32)>,
}

impl SideTable {
    fn encode(&self) -> Vec<u8> {
        let places = &self.frames.places;
        let pairs = self.given_back.len() + places.len();
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.reserve(pairs * PAIR_BYTES);
        for (from, to) in &self.given_back {
            bytes.extend_from_slice(&from.to_le_bytes());
            bytes.extend_from_slice(&to.to_le_bytes());
        }
        let frames_at = bytes.len();
        put_places(&mut bytes, places);
        let ranges_crc = crc32c(&[&bytes[HEADER_BYTES..frames_at]]);
        let frames_crc = crc32c(&[&bytes[frames_at..]]);
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.salt.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.chain.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.base.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.frames.len.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first_index.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.last_term.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.committed.0.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.capacity_bytes.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.frames.end_offset.to_le_bytes());
        bytes[72..76].copy_from_slice(&(places.len() as u32).to_le_bytes());
        bytes[76..80].copy_from_slice(&(self.given_back.len() as u32).to_le_bytes());
        bytes[80..84].copy_from_slice(&ranges_crc.to_le_bytes());
        bytes[84..88].copy_from_slice(&frames_crc.to_le_bytes());
        bytes[88..92].copy_from_slice(&self.epoch.to_le_bytes());
        let crc = crc32c(&[&bytes[..124]]);
        bytes[124..128].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a file's bytes; `None` when they are not a whole side file of a known version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<SideTable> {
        let known = bytes.len() >= HEADER_BYTES
            && bytes[0..4] == MAGIC
            && u32_at(bytes, 4) == u32::from(VERSION)
            && u32_at(bytes, 124) == crc32c(&[&bytes[..124]]);
        if !known {
            return None;
        }
        let (count, ranges) = (u32_at(bytes, 72) as usize, u32_at(bytes, 76) as usize);
        let frames_at = HEADER_BYTES + ranges.checked_mul(PAIR_BYTES)?;
        let end = frames_at.checked_add(count.checked_mul(PAIR_BYTES)?)?;
        let ranges = bytes.get(HEADER_BYTES..frames_at)?;
        let frames = bytes.get(frames_at..end)?;
        if bytes.len() != end
            || u32_at(bytes, 80) != crc32c(&[ranges])
            || u32_at(bytes, 84) != crc32c(&[frames])
        {
            return None;
        }
        let pairs = |bytes: &[u8]| -> Vec<(u32, u32)> {
            let pairs = bytes.chunks_exact(PAIR_BYTES);
            pairs
                .map(|pair| (u32_at(pair, 0), u32_at(pair, 4)))
                .collect()
        };
        let places = pairs(frames).into_iter();
        let places = places.map(|(start, offset)| FramePlace { start, offset });
        Some(SideTable {
            salt: u32_at(bytes, 8),
            chain: u32_at(bytes, 12),
            base: Position(u64_at(bytes, 16)),
            first_index: LogIndex(u64_at(bytes, 32)),
            last_term: Term(u64_at(bytes, 40)),
            committed: LogIndex(u64_at(bytes, 48)),
            capacity_bytes: u64_at(bytes, 56),
            frames: FrameTable {
                places: Arc::new(places.collect()),
                len: u64_at(bytes, 24),
                end_offset: u64_at(bytes, 64),
            },
            epoch: u32_at(bytes, 88),
            given_back: pairs(ranges),
        })
    }

    /// Whether it describes the present life of the segment with the header `header`.
    pub(crate) fn belongs_to(&self, header: &SegmentHeader) -> bool {
        self.salt == header.salt
            && self.base == header.base
            && self.first_index == header.first_index
            && self.capacity_bytes == header.capacity_bytes
    }

    /// Whether the segment with the header `next` goes on where this one ends: chain, index, position and
    /// term.
    pub(crate) fn joins(&self, next: &SegmentHeader) -> bool {
        self.chain == next.prev_crc
            && self.last_term == next.prev_term
            && self.end() == next.base
            && self.end_index() == next.first_index
    }

    pub(crate) fn end(&self) -> Position {
        Position(self.base.0 + self.frames.len)
    }

    fn end_index(&self) -> LogIndex {
        LogIndex(self.first_index.0 + self.frames.places.len() as u64)
    }

    /// Whether it tells where the first frames of the segment with the header `header` lie, and a checkpoint covers all
    /// of those: frames below log index `covered`. They are there, whatever became of their bytes. A journal that was
    /// cut below them since has others in their place.
    pub(crate) fn is_part_of(&self, header: &SegmentHeader, covered: u64, meta: &Meta) -> bool {
        let end = self.end_index().0;
        let uncut = self.epoch == meta.epoch
            || self.epoch.checked_add(1) == Some(meta.epoch) && end <= meta.cut_from;
        self.belongs_to(header) && self.given_back.is_empty() && end <= covered && uncut
    }

    /// Makes it the segment's side file: both files say it, durably, on return. One that says it already is left as
    /// it is; of each the one before is gone, or nothing has changed.
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        for path in table_paths(dir, self.base) {
            let there = look_at_table(disk, &path);
            if there.ok().flatten().as_ref() != Some(self) {
                replace_file(disk, dir, &path, &self.encode())?;
            }
        }
        Ok(())
    }
}

fn put_places(bytes: &mut Vec<u8>, places: &[FramePlace]) {
    for place in places {
        bytes.extend_from_slice(&place.start.to_le_bytes());
        bytes.extend_from_slice(&place.offset.to_le_bytes());
    }
}

/// The checksum of places, as a side file of just those frames would have it.
pub(super) fn places_crc(places: &[FramePlace]) -> u32 {
    let mut bytes = Vec::with_capacity(places.len() * PAIR_BYTES);
    put_places(&mut bytes, places);
    crc32c(&[&bytes])
}

/// The path of the side file of the segment that begins at `base`.
pub(crate) fn table_path(dir: &Path, base: Position) -> PathBuf {
    dir.join(format!("{:020}{SUFFIX}", base.0))
}

/// The paths of the side file and its twin: which is believed first comes first.
pub(crate) fn table_paths(dir: &Path, base: Position) -> [PathBuf; 2] {
    let twin = dir.join(format!("{:020}{TWIN_SUFFIX}", base.0));
    [table_path(dir, base), twin]
}

/// The position that a side file's name states.
pub(crate) fn parse_table_name(name: &str) -> Option<Position> {
    parse_name(name, SUFFIX)
}

/// The position that the name of a side file's twin states.
pub(crate) fn parse_twin_name(name: &str) -> Option<Position> {
    parse_name(name, TWIN_SUFFIX)
}

/// Reads the side file of a segment, or its twin: the first that is there, sound and `fits`; and whether that is the
/// twin.
pub(crate) fn read_table(
    disk: &dyn Disk,
    dir: &Path,
    base: Position,
    fits: impl Fn(&SideTable) -> bool,
) -> Option<(SideTable, bool)> {
    for (path, is_twin) in table_paths(dir, base).into_iter().zip([false, true]) {
        match look_at_table(disk, &path) {
            Ok(Some(table)) if fits(&table) => return Some((table, is_twin)),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a side file is of no use");
            }
        }
    }
    None
}

/// Reads a side file; `None` when there is none, an error of kind `InvalidData` when it is not sound.
pub(super) fn look_at_table(disk: &dyn Disk, path: &Path) -> io::Result<Option<SideTable>> {
    let Some(bytes) = read_file(disk, path)? else {
        return Ok(None);
    };
    let read = SideTable::decode(&bytes);
    read.map(Some).ok_or(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;

    fn sample() -> SideTable {
        let places = vec![
            FramePlace {
                start: 0,
                offset: 512,
            },
            FramePlace {
                start: 100,
                offset: 644,
            },
            FramePlace {
                start: 196,
                offset: 772,
            },
        ];
        SideTable {
            salt: 1,
            chain: 2,
            base: Position(3),
            first_index: LogIndex(4),
            last_term: Term(5),
            committed: LogIndex(6),
            capacity_bytes: 7,
            frames: FrameTable {
                places: Arc::new(places),
                len: 300,
                end_offset: 900,
            },
            epoch: 6,
            given_back: vec![(10, 20), (30, 300)],
        }
    }

    #[test]
    fn every_flipped_bit_and_every_missing_byte_is_noticed() {
        let bytes = sample().encode();
        assert_eq!(SideTable::decode(&bytes), Some(sample()));
        for bit in 0..bytes.len() * 8 {
            let mut broken = bytes.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SideTable::decode(&broken), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(SideTable::decode(&bytes[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn one_that_was_not_finished_changes_nothing() {
        let dir = Path::new("j");
        for seed in 0..64 {
            let disk = SimDisk::new(seed);
            sample().write(&disk, dir).unwrap();
            let after = SideTable {
                given_back: vec![(0, 300)],
                ..sample()
            };
            disk.set_faults(crate::disk::sim::Faults {
                fail_sync_after: Some(seed % 2),
                ..Default::default()
            });
            let written = after.write(&disk, dir);
            disk.crash();
            let (read, _) = read_table(&disk, dir, Position(3), |_| true).unwrap();
            assert!(
                read == after || (written.is_err() && read == sample()),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn its_twin_serves_when_it_is_lost_or_rotten_and_it_is_written_again() {
        let dir = Path::new("j");
        let disk = SimDisk::new(1);
        sample().write(&disk, dir).unwrap();
        let [path, twin] = table_paths(dir, Position(3));
        let read = || read_table(&disk, dir, Position(3), |table| *table == sample());
        assert_eq!(read(), Some((sample(), false)));
        disk.flip_bit(&path, 140, 1);
        assert_eq!(read(), Some((sample(), true)));
        sample().write(&disk, dir).unwrap();
        assert_eq!(read(), Some((sample(), false)));
        disk.remove(&path).unwrap();
        assert_eq!(read(), Some((sample(), true)));
        disk.remove(&twin).unwrap();
        assert_eq!(read(), None);
        sample().write(&disk, dir).unwrap();
        assert_eq!(disk.contents(&path), disk.contents(&twin));
    }

    #[test]
    fn it_belongs_to_one_life_of_a_segment() {
        let table = sample();
        let header = SegmentHeader {
            salt: 1,
            prev_crc: 9,
            base: Position(3),
            first_index: LogIndex(4),
            prev_term: Term(1),
            capacity_bytes: 7,
            key: None,
        };
        let next = SegmentHeader {
            salt: 8,
            prev_crc: 2,
            base: Position(303),
            first_index: LogIndex(7),
            prev_term: Term(5),
            capacity_bytes: 7,
            key: None,
        };
        assert!(table.belongs_to(&header) && table.joins(&next));
        for wrong in [
            SegmentHeader { salt: 2, ..header },
            SegmentHeader {
                first_index: LogIndex(3),
                ..header
            },
            SegmentHeader {
                capacity_bytes: 8,
                ..header
            },
        ] {
            assert!(!table.belongs_to(&wrong));
        }
        for wrong in [
            SegmentHeader {
                prev_crc: 3,
                ..next
            },
            SegmentHeader {
                base: Position(304),
                ..next
            },
            SegmentHeader {
                first_index: LogIndex(8),
                ..next
            },
            SegmentHeader {
                prev_term: Term(4),
                ..next
            },
        ] {
            assert!(!table.joins(&wrong));
        }
    }
}
