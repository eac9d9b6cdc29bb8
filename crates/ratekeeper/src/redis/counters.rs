//! What a store did, counted.

use crate::health::{LeaseCounts, StoreCounts};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::Instant;

/// What a store did, counted as it does it.
#[derive(Debug, Default)]
pub(super) struct StoreCounters {
    loads: AtomicU64,
    groups: AtomicU64,
    coalesced: AtomicU64,
    pub(super) known: AtomicU64,
    pub(super) local: AtomicU64,
    /// When a request last got no answer, in microseconds since `origin`, and one more; 0 if that never was. While a server
    /// is away every request passes here, so it takes no lock.
    missed: AtomicU64,
    /// For how many microseconds some requests were answered without the store.
    away: AtomicU64,
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
    pub(super) fn note_load(&self, groups: usize, bundles: usize) {
        self.loads.fetch_add(1, Relaxed);
        self.groups.fetch_add(groups as u64, Relaxed);
        self.coalesced.fetch_add(groups.saturating_sub(bundles) as u64, Relaxed);
    }

    /// Notes that a request got no answer.
    pub(super) fn note_miss(&self) {
        self.missed.store(self.micros() + 1, Relaxed);
    }

    /// How long ago that was last so.
    pub(super) fn last_miss(&self) -> Option<Duration> {
        let missed = self.missed.load(Relaxed).checked_sub(1)?;
        Some(Duration::from_micros(self.micros().saturating_sub(missed)))
    }

    /// Notes for how long some requests were answered without the store.
    pub(super) fn note_away(&self, time: Duration) {
        self.away.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.origin.0.elapsed().as_micros()).unwrap_or(u64::MAX - 1)
    }

    pub(super) fn read(&self, leases: LeaseCounts) -> StoreCounts {
        let read = |count: &AtomicU64| count.load(Relaxed);
        StoreCounts {
            batches: read(&self.loads),
            requests: read(&self.groups),
            coalesced: read(&self.coalesced),
            denied_from_memory: read(&self.known),
            local: read(&self.local),
            away: Duration::from_micros(read(&self.away)),
            leases,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_miss_is_no_longer_ago_than_it_is() {
        let tally = StoreCounters::default();
        assert_eq!(tally.last_miss(), None);
        advance(Duration::from_micros(600)).await;
        tally.note_miss();
        // It happened in one millisecond and is looked at in another, a thousand later.
        let almost_a_second = Duration::from_micros(999_600);
        advance(almost_a_second).await;
        assert_eq!(tally.last_miss(), Some(almost_a_second));
    }
}
