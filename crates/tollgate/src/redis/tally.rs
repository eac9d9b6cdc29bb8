//! What a store did, counted.

use crate::health::{LeaseCounts, StoreCounts};
use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::Instant;

/// What a store did, counted as it does it.
#[derive(Debug, Default)]
pub(super) struct Tally {
    loads: AtomicU64,
    groups: AtomicU64,
    coalesced: AtomicU64,
    pub(super) known: AtomicU64,
    pub(super) local: AtomicU64,
    missed: Mutex<Option<Instant>>,
}

impl Tally {
    pub(super) fn note_load(&self, groups: usize, bundles: usize) {
        self.loads.fetch_add(1, Relaxed);
        self.groups.fetch_add(groups as u64, Relaxed);
        self.coalesced.fetch_add(groups.saturating_sub(bundles) as u64, Relaxed);
    }

    /// Notes that a request got no answer.
    pub(super) fn note_miss(&self) {
        *self.missed.lock() = Some(Instant::now());
    }

    /// How long ago that was last so.
    pub(super) fn last_miss(&self) -> Option<Duration> {
        self.missed.lock().map(|missed| missed.elapsed())
    }

    pub(super) fn read(&self, leases: LeaseCounts) -> StoreCounts {
        let read = |count: &AtomicU64| count.load(Relaxed);
        StoreCounts {
            batches: read(&self.loads),
            requests: read(&self.groups),
            coalesced: read(&self.coalesced),
            denied_from_memory: read(&self.known),
            local: read(&self.local),
            leases,
        }
    }
}
