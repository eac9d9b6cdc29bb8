//! A histogram of durations with buckets at most 3 % wide. It keeps the maximum exactly.

/// Buckets per power of two.
const FINE: u64 = 32;

/// Counts of durations in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    longest: u64,
}

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram { counts: vec![0; bucket(u64::MAX) + 1], total: 0, longest: 0 }
    }

    pub(crate) fn record(&mut self, time_ns: u64) {
        self.counts[bucket(time_ns)] += 1;
        self.total += 1;
        self.longest = self.longest.max(time_ns);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The quantile of `of_thousand` thousandths, up to the width of its bucket.
    pub(crate) fn at_most(&self, of_thousand: u64) -> u64 {
        let wanted = (self.total * of_thousand).div_ceil(1000);
        let mut seen = 0;
        let reached = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        reached.map_or(self.longest, end).min(self.longest)
    }
}

/// Numbers below `FINE` have a bucket each; above, every power of two has `FINE` buckets.
fn bucket(number: u64) -> usize {
    let shift = (number | FINE).ilog2() - FINE.ilog2();
    (u64::from(shift) * FINE + (number >> shift)) as usize
}

/// The largest number of a bucket.
fn end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    match (bucket / FINE).checked_sub(1) {
        None | Some(0) => bucket,
        Some(shift) => ((FINE + bucket % FINE + 1) << shift) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_where_the_next_begins() {
        for number in (0..20_000).chain([1 << 40, (1 << 40) + 12_345]) {
            let end = end(bucket(number));
            assert!(end >= number && end - number <= number / FINE, "{number} ends at {end}");
            assert_eq!(bucket(end), bucket(number));
            assert_eq!(bucket(end + 1), bucket(number) + 1);
        }
    }

    #[test]
    fn quantiles_are_counted_from_the_shortest() {
        let mut times = Histogram::new();
        for time in 1..=1000 {
            times.record(time);
        }
        assert_eq!(times.at_most(10), 10);
        assert!(times.at_most(500).abs_diff(500) <= 500 / FINE);
        assert_eq!(times.at_most(1000), 1000);
        assert_eq!(times.total(), 1000);
    }
}
