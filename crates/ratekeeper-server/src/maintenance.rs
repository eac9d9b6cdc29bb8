//! What a server does for its store.

use ratekeeper::{Clock, MemoryStats, MemoryStore};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How long it takes until every key has been looked at and the drained ones are gone.
const SWEEP: Duration = Duration::from_secs(10);
/// How often at most the broom is taken up.
const STROKES: u32 = 500;
/// How often at most it is logged that there is no room.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);

/// What a server does for its store, and what it asks of it.
pub trait StoreMaintenance {
    /// Looks after it, for ever.
    fn keep(&self) -> impl Future<Output = ()> + Send;

    /// What it holds in memory, if it does.
    fn census(&self) -> Option<MemoryStats>;

    /// What is wrong if memory for counters is full, or was within the last ten seconds.
    fn shortage(&self) -> Option<&'static str> {
        None
    }

    /// Tells others that share it that this node leaves. Nobody asks any more.
    fn leave(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

impl<C: Clock> StoreMaintenance for MemoryStore<C> {
    /// Drops drained keys, a few shards at a time: no request waits behind more than one of them.
    async fn keep(&self) {
        let shards = self.shards();
        let strokes = u32::try_from(shards).unwrap_or(u32::MAX).clamp(1, STROKES);
        let mut beat = interval(SWEEP / strokes);
        // After a pause, one stroke and not all those missed.
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut warnings = StoreWarnings::default();
        loop {
            beat.tick().await;
            self.sweep(shards.div_ceil(strokes as usize));
            warnings.look_at(&self.counts());
        }
    }

    fn census(&self) -> Option<MemoryStats> {
        Some(self.stats())
    }

    fn shortage(&self) -> Option<&'static str> {
        let counts = self.counts();
        match (counts.is_full, counts.is_short) {
            (true, _) => Some("full: some checks can't be counted, and on_store_failure decides"),
            (false, true) => Some("full: new keys of busy rules share counters, and may be denied too early"),
            (false, false) => None,
        }
    }
}

/// What was logged of a store that has no room.
#[derive(Debug, Default)]
struct StoreWarnings {
    logged: MemoryStats,
    at: Option<Instant>,
}

impl StoreWarnings {
    /// Logs what has happened since the last time, unless that was a moment ago.
    fn look_at(&mut self, counts: &MemoryStats) {
        let logged = &self.logged;
        let is_news = counts.sketched > logged.sketched
            || counts.unremembered > logged.unremembered
            || counts.limits_retired > logged.limits_retired;
        if !is_news || self.at.is_some_and(|at| at.elapsed() < BETWEEN_WARNINGS) {
            return;
        }
        tracing::warn!(
            shared_cell_decisions = counts.sketched - logged.sketched,
            unremembered = counts.unremembered - logged.unremembered,
            limits_dropped = counts.limits_retired - logged.limits_retired,
            "memory for counters is full: new keys of busy rules may be denied too early; raise max_keys, \
             or see ratekeeper_decisions_total for the rule that is flooded"
        );
        (self.logged, self.at) = (*counts, Some(Instant::now()));
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
            assert!(timeout(SWEEP, limiter.store().keep()).await.is_err(), "a sweep never ends by itself");
            assert_eq!(limiter.store().stats().keys, 0, "of {keys} keys with room for {capacity}");
        }
    }
}
