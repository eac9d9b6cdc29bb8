//! What a store did, counted.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tollgate_core::Failure;

/// What a store did, counted as it does it.
#[derive(Debug, Default)]
pub(super) struct Tally {
    loads: AtomicU64,
    groups: AtomicU64,
    coalesced: AtomicU64,
    pub(super) known: AtomicU64,
    pub(super) local: AtomicU64,
    timeouts: AtomicU64,
    unreachable: AtomicU64,
    busy: AtomicU64,
    refused: AtomicU64,
}

/// What a store did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCounts {
    /// Times that requests were sent to a server together.
    pub batches: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// Those among them that travelled as one with another.
    pub coalesced: u64,
    /// Requests that were refused without a word to the store, since their keys were known to be empty.
    pub known: u64,
    /// Requests that this node decided by itself, since the store gave no answer.
    pub local: u64,
    /// Requests that the store did not answer in time.
    pub timeouts: u64,
    /// Requests for which the store could not be reached.
    pub unreachable: u64,
    /// Requests that were too many.
    pub busy: u64,
    /// Requests that the store answered with an error.
    pub refused: u64,
}

impl Tally {
    pub(super) fn note_load(&self, groups: usize, bundles: usize) {
        self.loads.fetch_add(1, Relaxed);
        self.groups.fetch_add(groups as u64, Relaxed);
        self.coalesced.fetch_add(groups.saturating_sub(bundles) as u64, Relaxed);
    }

    pub(super) fn note_failure(&self, failure: Failure) {
        let count = match failure {
            Failure::Timeout => &self.timeouts,
            Failure::Unreachable => &self.unreachable,
            Failure::Busy => &self.busy,
            _ => &self.refused,
        };
        count.fetch_add(1, Relaxed);
    }

    pub(super) fn read(&self) -> StoreCounts {
        let read = |count: &AtomicU64| count.load(Relaxed);
        StoreCounts {
            batches: read(&self.loads),
            requests: read(&self.groups),
            coalesced: read(&self.coalesced),
            known: read(&self.known),
            local: read(&self.local),
            timeouts: read(&self.timeouts),
            unreachable: read(&self.unreachable),
            busy: read(&self.busy),
            refused: read(&self.refused),
        }
    }
}
