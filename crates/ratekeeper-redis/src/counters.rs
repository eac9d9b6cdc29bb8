//! Counters of a store.

use ratekeeper::{LeaseCounts, StoreCounts};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::Instant;

/// Counters of a store.
#[derive(Debug, Default)]
pub(crate) struct StoreCounters {
    batches: AtomicU64,
    groups: AtomicU64,
    coalesced: AtomicU64,
    pub(crate) denied_from_memory: AtomicU64,
    pub(crate) decided_locally: AtomicU64,
    /// When a request last got no reply, in microseconds since `origin`, plus one. 0 if that never happened.
    /// While a server is down every request writes it, so it takes no lock.
    failed_at: AtomicU64,
    /// For how many microseconds some requests were decided without the store.
    degraded_micros: AtomicU64,
    origin: CountersOrigin,
}

/// When counting began.
#[derive(Debug)]
struct CountersOrigin(Instant);

impl Default for CountersOrigin {
    fn default() -> CountersOrigin {
        CountersOrigin(Instant::now())
    }
}

impl StoreCounters {
    pub(crate) fn record_batch(&self, groups: usize, coalesced_groups: usize) {
        self.batches.fetch_add(1, Relaxed);
        self.groups.fetch_add(groups as u64, Relaxed);
        self.coalesced.fetch_add(groups.saturating_sub(coalesced_groups) as u64, Relaxed);
    }

    /// Records that a request got no reply.
    pub(crate) fn record_failure(&self) {
        self.failed_at.store(self.micros() + 1, Relaxed);
    }

    /// How long ago a request last got no reply. `None` if that never happened.
    pub(crate) fn last_failure(&self) -> Option<Duration> {
        let failed_at = self.failed_at.load(Relaxed).checked_sub(1)?;
        Some(Duration::from_micros(self.micros().saturating_sub(failed_at)))
    }

    /// Adds a time in which some requests were decided without the store.
    pub(crate) fn add_degraded_time(&self, time: Duration) {
        self.degraded_micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.origin.0.elapsed().as_micros()).unwrap_or(u64::MAX - 1)
    }

    pub(crate) fn snapshot(&self) -> StoreCounts {
        let read = |count: &AtomicU64| count.load(Relaxed);
        StoreCounts {
            batches: read(&self.batches),
            requests: read(&self.groups),
            coalesced: read(&self.coalesced),
            denied_from_memory: read(&self.denied_from_memory),
            decided_locally: read(&self.decided_locally),
            degraded_time: Duration::from_micros(read(&self.degraded_micros)),
            leases: LeaseCounts::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn the_age_of_the_last_failure_is_exact() {
        let counters = StoreCounters::default();
        assert_eq!(counters.last_failure(), None);
        advance(Duration::from_micros(600)).await;
        counters.record_failure();
        // The failure and the query are in different milliseconds, a thousand apart.
        let almost_a_second = Duration::from_micros(999_600);
        advance(almost_a_second).await;
        assert_eq!(counters.last_failure(), Some(almost_a_second));
    }
}
