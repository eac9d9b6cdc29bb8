//! Keys as an API gateway would make them, `user:1234567:/v1/orders`, and which of them comes next.
//!
//! Everything random here follows from a seed, so that every subject of a round is asked for the same keys in the same
//! order, and a run can be repeated.

/// A small random generator (SplitMix64): good enough to pick keys, and far cheaper than writing one.
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

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 up to, but not, 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A waiting time of the given mean, if what is waited for comes at random.
    pub(crate) fn wait(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// Which keys come, and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mix {
    /// The same key every time.
    One,
    /// Every one of so many alike.
    Uniform(u64),
    /// The k-th of so many as often as `1 / k^s`: some are popular, most are rare.
    Zipf(Zipf),
}

impl Mix {
    /// How many different keys there are.
    pub(crate) fn keys(&self) -> u64 {
        match self {
            Mix::One => 1,
            Mix::Uniform(keys) => *keys,
            Mix::Zipf(zipf) => zipf.keys,
        }
    }

    /// The next key's number.
    pub(crate) fn pick(&self, rng: &mut Rng) -> u64 {
        match self {
            Mix::One => 0,
            Mix::Uniform(keys) => rng.below(*keys),
            Mix::Zipf(zipf) => zipf.pick(rng),
        }
    }
}

/// A Zipf distribution, sampled by rejection-inversion (Hörmann and Derflinger, 1996). It needs no table: one of a
/// million weights would push the subject's own out of the cache.
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

/// Writes the key of that number over what `key` held.
pub(crate) fn write(key: &mut String, number: u64) {
    const DIGITS: usize = 8;
    let mut digits = [b'0'; DIGITS];
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    // Seven digits, and the eighth only where it says something.
    let digits = if digits[0] == b'0' { &digits[1..] } else { &digits };
    key.clear();
    key.push_str("user:");
    key.extend(digits.iter().map(|digit| char::from(*digit)));
    key.push_str(":/v1/orders");
}

/// Keys written ahead of the clock.
///
/// A million keys as strings would be as large as the limiter's own state, and reading them would cost more than the
/// check. A few thousand, written over again and again, stay in the cache.
pub(crate) struct Chunk {
    keys: Vec<String>,
}

impl Chunk {
    /// Keys of a chunk: enough that starting and stopping the watch costs nothing, few enough for the L2 cache.
    pub(crate) const KEYS: usize = 4096;

    pub(crate) fn new() -> Chunk {
        Chunk { keys: (0..Chunk::KEYS).map(|_| String::with_capacity(32)).collect() }
    }

    /// Fills it with the next numbers, as many as there are, and shows those.
    pub(crate) fn fill(&mut self, numbers: impl Iterator<Item = u64>) -> &[String] {
        let mut filled = 0;
        for (key, number) in self.keys.iter_mut().zip(numbers) {
            write(key, number);
            filled += 1;
        }
        &self.keys[..filled]
    }
}

/// Has the memory for a chunk in hand, so that what grows afterwards is not the chunk.
pub(crate) fn warm_up() {
    in_chunks(0, Chunk::KEYS as u64, |_| ());
}

/// Walks over the keys of numbers `from..to`, a chunk at a time.
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
    fn keys_look_like_a_gateways() {
        let mut key = String::new();
        for (number, text) in [(0, "user:0000000:/v1/orders"), (1_234_567, "user:1234567:/v1/orders")] {
            write(&mut key, number);
            assert_eq!(key, text);
        }
        write(&mut key, 12_345_678);
        assert_eq!(key, "user:12345678:/v1/orders");
    }

    #[test]
    fn zipf_ranks_come_as_often_as_their_weights_say() {
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
