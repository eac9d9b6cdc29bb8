//! Chance that a seed decides, so that a test that fails can be run again as it was.

/// Spreads the bits of a number, so that numbers that follow each other give numbers that don't.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// From 0.0 to below 1.0: the one with this number of those that follow from a seed.
pub fn chance(seed: u64, number: u64) -> f64 {
    f64::from(throw(seed, number)) / 2f64.powi(32)
}

/// The same for one of so many, counted from 0.
pub fn pick(seed: u64, number: u64, of: usize) -> usize {
    (throw(seed, number) as usize * of) >> 32
}

fn throw(seed: u64, number: u64) -> u32 {
    (mix(seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))) >> 32) as u32
}
