//! Whether a limit holds, for every stretch of time.
//!
//! Everything that is admitted is fed to a measure in the order of time. That of a bucket is a bucket: if it never
//! overflows, there is no stretch with more than the burst and what flows back in it. A fixed window is counted as it
//! is, and so is a sliding one.

use ratekeeper_core::{Limit, LimitParams, Micros};

/// What was admitted of a key, as far as it still matters.
#[derive(Debug)]
pub(super) struct AdmissionBound {
    figures: LimitParams,
    at: u64,
    /// Of a bucket, parts that have not flowed back; else units of this window.
    level: u64,
    /// Units of the window before.
    before: u64,
}

impl AdmissionBound {
    pub(super) fn new(limit: &Limit) -> AdmissionBound {
        AdmissionBound { figures: limit.figures(), at: 0, level: 0, before: 0 }
    }

    /// Takes note of units that are admitted at the store's time `now`, and says by how much that is too much, in
    /// thousandths of a unit.
    pub(super) fn admit(&mut self, units: u32, now: Micros) -> u64 {
        let units = u64::from(units);
        match self.figures {
            LimitParams::Bucket { unit, refill, capacity, .. } => {
                self.level = self.level.saturating_sub((now.get() - self.at).saturating_mul(refill));
                self.at = now.get();
                self.level += units * unit;
                self.level.saturating_sub(capacity) * 1_000 / unit
            }
            LimitParams::FixedWindow { amount, per, .. } => {
                self.turn(now.get() / per.get());
                self.level += units;
                self.level.saturating_sub(u64::from(amount)) * 1_000
            }
            LimitParams::SlidingWindow { amount, window, tick } => {
                let window = window * u64::from(tick);
                self.turn(now.get() / window);
                self.level += units;
                let fading = self.before * (window - now.get() % window) * 1_000 / window;
                (self.level * 1_000 + fading).saturating_sub(u64::from(amount) * 1_000)
            }
            LimitParams::SlidingLog { .. } | LimitParams::Concurrency { .. } => 0,
        }
    }

    /// Takes out units that were counted at the store's time `at`, and were not admitted after all.
    pub(super) fn forgive(&mut self, units: u32, at: Micros) {
        let units = u64::from(units);
        let window = match self.figures {
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
            self.before = self.before.saturating_sub(units);
        }
    }

    fn turn(&mut self, window: u64) {
        if window != self.at {
            self.before = if window == self.at + 1 { self.level } else { 0 };
            (self.at, self.level) = (window, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_core::{Algorithm, Align, Zone};

    #[test]
    fn a_bound_is_met_by_the_law_and_passed_by_one_unit_more() {
        for law in [
            Algorithm::TokenBucket,
            Algorithm::FixedWindow(Align::Wall(Zone::UTC)),
            Algorithm::SlidingWindowCounter,
        ] {
            let limit = Limit::new(law, "50/s".parse().unwrap()).unwrap();
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
