//! One bit for each offset of a chunk.
//!
//! Owns: [`Bits`] and how many offsets a chunk has. Never: what a bit means (`chunk.rs`).

/// Offsets of one chunk. Persisted: an offset's chunk is the offset divided by it.
pub const CHUNK_OFFSETS: usize = 255;

/// A set of places in a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(pub(super) [u64; 4]);

impl Bits {
    /// The first `count` places.
    pub(super) fn below(count: usize) -> Bits {
        let word = |nth: usize| match count.saturating_sub(nth * 64) {
            0 => 0,
            some @ 1..64 => (1 << some) - 1,
            _ => u64::MAX,
        };
        Bits([word(0), word(1), word(2), word(3)])
    }

    pub(super) fn has(self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    pub(super) fn set(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    /// The lowest place from `from` on and below `to` that is not in it.
    pub(super) fn first_without(self, from: usize, to: usize) -> Option<usize> {
        let mut from = from;
        while from < to {
            let missing = !self.0[from / 64] >> (from % 64);
            if missing != 0 {
                let at = from + missing.trailing_zeros() as usize;
                return (at < to).then_some(at);
            }
            from = (from / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_set(places in proptest::collection::btree_set(0..CHUNK_OFFSETS, 0..255), from in 0usize..256, to in 0usize..256) {
            let mut bits = Bits::default();
            places.iter().for_each(|at| bits.set(*at));
            prop_assert!((0..CHUNK_OFFSETS).all(|at| bits.has(at) == places.contains(&at)));
            let first = (from..to.min(CHUNK_OFFSETS)).find(|at| !places.contains(at));
            prop_assert_eq!(bits.first_without(from, to.min(CHUNK_OFFSETS)), first);
            prop_assert!((0..CHUNK_OFFSETS).all(|at| Bits::below(from).has(at) == (at < from)));
        }
    }
}
