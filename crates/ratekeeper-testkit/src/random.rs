//! Seeded random numbers, so that a failed test can be run again with the same choices.

/// Mixes the bits of a number (the `SplitMix64` finaliser), so that consecutive numbers give unrelated ones.
pub(crate) fn mix_bits(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The random number in `0.0..1.0` with this index in the sequence of a seed.
pub fn random_f64(seed: u64, number: u64) -> f64 {
    f64::from(random_u32(seed, number)) / 2f64.powi(32)
}

/// The random index in `0..of` with this index in the sequence of a seed.
pub fn random_index(seed: u64, number: u64, of: usize) -> usize {
    (random_u32(seed, number) as usize * of) >> 32
}

fn random_u32(seed: u64, number: u64) -> u32 {
    (mix_bits(seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))) >> 32) as u32
}
