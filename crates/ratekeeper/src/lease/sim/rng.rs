//! Chance that a seed decides.

/// A row of numbers that look like chance.
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

    /// From 0.0 to below 1.0.
    pub(super) fn part(&mut self) -> f64 {
        f64::from(u32::try_from(self.next() >> 32).unwrap_or(0)) / 2f64.powi(32)
    }

    /// From `least` to below `end`.
    pub(super) fn between(&mut self, least: f64, end: f64) -> f64 {
        least + self.part() * (end - least)
    }

    /// From `least` to below `end`; both may be many times each other, and every scale is as likely.
    pub(super) fn scale(&mut self, least: f64, end: f64) -> f64 {
        least * (end / least).powf(self.part())
    }

    /// Whether something happens that does so with this chance.
    pub(super) fn happens(&mut self, chance: f64) -> bool {
        self.part() < chance
    }

    /// How long until something happens that does so every so often, on the whole.
    pub(super) fn wait(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.part()).ln()
    }

    /// One of several.
    #[cfg(test)]
    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A whole number below another.
    #[expect(clippy::cast_possible_truncation, reason = "it is below a number of that type")]
    pub(super) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}
