//! A seeded random number generator.

use crate::random::mix_bits;

/// A `SplitMix64` generator.
#[derive(Clone, Debug)]
pub struct SimRng(u64);

impl SimRng {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> SimRng {
        SimRng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix_bits(self.0)
    }

    /// Uniform in `0.0..1.0`.
    pub fn fraction(&mut self) -> f64 {
        f64::from(u32::try_from(self.next() >> 32).unwrap_or(0)) / 2f64.powi(32)
    }

    /// Uniform in `least..end`.
    pub fn uniform(&mut self, least: f64, end: f64) -> f64 {
        least + self.fraction() * (end - least)
    }

    /// Log-uniform in `least..end`: every order of magnitude is equally likely.
    pub fn log_uniform(&mut self, least: f64, end: f64) -> f64 {
        least * (end / least).powf(self.fraction())
    }

    /// Returns `true` with this probability.
    pub fn happens(&mut self, chance: f64) -> bool {
        self.fraction() < chance
    }

    /// Exponentially distributed with this mean: the time until the next of independent events.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.fraction()).ln()
    }

    /// Picks an element.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Uniform in `0..end`.
    #[expect(clippy::cast_possible_truncation, reason = "the result is below a `usize`")]
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}
