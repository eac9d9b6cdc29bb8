//! Background maintenance of a memory store: sweeping drained keys, and warnings when memory is full.

use super::MemoryStore;
use crate::memory_stats::MemoryStats;
use ratekeeper_core::Clock;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How long one sweep over all keys takes. Drained keys are removed by it.
const SWEEP_PERIOD: Duration = Duration::from_secs(10);
/// The maximum number of steps of one sweep.
const MAX_SWEEP_STEPS: u32 = 500;
/// The minimum time between two warnings that memory is full.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

impl<C: Clock> MemoryStore<C> {
    /// Removes drained keys, a few shards at a time, so that no request waits for more than one shard.
    /// Never returns.
    pub(super) async fn sweep_forever(&self) {
        let shards = self.shards();
        let steps = u32::try_from(shards).unwrap_or(u32::MAX).clamp(1, MAX_SWEEP_STEPS);
        let mut timer = interval(SWEEP_PERIOD / steps);
        // After a stall, sweep one step, not all those missed.
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut warnings = StoreWarnings::default();
        loop {
            timer.tick().await;
            self.sweep(shards.div_ceil(steps as usize));
            warnings.log_increase(&self.counts());
        }
    }
}

/// Logs warnings about full memory, at most one per [`WARNING_INTERVAL`].
#[derive(Debug, Default)]
struct StoreWarnings {
    logged: MemoryStats,
    logged_at: Option<Instant>,
}

impl StoreWarnings {
    /// Logs what has been counted since the last warning, unless that was too recent.
    fn log_increase(&mut self, counts: &MemoryStats) {
        let logged = &self.logged;
        let has_increased = counts.sketch_decisions > logged.sketch_decisions
            || counts.uncounted > logged.uncounted
            || counts.limits_retired > logged.limits_retired;
        if !has_increased || self.logged_at.is_some_and(|at| at.elapsed() < WARNING_INTERVAL) {
            return;
        }
        tracing::warn!(
            sketch_decisions = counts.sketch_decisions - logged.sketch_decisions,
            uncounted_checks = counts.uncounted - logged.uncounted,
            limits_dropped = counts.limits_retired - logged.limits_retired,
            "memory for counters is full: new keys of busy rules may be denied too early; raise max_keys, \
             or see ratekeeper_decisions_total for the rule that is flooded"
        );
        (self.logged, self.logged_at) = (*counts, Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Capacity, Limiter, ManualClock, Micros, Span, Store};
    use std::sync::Arc;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn every_drained_key_is_gone_after_one_sweep() {
        // Few enough that every shard has a slot for its keys, wherever they are hashed to.
        for (capacity, keys) in [(1, 1), (1000, 200), (10_000_000, 1000)] {
            let clock = Arc::new(ManualClock::new(Micros::new(1_700_000_000_000_000)));
            let store = MemoryStore::with(Arc::clone(&clock), Capacity::keys(capacity)).unwrap();
            let limiter = Limiter::with_store("1/s", store).unwrap();
            for key in 0..keys {
                assert!(limiter.check_now(&key.to_string()).is_allowed());
            }
            clock.advance(Span::SECOND);
            assert!(
                timeout(SWEEP_PERIOD, limiter.store().maintain()).await.is_err(),
                "maintenance never returns"
            );
            assert_eq!(limiter.store().stats().keys, 0, "of {keys} keys with capacity for {capacity}");
        }
    }
}
