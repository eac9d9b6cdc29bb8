//! How long things took, counted in buckets.

/// The upper ends of the buckets that durations are counted in, in microseconds; longer ones come behind the last.
pub const DURATION_BOUNDS_MICROS: [u64; 15] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000];

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationHistogram {
    /// How many were within each bound of [`DURATION_BOUNDS_MICROS`] and not the one before; the last is the rest.
    pub counts: [u64; DURATION_BOUNDS_MICROS.len() + 1],
    /// All durations together, in nanoseconds.
    pub sum_nanos: u64,
}

impl DurationHistogram {
    /// The bucket that so many nanoseconds are counted in.
    pub fn bucket(nanos: u64) -> usize {
        DURATION_BOUNDS_MICROS.partition_point(|bound| bound * 1_000 < nanos)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The bound, in microseconds, that so many in a hundred kept within; nothing if there are none, or if some of those
    /// took longer than the last bound.
    pub fn percentile_micros(&self, percent: u64) -> Option<u64> {
        let wanted = (self.count() * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        DURATION_BOUNDS_MICROS.get(found?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_bound_that_so_many_kept_within() {
        assert_eq!(DurationHistogram::default().percentile_micros(99), None);
        let mut durations = DurationHistogram::default();
        for (nanos, times) in [(900_000, 98), (1_000_001, 1), (999_000_000, 1)] {
            durations.counts[DurationHistogram::bucket(nanos)] += times;
        }
        assert_eq!(durations.percentile_micros(50), Some(1_000));
        assert_eq!(durations.percentile_micros(98), Some(1_000));
        assert_eq!(durations.percentile_micros(99), Some(2_500));
        assert_eq!(durations.percentile_micros(100), None, "it took longer than any bound");
        assert_eq!(
            (
                DurationHistogram::bucket(0),
                DurationHistogram::bucket(1_000),
                DurationHistogram::bucket(1_001)
            ),
            (0, 0, 1)
        );
    }
}
