//! The limits themselves, applied to all requests at once.

use super::rng::SimRng;
use ratekeeper_core::{Amount, Limit, Micros, State};

/// Decides every request at the moment when it is made, with one state for all nodes.
#[derive(Debug)]
pub(super) struct Oracle {
    limits: Vec<Limit>,
    keys: Vec<Vec<Option<State>>>,
    /// Units that were admitted.
    pub(super) admitted: u64,
}

impl Oracle {
    pub(super) fn new(limits: &[Limit], keys: usize) -> Oracle {
        Oracle { limits: limits.to_vec(), keys: vec![vec![None; limits.len()]; keys], admitted: 0 }
    }

    pub(super) fn draw(&mut self, key: usize, units: u32, now: u64) -> bool {
        let states = &mut self.keys[key];
        let step = |(limit, state): (&Limit, &Option<State>)| {
            limit.step(*state, Micros::new(now), Amount::exactly(units))
        };
        let is_admissible = self.limits.iter().zip(&*states).all(|both| step(both).granted.is_some());
        if is_admissible {
            for (limit, state) in self.limits.iter().zip(states) {
                *state = Some(step((limit, state)).state);
            }
            self.admitted += u64::from(units);
        }
        is_admissible
    }
}

/// Ranks drawn with a weight of rank to the power of −1.1.
#[derive(Debug)]
pub(super) struct ZipfRanks(Vec<f64>);

impl ZipfRanks {
    pub(super) fn new(keys: usize) -> ZipfRanks {
        let mut sum = 0.0;
        let sums = (1..=keys).map(|rank| {
            sum += float(rank).powf(-1.1);
            sum
        });
        ZipfRanks(sums.collect())
    }

    pub(super) fn pick(&self, rng: &mut SimRng) -> usize {
        let point = rng.fraction() * self.0.last().copied().unwrap_or(0.0);
        self.0.partition_point(|sum| *sum <= point).min(self.0.len() - 1)
    }
}

/// Converts a number for a share; beyond 2^53, approximately.
#[expect(clippy::cast_precision_loss, reason = "the result is a share")]
pub(super) fn float(number: impl TryInto<u64>) -> f64 {
    number.try_into().unwrap_or(u64::MAX) as f64
}
