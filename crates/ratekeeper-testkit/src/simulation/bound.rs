//! Checks that a limit holds over every period of time.
//!
//! All admitted units are fed to a reference in the order of time. For a bucket the reference is a bucket: if it
//! never overflows, no period has more units than the burst and what is refilled in it. A fixed window and a
//! sliding window are counted as they are.

use ratekeeper_core::{Limit, LimitParams, Micros};

/// Reference count of the units admitted for a key.
#[derive(Debug)]
pub(super) struct AdmissionBound {
    params: LimitParams,
    at: u64,
    /// For a bucket, parts that have not been refilled. Otherwise units of the current window.
    level: u64,
    /// Units of the previous window.
    previous: u64,
}

impl AdmissionBound {
    pub(super) fn new(limit: &Limit) -> AdmissionBound {
        AdmissionBound { params: limit.params(), at: 0, level: 0, previous: 0 }
    }

    /// Counts units that are admitted at the store's time `now`. Returns by how much they exceed the limit, in
    /// thousandths of a unit.
    pub(super) fn admit(&mut self, units: u32, now: Micros) -> u64 {
        let units = u64::from(units);
        match self.params {
            LimitParams::Bucket { unit, refill, capacity, .. } => {
                self.level = self.level.saturating_sub((now.get() - self.at).saturating_mul(refill));
                self.at = now.get();
                self.level += units * unit;
                self.level.saturating_sub(capacity) * 1_000 / unit
            }
            LimitParams::FixedWindow { amount, per, .. } => {
                self.enter_window(now.get() / per.get());
                self.level += units;
                self.level.saturating_sub(u64::from(amount)) * 1_000
            }
            LimitParams::SlidingWindow { amount, window, tick } => {
                let window = window * u64::from(tick);
                self.enter_window(now.get() / window);
                self.level += units;
                let fading = self.previous * (window - now.get() % window) * 1_000 / window;
                (self.level * 1_000 + fading).saturating_sub(u64::from(amount) * 1_000)
            }
            LimitParams::SlidingLog { .. } | LimitParams::Concurrency { .. } => 0,
        }
    }

    /// Removes units that were counted at the store's time `at` and were not admitted after all.
    pub(super) fn retract(&mut self, units: u32, at: Micros) {
        let units = u64::from(units);
        let window = match self.params {
            LimitParams::Bucket { unit, .. } => {
                self.level = self.level.saturating_sub(units * unit);
                return;
            }
            LimitParams::FixedWindow { per, .. } => at.get() / per.get(),
            LimitParams::SlidingWindow { window, tick, .. } => at.get() / (window * u64::from(tick)),
            LimitParams::SlidingLog { .. } | LimitParams::Concurrency { .. } => return,
        };
        if window == self.at {
            self.level = self.level.saturating_sub(units);
        } else if window + 1 == self.at {
            self.previous = self.previous.saturating_sub(units);
        }
    }

    fn enter_window(&mut self, window: u64) {
        if window != self.at {
            self.previous = if window == self.at + 1 { self.level } else { 0 };
            (self.at, self.level) = (window, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_core::{Algorithm, Align, Zone};

    #[test]
    fn the_algorithm_meets_the_bound_and_one_more_unit_exceeds_it() {
        for algorithm in [
            Algorithm::TokenBucket,
            Algorithm::FixedWindow(Align::WallClock(Zone::UTC)),
            Algorithm::SlidingWindowCounter,
        ] {
            let limit = Limit::new(algorithm, "50/s".parse().unwrap()).unwrap();
            let (mut bound, mut state) = (AdmissionBound::new(&limit), None);
            for millis in 0..10_000_u64 {
                let now = Micros::new(1_000_000_000_000 + millis * 1_000);
                let step = limit.step(state, now, ratekeeper_core::Amount::exactly(1));
                if step.granted.is_some() {
                    state = Some(step.state);
                    assert_eq!(bound.admit(1, now), 0, "{limit} after {millis} ms");
                }
            }
            let end = Micros::new(1_000_010_000_000 - 1_000);
            assert!(bound.admit(2, end) > 0, "{limit}");
        }
    }
}
