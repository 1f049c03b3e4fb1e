//! The rows of a chunk as blocks of the index file.
//!
//! A chunk of narrow rows takes one block, one of wide rows two that are read together. All integers are
//! little-endian. Persisted.
//!
//! | field | size | meaning |
//! |---|---|---|
//! | crc | 4 | CRC-32C of the stream's serial number (8), the chunk's number (8) and all bytes after this field, of both blocks |
//! | kind | 1 | 1 narrow rows, 2 wide rows |
//! | count | 1 | rows |
//! | from | 1 | place in the chunk of the first row |
//! | zero | 1 | |
//! | base | 8 | milliseconds that the times of narrow rows count from |
//! | zero | 16 | only where rows are wide |
//! | rows | 255 times 16 or 32 | see `packed.rs`; zero behind the last |
//!
//! Owns: this format. Never: rows (`packed.rs`), which block (`allocator.rs`).

use super::index::Serial;
use crate::index::{BLOCK_BYTES, Block, BlockBytes, Blocks};

const NARROW: u8 = 1;
const WIDE: u8 = 2;
const NARROW_HEADER: usize = 16;
const WIDE_HEADER: usize = 32;

/// Rows with what is needed to read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sheet {
    pub(super) wide: bool,
    pub(super) from: u8,
    pub(super) base: u64,
    /// Two or four words for each row.
    pub(super) words: Vec<u64>,
}

/// Words of one row.
pub(super) fn words_per_row(wide: bool) -> usize {
    if wide { 4 } else { 2 }
}

fn checksum(stream: Serial, number: u64, parts: [&[u8]; 2]) -> [u8; 4] {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&stream.0.to_le_bytes());
    digest.update(&number.to_le_bytes());
    parts.iter().for_each(|part| digest.update(part));
    // The crate hands 32-bit sums back in 64 bits.
    (digest.finalize() as u32).to_le_bytes()
}

fn empty() -> BlockBytes {
    Box::new([0; BLOCK_BYTES])
}

/// As blocks; the second only where rows are wide.
pub(super) fn write(
    stream: Serial,
    number: u64,
    (wide, from, base): (bool, u8, u64),
    words: &[u64],
) -> (BlockBytes, Option<BlockBytes>) {
    let mut first = empty();
    let mut second = wide.then(empty);
    first[4] = if wide { WIDE } else { NARROW };
    first[5] = (words.len() / words_per_row(wide)) as u8;
    first[6] = from;
    first[8..16].copy_from_slice(&base.to_le_bytes());
    let header = if wide { WIDE_HEADER } else { NARROW_HEADER };
    let rest = second
        .iter_mut()
        .flat_map(|block| block.chunks_exact_mut(8));
    let places = first[header..].chunks_exact_mut(8).chain(rest);
    for (place, word) in places.zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let more: &[u8] = second.as_deref().map_or(&[], |block| &block[..]);
    let crc = checksum(stream, number, [&first[4..], more]);
    first[..4].copy_from_slice(&crc);
    (first, second)
}

/// Back from blocks; nothing when they are not those of this chunk.
pub(super) fn read(
    stream: Serial,
    number: u64,
    first: &BlockBytes,
    second: Option<&BlockBytes>,
) -> Option<Sheet> {
    let more: &[u8] = second.map_or(&[], |block| &block[..]);
    let wide = match first[4] {
        NARROW => false,
        WIDE => true,
        _ => return None,
    };
    if wide != second.is_some() || checksum(stream, number, [&first[4..], more]) != first[..4] {
        return None;
    }
    let header = if wide { WIDE_HEADER } else { NARROW_HEADER };
    let bytes = first[header..].iter().chain(more);
    let mut base = [0; 8];
    base.copy_from_slice(&first[8..16]);
    let mut words = Vec::with_capacity(usize::from(first[5]) * words_per_row(wide));
    let mut word = [0; 8];
    for (nth, byte) in bytes.enumerate().take(words.capacity() * 8) {
        word[nth % 8] = *byte;
        if nth % 8 == 7 {
            words.push(u64::from_le_bytes(word));
        }
    }
    Some(Sheet {
        wide,
        from: first[6],
        base: u64::from_le_bytes(base),
        words,
    })
}

/// The words of a chunk's rows from the blocks that its pair names; nothing when they hold anything else.
pub(super) fn fetch(
    blocks: &dyn Blocks,
    (stream, number): (Serial, u64),
    [first, second]: [u32; 2],
    (wide, from, count): (bool, u8, u8),
) -> Option<Vec<u64>> {
    let bytes = blocks.read(Block(first))?;
    let more = match wide {
        true => Some(blocks.read(Block(second))?),
        false => None,
    };
    let sheet = read(stream, number, &bytes, more.as_ref())?;
    let rows = sheet.words.len() / words_per_row(wide);
    let same = (sheet.wide, sheet.from, rows) == (wide, from, usize::from(count));
    same.then_some(sheet.words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_come_back_and_nothing_else_does(
            wide in any::<bool>(),
            seed in any::<u64>(),
            count in 0usize..=255,
            (base, from) in (any::<u64>(), 0u8..255),
            flip in 0usize..BLOCK_BYTES * 8,
        ) {
            let words: Vec<u64> = (0..count * words_per_row(wide)).map(|nth| seed.rotate_left(nth as u32) ^ nth as u64).collect();
            let (mut first, second) = write(Serial(7), 3, (wide, from, base), &words);
            prop_assert_eq!(second.is_some(), wide);
            let back = read(Serial(7), 3, &first, second.as_ref());
            prop_assert_eq!(back, Some(Sheet { wide, from, base, words }));
            prop_assert_eq!(read(Serial(8), 3, &first, second.as_ref()), None, "another stream's");
            prop_assert_eq!(read(Serial(7), 4, &first, second.as_ref()), None, "another chunk's");
            first[flip / 8] ^= 1 << (flip % 8);
            prop_assert_eq!(read(Serial(7), 3, &first, second.as_ref()), None, "damaged");
        }
    }
}
