//! Background maintenance of the store: sweeping drained keys, and warnings when memory is full.

use ratekeeper::{Clock, MemoryStats, MemoryStore};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How long one sweep over all keys takes. Drained keys are removed by it.
const SWEEP_PERIOD: Duration = Duration::from_secs(10);
/// The maximum number of steps of one sweep.
const MAX_SWEEP_STEPS: u32 = 500;
/// The minimum time between two warnings that memory is full.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// What a server needs from its store besides decisions: maintenance, memory statistics and deregistration.
pub trait StoreMaintenance {
    /// Maintains the store in the background. Never returns.
    fn maintain(&self) -> impl Future<Output = ()> + Send;

    /// Statistics of the store's memory. Returns `None` if it keeps no state in memory.
    fn memory_stats(&self) -> Option<MemoryStats>;

    /// A warning if memory for counters is full, or was within the last ten seconds; `None` otherwise.
    fn memory_warning(&self) -> Option<&'static str> {
        None
    }

    /// Tells the other nodes that share the store that this one leaves. Called after the last request.
    fn deregister(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

impl<C: Clock> StoreMaintenance for MemoryStore<C> {
    /// Removes drained keys, a few shards at a time, so that no request waits for more than one shard.
    async fn maintain(&self) {
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

    fn memory_stats(&self) -> Option<MemoryStats> {
        Some(self.stats())
    }

    fn memory_warning(&self) -> Option<&'static str> {
        let counts = self.counts();
        match (counts.is_full, counts.is_sketching) {
            (true, _) => Some("full: some checks can't be counted, and on_store_failure decides"),
            (false, true) => Some("full: new keys of busy rules share counters, and may be denied too early"),
            (false, false) => None,
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
    use ratekeeper::{Capacity, Limiter, ManualClock, Micros, Span};
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
