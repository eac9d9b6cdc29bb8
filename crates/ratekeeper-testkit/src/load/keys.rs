//! The distribution of requests over keys.

use crate::random::random_f64;

/// An arbitrary seed, fixed so that every run uses the same keys.
const SEED: u64 = 1;

/// How the key of a request is chosen.
#[derive(Clone, Debug)]
pub(super) enum KeyChoice {
    /// This many keys, in turn.
    RoundRobin(u64),
    /// A Zipf distribution: for each key, the cumulative share of requests up to it.
    Zipf(Vec<f64>),
}

impl KeyChoice {
    /// `count` keys of which the second is half as popular as the first, the third a third, and so on.
    pub(super) fn zipf(count: u32) -> KeyChoice {
        let weights = (1..=count.max(1)).map(|place| 1.0 / f64::from(place));
        let mut cumulative: Vec<f64> = weights
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let total = cumulative.last().copied().unwrap_or(1.0);
        cumulative.iter_mut().for_each(|sum| *sum /= total);
        KeyChoice::Zipf(cumulative)
    }

    /// The key of the request with this number.
    pub(super) fn key_of(&self, number: u64) -> u64 {
        match self {
            KeyChoice::RoundRobin(count) => number % count,
            KeyChoice::Zipf(cumulative) => {
                let chance = random_f64(SEED, number);
                let place = cumulative.partition_point(|sum| *sum <= chance).min(cumulative.len() - 1);
                u64::try_from(place).expect("a key's number fits in u64")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_is_chosen_twice_as_often_as_the_second() {
        let keys = KeyChoice::zipf(1000);
        let mut counts = [0_u32; 1000];
        for number in 0..100_000 {
            counts[usize::try_from(keys.key_of(number)).unwrap()] += 1;
        }
        assert!((12_500..14_200).contains(&counts[0]), "{}", counts[0]);
        assert!((6_000..7_300).contains(&counts[1]), "{}", counts[1]);
        assert!(counts.iter().filter(|count| **count > 0).count() > 990);
    }
}
