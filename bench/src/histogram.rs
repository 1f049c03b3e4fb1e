//! A latency histogram: log-linear buckets over nanoseconds, at most 1.6 % off.
//!
//! Owns counting and quantiles. Never reads a clock. Next: `engine.rs`, which records into it.

/// Linear sub-buckets per power of two, as a power of two: 2^6 = 64.
const SUB_BITS: u32 = 6;
const SUB: u64 = 1 << SUB_BITS;
const BUCKETS: usize = ((64 - SUB_BITS as usize) + 1) * SUB as usize;

/// Counts of durations in nanoseconds.
#[derive(Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            total: 0,
        }
    }
}

impl Histogram {
    /// Counts one duration of `value_ns`.
    #[inline]
    pub fn record(&mut self, value_ns: u64) {
        self.counts[bucket(value_ns)] += 1;
        self.total += 1;
    }

    /// The duration in nanoseconds that the share `q` (0 to 1) of all stays at or below: the
    /// middle of its bucket. `None` when nothing was counted.
    pub fn quantile_ns(&self, q: f64) -> Option<u64> {
        if self.total == 0 {
            return None;
        }
        let rank = ((q * self.total as f64).ceil() as u64).clamp(1, self.total);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Some(middle(index));
            }
        }
        None
    }
}

fn bucket(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - SUB_BITS;
    // The top bit is implied by the row, so the row holds the SUB values below it.
    (u64::from(shift) * SUB + (value >> shift)) as usize
}

fn middle(index: usize) -> u64 {
    let index = index as u64;
    if index < SUB {
        return index;
    }
    let shift = index / SUB - 1;
    let lowest = (index - shift * SUB) << shift;
    lowest + ((1u64 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_values_are_exact() {
        for value in 0..64 {
            assert_eq!(middle(bucket(value)), value);
        }
    }

    #[test]
    fn the_largest_value_has_a_bucket() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert!(histogram.quantile_ns(0.5).unwrap() > u64::MAX / 64 * 63);
    }

    #[test]
    fn quantiles_of_a_uniform_spread() {
        let mut histogram = Histogram::default();
        (1..=100_000u64).for_each(|value| histogram.record(value));
        let p50 = histogram.quantile_ns(0.50).unwrap() as f64;
        let p99 = histogram.quantile_ns(0.99).unwrap() as f64;
        assert!((p50 / 50_000.0 - 1.0).abs() < 0.016, "p50 {p50}");
        assert!((p99 / 99_000.0 - 1.0).abs() < 0.016, "p99 {p99}");
    }

    #[test]
    fn nothing_counted_has_no_quantile() {
        assert_eq!(Histogram::default().quantile_ns(0.5), None);
    }

    proptest! {
        #[test]
        fn a_bucket_is_at_most_one_part_in_64_wide(value in any::<u64>()) {
            let found = middle(bucket(value));
            prop_assert!(found.abs_diff(value) <= value / 64, "{value} read back as {found}");
        }

        #[test]
        fn buckets_keep_the_order(a in any::<u64>(), b in any::<u64>()) {
            prop_assert!(bucket(a.min(b)) <= bucket(a.max(b)));
        }
    }
}
