//! A histogram of durations.

/// The upper bounds of the histogram buckets in microseconds. Longer durations go into one more bucket after the
/// last.
pub const DURATION_BOUNDS_MICROS: [u64; 15] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000];

/// A histogram of durations with the buckets of [`DURATION_BOUNDS_MICROS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationHistogram {
    /// The number of durations in each bucket: at most its bound and more than the previous bound. The last bucket
    /// has no bound.
    pub counts: [u64; DURATION_BOUNDS_MICROS.len() + 1],
    /// The sum of all durations in nanoseconds.
    pub sum_nanos: u64,
}

impl DurationHistogram {
    /// Returns the index of the bucket for a duration of `nanos` nanoseconds.
    pub fn bucket(nanos: u64) -> usize {
        DURATION_BOUNDS_MICROS.partition_point(|bound| bound * 1_000 < nanos)
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the smallest bound, in microseconds, that `percent` of the durations stayed within. Returns `None`
    /// if there are no durations, or if some of those exceed the last bound.
    pub fn percentile_micros(&self, percent: u64) -> Option<u64> {
        let rank = (self.count() * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        DURATION_BOUNDS_MICROS.get(found?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_smallest_bound_that_covers_it() {
        assert_eq!(DurationHistogram::default().percentile_micros(99), None);
        let mut histogram = DurationHistogram::default();
        for (nanos, times) in [(900_000, 98), (1_000_001, 1), (999_000_000, 1)] {
            histogram.counts[DurationHistogram::bucket(nanos)] += times;
        }
        assert_eq!(histogram.percentile_micros(50), Some(1_000));
        assert_eq!(histogram.percentile_micros(98), Some(1_000));
        assert_eq!(histogram.percentile_micros(99), Some(2_500));
        assert_eq!(histogram.percentile_micros(100), None, "one duration exceeds every bound");
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
