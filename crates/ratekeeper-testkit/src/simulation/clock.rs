//! Virtual time, and the clocks that show it.

use super::rng::SimRng;
use ratekeeper_core::{Clock, Micros};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The current time of a simulation, in microseconds. It is what the store's clock shows.
#[derive(Clone, Debug)]
pub(super) struct VirtualTime {
    begin: u64,
    now: Arc<AtomicU64>,
}

impl VirtualTime {
    pub(super) fn starting_at(begin: u64) -> VirtualTime {
        VirtualTime { begin, now: Arc::new(AtomicU64::new(begin)) }
    }

    pub(super) fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    /// Advances the time. It never goes back.
    pub(super) fn advance_to(&self, then: u64) {
        self.now.store(then.max(self.now()), Relaxed);
    }
}

/// A node's clock: off by an offset, and fast or slow.
#[derive(Clone, Debug)]
pub(super) struct SimClock {
    time: VirtualTime,
    offset: u64,
    /// The fraction by which the clock is slow; fast if negative.
    drift: f64,
}

impl SimClock {
    /// A clock that is off by up to a day and drifts by at most `max_drift`.
    pub(super) fn random(time: &VirtualTime, rng: &mut SimRng, max_drift: f64) -> SimClock {
        let offset = rng.below(86_400_000_000) as u64;
        SimClock { time: time.clone(), offset, drift: rng.uniform(-max_drift, max_drift) }
    }
}

impl Clock for SimClock {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a simulation lasts for days at most"
    )]
    fn now(&self) -> Micros {
        let elapsed = (self.time.now() - self.time.begin) as f64 * (1.0 - self.drift);
        Micros::new(self.time.begin + self.offset + elapsed as u64)
    }
}
