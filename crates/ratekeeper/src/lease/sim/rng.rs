//! A seeded random number generator.

/// A SplitMix64 generator.
#[derive(Clone, Debug)]
pub(super) struct SimRng(u64);

impl SimRng {
    pub(super) fn new(seed: u64) -> SimRng {
        SimRng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `0.0..1.0`.
    pub(super) fn fraction(&mut self) -> f64 {
        f64::from(u32::try_from(self.next() >> 32).unwrap_or(0)) / 2f64.powi(32)
    }

    /// Uniform in `least..end`.
    pub(super) fn uniform(&mut self, least: f64, end: f64) -> f64 {
        least + self.fraction() * (end - least)
    }

    /// Log-uniform in `least..end`: every order of magnitude is equally likely.
    pub(super) fn log_uniform(&mut self, least: f64, end: f64) -> f64 {
        least * (end / least).powf(self.fraction())
    }

    /// Returns `true` with this probability.
    pub(super) fn happens(&mut self, chance: f64) -> bool {
        self.fraction() < chance
    }

    /// Exponentially distributed with this mean: the time until the next of independent events.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.fraction()).ln()
    }

    /// Picks an element.
    #[cfg(test)]
    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Uniform in `0..end`.
    #[expect(clippy::cast_possible_truncation, reason = "the result is below a `usize`")]
    pub(super) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}
