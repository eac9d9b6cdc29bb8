//! Which key a request is for.

use crate::dice::chance;

/// Any seed: that the keys are the same in every run is what matters.
const SEED: u64 = 1;

/// Which of some keys a request is for.
#[derive(Clone, Debug)]
pub(super) enum KeyChoice {
    /// So many, which take turns.
    InTurn(u64),
    /// As often as their places among the most popular say: for each key the share of all requests up to it.
    Zipf(Vec<f64>),
}

impl KeyChoice {
    /// So many keys, the second half as popular as the first, the third a third, as words and clients are.
    pub(super) fn zipf(count: u32) -> KeyChoice {
        let weights = (1..=count.max(1)).map(|place| 1.0 / f64::from(place));
        let mut upto: Vec<f64> = weights
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let all = upto.last().copied().unwrap_or(1.0);
        upto.iter_mut().for_each(|sum| *sum /= all);
        KeyChoice::Zipf(upto)
    }

    /// The key of the request with this number.
    pub(super) fn pick(&self, number: u64) -> u64 {
        match self {
            KeyChoice::InTurn(count) => number % count,
            KeyChoice::Zipf(upto) => {
                let chance = chance(SEED, number);
                let place = upto.partition_point(|sum| *sum <= chance).min(upto.len() - 1);
                u64::try_from(place).expect("there are as many keys as a u32 can count")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_is_asked_for_twice_as_often_as_the_second() {
        let keys = KeyChoice::zipf(1000);
        let mut counts = [0_u32; 1000];
        for number in 0..100_000 {
            counts[usize::try_from(keys.pick(number)).unwrap()] += 1;
        }
        assert!((12_500..14_200).contains(&counts[0]), "{}", counts[0]);
        assert!((6_000..7_300).contains(&counts[1]), "{}", counts[1]);
        assert!(counts.iter().filter(|count| **count > 0).count() > 990);
    }
}
