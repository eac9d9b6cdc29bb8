//! Keys as an API gateway builds them (`user:1234567:/v1/orders`), and the distributions they are drawn from.
//!
//! Everything random is derived from a seed, so that every subject of a round checks the same keys in the same order,
//! and a run can be repeated.

/// SplitMix64: random enough to pick keys, and far cheaper than writing one.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns an exponentially distributed waiting time with this mean.
    pub(crate) fn wait(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// The distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mix {
    /// One key.
    One,
    /// This many keys, all equally likely.
    Uniform(u64),
    /// The k-th key has the weight `1 / k^s`: some are popular, most are rare.
    Zipf(Zipf),
}

impl Mix {
    /// The number of different keys.
    pub(crate) fn keys(&self) -> u64 {
        match self {
            Mix::One => 1,
            Mix::Uniform(keys) => *keys,
            Mix::Zipf(zipf) => zipf.keys,
        }
    }

    /// The number of the next key.
    pub(crate) fn pick(&self, rng: &mut Rng) -> u64 {
        match self {
            Mix::One => 0,
            Mix::Uniform(keys) => rng.below(*keys),
            Mix::Zipf(zipf) => zipf.pick(rng),
        }
    }
}

/// A Zipf distribution, sampled by rejection-inversion (Hörmann and Derflinger, 1996). It needs no table; a table of a
/// million weights would evict the subject's data from the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Zipf {
    keys: u64,
    exponent: f64,
    first: f64,
    last: f64,
    sure: f64,
}

impl Zipf {
    /// Ranks 1 to `keys`; the exponent may not be 1.
    pub(crate) fn new(keys: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf { keys, exponent, first: 0.0, last: 0.0, sure: 0.0 };
        zipf.first = zipf.area(1.5) - 1.0;
        zipf.last = zipf.area(keys as f64 + 0.5);
        zipf.sure = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.weight(2.0));
        zipf
    }

    fn pick(&self, rng: &mut Rng) -> u64 {
        loop {
            let area = self.last + rng.unit() * (self.first - self.last);
            let place = self.area_inverse(area);
            let rank = place.round().clamp(1.0, self.keys as f64);
            if rank - place <= self.sure || area >= self.area(rank + 0.5) - self.weight(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn weight(&self, rank: f64) -> f64 {
        rank.powf(-self.exponent)
    }

    fn area(&self, rank: f64) -> f64 {
        (rank.powf(1.0 - self.exponent) - 1.0) / (1.0 - self.exponent)
    }

    fn area_inverse(&self, area: f64) -> f64 {
        (1.0 + area * (1.0 - self.exponent)).powf(1.0 / (1.0 - self.exponent))
    }
}

/// Overwrites `key` with the key of this number.
pub(crate) fn write(key: &mut String, number: u64) {
    const DIGITS: usize = 8;
    let mut digits = [b'0'; DIGITS];
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    // Seven digits, and an eighth only where it is needed.
    let digits = if digits[0] == b'0' { &digits[1..] } else { &digits };
    key.clear();
    key.push_str("user:");
    key.extend(digits.iter().map(|digit| char::from(*digit)));
    key.push_str(":/v1/orders");
}

/// A buffer of keys, written before they are timed.
///
/// A million strings would be as large as the limiter's own state, and reading them would cost more than the check. A
/// few thousand that are overwritten stay in the cache.
pub(crate) struct Chunk {
    keys: Vec<String>,
}

impl Chunk {
    /// Keys per chunk: enough to make the cost of reading the clock negligible, few enough for the L2 cache.
    pub(crate) const KEYS: usize = 4096;

    pub(crate) fn new() -> Chunk {
        Chunk { keys: (0..Chunk::KEYS).map(|_| String::with_capacity(32)).collect() }
    }

    /// Fills the chunk with the next numbers, as many as it holds, and returns those keys.
    pub(crate) fn fill(&mut self, numbers: impl Iterator<Item = u64>) -> &[String] {
        let mut filled = 0;
        for (key, number) in self.keys.iter_mut().zip(numbers) {
            write(key, number);
            filled += 1;
        }
        &self.keys[..filled]
    }
}

/// Allocates the memory of a chunk, so that later growth of the process is not the chunk's.
pub(crate) fn warm_up() {
    in_chunks(0, Chunk::KEYS as u64, |_| ());
}

/// Calls `visit` with the keys of the numbers `from..to`, one chunk at a time.
pub(crate) fn in_chunks(from: u64, to: u64, mut visit: impl FnMut(&[String])) {
    let mut chunk = Chunk::new();
    for start in (from..to).step_by(Chunk::KEYS) {
        visit(chunk.fill(start..to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_look_like_those_of_a_gateway() {
        let mut key = String::new();
        for (number, text) in [(0, "user:0000000:/v1/orders"), (1_234_567, "user:1234567:/v1/orders")] {
            write(&mut key, number);
            assert_eq!(key, text);
        }
        write(&mut key, 12_345_678);
        assert_eq!(key, "user:12345678:/v1/orders");
    }

    #[test]
    fn zipf_ranks_are_as_frequent_as_their_weights() {
        let (keys, exponent, picks) = (1000, 1.1, 1_000_000);
        let zipf = Mix::Zipf(Zipf::new(keys, exponent));
        let mut rng = Rng::new(7);
        let mut counts = vec![0_u32; keys as usize];
        for _ in 0..picks {
            counts[zipf.pick(&mut rng) as usize] += 1;
        }
        let weight = |rank: usize| (rank as f64).powf(-exponent);
        let total: f64 = (1..=keys as usize).map(weight).sum();
        for rank in [1, 2, 3, 10, 50] {
            let expected = f64::from(picks) * weight(rank) / total;
            let error = (f64::from(counts[rank - 1]) - expected).abs();
            assert!(error < 5.0 * expected.sqrt(), "rank {rank}: {} instead of {expected}", counts[rank - 1]);
        }
    }

    #[test]
    fn chunks_cover_every_number_once() {
        let mut count = 0;
        in_chunks(5, 10_000, |keys| count += keys.len());
        assert_eq!(count, 9_995);
    }
}
